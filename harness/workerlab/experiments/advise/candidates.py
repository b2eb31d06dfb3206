"""The candidates of `advise`: worker classes, workers and threads within the limits.

Workers, for n cores: 1, n, n + 1, 2n, and the rule of thumb 2n + 1, unless a limit excludes it. A
class that serves one request per worker at a time gets more (4n, 8n, ...): its workers replace the
threads of other classes, but each takes the memory of a process. They end at 16 (Gunicorn's
documentation recommends 4 to 12), or at 64 if the app is not thread-safe and has no alternative.
With --max-workers every class gets up to that many. The number of threads doubles, too. A limit on
simultaneous requests bounds the slots; for classes with unlimited slots, only the app can enforce
it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from workerlab.model import App, Server
from workerlab.server.worker_classes import class_named

THREADS = (2, 4, 8, 16, 32, 64)
MAX_WORKERS = 16
MAX_WORKERS_NOT_THREAD_SAFE = 64
CONNECTIONS = 1000  # Gunicorn's default, per worker
BACKLOG = 2048  # Gunicorn's default


class Limits(Struct, frozen=True):
    """The limits of the target machine and of the app. None: no limit."""

    cores: float
    memory_bytes: int | None = None
    max_workers: int | None = None
    max_in_flight: int | None = None  # requests at once, all workers together
    thread_safe: bool = True
    confined: int | None = None  # cores that launches are confined to; None: not confined

    @property
    def flags(self) -> tuple[str, ...]:
        """The given options that exclude candidates."""
        given = {
            "--max-in-flight": self.max_in_flight is not None,
            "--max-workers": self.max_workers is not None,
            "--not-thread-safe": not self.thread_safe,
        }
        return tuple(name for name, is_given in given.items() if is_given)

    @property
    def rule_of_thumb(self) -> int:
        """The rule of thumb for workers: twice the cores plus one."""
        return 2 * max(1, math.floor(self.cores)) + 1


def worker_counts(limits: Limits, *, one_each: bool) -> list[int]:
    """The worker counts, ascending. `one_each`: a worker serves one request at a time."""
    n = max(1, math.floor(limits.cores))
    counts = {1, n, n + 1, 2 * n, limits.rule_of_thumb}
    default = MAX_WORKERS if limits.thread_safe else MAX_WORKERS_NOT_THREAD_SAFE
    max_workers = limits.max_workers or max(default, limits.rule_of_thumb)
    if one_each and limits.max_in_flight:
        max_workers = min(max_workers, limits.max_in_flight)
    workers = 4 * n
    while (one_each or limits.max_workers) and workers <= max_workers:
        counts.add(workers)
        workers *= 2
    counts.add(limits.max_workers or 1)
    return sorted({min(count, max_workers) for count in counts})


def servers_of(kind: Server, limits: Limits) -> Iterator[Server]:
    """The candidates of one worker class within the limits, possibly none; app, interpreter and
    Gunicorn version are those of `kind`."""
    row, pool = class_named(kind.worker_class), limits.max_in_flight
    slots = row.slots
    if not limits.thread_safe and slots != "one":
        return
    base = replace(kind, workers=1, threads=1, preload=False, cores=limits.confined)
    one_process = "workers" in row.ignores
    for workers in [1] if one_process else worker_counts(limits, one_each=slots == "one"):
        if slots == "threads":
            for threads in THREADS:
                if not pool or workers * threads <= pool:
                    yield replace(base, workers=workers, threads=threads)
        elif slots == "worker_connections":
            connections = min(kind.worker_connections, pool // workers if pool else math.inf)
            if connections:
                yield replace(base, workers=workers, worker_connections=int(connections))
        else:
            yield replace(base, workers=workers)


def kind_of(
    name: str, app: App, python: str = "", gunicorn: str = "", own: Mapping[str, object] = {}
) -> Server:
    """A server of a worker class with an app, on which candidates are based. `python`, `gunicorn`:
    only if several are compared; `own`: settings of the app's own Gunicorn file."""
    backlog, connections = own.get("backlog"), own.get("worker_connections")
    return Server(
        worker_class=name,
        workers=1,
        threads=1,
        backlog=backlog if isinstance(backlog, int) else BACKLOG,
        worker_connections=connections if isinstance(connections, int) else CONNECTIONS,
        app=app,
        python=python,
        gunicorn=gunicorn,
    )


def candidates(kinds: Iterable[Server], limits: Limits) -> tuple[Server, ...]:
    return tuple(server for kind in kinds for server in servers_of(kind, limits))
