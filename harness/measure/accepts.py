"""Times accept() in a worker, whatever its class: when each connection left the kernel's queue.

Runs inside Gunicorn, loaded by path from `inside.py`: stdlib only, syntax of Python 3.10.

Every accept in Python code ends in the method `_accept` of the listening socket: that of
`socket.socket.accept` (sync, gthread, asyncio, tornado, eventlet's green socket) and that of
gevent's server, which calls it itself. So the innermost socket's class is exchanged for one
with a method more, in place: same object, same descriptor, whoever holds it already. uvloop
accepts in C: then nothing is ever noted, and the proof says so.

Connections are known by their peer, (host, port), in the form in which the worker's requests tell
it: WSGI has the port as text. A port can be used again only when its earlier connection is gone,
and every accept of the worker is noted, so the newest note is the one that counts. A proxy's
header may put another address in the peer's place: then none is found, and the accept is not
known, never wrong. There are never more notes than peers have ports.

Rejected: Gunicorn's hooks (none is called at accept), an attribute `accept` on Gunicorn's own
socket objects (asgi and gevent go round them), a new socket on the same descriptor (whoever holds
the old one would go on with it).
"""

from __future__ import annotations

import socket
from time import monotonic_ns as now
from typing import Any

WRAPPERS = ("sock", "fd", "_sock")  # where Gunicorn, eventlet and gevent keep the socket they wrap


def time_accepts(worker: Any, accepted: dict[Any, int], wsgi: bool) -> None:
    """From now on note in `accepted`, by peer, when `worker` accepts a connection."""
    for listener in worker.sockets:
        sock = innermost(listener)
        if getattr(sock, "family", None) not in (socket.AF_INET, socket.AF_INET6):
            continue  # peers without a port
        try:
            sock.__class__ = timed(type(sock), accepted, wsgi)
        except (AttributeError, TypeError):  # nothing that Python accepts by, or no Python class
            continue


def innermost(sock: Any) -> Any:
    """The socket in all its wrappings."""
    for name in WRAPPERS:
        inner = getattr(sock, name, None)
        if inner is not None:
            return innermost(inner)
    return sock


def timed(kind: Any, accepted: dict[Any, int], wsgi: bool) -> type[Any]:
    """`kind`, with accepts noted."""
    accept = kind._accept

    def as_wsgi(self: Any) -> Any:
        handle, address = accept(self)
        accepted[address[0], str(address[1])] = now()
        return handle, address

    def as_asgi(self: Any) -> Any:
        handle, address = accept(self)
        accepted[address[:2]] = now()
        return handle, address

    # No slots of its own, or its objects would have another layout
    return type("Timed", (kind,), {"__slots__": (), "_accept": as_wsgi if wsgi else as_asgi})
