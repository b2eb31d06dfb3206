"""Verdicts by measured occupancy, for any distribution of service times."""

import random
from collections.abc import Callable

import pytest

from tests.builders.analysis import (
    NS,
    SYNC,
    derived,
    evidence,
    ns,
    with_measurement,
    with_observations,
    with_record,
    with_spans,
)
from tests.builders.noise import noisy
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.slots import NothingWaits
from workerlab.analysis.slots import occupancy, overhead_s
from workerlab.analysis.verdict import NOT_SIGNIFICANT, ONE_LEVEL, GrowthUnknown, WaitsHiddenByPause
from workerlab.model.evidence import Pause, Span
from workerlab.model.plan import Server
from workerlab.model.result import Report

UVICORN = Server("uvicorn", 4, 1, 2048, 1000)

MEAN_S = 0.055
DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda source: MEAN_S,
    "exponential": lambda source: source.expovariate(1 / MEAN_S),
    "bimodal": lambda source: source.choice((0.01, 0.1)),
    "heavy tail": lambda source: 0.02 * source.paretovariate(1.6),
}


def sweep(*trials: TrialData) -> Report:
    return analyse("run", {}, trials)


def random_service(name: str, seed: int, level: int, rounds: int = 60) -> TrialData:
    """A trial on 4 slots, and a few lone requests of the same distribution."""
    source = random.Random(f"{name} {seed} {level}")
    draw = DISTRIBUTIONS[name]
    trial = evidence(SYNC, level, delays=lambda _: draw(source), rounds=rounds)
    return with_record(trial, lone_s=tuple(draw(source) for _ in range(5)))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_verdicts_of_slots_hold_for_any_distribution(name: str, seed: int) -> None:
    levels = (2, 3, 4, 5, 6, 8, 12, 16)
    report = sweep(*(random_service(name, seed, level) for level in levels))
    for cell in report.cells:
        n = cell.trial.cell.concurrency
        expected = "below capacity" if n < 4 else "at capacity" if n == 4 else "saturated"
        assert cell.verdict == expected, (n, cell.occupancy, cell.reason)


@pytest.mark.parametrize(("level", "expected"), [(1, 0.25), (2, 0.5), (4, 1.0), (16, 1.0)])
def test_occupancy_of_a_sleeping_app(level: int, expected: float) -> None:
    trial = evidence(SYNC, level, rounds=20)
    assert occupancy(derived(trial)) == pytest.approx(expected, abs=0.01)


def test_a_slot_is_held_longer_than_the_span() -> None:
    """Spans of 0.2 ms, a millisecond apart; a lone request took 1.3 ms."""
    spans = [
        Span(100 + worker, ns(number * 0.0012), ns(number * 0.0012 + 0.0002))
        for worker in range(4)
        for number in range(500)
    ]
    lone = Span(100, ns(-0.01), ns(-0.0098))
    trial = with_spans(evidence(SYNC, 8, rounds=249), (lone, *spans))
    facts = derived(with_record(trial, lone_s=(0.0013,)))
    assert overhead_s(facts) == pytest.approx(0.0011)
    assert occupancy(facts) == pytest.approx(1.0, abs=0.02)
    without_lone = derived(with_record(trial, lone_s=()))
    assert occupancy(without_lone) == pytest.approx(1 / 6, abs=0.02)


def slowed(level: int, service_s: float) -> TrialData:
    """A server without slots: a lone request takes 100 ms, under load each takes `service_s`."""
    trial = with_record(evidence(UVICORN, level, delay_s=service_s), lone_s=(0.1, 0.1, 0.1))
    return with_measurement(trial, lone_s=None)


def test_the_highest_level_is_not_automatically_saturated() -> None:
    trials = slowed(4, 0.1), slowed(64, 0.12)
    assert [cell.verdict for cell in sweep(*trials).cells] == ["below capacity"] * 2


def test_without_slots_a_verdict_needs_another_level() -> None:
    (alone,) = sweep(slowed(8, 0.15)).cells
    assert alone.verdict == "inconclusive"
    assert isinstance(alone.reason, GrowthUnknown)
    assert (alone.reason.why, alone.reason.add) == (ONE_LEVEL, 16)
    shared = sweep(slowed(2, 0.1), slowed(4, 0.2), slowed(8, 0.4)).cells  # a pool of 2
    assert [cell.verdict for cell in shared] == ["at capacity", "saturated", "saturated"]
    (much,) = sweep(slowed(8, 0.4)).cells
    assert much.verdict == "saturated"


@pytest.mark.parametrize(
    ("rates", "verdicts"),
    [
        # Throughput dips at 8 connections, and 16 only recover from the dip
        ({2: 19.9, 4: 20.0, 8: 17.0, 16: 20.0}, ["at capacity", *["saturated"] * 3]),
        # A pool of 2 in each of 2 workers, with uneven connections: a small gain is no room
        ({2: 20.0, 8: 34.0, 32: 39.6}, ["below capacity", "saturated", "saturated"]),
    ],
)
def test_verdicts_without_slots_follow_the_throughput(
    rates: dict[int, float], verdicts: list[str]
) -> None:
    cells = sweep(*(slowed(n, n / rps) for n, rps in rates.items())).cells
    assert [cell.verdict for cell in cells] == verdicts


