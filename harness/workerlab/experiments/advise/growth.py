"""Plans what comes next in a run of `advise`, by what is on file, as long as the budget lasts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from workerlab import codec, run_store, slo
from workerlab.analysis.target import QUANTILES
from workerlab.experiments.advise.candidates import candidates
from workerlab.experiments.advise.forecast import Question, forecast, mean_need
from workerlab.experiments.advise.search import Next, Search, search_of
from workerlab.experiments.advise.study import (
    TOOL,
    AdviseRequest,
    NeedsUnknown,
    Study,
    alone,
    many,
    study_of,
)
from workerlab.experiments.execution import Budget, Predict, load_s, used_s
from workerlab.load.programs import MAX_ROW_ARRIVALS
from workerlab.model import Cell, Needs, Plan, Rate, Trial
from workerlab.plan import trials
from workerlab.run_store import Run
from workerlab.server import limits as machine
from workerlab.server.worker_classes import class_named
from workerlab.terminal.console import tell
from workerlab.terminal.progress import Progress

CONNECTIONS_LEAST = 64  # of an open load; more where its rate needs them
# Seconds of a launch: until enough requests lie beyond the quantile that is promised
SHORTEST_S, LONGEST_S, BEYOND_QUANTILE = 10.0, 60.0, 20
FEW_S, LAUNCHES = 5.0, 30  # of a budget that has not so many of the shortest launches
SHORT = 0.5  # times as long: a launch that shows which rates are worth a long one
AGAIN, ROUTE = 2, 10  # which load of its needs: once more, and of the first route alone
MUCH_BYTES = 50 << 20  # of a worker alone: from here on, preload_app is measured
# Times what loads of each route, or of many at once, take is left of the budget, or there are none
BESIDE_COST = 3
# A load of many at once: its seconds; of requests that wait so many times as long as they compute;
# the most connections
MANY_S, WAITS, MAX_CONNECTIONS = 4.0, 5, 500
AROUND_S = 3.0  # of a class none of whose trials has ended: lone requests, stop, planning
END_S = 3.0  # of the budget: before the first trial, and for what is printed in the end
FORECAST_SEED = 0  # of arrivals that no launch has: theirs begin with 1


def needs_again(plan: Plan, study: Study) -> Iterator[Cell]:
    """Of each class whose needs a load has not shown, once more: other programs, or chance, may
    have spoilt it."""
    for cell in plan.cells:
        why = study.left_out.get(cell.server.variant)
        more = replace(cell, schedule=AGAIN)
        unknown = isinstance(why, NeedsUnknown) and not cell.server.preload
        if unknown and more not in plan.cells:
            yield more


def preload_cells(plan: Plan, study: Study) -> Iterator[Cell]:
    """Where workers hold much for themselves: what they take when the app is loaded before they are
    forked. Once, of the first class that has it so; not of one whose loop an app that is loaded
    before its calls are patched would block, nor where the app's own file decides."""
    if "preload_app" in study.request.config_sets or any(
        cell.server.preload for cell in plan.cells
    ):
        return
    for cell in plan.cells:
        needs = study.needs.get(cell.server.variant)
        memory = needs.memory if needs else None
        patches = class_named(cell.server.worker_class).slots == "worker_connections"
        if memory is not None and memory.private_bytes >= MUCH_BYTES and not patches:
            yield replace(cell, server=replace(cell.server, preload=True))
            return


def route_cells(plan: Plan, study: Study) -> Iterator[Cell]:
    """Each kind of request alone, of the classes that have no clock for a single request: what it
    computes. Once."""
    for cell in plan.cells:
        needs, mix = study.needs.get(cell.server.variant), cell.server.app.mix
        if needs is None or needs.each or len(mix) < 2 or cell.server.preload or cell.schedule:
            continue
        for number, route in enumerate(mix, ROUTE):
            server = replace(cell.server, app=replace(cell.server.app, mix=(route,)))
            of_route = replace(cell, server=server, schedule=number)
            if cell.inside == "needs" and of_route not in plan.cells:
                yield of_route


