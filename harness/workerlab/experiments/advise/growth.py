"""Extends the plan of an `advise` run with the next cells, from its files and the budget left."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from workerlab import codec, run_store, slo
from workerlab.analysis.target import QUANTILES
from workerlab.durations import ASSUMED_OVERHEAD_S
from workerlab.experiments.advise.candidates import ForecastInputs, candidates, forecast, mean_need
from workerlab.experiments.advise.search import (
    CLEAR_SHARES,
    SHORT_SHARE,
    NextLaunch,
    Search,
    search_of,
)
from workerlab.experiments.advise.standing import MIN_LAUNCHES
from workerlab.experiments.advise.study import (
    TOOL,
    AdviseRequest,
    NeedsUnknown,
    Study,
    lone_route,
    measures_cpu_under_load,
    study_of,
)
from workerlab.experiments.budget import Budget, used_s
from workerlab.experiments.scheduler import TrialSource
from workerlab.experiments.trial import load_s
from workerlab.load.programs import MAX_ROW_ARRIVALS
from workerlab.model.plan import Cell, Plan, Rate, Trial
from workerlab.model.result import Needs
from workerlab.plan import trials
from workerlab.run_store import Run
from workerlab.server import limits as machine
from workerlab.server.worker_classes import class_named, configured_slots
from workerlab.terminal.console import tell
from workerlab.terminal.progress import Progress

MIN_CONNECTIONS = 64  # of an open load; up to twice as many if the server has more slots
MIN_LAUNCH_S = 10.0  # the load of a launch
MAX_LAUNCH_S = 60.0
REQUESTS_BEYOND_QUANTILE = 20  # in a launch, beyond the target's quantile
LAUNCHES_PER_BUDGET = 30  # of MIN_LAUNCH_S; if the budget is too small, they are shorter
MIN_SHORT_LAUNCH_S = 5.0  # the lower limit, even with a small budget
REPETITION, FIRST_ROUTE = 2, 10  # schedule numbers of repeated needs loads, and of lone routes
MIN_PRIVATE_BYTES = 50 << 20  # of a worker: with at least this much, preload_app is measured
BUDGET_MULTIPLE = 3  # loads that only improve the forecast must fit the budget this many times
CPU_UNDER_LOAD_S = 4.0  # duration of the load with many requests at once
MIN_WAIT_RATIO = 5  # waiting over CPU of a request, for such a load
MAX_CONNECTIONS = 500  # of such a load
RESERVED_S = 3.0  # of the budget, for startup and the final output


def repeated_needs_cells(study: Study) -> Iterator[Cell]:
    """Repeat the needs load once for each class whose needs are still unknown, since other programs
    or chance may have disturbed it."""
    for cell in study.plan.cells:
        exclusion = study.left_out.get(cell.server.variant)
        repetition = replace(cell, schedule=REPETITION)
        is_unknown = isinstance(exclusion, NeedsUnknown) and not cell.server.preload
        if is_unknown and repetition not in study.plan.cells:
            yield repetition


def preload_cells(study: Study) -> Iterator[Cell]:
    """Measure memory with preload_app once, for the first class whose workers have much private
    memory. Exclude gevent and eventlet, where an app loaded before the monkey patching would block
    the loop, and servers other than Gunicorn. Do nothing if the app's own file sets preload_app."""
    is_set = "preload_app" in study.request.config_sets
    if is_set or any(cell.server.preload for cell in study.plan.cells):
        return
    for cell in study.plan.cells:
        needs = study.needs.get(cell.server.variant)
        row = class_named(cell.server.worker_class)
        private_bytes = needs.memory.private_bytes if needs and needs.memory else 0
        can_preload = row.slots != "worker_connections" and not row.alone
        if can_preload and private_bytes >= MIN_PRIVATE_BYTES:
            yield replace(cell, server=replace(cell.server, preload=True))
            return


