"""What a run of `advise` has found so far, by its files: what requests need under each worker
class, and what each launch showed. Nothing is decided here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from statistics import fmean
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec, finding
from workerlab.analysis import pauses
from workerlab.analysis.diagnosis.loop import (
    BlockedLoop,
    BlockingLine,
    blocking_lines,
    worth_a_look,
)
from workerlab.analysis.facts import Facts, TrialData, facts_of
from workerlab.analysis.load_tool import Ceiling, ceilings
from workerlab.analysis.needs import Crowded, crowded, needs_of, with_crowd
from workerlab.analysis.target import Requests, judge, requests_of, value_of
from workerlab.experiments.advise.candidates import Limits
from workerlab.experiments.reading import as_argument, read_before, report_of, trial_data
from workerlab.model import Cell, CellResult, Finding, Needs, Plan, Route, Server, Summary
from workerlab.run_store import Run
from workerlab.server.worker_classes import class_named
from workerlab.slo import Term, parse

DISTURBED, STOOD_STILL = "advise.void.disturbed", "advise.void.stood_still"
LATE = "advise.void.late"
NOISE = frozenset({DISTURBED, STOOD_STILL})  # of the machine: the next may be as bad
TOOL = "fast"  # the one that times every request, at arrivals of a schedule


class Asked(Struct, frozen=True):
    """What the user asked for; the Plan's details."""

    slo: str
    rate_rps: float
    budget_s: float
    limits: Limits
    left_out: Mapping[str, str] = {}  # variants that cannot run here, and why
    unfit: tuple[str, ...] = ()  # variants of which no settings keep to the limits
    removed: tuple[str, ...] = ()  # worker classes that later versions of Gunicorn do not have
    config_text: str = ""  # of the app's own Gunicorn file
    config_path: str = ""
    config_sets: tuple[str, ...] = ()  # names in it
    python: str = ""  # that the user named; the first of them
    start: str = "gunicorn"  # what starts the Gunicorn that was measured, from a shell
    write: str = ""  # where the file found shall be written, too

    @classmethod
    def of(cls, plan: Plan) -> "Asked":
        return codec.convert(plan.details, cls)


class Launch(Struct, dict=True, frozen=True, eq=False):
    """A candidate at a rate, on a fresh server. `void`: why it says nothing of the candidate.

    Where others kept it from a core, it is void only if it broke the target: what holds beside them
    holds without them."""

    server: Server
    rps: float
    schedule: int
    cell: CellResult
    facts: Facts | None
    void: finding.Finding | None

    @property
    def key(self) -> str:
        return self.cell.trial.key

    @cached_property
    def times_s(self) -> tuple[float, ...]:
        """Of its successes, ascending."""
        timings = self.facts.measurement.timings if self.facts else ()
        return tuple(sorted(t.end_s for t in timings if t.cause is None and t.end_s is not None))

    @cached_property
    def failed(self) -> int:
        """What was due and was no success."""
        return self.due - len(self.times_s)

    @cached_property
    def due(self) -> int:
        said = self.facts.measurement if self.facts else None
        return len(said.timings) + (said.unsent or 0) if said else 0

    @property
    def requests(self) -> Requests:
        return pooled([self])

    @property
    def served_rps(self) -> float | None:
        """What came out of what was due, of the rate that was asked for: chance makes the schedule
        of a short load some percent more or less."""
        rps, due_rps = self.cell.throughput_rps, self.cell.due_rps
        return rps * self.rps / due_rps if rps is not None and due_rps else rps

    @property
    def response(self) -> Summary:
        return self.cell.response


def pooled(launches: Sequence[Launch]) -> Requests:
    """All their requests, as if of one."""
    times_s = [one for launch in launches for one in launch.times_s]
    rates = [rps for launch in launches if (rps := launch.served_rps) is not None]
    failed = sum(launch.failed for launch in launches)
    return requests_of(times_s, failed, fmean(rates) if rates else None)


