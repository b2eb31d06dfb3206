"""Cells that a run of `advise` adds before the forecast."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.runs import recorded
from workerlab import codec, run_store
from workerlab.experiments.advise import growth
from workerlab.experiments.advise.candidates import Limits, kind_of
from workerlab.experiments.advise.command import needs_cell
from workerlab.experiments.advise.growth import (
    MAX_CONNECTIONS,
    MIN_PRIVATE_BYTES,
    PlanGrowth,
    cpu_under_load_cells,
    filling_connections,
    preload_cells,
    repeated_needs_cells,
    route_cells,
    stacks_cells,
)
from workerlab.experiments.advise.study import (
    ROUTES_ALIKE,
    AdviseRequest,
    Exclusion,
    NeedsUnknown,
    Study,
    lone_route,
    measures_cpu_under_load,
    with_lone_routes,
)
from workerlab.model.plan import App, Cell, Plan, Route, Trial
from workerlab.model.result import Memory, Needs, RequestNeed


def study(
    *classes: str, private_bytes: int = 2 * MIN_PRIVATE_BYTES, sets: tuple[str, ...] = ()
) -> Study:
    """A study with measured needs."""
    request = AdviseRequest("p95<1s", 10.0, 300.0, Limits(cores=2), config_sets=sets)
    cells = tuple(needs_cell(kind_of(name, App())) for name in classes)
    plan: Any = Plan("advise", cells, 1, 5, 1, "", None, {}, ())
    memory = Memory(10 << 20, private_bytes, 2)
    needs = Needs("", (RequestNeed(0.05, 0.001),), 0.0, 0.0, memory=memory)
    return Study(request, plan, "", dict.fromkeys(classes, needs), {}, (), {}, ())


def grown(measured: Study, *cells: Cell) -> Study:
    plan = replace(measured.plan, cells=(*measured.plan.cells, *cells))
    return replace(measured, plan=plan)


def test_unknown_needs_are_measured_once_more() -> None:
    unmeasured = replace(
        study("sync"), needs={}, left_out={"sync": NeedsUnknown("too few requests")}
    )
    (cell,) = repeated_needs_cells(unmeasured)
    assert cell.server.worker_class == "sync"
    assert not list(repeated_needs_cells(grown(unmeasured, cell)))
    failed = replace(unmeasured, left_out={"sync": Exclusion("it does not start")})
    assert not list(repeated_needs_cells(failed))


def test_preloading_is_measured_once() -> None:
    measured = study("gevent", "sync", "gthread")
    (cell,) = preload_cells(measured)
    assert (cell.server.worker_class, cell.server.preload) == ("sync", True)
    with_preload = replace(grown(measured, cell), alarmed_variants=("sync",))
    assert not list(preload_cells(with_preload))
    assert [cell.server.preload for cell in stacks_cells(with_preload)] == [False]


@pytest.mark.parametrize(
    "measured",
    [
        pytest.param(study("sync", private_bytes=MIN_PRIVATE_BYTES - 1), id="saves little"),
        pytest.param(study("gevent"), id="patched too late"),
        pytest.param(study("sync", sets=("preload_app",)), id="set by the app's own file"),
    ],
)
def test_preloading_is_not_measured_if_it_saves_little_or_is_ruled_out(measured: Study) -> None:
    assert not list(preload_cells(measured))


CHEAP, DEAR = Route("/cheap"), Route("/dear", weight=2.0)


def test_each_route_is_measured_alone_if_cpu_is_not_known_per_request() -> None:
    measured = study("gevent", "sync")
    mixed = App(mix=(CHEAP, DEAR))
    cells = tuple(
        replace(cell, server=replace(cell.server, app=mixed)) for cell in measured.plan.cells
    )
    plan = replace(measured.plan, cells=cells)
    needs = {**measured.needs, "gevent": replace(measured.needs["gevent"], cpu_by_request=False)}
    measured = replace(measured, plan=plan, needs=needs)
    added = tuple(route_cells(measured))
    assert [cell.server.worker_class for cell in added] == ["gevent", "gevent"]
    assert [lone_route(cell, plan) for cell in added] == [CHEAP, DEAR]
    assert len({Trial(cell, 1).key for cell in (*cells, *added)}) == len(cells) + len(added)
    assert [lone_route(cell, plan) for cell in plan.cells] == [None, None]
    assert not tuple(route_cells(grown(measured, *added)))


def test_a_request_of_a_mix_has_the_cpu_of_its_route() -> None:
    labels = [CHEAP.label, DEAR.label, DEAR.label]
    mixed = tuple(RequestNeed(0.01, 0.007, route=label) for label in labels)
    together = Needs("", mixed, 0.0, 0.0, cpu_by_request=False)
    routes = {
        CHEAP.label: Needs("", (RequestNeed(0.0, 0.001),), 0.0, 0.0),
        DEAR.label: Needs("", (RequestNeed(0.0, 0.009), RequestNeed(0.0, 0.011)), 0.0, 0.0),
    }
    needs = with_lone_routes(together, routes)
    assert [request.cpu_s for request in needs.requests] == [0.001, 0.009, 0.011]
    assert [request.route for request in needs.requests] == labels
    (note,) = with_lone_routes(together, {CHEAP.label: routes[CHEAP.label]}).notes
    assert note == ROUTES_ALIKE
    assert with_lone_routes(replace(together, cpu_by_request=True), routes).requests == mixed


def test_many_connections_are_sent_once_to_classes_that_serve_many() -> None:
    measured = study("gevent", "sync", "gthread", "tornado")
    (cell,) = cpu_under_load_cells(measured)
    assert (cell.server.worker_class, cell.inside, cell.rate) == ("gevent", "", None)
    assert measures_cpu_under_load(cell)
    assert not any(map(measures_cpu_under_load, measured.plan.cells))
    assert not list(cpu_under_load_cells(grown(measured, cell)))


def test_connections_that_keep_the_cores_busy() -> None:
    def needs(wait_s: float, cpu_s: float, blocked_s: float = 0.0) -> Needs:
        return Needs("", (RequestNeed(wait_s, cpu_s, blocked_s),), 0.0, 0.0)

    assert filling_connections(needs(0.05, 0.001), 2) == 100
    assert filling_connections(needs(0.05, 0.001), 2, max_in_flight=4) == 4
    assert filling_connections(needs(5.0, 0.001), 2) == MAX_CONNECTIONS
    assert filling_connections(needs(0.02, 0.02), 2) is None  # the app alone fills the cores
    assert filling_connections(needs(0.05, 0.0), 2) is None
    assert filling_connections(needs(0.05, 0.001, blocked_s=0.005), 2) is None


@pytest.mark.parametrize(
    ("left_s", "is_many", "duration_s"), [(250.0, True, 4.0), (60.0, False, 10.0)]
)
def test_the_launches_that_show_a_target_have_priority(
    left_s: float, is_many: bool, duration_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a load that only improves the forecast. They are as short as the budget requires."""
    measured = study("gevent")
    measured = replace(measured, request=replace(measured.request, slo="p95<150ms"))
    plan = replace(measured.plan, details=codec.plain(measured.request))
    run = SimpleNamespace(plan=plan, records={})
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    monkeypatch.setattr(growth, "study_of", lambda _: measured)
    monkeypatch.setattr(growth.run_store, "load", lambda _: run)
    with_launch = PlanGrowth(left_s, resumed=False).grow(Path(), plan)
    (cell,) = with_launch.cells[len(plan.cells) :]
    assert (measures_cpu_under_load(cell), cell.duration_s) == (is_many, duration_s)


