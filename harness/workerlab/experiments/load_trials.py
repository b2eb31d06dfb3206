"""Prepares trials with a load, decides their loads, and keeps the results that later trials need.

If no option fixes the length of a load, its results determine the length of the next one:

    a load of a few rounds ─ its batches vary by at most 1 % ─► done
                           └ else: another load on the same server, of at least 8 one-second
                             batches, until the throughput is known within 5 % or time is up

A few rounds suffice for an app that always takes the same time. If the app is known to do so, a
precision of 5 % after the first load is enough. For any other app these rounds are a pilot: its
rate and spread determine the length of the next load (`analysis/batches.py`), because an interval
narrows with the square root of time. The pilot's variance is itself an estimate, so its upper 80 %
bound is used (chi-squared). If the pilot's rate is too imprecise, the next load only measures the
rate: in one case 969 requests took 14 s, but the first 21 had predicted 29 s. If a load would
leave too little time for another one in case it misses the 5 %, it uses all remaining time.

A load that determines the throughput may still have too few requests for a target. In that case a
load with enough requests follows, if time allows.

The record, spans and observations of the trial are those of the last load. That load begins once
the server has closed the connections of the previous one. Files of earlier loads are in `pilot/`,
`pilot-2/` and so on.

Rejected: telling the tool to continue (ab cannot), pooling the loads (the start and end of each are
not steady), and one load of 30 s (a sweep of a sleeping app would take five times as long and show
nothing more).
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import ceil, inf, sqrt
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from workerlab import run_store
from workerlab.analysis.batches import BATCH_S, ENOUGH_BATCHES, Precision, precision
from workerlab.analysis.checks import CHECKS
from workerlab.analysis.facts import Facts, why_unusable
from workerlab.analysis.open_model import capacity_of
from workerlab.analysis.samples import Window, lab_cores
from workerlab.durations import longer_s
from workerlab.errors import EnvironmentProblem
from workerlab.experiments import trial as trial_module
from workerlab.experiments.jobs import JobPlanner
from workerlab.experiments.planning import why_unavailable
from workerlab.experiments.reading import read_trial, report_of, trial_data
from workerlab.experiments.scheduler import TrialSource
from workerlab.experiments.trial import Task, discard_attempt, null_task
from workerlab.load.locust import missing_hosts_reason
from workerlab.load.registry import tool_named
from workerlab.model.evidence import Fault, Record
from workerlab.model.plan import App, Load, Plan, Trial
from workerlab.model.result import Result
from workerlab.numbers.intervals import student_t
from workerlab.numbers.units import fill
from workerlab.observe.cpu import Lab
from workerlab.observe.observations import read_observations
from workerlab.observe.tcp import counts_socket_drops
from workerlab.plan import (
    MAX_FOLLOW_UP_REQUESTS,
    load_for,
    may_have_follow_up,
    records_for,
    target_requests,
    trials,
    varies,
)
from workerlab.server import preflight
from workerlab.server.running import Launch, StartupTurn
from workerlab.server.serve import serve
from workerlab.terminal.progress import Progress

WARMUP_SLEEP_S = 0.005  # in warm-up requests to the bundled apps

PrepareLaunch = Callable[[Trial, Launch], Launch]


def no_services(_trial: Trial, launch: Launch) -> Launch:
    """The unchanged launch of a server that needs no database or cache."""
    return launch


def default_display(source: TrialSource, todo: Sequence[Trial]) -> Progress:
    """A display of the trials' progress and of the predicted time left."""
    more_s = partial(longer_s, source.plan)
    return Progress(todo, source.predict, source.jobs.left_s, more_s)


