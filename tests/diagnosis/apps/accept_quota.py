"""Limits the connections of each worker: with QUOTAS="6,2" the first worker accepts at most 6 at
once, the second 2. Further connections stay in the kernel's queue until another worker accepts.

sync, gthread, asyncio and tornado all call `socket.socket.accept`, and retry after BlockingIOError.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import weakref
from typing import Any

RETRY_S = 0.0005  # the listener stays readable: retries without a pause would burn CPU
claims: list[socket.socket] = []  # keeps the socket that claims this worker's number


def worker_number() -> int:
    """The first free number from 0, claimed by an abstract socket that ends with the worker."""
    for number in range(64):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0workerlab-quota-{os.getppid()}-{number}")
        except OSError:
            claim.close()
        else:
            claims.append(claim)
            return number
    raise RuntimeError("more than 64 workers")


def limit_accepts(quotas: str) -> None:
    limits = [int(word) for word in quotas.split(",")]
    number = worker_number()
    limit = limits[number] if number < len(limits) else 0
    held: list[weakref.ref[socket.socket]] = []
    accept = socket.socket.accept

    def limited(self: socket.socket) -> Any:
        held[:] = [ref for ref in held if (sock := ref()) is not None and sock.fileno() != -1]
        if len(held) >= limit:
            time.sleep(RETRY_S)
            raise BlockingIOError(errno.EAGAIN, "this worker has its quota")
        connection, address = accept(self)
        held.append(weakref.ref(connection))
        return connection, address

    socket.socket.accept = limited
