"""What a run of `advise` is grown by before anything is forecast."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.experiments.advise import growth
from workerlab.experiments.advise.candidates import Limits, kind_of
from workerlab.experiments.advise.command import needs_cell
from workerlab.experiments.advise.growth import (
    MAX_CONNECTIONS,
    MIN_PRIVATE_BYTES,
    PlanGrowth,
    filling_connections,
    many_cells,
    needs_again,
    preload_cells,
    route_cells,
    stacks_cells,
)
from workerlab.experiments.advise.study import (
    ROUTES_ALIKE,
    AdviseRequest,
    Exclusion,
    NeedsUnknown,
    Study,
    is_many_cell,
    lone_route,
    with_lone_routes,
)
from workerlab.model import App, Memory, Needs, Plan, RequestNeed, Route, Trial


def study(
    *classes: str, private_bytes: int = 2 * MIN_PRIVATE_BYTES, sets: tuple[str, ...] = ()
) -> Study:
    """Of needs that are known."""
    request = AdviseRequest("p95<1s", 10.0, 300.0, Limits(cores=2), config_sets=sets)
    cells = tuple(needs_cell(kind_of(name, App())) for name in classes)
    plan: Any = Plan("advise", cells, 1, 5, 1, "", None, {}, ())
    memory = Memory(10 << 20, private_bytes, 2)
    needs = Needs("", (RequestNeed(0.05, 0.001),), 0.0, 0.0, memory=memory)
    return Study(request, plan, "", dict.fromkeys(classes, needs), {}, (), {}, ())


def test_needs_that_a_load_did_not_show_are_measured_once_more() -> None:
    unmeasured = replace(
        study("sync"), needs={}, left_out={"sync": NeedsUnknown("too few requests")}
    )
    (cell,) = needs_again(unmeasured.plan, unmeasured)
    assert cell.server.worker_class == "sync"
    grown = replace(unmeasured.plan, cells=(*unmeasured.plan.cells, cell))
    assert not list(needs_again(grown, unmeasured))
    failed = replace(unmeasured, left_out={"sync": Exclusion("it does not start")})
    assert not list(needs_again(failed.plan, failed))


def test_what_could_be_shared_is_looked_at_once() -> None:
    unmeasured = study("gevent", "sync", "gthread")
    (cell,) = preload_cells(unmeasured.plan, unmeasured)
    assert (cell.server.worker_class, cell.server.preload) == ("sync", True)
    grown = replace(unmeasured.plan, cells=(*unmeasured.plan.cells, cell))
    assert not list(preload_cells(grown, unmeasured))
    alarmed = replace(unmeasured, alarmed=("sync",))
    assert all(not one.server.preload for one in stacks_cells(grown.cells, alarmed))


def test_not_where_there_is_little_or_nobody_may() -> None:
    little = study("sync", private_bytes=MIN_PRIVATE_BYTES - 1)
    assert not list(preload_cells(little.plan, little))
    patched = study("gevent")
    assert not list(preload_cells(patched.plan, patched))
    own = study("sync", sets=("preload_app",))
    assert not list(preload_cells(own.plan, own))


CHEAP, DEAR = Route("/cheap"), Route("/dear", weight=2.0)


def test_each_kind_of_request_is_measured_alone_where_no_clock_tells_them_apart() -> None:
    seen = study("gevent", "sync")
    mixed = App(mix=(CHEAP, DEAR))
    cells = tuple(replace(one, server=replace(one.server, app=mixed)) for one in seen.plan.cells)
    plan = replace(seen.plan, cells=cells)
    needs = {**seen.needs, "gevent": replace(seen.needs["gevent"], each=False)}
    seen = replace(seen, plan=plan, needs=needs)
    found = tuple(route_cells(plan, seen))
    assert [one.server.worker_class for one in found] == ["gevent", "gevent"]
    assert [lone_route(one, plan) for one in found] == [CHEAP, DEAR]
    assert len({Trial(one, 1).key for one in (*cells, *found)}) == len(cells) + len(found)
    assert [lone_route(one, plan) for one in plan.cells] == [None, None]
    assert not tuple(route_cells(replace(plan, cells=(*cells, *found)), seen))


def test_a_request_then_computes_as_those_of_its_route_did() -> None:
    labels = [CHEAP.label, DEAR.label, DEAR.label]
    mixed = tuple(RequestNeed(0.01, 0.007, route=label) for label in labels)
    together = Needs("", mixed, 0.0, 0.0, each=False)
    routes = {
        CHEAP.label: Needs("", (RequestNeed(0.0, 0.001),), 0.0, 0.0),
        DEAR.label: Needs("", (RequestNeed(0.0, 0.009), RequestNeed(0.0, 0.011)), 0.0, 0.0),
    }
    found = with_lone_routes(together, routes)
    assert [one.cpu_s for one in found.requests] == [0.001, 0.009, 0.011]
    assert [one.route for one in found.requests] == labels
    (note,) = with_lone_routes(together, {CHEAP.label: routes[CHEAP.label]}).notes
    assert note == ROUTES_ALIKE
    assert with_lone_routes(replace(together, each=True), routes).requests == mixed


def test_many_at_once_are_sent_once_to_classes_whose_workers_serve_many() -> None:
    seen = study("gevent", "sync", "gthread", "tornado")
    (cell,) = many_cells(seen.plan, seen)
    assert (cell.server.worker_class, cell.inside, cell.rate) == ("gevent", "", None)
    assert is_many_cell(cell)
    assert not any(map(is_many_cell, seen.plan.cells))
    grown = replace(seen.plan, cells=(*seen.plan.cells, cell))
    assert not list(many_cells(grown, seen))


def test_as_many_as_keep_the_cores_busy_where_requests_do_little_but_wait() -> None:
    def needs(wait_s: float, cpu_s: float) -> Needs:
        return Needs("", (RequestNeed(wait_s, cpu_s),), 0.0, 0.0)

    assert filling_connections(needs(0.05, 0.001), 2) == 100
    assert filling_connections(needs(0.05, 0.001), 2, max_in_flight=4) == 4
    assert filling_connections(needs(5.0, 0.001), 2) == MAX_CONNECTIONS
    assert filling_connections(needs(0.02, 0.02), 2) is None  # what it computes is the app's own
    assert filling_connections(needs(0.05, 0.0), 2) is None


def test_no_launch_is_lost_to_the_time_that_the_forecast_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is made once: what is left of the budget need not hold it again before each launch."""
    directory, clock_s = recorded("advise"), 0.0
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
    with_launch = plans.grow(directory, replace(plan, details=unforeseen))
    assert with_launch is not None
    with_another = plans.grow(directory, with_launch)
    assert with_another is not None
    assert len(with_another.cells) == len(with_launch.cells) + 1 == len(plan.cells) + 2