def holds(launch: Launch, terms: Sequence[Term]) -> bool:
    """By its values; of errors, unless they are shown to be too many."""
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
    asked: Asked
    plan: Plan
    run: str  # what a command takes for it
    needs: Mapping[str, Needs]  # by variant: worker class, and what serves it
    left_out: Mapping[str, Finding]  # variants, and why
    blocked: tuple[str, ...]  # variants whose event loop is blocked
    blocking: Mapping[
        str, tuple[BlockingLine, ...]
    ]  # which lines did, by variant that was looked at
    launches: tuple[Launch, ...]
    alarmed: tuple[str, ...] = ()  # variants whose event loop something may hold up
    preloaded: Needs | None = None  # of one class, its app loaded before the workers are forked
    ceiling: Ceiling | None = None  # the highest of the load tool on this machine

    @cached_property
    def valid(self) -> tuple[Launch, ...]:
        return tuple(one for one in self.launches if one.void is None)

    @property
    def disturbed(self) -> int:
        """Launches that say nothing because other programs took the cores, or the machine stood
        still."""
        voids = (one.void for one in self.launches)
        return sum(why is not None and why.code in NOISE for why in voids)

    def at(self, server: Server, rps: float) -> tuple[Launch, ...]:
        """Its launches at that rate that say something."""
        return tuple(one for one in self.valid if one.server == server and one.rps == rps)

    def of(self, server: Server) -> tuple[Launch, ...]:
        return tuple(one for one in self.valid if one.server == server)


def study_of(run: Run) -> Study:
    known = read_before(run)
    trials = trial_data(run, known)
    cells = {cell.trial.key: cell for cell in report_of(run, known=known).cells}
    facts = {one.trial.key: facts_of(one) for one in trials if one.record is not None}
    needs, left_out = _needs(run, trials, facts)
    asked = Asked.of(run.plan)
    terms = parse(asked.slo)
    launches = tuple(
        _launch(cells[one.trial.key], facts[one.trial.key], terms)
        for one in trials
        if one.trial.key in cells
        and one.cell.rate is not None
        and not (one.record and one.record.interrupted)
    )
    unavailable = {
        name: Finding("advise.left_out.unavailable", {"why": why})
        for name, why in asked.left_out.items()
    }
    removed = {
        name: Finding("advise.left_out.removed", {"version": class_named(name).removed_in})
        for name in asked.removed
    }
    looked_at = {
        one.cell.server.variant: blocking_lines(seen)
        for one in trials
        if one.cell.inside == "stacks" and isinstance(seen := facts.get(one.trial.key), Facts)
    }
    ours = [one for one in ceilings(run.environment) if one.tool == TOOL]
    return Study(
        *(asked, run.plan, as_argument(run), needs, {**unavailable, **removed, **left_out}),
        *(tuple(_blocked(cells.values())), looked_at, launches),
        alarmed=tuple(_alarmed(facts.values())),
        preloaded=_preloaded(trials, facts),
        ceiling=max(ours, key=lambda one: one.rps, default=None),
    )


def _blocked(cells: Iterable[CellResult]) -> Iterator[str]:
    for cell in cells:
        server = cell.trial.cell.server
        asked_for = cell.trial.cell.inside == "needs" and class_named(server.worker_class).loop
        if asked_for and any(isinstance(one, BlockedLoop) for one in cell.findings):
            yield server.variant


def _alarmed(facts: Iterable[Facts | finding.Finding]) -> Iterator[str]:
    for one in facts:
        if isinstance(one, Facts) and one.cell.inside == "needs" and worth_a_look(one):
            yield one.cell.server.variant


