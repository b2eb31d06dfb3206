"""One believed cell as a diagnosis looks at it, and the phrases that its rules share."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.handshakes import Handshakes
from harness.analysis.knee import BUSY
from harness.analysis.r0 import parallel
from harness.model import CellResult, Server, WorkerClass
from harness.numbers.words import plural

# In transition: these stand in `report.messages`, by the code in the worker class's row
MORE_SLOTS = {
    "advice.workers_threads_or_async": "More workers, threads (gthread) or an asynchronous class"
    " serve more at once.",
    "advice.threads_or_async": "More threads or workers, or an asynchronous class, serve more at"
    " once.",
    "advice.worker_connections": "A higher --worker-connections or more workers serve more at"
    " once.",
    "advice.tornado": "A WSGI app blocks tornado's loop: more workers, or threads (gthread), serve"
    " more at once.",
    "advice.more_workers": "More workers serve more at once.",
}


@dataclass(frozen=True)
class Case:
    """One believed cell and what its result does not show.

    rps: completions per second whatever their status. lone_s: R0. blocked: the busiest worker's
    share of time in the app, where none had two requests in it although its loop could.
    """

    cell: CellResult
    rps: float
    lone_s: float
    handshakes: Handshakes
    blocked: float | None = None
    patched_late: bool = False  # by gevent, when the app had been loaded already
    cores: int | None = None

    @property
    def server(self) -> Server:
        return self.cell.trial.cell.server

    @property
    def worker_class(self) -> WorkerClass:
        return self.cell.worker_class

    @property
    def more_slots(self) -> str:
        return MORE_SLOTS[self.worker_class.advice]

    @property
    def connections(self) -> int:
        return self.cell.trial.cell.concurrency

    @property
    def slots(self) -> int:
        """Those worth naming: of the settings, or what was used where these tell no limit."""
        configured = self.cell.slots_configured
        return (self.cell.slots_measured or 0) if configured is None else configured

    @property
    def service_s(self) -> float:
        return self.cell.breakdown.service_s or self.cell.service.mean or 0.0

    @property
    def response_s(self) -> float:
        return self.connections / self.rps if self.rps else 0.0

    @property
    def waited_s(self) -> float:
        return max(0.0, self.response_s - self.service_s)

    @property
    def possible_rps(self) -> float:
        return parallel(self.connections, self.slots) / self.lone_s

    @property
    def waits(self) -> bool:
        """Requests take longer than a lone one does, and there is someone to wait for."""
        return self.connections > 1 and self.rps * self.lone_s / self.connections < BUSY


def titled(server: Server, worker_class: WorkerClass) -> str:
    """What a person calls it: 'sync, 4 workers', 'gthread, 2 workers x 4 threads'."""
    workers = f"{server.worker_class}, {plural(server.workers, 'worker')}"
    if not worker_class.threaded(server):
        return workers
    return f"{workers} x {plural(server.threads, 'thread')}"


def sharing(case: Case) -> str:
    """'8 connections share 4 slots', and how few of them were used, where that is fewer."""
    used, who = case.cell.slots_measured or 0, plural(case.connections, "connection")
    if case.cell.slots_configured is None:
        limit = "with no limit set" if case.worker_class.slots_known else "its limit is not known"
        return f"{who} had at most {plural(used, 'request')} in the app at once, {limit}"
    few = used < BUSY * parallel(case.connections, case.slots)
    unused = f", of which at most {used} were used" if few else ""
    return f"{who} share {plural(case.slots, 'slot')}{unused}"


def cores_used(used: float) -> str:
    return f"{used:.1f} cores" if used >= 0.05 else "hardly any CPU"
