"""Plans and their trials: requests, order, duration and the size of span maps."""

import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.plan import AXES, CELLS, SERVER, plan, plans
from workerlab import codec
from workerlab.cli import parse
from workerlab.durations import predicted_s
from workerlab.errors import UsageError
from workerlab.experiments.load_trials import launch_for
from workerlab.experiments.planning import plan_of
from workerlab.finding import stored
from workerlab.load import ab
from workerlab.load.fast import FAST
from workerlab.load.registry import TOOLS
from workerlab.model.plan import App, Cell, Plan, Rate, Server
from workerlab.notes import ServerCoresBound
from workerlab.plan import ideal_s, load_for, product, records_for, trials, varies
from workerlab.server import preflight
from workerlab.server.preflight import Interpreter
from workerlab.server.worker_classes import CLASSES, configured_slots

LONE_S = st.floats(1e-4, 600)
A_CELL = plans(CELLS.map(lambda cell: (cell,)))


@pytest.mark.parametrize(
    ("requests", "concurrency", "slots", "lone_s", "ideal"),
    [
        (21, 4, 4, 1.0, 6.0),  # the first request alone, then five rounds
        (41, 8, 4, 1.0, 11.0),  # half of the connections wait
        (41, 8, None, 1.0, 6.0),
        (41, 8, 1000, 0.5, 3.0),
        (1, 1, 1, 0.25, 0.25),
        (2, 1, 4, 1.0, 2.0),
        (10, 4, 4, 1.0, 4.0),  # the last round is not full
    ],
)
def test_the_ideal_duration_depends_on_slots_and_connections(
    requests: int, concurrency: int, slots: int | None, lone_s: float, ideal: float
) -> None:
    assert ideal_s(requests, concurrency, slots, lone_s) == pytest.approx(ideal)


@given(A_CELL, LONE_S)
def test_a_load_has_the_requests_of_its_cell(sweep: Plan, lone_s: float) -> None:
    (cell,) = sweep.cells
    load, app = load_for(sweep, cell, lone_s), cell.server.app
    assert (load.concurrency, load.keepalive) == (cell.concurrency, cell.keepalive)
    assert load.requests == 1 + sweep.rounds * cell.concurrency
    request = (load.method, load.headers, load.body_file, load.expect_status)
    assert request == (app.method, app.headers, app.body_file, app.expect_status)


@pytest.mark.parametrize(
    ("cell_changes", "plan_changes", "requests", "ideal", "together"),
    [
        ({"tool": "fast"}, {"together": True, "rounds": 4}, 32, 8.0, True),
        ({"tool": "fast", "requests": 24}, {"together": True}, 24, 6.0, True),
        ({}, {}, 41, 11.0, False),
    ],
)
def test_a_load_that_starts_together_or_has_its_own_number_of_requests(
    cell_changes: dict[str, Any], plan_changes: dict[str, Any],
    requests: int, ideal: float, *, together: bool,
) -> None:  # fmt: skip
    usual_cell = Cell(SERVER, "ab", 8)
    cell = replace(usual_cell, **cell_changes)
    sweep = plan((cell,), **plan_changes)
    load = load_for(sweep, cell, 1.0)
    assert (load.requests, load.together) == (requests, together)
    usual_s = predicted_s(plan((usual_cell,)), usual_cell, 1.0)
    assert predicted_s(sweep, cell, 1.0) == usual_s - 11 + ideal
    assert ("--together" in FAST.command(load, "http://127.0.0.1:1/", "/run").argv) is together


@given(A_CELL, LONE_S)
def test_the_deadline_exceeds_any_valid_duration(sweep: Plan, lone_s: float) -> None:
    """And ab waits long enough for a full accept queue: clients repeat dropped handshakes for more
    than a minute, and ab gives up without a report if nothing happens for as long as its -s."""
    (cell,) = sweep.cells
    load = load_for(sweep, cell, lone_s)
    for slots in (configured_slots(cell.server), cell.server.workers):
        assert load.deadline_s > ideal_s(load.requests, cell.concurrency, slots, lone_s)
    assert load.deadline_s > load.duration_s
    assert math.isfinite(load.deadline_s)
    argv = ab.AB.command(load, "http://x/", "/run/x").argv
    patience_s = int(argv[argv.index("-s") + 1])
    assert patience_s >= load.deadline_s
    if cell.server.backlog < cell.concurrency:
        assert patience_s >= 90