@pytest.mark.parametrize(
    ("service_s", "wait", "verdict"),
    [
        (0.13, 2.0, "inconclusive"),  # a quarter in the run queue explains everything
        (0.2, 4.0, "inconclusive"),  # nearly everything
        (0.8, 1.5, "inconclusive"),  # a part, but too much for a verdict on the rest
        (0.8, 0.5, "saturated"),  # little: most of the rest is waiting too
    ],
)
def test_waiting_shows_nothing_if_others_took_the_cores(
    service_s: float, wait: float, verdict: str
) -> None:
    """8 connections; `wait`: seconds in the run queue per second. Lone requests do not wait."""
    quiet = slowed(8, service_s)
    trial = noisy(quiet, server_wait=wait, others=1.8)
    (cell,) = sweep(with_record(trial, lone_s=quiet.record.lone_s)).cells
    assert cell.core_wait is not None
    assert cell.verdict == verdict, cell.core_wait


def repeated(rates: dict[int, tuple[float, ...]]) -> Report:
    """Trials without slots at these requests/s, by connections. A lone request takes 100 ms."""
    trials = (
        evidence(UVICORN, n, trial=number, delay_s=n / rps)
        for n, trial_rates in rates.items()
        for number, rps in enumerate(trial_rates, 1)
    )
    lone_s = (0.1, 0.1, 0.1)
    return sweep(
        *(with_measurement(with_record(trial, lone_s=lone_s), lone_s=None) for trial in trials)
    )


@pytest.mark.parametrize(
    ("highest", "verdict"),
    [((20.0, 20.1, 20.2), "at capacity"), ((12.0, 20.0, 28.0), "below capacity")],
)
def test_a_cell_reaches_no_knee_that_its_series_does_not_show(
    highest: tuple[float, ...], verdict: str
) -> None:
    report = repeated({2: (20.0, 20.0, 20.0), 8: highest})
    assert {cell.verdict for cell in report.cells[:3]} == {verdict}
    assert (report.classes[0].knee is None) is (verdict == "below capacity")


def test_a_gain_within_the_spread_of_trials_is_inconclusive() -> None:
    """Throughput grows by a tenth from 4 to 8 connections, and trials differ as much."""
    cells = repeated({4: (21.0, 24.0, 27.0), 8: (23.0, 26.5, 30.0)}).cells
    assert {cell.verdict for cell in cells[:3]} == {"inconclusive"}
    assert isinstance(cells[0].reason, GrowthUnknown)
    assert cells[0].reason.why == NOT_SIGNIFICANT


def paused(
    settings: Server, connections: int, rounds: int, at_s: float, pause_s: float
) -> TrialData:
    """Requests that sleep for 1 s; the machine pauses `at_s` into the second round, and their sleep
    goes on during the pause."""
    second = range(1 + connections, 1 + 2 * connections)
    slow_s = at_s + max(1 - at_s, pause_s)

    def delays(number: int) -> float:
        return slow_s if number in second else 1.0

    trial = evidence(settings, connections, rounds=rounds, delays=delays)
    pause = Pause(ns(2 + at_s), ns(2 + at_s + pause_s))
    return with_observations(with_record(trial, lone_s=(1.0,)), pauses=(pause,))


@pytest.mark.parametrize("pause_s", [0.5, 1.0, 1.5, 2.5])
@pytest.mark.parametrize("at_s", [0.05, 0.3, 0.6, 0.95])
def test_a_pause_does_not_make_a_cell_saturated(at_s: float, pause_s: float) -> None:
    """With two rounds the steady part is 1 s, and the pause is a large part of it."""
    for rounds, verdicts in ((2, {"below capacity", "inconclusive"}), (5, {"below capacity"})):
        (cell,) = sweep(paused(UVICORN, 10, rounds, at_s, pause_s)).cells
        assert cell.verdict in verdicts
        assert type(cell.diagnosis) is NothingWaits
        assert cell.throughput_rps > 0
        if cell.verdict == "inconclusive":
            assert isinstance(cell.reason, WaitsHiddenByPause)
            assert cell.throughput_rps < 9.5


@pytest.mark.parametrize("pause_s", [0.5, 1.5, 2.5])
def test_a_pause_does_not_excuse_waiting_requests(pause_s: float) -> None:
    (cell,) = sweep(paused(Server("gevent", 2, 1, 2048, 3), 10, 2, 0.5, pause_s)).cells
    assert cell.verdict == "saturated"
    trial = slowed(20, 0.2)
    (cell,) = sweep(trial).cells
    assert cell.verdict == "saturated"
    ended_ns = derived(trial).ended_ns
    pause = Pause(ended_ns - NS // 4, ended_ns + 3 * NS)
    (cell,) = sweep(with_observations(trial, pauses=(pause,))).cells
    assert cell.verdict == "saturated"


def test_a_single_connection_is_below_capacity_despite_a_pause() -> None:
    (cell,) = sweep(paused(UVICORN, 1, 2, 0.5, 2.5)).cells
    assert cell.verdict == "below capacity"
