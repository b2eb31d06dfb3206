"""Batch means of servers whose throughput and service time are known."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.analysis import (
    NS,
    derived,
    evidence,
    server,
    with_cell,
    with_measurement,
    with_spans,
)
from workerlab.analysis.batches import ENOUGH_BATCHES, Precision, precision
from workerlab.analysis.facts import TrialData
from workerlab.model.evidence import Span

SEEDS = 100
# If each of 100 intervals contains the true value with a probability of 0.95, fewer than 82 do so
# once in a million runs
MIN_COVERED = 82


def precision_of(trial: TrialData) -> Precision:
    return precision(derived(trial))


def estimates_of(*args: Any, **settings: Any) -> Precision:
    """The estimates of an ideal trial with these settings."""
    return precision_of(evidence(*args, **settings))


def exponential_estimates(connections: int, rounds: int, seed: int) -> Precision:
    """The estimates of 4 slots with exponential service times of 1 s on average."""
    chance = random.Random(seed)
    # No check uses samples of the machine, and a long `delay_s` makes them rare
    load = {"rounds": rounds, "delays": lambda number: chance.expovariate(1.0), "delay_s": 20.0}
    return estimates_of(server(), connections, **load)


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 12),
    connections=st.integers(1, 24),
    rounds=st.integers(5, 12),
    delay_s=st.sampled_from([0.05, 1.0, 3.7]),
)
def test_constant_service_times_have_no_variance(
    slots: int, connections: int, rounds: int, delay_s: float
) -> None:
    """Even if a batch ends inside a round, for example with 7 connections on 4 slots."""
    trial = evidence(
        server("sync", slots), connections, rounds=rounds, delay_s=delay_s, tool="fast"
    )
    estimates = precision_of(trial)
    assert estimates.variation == pytest.approx(0.0, abs=1e-6)
    throughput, service = estimates.throughput_rps, estimates.service_s
    assert throughput.mean == pytest.approx(min(slots, connections) / delay_s, rel=1e-6)
    assert throughput.half == pytest.approx(0.0, abs=1e-4 * throughput.mean)
    assert service.mean == pytest.approx(delay_s)
    assert service.half == pytest.approx(0.0, abs=1e-6)


def test_a_pause_after_each_round_adds_no_variance() -> None:
    """4 slots idle for 5 of 55 ms: a batch may have one pause more or less than another."""
    trial = evidence(server(), 4, rounds=9, delay_s=0.055)
    shorter = (Span(s.pid, s.start_ns, s.end_ns - NS // 200) for s in trial.spans.spans if s.end_ns)
    estimates = precision_of(with_spans(trial, shorter))
    assert estimates.batches >= ENOUGH_BATCHES
    assert estimates.variation == pytest.approx(0.0, abs=1e-6)
    assert estimates.service_s.mean == pytest.approx(0.050)


@pytest.mark.parametrize("connections", [4, 8])
def test_intervals_cover_the_true_value(connections: int) -> None:
    """Exponential service, 4 slots that are never idle: 4 requests/s, and N/4 seconds each."""
    covered = Counter[str]()
    for seed in range(SEEDS):
        estimates = exponential_estimates(connections, 320 // connections, seed)
        for name, truth in (("throughput_rps", 4.0), ("service_s", 1.0)):
            estimate = getattr(estimates, name)
            covered[name] += abs(estimate.mean - truth) <= estimate.half
    assert min(covered.values()) >= MIN_COVERED, covered


def test_a_longer_load_gives_a_narrower_interval() -> None:
    short, long = (exponential_estimates(8, n, seed=1).throughput_rps for n in (50, 800))
    assert long.half < short.half / 2


def test_drifting_service_times_give_a_wide_interval() -> None:
    """Service times grow from 1 to 3 s. Many small batches would give an interval of a few percent,
    which is too narrow."""
    estimates = estimates_of(server(), 8, rounds=40, delays=lambda number: 1 + number / 160)
    throughput = estimates.throughput_rps
    assert estimates.batches <= ENOUGH_BATCHES
    assert throughput.half > 0.25 * throughput.mean


def test_only_a_timed_load_has_an_interval_of_response_times() -> None:
    timed, untimed = (estimates_of(connections=8, rounds=9, tool=tool) for tool in ("fast", "ab"))
    assert timed.response_s.mean == pytest.approx(2.0)
    assert untimed.response_s is None
    assert untimed.service_s.mean == pytest.approx(1.0)


def test_failures_are_not_in_the_throughput() -> None:
    trial = evidence(connections=8, rounds=9)
    estimates = precision_of(with_measurement(trial, failed=36, errors={"non_2xx": 36}))
    assert estimates.throughput_rps.mean == pytest.approx(4.0 * (73 - 36) / 73)


@pytest.mark.parametrize("rounds", [2, 3, 4])
def test_too_few_rounds_give_no_estimate(rounds: int) -> None:
    assert estimates_of(connections=4, rounds=rounds) == Precision()
    no_steady_part = with_cell(evidence(connections=8, rounds=2), concurrency=16)
    assert precision_of(no_steady_part) == Precision()


@pytest.mark.parametrize("delay_s", [0.1, 0.3, 0.45, 0.7, 2.5])
def test_a_long_load_has_batches_of_about_a_second_or_a_request(delay_s: float) -> None:
    estimates = estimates_of(connections=8, rounds=round(20 / delay_s), delay_s=delay_s)
    assert estimates.is_long
    assert max(delay_s, 2 / 3) - 1e-6 <= estimates.batch_s <= max(delay_s, 1.5) + 1e-6
    assert not estimates_of(connections=8, rounds=10, delay_s=0.1).is_long


def test_a_request_that_never_ended_holds_its_slot() -> None:
    trial = evidence(connections=4, rounds=12, timed=True)
    *others, last = trial.spans.spans
    hung = with_spans(trial, [*others, Span(last.pid, last.start_ns, None)])
    assert precision_of(hung).variation == pytest.approx(0.0, abs=1e-3)