class LoadTrials(TrialSource):
    """The trials of a plan that have a server and a load tool. `prepare_launch`: as in Setup."""

    def __init__(
        self, directory: Path, plan: Plan, prepare_launch: PrepareLaunch = no_services
    ) -> None:
        self._rates, self._unavailable = Rates(directory), Unavailable(plan)
        drops_known = plan.jobs != 1 and counts_socket_drops()
        cores = preflight.cores() or 1
        jobs = JobPlanner(plan, cores, self._rates.known_rps, drops_known=drops_known)
        super().__init__(directory, plan, jobs)
        self._prepare_launch = prepare_launch

    def unfinished(self) -> list[Trial]:
        run = run_store.load(self.directory)
        data = trial_data(run) if run.records else ()
        cells = report_of(run, data).cells if data else ()
        valid_keys = {cell.trial.key for cell in cells if isinstance(cell, Result)}
        valid_keys |= {
            trial.trial.key
            for trial in data
            if trial.cell.server.null and why_unusable(trial) is None
        }
        return [trial for trial in trials(self.plan) if trial.key not in valid_keys]

    def predict(self, trial: Trial) -> float | None:
        return 0.0 if self._unavailable.why_not(trial) else self.jobs.predict(trial)

    def next_batch(self, todo: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
        self._rates.closed_cells_ran = todo[0].cell.rate is not None
        return super().next_batch(todo)

    def prepare(
        self, trial: Trial, turn: StartupTurn, lab: Lab | None
    ) -> Callable[[], Record] | Fault:
        if why := self._unavailable.why_not(trial) or why_unavailable(trial.cell.tool):
            return Fault("unavailable", why)
        rps = self._rates.rps_of(trial)
        if isinstance(rps, Fault):
            return rps
        task = task_for(
            self.plan,
            trial,
            self.directory,
            rps=rps,
            prepare_launch=self._prepare_launch,
            turn=turn,
        )
        discard_attempt(task.directory)
        return partial(trial_module.run, replace(task, lab=lab))

    def used_cores(self, trial: Trial) -> float:
        return lab_cores(read_observations(self._directory_of(trial)).processes)

    def on_result(self, trial: Trial, record: Record) -> None:
        directory = self._directory_of(trial)
        stderr = run_store.read_text(directory / "tool" / "stderr")
        if self.plan.load_hosts and (missing := missing_hosts_reason(stderr)):
            raise EnvironmentProblem(missing)  # the next trial would also wait for them
        self._unavailable.store_fault(trial, record)
        self.jobs.on_result(trial, record, partial(read_observations, directory))

    def _directory_of(self, trial: Trial) -> Path:
        return self.directory / "raw" / trial.key


NOT_TRIED = "not launched: the app failed to start under {variants:list} for the same reason"


class Unavailable:
    """The variants, and apps under variants, that cannot run here, with reasons. An app that failed
    for the same reason under two variants is not tried under the others."""

    def __init__(self, plan: Plan) -> None:
        self._variants = dict(plan.unavailable)
        self._by_app: dict[tuple[str, App], str] = {}  # (variant, app): reason
        self._failed: dict[tuple[str, str], dict[str, None]] = {}  # (app, reason): variants

    def why_not(self, trial: Trial) -> str | None:
        """The reason why the trial cannot run here; None if it can."""
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
    """The rates of open cells. A share refers to the capacity measured by the closed cells, which
    run first."""

    def __init__(self, directory: Path) -> None:
        self.closed_cells_ran = False
        # Without facts, which would keep all spans and timings in memory while later trials run
        self._report = cache(lambda: replace(report_of(run_store.load(directory)), facts=()))

    def rps_of(self, trial: Trial) -> float | Fault | None:
        """The rate in requests/s; None for a closed cell; a Fault if the capacity is unknown."""
        rate = trial.cell.rate
        if rate is None or rate.share is None:
            return None if rate is None else rate.rps
        capacity_rps = capacity_of(self._report(), trial.cell)
        if capacity_rps is None:
            why = "no valid closed cell has measured this server's capacity"
            return Fault("unmeasured", f"{rate.label} of an unknown capacity: {why}")
        return capacity_rps * rate.share

    def known_rps(self, trial: Trial) -> float | None:
        """Like `rps_of`, but None if the capacity is unknown."""
        rate = trial.cell.rate
        if rate is not None and rate.share is not None and not self.closed_cells_ran:
            return None
        rps = self.rps_of(trial)
        return None if isinstance(rps, Fault) else rps


def launch_for(plan: Plan, trial: Trial, directory: Path, rps: float | None = None) -> Launch:
    """The launch of a trial's server. `directory`: that of the run; `rps`: rate of an open cell."""
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
        names_requests=tool.NUMBERS_REQUESTS,
        keepalive=cell.keepalive,
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
    """The task of a trial. `rps`: rate of an open cell; `turn`: its turn among parallel trials."""
    turn = turn or StartupTurn()
    if trial.cell.server.null is not None:
        return replace(null_task(trial, directory), watch=turn.watch)
    launch = prepare_launch(trial, launch_for(plan, trial, directory, rps))
    return Task(
        key=trial.key,
        directory=launch.trial,
        start_server=lambda: serve(launch, turn),
        next_load=lambda load, record: next_load(plan, trial, directory, load, record, rps),
        command=tool_named(trial.cell.tool).command,
        watch=turn.watch,
        services=launch.services,
        needs=trial.cell.inside == "needs",
    )


# --- which loads a trial has ----------------------------------------------------------------------

MAX_STEADY_VARIATION = 0.01  # between batches: a longer load would show nothing new
TARGET_PRECISION = 0.05  # half of the throughput's 95 % interval, relative to its mean
MIN_GROWTH = 1.2  # duration of the next load / the previous one: a shorter one would add little
MAX_SLACK_SHARE = 0.25  # of the remaining time, in case the rate drops below the pilot's
COUNTED_LOAD_MARGIN = 1.1  # factor for the duration, since a load of counted requests may end early
MAX_PILOT_RATE_ERROR = 0.15  # after a pilot with a larger error, the next load measures the rate
MAX_RATE_ERROR = 0.5  # assumed if the error is larger or unknown
MANY_DEGREES = 30  # degrees of freedom
NORMAL_QUANTILE_20 = -0.8416  # 20 % quantile of the standard normal distribution


def next_load(
    plan: Plan,
    trial: Trial,
    run_dir: Path,
    load: Load | None,
    record: Record,
    rps: float | None = None,
) -> Load | None:
    """The load to follow `load`; None if that one suffices, is invalid or has a fixed length, or if
    no time is left. If `load` is None, the trial's first load. `rps`: rate of an open cell."""
    if load is None:
        lone_s = fmean(record.alone_s) if record.alone_s else 0.0
        return load_for(plan, trial.cell, lone_s, rps, number=trial.number)
    if plan.max_seconds is None or not may_have_follow_up(plan, trial.cell) or load.drops:
        return None  # a full accept queue delays clients for minutes, however long the load is
    facts = read_trial(trial, record, plan, run_dir).facts
    if not isinstance(facts, Facts) or any(check(facts) for check in CHECKS):
        return None  # invalid: the report gives the reason
    estimate = precision(facts)
    # From the tool's clock: on a busy machine, starting the tool can take a second
    lasted_s = facts.measurement.duration_s or facts.load_s
    measured_rps = facts.rps if isinstance(facts.steady, Window) else len(facts.finished) / lasted_s
    left_s = plan.max_seconds - (record.pilot_s or 0.0) - lasted_s
    if not is_precise(estimate, steady=not varies(plan, trial.cell)):
        follow_up = load_for_precision(load, estimate, measured_rps, lasted_s, left_s)
        if follow_up is not None:
            return follow_up
    requests = target_requests(plan, measured_rps * left_s)
    if requests <= facts.outcome.answered:
        return None
    return with_duration(load, measured_rps, requests / measured_rps)


def is_precise(estimate: Precision, *, steady: bool) -> bool:
    """Whether the estimate is precise enough. `steady`: whether the app's times vary only because
    of the machine, so that a short load misses no rare event."""
    throughput = estimate.throughput_rps
    if throughput is None or estimate.variation is None:
        return False
    if estimate.variation <= MAX_STEADY_VARIATION:
        return True
    return (estimate.is_long or steady) and throughput.half <= TARGET_PRECISION * throughput.mean


def load_for_precision(
    load: Load, estimate: Precision, rps: float, lasted_s: float, left_s: float
) -> Load | None:
    """A load that is long enough for the target precision, if time allows. `rps`, `lasted_s`: those
    of the previous load; `left_s`: remaining time. None if that is too short for a useful load."""
    if rps <= 0:
        return None
    rate_error = _rate_error(estimate)
    edges_s = 2 * load.concurrency / rps  # until all slots are busy, and until all are free
    slack = 1 + min(rate_error, MAX_SLACK_SHARE)
    available_s = min((left_s - edges_s) / slack, MAX_FOLLOW_UP_REQUESTS / rps)
    steady_s = ENOUGH_BATCHES * BATCH_S * COUNTED_LOAD_MARGIN
    if rate_error <= MAX_PILOT_RATE_ERROR or steady_s < MIN_GROWTH * lasted_s:
        steady_s = max(steady_s, _required_s(estimate, rate_error))
        steady_s = steady_s if steady_s * (1 + MIN_GROWTH) <= available_s else available_s
    steady_s = min(steady_s, available_s)
    if steady_s < MIN_GROWTH * lasted_s:
        return None
    return with_duration(load, rps, steady_s)


def with_duration(load: Load, rps: float, steady_s: float) -> Load:
    """The same load with a steady part of `steady_s`, to which its start and end are added."""
    rounds = ceil(steady_s * rps / load.concurrency) + 1
    lasts_s = steady_s + 2 * load.concurrency / rps
    return replace(
        load,
        requests=1 + rounds * load.concurrency,
        duration_s=float(ceil(lasts_s)),
        deadline_s=load.deadline_s + ceil(3 * lasts_s),
    )


def _rate_error(estimate: Precision) -> float:
    """The relative error of the measured rate, at most MAX_RATE_ERROR."""
    throughput = estimate.throughput_rps
    if throughput is None or not throughput.mean:
        return MAX_RATE_ERROR
    return min(throughput.half / throughput.mean, MAX_RATE_ERROR)


def _required_s(estimate: Precision, rate_error: float) -> float:
    """The seconds of load until half of the interval is TARGET_PRECISION of the mean; infinite if
    the pilot has no interval."""
    if not estimate.batch_s:
        return inf
    degrees = estimate.batches - 1
    standard_error = rate_error / student_t(degrees)
    max_variance_ratio = degrees / _chi_squared(NORMAL_QUANTILE_20, degrees)
    narrowing = student_t(MANY_DEGREES) * standard_error / TARGET_PRECISION
    return estimate.batches * estimate.batch_s * max_variance_ratio * narrowing**2


def _chi_squared(normal: float, degrees: int) -> float:
    """The chi-squared quantile for the standard normal quantile `normal` (Wilson & Hilferty
    1931)."""
    variance = 2 / (9 * degrees)
    return degrees * max(0.0, 1 - variance + normal * sqrt(variance)) ** 3
