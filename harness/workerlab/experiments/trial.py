"""One trial: a fresh server, one load tool, everything written down before anything is read.

Answers with a Record whatever happens; only an interrupt goes through, after its Record was
handed to `keep`, so that a stopped cell is on file as stopped.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab.experiments.length import drained, keep_pilot
from workerlab.load.registry import tool_named
from workerlab.model import Command, Fault, Load, Record, Trial
from workerlab.observe.cpu import Lab
from workerlab.observe.maps import shrink
from workerlab.observe.observer import Observer
from workerlab.server.null_server import null_server
from workerlab.server.process import Guarded
from workerlab.server.running import Faulty, Serving

WATCH_S = 0.02
LANE_WATCH_S = 0.1  # beside others: there is nothing to draw
FLOOD_BYTES = 96 << 20  # no tool has that much to say
NS = 1e9
KEEP_BYTES = 1 << 20  # of a flood
RAMP_SAMPLES = 12  # of the TCP states while the connections come up
IDLE_S = 1.0  # before a load whose CPU is counted
TOOL_SLACK_S = 5.0  # a tool that keeps its own deadline may report before ours ends it

Watch = Callable[[Any, Observer], None]
Longer = Callable[[Load, Record], Load | None]


def no_longer(_load: Load, _record: Record) -> None:
    """One load is enough."""


class Task(Struct, frozen=True):
    """All that a trial needs. `up()`: the server, ready; gone afterwards; it raises Faulty where it
    does not come up. `load(lone_s)` and `command(load, url, workdir)` are pure; `watch` is called
    again and again while the load runs. `services`: what the server works with, and is to be looked
    at too: pids by name. `longer`: the load that is to follow another, whose record is given.
    `lab`: where other trials run at the same time."""

    key: str
    directory: Path  # where the trial writes; absolute
    up: Callable[[], AbstractContextManager[Serving]]
    load: Callable[[float], Load]
    command: Callable[[Load, str, str], Command]
    watch: Watch | None = None
    services: Mapping[str, int] = {}
    longer: Longer = no_longer
    needs: bool = False
    lab: Lab | None = None


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


def run(task: Task, keep: Callable[[Record], None]) -> Record:
    """Execute `task` and `keep` its Record. The trial's directory must not exist yet."""
    known: dict[str, Any] = {}  # so far, of the Record
    fault: Fault | None = None
    try:
        fault = _run(task, known)
    except Faulty as found:
        fault = found.fault
    except OSError as error:
        fault = Fault("storage", f"the trial could not be written down or started: {error}")
    except BaseException:
        fault = Fault("interrupted", "stopped before it was finished")
        raise
    finally:
        record = Record(task.key, fault, **known)
        keep(record)
    return record


def _run(task: Task, known: dict[str, Any]) -> Fault | None:
    trial = task.directory
    trial.mkdir(parents=True)
    stopping: float | None = None
    try:
        with task.up() as server:
            known.update(
                start_s=server.start_s,
                warmup_s=server.warmup_s,
                lone_s=tuple(server.lone_s),
                lone_begun_ns=tuple(server.lone_begun_ns),
                lone_weights=server.lone_weights,
                lone_end_ns=time.monotonic_ns(),
            )
            fault = _drive(task, server, known)
            fault = server.lost() or fault
            known.update(proof=_common(server.proofs), worker_pids=tuple(server.proofs))
            known.update(warnings=tuple(server.warnings))
            stopping = time.monotonic()
    finally:
        if stopping is not None:
            known["stop_s"] = time.monotonic() - stopping
        if trial.exists():
            shrink(trial)
    return fault


def _common(proofs: Mapping[int, Mapping[str, object]]) -> dict[str, object]:
    """One proof for all workers: what differs between them (but the pid) is listed."""
    common: dict[str, object] = {}
    for name in next(iter(proofs.values()), {}):
        known: list[object] = []
        for proof in proofs.values():
            # A worker no request reached yet knows no loop: unknown is not a difference
            if proof[name] is not None and proof[name] not in known:
                known.append(proof[name])
        common[name] = known[0] if len(known) == 1 else (known or None)
    return {name: value for name, value in common.items() if name not in ("pid", "served")}