def many_cells(plan: Plan, study: Study) -> Iterator[Cell]:
    """Many requests at once, to classes whose workers serve many. Once."""
    limits, here = study.request.limits, machine.cores()
    measured = {cell.server.variant for cell in plan.cells if many(cell)}
    for cell in plan.cells:
        server = cell.server
        needs, slots = study.needs.get(server.variant), class_named(server.worker_class).slots
        if needs is None or slots in ("one", "threads") or server.variant in measured:
            continue
        connections = filling(needs, min(limits.cores, here), limits.max_in_flight)
        if connections is not None:
            measured.add(server.variant)
            yield replace(cell, inside="", concurrency=connections, duration_s=MANY_S)


def filling(needs: Needs, cores: float, max_in_flight: int | None = None) -> int | None:
    """How many requests at once would keep so many cores busy, at what few at a time compute; None:
    they do more than wait, and what they compute themselves fills the cores. With more the cores
    are full, where a closed loop is cheaper than requests that come at random ever are."""
    mean = mean_need(needs)
    cpu_s = mean.cpu_s + mean.nogil_s
    if mean.wait_s < WAITS * cpu_s or not cpu_s:
        return None
    return min(
        MAX_CONNECTIONS, max_in_flight or MAX_CONNECTIONS, round(cores * mean.wait_s / cpu_s)
    )


def stacks_cells(needs: Sequence[Cell], study: Study) -> Iterator[Cell]:
    """The same load once more, to see which line holds up the event loop: of each app under one of
    the classes that gave an alarm, for its lines are the same under the others."""
    alarmed = {*study.blocked, *study.alarmed}
    apps = {
        cell.server.app: cell
        for cell in sorted(needs, key=lambda cell: cell.server.variant in study.blocked)
        if cell.inside == "needs" and cell.server.variant in alarmed and not cell.server.preload
    }
    for cell in apps.values():
        yield replace(cell, inside="stacks")


def launch_s(rps: float, target: str, budget_s: float, *, short: bool = False) -> float:
    """How long requests arrive in a launch: no more than the load tool times each of, and where
    enough arrive for what is promised, less of a small budget."""
    parts = [1 - QUANTILES[term.metric] for term in slo.parse(target) if term.metric in QUANTILES]
    requests = BEYOND_QUANTILE / min(parts, default=0.05)
    share = SHORT if short else 1.0
    least_s = min(SHORTEST_S, max(FEW_S, budget_s / LAUNCHES))
    lasts_s = share * min(max(least_s, round(requests / rps)), LONGEST_S)
    return float(min(lasts_s, max(1, math.floor(MAX_ROW_ARRIVALS / rps))))