def route_cells(study: Study) -> Iterator[Cell]:
    """Measure each route of a mix alone, once, for classes without a CPU clock per request."""
    for cell in study.plan.cells:
        needs, mix = study.needs.get(cell.server.variant), cell.server.app.mix
        if needs is None or needs.cpu_by_request or len(mix) < 2:
            continue
        if cell.server.preload or cell.schedule:
            continue
        for number, route in enumerate(mix, FIRST_ROUTE):
            server = replace(cell.server, app=replace(cell.server.app, mix=(route,)))
            route_cell = replace(cell, server=server, schedule=number)
            if cell.inside == "needs" and route_cell not in study.plan.cells:
                yield route_cell


def cpu_under_load_cells(study: Study) -> Iterator[Cell]:
    """Measure the CPU per request with many requests at once, once for each class with
    worker_connections or unlimited slots."""
    limits, machine_cores = study.request.limits, machine.cores()
    measured = {cell.server.variant for cell in study.plan.cells if measures_cpu_under_load(cell)}
    for cell in study.plan.cells:
        variant = cell.server.variant
        needs, slots = study.needs.get(variant), class_named(cell.server.worker_class).slots
        if needs is None or slots in ("one", "threads") or variant in measured:
            continue
        cores = min(limits.cores, machine_cores)
        connections = filling_connections(needs, cores, limits.max_in_flight)
        if connections is not None:
            measured.add(variant)
            yield replace(cell, inside="", concurrency=connections, duration_s=CPU_UNDER_LOAD_S)


def filling_connections(needs: Needs, cores: float, max_in_flight: int | None = None) -> int | None:
    """The number of connections that would saturate the cores at the CPU per request of a light
    load. With more, a closed loop takes less CPU per request than random arrivals ever do. None if
    requests use no CPU; if they wait for less than MIN_WAIT_RATIO times their CPU, so the app's own
    computing saturates the cores; or if they block the event loop for longer than they compute,
    which limits the rate before the cores are saturated."""
    mean = mean_need(needs)
    cpu_s = mean.cpu_s + mean.nogil_s
    if mean.wait_s < MIN_WAIT_RATIO * cpu_s or not cpu_s or mean.blocked_s > cpu_s:
        return None
    limit = min(MAX_CONNECTIONS, max_in_flight or MAX_CONNECTIONS)
    return min(limit, round(cores * mean.wait_s / cpu_s))


def stacks_cells(study: Study) -> Iterator[Cell]:
    """Repeat the needs load to find the lines that block the event loop, for each app under one
    class with an alarm, preferably a blocked one. The lines are the same under other classes."""
    alarmed, cells = {*study.blocked_variants, *study.alarmed_variants}, study.plan.cells
    apps = {
        cell.server.app: replace(cell, inside="stacks")
        for cell in sorted(cells, key=lambda cell: cell.server.variant in study.blocked_variants)
        if cell.inside == "needs" and cell.server.variant in alarmed and not cell.server.preload
        if lone_route(cell, study.plan) is None
    }
    yield from (cell for cell in apps.values() if cell not in cells)


def launch_s(rps: float, target: str, budget_s: float, *, share: float = 1.0) -> float:
    """The duration of a launch's load: long enough for REQUESTS_BEYOND_QUANTILE by the strictest
    quantile of the target, between MIN_LAUNCH_S (less with a small budget) and MAX_LAUNCH_S. The
    result is `share` of that, but not below the smaller of MIN_SHORT_LAUNCH_S and SHORT_SHARE of
    it, and not beyond the requests that the load tool can record one by one."""
    tails = [1 - QUANTILES[term.metric] for term in slo.parse(target) if term.metric in QUANTILES]
    requests = REQUESTS_BEYOND_QUANTILE / min(tails, default=0.05)
    min_s = min(MIN_LAUNCH_S, max(MIN_SHORT_LAUNCH_S, budget_s / LAUNCHES_PER_BUDGET))
    full_s = min(max(min_s, round(requests / rps)), MAX_LAUNCH_S)
    duration_s = max(share * full_s, min(MIN_SHORT_LAUNCH_S, SHORT_SHARE * full_s))
    return float(min(duration_s, max(1, math.floor(MAX_ROW_ARRIVALS / rps))))


