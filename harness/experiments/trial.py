"""One trial: a fresh server, one load tool, everything written down before anything is read.

Answers with a Record whatever happens; only an interrupt goes through, after its Record was
handed to `keep`, so that a stopped cell is on file as stopped.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Protocol, TypeVar

from harness.model import Command, Fault, Load, Record
from harness.observe.observer import Observer
from harness.observe.spans import shrink
from harness.server.gunicorn import running
from harness.server.process import Guarded
from harness.server.running import Faulty, Launch, Running, Serving

WATCH_S = 0.02
FLOOD_BYTES = 96 << 20  # no tool has that much to say
KEEP_BYTES = 1 << 20  # of a flood
RAMP_SAMPLES = 12  # of the TCP states while the connections come up
TOOL_SLACK_S = 5.0  # a tool that keeps its own deadline may report before ours ends it


S = TypeVar("S", bound=Serving)


class Job(Protocol[S]):
    """All that a trial needs. `load(lone_s)` and `command(load, url, workdir)` are pure; `watch` is
    called again and again while the load runs."""

    @property
    def key(self) -> str: ...

    @property
    def directory(self) -> Path:
        """Where the trial writes; absolute."""

    @property
    def load(self) -> Callable[[float], Load]: ...

    @property
    def command(self) -> Callable[[Load, str, str], Command]: ...

    @property
    def watch(self) -> Callable[[S, Observer], None] | None: ...

    @property
    def parts(self) -> Mapping[str, int]:
        """What the server works with, and is to be looked at too: pids by name."""

    def up(self) -> AbstractContextManager[S]:
        """The server, ready; gone afterwards. Raises Faulty where it does not come up."""


@dataclass(frozen=True)
class Task:
    """A Job on Gunicorn."""

    key: str
    launch: Launch
    load: Callable[[float], Load]
    command: Callable[[Load, str, str], Command]
    watch: Callable[[Running, Observer], None] | None = None

    @property
    def directory(self) -> Path:
        return self.launch.trial

    @property
    def parts(self) -> Mapping[str, int]:
        return self.launch.parts

    def up(self) -> AbstractContextManager[Running]:
        return running(self.launch)


@dataclass
class _Facts:
    """What is known so far; becomes the Record."""

    key: str
    known: dict[str, object] = field(default_factory=dict)

    def record(self, fault: Fault | None) -> Record:
        return Record(key=self.key, fault=fault, **self.known)  # type: ignore[arg-type]


def run(task: Job[S], keep: Callable[[Record], None]) -> Record:
    """Execute `task` and `keep` its Record. The trial's directory must not exist yet."""
    facts = _Facts(task.key)
    fault: Fault | None = None
    try:
        fault = _run(task, facts)
    except Faulty as found:
        fault = found.fault
    except OSError as error:
        fault = Fault("storage", f"the trial could not be written down or started: {error}")
    except BaseException:
        fault = Fault("interrupted", "stopped before it was finished")
        raise
    finally:
        record = facts.record(fault)
        keep(record)
    return record


def _run(task: Job[S], facts: _Facts) -> Fault | None:
    trial = task.directory
    trial.mkdir(parents=True)
    stopping: float | None = None
    fault: Fault | None = None
    try:
        with task.up() as server:
            facts.known.update(start_s=server.start_s, warmup_s=server.warmup_s)
            facts.known.update(lone_s=tuple(server.lone_s))
            fault = _drive(task, server, facts)
            fault = server.lost() or fault
            facts.known.update(proof=_common(server.proofs), worker_pids=tuple(server.proofs))
            facts.known.update(warnings=tuple(server.warnings))
            stopping = time.monotonic()
    finally:
        if stopping is not None:
            facts.known["stop_s"] = time.monotonic() - stopping
        if trial.exists():
            shrink(trial)
    return fault