def _drive(task: Task, server: Serving, known: dict[str, Any]) -> Fault | None:
    alone_s = Record(task.key, None, **known).alone_s
    load = task.load(fmean(alone_s) if alone_s else 0.0)
    load = replace(load, urls=(*load.urls, *(other.url for other in server.others)))
    server.drops = load.drops
    fault = _one_load(task, server, load, known)
    while fault is None and server.process.running:
        record = Record(task.key, None, **known, worker_pids=tuple(server.proofs))
        more = task.longer(load, record)
        if more is None or not drained(server, task.directory):
            break
        known["pilot_s"] = (record.pilot_s or 0.0) + _lasted_s(record)
        keep_pilot(task.directory)
        load, fault = more, _one_load(task, server, more, known)
    return fault


def _lasted_s(record: Record) -> float:
    assert record.load_start_ns is not None
    assert record.load_end_ns is not None
    return (record.load_end_ns - record.load_start_ns) / NS


def _one_load(task: Task, server: Serving, load: Load, known: dict[str, Any]) -> Fault | None:
    """`known` learns of it what a Record says."""
    workdir = task.directory / "tool"
    workdir.mkdir()
    command = task.command(load, server.url, str(workdir))
    argv = command.argv
    if load.open_files is not None:
        argv = ("/bin/sh", "-c", f'ulimit -n {load.open_files}; exec "$@"', "sh", *argv)
    for name, text in command.files.items():
        (workdir / name).write_text(text)
    known.update(
        argv=argv,
        planned_requests=load.requests,
        planned_duration_s=load.duration_s,
        planned_connections=load.concurrency,
        asked_rps=load.rate_rps,
        arrivals=load.arrivals,
        schedule=load.schedule,
    )
    try:
        with _observer(task, server, load) as observer:
            time.sleep(IDLE_S if task.needs else 0)
            known["load_start_ns"] = time.monotonic_ns()
            with Guarded(
                argv, cwd=workdir, env=os.environ, grace_s=1.0,
                stdout=workdir / "stdout", stderr=workdir / "stderr",
            ) as tool:  # fmt: skip
                observer.follow(tool.pid)
                fault = _watch(task, tool, server, load, observer)
                known["load_end_ns"] = time.monotonic_ns()
                observer.stop(tool.wait_s)
    finally:
        for path in _floods(workdir):
            os.truncate(path, KEEP_BYTES)
    known.update(exit_code=tool.exit_code, tool_cpu_s=tool.cpu_s)
    return fault


def _observer(task: Task, server: Serving, load: Load) -> Observer:
    others = [(one.host, one.port, one.process.pid) for one in server.others]
    place = (server.host, server.port, server.process.pid)
    states_s = load.ramp_s / RAMP_SAMPLES if load.ramp_s else 60.0
    pids = tuple(server.proofs)
    return Observer(
        *(task.directory, *place, pids, others, states_s, task.services),
        needs=task.needs,
        lab=task.lab,
    )


def _watch(
    task: Task, tool: Guarded, server: Serving, load: Load, observer: Observer
) -> Fault | None:
    limit_s = load.deadline_s + TOOL_SLACK_S
    until = time.monotonic() + limit_s
    while not tool.wait(WATCH_S if task.lab is None else LANE_WATCH_S):
        fault = None
        if time.monotonic() > until:
            late = f"the load tool had not finished after {limit_s:.0f} s, its deadline"
            if server.backlog < load.concurrency:
                late += (
                    f"; where {load.concurrency} connections meet a backlog of {server.backlog},"
                    " the kernel may drop handshakes, which clients retry for minutes"
                )
            fault = Fault("tool", late)
        elif _floods(task.directory / "tool"):
            fault = Fault("tool", f"the load tool wrote more than {FLOOD_BYTES >> 20} MiB")
        if fault or not server.process.running:
            tool.kill()
            return fault if server.process.running else None  # `lost` says it better
        if task.watch is not None:
            task.watch(server, observer)
    if tool.exit_code is not None and tool.exit_code < 0:
        return Fault("tool", f"the load tool was ended by signal {-tool.exit_code}")
    return None


def _floods(workdir: Path) -> list[Path]:
    return [path for path in workdir.iterdir() if path.stat().st_size > FLOOD_BYTES]


def forget(trial: Path) -> None:
    """Remove what an unfinished attempt at the same trial left."""
    shutil.rmtree(trial, ignore_errors=True)
