"""The lab's own apps, for whoever tries things out on them: a lesson, the live page; and what may
be set there of servers and loads, within what the machine of a class takes. Pure."""

from collections.abc import Mapping

from msgspec import Struct

from workerlab.bundled import target_of
from workerlab.experiments.jobs import CPU_ENV
from workerlab.model import App, Server
from workerlab.plan import SLEEP_ENV
from workerlab.server.worker_classes import ASGI_CLASSES, CLASSES, class_named, configured_slots

# The most of each; the least is 1
MOST: Mapping[str, int] = {
    "clients": 500, "workers": 16, "threads": 64, "worker_connections": 2000, "backlog": 4096,
}  # fmt: skip


class OwnApp(Struct, frozen=True):
    """`wsgi`, `asgi`: its targets, "" for none; `classes`: those that serve it; `blocks`: a worker
    serves one request at a time, whatever its class."""

    title: str
    wsgi: str = ""
    asgi: str = ""
    classes: tuple[str, ...] = CLASSES
    blocks: bool = False
    preload: bool = False


OWN_APPS: Mapping[str, OwnApp] = {
    "sleep": OwnApp("waits", target_of("@sleep_wsgi"), target_of("@sleep_asgi")),
    "blocking": OwnApp(
        "waits, blocking: time.sleep in async def",
        asgi=target_of("@blocking_asgi"), classes=tuple(sorted(ASGI_CLASSES)), blocks=True,
    ),
    "imported": OwnApp(
        "waits, blocking: sleep imported unpatched",
        wsgi=target_of("@imported_sleep"), classes=("gevent",), blocks=True, preload=True,
    ),
}  # fmt: skip


def server_of(
    app: str, worker_class: str, workers: int, threads: int, backlog: int, connections: int,
    sleep_s: float, cpu_s: float = 0.0,
) -> Server:  # fmt: skip
    """Threads are those of a class that has them; sync with more would become gthread. `sleep_s`,
    `cpu_s`: of a request that asks for nothing else."""
    row = OWN_APPS[app]
    target = row.asgi if worker_class in ASGI_CLASSES else row.wsgi
    threaded = class_named(worker_class).slots == "threads"
    env = {SLEEP_ENV: f"{sleep_s:g}"} | ({CPU_ENV: f"{1000 * cpu_s:g}"} if cpu_s else {})
    return Server(
        *(worker_class, workers, threads if threaded else 1, backlog, connections),
        app=App(target, env=tuple(env.items()), sleep_s=None if cpu_s else sleep_s),
        preload=row.preload,
    )


def at_once(app: str, server: Server) -> int | None:
    """Requests in the app at the same time; None: without limit."""
    return server.workers if OWN_APPS[app].blocks else configured_slots(server)
