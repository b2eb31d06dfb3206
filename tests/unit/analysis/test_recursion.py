"""The recursion against a simulation of every tick, and against theory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, tee
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.recursion import pollaczek_khinchine, waits
from workerlab.experiments.lesson.law import allen_cunneen, erlang_c

TICKS = st.integers(0, 40)


def by_brute_force(arrivals: list[int], services: list[int], slots: int) -> list[int]:
    """Tick after tick: who ends leaves, who is first in the queue takes a free slot."""
    ends: list[int] = []
    queue: list[int] = []
    waited = [0] * len(arrivals)
    for tick in range(sum(services) + max(arrivals, default=0) + 1):
        ends = [end for end in ends if end > tick]
        queue += [number for number, arrival in enumerate(arrivals) if arrival == tick]
        while queue and len(ends) < slots:
            number = queue.pop(0)
            waited[number] = tick - arrivals[number]
            # One that needs no time leaves its slot for the next one in the same tick
            ends += [tick + services[number]] if services[number] else []
    return waited


@given(st.lists(st.tuples(TICKS, TICKS), max_size=30), st.integers(1, 5))
def test_it_is_what_a_simulation_of_every_tick_gives(
    requests: list[tuple[int, int]], slots: int
) -> None:
    arrivals = sorted(arrival for arrival, _ in requests)
    services = [service for _, service in requests]
    assert list(waits(arrivals, services, slots)) == by_brute_force(arrivals, services, slots)


def poisson(rate_rps: float, count: int, rng: Random) -> Iterator[float]:
    return accumulate(rng.expovariate(rate_rps) for _ in range(count))


def two_rates(rng: Random) -> float:
    """Hyperexponential: a tenth takes ten times as long. Mean 0.1, mean square 0.0766."""
    return rng.expovariate(1.9 if rng.random() < 0.1 else 19)


@pytest.mark.parametrize(
    ("service", "square"),
    [(lambda _: 0.1, 0.01), (lambda rng: rng.expovariate(10), 0.02)],
    ids=["M/D/1", "M/M/1"],
)
def test_pollaczek_khinchine(service: Callable[[Random], float], square: float) -> None:
    """At half of the capacity, where 400 000 arrivals know the mean within 1 % (the standard error
    is 0.4 %); `tests/benchmarks/queueing.py` has 10 million of them."""
    rng, count = Random(12), 400_000
    services = (service(rng) for _ in range(count))
    found_s = fmean(waits(poisson(5, count, Random(13)), services))
    assert found_s == pytest.approx(pollaczek_khinchine(5, 0.1, square), rel=0.02)


def test_erlang_c() -> None:
    rng, count = Random(12), 400_000
    services = (rng.expovariate(10) for _ in range(count))
    found, again = tee(waits(poisson(28, count, Random(13)), services, 4))
    assert fmean(one > 0 for one in found) == pytest.approx(erlang_c(28, 0.1, 4), rel=0.02)
    assert fmean(again) == pytest.approx(allen_cunneen(28, 0.1, 0.02, 4), rel=0.04)


def test_theory_of_one_slot_is_the_same_by_all_formulas() -> None:
    assert erlang_c(5, 0.1, 1) == pytest.approx(0.5)
    assert pollaczek_khinchine(5, 0.1, 0.02) == pytest.approx(0.1)
    assert allen_cunneen(5, 0.1, 0.03, 1) == pytest.approx(pollaczek_khinchine(5, 0.1, 0.03))


def test_no_steady_state_is_an_error() -> None:
    with pytest.raises(ValueError, match="no steady state: 1 of the slots"):
        erlang_c(40, 0.1, 4)


def test_no_slot_is_an_error() -> None:
    with pytest.raises(ValueError, match="there are 0"):
        waits([], [], 0)


def test_a_request_without_a_service_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        list(waits([0.0, 1.0], [1.0], 2))
