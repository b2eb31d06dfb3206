"""The results of an `advise` run so far, read from its files: the needs of requests under each
worker class, and the outcome of each launch. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec
from workerlab.analysis import stall
from workerlab.analysis.diagnosis.blocking import BlockingLine, blocking_lines
from workerlab.analysis.diagnosis.loop import BlockedLoop, worth_sampling
from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.load_tool import Ceiling, ceilings
from workerlab.analysis.needs import CpuUnderLoad, cpu_under_load, needs_of, with_cpu
from workerlab.analysis.target import Requests, judge, requests_of, value_of
from workerlab.analysis.trials import valid_results
from workerlab.experiments.advise.candidates import Limits
from workerlab.experiments.reading import as_argument, report_of, trial_data
from workerlab.finding import Answer, Finding, Note
from workerlab.model.plan import Cell, Plan, Route, Server
from workerlab.model.result import Needs, Result, TrialResult
from workerlab.run_store import Run
from workerlab.server.worker_classes import class_named
from workerlab.slo import Term, parse

TOOL = "fast"  # times every request and sends by a schedule

ROUTES_ALIKE = Note("CPU per route is unknown: each route gets the mean of its worker class")


class AdviseRequest(Struct, frozen=True):
    """The user's request, stored as the Plan's details."""

    slo: str
    rate_rps: float
    budget_s: float
    limits: Limits
    left_out: Mapping[str, str] = {}  # variants that cannot run here -> reason
    unfit: tuple[str, ...] = ()  # variants without settings within the limits
    removed: tuple[str, ...] = ()  # worker classes that later versions of Gunicorn removed
    config_text: str = ""  # of the app's own Gunicorn file
    config_path: str = ""
    config_sets: tuple[str, ...] = ()  # settings in it
    python: str = ""  # first interpreter named by the user
    start: str = "gunicorn"  # shell command that starts the measured Gunicorn
    write: str = ""  # additional path for the generated file
    # The directory from which Gunicorn finds the app; "": any, since the app's own file sets chdir;
    # None: the generated file has to set it
    starts_in: str | None = None

    @classmethod
    def of(cls, plan: Plan) -> AdviseRequest:
        return codec.convert(plan.details, cls)


# --- why launches and classes are left out --------------------------------------------------------


class LaunchDisturbed(Finding):
    """{share:percent} of the response time was lost to other programs or machines"""

    share: float


class LaunchPaused(Finding):
    """this machine, or the lab, was paused for up to {paused_s:duration} of {load_s:duration}: the
    lab did not run, although it was not waiting for a core"""

    paused_s: float
    load_s: float


class ToolLate(Finding):
    """the load tool sent requests {late_s:duration} late (p95); without this delay {terms:list}
    would be met"""

    late_s: float
    terms: tuple[str, ...]


NOISE = (LaunchDisturbed, LaunchPaused)  # caused by the machine, not by the candidate


class Exclusion(Answer):
    """{why}[[; {detail}]]"""

    why: str | Finding
    detail: str | None = None


class NeedsUnknown(Exclusion):
    """the needs of requests are unknown: {why}"""


REMOVED = "Gunicorn {version} removed it; to consider it anyway, name it in --classes"


# --- launches -------------------------------------------------------------------------------------


class CandidateLaunch(Struct, dict=True, frozen=True, eq=False):
    """A launch of a candidate at a rate, on a fresh server. `discard_reason`: None if it is valid.

    A disturbed launch is discarded only if it missed the target: one that met the target despite
    the disturbance would also have met it without."""

    server: Server
    rps: float
    schedule: int
    cell: TrialResult
    facts: Facts | None
    discard_reason: Finding | None

    @property
    def key(self) -> str:
        return self.cell.trial.key

    @property
    def result(self) -> Result:
        """The result. Not for invalid launches, which all have a `discard_reason`."""
        assert isinstance(self.cell, Result)
        return self.cell

    @cached_property
    def times_s(self) -> tuple[float, ...]:
        """Response times of the successful requests, ascending."""
        timings = self.facts.measurement.timings if self.facts else ()
        return tuple(sorted(t.end_s for t in timings if t.cause is None and t.end_s is not None))

    @cached_property
    def failed(self) -> int:
        """Requests that were due and did not succeed, unsent ones included."""
        return self.due - len(self.times_s)

    @cached_property
    def due(self) -> int:
        measurement = self.facts.measurement if self.facts else None
        return len(measurement.timings) + (measurement.unsent or 0) if measurement else 0

    @property
    def requests(self) -> Requests:
        return pooled([self])

    @property
    def served_rps(self) -> float | None:
        """Throughput scaled from the rate of the schedule to the requested one, since in a short
        load they differ by a few percent by chance; None if the launch is invalid."""
        if not isinstance(self.cell, Result):
            return None
        rps, at_rate = self.cell.throughput_rps, self.cell.at_rate
        due_rps = at_rate.due_rps if at_rate else None
        return rps * self.rps / due_rps if due_rps else rps


def pooled(launches: Sequence[CandidateLaunch]) -> Requests:
    """The requests of all launches as one set; the throughput is the mean."""
    times_s = [time_s for launch in launches for time_s in launch.times_s]
    rates = [rps for launch in launches if (rps := launch.served_rps) is not None]
    failed = sum(launch.failed for launch in launches)
    return requests_of(times_s, failed, fmean(rates) if rates else None)


def meets_target(launch: CandidateLaunch, terms: Sequence[Term]) -> bool:
    """Whether a launch meets every term. Times and throughput are judged by value; errors miss the
    target only if they exceed the limit significantly."""
    for term in terms:
        if term.kind == "errors":
            if judge(term, launch.requests).result == "broken":
                return False
        else:
            value = value_of(term.metric, launch.requests)
            if value is None or not term.holds(value):
                return False
    return True


class Study(Struct, dict=True, frozen=True, eq=False):
    """The results of a run so far, read from its files."""

    request: AdviseRequest
    plan: Plan
    run: str  # as a command-line argument
    needs: Mapping[str, Needs]  # by variant: worker class, interpreter and Gunicorn version
    left_out: Mapping[str, Exclusion]  # by variant
    blocked_variants: tuple[str, ...]  # their event loop is blocked
    blocking: Mapping[str, tuple[BlockingLine, ...]]  # by variant with a stacks trial
    launches: tuple[CandidateLaunch, ...]  # discarded ones included
    alarmed_variants: tuple[str, ...] = ()  # their event loop may be blocked
    preload_needs: Needs | None = None  # of one class, with preload_app
    ceiling: Ceiling | None = None  # the load tool's highest rate on this machine

    @cached_property
    def valid(self) -> tuple[CandidateLaunch, ...]:
        return tuple(launch for launch in self.launches if launch.discard_reason is None)

    @property
    def disturbed(self) -> int:
        """Number of launches discarded because other programs or machines used the cores or the
        machine was paused."""
        return sum(isinstance(launch.discard_reason, NOISE) for launch in self.launches)

    def launches_at(self, server: Server, rps: float) -> tuple[CandidateLaunch, ...]:
        """The server's valid launches at that rate."""
        return tuple(
            launch for launch in self.all_launches_at(server, rps) if launch.discard_reason is None
        )

    def all_launches_at(self, server: Server, rps: float) -> tuple[CandidateLaunch, ...]:
        """All the server's launches at that rate, discarded ones included."""
        launches = (launch for launch in self.launches if launch.rps == rps)
        return tuple(launch for launch in launches if launch.server == server)

    def launches_of(self, server: Server) -> tuple[CandidateLaunch, ...]:
        """The server's valid launches at any rate."""
        return tuple(launch for launch in self.valid if launch.server == server)

    def rates(self, server: Server) -> list[float]:
        """The rates of the server's valid launches, ascending."""
        return sorted({launch.rps for launch in self.launches_of(server)})