class PlanGrowth:
    """Plans what comes next, by what is on file, as long as the budget lasts."""

    def __init__(self, budget_s: float, *, resumed: bool) -> None:
        self._budget_s = budget_s
        self._budget = Budget(budget_s, resumed=resumed)
        self._idle = resumed  # nothing was launched since it was resumed
        self._disturbed: int | None = None if resumed else 0  # launches, before it was resumed
        self._beside_s: Mapping[str, float] = {}
        self._planning_s = 0.0

    def display(
        self, directory: Path, plan: Plan, todo: Sequence[Trial], predict: Predict
    ) -> Progress:
        first = "expected" not in plan.details
        show = self._budget.at_first if first else self._budget.display
        return show(directory, plan, todo, predict)

    def grow(self, directory: Path, plan: Plan) -> Plan | None:
        began_s, run = time.monotonic(), run_store.load(directory)
        study = study_of(run)
        self._beside_s = beside_s(run)
        try:
            return self._next_plan(plan, study)
        finally:
            self._planning_s = max(self._planning_s, time.monotonic() - began_s)

    def _next_plan(self, plan: Plan, study: Study) -> Plan | None:
        if self._disturbed is None:
            self._disturbed = study.disturbed
        if "expected" not in plan.details and (more := self._more_needs(plan, study)):
            return replace(plan, cells=(*plan.cells, *more))
        if not study.needs:
            return None
        foreseen = plan
        if list(plan.details.get("foreseen", ())) != sorted(study.needs):  # once, or after --resume
            foreseen = with_forecast(plan, study)
            whole = [cell for cell in plan.cells if not alone(cell, plan)]
            looks = tuple(cell for cell in stacks_cells(whole, study) if cell not in plan.cells)
            if looks and self._allows(study, *looks):
                return replace(foreseen, cells=(*foreseen.cells, *looks))
        search = search_of(study, foreseen)
        following = search.next(self._launches_left(study, search), self._disturbed)
        if following is not None:
            cell = launch_cell(following, study.request)
            if self._allows(study, cell):
                self._idle = False
                return replace(foreseen, cells=(*foreseen.cells, cell))
            if self._idle:
                tell(f"the budget of {self._budget_s:g} s leaves no time for another launch:"
                     " allow more with --budget")  # fmt: skip
        return None if foreseen is plan else foreseen

    def _more_needs(self, plan: Plan, study: Study) -> tuple[Cell, ...]:
        """Further loads that tell more of what requests need, as far as the budget allows."""
        more = (*needs_again(plan, study), *preload_cells(plan, study))
        for cells in (tuple(route_cells(plan, study)), tuple(many_cells(plan, study))):
            if cells and self._allows(study, *more, *BESIDE_COST * cells):
                more += cells
        return more if more and self._allows(study, *more) else ()

    def _launches_left(self, study: Study, search: Search) -> float:
        """At the target's rate, where they last longest; of a leader that is known to meet it
        there, at the highest rate that it held."""
        request, leader = study.request, search.leader()
        met = leader is not None and search.meets(leader)
        rps = (search.reach(leader).last if leader and met else None) or request.rate_rps
        short = leader is not None and not met and search.is_clear(leader)
        around_s = max((self._around_s(study, name) for name in study.needs), default=AROUND_S)
        return (self._budget.left_s() - END_S) // (
            launch_s(rps, request.slo, request.budget_s, short=short) + around_s
        )

    def _allows(self, study: Study, *cells: Cell) -> bool:
        """Whether the budget is enough for these cells: their loads, starts and stops."""
        needed_s = sum(
            (cell.duration_s or 0.0) + self._around_s(study, cell.server.variant) for cell in cells
        )
        return needed_s <= self._budget.left_s() - END_S

    def _around_s(self, study: Study, variant: str) -> float:
        """What a trial of this class takes beside its load, by those that were made: some take half
        a minute to stop."""
        needs = study.needs.get(variant)
        unknown_s = AROUND_S + ((needs.start_s or 0.0) if needs else 1.0)
        return self._beside_s.get(variant, unknown_s) + self._planning_s


def beside_s(run: Run) -> dict[str, float]:
    """Of each variant: the longest that one of its trials took beside its load."""
    longest_s: dict[str, float] = {}
    for trial in trials(run.plan):
        record = run.records.get(trial.key)
        if record is not None and record.fault is None:
            name = trial.cell.server.variant
            took_s = used_s(record) - load_s(record)
            longest_s[name] = max(longest_s.get(name, 0.0), took_s)
    return longest_s


def with_forecast(plan: Plan, study: Study) -> Plan:
    """What is expected of every candidate, kept with the plan."""
    request = study.request
    loaded = {cell.server.variant: cell.server for cell in plan.cells if not alone(cell, plan)}
    servers = candidates((loaded[name] for name in study.needs), request.limits)
    tell(f"simulating {len(servers)} candidates")
    question = Question(
        terms=slo.parse(request.slo),
        rate_rps=request.rate_rps,
        arrivals=plan.arrivals,
        seed=FORECAST_SEED,
        cores=request.limits.cores,
        max_in_flight=request.limits.max_in_flight,
        # At its ceiling it has a core for itself
        tool_s=1 / study.ceiling.rps if study.ceiling else 0.0,
        memory_bytes=request.limits.memory_bytes,
    )
    details = {
        "expected": codec.plain(forecast(servers, study.needs, question)),
        "servers": codec.plain(servers),
        "foreseen": sorted(study.needs),
    }
    return replace(plan, details={**plan.details, **details})


def launch_cell(following: Next, request: AdviseRequest) -> Cell:
    server, rps = following.server, following.rps
    slots = class_named(server.worker_class).slots_of(server) or CONNECTIONS_LEAST
    connections = max(CONNECTIONS_LEAST, min(slots, 2 * CONNECTIONS_LEAST))
    return Cell(
        server,
        TOOL,
        connections,
        rate=Rate(rps=rps),
        schedule=following.schedule,
        duration_s=launch_s(rps, request.slo, request.budget_s, short=following.short),
    )
