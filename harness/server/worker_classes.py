"""The worker classes, as Gunicorn 25.3 behaves: a line here, a file in `configs/`, and the packages
it needs in `server/inside/introspect.py`.

Slots: how many requests a server may serve at once, by its settings. gthread's
`worker_connections` bounds what it accepts, not what it serves; native asgi stores the setting and
does not enforce it; uvicorn is never told; tornado runs a WSGI app inside its loop, so one blocks
the others. What an app really reaches is measured: a blocking sleep in an `async def` serves one at
a time whatever stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.model import Server


def _unlimited(_server: Server) -> int | None:
    return None


def _one(_server: Server) -> int | None:
    return 1


def _threads(server: Server) -> int | None:
    return server.threads


def _connections(server: Server) -> int | None:
    return server.worker_connections


@dataclass(frozen=True)
class WorkerClass:
    """`slots`: of one worker. `accepts_first`: it accepts more than it serves, so chance decides
    which worker's requests wait. `heeds_connections`: `worker_connections` changes what it does.
    `loop`: one event loop serves all requests of a worker, so a call that blocks holds up all."""

    slots: Callable[[Server], int | None]
    asgi: bool = False
    accepts_first: bool = False
    heeds_connections: bool = False
    loop: bool = False


WORKER_CLASSES: Mapping[str, WorkerClass] = {
    "sync": WorkerClass(_one),
    "gthread": WorkerClass(_threads, accepts_first=True, heeds_connections=True),
    "eventlet": WorkerClass(_connections, heeds_connections=True, loop=True),
    "gevent": WorkerClass(_connections, heeds_connections=True, loop=True),
    "tornado": WorkerClass(_one, accepts_first=True),
    "asgi": WorkerClass(_unlimited, asgi=True, accepts_first=True, loop=True),
    "uvicorn": WorkerClass(_unlimited, asgi=True, accepts_first=True, loop=True),
}
CLASSES = tuple(WORKER_CLASSES)
ASGI_CLASSES = frozenset(name for name, traits in WORKER_CLASSES.items() if traits.asgi)


def configured_slots(server: Server) -> int | None:
    """Requests served at once by the settings; None where nothing limits them.

    Raises KeyError for a class that is not in the table.
    """
    each = slots_per_worker(server)
    return None if each is None else server.workers * server.instances * each


def slots_per_worker(server: Server) -> int | None:
    """Requests one worker serves at once by the settings; None where nothing limits them."""
    return WORKER_CLASSES[server.worker_class].slots(server)


def titled(server: Server) -> str:
    """What a person calls it: 'sync, 4 workers', 'gthread, 2 workers x 4 threads'."""
    workers = f"{server.workers} worker{'s' * (server.workers != 1)}"
    if server.worker_class != "gthread":
        return f"{server.worker_class}, {workers}"
    return f"gthread, {workers} x {server.threads} thread{'s' * (server.threads != 1)}"