class PlanGrowth:
    """Plans the next cells of a run from its files, as long as the budget lasts."""

    def __init__(self, budget_s: float, *, resumed: bool, began_s: float | None = None) -> None:
        self._budget_s = budget_s
        self._budget = Budget(budget_s, resumed=resumed, began_s=began_s)
        self._idle = resumed  # no launch since the run was resumed
        self._disturbed: int | None = None if resumed else 0  # launches before the run was resumed
        self._overheads_s: Mapping[str, float] = {}
        self._planning_s = 0.0
        self._has_displayed = False  # the cells planned at the start

    def display(self, source: TrialSource, todo: Sequence[Trial]) -> Progress:
        is_first, self._has_displayed = not self._has_displayed, True
        display = self._budget.first_display if is_first else self._budget.display
        return display(source, todo)

    def grow(self, directory: Path, plan: Plan) -> Plan | None:
        """The plan with the next cells; None if there are none, or no budget for them. `plan`: the
        stored plan, in which --resume has updated the unavailable variants."""
        began_s, run = time.monotonic(), run_store.load(directory)
        study = study_of(run)
        self._overheads_s = overheads_s(run)
        try:
            return self._next_plan(study, plan)
        finally:
            if "expected" in plan.details:  # the forecast takes longer, but is made only once
                self._planning_s = max(self._planning_s, time.monotonic() - began_s)

    def _next_plan(self, study: Study, plan: Plan) -> Plan | None:
        if self._disturbed is None:
            self._disturbed = study.disturbed
        if "expected" not in plan.details and (needs_cells := self._more_needs(study)):
            return replace(plan, cells=(*plan.cells, *needs_cells))
        if not study.needs:
            return None
        new_plan = plan
        if list(plan.details.get("foreseen", ())) != sorted(study.needs):  # once, or after --resume
            new_plan = with_forecast(plan, study)
            stacks = tuple(stacks_cells(study))
            if stacks and self._allows(study, *stacks, *self._shortest_launches(study)):
                return replace(new_plan, cells=(*new_plan.cells, *stacks))
        search = search_of(study, new_plan)
        next_launch = search.next(self._launches_left(study, search), self._disturbed)
        if next_launch is not None:
            cell = launch_cell(self._shortened(next_launch, search), study.request)
            if self._allows(study, cell):
                self._idle = False
                return replace(new_plan, cells=(*new_plan.cells, cell))
            if self._idle:
                tell(f"the budget of {self._budget_s:g} s leaves no time for another launch:"
                     " raise it with --budget")  # fmt: skip
        return None if new_plan is plan else new_plan

    def _more_needs(self, study: Study) -> tuple[Cell, ...]:
        """Further needs loads, as far as the budget allows. Those that only improve the forecast
        must leave enough of it to show that a candidate meets the target."""
        needs_cells, launches = tuple(repeated_needs_cells(study)), self._shortest_launches(study)
        for cells_of, multiple in (
            (preload_cells, 1),
            (route_cells, BUDGET_MULTIPLE),
            (cpu_under_load_cells, BUDGET_MULTIPLE),
        ):
            cells = tuple(cells_of(study))
            if cells and self._allows(study, *needs_cells, *multiple * cells, *launches):
                needs_cells += cells
        return needs_cells if needs_cells and self._allows(study, *needs_cells) else ()

    def _shortest_launches(self, study: Study) -> tuple[Cell, ...]:
        """The shortest launches that can show that a candidate of the first class with known needs
        meets the target; () if there is no such class."""
        request = study.request
        duration_s = launch_s(
            request.rate_rps, request.slo, request.budget_s, share=min(CLEAR_SHARES)
        )
        measured = [cell for cell in study.plan.cells if cell.server.variant in study.needs]
        return tuple(MIN_LAUNCHES * [replace(cell, duration_s=duration_s) for cell in measured[:1]])

    def _shortened(self, next_launch: NextLaunch, search: Search) -> NextLaunch:
        """The launch; at the target's rate, shortened until all launches that the bound there still
        requires fit the budget."""
        study, share = search.study, next_launch.share
        missing = MIN_LAUNCHES - len(study.launches_at(next_launch.server, search.target_rps))
        if next_launch.rps != search.target_rps or missing <= 0:
            return next_launch
        for shorter in sorted((*CLEAR_SHARES, share), reverse=True):
            candidate = replace(next_launch, share=min(share, shorter))
            if self._allows(study, *missing * (launch_cell(candidate, study.request),)):
                return candidate
        return next_launch

    def _launches_left(self, study: Study, search: Search) -> float:
        """The number of launches that the budget allows: at the target's rate, where they take
        longest, or, if the leader meets the target, at the leader's next rates."""
        request, leader = study.request, search.leader()
        rps, share, variants = request.rate_rps, 1.0, list(study.needs)
        if leader and search.meets(leader):
            rps, variants = search.min_next_rps(leader), [leader.variant]
        elif leader:
            share = search.target_share(leader)
        overhead_s = max(self._overhead_s(study, name) for name in variants)
        return (self._budget.left_s() - RESERVED_S) // (
            launch_s(rps, request.slo, request.budget_s, share=share) + overhead_s
        )

    def _allows(self, study: Study, *cells: Cell) -> bool:
        """Whether the remaining budget is enough for the loads, starts and stops of these cells."""
        total_s = sum(
            (cell.duration_s or 0.0) + self._overhead_s(study, cell.server.variant)
            for cell in cells
        )
        return total_s <= self._budget.left_s() - RESERVED_S

    def _overhead_s(self, study: Study, variant: str) -> float:
        """The seconds that a trial of this class takes in addition to its load: the longest so far,
        since some take half a minute to stop, plus the longest planning."""
        needs = study.needs.get(variant)
        unknown_s = ASSUMED_OVERHEAD_S + ((needs.start_s or 0.0) if needs else 1.0)
        return self._overheads_s.get(variant, unknown_s) + self._planning_s