def _needs(
    run: Run, trials: Sequence[TrialData], facts: Mapping[str, Any]
) -> tuple[dict[str, Needs], dict[str, Finding]]:
    """By variant: what its requests need, or why that is not known."""
    needs: dict[str, Needs] = {}
    left_out: dict[str, Finding] = {}
    routes: dict[str, dict[str, Needs]] = {}
    of_many: dict[str, Crowded | None] = {}
    for one in trials:
        name, record, route = one.cell.server.variant, one.record, alone(one.cell, run.plan)
        if record is not None and many(one.cell) and isinstance(facts[record.key], Facts):
            of_many[name] = crowded(facts[record.key])
        if one.cell.inside != "needs" or one.cell.server.preload or record is None:
            continue
        if record.fault is not None:
            if not record.interrupted and route is None:
                why = {"why": record.fault.reason, "detail": record.fault.detail or None}
                left_out[name] = Finding("advise.left_out.fault", why, (record.key,))
            continue
        seen = facts[record.key]
        found = needs_of(seen) if isinstance(seen, Facts) else seen
        if isinstance(found, Needs) and route is not None:
            routes.setdefault(name, {})[route.label] = found
        elif isinstance(found, Needs):
            needs[name] = found
            left_out.pop(name, None)
        elif route is None:
            left_out[name] = Finding("advise.left_out.unknown", {"why": found}, (record.key,))
    known = {
        name: with_crowd(one_by_one(one, routes.get(name, {})), of_many.get(name))
        for name, one in needs.items()
    }
    return known, left_out


def alone(cell: Cell, plan: Plan) -> Route | None:
    """The one kind of request, of several that the app gets, that this cell is about."""
    mix = cell.server.app.mix
    return mix[0] if len(mix) == 1 < len(plan.cells[0].server.app.mix) else None


def many(cell: Cell) -> bool:
    """Whether it shows what a request computes while many come."""
    return cell.rate is None and not cell.inside


def one_by_one(needs: Needs, routes: Mapping[str, Needs]) -> Needs:
    """Each request as those of its route alone were, where its class has no clock for it. Where not
    all routes were measured alone, all are taken for the mean, and a note says so."""
    asked = {one.route for one in needs.requests if one.route}
    if needs.each or len(asked) < 2:
        return needs
    if not asked <= routes.keys():
        return replace(needs, notes=(*needs.notes, Finding("needs.routes_alike")))
    like = {route: cycle(routes[route].requests) for route in asked}
    requests = tuple(
        replace(next(like[one.route]), route=one.route) if one.route else one
        for one in needs.requests
    )
    return replace(needs, requests=requests)


def _preloaded(trials: Sequence[TrialData], facts: Mapping[str, Any]) -> Needs | None:
    for one in trials:
        seen = facts.get(one.trial.key)
        if one.cell.inside == "needs" and one.cell.server.preload and isinstance(seen, Facts):
            found = needs_of(seen)
            return found if isinstance(found, Needs) else None
    return None


def _launch(cell: CellResult, facts: Any, terms: Sequence[Term]) -> Launch:
    asked = cell.trial.cell
    assert asked.rate is not None
    assert asked.rate.rps is not None
    place = (asked.server, asked.rate.rps, asked.schedule or 0, cell)
    if cell.verdict == "invalid" or not isinstance(facts, Facts):
        return Launch(*place, None, cell.reason)
    launch = Launch(*place, facts, None)
    if holds(launch, terms):
        return launch
    return replace(launch, void=_noise(cell, facts) or _late(launch, terms))


def _noise(cell: CellResult, facts: Facts) -> Finding | None:
    """What the machine did to a launch."""
    if cell.core_wait is not None and cell.core_wait.doubtful:
        return Finding(DISTURBED, {"share": cell.core_wait.taken})
    still = pauses.noticeable(facts)
    return Finding(STOOD_STILL, still.values) if still is not None else None


def _late(launch: Launch, terms: Sequence[Term]) -> Finding | None:
    """Where all that it broke are times, by no more than what the load tool itself was late."""
    late_s, broken = launch.cell.lag.p95, [one for one in terms if not holds(launch, [one])]
    if not late_s or not broken:
        return None
    for term in broken:
        value = value_of(term.metric, launch.requests) if term.kind == "time" else None
        if value is None or not term.holds(value - late_s):
            return None
    return Finding(LATE, {"late_s": late_s, "terms": tuple(map(str, broken))})
