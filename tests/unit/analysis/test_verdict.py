"""Verdicts by measured occupancy, for any distribution of service times."""

import random
from collections.abc import Callable

import pytest

from tests.builders.analysis import (
    NS,
    SYNC,
    cell_of,
    derived,
    evidence,
    ns,
    report_of,
    verdicts,
    with_lone,
    with_observations,
    with_record,
    with_spans,
)
from tests.builders.noise import noisy
from workerlab.analysis import TrialData
from workerlab.analysis.diagnosis.slots import NothingWaits
from workerlab.analysis.slots import occupancy, overhead_s
from workerlab.analysis.verdict import NOT_SIGNIFICANT, ONE_LEVEL, GrowthUnknown, WaitsHiddenByPause
from workerlab.model.evidence import Pause, Span
from workerlab.model.plan import Server
from workerlab.model.result import Report

UVICORN = Server("uvicorn", 4, 1, 2048, 1000)
MEAN_S = 0.055
DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda chance: MEAN_S,
    "exponential": lambda chance: chance.expovariate(1 / MEAN_S),
    "bimodal": lambda chance: chance.choice((0.01, 0.1)),
    "heavy tail": lambda chance: 0.02 * chance.paretovariate(1.6),
}


def random_service(name: str, seed: int, level: int) -> TrialData:
    """A trial on 4 slots, and a few lone requests of the same distribution."""
    chance, draw = random.Random(f"{name} {seed} {level}"), DISTRIBUTIONS[name]
    trial = evidence(SYNC, level, delays=lambda _: draw(chance), rounds=60)
    return with_record(trial, lone_s=tuple(draw(chance) for _ in range(5)))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("seed", range(6))
def test_verdicts_of_slots_hold_for_any_distribution(name: str, seed: int) -> None:
    levels = (2, 3, 4, 5, 6, 8, 12, 16)
    report = report_of(*(random_service(name, seed, level) for level in levels))
    expected = ["below capacity"] * 2 + ["at capacity"] + ["saturated"] * 5
    assert verdicts(report) == expected, [(cell.occupancy, cell.reason) for cell in report.cells]


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


@pytest.mark.parametrize("failed", [(), (0,), (4,), (1, 3), (0, 2, 4)])
def test_each_lone_response_is_compared_with_its_own_span(failed: tuple[int, ...]) -> None:
    """Five lone requests, each longer than the last and 2 ms longer than its span; those that
    `failed` took no time in the app."""
    lone = [(-1 + 0.1 * number, 0.01 * (number + 1)) for number in range(5)]
    spans = [
        Span(100, ns(at_s), ns(at_s + (0.0 if number in failed else length_s - 0.002)))
        for number, (at_s, length_s) in enumerate(lone)
    ]
    succeeded = [request for number, request in enumerate(lone) if number not in failed]
    trial = evidence()
    trial = with_record(
        with_spans(trial, (*spans, *trial.spans.spans)),
        lone_s=tuple(length_s for _, length_s in succeeded),
        lone_begun_ns=tuple(ns(at_s) for at_s, _ in succeeded),
    )
    assert overhead_s(derived(trial)) == pytest.approx(0.002)


def slowed(level: int, service_s: float, **changes: int) -> TrialData:
    """A server without slots: a lone request takes 100 ms, under load each takes `service_s`."""
    return with_lone(evidence(UVICORN, level, delay_s=service_s, **changes), (0.1, 0.1, 0.1))


def test_without_slots_a_verdict_needs_another_level() -> None:
    alone = cell_of(slowed(8, 0.15))
    assert alone.verdict == "inconclusive"
    assert isinstance(alone.reason, GrowthUnknown)
    assert (alone.reason.why, alone.reason.add) == (ONE_LEVEL, 16)
    assert cell_of(slowed(8, 0.4)).verdict == "saturated"


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        # The highest level is not automatically saturated
        ({4: 40.0, 64: 64 / 0.12}, ["below capacity"] * 2),
        # A pool of 2
        ({2: 20.0, 4: 20.0, 8: 20.0}, ["at capacity", "saturated", "saturated"]),
        # Throughput dips at 8 connections, and 16 only recover from the dip
        ({2: 19.9, 4: 20.0, 8: 17.0, 16: 20.0}, ["at capacity", *["saturated"] * 3]),
        # A pool of 2 in each of 2 workers, uneven connections: a small gain is no spare capacity
        ({2: 20.0, 8: 34.0, 32: 39.6}, ["below capacity", "saturated", "saturated"]),
    ],
)
def test_verdicts_without_slots_follow_the_throughput(
    rates: dict[int, float], expected: list[str]
) -> None:
    assert verdicts(report_of(*(slowed(n, n / rps) for n, rps in rates.items()))) == expected


