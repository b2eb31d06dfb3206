"""Executes the trials of a plan, each kept as it ends: alone, or beside others (`jobs`)."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from workerlab import run_store
from workerlab.analysis.facts import TrialData, unusable
from workerlab.analysis.open_model import capacity_of
from workerlab.experiments import trial
from workerlab.experiments.jobs import Jobs
from workerlab.experiments.length import longer
from workerlab.experiments.planning import lacks
from workerlab.experiments.reading import report_of
from workerlab.experiments.side_by_side import Lanes
from workerlab.load import hosts
from workerlab.load.locust import missing_hosts
from workerlab.load.registry import tool_named
from workerlab.model import App, EnvironmentProblem, Fault, Plan, Record, Trial
from workerlab.observe.cpu import Lab
from workerlab.observe.observations import read_observations
from workerlab.observe.tcp import drops_are_told
from workerlab.plan import load_for, longer_s, predicted_s, records_for, trials
from workerlab.server import preflight
from workerlab.server.gunicorn import running
from workerlab.server.running import Launch, Turn
from workerlab.terminal.progress import Progress, Several

WARMUP_S = 0.005  # the lab's own apps can be warmed up with cheaper requests

PrepareLaunch = Callable[[Trial, Launch], Launch]
Predict = Callable[[Trial], float | None]
# What the user sees of trials while they run: begin(trial), then watch(server, observer) again and
# again, end(trial, record)
Display = Callable[[Path, Plan, Sequence[Trial], Predict], AbstractContextManager[Any]]


def no_services(_one: Trial, launch: Launch) -> Launch:
    """A server that needs no database and no cache."""
    return launch


def progress(_directory: Path, plan: Plan, todo: Sequence[Trial], predict: Predict) -> Progress:
    """The usual display."""
    if plan.jobs == 1:
        return Progress(todo, predict, partial(longer_s, plan))
    jobs = Jobs(plan, preflight.cores() or 1, asked_rps, drops_known=True)
    return Several(todo, predict, partial(longer_s, plan), jobs.left_s)


def asked_rps(one: Trial) -> float | None:
    """As far as that is known beforehand."""
    return one.cell.rate.rps if one.cell.rate else None


def unfinished(directory: Path, plan: Plan) -> list[Trial]:
    """Trials with no record yet, and those whose cell is invalid."""
    run, trials_read = run_store.load(directory), dict[str, TrialData]()
    cells = report_of(run, known=trials_read).cells if run.records else ()
    valid = {cell.trial.key for cell in cells if cell.verdict != "invalid"}
    null = (data for data in trials_read.values() if data.cell.server.null)
    valid |= {data.trial.key for data in null if unusable(data) is None}
    return [one for one in trials(plan) if one.key not in valid]


class LoneResponse:
    """What a lone request costs, by server: the nominal sleep until one was measured."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._measured: dict[tuple[str, str], float] = {}

    def learn(self, one: Trial, record: Record) -> None:
        if record.lone_s:
            server = one.cell.server
            self._measured[server.name, server.app.target] = fmean(record.alone_s)

    def predict(self, one: Trial) -> float | None:
        """Seconds the trial will take; None as long as nobody can know."""
        server = one.cell.server
        if server.variant in self._plan.unavailable:
            return 0.0
        lone_s = self._measured.get((server.name, server.app.target), server.app.sleep_s)
        if one.cell.load is not None:
            lone_s = 0.0  # nothing of it depends on that
        return None if lone_s is None else predicted_s(self._plan, one.cell, lone_s)


def execute(
    directory: Path, plan: Plan, todo: list[Trial], prepare_launch: PrepareLaunch, display: Display
) -> None:
    """Run `todo`, each trial kept as it ends.

    Raises Stopped on a signal, EnvironmentProblem when nothing can be written any more.
    """
    lone = LoneResponse(plan)
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(run_store.appending(directory))
        screen = stack.enter_context(display(directory, plan, todo, lone.predict))
        execution = Execution(directory, plan, prepare_launch, writer, screen, lone)
        while todo:
            batch, todo = execution.jobs.next(todo, lone.predict)
            if len(batch) == 1:
                execution.alone(batch[0])
            else:
                execution.together(batch)


