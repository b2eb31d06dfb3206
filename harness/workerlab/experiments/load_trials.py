"""The trials with a load: how each starts, and what later trials depend on."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from msgspec.structs import replace

from workerlab import run_store
from workerlab.analysis.facts import why_unusable
from workerlab.analysis.open_model import capacity_of
from workerlab.analysis.samples import lab_cores
from workerlab.experiments import trial as trial_module
from workerlab.experiments.jobs import JobPlanner
from workerlab.experiments.length import next_load
from workerlab.experiments.planning import why_unavailable
from workerlab.experiments.reading import report_of, trial_data
from workerlab.experiments.scheduler import TrialSource
from workerlab.experiments.trial import Task, discard_attempt, null_task
from workerlab.load.locust import missing_hosts
from workerlab.load.registry import tool_named
from workerlab.model import App, EnvironmentProblem, Fault, Plan, Record, Trial
from workerlab.numbers.units import fill
from workerlab.observe.cpu import Lab
from workerlab.observe.observations import read_observations
from workerlab.observe.tcp import drops_are_told
from workerlab.plan import longer_s, records_for, trials
from workerlab.server import preflight
from workerlab.server.running import Launch, StartupTurn
from workerlab.server.serve import serve
from workerlab.terminal.progress import Progress, Several

WARMUP_SLEEP_S = 0.005  # sleep of warm-up requests to the bundled apps

PrepareLaunch = Callable[[Trial, Launch], Launch]


def no_services(_trial: Trial, launch: Launch) -> Launch:
    """The launch unchanged: the server needs no database or cache."""
    return launch


def default_display(source: TrialSource, todo: Sequence[Trial]) -> Progress:
    """A display of the trials' progress and of the predicted time left."""
    more_s = partial(longer_s, source.plan)
    if source.plan.jobs == 1:
        return Progress(todo, source.predict, more_s)
    return Several(todo, source.predict, more_s, source.jobs.left_s)


class LoadTrials(TrialSource):
    """Trials with a server and a load tool. `prepare_launch`: as in Setup."""

    def __init__(
        self, directory: Path, plan: Plan, prepare_launch: PrepareLaunch = no_services
    ) -> None:
        self._rates, self._unavailable = Rates(directory), Unavailable(plan)
        drops_known = plan.jobs != 1 and drops_are_told()
        cores = preflight.cores() or 1
        jobs = JobPlanner(plan, cores, self._rates.known_rps, drops_known=drops_known)
        super().__init__(directory, plan, jobs)
        self._prepare_launch = prepare_launch

    def unfinished(self) -> list[Trial]:
        run = run_store.load(self.directory)
        data = trial_data(run) if run.records else ()
        cells = report_of(run, data).cells if data else ()
        valid_keys = {cell.trial.key for cell in cells if cell.verdict != "invalid"}
        valid_keys |= {
            trial.trial.key
            for trial in data
            if trial.cell.server.null and why_unusable(trial) is None
        }
        return [trial for trial in trials(self.plan) if trial.key not in valid_keys]

    def predict(self, trial: Trial) -> float | None:
        return 0.0 if self._unavailable.why_not(trial) else self.jobs.predict(trial)

    def next_batch(self, todo: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
        self._rates.closed_have_run = todo[0].cell.rate is not None
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

    def learn(self, trial: Trial, record: Record) -> None:
        directory = self._directory_of(trial)
        stderr = run_store.read_text(directory / "tool" / "stderr")
        if self.plan.load_hosts and (missing := missing_hosts(stderr)):
            raise EnvironmentProblem(missing)  # the next trial would wait for them too
        self._unavailable.store_fault(trial, record)
        self.jobs.learn(trial, record, partial(read_observations, directory))

    def _directory_of(self, trial: Trial) -> Path:
        return self.directory / "raw" / trial.key


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
        self.closed_have_run = False
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

    def known_rps(self, trial: Trial) -> float | None:
        """As `rps_of`; None, too, while or if the capacity is unknown."""
        rate = trial.cell.rate
        if rate is not None and rate.share is not None and not self.closed_have_run:
            return None
        rps = self.rps_of(trial)
        return None if isinstance(rps, Fault) else rps


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
