"""Rates, ramps and durations: from arguments to cells, their durations and span maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.plan import APP, AXES, RATES, SERVER, plan, plans, with_classes
from workerlab import codec
from workerlab.cli import parse
from workerlab.durations import predicted_s
from workerlab.errors import UsageError
from workerlab.experiments.load_trials import Rates
from workerlab.experiments.planning import plan_of
from workerlab.model.evidence import Fault
from workerlab.model.plan import Cell, Plan, Rate, Server, Trial
from workerlab.plan import is_counted_load, load_for, open_connections, product, records_for, trials
from workerlab.run_store import appending, create
from workerlab.server.worker_classes import CLASSES, configured_slots

COUNTS, LIMITS = st.integers(1, 200), st.integers(1, 4096)
SERVERS = st.builds(
    Server, st.sampled_from(CLASSES), COUNTS, COUNTS, LIMITS, LIMITS, app=st.just(APP)
)
CELLS_AT_A_RATE = st.builds(
    Cell, SERVERS, st.just("fast"), st.integers(1, 2000), st.booleans(), rate=RATES
)
MakePlan = Callable[..., Plan]


@pytest.fixture
def plan_for(monkeypatch: pytest.MonkeyPatch) -> MakePlan:
    """`plan_of`, in an interpreter that has everything."""
    with_classes(monkeypatch)
    return lambda *arguments: plan_of(parse(["sweep", *arguments]))[0]


def test_rates_are_requests_per_second_or_shares(plan_for: MakePlan) -> None:
    sweep = plan_for("sync", "4,8", "--tool", "fast", "--rate", "200,50%,80%,50%")
    cells = [trial.cell for trial in trials(sweep)]
    loads = [(cell.concurrency, cell.rate and cell.rate.label) for cell in cells]
    assert loads == [(4, None), (8, None), (8, "200"), (8, "50%"), (8, "80%")]


def test_arrivals_at_a_rate_are_poisson_by_default(plan_for: MakePlan) -> None:
    arguments = ("sync", "4", "--rate", "80%")
    assert plan_for(*arguments).arrivals == "poisson"
    assert plan_for(*arguments, "--arrivals", "even").arrivals == "even"
    assert plan_for(*arguments, "--seed", "0").seed == 0
    assert plan_for(*arguments).seed != plan_for(*arguments).seed  # from 2 ** 32 numbers


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--rate", "5", "--arrivals", "odd"), "'odd' is neither even nor poisson"),
        (("--arrivals", "poisson"), "--arrivals needs --rate"),
        (("--seed", "-1"), "-1 is too small"),
        (("--rate", "nan"), "invalid rate nan"),
        (("--rate", "120%"), "120% exceeds the capacity"),
        (("--rate", "fast"), "neither req/s nor a share"),
        (("--rate", "1e9"), "invalid rate 1e9"),
        (("--rate", "5,"), "empty entry"),
        (("--ramp", "0"), "greater than 0 seconds"),
        (("--duration", "-1"), "must be from 0 to 3600"),
        (("--rate", "5", "--tool", "ab"), "ab cannot send at a rate"),
        (("--rate", "5", "--tool", "fast,wrk"), "wrk cannot send at a rate"),
        (("--ramp", "5", "--tool", "ab", "--keepalive", "on"), "ab cannot open its connections"),
        (("--duration", "5", "--tool", "ab"), "ab cannot run for a fixed time"),
        (("--ramp", "5", "--tool", "fast"), "--ramp needs --keepalive on"),
        (("--ramp", "5", "--tool", "fast", "--keepalive", "off,on"), "--ramp needs --keepalive on"),
        (("--ramp", "5", "--duration", "5", "--tool", "fast", "--keepalive", "on"),
         "--ramp 5 takes all of --duration 5"),
        (("--rate", "500000", "--class", "x"), "unrecognized"),
    ],
)  # fmt: skip
def test_invalid_rates_ramps_and_durations_are_refused(
    plan_for: MakePlan, arguments: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UsageError) as error:
        plan_for("sync", "4", *arguments)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rate_that_needs_too_many_connections_is_refused(plan_for: MakePlan) -> None:
    with pytest.raises(UsageError, match=r"open files|local ports"):
        plan_for("asgi", "4", "--tool", "fast", "--rate", "500000")


def test_fast_is_the_default_tool_where_others_cannot_be_used(plan_for: MakePlan) -> None:
    for arguments in (("--rate", "5"), ("--duration", "3"), ("--ramp", "2", "--keepalive", "on")):
        assert plan_for("sync", "4", *arguments).tools == ("fast",)


@given(plans(AXES.map(lambda axes: product(**axes))))
def test_cells_at_a_rate_come_last_and_once(sweep: Plan) -> None:
    all_trials = trials(sweep)
    at_a_rate = [trial for trial in all_trials if trial.cell.rate is not None]
    assert at_a_rate == all_trials[len(all_trials) - len(at_a_rate) :]
    assert len({trial.key for trial in all_trials}) == len(all_trials)
    assert codec.decode(codec.encode(sweep), Plan) == sweep


# --- amounts --------------------------------------------------------------------------------


@given(CELLS_AT_A_RATE, st.floats(1e-4, 10), st.floats(0.01, 1e5))
def test_there_are_connections_for_all_requests_in_flight(
    cell: Cell, lone_s: float, rps: float
) -> None:
    """By Little's law, rate x response time; whatever exceeds the slots is a backlog."""
    load = load_for(plan(), cell, lone_s, rps)
    slots = configured_slots(cell.server)
    in_flight = rps * lone_s if slots is None else min(rps * lone_s, slots)
    assert load.concurrency >= max(cell.concurrency, math.floor(in_flight))
    assert load.concurrency >= open_connections(plan(), cell, rps, lone_s)
    assert load.rate_rps == rps
    assert load.timed
    assert load.duration_s >= 5
    assert load.duration_s * rps >= 99 or load.duration_s == 120
    assert load.deadline_s > load.duration_s
    assert predicted_s(plan(), cell, lone_s, rps=rps) > load.duration_s


