"""How long a load lasts: which loads are followed by another, and by how long a one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.plan import SERVER, plan
from workerlab.analysis.batches import Estimate, Precision
from workerlab.cli import parse
from workerlab.experiments.execution import default_display
from workerlab.experiments.length import (
    MIN_GROWTH,
    PILOT,
    TARGET_PRECISION,
    is_precise,
    keep_pilot,
    load_for_precision,
    next_load,
    with_duration,
)
from workerlab.experiments.planning import plan_of
from workerlab.model import App, Cell, Plan, Rate, Record, Trial, UsageError
from workerlab.observe.observations import FILE
from workerlab.plan import (
    MAX_FOLLOW_UP_REQUESTS,
    load_for,
    longer_s,
    product,
    records_for,
    target_requests,
    trials,
    varies,
)

UNKNOWN_APP = App("own:app", "/srv")
OWN = replace(SERVER, app=UNKNOWN_APP)
GTHREAD = replace(SERVER, worker_class="gthread", threads=2)


def found(
    *, batches: int = 8, batch_s: float = 1.0, variation: float = 0.2, half: float = 0.1
) -> Precision:
    """Of 100 requests/s; `half` as a part of these."""
    return Precision(batches, batch_s, variation, Estimate(100.0, 100 * half))


@pytest.mark.parametrize(
    ("one", "steady", "enough"),
    [
        (found(variation=0.01, half=0.02, batches=4, batch_s=0.05), False, True),
        (found(variation=0.011, half=0.02, batches=4, batch_s=0.05), False, False),
        (found(variation=0.011, half=0.02, batches=4, batch_s=0.05), True, True),
        (found(half=0.05), False, True),
        (found(half=0.051), False, False),
        (found(half=0.051), True, False),
        (found(half=0.05, batches=7), False, False),
        (found(half=0.05, batch_s=0.6), False, False),
        (Precision(), False, False),
        (Precision(), True, False),
    ],
)
def test_what_is_known(one: Precision, steady: bool, enough: bool) -> None:
    assert is_precise(one, steady=steady) is enough


def load_after(
    one: Precision, rps: float = 100.0, lasted_s: float = 1.0, left_s: float = 29.0, c: int = 4
) -> Any:
    load = load_for(plan(), Cell(OWN, "ab", c), 0.05)
    return load_for_precision(load, one, rps, lasted_s, left_s)


def test_a_throughput_that_is_nearly_known_needs_eight_seconds() -> None:
    more = load_after(found(half=0.04, batch_s=0.5))
    assert 8.0 <= more.requests / 100 <= 12.0


def test_one_that_needs_longer_than_leaves_room_for_another_takes_all() -> None:
    more = load_after(found(half=0.12, batches=8, batch_s=0.5))
    assert 20 < more.requests / 100 <= 29.0


def test_a_rate_that_is_hardly_known_is_learnt_first() -> None:
    for one in (Precision(), found(half=0.4)):
        more = load_after(one)
        assert 8.0 <= more.requests / 100 <= 10.0


def test_a_load_that_has_not_learnt_the_rate_is_followed_by_all_that_is_left() -> None:
    trial = found(half=0.4, batches=9)
    more = load_after(trial, lasted_s=9.5, left_s=20.0)
    assert 12.0 < more.requests / 100 <= 20.0
    assert load_after(trial, lasted_s=14.0, left_s=20.0) is None


@pytest.mark.parametrize(("lasted_s", "left_s"), [(20.0, 10.0), (31.0, -1.0), (12.0, 14.0)])
def test_what_shows_little_more_is_not_worth_it(lasted_s: float, left_s: float) -> None:
    assert load_after(found(), lasted_s=lasted_s, left_s=left_s) is None


def test_nothing_follows_where_nothing_was_answered() -> None:
    assert load_after(Precision(), rps=0.0) is None


@given(
    batches=st.integers(4, 32),
    batch_s=st.floats(0.001, 3.0),
    half=st.floats(0.0, 3.0),
    rps=st.floats(0.05, 50_000),
    connections=st.integers(1, 256),
    left_s=st.floats(-5.0, 60.0),
)
def test_no_load_is_longer_than_is_left(
    batches: int, batch_s: float, half: float, rps: float, connections: int, left_s: float
) -> None:
    one = Precision(batches, batch_s, 0.3, Estimate(rps, half * rps))
    lasted_s = batches * batch_s
    more = load_after(one, rps, lasted_s, left_s, connections)
    if more is None:
        return
    asked_s = more.requests / rps
    round_s = connections / rps
    assert asked_s <= left_s + 2 * round_s + 1 / rps
    assert asked_s > MIN_GROWTH * lasted_s
    assert more.requests <= MAX_FOLLOW_UP_REQUESTS + 4 * connections + 1
    assert (more.requests - 1) % connections == 0
    assert more.deadline_s > 3 * asked_s - 3 * round_s
    assert more.duration_s >= asked_s - 2 * round_s


def test_the_needed_time_follows_the_square_of_the_interval() -> None:
    """Twice as wide takes four times as long; both below all that there is."""
    narrow, wide = (
        load_after(found(batches=32, half=half), left_s=10_000.0) for half in (0.1, 0.14999)
    )
    assert wide.requests / narrow.requests == pytest.approx((0.15 / 0.1) ** 2, rel=0.05)
    assert narrow.requests / 100 >= 32 * (0.1 / TARGET_PRECISION) ** 2


# --- which loads ----------------------------------------------------------------------------------


def lengthened(words: Sequence[str]) -> Plan:
    made, _ = plan_of(parse(["sweep", "sync", "4", "--tool", "fast", *words]))
    return made


def test_thirty_seconds_unless_told_otherwise() -> None:
    assert lengthened([]).max_seconds == 30
    assert lengthened(["--max-seconds", "60"]).max_seconds == 60


FIXED = (
    ("--rounds", "5"),
    ("--duration", "3"),
    ("--keepalive", "on", "--ramp", "1"),
)


@pytest.mark.parametrize("words", FIXED)
def test_an_option_that_fixes_the_length_does(words: tuple[str, ...]) -> None:
    assert lengthened(words).max_seconds is None


@pytest.mark.parametrize("words", FIXED)
def test_a_length_is_not_both_fixed_and_open(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"--max-seconds has no effect with {words[-2]}"):
        lengthened([*words, "--max-seconds", "20"])


def test_a_run_from_before_has_loads_of_fixed_length() -> None:
    assert plan().max_seconds is None


@pytest.mark.parametrize(
    ("cell", "more_s"),
    [
        (Cell(SERVER, "ab", 8), 0.0),  # always takes the same time
        (Cell(OWN, "ab", 8), 30.0),
        (Cell(GTHREAD, "ab", 8), 30.0),  # deals its requests by chance
        (Cell(OWN, "fast", 8, rate=Rate(rps=5.0)), 0.0),  # a rate has a time of its own
    ],
)
def test_the_prediction_says_what_may_take_longer(cell: Cell, more_s: float) -> None:
    of = plan((cell,), max_seconds=30.0)
    assert varies(of, cell) is bool(more_s)
    assert longer_s(of, Trial(cell, 1)) == more_s
    assert longer_s(plan((cell,)), Trial(cell, 1)) == 0.0


def test_a_target_may_take_longer() -> None:
    cell = Cell(SERVER, "ab", 8)
    of = plan((cell,), max_seconds=30.0, slo="p95<1s")
    assert longer_s(of, Trial(cell, 1)) == 30.0


@pytest.mark.parametrize(
    ("slo", "trials", "most", "requests"),
    [
        ("", 1, 1e9, 0),
        ("p95<1s", 1, 1e9, 72),
        ("p95<1s,p99<2s", 1, 1e9, 368),
        ("p95<1s,p99<2s", 1, 367, 72),  # no time for the other
        ("p95<1s,errors<0.1%", 1, 1e9, 3000),
        ("p95<1s,errors<0.1%", 3, 1e9, 1000),  # counted together
        ("rps>5", 1, 1e9, 1),
        ("p95<1s", 1, 71, 0),
    ],
)
def test_as_many_requests_as_a_target_needs(
    slo: str, trials: int, most: float, requests: int
) -> None:
    assert target_requests(plan(slo=slo, trials=trials), most) == requests


def test_arrivals_go_on_until_they_can_show_the_target() -> None:
    """At 20 requests/s: p95 takes 72, which 10 s have; p99 takes 368; errors never longer than two
    minutes."""
    cell = Cell(SERVER, "fast", 8, rate=Rate(rps=20.0))
    lasts = [
        load_for(plan((cell,), slo=slo), cell, 0.1).duration_s
        for slo in ("", "p95<1s", "p99<1s", "p99<1s,errors<0.1%")
    ]
    assert lasts == [10.0, 10.0, pytest.approx(1.1 * 368 / 20, abs=1), lasts[2]]


def test_a_load_for_a_target_has_its_requests() -> None:
    load = load_for(plan(), Cell(SERVER, "ab", 4), 0.1)
    more = with_duration(load, 40.0, 72 / 40)
    assert 72 <= more.requests <= 72 + 3 * 4
    assert more.duration_s >= 72 / 40
    assert more.deadline_s > load.deadline_s


def test_the_progress_tells_how_long_it_may_become(capsys: pytest.CaptureFixture[str]) -> None:
    for server, more in ((SERVER, ""), (OWN, " to 1m 12s")):
        cells = (Cell(server, "ab", 4), Cell(server, "ab", 8))
        of = plan(cells, max_seconds=30.0)
        with default_display(Path(), of, trials(of), lambda _: 6.0):
            assert capsys.readouterr().err == f"2 cells, about 12 s{more}\n"


@pytest.mark.parametrize("tool", ["ab", "wrk"])
@pytest.mark.parametrize("server", [SERVER, OWN])
def test_there_is_room_for_the_spans_of_the_longest_load(server: Any, tool: str) -> None:
    """Of an app that sleeps a connection makes a request per sleep at most."""
    cell = Cell(server, tool, 16)
    of = plan((cell,), max_seconds=30.0)
    first = records_for(replace(of, max_seconds=None), cell)
    room = records_for(of, cell)
    if server is SERVER:
        assert room - first >= 16 * 30
        assert room < 2 * first  # disk is not taken for what cannot come
    else:
        assert room >= MAX_FOLLOW_UP_REQUESTS + (1 + 5 * 16 if tool == "ab" else 0)


def test_products_of_open_cells_are_unchanged(tmp_path: Path) -> None:
    (_, opened) = product((OWN,), ("fast",), (4,), rates=(Rate(rps=5.0),))
    of = plan((opened,), max_seconds=30.0)
    load = load_for(of, opened, 0.1, 5.0)
    assert next_load(of, Trial(opened, 1), tmp_path, load, Record("a", None)) is None
    assert records_for(of, opened, 5.0) == records_for(replace(of, max_seconds=None), opened, 5.0)


def test_each_pilot_is_kept(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "tool").mkdir()
        (tmp_path / "tool" / "stdout").write_text(str(number))
        (tmp_path / FILE).write_text(str(number))
        keep_pilot(tmp_path)
    names = [PILOT, f"{PILOT}-2", f"{PILOT}-3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for number, name in enumerate(names):
        assert (tmp_path / name / "tool" / "stdout").read_text() == str(number)
        assert (tmp_path / name / FILE).read_text() == str(number)