def study_of(run: Run) -> Study:
    trials, request = trial_data(run, keep=True), AdviseRequest.of(run.plan)
    cells = {cell.trial.key: cell for cell in report_of(run, trials).cells}
    needs, left_out = _needs(run, trials)
    tool_ceilings = (ceiling for ceiling in ceilings(run.environment) if ceiling.tool == TOOL)
    measured_cells = [
        (trial.cell, trial.facts)
        for trial in trials
        if trial.cell.inside and isinstance(trial.facts, Facts)
    ]
    preload_needs = (
        needs_of(facts)
        for cell, facts in measured_cells
        if cell.inside == "needs" and cell.server.preload
    )
    return Study(
        request=request,
        plan=run.plan,
        run=as_argument(run),
        needs=needs,
        left_out={**_unavailable(request), **left_out},
        blocked_variants=tuple(
            result.server.variant for result in valid_results(cells.values()) if _is_blocked(result)
        ),
        blocking={
            cell.server.variant: blocking_lines(facts)
            for cell, facts in measured_cells
            if cell.inside == "stacks"
        },
        launches=tuple(_launches(trials, cells, parse(request.slo))),
        alarmed_variants=tuple(
            cell.server.variant
            for cell, facts in measured_cells
            if cell.inside == "needs" and worth_sampling(facts)
        ),
        preload_needs=next((item for item in preload_needs if isinstance(item, Needs)), None),
        ceiling=max(tool_ceilings, key=lambda ceiling: ceiling.rps, default=None),
    )


def _unavailable(request: AdviseRequest) -> dict[str, Exclusion]:
    """The variants excluded before anything started, with the reason."""
    removed = {
        name: REMOVED.format(version=class_named(name).removed_in) for name in request.removed
    }
    return {name: Exclusion(why) for name, why in {**request.left_out, **removed}.items()}