@given(CELLS_AT_A_RATE, st.floats(0.01, 1e4))
def test_a_span_map_has_room_for_all_arrivals(cell: Cell, rps: float) -> None:
    room = records_for(plan(), cell, rps=rps)
    assert room > rps * load_for(plan(), cell, 1.0, rps).duration_s


def test_a_share_is_predicted_from_what_the_slots_allow() -> None:
    cell = Cell(SERVER, "fast", 16, rate=Rate(share=0.5))
    assert load_for(plan(), cell, 0.5).rate_rps == 4  # of 4 slots / 0.5 s


def test_a_duration_replaces_the_request_count() -> None:
    sweep, cell = plan(duration_s=7.0), Cell(SERVER, "fast", 8)
    load = load_for(sweep, cell, 1.0)
    assert (load.timed, load.duration_s) == (True, 7)
    assert not is_counted_load(sweep, cell)
    assert predicted_s(sweep, cell, 1.0) > 7
    assert records_for(sweep, cell) > 8 * 7  # 8 connections, answered after a second


def test_after_a_ramp_there_is_time_for_a_steady_part() -> None:
    load = load_for(plan(ramp_s=3.0), Cell(SERVER, "fast", 8, True), 0.1)
    assert load.timed
    assert load.ramp_s == 3
    assert load.duration_s >= 8
    assert load_for(plan(ramp_s=3.0), Cell(SERVER, "fast", 8, rate=Rate(rps=5)), 0.1).ramp_s == 0


# --- shares of the capacity -----------------------------------------------------------------


def test_a_share_of_an_unknown_capacity_is_a_fault(tmp_path: Path) -> None:
    cells = product((SERVER,), ("fast",), (16,), rates=(Rate(share=0.5), Rate(rps=20)))
    run = tmp_path / "run"
    create(run, plan(cells), {})
    with appending(run):
        rates = Rates(run)
        closed, share, fixed = (rates.rps_of(Trial(cell, 1)) for cell in cells)
    assert (closed, fixed) == (None, 20)
    assert isinstance(share, Fault)
    assert share.kind == "unmeasured"
    assert "50% of an unknown capacity" in share.reason
