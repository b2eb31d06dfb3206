"""Cells that a run of `advise` adds to its plan."""

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


def needs_of(*requests: RequestNeed, **changes: Any) -> Needs:
    return Needs("", requests, 0.0, 0.0, **changes)


def measured_study(
    *classes: str, private_bytes: int = 2 * growth.MIN_PRIVATE_BYTES, sets: tuple[str, ...] = ()
) -> Study:
    """A study with known needs."""
    request = AdviseRequest("p95<1s", 10.0, 300.0, Limits(cores=2), config_sets=sets)
    cells = tuple(needs_cell(kind_of(name, App())) for name in classes)
    plan: Any = Plan("advise", cells, 1, 5, 1, "", None, {}, ())
    needs = needs_of(RequestNeed(0.05, 0.001), memory=Memory(10 << 20, private_bytes, 2))
    return Study(request, plan, "", dict.fromkeys(classes, needs), {}, (), {}, ())


def with_cells(study: Study, *cells: Cell) -> Study:
    return replace(study, plan=replace(study.plan, cells=(*study.plan.cells, *cells)))


def test_unknown_needs_are_measured_once_more() -> None:
    left_out = {"sync": NeedsUnknown("too few requests")}
    unmeasured = replace(measured_study("sync"), needs={}, left_out=left_out)
    (cell,) = growth.repeated_needs_cells(unmeasured)
    assert cell.server.worker_class == "sync"
    assert not list(growth.repeated_needs_cells(with_cells(unmeasured, cell)))
    failed = replace(unmeasured, left_out={"sync": Exclusion("it does not start")})
    assert not list(growth.repeated_needs_cells(failed))


def test_preloading_is_measured_once() -> None:
    study = measured_study("gevent", "sync", "gthread")
    (cell,) = growth.preload_cells(study)
    assert (cell.server.worker_class, cell.server.preload) == ("sync", True)
    with_preload = replace(with_cells(study, cell), alarmed_variants=("sync",))
    assert not list(growth.preload_cells(with_preload))
    assert [cell.server.preload for cell in growth.stacks_cells(with_preload)] == [False]


@pytest.mark.parametrize(
    "study",
    [
        measured_study("sync", private_bytes=growth.MIN_PRIVATE_BYTES - 1),
        measured_study("gevent"),
        measured_study("sync", sets=("preload_app",)),
    ],
    ids=["saves little", "patched too late", "set by the app's own file"],
)
def test_preloading_is_not_measured_if_it_saves_little_or_is_ruled_out(study: Study) -> None:
    assert not list(growth.preload_cells(study))


CHEAP, EXPENSIVE = Route("/cheap"), Route("/expensive", weight=2.0)


def test_each_route_is_measured_alone_if_cpu_is_unknown_per_request() -> None:
    study = measured_study("gevent", "sync")
    mixed = App(mix=(CHEAP, EXPENSIVE))
    cells = tuple(
        replace(cell, server=replace(cell.server, app=mixed)) for cell in study.plan.cells
    )
    plan = replace(study.plan, cells=cells)
    needs = {**study.needs, "gevent": replace(study.needs["gevent"], cpu_by_request=False)}
    study = replace(study, plan=plan, needs=needs)
    added = tuple(growth.route_cells(study))
    assert [cell.server.worker_class for cell in added] == ["gevent", "gevent"]
    assert [lone_route(cell, plan) for cell in added] == [CHEAP, EXPENSIVE]
    assert len({Trial(cell, 1).key for cell in (*cells, *added)}) == len(cells) + len(added)
    assert [lone_route(cell, plan) for cell in plan.cells] == [None, None]
    assert not tuple(growth.route_cells(with_cells(study, *added)))


def test_a_request_of_a_mix_has_the_cpu_of_its_route() -> None:
    labels = [CHEAP.label, EXPENSIVE.label, EXPENSIVE.label]
    mixed = tuple(RequestNeed(0.01, 0.007, route=label) for label in labels)
    of_mix = needs_of(*mixed, cpu_by_request=False)
    routes = {
        CHEAP.label: needs_of(RequestNeed(0.0, 0.001)),
        EXPENSIVE.label: needs_of(RequestNeed(0.0, 0.009), RequestNeed(0.0, 0.011)),
    }
    needs = with_lone_routes(of_mix, routes)
    assert [request.cpu_s for request in needs.requests] == [0.001, 0.009, 0.011]
    assert [request.route for request in needs.requests] == labels
    (note,) = with_lone_routes(of_mix, {CHEAP.label: routes[CHEAP.label]}).notes
    assert note == ROUTES_ALIKE
    assert with_lone_routes(replace(of_mix, cpu_by_request=True), routes).requests == mixed