@given(A_CELL, LONE_S)
def test_the_prediction_exceeds_the_duration_of_the_load(sweep: Plan, lone_s: float) -> None:
    (cell,) = sweep.cells
    load, slots = load_for(sweep, cell, lone_s), configured_slots(cell.server)
    ideal = ideal_s(load.requests, cell.concurrency, slots, lone_s)
    assert predicted_s(sweep, replace(cell, tool="ab"), lone_s) > ideal
    assert predicted_s(sweep, replace(cell, tool="wrk"), lone_s) > load.duration_s


@given(A_CELL, LONE_S)
def test_a_map_has_room_for_all_requests_of_one_worker(sweep: Plan, lone_s: float) -> None:
    """The kernel may give every request to the same worker."""
    cell = replace(sweep.cells[0], tool="wrk")
    requests = load_for(sweep, cell, lone_s).requests
    assert records_for(sweep, replace(cell, tool="ab")) > requests
    sleep_s = cell.server.app.sleep_s
    if sleep_s and sleep_s >= 0.01:
        duration_s = load_for(sweep, cell, sleep_s).duration_s
        # A connection waits for each response, which takes at least the sleep
        max_requests = cell.concurrency * (1 + math.floor(duration_s / sleep_s))
        assert records_for(sweep, cell) > max_requests
    else:
        assert records_for(sweep, cell) >= 100_000


@given(AXES)
def test_a_product_has_every_cell_of_its_axes_once(axes: dict[str, Any]) -> None:
    cells = product(**axes)
    loads = len(axes["levels"]) + len(axes["rates"])
    others = math.prod(len(axes[name]) for name in ("servers", "tools", "keepalive", "processes"))
    assert len(cells) == len(set(cells)) == others * loads
    open_cells = [cell for cell in cells if cell.rate is not None]
    assert list(cells[len(cells) - len(open_cells) :]) == open_cells
    assert {cell.concurrency for cell in open_cells} <= {max(axes["levels"])}


@given(plans())
def test_each_cell_of_the_grid_has_its_trials_once(sweep: Plan) -> None:
    grid = trials(sweep)
    assert len(grid) == len({trial.key for trial in grid}) == len(sweep.cells) * sweep.trials
    assert {trial.number for trial in grid} == set(range(1, sweep.trials + 1))
    assert all("/" not in trial.key for trial in grid)
    assert trials(sweep) == grid  # a resumed run has the same trials


def test_single_trials_are_in_the_order_of_the_plan() -> None:
    sweep = plan(product((SERVER,), ("ab", "fast"), (4, 8, 16)))
    order = [(trial.cell.tool, trial.cell.concurrency) for trial in trials(sweep)]
    assert order == [(tool, level) for tool in ("ab", "fast") for level in (4, 8, 16)]


def test_repeated_trials_are_in_random_order() -> None:
    orders = {tuple(trials(plan(trials=3, seed=seed))) for seed in range(10)}
    assert len(orders) > 5
    assert len({frozenset(order) for order in orders}) == 1


@given(plans())
def test_a_plan_round_trips(sweep: Plan) -> None:
    assert codec.decode(codec.encode(sweep), Plan) == sweep


MakePlan = Callable[..., Plan]


@pytest.fixture
def plan_for(monkeypatch: pytest.MonkeyPatch) -> MakePlan:
    """`plan_of` with an interpreter that has every class, and settings of a Gunicorn file."""

    def make(*arguments: str, **settings: object) -> Plan:
        python = Interpreter("python3", "25.3.0", CLASSES, (), {}, settings)
        monkeypatch.setattr(preflight, "interpreter", lambda *_: python)
        monkeypatch.setattr(preflight, "check_levels", lambda _: None)
        monkeypatch.setattr(preflight, "has_tool", lambda _: True)
        return plan_of(parse(["sweep", "--tool", "fast", *arguments]))[0]

    return make


