"""Which worker has how many connections, decided by the app: QUOTAS="6,2" lets the first worker
have 6 at once and the second 2. A worker that has its share leaves the next connection in the
kernel's queue, where another takes it.

It imports nothing that the servers could have replaced: `socket.socket.accept` is what sync,
gthread, asyncio and tornado accept by, and they all look at it again after BlockingIOError.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import weakref
from typing import Any

LOOK_AGAIN_S = 0.0005  # a refused connection stays readable: without a pause, looking would burn
mark: list[socket.socket] = []  # what shows the other workers which number this one has


def number() -> int:
    """Of this worker among its siblings: 0, 1, ... A name in the kernel that goes with it."""
    for place in range(64):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0workerlab-dealing-{os.getppid()}-{place}")
        except OSError:
            claim.close()
        else:
            mark.append(claim)
            return place
    raise RuntimeError("more than 64 workers")


def deal(quotas: str) -> None:
    shares = [int(word) for word in quotas.split(",")]
    place = number()
    most = shares[place] if place < len(shares) else 0
    held: list[weakref.ref[socket.socket]] = []
    accept = socket.socket.accept

    def limited(self: socket.socket) -> Any:
        held[:] = [ref for ref in held if (sock := ref()) is not None and sock.fileno() != -1]
        if len(held) >= most:
            time.sleep(LOOK_AGAIN_S)
            raise BlockingIOError(errno.EAGAIN, "this worker has its share")
        connection, address = accept(self)
        held.append(weakref.ref(connection))
        return connection, address

    socket.socket.accept = limited
