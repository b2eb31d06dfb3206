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
from typing import Any

from harness.load.registry import tool_named
from harness.model import Command, Fault, Load, Record, Trial
from harness.observe.observer import Observer
from harness.observe.spans import shrink
from harness.server.null_server import null_server
from harness.server.process import Guarded
from harness.server.running import Faulty, Serving

WATCH_S = 0.02
FLOOD_BYTES = 96 << 20  # no tool has that much to say
KEEP_BYTES = 1 << 20  # of a flood
RAMP_SAMPLES = 12  # of the TCP states while the connections come up
TOOL_SLACK_S = 5.0  # a tool that keeps its own deadline may report before ours ends it


Watch = Callable[[Any, Observer], None]


@dataclass(frozen=True)
class Task:
    """All that a trial needs. `up()`: the server, ready; gone afterwards; it raises Faulty where it
    does not come up. `load(lone_s)` and `command(load, url, workdir)` are pure; `watch` is called
    again and again while the load runs. `services`: what the server works with, and is to be looked
    at too: pids by name."""

    key: str
    directory: Path  # where the trial writes; absolute
    up: Callable[[], AbstractContextManager[Serving]]
    load: Callable[[float], Load]
    command: Callable[[Load, str, str], Command]
    watch: Watch | None = None
    services: Mapping[str, int] = field(default_factory=dict)


def null_task(one: Trial, run_directory: Path) -> Task:
    """A trial whose load is fixed, on a null server."""
    server, load = one.cell.server, one.cell.load
    assert load is not None
    directory = run_directory / "raw" / one.key
    return Task(
        key=one.key,
        directory=directory,
        up=lambda: null_server(server, directory),
        load=lambda _: load,
        command=tool_named(one.cell.tool).command,
    )


@dataclass
class _Facts:
    """What is known so far; becomes the Record."""

    key: str
    known: dict[str, object] = field(default_factory=dict)

    def record(self, fault: Fault | None) -> Record:
        return Record(key=self.key, fault=fault, **self.known)  # type: ignore[arg-type]


def run(task: Task, keep: Callable[[Record], None]) -> Record:
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


def _run(task: Task, facts: _Facts) -> Fault | None:
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


def _drive(task: Task, server: Serving, facts: _Facts) -> Fault | None:
    """Run the load tool to its end, its deadline, or the server's death."""
    load = task.load(median(server.lone_s) if server.lone_s else 0.0)
    load = replace(load, urls=(*load.urls, *(other.url for other in server.others)))
    server.drops = load.drops
    workdir = task.directory / "tool"
    workdir.mkdir()
    command = task.command(load, server.url, str(workdir))
    argv = limited(command.argv, load.open_files)
    for name, text in command.files.items():
        (workdir / name).write_text(text)
    facts.known.update(
        argv=argv,
        planned_requests=load.requests,
        planned_duration_s=load.duration_s,
        planned_connections=load.concurrency,
        asked_rps=load.rate_rps,
    )
    try:
        with _observer(task, server, load) as observer:
            facts.known["load_start_ns"] = time.monotonic_ns()
            with _tool(argv, workdir) as tool:
                observer.follow(tool.pid)
                fault = _watch(task, tool, server, load, observer)
                facts.known["load_end_ns"] = time.monotonic_ns()
                observer.stop()
    finally:
        _cut_floods(workdir)
    facts.known.update(exit_code=tool.exit_code, tool_cpu_s=tool.cpu_s)
    return fault


def _observer(task: Task, server: Serving, load: Load) -> Observer:
    others = [(one.host, one.port, one.process.pid) for one in server.others]
    pids = tuple(server.proofs)
    place = (server.host, server.port, server.process.pid)
    states_s = load.ramp_s / RAMP_SAMPLES if load.ramp_s else 60.0
    return Observer(task.directory, *place, pids, others, states_s, task.services)


def limited(argv: tuple[str, ...], open_files: int | None) -> tuple[str, ...]:
    """The words of a program that may have so many files open and no more."""
    if open_files is None:
        return argv
    return ("/bin/sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *argv)


def _tool(argv: tuple[str, ...], workdir: Path) -> Guarded:
    return Guarded(
        argv,
        cwd=workdir,
        env=os.environ,
        stdout=workdir / "stdout",
        stderr=workdir / "stderr",
        grace_s=1.0,
    )


def _watch(
    task: Task, tool: Guarded, server: Serving, load: Load, observer: Observer
) -> Fault | None:
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
