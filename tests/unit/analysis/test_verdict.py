"""Verdicts by measured occupancy: what is so by construction, however service times vary."""

import random
from collections.abc import Callable

import pytest

from tests.builders.analysis import (
    NS,
    SYNC,
    derived,
    evidence,
    ns,
    recording,
    saying,
    seeing,
    with_spans,
)
from tests.builders.noise import noisy
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.slots import NothingWaits
from workerlab.analysis.slots import occupancy, overhead_s
from workerlab.analysis.verdict import ONE_LEVEL, WITHIN_CHANCE, GrowthUnknown, WaitsHiddenByPause
from workerlab.model import Pause, Report, Server, Span

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
    return recording(trial, lone_s=tuple(draw(source) for _ in range(5)))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_verdicts_of_slots_hold_for_any_distribution(name: str, seed: int) -> None:
    levels = (2, 3, 4, 5, 6, 8, 12, 16)
    report = sweep(*(random_service(name, seed, level) for level in levels))
    for cell in report.cells:
        n = cell.trial.cell.concurrency
        expected = "below capacity" if n < 4 else "at capacity" if n == 4 else "saturated"
        assert cell.verdict == expected, (n, cell.occupancy, cell.reason)


@pytest.mark.parametrize(("level", "taken"), [(1, 0.25), (2, 0.5), (4, 1.0), (16, 1.0)])
def test_occupancy_of_a_sleeping_app(level: int, taken: float) -> None:
    assert occupancy(derived(evidence(SYNC, level, rounds=20))) == pytest.approx(taken, abs=0.01)


def test_without_configured_slots_there_is_no_occupancy() -> None:
    assert occupancy(derived(evidence(UVICORN, 8))) is None


def test_a_slot_is_held_for_longer_than_the_app_runs() -> None:
    """Spans of 0.2 ms, a millisecond apart; a lone request took 1.3 ms."""
    spans = [
        Span(100 + worker, ns(number * 0.0012), ns(number * 0.0012 + 0.0002))
        for worker in range(4)
        for number in range(500)
    ]
    lone = Span(100, ns(-0.01), ns(-0.0098))
    trial = with_spans(evidence(SYNC, 8, rounds=249), (lone, *spans))
    known = derived(recording(trial, lone_s=(0.0013,)))
    assert overhead_s(known) == pytest.approx(0.0011)
    assert occupancy(known) == pytest.approx(1.0, abs=0.02)
    unknown = derived(recording(trial, lone_s=()))
    assert occupancy(unknown) == pytest.approx(1 / 6, abs=0.02)


def slowed(level: int, took_s: float) -> TrialData:
    """Without slots; a lone request took 100 ms, each of so many together `took_s`."""
    trial = recording(evidence(UVICORN, level, delay_s=took_s), lone_s=(0.1, 0.1, 0.1))
    return saying(trial, lone_s=None)


def test_the_highest_level_is_not_saturated_for_being_the_highest() -> None:
    """Each request takes longer the more there are, and throughput still grows."""
    trials = slowed(4, 0.1), slowed(64, 0.12)
    assert [cell.verdict for cell in sweep(*trials).cells] == ["below capacity"] * 2


def test_where_no_slots_bind_another_level_must_tell() -> None:
    (alone,) = sweep(slowed(8, 0.15)).cells
    assert alone.verdict == "inconclusive"
    assert isinstance(alone.reason, GrowthUnknown)
    assert (alone.reason.why, alone.reason.add) == (ONE_LEVEL, 16)
    shared = sweep(slowed(2, 0.1), slowed(4, 0.2), slowed(8, 0.4)).cells  # a pool of 2
    assert [cell.verdict for cell in shared] == ["at capacity", "saturated", "saturated"]
    (much,) = sweep(slowed(8, 0.4)).cells
    assert much.verdict == "saturated"


def test_no_level_is_below_capacity_beyond_a_saturated_one() -> None:
    """Throughput dips at 8 connections, and what comes after gains on the dip alone."""
    trials = [slowed(n, n / rps) for n, rps in ((2, 19.9), (4, 20.0), (8, 17.0), (16, 20.0))]
    verdicts = [cell.verdict for cell in sweep(*trials).cells]
    assert verdicts == ["at capacity", "saturated", "saturated", "saturated"]


def test_where_most_of_the_time_is_waiting_a_weak_gain_is_no_room() -> None:
    """A pool of 2 in each of 2 workers, which connections are dealt to unevenly."""
    trials = [slowed(n, n / rps) for n, rps in ((2, 20.0), (8, 34.0), (32, 39.6))]
    verdicts = [cell.verdict for cell in sweep(*trials).cells]
    assert verdicts == ["below capacity", "saturated", "saturated"]