def overheads_s(run: Run) -> dict[str, float]:
    """The longest time that a trial of each variant took in addition to its load, in seconds."""
    longest_s: dict[str, float] = {}
    for trial in trials(run.plan):
        name, record = trial.cell.server.variant, run.records.get(trial.key)
        if record is not None and record.fault is None:
            longest_s[name] = max(longest_s.get(name, 0.0), used_s(record) - load_s(record))
    return longest_s


def with_forecast(plan: Plan, study: Study) -> Plan:
    """The plan with the forecast of every candidate in its details."""
    request = study.request
    kinds = {cell.server.variant: cell.server for cell in plan.cells if not lone_route(cell, plan)}
    servers = candidates((kinds[name] for name in study.needs), request.limits)
    tell(f"simulating {len(servers)} candidates")
    inputs = ForecastInputs(
        terms=slo.parse(request.slo),
        rate_rps=request.rate_rps,
        arrivals=plan.arrivals,
        cores=request.limits.cores,
        max_in_flight=request.limits.max_in_flight,
        # At its ceiling, the load tool uses one core
        tool_s=1 / study.ceiling.rps if study.ceiling else 0.0,
        memory_bytes=request.limits.memory_bytes,
    )
    details = {
        "expected": codec.plain(forecast(servers, study.needs, inputs)),
        "servers": codec.plain(servers),
        "foreseen": sorted(study.needs),
    }
    return replace(plan, details={**plan.details, **details})


def launch_cell(next_launch: NextLaunch, request: AdviseRequest) -> Cell:
    server, rps = next_launch.server, next_launch.rps
    slots = configured_slots(server) or MIN_CONNECTIONS
    connections = max(MIN_CONNECTIONS, min(slots, 2 * MIN_CONNECTIONS))
    return Cell(
        server,
        TOOL,
        connections,
        rate=Rate(rps=rps),
        schedule=next_launch.schedule,
        duration_s=launch_s(rps, request.slo, request.budget_s, share=next_launch.share),
    )