class Execution:
    """Begins trials, keeps their records, and learns from them."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        prepare_launch: PrepareLaunch,
        writer: run_store.Writer,
        screen: Any,
        lone: LoneResponse,
    ) -> None:
        self._directory, self._plan, self._prepare_launch = directory, plan, prepare_launch
        self._writer, self._screen, self._lone = writer, screen, lone
        self._known, self._rates = Unavailable(plan), Rates(directory)
        told = plan.jobs != 1 and drops_are_told()
        self.jobs = Jobs(plan, preflight.cores() or 1, self._rps, drops_known=told)

    def alone(self, one: Trial, again_cores: float | None = None) -> None:
        """`again_cores`: that were used when it ran beside others."""

        def keep(record: Record) -> None:
            self._writer.ended(replace(record, again_cores=again_cores))

        task = self._begin(one)
        if task is not None:
            record = trial.run(replace(task, watch=self._screen.watch), keep)
            self._ended(one, record)

    def together(self, batch: Sequence[Trial]) -> None:
        lanes = Lanes(self.jobs, self._begin, self._writer.ended, self._ended)
        for one, cores in lanes.run(batch):
            self.alone(one, cores)

    def _rps(self, one: Trial) -> float | None:
        found = self._rates.of(one)
        return None if isinstance(found, Fault) else found

    def _begin(
        self, one: Trial, turn: Turn | None = None, lab: Lab | None = None
    ) -> trial.Task | None:
        """What there is to run, which is on file as begun; None where nothing is."""
        self._screen.begin(one)
        why = self._known.why(one) or lacks(one.cell.tool)
        rps = Fault("unavailable", why) if why else self._rates.of(one)
        if isinstance(rps, Fault):
            record = Record(one.key, rps)
            self._writer.ended(record)
            self._screen.end(one, record)
            return None
        task = task_for(self._plan, one, self._directory, rps, self._prepare_launch, turn)
        trial.forget(task.directory)
        self._writer.began(task.key)
        return replace(task, lab=lab)

    def _ended(self, one: Trial, record: Record) -> None:
        place = self._directory / "raw" / one.key
        self._lone.learn(one, record)
        stderr = run_store.read_text(place / "tool" / "stderr")
        if self._plan.load_hosts and (missing := missing_hosts(stderr)):
            raise EnvironmentProblem(missing)  # the next would wait in vain as well
        self._known.learn(one, record)
        if self._plan.jobs != 1:
            self.jobs.learn(one, record, read_observations(place))
        self._screen.end(one, record)
        if record.fault and record.fault.kind == "storage":
            raise EnvironmentProblem(record.fault.reason)


class Unavailable:
    """What cannot be run here, and why: worker classes, by what serves them; and apps that fail for
    the same reason under two of them, which the others need not try."""

    def __init__(self, plan: Plan) -> None:
        self._variants = dict(plan.unavailable)
        self._lost: dict[tuple[str, App], str] = {}  # an app under one of them
        self._failed: dict[tuple[str, str], set[str]] = {}  # by app and reason: variants

    def why(self, one: Trial) -> str | None:
        server = one.cell.server
        if known := self._variants.get(
            server.variant, self._lost.get((server.variant, server.app))
        ):
            return known
        return next(
            (why for (app, why), variants in self._failed.items()
             if app == server.app.target and len(variants) > 1),
            None,
        )  # fmt: skip

    def learn(self, one: Trial, record: Record) -> None:
        if record.fault and record.fault.kind == "unavailable":
            server, why = one.cell.server, record.fault.reason
            self._lost[server.variant, server.app] = why
            self._failed.setdefault((server.app.target, why), set()).add(server.variant)


class Rates:
    """Of open cells. A share is of what the closed ones found, who come first: analysed once."""

    def __init__(self, directory: Path) -> None:
        self._report = cache(lambda: report_of(run_store.load(directory)))

    def of(self, one: Trial) -> float | Fault | None:
        """Requests/s; a Fault where no closed cell says what a share is of; None: closed loop."""
        rate = one.cell.rate
        if rate is None or rate.share is None:
            return None if rate is None else rate.rps
        capacity_rps = capacity_of(self._report(), one.cell)
        if capacity_rps is None:
            why = "no valid closed cell of this server says what its capacity is"
            return Fault("unmeasured", f"{rate.label} of what? {why}")
        return capacity_rps * rate.share


def launch_for(plan: Plan, one: Trial, directory: Path, rps: float | None = None) -> Launch:
    """What the Gunicorn of a trial is started from."""
    cell, app = one.cell, one.cell.server.app
    tool = tool_named(cell.tool)
    cheaper = app.sleep_s is not None and app.sleep_s > WARMUP_S
    return Launch(
        server=cell.server,
        app=app,
        python=cell.server.python or plan.python,
        gunicorn=cell.server.gunicorn or plan.gunicorn,
        code=directory / "code",
        trial=directory / "raw" / one.key,
        config=cell.server.config or plan.config,
        records=records_for(plan, cell, rps),
        warmup_path=f"/?sleep={WARMUP_S}" if cheaper else None,
        named=tool.NAMES_REQUESTS,
        kept=cell.keepalive,
        inside=cell.inside,
        host=hosts.reached_at(plan.load_hosts),
    )


def task_for(
    plan: Plan,
    one: Trial,
    directory: Path,
    rps: float | None = None,
    prepare_launch: PrepareLaunch = no_services,
    turn: Turn | None = None,
) -> trial.Task:
    """A trial on the server that its cell asks for. `turn`: where others start beside it."""
    if one.cell.server.null is not None:
        return trial.null_task(one, directory)
    launch = prepare_launch(one, launch_for(plan, one, directory, rps))
    return trial.Task(
        key=one.key,
        directory=launch.trial,
        up=lambda: running(launch, turn),
        load=lambda lone_s: load_for(plan, one.cell, lone_s, rps, one.number),
        command=tool_named(one.cell.tool).command,
        services=launch.services,
        longer=lambda load, record: longer(plan, one, directory, load, record),
        needs=one.cell.inside == "needs",
    )