def test_a_resumed_run_grows_by_what_is_unavailable_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored plan has what was unavailable when the run began."""
    measured = study("gevent")
    stored = replace(measured.plan, details=codec.plain(measured.request))
    run = SimpleNamespace(plan=stored, records={})
    monkeypatch.setattr(growth, "study_of", lambda _: measured)
    monkeypatch.setattr(growth.run_store, "load", lambda _: run)
    resumed = replace(stored, unavailable={"gevent": "gevent is not installed"})
    further = PlanGrowth(250.0, resumed=True).grow(Path(), resumed)
    assert further.cells[len(stored.cells) :]
    assert further.unavailable == resumed.unavailable


def test_the_time_of_the_forecast_costs_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forecast is made once, so no launch has to leave time for it again."""
    directory, clock_s = shutil.copytree(recorded("advise"), tmp_path / "run"), 0.0
    plan = run_store.load(directory).plan
    expected = plan.details["expected"]

    def slow_forecast(*_: object) -> object:
        nonlocal clock_s
        clock_s += 60.0
        return expected

    monkeypatch.setattr("time.monotonic", lambda: clock_s)
    monkeypatch.setattr(growth, "forecast", slow_forecast)
    plans = PlanGrowth(100.0, resumed=False)
    unforeseen = {name: value for name, value in plan.details.items() if name != "expected"}
    next_plan = replace(plan, details=unforeseen)
    for count in (1, 2):
        run_store.update_plan(directory, next_plan)
        next_plan = plans.grow(directory, next_plan)
        assert len(next_plan.cells) == len(plan.cells) + count
