"""A server as the harness sees it: what it is started from, and what is known of it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.model import App, Fault, FaultKind, Server
from harness.observe.spans import read_spans
from harness.server.process import Guarded


class Faulty(Exception):
    """A trial cannot go on; `fault` says why in one sentence."""

    def __init__(self, kind: FaultKind, reason: str) -> None:
        self.fault = Fault(kind, reason)
        super().__init__(reason)


class Serving(Protocol):
    """A server that answers, whichever it is: what a trial needs to know of it.

    `proofs`: what its workers said of themselves, by pid; `lone_s`: response times of requests
    that had it for themselves; `drops`: the load has more connections than the accept queue takes.
    """

    process: Guarded
    host: str
    port: int
    proofs: dict[int, dict[str, object]]
    start_s: float
    warmup_s: float
    lone_s: list[float]
    warnings: list[str]
    drops: bool

    @property
    def others(self) -> Sequence[Serving]:
        """Servers of the same kind beside this one."""

    @property
    def url(self) -> str: ...

    @property
    def backlog(self) -> int: ...

    def lost(self) -> Fault | None:
        """What has happened to its processes since it was ready, if anything."""


@dataclass(frozen=True)
class Launch:
    """What a server is started from. Paths are absolute."""

    server: Server
    app: App
    python: str
    code: Path  # the run's copy of probe, configuration, configs/ and apps/
    trial: Path  # this trial's directory
    config: str | None  # the user's own Gunicorn file
    records: int  # room for spans, per worker
    warmup_path: str | None = None  # a cheaper request, where the lab knows one
    named: bool = False  # the load names its requests
    kept: bool = False  # it keeps its connections
    host: str = "127.0.0.1"  # the address it listens on
    env: tuple[tuple[str, str], ...] = ()  # beside the app's own, and written nowhere: passwords
    services: Mapping[str, int] = field(default_factory=dict)  # what it works with: pids by name


@dataclass
class Running:
    """A server that answers. `lone_s`: response times of requests that had it for themselves."""

    launch: Launch
    process: Guarded
    host: str
    port: int
    proofs: dict[int, dict[str, object]]
    start_s: float = 0.0
    warmup_s: float = 0.0
    lone_s: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    drops: bool = False  # the load has more connections than the accept queue takes
    number: int = 1
    strangers: frozenset[int] = frozenset()  # pids of workers of the servers started before it
    others: list[Running] = field(default_factory=list)  # servers of the same kind beside this one

    @property
    def log(self) -> Path:
        return log_of(self.launch.trial, self.number)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.launch.app.path}"

    @property
    def backlog(self) -> int:
        return self.launch.server.backlog

    def lost(self) -> Fault | None:
        """What has happened to the server's processes since it was ready, if anything."""
        log = self.log
        for one in (self, *self.others):
            if not one.process.running:
                why = f"{one.ending()}): {last_error(one.log)}"
                return Fault("server", f"the server ended under the load ({why}")
        now = read_proofs(self.launch.trial)
        gone = {pid for pid in self.proofs if not _alive(pid)}
        new = now.keys() - self.proofs.keys()
        if not gone and not new:
            return None
        idle = self._killed_idle() if self.drops else set[int]()
        if gone <= idle and len(new) <= len(idle):
            self.proofs = now
            self.warnings.append(_waited_in_vain(len(idle)))
            return None
        who = ", ".join(map(str, gone)) or "one"
        return Fault("server", f"worker {who} died under the load: {last_error(log)}")

    def _killed_idle(self) -> set[int]:
        """Workers that Gunicorn's timeout killed while no request was in their app."""
        log = (self.launch.trial / "server.log").read_text(errors="replace")
        killed = {int(pid) for pid in re.findall(r"WORKER TIMEOUT \(pid:(\d+)\)", log)}
        busy = {s.pid for s in read_spans(self.launch.trial).spans if s.end_ns is None}
        return killed - busy

    def ending(self) -> str:
        code = self.process.exit_code
        if code is None:
            return "exit code unknown"
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _waited_in_vain(workers: int) -> str:
    """ab opens new connections while others still connect, and when all its requests are sent,
    those that come up late stay open and unused: a sync worker that accepts one waits for ever."""
    who = "1 worker was" if workers == 1 else f"{workers} workers were"
    return (
        f"{who} killed by Gunicorn's timeout while waiting for a request that never came: a client"
        " may hold connections, made late, on which it has nothing left to send"
    )


def _alive(pid: int) -> bool:
    """Also True for a zombie, which its arbiter has not collected yet; its successor shows."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def log_of(trial: Path, number: int) -> Path:
    return trial / ("server.log" if number == 1 else f"server-{number}.log")


def read_proofs(trial: Path, but: Container[int] = ()) -> dict[int, dict[str, object]]:
    """What each worker wrote about itself, by pid; `but`: leave out these."""
    proofs = (json.loads(path.read_text()) for path in trial.glob("worker-*.json"))
    return {proof["pid"]: proof for proof in proofs if proof["pid"] not in but}


def last_error(log: Path) -> str:
    """The line of the server's log that says most: the last exception, else the last error."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "no log"
    named = re.compile(
        r"^(\w+\.)*\w*(Error|Exception|Exit|Interrupt)\b.*|^Failed to (find attribute|parse) .*"
    )
    marked = re.compile(r".*\[(ERROR|CRITICAL)\] (?P<what>.*)|^(?P<plain>Error: .*)")
    for line in reversed(lines):
        if named.match(line):
            return line.strip()[:300]
    for line in reversed(lines):
        if found := marked.match(line):
            return (found["what"] or found["plain"]).strip()[:300]
    return lines[-1].strip()[:300] if lines else "its log is empty"
