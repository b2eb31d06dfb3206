"""How long a load lasts: which loads need a follow-up, and how long the follow-up is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.plan import SERVER, plan, with_classes
from workerlab.analysis.batches import Estimate, Precision
from workerlab.cli import parse
from workerlab.durations import longer_s
from workerlab.errors import UsageError
from workerlab.experiments import load_trials
from workerlab.experiments.planning import plan_of
from workerlab.experiments.trial import PILOT, keep_pilot
from workerlab.model.evidence import Record
from workerlab.model.plan import App, Cell, Plan, Rate, Trial
from workerlab.observe.observations import FILE
from workerlab.plan import (
    MAX_FOLLOW_UP_REQUESTS,
    load_for,
    records_for,
    target_requests,
    trials,
    varies,
)

OWN = replace(SERVER, app=App("own:app", "/srv"))
GTHREAD = replace(SERVER, worker_class="gthread", threads=2)


def precision(
    *, batches: int = 8, batch_s: float = 1.0, variation: float = 0.2, half: float = 0.1
) -> Precision:
    """The precision of 100 requests/s. `half`: the half-width of the interval, as a share."""
    return Precision(batches, batch_s, variation, Estimate(100.0, 100 * half))


@pytest.mark.parametrize(
    ("estimate", "steady", "precise"),
    [
        (precision(variation=0.01, half=0.02, batches=4, batch_s=0.05), False, True),
        (precision(variation=0.011, half=0.02, batches=4, batch_s=0.05), False, False),
        (precision(variation=0.011, half=0.02, batches=4, batch_s=0.05), True, True),
        (precision(half=0.05), False, True),
        (precision(half=0.051), False, False),
        (precision(half=0.051), True, False),
        (precision(half=0.05, batches=7), False, False),
        (precision(half=0.05, batch_s=0.6), False, False),
        (Precision(), False, False),
        (Precision(), True, False),
    ],
)
def test_a_load_is_precise_if_it_hardly_varies_or_has_enough_batches(
    estimate: Precision, steady: bool, precise: bool
) -> None:
    assert load_trials.is_precise(estimate, steady=steady) is precise


def load_after(
    estimate: Precision,
    rps: float = 100.0,
    lasted_s: float = 1.0,
    left_s: float = 29.0,
    connections: int = 4,
) -> Any:
    load = load_for(plan(), Cell(OWN, "ab", connections), 0.05)
    return load_trials.load_for_precision(load, estimate, rps, lasted_s, left_s)


@pytest.mark.parametrize(
    ("estimate", "times_s", "at_least_s", "at_most_s"),
    [
        pytest.param(precision(half=0.04, batch_s=0.5), {}, 8.0, 12.0, id="nearly precise"),
        pytest.param(precision(half=0.12, batch_s=0.5), {}, 20.0, 29.0, id="all the time left"),
        pytest.param(Precision(), {}, 8.0, 10.0, id="unknown: first a short one"),
        pytest.param(precision(half=0.4), {}, 8.0, 10.0, id="imprecise: first a short one"),
        pytest.param(precision(half=0.4, batches=9), {"lasted_s": 9.5, "left_s": 20.0}, 12.0, 20.0,
                     id="imprecise after a long one: all the time left"),
    ],
)  # fmt: skip
def test_a_follow_up_is_as_long_as_the_precision_requires(
    estimate: Precision, times_s: dict[str, float], at_least_s: float, at_most_s: float
) -> None:
    follow_up = load_after(estimate, **times_s)
    assert at_least_s <= follow_up.requests / 100 <= at_most_s


@pytest.mark.parametrize(
    ("estimate", "load"),
    [
        pytest.param(Precision(), {"rps": 0.0}, id="no answers"),
        (precision(), {"lasted_s": 20.0, "left_s": 10.0}),
        (precision(), {"lasted_s": 31.0, "left_s": -1.0}),
        (precision(), {"lasted_s": 12.0, "left_s": 14.0}),
        (precision(half=0.4, batches=9), {"lasted_s": 14.0, "left_s": 20.0}),
    ],
)
def test_there_is_no_follow_up_that_would_add_little(
    estimate: Precision, load: dict[str, float]
) -> None:
    assert load_after(estimate, **load) is None


@given(
    batches=st.integers(4, 32),
    batch_s=st.floats(0.001, 3.0),
    half=st.floats(0.0, 3.0),
    rps=st.floats(0.05, 50_000),
    connections=st.integers(1, 256),
    left_s=st.floats(-5.0, 60.0),
)
def test_no_follow_up_exceeds_the_time_left(
    batches: int, batch_s: float, half: float, rps: float, connections: int, left_s: float
) -> None:
    estimate = Precision(batches, batch_s, 0.3, Estimate(rps, half * rps))
    lasted_s = batches * batch_s
    follow_up = load_after(estimate, rps, lasted_s, left_s, connections)
    if follow_up is None:
        return
    follow_up_s, round_s = follow_up.requests / rps, connections / rps
    assert follow_up_s <= left_s + 2 * round_s + 1 / rps
    assert follow_up_s > load_trials.MIN_GROWTH * lasted_s
    assert follow_up.requests <= MAX_FOLLOW_UP_REQUESTS + 4 * connections + 1
    assert (follow_up.requests - 1) % connections == 0
    assert follow_up.deadline_s > 3 * follow_up_s - 3 * round_s
    assert follow_up.duration_s >= follow_up_s - 2 * round_s


def test_the_needed_time_follows_the_square_of_the_interval() -> None:
    """Twice the width takes four times as long; both fit the time left."""
    narrow, wide = (
        load_after(precision(batches=32, half=half), left_s=10_000.0) for half in (0.1, 0.14999)
    )
    assert wide.requests / narrow.requests == pytest.approx((0.15 / 0.1) ** 2, rel=0.05)
    assert narrow.requests / 100 >= 32 * (0.1 / load_trials.TARGET_PRECISION) ** 2


# --- which loads ----------------------------------------------------------------------------------


def sweep_plan(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Plan:
    with_classes(monkeypatch)
    return plan_of(parse(["sweep", "sync", "4", "--tool", "fast", *arguments]))[0]


def test_max_seconds_is_30_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep_plan(monkeypatch).max_seconds == 30
    assert sweep_plan(monkeypatch, "--max-seconds", "60").max_seconds == 60


@pytest.mark.parametrize(
    "arguments", [("--rounds", "5"), ("--duration", "3"), ("--keepalive", "on", "--ramp", "1")]
)
def test_options_that_fix_the_length_exclude_max_seconds(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep_plan(monkeypatch, *arguments).max_seconds is None
    with pytest.raises(UsageError, match=f"--max-seconds has no effect with {arguments[-2]}"):
        sweep_plan(monkeypatch, *arguments, "--max-seconds", "20")


@pytest.mark.parametrize(
    ("cell", "slo", "more_s"),
    [
        (Cell(SERVER, "ab", 8), "", 0.0),  # always takes the same time
        (Cell(SERVER, "ab", 8), "p95<1s", 30.0),
        (Cell(OWN, "ab", 8), "", 30.0),
        (Cell(GTHREAD, "ab", 8), "", 30.0),  # distributes its requests by chance
        (Cell(OWN, "fast", 8, rate=Rate(rps=5.0)), "", 0.0),  # a rate determines the duration
    ],
)
def test_some_loads_may_take_longer(cell: Cell, slo: str, more_s: float) -> None:
    sweep = plan((cell,), max_seconds=30.0, slo=slo)
    assert varies(sweep, cell) is (bool(more_s) and not slo)
    assert longer_s(sweep, Trial(cell, 1)) == more_s
    assert longer_s(plan((cell,)), Trial(cell, 1)) == 0.0


@pytest.mark.parametrize(
    ("slo", "trials", "limit", "requests"),
    [
        ("", 1, 1e9, 0),
        ("p95<1s", 1, 1e9, 72),
        ("p95<1s,p99<2s", 1, 1e9, 368),
        ("p95<1s,p99<2s", 1, 367, 72),  # no time for p99
        ("p95<1s,errors<0.1%", 1, 1e9, 3000),
        ("p95<1s,errors<0.1%", 3, 1e9, 1000),  # counted together
        ("rps>5", 1, 1e9, 1),
        ("p95<1s", 1, 71, 0),
    ],
)
def test_a_target_needs_a_number_of_requests(
    slo: str, trials: int, limit: float, requests: int
) -> None:
    assert target_requests(plan(slo=slo, trials=trials), limit) == requests


def test_arrivals_go_on_until_they_can_show_the_target() -> None:
    """At 20 requests/s: p95 needs 72 requests, which arrive within 10 s; p99 needs 368; errors
    never extend the load beyond two minutes."""
    cell = Cell(SERVER, "fast", 8, rate=Rate(rps=20.0))
    durations_s = [
        load_for(plan((cell,), slo=slo), cell, 0.1).duration_s
        for slo in ("", "p95<1s", "p99<1s", "p99<1s,errors<0.1%")
    ]
    assert durations_s == [10.0, 10.0, pytest.approx(1.1 * 368 / 20, abs=1), durations_s[2]]


def test_a_load_for_a_target_has_enough_requests() -> None:
    load = load_for(plan(), Cell(SERVER, "ab", 4), 0.1)
    follow_up = load_trials.with_duration(load, 40.0, 72 / 40)
    assert 72 <= follow_up.requests <= 72 + 3 * 4
    assert follow_up.duration_s >= 72 / 40
    assert follow_up.deadline_s > load.deadline_s


def test_progress_shows_that_a_load_may_last_longer(capsys: pytest.CaptureFixture[str]) -> None:
    for server, duration in ((SERVER, "6 s to 18 s"), (OWN, "12 s to 1m 48s")):
        sweep = plan((Cell(server, "ab", 4), Cell(server, "ab", 8)), max_seconds=30.0)
        source = load_trials.LoadTrials(Path(), sweep)
        source.predict = lambda _: 6.0
        with load_trials.default_display(source, trials(sweep)):
            assert capsys.readouterr().err == f"2 cells, about {duration}\n"


@pytest.mark.parametrize("tool", ["ab", "wrk"])
@pytest.mark.parametrize("server", [SERVER, OWN])
def test_there_is_room_for_the_spans_of_the_longest_load(server: Any, tool: str) -> None:
    """With an app that sleeps, a connection makes at most one request per sleep."""
    cell = Cell(server, tool, 16)
    sweep = plan((cell,), max_seconds=30.0)
    fixed_length = records_for(replace(sweep, max_seconds=None), cell)
    room = records_for(sweep, cell)
    if server is SERVER:
        assert room - fixed_length >= 16 * 30
        assert room < 2 * fixed_length  # no disk space is wasted
    else:
        assert room >= MAX_FOLLOW_UP_REQUESTS + (1 + 5 * 16 if tool == "ab" else 0)


def test_a_load_at_a_rate_has_no_follow_up(tmp_path: Path) -> None:
    cell = Cell(OWN, "fast", 4, rate=Rate(rps=5.0))
    sweep = plan((cell,), max_seconds=30.0)
    load = load_for(sweep, cell, 0.1, 5.0)
    assert load_trials.next_load(sweep, Trial(cell, 1), tmp_path, load, Record("a", None)) is None
    fixed_length = replace(sweep, max_seconds=None)
    assert records_for(sweep, cell, 5.0) == records_for(fixed_length, cell, 5.0)


def test_each_pilot_is_kept(tmp_path: Path) -> None:
    files = ("tool/stdout", FILE)
    for number in "123":
        (tmp_path / "tool").mkdir()
        for file in files:
            (tmp_path / file).write_text(number)
        keep_pilot(tmp_path)
    pilots = sorted(tmp_path.iterdir())
    assert [path.name for path in pilots] == [PILOT, f"{PILOT}-2", f"{PILOT}-3"]
    for file in files:
        assert [(pilot / file).read_text() for pilot in pilots] == ["1", "2", "3"]