def test_threads_apply_to_gthread_only(plan_for: MakePlan) -> None:
    servers = plan_for("all", "4", "--threads", "2,3").servers
    # sync with threads would become gthread
    others = [(name, 1) for name in CLASSES if name != "gthread"]
    expected = [*others, ("gthread", 2), ("gthread", 3)]
    assert sorted((s.worker_class, s.threads) for s in servers) == sorted(expected)


def test_the_defaults(plan_for: MakePlan) -> None:
    sweep = plan_for("sync,gthread", "16,4,8,4")
    shapes = [replace(server, app=App("")) for server in sweep.servers]
    assert shapes == [
        Server("sync", 4, 1, 2048, 1000, app=App("")),
        Server("gthread", 4, 2, 2048, 1000, app=App("")),
    ]
    assert sorted({cell.concurrency for cell in sweep.cells}) == [4, 8, 16]
    assert (sweep.trials, sweep.rounds) == (1, 5)
    assert {server.app.sleep_s for server in sweep.servers} == {1.0}


def test_the_number_of_requests_is_exact(plan_for: MakePlan) -> None:
    sweep = plan_for("sync", "4,8", "--tool", "fast", "--requests", "100", "--rate", "5")
    assert [cell.requests for cell in sweep.cells] == [100, 100, None]
    assert sweep.max_seconds is None
    assert load_for(sweep, sweep.cells[1], 1.0).requests == 100
    for arguments, why in {
        ("--requests", "15"): "at least 16: two for each connection",
        ("--requests", "100", "--rounds", "5"): "--requests and --rounds cannot be combined",
        ("--requests", "100", "--duration", "5"): "--requests and --duration cannot be combined",
    }.items():
        with pytest.raises(UsageError, match=why):
            plan_for("sync", "4,8", *arguments)


def test_comma_lists_become_axes(plan_for: MakePlan) -> None:
    sweep = plan_for("gevent,sync", "4", "--workers", "1,2", "--backlog", "8,16")
    shapes = [(s.worker_class, s.workers, s.backlog) for s in sweep.servers]
    assert shapes == list(itertools.product(("gevent", "sync"), (1, 2), (8, 16)))


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)


@pytest.mark.usefixtures("two_cores")
def test_cpu_per_request_and_cores_become_axes(plan_for: MakePlan) -> None:
    axes = ("--cpu", "0.005,0", "--server-cores", "1,2")
    sweep = plan_for("gevent,uvicorn", "4", "--sleep", "0.1", *axes)
    shapes = [(s.worker_class, s.cpu_s, s.cores) for s in sweep.servers]
    assert shapes == list(itertools.product(("gevent", "uvicorn"), (0.005, 0.0), (1, 2)))
    assert [dict(s.app.env)["WORKERLAB_CPU"] for s in sweep.servers[:4]] == ["5", "5", "0", "0"]
    assert {s.app.sleep_s for s in sweep.servers} == {0.1}
    assert len({trial.key for trial in trials(sweep)}) == 8
    assert [varies(sweep, cell) for cell in sweep.cells[:4]] == [True, True, False, False]
    assert stored(ServerCoresBound(2)) in sweep.notes


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--cpu", "0.01", "--app", "shop:app"), "--cpu works only with @sleep_wsgi"),
        (("--cpu", "0.01", "--app", "@blocking_asgi"), "--cpu works only with @sleep_wsgi"),
        (("--cpu", "0.01", "--path", "/?cpu=5"), "without cpu= in --path"),
        (("--server-cores", "1,3"), "3 is too many: this system can bind a server to at most 2"),
    ],
)
@pytest.mark.usefixtures("two_cores")
def test_cpu_or_cores_that_a_server_cannot_use_are_refused(
    arguments: tuple[str, ...], why: str, plan_for: MakePlan
) -> None:
    with pytest.raises(UsageError, match=why):
        plan_for("uvicorn", "4", *arguments)


