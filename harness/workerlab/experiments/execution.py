"""Executes the trials of a plan, alone or in parallel (`jobs`), and records each as it ends."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from workerlab import run_store
from workerlab.analysis.facts import why_unusable
from workerlab.analysis.open_model import capacity_of
from workerlab.experiments.jobs import JobScheduler
from workerlab.experiments.length import next_load
from workerlab.experiments.planning import why_unavailable
from workerlab.experiments.reading import report_of, trial_data
from workerlab.experiments.side_by_side import ParallelTrials
from workerlab.experiments.trial import Task, discard_attempt, null_task
from workerlab.experiments.trial import run as run_trial
from workerlab.load.locust import missing_hosts
from workerlab.load.registry import tool_named
from workerlab.model import App, EnvironmentProblem, Fault, Plan, Record, Trial
from workerlab.numbers.units import fill
from workerlab.observe.cpu import Lab
from workerlab.observe.observations import read_observations
from workerlab.observe.tcp import drops_are_told
from workerlab.plan import load_for, longer_s, predicted_s, records_for, trials
from workerlab.server import preflight
from workerlab.server.gunicorn import running
from workerlab.server.running import Launch, StartupTurn
from workerlab.terminal.progress import Progress, Several

WARMUP_SLEEP_S = 0.005  # sleep of warm-up requests to the bundled apps
LAUNCH_S = 1.2  # of a trial: mean of what 300 launches took longer than predicted

PrepareLaunch = Callable[[Trial, Launch], Launch]
Predict = Callable[[Trial], float | None]  # seconds that a trial takes; None while unknown
# Shows progress: begin(trial), then watch(server, observer) repeatedly, then end(trial, record)
Display = Callable[[Path, Plan, Sequence[Trial], Predict], AbstractContextManager[Any]]


def no_services(_trial: Trial, launch: Launch) -> Launch:
    """The launch unchanged: the server needs no database or cache."""
    return launch


def default_display(
    _directory: Path, plan: Plan, todo: Sequence[Trial], predict: Predict
) -> Progress:
    """A display of the trials' progress and of the predicted time left."""
    if plan.jobs == 1:
        return Progress(todo, predict, partial(longer_s, plan))
    scheduler = JobScheduler(plan, preflight.cores() or 1, requested_rps, drops_known=True)
    return Several(todo, predict, partial(longer_s, plan), scheduler.left_s)


def requested_rps(trial: Trial) -> float | None:
    """Requests/s of an open cell; None if closed, or if the rate is a share of the capacity."""
    return trial.cell.rate.rps if trial.cell.rate else None


def unfinished(directory: Path, plan: Plan) -> list[Trial]:
    """Trials without a valid result, in the order of execution."""
    run = run_store.load(directory)
    data = trial_data(run) if run.records else ()
    cells = report_of(run, data).cells if data else ()
    valid_keys = {cell.trial.key for cell in cells if cell.verdict != "invalid"}
    valid_keys |= {
        trial.trial.key for trial in data if trial.cell.server.null and why_unusable(trial) is None
    }
    return [trial for trial in trials(plan) if trial.key not in valid_keys]


