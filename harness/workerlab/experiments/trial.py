"""Runs one trial: a fresh server and one load tool. Raw output is stored first and analysed later.

`run` always returns a Record, even for a cancelled trial. Only unexpected errors propagate.
"""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab.load.registry import tool_named
from workerlab.model.evidence import Command, Fault, Record
from workerlab.model.plan import Load, Trial
from workerlab.observe.cpu import Lab
from workerlab.observe.observations import FILE
from workerlab.observe.observer import Observer
from workerlab.observe.spans import LiveCounts
from workerlab.observe.tcp import served_connections
from workerlab.server.inside.maps import shrink
from workerlab.server.null_server import null_server
from workerlab.server.process import Guarded
from workerlab.server.running import Cancelled, Serving, StartupTurn, TrialFailed

WATCH_INTERVAL_S = 0.02  # between checks of the load tool
PARALLEL_WATCH_INTERVAL_S = 0.1  # for parallel trials, which draw no progress
MAX_OUTPUT_BYTES = 96 << 20  # more than any working tool prints
KEPT_OUTPUT_BYTES = 1 << 20  # longer output is truncated to this size
RAMP_SAMPLES = 12  # samples of TCP states during a ramp
STATES_INTERVAL_S = 60.0  # longest time between such samples without a ramp
IDLE_BEFORE_LOAD_S = 1.0  # before a load whose CPU per request is measured
MAX_DRAIN_S = 30.0
POLL_S = 0.01  # between checks of a server that drains
PILOT = "pilot"  # prefix of the directory names
TOOL_SLACK_S = 5.0  # time for a tool to report at its deadline before it is killed

INTERRUPTED = Fault("interrupted", "stopped before it was finished")

Watch = Callable[[Any, Observer], None]
# (previous load or None, Record so far) -> the next load, or None for no more
NextLoad = Callable[[Load | None, Record], Load | None]


class Task(Struct, frozen=True):
    """Everything a trial needs. `start_server()`: context manager of the ready server; raises
    TrialFailed if it does not start. `next_load(load, record)` is called before each load;
    `command(load, url, workdir)` makes the tool's command line; `watch(server, observer)` is called
    repeatedly during the load. `services`: pids of databases and caches to observe, by name.
    `needs`: whether to measure the CPU per request. `lab`: set if other trials run in parallel."""

    key: str
    directory: Path  # absolute; the trial writes its files here
    start_server: Callable[[], AbstractContextManager[Serving]]
    next_load: NextLoad
    command: Callable[[Load, str, str], Command]
    watch: Watch = StartupTurn().watch
    services: Mapping[str, int] = {}
    needs: bool = False
    lab: Lab | None = None


def null_task(trial: Trial, run_directory: Path) -> Task:
    """The task of a trial with a fixed load on a null server."""
    server, load = trial.cell.server, trial.cell.load
    assert load is not None
    directory = run_directory / "raw" / trial.key
    return Task(
        key=trial.key,
        directory=directory,
        start_server=lambda: null_server(server, directory, load.ports),
        next_load=lambda previous, _: load if previous is None else None,
        command=tool_named(trial.cell.tool).command,
    )


def run(task: Task) -> Record:
    """Execute `task` and return its Record. The trial's directory must not exist yet."""
    fields: dict[str, Any] = {}  # the fields of the Record so far
    try:
        fault = _run(task, fields)
    except TrialFailed as failure:
        fault = failure.fault
    except OSError as error:
        why = f"a file could not be written, or a program could not be started: {error}"
        fault = Fault("storage", why)
    except Cancelled:
        fault = INTERRUPTED
    return Record(task.key, fault, **fields)


def _run(task: Task, fields: dict[str, Any]) -> Fault | None:
    """Start the server, run the loads, and add the results to `fields` (of the Record). Returns the
    fault, if any. Raises TrialFailed if the server does not start."""
    directory = task.directory
    directory.mkdir(parents=True)
    stop_began_s: float | None = None
    try:
        with task.start_server() as server:
            fields.update(
                start_s=server.start_s,
                warmup_s=server.warmup_s,
                lone_s=tuple(server.lone_s),
                lone_begun_ns=tuple(server.lone_begun_ns),
                lone_weights=server.lone_weights,
                lone_end_ns=time.monotonic_ns(),
            )
            fault = _run_loads(task, server, fields)
            fault = server.lost() or fault
            fields.update(proof=_common_proof(server.proofs), worker_pids=tuple(server.proofs))
            fields.update(warnings=tuple(server.warnings))
            stop_began_s = time.monotonic()
    finally:
        if stop_began_s is not None:
            fields["stop_s"] = time.monotonic() - stop_began_s
        if directory.exists():
            shrink(directory)
    return fault


def _common_proof(proofs: Mapping[int, Mapping[str, object]]) -> dict[str, object]:
    """One proof for all workers, without `pid` and `served`. Values that differ between workers are
    listed."""
    common: dict[str, object] = {}
    for name in next(iter(proofs.values()), {}):
        values: list[object] = []
        for proof in proofs.values():
            # None (no request has reached the worker yet) is not a difference
            if proof[name] is not None and proof[name] not in values:
                values.append(proof[name])
        common[name] = values[0] if len(values) == 1 else (values or None)
    return {name: value for name, value in common.items() if name not in ("pid", "served")}