def test_the_cpu_under_load_is_measured_once_for_classes_that_serve_many_requests() -> None:
    study = measured_study("gevent", "sync", "gthread", "tornado")
    (cell,) = growth.cpu_under_load_cells(study)
    assert (cell.server.worker_class, cell.inside, cell.rate) == ("gevent", "", None)
    assert measures_cpu_under_load(cell)
    assert not any(map(measures_cpu_under_load, study.plan.cells))
    assert not list(growth.cpu_under_load_cells(with_cells(study, cell)))


def test_connections_that_saturate_the_cores() -> None:
    light, lighter = needs_of(RequestNeed(0.05, 0.001)), needs_of(RequestNeed(5.0, 0.001))
    assert growth.filling_connections(light, 2) == 100
    assert growth.filling_connections(light, 2, max_in_flight=4) == 4
    assert growth.filling_connections(lighter, 2) == growth.MAX_CONNECTIONS
    for need in (
        RequestNeed(0.02, 0.02),  # the app alone saturates the cores
        RequestNeed(0.05, 0.0),
        RequestNeed(0.05, 0.001, blocked_s=0.005),
    ):
        assert growth.filling_connections(needs_of(need), 2) is None


def stub_run(monkeypatch: pytest.MonkeyPatch, study: Study) -> Plan:
    """Makes any directory the run of this study, and returns its plan."""
    plan = replace(study.plan, details=codec.plain(study.request))
    run = SimpleNamespace(plan=plan, records={})
    monkeypatch.setattr(growth, "study_of", lambda _: study)
    monkeypatch.setattr(growth.run_store, "load", lambda _: run)
    return plan


@pytest.mark.parametrize(
    ("left_s", "is_many", "duration_s"), [(250.0, True, 4.0), (60.0, False, 10.0)]
)
def test_the_launches_that_show_a_target_have_priority(
    left_s: float, is_many: bool, duration_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a load that only improves the forecast. They are as short as the budget requires."""
    study = measured_study("gevent")
    study = replace(study, request=replace(study.request, slo="p95<150ms"))
    plan = stub_run(monkeypatch, study)
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    with_launch = growth.PlanGrowth(left_s, resumed=False).grow(Path(), plan)
    (cell,) = with_launch.cells[len(plan.cells) :]
    assert (measures_cpu_under_load(cell), cell.duration_s) == (is_many, duration_s)


def test_the_plan_of_a_resumed_run_names_what_is_unavailable_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stored plan names what was unavailable when the run began."""
    plan = stub_run(monkeypatch, measured_study("gevent"))
    resumed = replace(plan, unavailable={"gevent": "gevent is not installed"})
    next_plan = growth.PlanGrowth(250.0, resumed=True).grow(Path(), resumed)
    assert next_plan.cells[len(plan.cells) :]
    assert next_plan.unavailable == resumed.unavailable


def test_the_time_of_the_forecast_costs_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forecast is made once, so no launch has to leave time for it again."""
    directory, clock_s = shutil.copytree(recorded("advise"), tmp_path / "run"), 0.0
    plan = run_store.load(directory).plan
    details = dict(plan.details)
    expected = details.pop("expected")

    def slow_forecast(*_: object) -> object:
        nonlocal clock_s
        clock_s += 60.0
        return expected

    monkeypatch.setattr("time.monotonic", lambda: clock_s)
    monkeypatch.setattr(growth, "forecast", slow_forecast)
    plan_growth = growth.PlanGrowth(100.0, resumed=False)
    next_plan = replace(plan, details=details)
    for added_cells in (1, 2):
        run_store.update_plan(directory, next_plan)
        next_plan = plan_growth.grow(directory, next_plan)
        assert len(next_plan.cells) == len(plan.cells) + added_cells