class DurationPredictor:
    """Predicts trial durations from measured lone response times, or from the nominal sleep."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lone_s: dict[tuple[str, str], float] = {}  # by server name and app

    def store_lone_response(self, trial: Trial, record: Record) -> None:
        if record.lone_s:
            server = trial.cell.server
            self._lone_s[server.name, server.app.target] = fmean(record.alone_s)

    def predict(self, trial: Trial) -> float | None:
        """Predicted duration of the trial, seconds; None while its response time is unknown."""
        server = trial.cell.server
        if server.variant in self._plan.unavailable:
            return 0.0
        lone_s = self._lone_s.get((server.name, server.app.target), server.app.sleep_s)
        if trial.cell.load is not None:
            lone_s = 0.0  # the duration of a fixed load does not depend on it
        if lone_s is None:
            return None
        return predicted_s(self._plan, trial.cell, lone_s) + (0.0 if server.null else LAUNCH_S)


def execute(
    directory: Path, plan: Plan, todo: list[Trial], prepare_launch: PrepareLaunch, display: Display
) -> None:
    """Run `todo`, recording each trial as it ends.

    Raises Stopped on a signal, EnvironmentProblem if the disk cannot be written or a load host is
    missing.
    """
    durations, unavailable = DurationPredictor(plan), Unavailable(plan)

    def predict(trial: Trial) -> float | None:
        return 0.0 if unavailable.why_not(trial) else durations.predict(trial)

    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(run_store.appending(directory))
        screen = stack.enter_context(display(directory, plan, todo, predict))
        execution = TrialExecution(
            directory, plan, prepare_launch, writer, screen, durations, unavailable
        )
        while todo:
            batch, todo = execution.scheduler.next_batch(todo, durations.predict)
            if len(batch) == 1:
                execution.run_alone(batch[0])
            else:
                execution.run_in_parallel(batch)


class TrialExecution:
    """Starts trials, stores their records, and updates what later trials depend on."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        prepare_launch: PrepareLaunch,
        writer: run_store.Writer,
        screen: Any,
        durations: DurationPredictor,
        unavailable: "Unavailable",
    ) -> None:
        self._directory, self._plan, self._prepare_launch = directory, plan, prepare_launch
        self._writer, self._screen, self._durations = writer, screen, durations
        self._unavailable, self._rates = unavailable, Rates(directory)
        drops_known = plan.jobs != 1 and drops_are_told()
        self.scheduler = JobScheduler(
            plan, preflight.cores() or 1, self._rps, drops_known=drops_known
        )

    def run_alone(self, trial: Trial, parallel_cores: float | None = None) -> None:
        """Run one trial. `parallel_cores`: used when it ran in parallel, if this repeats it."""

        def keep(record: Record) -> None:
            self._writer.ended(replace(record, again_cores=parallel_cores))

        task = self._begin(trial)
        if task is not None:
            record = run_trial(replace(task, watch=self._screen.watch), keep)
            self._finish(trial, record)

    def run_in_parallel(self, batch: Sequence[Trial]) -> None:
        """Run the trials in parallel, then alone those that had too few cores."""
        parallel = ParallelTrials(self.scheduler, self._begin, self._writer.ended, self._finish)
        for trial, cores in parallel.run(batch):
            self.run_alone(trial, cores)

    def _rps(self, trial: Trial) -> float | None:
        rps = self._rates.rps_of(trial)
        return None if isinstance(rps, Fault) else rps

    def _begin(
        self, trial: Trial, turn: StartupTurn | None = None, lab: Lab | None = None
    ) -> Task | None:
        """Record the start and return the task; or record why it cannot run, and return None."""
        self._screen.begin(trial)
        why = self._unavailable.why_not(trial) or why_unavailable(trial.cell.tool)
        rps = Fault("unavailable", why) if why else self._rates.rps_of(trial)
        if isinstance(rps, Fault):
            record = Record(trial.key, rps)
            self._writer.ended(record)
            self._screen.end(trial, record)
            return None
        task = task_for(
            self._plan,
            trial,
            self._directory,
            rps=rps,
            prepare_launch=self._prepare_launch,
            turn=turn,
        )
        discard_attempt(task.directory)
        self._writer.began(task.key)
        return replace(task, lab=lab)

    def _finish(self, trial: Trial, record: Record) -> None:
        """Update what later trials depend on. Raises EnvironmentProblem if none can run."""
        trial_dir = self._directory / "raw" / trial.key
        self._durations.store_lone_response(trial, record)
        stderr = run_store.read_text(trial_dir / "tool" / "stderr")
        if self._plan.load_hosts and (missing := missing_hosts(stderr)):
            raise EnvironmentProblem(missing)  # the next trial would wait for them too
        self._unavailable.store_fault(trial, record)
        if self._plan.jobs != 1:
            self.scheduler.store_cost(trial, record, read_observations(trial_dir))
        self._screen.end(trial, record)
        if record.fault and record.fault.kind == "storage":
            raise EnvironmentProblem(record.fault.reason)