def _launches(
    trials: Iterable[TrialData], cells: Mapping[str, TrialResult], terms: Sequence[Term]
) -> Iterator[CandidateLaunch]:
    """The launches that have ended. `cells`: by the trial's key."""
    for trial in trials:
        is_interrupted = trial.record is not None and trial.record.interrupted
        if trial.trial.key in cells and trial.cell.rate is not None and not is_interrupted:
            yield launch_of(cells[trial.trial.key], trial.facts, terms)


def _is_blocked(result: Result) -> bool:
    cell = result.trial.cell
    measures_loop = cell.inside == "needs" and class_named(cell.server.worker_class).loop
    return measures_loop and any(isinstance(finding, BlockedLoop) for finding in result.findings)


def _needs(run: Run, trials: Sequence[TrialData]) -> tuple[dict[str, Needs], dict[str, Exclusion]]:
    """The needs by variant, and the excluded variants with the reason."""
    needs: dict[str, Needs] = {}
    left_out: dict[str, Exclusion] = {}
    routes: dict[str, dict[str, Needs]] = {}
    load_cpu: dict[str, CpuUnderLoad | None] = {}
    for trial in trials:
        name, record, facts = trial.cell.server.variant, trial.record, trial.facts
        route = lone_route(trial.cell, run.plan)
        if measures_cpu_under_load(trial.cell) and isinstance(facts, Facts):
            load_cpu[name] = cpu_under_load(facts)
        if trial.cell.inside != "needs" or trial.cell.server.preload or record is None:
            continue
        measured = needs_of(facts) if isinstance(facts, Facts) else facts
        if isinstance(measured, Needs) and route is not None:
            routes.setdefault(name, {})[route.label] = measured
        elif isinstance(measured, Needs):
            needs[name] = measured
            left_out.pop(name, None)
        elif route is None and not record.interrupted:
            key, fault = (record.key,), record.fault
            left_out[name] = (
                Exclusion(fault.reason, fault.detail or None, trials=key)
                if fault
                else NeedsUnknown(measured, trials=key)
            )
    by_variant = {
        name: with_cpu(with_lone_routes(mean, routes.get(name, {})), load_cpu.get(name))
        for name, mean in needs.items()
    }
    return by_variant, left_out


def lone_route(cell: Cell, plan: Plan) -> Route | None:
    """The route of a cell that measures one route of a mix alone; None for other cells."""
    mix = cell.server.app.mix
    return mix[0] if len(mix) == 1 < len(plan.cells[0].server.app.mix) else None


def measures_cpu_under_load(cell: Cell) -> bool:
    """Whether the cell measures the CPU per request with many requests at once."""
    return cell.rate is None and not cell.inside


def with_lone_routes(needs: Needs, routes: Mapping[str, Needs]) -> Needs:
    """The needs with each request replaced by one to the same route, measured alone, if the class
    has no CPU clock per request. If any route was not measured alone, all requests keep the mean
    CPU, and a note is added."""
    names = {need.route for need in needs.requests if need.route}
    if needs.cpu_by_request or len(names) < 2:
        return needs
    if not names <= routes.keys():
        return replace(needs, notes=(*needs.notes, ROUTES_ALIKE))
    by_route = {name: cycle(routes[name].requests) for name in names}
    requests = tuple(
        replace(next(by_route[need.route]), route=need.route) if need.route else need
        for need in needs.requests
    )
    return replace(needs, requests=requests)


def launch_of(
    result: TrialResult, facts: Facts | Finding, terms: Sequence[Term]
) -> CandidateLaunch:
    cell = result.trial.cell
    assert cell.rate is not None
    assert cell.rate.rps is not None
    launch = CandidateLaunch(
        server=cell.server,
        rps=cell.rate.rps,
        schedule=cell.schedule or 0,
        cell=result,
        facts=None,
        discard_reason=result.reason,
    )
    if not isinstance(result, Result) or not isinstance(facts, Facts):
        return launch
    launch = replace(launch, facts=facts, discard_reason=None)
    if meets_target(launch, terms):
        return launch
    return replace(launch, discard_reason=_noise(result, facts) or _delay(launch, terms))


def _noise(cell: Result, facts: Facts) -> Finding | None:
    """How the machine disturbed a launch; None if it did not."""
    if cell.core_wait is not None and cell.is_disturbed:
        return LaunchDisturbed(cell.core_wait.share_lost)
    pause = stall.noticeable_pauses(facts)
    return LaunchPaused(pause.paused_s, pause.load_s) if pause else None


def _delay(launch: CandidateLaunch, terms: Sequence[Term]) -> ToolLate | None:
    """A finding if every missed term is on a response time and would be met without the load tool's
    lag (p95); else None."""
    late_s = launch.result.at_rate.lag.p95 if launch.result.at_rate else None
    missed_terms = [term for term in terms if not meets_target(launch, [term])]
    if not late_s or not missed_terms:
        return None
    for term in missed_terms:
        value = value_of(term.metric, launch.requests) if term.kind == "time" else None
        if value is None or not term.holds(value - late_s):
            return None
    return ToolLate(late_s, tuple(map(str, missed_terms)))
