"""The sweep: every worker class at every concurrency, each trial on a fresh server."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from harness import run_store as store
from harness.analysis.open_model import capacity_of
from harness.experiments import trial
from harness.experiments.calibration import calibrate
from harness.experiments.planning import check_tools, lacking, plan_of
from harness.experiments.reading import find, report_of
from harness.load import hosts
from harness.load.locust import missing_hosts
from harness.load.registry import tool_named
from harness.model import App, EnvironmentProblem, Fault, Record, Trial, UsageError
from harness.options import program
from harness.plan import Plan, from_json, load_for, predicted_s, records_for, to_json, trials
from harness.server import preflight
from harness.server.running import Launch
from harness.terminal.interrupt import Stopped
from harness.terminal.progress import Progress

WARMUP_S = 0.005  # the lab's own apps can be warmed up with cheaper requests


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def new_run(options: argparse.Namespace) -> tuple[Path, Plan]:
    """Plan and create the run directory."""
    plan, found = plan_of(options)
    versions = {
        name: preflight.tool_version(argv)
        for name in plan.tools
        if (argv := tool_named(name).VERSION_ARGV) is not None
    }
    label = "-".join(dict.fromkeys(server.worker_class for server in plan.servers))
    directory = store.fresh(options.out, label)
    store.create(directory, to_json(plan), preflight.fingerprint(found, versions))
    return directory, plan


def unfinished(directory: Path, plan: Plan) -> list[Trial]:
    """Trials with no record yet, and those whose cell is invalid."""
    settled = {cell.trial.key for cell in report_of(directory).cells if cell.verdict != "invalid"}
    return [one for one in trials(plan) if one.key not in settled]


def rate_of(directory: Path, one: Trial) -> float | Fault | None:
    """The rate of an open cell in requests/s; a share is of what the closed cells have found, and
    where these found nothing, a Fault. None: a closed cell."""
    rate = one.cell.rate
    if rate is None or rate.share is None:
        return None if rate is None else rate.rps
    found = capacity_of(report_of(directory), one.cell)
    if found is None:
        why = "no believed closed cell of this server says what its capacity is"
        return Fault("unmeasured", f"{rate.label} of what? {why}")
    return found * rate.share


Beside = Callable[[Trial, Launch], Launch]


def alone(_one: Trial, launch: Launch) -> Launch:
    """A server that works with nothing beside it."""
    return launch


def task_for(
    plan: Plan, one: Trial, directory: Path, rps: float | None = None, beside: Beside = alone
) -> trial.Task:
    tool, app = tool_named(one.cell.tool), plan.app(one.cell)
    own = app.sleep_s is not None
    launch = Launch(
        server=one.cell.server,
        app=app,
        python=plan.python,
        code=directory / "code",
        trial=directory / "raw" / one.key,
        config=plan.config,
        records=records_for(plan, one.cell, counted=tool.COUNTED, rps=rps),
        warmup_path=f"/?sleep={WARMUP_S}" if own and (app.sleep_s or 0) > WARMUP_S else None,
        named=tool.NAMES_REQUESTS,
        kept=one.cell.keepalive,
        host=hosts.reached_at(plan.load_hosts),
    )
    return trial.Task(
        key=one.key,
        launch=beside(one, launch),
        load=lambda lone_s: load_for(plan, one.cell, lone_s, rps),
        command=tool.command,
    )


class Lone:
    """What a lone request costs, per kind of app: the nominal sleep until one was measured."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: dict[App, float] = {}

    def learn(self, one: Trial, record: Record) -> None:
        if record.lone_s:
            self._known[self._plan.app(one.cell)] = median(record.lone_s)

    def predict(self, one: Trial) -> float | None:
        app = self._plan.app(one.cell)
        lone_s = self._known.get(app, app.sleep_s)
        if one.cell.server.worker_class in self._plan.unavailable:
            return 0.0
        if lone_s is None:
            return None
        counted = tool_named(one.cell.tool).COUNTED
        return predicted_s(self._plan, one.cell, lone_s, counted=counted)


def execute(directory: Path, plan: Plan, todo: list[Trial], beside: Beside = alone) -> None:
    """Run `todo`, each trial kept before the next begins. `beside`: adds to a server's launch what
    it works with.

    Raises Stopped on a signal, EnvironmentProblem when nothing can be written any more.
    """
    unavailable = dict(plan.unavailable)
    lone = Lone(plan)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(store.appending(directory))
        calibrate(directory, plan, tell)
        progress = stack.enter_context(Progress(todo, lone.predict))
        for one in todo:
            name = one.cell.server.worker_class
            progress.begin(one)
            if name in unavailable:
                record = Record(one.key, Fault("unavailable", unavailable[name]))
                writer.ended(record)
            else:
                record = _execute(directory, plan, one, writer, beside)
                lone.learn(one, record)
            progress.end(one, record)
            if record.fault and record.fault.kind == "unavailable":
                unavailable.setdefault(name, record.fault.reason)
            if record.fault and record.fault.kind == "storage":
                raise EnvironmentProblem(record.fault.reason)


def _execute(
    directory: Path, plan: Plan, one: Trial, writer: store.Writer, beside: Beside
) -> Record:
    rps = rate_of(directory, one)
    if isinstance(rps, Fault):
        record = Record(one.key, rps)
        writer.ended(record)
        return record
    task = task_for(plan, one, directory, rps, beside)
    trial.forget(task.launch.trial)
    writer.began(one.key)
    record = trial.run(task, writer.ended)
    if plan.load_hosts and (missing := missing_hosts(_said(task.launch.trial))):
        raise EnvironmentProblem(missing)  # the next trial would wait in vain as well
    return record


def _said(trial: Path) -> str:
    try:
        return (trial / "tool" / "stderr").read_text(errors="replace")
    except OSError:
        return ""


def exit_code(directory: Path) -> int:
    """3 when a class was unavailable, else 1 when a cell is invalid, else 0."""
    report = report_of(directory)
    kinds = {record.fault.kind for record in store.load(directory).records.values() if record.fault}
    if "unavailable" in kinds:
        return 3
    return 1 if any(cell.verdict == "invalid" for cell in report.cells) else 0


def sweep(options: argparse.Namespace) -> tuple[Path, int]:
    """Make or resume a run. Returns its directory and the exit code it has earned."""
    directory, plan = resumed(options) if options.resume else new_run(options)
    for note in plan.notes:
        tell(note)
    for name, why in plan.unavailable.items():
        tell(f"{name} is unavailable: {why}")
    try:
        execute(directory, plan, unfinished(directory, plan))
    except Stopped as stopped:
        tell(f"stopped; finish it with: {program()} sweep --resume {directory}")
        return directory, stopped.exit_code
    except (EnvironmentProblem, OSError) as problem:
        tell(f"stopped: {problem}; when that is mended: {program()} sweep --resume {directory}")
        return directory, 3
    return directory, exit_code(directory)


def resumed(options: argparse.Namespace) -> tuple[Path, Plan]:
    """The run to go on with. What was missing then may be there now, so that is looked up anew.

    Raises UsageError when other arguments would change its plan.
    """
    others = {**vars(options), "resume": None, "command": None, "format": None}
    if any(value is not None for value in others.values()):
        raise UsageError("--resume takes a run and no other arguments: its plan is on file")
    directory = find(options.resume)
    plan = from_json(store.load(directory).plan)
    check_tools(plan.tools)
    preflight.check_levels(plan.levels)
    found = preflight.interpreter(plan.python, Path(plan.wsgi_app.chdir or "."), plan.config)
    return directory, replace(plan, unavailable=lacking(plan.servers, found))