@pytest.mark.parametrize(
    ("service_s", "wait", "verdict"),
    [
        (0.13, 2.0, "inconclusive"),  # a quarter in the run queue explains everything
        (0.2, 4.0, "inconclusive"),  # nearly everything
        (0.8, 1.5, "inconclusive"),  # a part, but too much for a verdict on the rest
        (0.8, 0.5, "saturated"),  # little: most of the rest is waiting too
    ],
)
def test_waiting_is_inconclusive_if_other_programs_used_the_cores(
    service_s: float, wait: float, verdict: str
) -> None:
    """8 connections; `wait`: seconds in the run queue per second. Lone requests do not wait."""
    quiet = slowed(8, service_s)
    trial = noisy(quiet, server_wait=wait, others=1.8)
    cell = cell_of(with_record(trial, lone_s=quiet.record.lone_s))
    assert cell.core_wait is not None
    assert cell.verdict == verdict, cell.core_wait


def repeated(rates: dict[int, tuple[float, ...]]) -> Report:
    """Trials without slots at these requests/s, by connections."""
    return report_of(
        *(
            slowed(n, n / rps, trial=number)
            for n, trial_rates in rates.items()
            for number, rps in enumerate(trial_rates, 1)
        )
    )


@pytest.mark.parametrize(
    ("highest", "verdict"),
    [((20.0, 20.1, 20.2), "at capacity"), ((12.0, 20.0, 28.0), "below capacity")],
)
def test_a_cell_reaches_no_knee_that_its_series_does_not_show(
    highest: tuple[float, ...], verdict: str
) -> None:
    report = repeated({2: (20.0, 20.0, 20.0), 8: highest})
    assert verdicts(report)[:3] == [verdict] * 3
    assert (report.classes[0].knee is None) is (verdict == "below capacity")


def test_a_gain_within_the_spread_of_trials_is_inconclusive() -> None:
    """Throughput grows by a tenth from 4 to 8 connections, and trials differ as much."""
    report = repeated({4: (21.0, 24.0, 27.0), 8: (23.0, 26.5, 30.0)})
    assert verdicts(report)[:3] == ["inconclusive"] * 3
    assert isinstance(report.cells[0].reason, GrowthUnknown)
    assert report.cells[0].reason.why == NOT_SIGNIFICANT


def paused(
    settings: Server, connections: int, rounds: int, at_s: float, pause_s: float
) -> TrialData:
    """Requests that sleep for 1 s; the machine pauses `at_s` into the second round, and their sleep
    goes on during the pause."""
    second_round = range(1 + connections, 1 + 2 * connections)
    slow_s = at_s + max(1 - at_s, pause_s)

    def delays(number: int) -> float:
        return slow_s if number in second_round else 1.0

    trial = evidence(settings, connections, rounds=rounds, delays=delays)
    pause = Pause(ns(2 + at_s), ns(2 + at_s + pause_s))
    return with_observations(with_record(trial, lone_s=(1.0,)), pauses=(pause,))


@pytest.mark.parametrize("pause_s", [0.5, 1.0, 1.5, 2.5])
@pytest.mark.parametrize("at_s", [0.05, 0.3, 0.6, 0.95])
def test_a_pause_does_not_make_a_cell_saturated(at_s: float, pause_s: float) -> None:
    """With two rounds the steady part is 1 s, and the pause is a large part of it."""
    for rounds, allowed in ((2, {"below capacity", "inconclusive"}), (5, {"below capacity"})):
        cell = cell_of(paused(UVICORN, 10, rounds, at_s, pause_s))
        assert cell.verdict in allowed
        assert type(cell.diagnosis) is NothingWaits
        assert cell.throughput_rps > 0
        if cell.verdict == "inconclusive":
            assert isinstance(cell.reason, WaitsHiddenByPause)
            assert cell.throughput_rps < 9.5


@pytest.mark.parametrize("pause_s", [0.5, 1.5, 2.5])
def test_a_pause_does_not_excuse_waiting_requests(pause_s: float) -> None:
    trial = paused(Server("gevent", 2, 1, 2048, 3), 10, 2, 0.5, pause_s)
    assert cell_of(trial).verdict == "saturated"


def test_a_pause_at_the_end_does_not_excuse_waiting_requests() -> None:
    trial = slowed(20, 0.2)
    assert cell_of(trial).verdict == "saturated"
    ended_ns = derived(trial).ended_ns
    pause = Pause(ended_ns - NS // 4, ended_ns + 3 * NS)
    assert cell_of(with_observations(trial, pauses=(pause,))).verdict == "saturated"


def test_a_single_connection_is_below_capacity_despite_a_pause() -> None:
    assert cell_of(paused(UVICORN, 1, 2, 0.5, 2.5)).verdict == "below capacity"