@pytest.mark.parametrize(
    ("took_s", "wait", "verdict"),
    [
        (0.13, 2.0, "below capacity"),  # a third in the run queue: it explains all
        (0.2, 1.0, "inconclusive"),  # a quarter of it
        (0.2, 4.0, "inconclusive"),  # nearly all of it: what is left is too rough to say
        (0.8, 0.5, "saturated"),  # a part of it: still most of the time is waiting without it
    ],
)
def test_what_waiting_for_a_core_cost_is_taken_off(
    took_s: float, wait: float, verdict: str
) -> None:
    """8 connections at 40 (10) requests a second; `wait`: run-queue seconds per second. Lone ones
    waited for nothing."""
    quiet = slowed(8, took_s)
    assert quiet.record is not None
    trial = noisy(quiet, server_wait=wait, others=1.8)
    (cell,) = sweep(recording(trial, lone_s=quiet.record.lone_s)).cells
    assert cell.core_wait is not None
    assert cell.verdict == verdict, cell.core_wait


def test_a_gain_within_chance_decides_nothing() -> None:
    """Throughput rises by a tenth from 4 to 8 connections, and trials differ by as much."""
    rates = {4: (21.0, 24.0, 27.0), 8: (23.0, 26.5, 30.0)}
    trials = [
        evidence(UVICORN, n, trial=number, delay_s=n / rps)
        for n, several in rates.items()
        for number, rps in enumerate(several, 1)
    ]
    lone = [saying(recording(one, lone_s=(0.1, 0.1, 0.1)), lone_s=None) for one in trials]
    cells = sweep(*lone).cells
    assert {cell.verdict for cell in cells[:3]} == {"inconclusive"}
    assert isinstance(cells[0].reason, GrowthUnknown)
    assert cells[0].reason.why == WITHIN_CHANCE


def paused(asked: Server, connections: int, rounds: int, at_s: float, pause_s: float) -> TrialData:
    """The machine stood still in the second round of requests that sleep for a second, `at_s`
    after it began; their sleep went on meanwhile."""
    second = range(1 + connections, 1 + 2 * connections)
    slow_s = at_s + max(1 - at_s, pause_s)
    trial = evidence(
        asked, connections, rounds=rounds, delays=lambda number: slow_s if number in second else 1.0
    )
    pause = Pause(ns(2 + at_s), ns(2 + at_s + pause_s))
    return seeing(recording(trial, lone_s=(1.0,)), pauses=(pause,))


@pytest.mark.parametrize("pause_s", [0.5, 1.0, 1.5, 2.5])
@pytest.mark.parametrize("at_s", [0.05, 0.3, 0.6, 0.95])
def test_a_machine_that_stood_still_saturates_nothing(at_s: float, pause_s: float) -> None:
    """Of two rounds the steady part is one second, and much of what it takes is the pause."""
    for rounds, words in ((2, {"below capacity", "inconclusive"}), (5, {"below capacity"})):
        (cell,) = sweep(paused(UVICORN, 10, rounds, at_s, pause_s)).cells
        assert cell.verdict in words
        assert type(cell.diagnosis) is NothingWaits
        assert cell.throughput_rps is not None
        if cell.verdict == "inconclusive":
            assert isinstance(cell.reason, WaitsHiddenByPause)
            assert cell.throughput_rps < 9.5


@pytest.mark.parametrize("pause_s", [0.5, 1.5, 2.5])
def test_a_pause_excuses_nothing_where_requests_wait(pause_s: float) -> None:
    """For slots, or before and after it, too."""
    (cell,) = sweep(paused(Server("gevent", 2, 1, 2048, 3), 10, 2, 0.5, pause_s)).cells
    assert cell.verdict == "saturated"
    trial = slowed(20, 0.2)
    (cell,) = sweep(trial).cells
    assert cell.verdict == "saturated"
    ended_ns = derived(trial).ended_ns
    pause = Pause(ended_ns - NS // 4, ended_ns + 3 * NS)
    (cell,) = sweep(seeing(trial, pauses=(pause,))).cells
    assert cell.verdict == "saturated"


def test_a_single_connection_waits_for_nobody_however_long_the_machine_stood_still() -> None:
    (cell,) = sweep(paused(UVICORN, 1, 2, 0.5, 2.5)).cells
    assert cell.verdict == "below capacity"
