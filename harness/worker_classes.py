"""The worker classes, as Gunicorn 25.3 behaves: a line here, a file in `configs/`, and the packages
it needs in `measure/introspect.py`.

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


def _per_worker(server: Server) -> int | None:
    return server.workers


def _per_thread(server: Server) -> int | None:
    return server.workers * server.threads


def _per_connection(server: Server) -> int | None:
    return server.workers * server.worker_connections


@dataclass(frozen=True)
class WorkerClass:
    """`accepts_first`: it accepts more than it serves, so chance decides which worker's requests
    wait. `heeds_connections`: `worker_connections` changes what it does."""

    slots: Callable[[Server], int | None]
    asgi: bool = False
    accepts_first: bool = False
    heeds_connections: bool = False


WORKER_CLASSES: Mapping[str, WorkerClass] = {
    "sync": WorkerClass(_per_worker),
    "gthread": WorkerClass(_per_thread, accepts_first=True, heeds_connections=True),
    "eventlet": WorkerClass(_per_connection, heeds_connections=True),
    "gevent": WorkerClass(_per_connection, heeds_connections=True),
    "tornado": WorkerClass(_per_worker, accepts_first=True),
    "asgi": WorkerClass(_unlimited, asgi=True, accepts_first=True),
    "uvicorn": WorkerClass(_unlimited, asgi=True, accepts_first=True),
}
CLASSES = tuple(WORKER_CLASSES)
ASGI_CLASSES = frozenset(name for name, traits in WORKER_CLASSES.items() if traits.asgi)


def configured_slots(server: Server) -> int | None:
    """Requests served at once by the settings; None where nothing limits them.

    Raises KeyError for a class that is not in the table.
    """
    return WORKER_CLASSES[server.worker_class].slots(server)