def test_flags_override_the_users_file_which_overrides_defaults(plan_for: MakePlan) -> None:
    own = {"workers": 3, "backlog": 64}
    for arguments, workers in (((), 3), (("--workers", "2"), 2)):
        (server,) = plan_for("sync", "4", *arguments, **own).servers
        assert (server.workers, server.backlog, server.worker_connections) == (workers, 64, 1000)


def test_asgi_classes_get_the_asgi_app(plan_for: MakePlan) -> None:
    sweep = plan_for("all", "4", "--sleep", "0.25")
    targets = {server.worker_class: server.app.target for server in sweep.servers}
    asgi = {name for name, target in targets.items() if target == "apps.sleep_asgi:app"}
    assert asgi == {"asgi", "uvicorn"}
    assert {server.app.sleep_s for server in sweep.servers} == {0.25}


def test_another_app_is_imported_from_the_callers_directory(plan_for: MakePlan) -> None:
    sweep = plan_for("sync,asgi", "4", "--app", "shop.wsgi:app", "--path", "/cart")
    assert {server.app for server in sweep.servers} == {App("shop.wsgi:app", os.getcwd(), "/cart")}


def test_keep_alive_is_off_by_default(plan_for: MakePlan) -> None:
    assert [cell.keepalive for cell in plan_for("sync", "4").cells] == [False]
    sweep = plan_for("gevent", "4,8", "--keepalive", "off,on")
    order = [(trial.cell.keepalive, trial.cell.concurrency) for trial in trials(sweep)]
    assert order == [(False, 4), (False, 8), (True, 4), (True, 8)]
    assert len({trial.key for trial in trials(sweep)}) == 4


@pytest.mark.parametrize("name", CLASSES)
def test_ab_is_refused_for_classes_that_close_its_connections(
    plan_for: MakePlan, name: str
) -> None:
    arguments = (name, "4", "--keepalive", "on", "--tool")
    if name in ("asgi", "uvicorn"):
        with pytest.raises(UsageError, match=f"to {name} alive: .*use --tool wrk or --tool fast"):
            plan_for(*arguments, "ab")
        assert plan_for(name, "4", "--tool", "ab").tools == ("ab",)
    else:
        assert [cell.keepalive for cell in plan_for(*arguments, "ab").cells] == [True]
    for tool in ("wrk", "fast"):
        assert plan_for(*arguments, tool).tools == (tool,)


def test_only_fast_numbers_its_requests(plan_for: MakePlan, tmp_path: Path) -> None:
    """Cells of other tools do not pay for looking up a number."""
    sweep = plan_for("sync", "4", "--tool", ",".join(TOOLS))
    launches = {trial.cell.tool: launch_for(sweep, trial, tmp_path) for trial in trials(sweep)}
    numbered = [name for name, launch in launches.items() if launch.names_requests]
    assert (sorted(launches), numbered) == (sorted(TOOLS), ["fast"])


def test_a_schedule_depends_on_the_number_of_the_trial_only() -> None:
    sweep = plan(seed=7, arrivals="poisson")
    rated, closed = Cell(SERVER, "fast", 8, rate=Rate(rps=5)), Cell(SERVER, "fast", 8)
    seeds = [load_for(sweep, rated, 0.1, 5.0, number).schedule for number in (1, 2, 3)]
    assert seeds == [70_001, 70_002, 70_003]
    assert load_for(sweep, closed, 0.1, number=2).schedule == seeds[1]
    third = replace(rated, schedule=3)
    assert {load_for(sweep, third, 0.1, 5.0, number).schedule for number in (1, 2)} == {70_003}
    assert load_for(sweep, rated, 0.1, 5.0).arrivals == "poisson"
    assert load_for(plan(), rated, 0.1, 5.0).arrivals == "even"
