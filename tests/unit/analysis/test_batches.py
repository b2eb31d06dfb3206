"""Batch means against servers whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.analysis import asking, derived, evidence, ns, saying, server, with_spans
from workerlab.analysis.batches import ENOUGH_BATCHES, Estimate, Precision, precision
from workerlab.analysis.facts import TrialData

SEEDS = 100
# Of 100 intervals that hold the truth with a chance of 0.95 each, fewer than 82 do so once in a
# million times
COVERED = 82


def of(trial: TrialData) -> Precision:
    return precision(derived(trial))


def known(estimate: Estimate | None) -> Estimate:
    assert estimate is not None
    return estimate


def drawn(seed: int, draw: Callable[[random.Random], float]) -> Callable[[int], float]:
    """Service times, one after the other."""
    chance = random.Random(seed)
    return lambda number: draw(chance)


def exponential(chance: random.Random) -> float:
    return chance.expovariate(1.0)


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 12),
    connections=st.integers(1, 24),
    rounds=st.integers(5, 12),
    delay_s=st.sampled_from([0.05, 1.0, 3.7]),
)
def test_rounds_that_take_the_same_time_vary_nowhere(
    slots: int, connections: int, rounds: int, delay_s: float
) -> None:
    """Also where the cuts fall inside a round: 7 connections on 4 slots, and any other."""
    found = of(
        evidence(server("sync", slots), connections, rounds=rounds, delay_s=delay_s, tool="fast")
    )
    assert found.variation == pytest.approx(0.0, abs=1e-6)
    throughput, service = known(found.throughput_rps), known(found.service_s)
    assert throughput.mean == pytest.approx(min(slots, connections) / delay_s, rel=1e-6)
    assert throughput.half == pytest.approx(0.0, abs=1e-4 * throughput.mean)
    assert service.mean == pytest.approx(delay_s)
    assert service.half == pytest.approx(0.0, abs=1e-6)


def test_a_pause_after_each_round_is_no_variance() -> None:
    """4 slots idle for 5 of 55 ms: batches of any other length have one pause more or less."""
    trial = evidence(server(), 4, rounds=9, delay_s=0.055)
    paused = (
        (span, span.end_ns - ns(0.005) + ns(0.0)) for span in trial.spans.spans if span.end_ns
    )
    shorter = with_spans(trial, (type(s)(s.pid, s.start_ns, end) for s, end in paused))
    found = of(shorter)
    assert found.batches >= ENOUGH_BATCHES
    assert found.variation == pytest.approx(0.0, abs=1e-6)
    assert known(found.service_s).mean == pytest.approx(0.050)


@pytest.mark.parametrize("connections", [4, 8])
def test_the_truth_is_in_19_of_20_intervals(connections: int) -> None:
    """Exponential service, 4 slots that are never idle: 4 requests/s, and N/4 seconds each."""
    inside = {"throughput": 0, "service": 0}
    for seed in range(SEEDS):
        delays = drawn(seed, exponential)
        found = of(evidence(server(), connections, rounds=320 // connections, delays=delays))
        for name, estimate, truth in (
            ("throughput", known(found.throughput_rps), 4.0),
            ("service", known(found.service_s), 1.0),
        ):
            inside[name] += abs(estimate.mean - truth) <= estimate.half
    assert min(inside.values()) >= COVERED, inside


def test_four_times_as_long_knows_twice_as_well() -> None:
    short, long = (
        known(of(evidence(server(), 8, rounds=many, delays=drawn(1, exponential))).throughput_rps)
        for many in (50, 800)
    )
    assert long.half < short.half / 2


def test_what_drifts_is_known_badly() -> None:
    """Service times from 1 to 3 s, one as certain as the other: means of many small batches would
    seem to know their own mean to some percent."""
    found = of(evidence(server(), 8, rounds=40, delays=lambda number: 1 + number / 160))
    throughput = known(found.throughput_rps)
    assert found.batches <= ENOUGH_BATCHES
    assert throughput.half > 0.25 * throughput.mean


def test_response_times_are_known_where_the_client_timed_them() -> None:
    timed, untimed = (of(evidence(connections=8, rounds=9, tool=tool)) for tool in ("fast", "ab"))
    assert known(timed.response_s).mean == pytest.approx(2.0)
    assert untimed.response_s is None
    assert known(untimed.service_s).mean == pytest.approx(1.0)


def test_what_failed_is_not_in_the_throughput() -> None:
    trial = evidence(connections=8, rounds=9)
    found = of(saying(trial, failed=36, errors={"non_2xx": 36}))
    assert known(found.throughput_rps).mean == pytest.approx(4.0 * (73 - 36) / 73)


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_too_few_rounds_are_unknown(rounds: int) -> None:
    assert of(evidence(connections=4, rounds=rounds)) == Precision()


def test_a_cell_without_a_steady_part_is_unknown() -> None:
    assert of(asking(evidence(connections=8, rounds=2), concurrency=16)) == Precision()


@pytest.mark.parametrize("delay_s", [0.1, 0.3, 0.45, 0.7, 2.5])
def test_a_long_load_has_batches_of_about_a_second_or_a_request(delay_s: float) -> None:
    found = of(evidence(connections=8, rounds=round(20 / delay_s), delay_s=delay_s))
    assert found.is_long
    assert found.batch_s is not None
    assert max(delay_s, 2 / 3) - 1e-6 <= found.batch_s <= max(delay_s, 1.5) + 1e-6


def test_a_short_load_is_not_called_long() -> None:
    assert not of(evidence(connections=8, rounds=10, delay_s=0.1)).is_long


def test_a_request_that_never_ended_holds_its_slot() -> None:
    trial = evidence(connections=4, rounds=12, timed=True)
    *others, last = trial.spans.spans
    hung = type(last)(last.pid, last.start_ns, None)
    assert of(with_spans(trial, [*others, hung])).variation == pytest.approx(0.0, abs=1e-3)