NOT_TRIED = "not launched, as the app failed to start under {variants:list}, for the same reason"


class Unavailable:
    """What cannot run here, and why: a variant, or an app under a variant. An app that failed for
    the same reason under two variants is not tried under the others."""

    def __init__(self, plan: Plan) -> None:
        self._variants = dict(plan.unavailable)
        self._by_app: dict[tuple[str, App], str] = {}  # (variant, app): reason
        self._failed: dict[tuple[str, str], dict[str, None]] = {}  # (app, reason): variants

    def why_not(self, trial: Trial) -> str | None:
        """Why the trial cannot run here; None if nothing is known against it."""
        server = trial.cell.server
        if why := self._variants.get(
            server.variant, self._by_app.get((server.variant, server.app))
        ):
            return why
        return next(
            (fill(NOT_TRIED, {"variants": variants}) for (app, _), variants in self._failed.items()
             if app == server.app.target and len(variants) > 1),
            None,
        )  # fmt: skip

    def store_fault(self, trial: Trial, record: Record) -> None:
        if record.fault and record.fault.kind == "unavailable":
            server, why = trial.cell.server, record.fault.reason
            self._by_app[server.variant, server.app] = why
            self._failed.setdefault((server.app.target, why), {})[server.variant] = None


class Rates:
    """Rates of open cells. A share is one of the capacity measured by the closed cells, which run
    first."""

    def __init__(self, directory: Path) -> None:
        # Without facts: they would keep all spans and timings in memory while later trials run
        self._report = cache(lambda: replace(report_of(run_store.load(directory)), facts=()))

    def rps_of(self, trial: Trial) -> float | Fault | None:
        """Requests/s; None for a closed cell; a Fault if no closed cell shows the capacity."""
        rate = trial.cell.rate
        if rate is None or rate.share is None:
            return None if rate is None else rate.rps
        capacity_rps = capacity_of(self._report(), trial.cell)
        if capacity_rps is None:
            why = "no valid closed cell has measured this server's capacity"
            return Fault("unmeasured", f"{rate.label} of an unknown capacity: {why}")
        return capacity_rps * rate.share


def launch_for(plan: Plan, trial: Trial, directory: Path, rps: float | None = None) -> Launch:
    """How to start the Gunicorn of a trial. `directory`: of the run; `rps`: of an open cell."""
    cell, app = trial.cell, trial.cell.server.app
    tool = tool_named(cell.tool)
    has_cheaper_request = app.sleep_s is not None and app.sleep_s > WARMUP_SLEEP_S
    return Launch(
        server=cell.server,
        app=app,
        python=cell.server.python or plan.python,
        gunicorn=cell.server.gunicorn or plan.gunicorn,
        code=directory / "code",
        trial=directory / "raw" / trial.key,
        config=cell.server.config or plan.config,
        records=records_for(plan, cell, rps),
        warmup_path=f"/?sleep={WARMUP_SLEEP_S}" if has_cheaper_request else None,
        named=tool.NAMES_REQUESTS,
        kept=cell.keepalive,
        inside=cell.inside,
        host=preflight.address_facing(plan.load_hosts),
    )


def task_for(
    plan: Plan,
    trial: Trial,
    directory: Path,
    rps: float | None = None,
    prepare_launch: PrepareLaunch = no_services,
    turn: StartupTurn | None = None,
) -> Task:
    """The task of a trial. `rps`: of an open cell; `turn`: its turn among parallel trials."""
    if trial.cell.server.null is not None:
        return null_task(trial, directory)
    launch = prepare_launch(trial, launch_for(plan, trial, directory, rps))
    return Task(
        key=trial.key,
        directory=launch.trial,
        start_server=lambda: running(launch, turn),
        load=lambda lone_s: load_for(plan, trial.cell, lone_s, rps, number=trial.number),
        command=tool_named(trial.cell.tool).command,
        services=launch.services,
        next_load=lambda load, record: next_load(plan, trial, directory, load, record),
        needs=trial.cell.inside == "needs",
    )
