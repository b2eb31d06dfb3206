"""Times accept() in a worker, whatever its class: when each connection left the kernel's queue.

Runs inside Gunicorn, loaded by path from `boot.py`: stdlib only, syntax of Python 3.10.

Every accept in Python code ends in the method `_accept` of the listening socket: that of
`socket.socket.accept` (sync, gthread, asyncio, tornado, eventlet's green socket) and that of
gevent's server, which calls it itself. So the innermost socket's class is exchanged for one
with a method more, in place: same object, same descriptor, whoever holds it already. uvloop
accepts in C: then nothing is ever noted, and the proof says so.

A connection is known by its client's port: all clients of the lab are on this machine and have one
address. A port can be used again only when its earlier connection is gone, and every accept of
the worker is noted, so the newest note is the one that counts. Where a proxy's header has changed
what the server tells of its client, there is no such port, and the accept is unknown, not wrong.
There are never more notes than ports.

Rejected: Gunicorn's hooks (none is called at accept), an attribute `accept` on Gunicorn's own
socket objects (asgi and gevent go round them), a new socket on the same descriptor (whoever holds
the old one would go on with it).
"""

from __future__ import annotations

import socket
from time import monotonic_ns as now
from typing import Any

WRAPPERS = ("sock", "fd", "_sock")  # where Gunicorn, eventlet and gevent keep the socket they wrap


def time_accepts(worker: Any, accepted: dict[int, int]) -> None:
    """From now on note in `accepted`, by the client's port, when `worker` accepts."""
    for listener in worker.sockets:
        sock = innermost(listener)
        if getattr(sock, "family", None) not in (socket.AF_INET, socket.AF_INET6):
            continue  # clients without a port
        try:
            sock.__class__ = timed(type(sock), accepted)
        except (AttributeError, TypeError):  # nothing that Python accepts by, or no Python class
            continue


def innermost(sock: Any) -> Any:
    """The socket in all its wrappings."""
    for name in WRAPPERS:
        inner = getattr(sock, name, None)
        if inner is not None:
            return innermost(inner)
    return sock


def timed(kind: Any, accepted: dict[int, int]) -> type[Any]:
    """`kind`, with accepts noted."""
    accept = kind._accept

    class Timed(kind):  # type: ignore[misc]
        __slots__ = ()  # or its objects would have another layout

        def _accept(self) -> Any:
            handle, address = accept(self)
            accepted[address[1]] = now()
            return handle, address

    return Timed