def _common(proofs: Mapping[int, Mapping[str, object]]) -> dict[str, object]:
    """One proof for all workers: what differs between them (but the pid) is listed."""
    if not proofs:
        return {}
    first, *others = proofs.values()
    common = {name: value for name, value in first.items() if name not in ("pid", "served")}
    for name in common:
        values = [first[name], *(proof[name] for proof in others)]
        different = [value for i, value in enumerate(values) if value not in values[:i]]
        # A worker no request reached yet knows no loop: unknown is not a difference
        known = [value for value in different if value is not None]
        common[name] = known[0] if len(known) == 1 else (known or None)
    return common


def _drive(task: Job[S], server: S, facts: _Facts) -> Fault | None:
    """Run the load tool to its end, its deadline, or the server's death."""
    load = task.load(median(server.lone_s) if server.lone_s else 0.0)
    load = replace(load, urls=(*load.urls, *(other.url for other in server.others)))
    server.drops = load.drops
    workdir = task.directory / "tool"
    workdir.mkdir()
    command = task.command(load, server.url, str(workdir))
    for name, text in command.files.items():
        (workdir / name).write_text(text)
    facts.known.update(
        argv=command.argv,
        planned_requests=load.requests,
        planned_duration_s=load.duration_s,
        planned_connections=load.concurrency,
        asked_rps=load.rate_rps,
    )
    try:
        with _observer(task, server, load) as observer:
            facts.known["load_start_ns"] = time.monotonic_ns()
            with _tool(command, workdir) as tool:
                observer.follow(tool.pid)
                fault = _watch(task, tool, server, load, observer)
                facts.known["load_end_ns"] = time.monotonic_ns()
                observer.stop()
    finally:
        _cut_floods(workdir)
    facts.known.update(exit_code=tool.exit_code, tool_cpu_s=tool.cpu_s)
    return fault


def _observer(task: Job[S], server: S, load: Load) -> Observer:
    others = [(one.host, one.port, one.process.pid) for one in server.others]
    pids = tuple(server.proofs)
    place = (server.host, server.port, server.process.pid)
    states_s = load.ramp_s / RAMP_SAMPLES if load.ramp_s else 60.0
    return Observer(task.directory, *place, pids, others, states_s, task.parts)


def _tool(command: Command, workdir: Path) -> Guarded:
    return Guarded(
        command.argv,
        cwd=workdir,
        env=os.environ,
        stdout=workdir / "stdout",
        stderr=workdir / "stderr",
        grace_s=1.0,
    )


def _watch(task: Job[S], tool: Guarded, server: S, load: Load, observer: Observer) -> Fault | None:
    limit_s = load.deadline_s + TOOL_SLACK_S
    until = time.monotonic() + limit_s
    workdir = task.directory / "tool"
    while not tool.wait(WATCH_S):
        if not server.process.running:
            tool.kill()
            return None  # `lost` says it better
        if time.monotonic() > until:
            tool.kill()
            return Fault("tool", _late(limit_s, server.backlog, load.concurrency))
        if any(path.stat().st_size > FLOOD_BYTES for path in workdir.iterdir()):
            tool.kill()
            return Fault("tool", f"the load tool wrote more than {FLOOD_BYTES >> 20} MiB")
        if task.watch is not None:
            task.watch(server, observer)
    if tool.exit_code is not None and tool.exit_code < 0:
        return Fault("tool", f"the load tool was ended by signal {-tool.exit_code}")
    return None


def _late(limit_s: float, backlog: int, concurrency: int) -> str:
    late = f"the load tool had not finished after {limit_s:.0f} s, its deadline"
    if backlog >= concurrency:
        return late
    meet = f"where {concurrency} connections meet a backlog of {backlog}"
    return f"{late}; {meet}, the kernel may drop handshakes, which clients retry for minutes"


def _cut_floods(workdir: Path) -> None:
    for path in workdir.iterdir():
        if path.stat().st_size > FLOOD_BYTES:
            os.truncate(path, KEEP_BYTES)


def forget(trial: Path) -> None:
    """Remove what an unfinished attempt at the same trial left."""
    shutil.rmtree(trial, ignore_errors=True)