def _run_loads(task: Task, server: Serving, fields: dict[str, Any]) -> Fault | None:
    """Run the loads, one after the other. Returns the fault of the last one, if any."""
    load, fault = None, None
    while fault is None and server.process.running:
        record = Record(task.key, None, **fields, worker_pids=tuple(server.proofs))
        next_load = task.next_load(load, record)
        if next_load is None:
            break
        if load is None:
            server.drops = next_load.drops
            urls = (*next_load.urls, *(other.url for other in server.other_instances))
            next_load = replace(next_load, urls=urls)
        elif _wait_until_drained(server, task.directory):
            fields["pilot_s"] = (record.pilot_s or 0.0) + load_s(record)
            keep_pilot(task.directory)
        else:
            break
        load, fault = next_load, _run_load(task, server, next_load, fields)
    return fault


def _wait_until_drained(server: Serving, trial_dir: Path) -> bool:
    """Wait until the server has closed every connection and its app is idle. Returns False if that
    takes longer than MAX_DRAIN_S, or if the server has ended."""
    addresses = [(instance.host, instance.port) for instance in (server, *server.other_instances)]
    live, until_s = LiveCounts(trial_dir), time.monotonic() + MAX_DRAIN_S
    while served_connections(addresses) or any(live.poll()[0].values()):
        if time.monotonic() > until_s or not server.process.running:
            return False
        time.sleep(POLL_S)
    return True


def keep_pilot(trial_dir: Path) -> None:
    """Move the files of the last load to a new pilot directory. Raises OSError."""
    pilots = len(list(trial_dir.glob(f"{PILOT}*")))
    pilot_dir = trial_dir / (f"{PILOT}-{pilots + 1}" if pilots else PILOT)
    pilot_dir.mkdir()
    for name in ("tool", FILE):
        (trial_dir / name).rename(pilot_dir / name)


def load_s(record: Record) -> float:
    """The seconds that the last load took; 0 if there was none."""
    if record.load_start_ns is None or record.load_end_ns is None:
        return 0.0
    return (record.load_end_ns - record.load_start_ns) / 1e9


def _run_load(task: Task, server: Serving, load: Load, fields: dict[str, Any]) -> Fault | None:
    """Run one load, and add its results to `fields`. Returns the fault of the load tool, if any."""
    workdir = task.directory / "tool"
    workdir.mkdir()
    command = task.command(load, server.url, str(workdir))
    argv = command.argv
    if load.open_files is not None:
        argv = ("/bin/sh", "-c", f'ulimit -n {load.open_files}; exec "$@"', "sh", *argv)
    for name, text in command.files.items():
        (workdir / name).write_text(text)
    fields.update(
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
            time.sleep(IDLE_BEFORE_LOAD_S if task.needs else 0)
            fields["load_start_ns"] = time.monotonic_ns()
            with Guarded(
                argv, cwd=workdir, env=os.environ, grace_s=1.0,
                stdout=workdir / "stdout", stderr=workdir / "stderr",
            ) as tool:  # fmt: skip
                observer.follow(tool.pid)
                fault = _watch_load(task, tool, server, load, observer)
                fields["load_end_ns"] = time.monotonic_ns()
                observer.stop(tool.wait_s)
    finally:
        for path in _oversized_outputs(workdir):
            os.truncate(path, KEPT_OUTPUT_BYTES)
    fields.update(exit_code=tool.exit_code, tool_cpu_s=tool.cpu_s)
    return fault


def _observer(task: Task, server: Serving, load: Load) -> Observer:
    instances = (server, *server.other_instances)
    return Observer(
        directory=task.directory,
        servers=[(server.host, server.port, server.process.pid) for server in instances],
        workers=tuple(server.proofs),
        states_s=load.ramp_s / RAMP_SAMPLES if load.ramp_s else STATES_INTERVAL_S,
        services=task.services,
        needs=task.needs,
        lab=task.lab,
    )


def _watch_load(
    task: Task, tool: Guarded, server: Serving, load: Load, observer: Observer
) -> Fault | None:
    """Wait for the tool, or kill it if it or the server fails. Returns the tool's fault, if any."""
    limit_s = load.deadline_s + TOOL_SLACK_S
    until_s = time.monotonic() + limit_s
    while not tool.wait(WATCH_INTERVAL_S if task.lab is None else PARALLEL_WATCH_INTERVAL_S):
        fault = None
        if time.monotonic() > until_s:
            reason = f"the load tool had not finished by its deadline, after {limit_s:.0f} s"
            if server.backlog < load.concurrency:
                reason += (
                    f"; with {load.concurrency} connections and a backlog of {server.backlog}, the"
                    " kernel may drop handshakes, which clients repeat for minutes"
                )
            fault = Fault("tool", reason)
        elif _oversized_outputs(task.directory / "tool"):
            fault = Fault("tool", f"the load tool wrote more than {MAX_OUTPUT_BYTES >> 20} MiB")
        if fault or not server.process.running:
            tool.kill()
            return fault if server.process.running else None  # `server.lost()` gives the reason
        task.watch(server, observer)
    if tool.exit_code is not None and tool.exit_code < 0:
        return Fault("tool", f"the load tool was ended by signal {-tool.exit_code}")
    return None


def _oversized_outputs(workdir: Path) -> list[Path]:
    return [path for path in workdir.iterdir() if path.stat().st_size > MAX_OUTPUT_BYTES]


def discard_attempt(trial_dir: Path) -> None:
    """Remove the files of an unfinished attempt."""
    shutil.rmtree(trial_dir, ignore_errors=True)
