"""The recursion, compared with a tick-by-tick simulation and with theory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.recursion import allen_cunneen, erlang_c, pollaczek_khinchine, waits

TICKS = st.integers(0, 40)


def by_brute_force(arrivals: list[int], services: list[int], slots: int) -> list[int]:
    """In every tick finished requests leave, and the first in the queue take the free slots."""
    ends: list[int] = []
    queue: list[int] = []
    waited = [0] * len(arrivals)
    for tick in range(sum(services) + max(arrivals, default=0) + 1):
        ends = [end for end in ends if end > tick]
        queue += [number for number, arrival in enumerate(arrivals) if arrival == tick]
        while queue and len(ends) < slots:
            number = queue.pop(0)
            waited[number] = tick - arrivals[number]
            # A request that needs no time frees its slot in the same tick
            ends += [tick + services[number]] if services[number] else []
    return waited


@given(st.lists(st.tuples(TICKS, TICKS), max_size=30), st.integers(1, 5))
def test_waits_equal_those_of_a_tick_by_tick_simulation(
    requests: list[tuple[int, int]], slots: int
) -> None:
    arrivals = sorted(arrival for arrival, _ in requests)
    services = [service for _, service in requests]
    assert list(waits(arrivals, services, slots)) == by_brute_force(arrivals, services, slots)


def poisson(rate_rps: float, count: int, rng: Random) -> Iterator[float]:
    return accumulate(rng.expovariate(rate_rps) for _ in range(count))


@pytest.mark.parametrize(
    ("service", "square"),
    [(lambda _: 0.1, 0.01), (lambda rng: rng.expovariate(10), 0.02)],
    ids=["M/D/1", "M/M/1"],
)
def test_pollaczek_khinchine(service: Callable[[Random], float], square: float) -> None:
    """At half of the capacity; 400 000 arrivals give the mean with a standard error of 0.4 %.
    `tests/benchmarks/queueing.py` uses 10 million."""
    rng, count = Random(12), 400_000
    services = (service(rng) for _ in range(count))
    mean_wait_s = fmean(waits(poisson(5, count, Random(13)), services))
    assert mean_wait_s == pytest.approx(pollaczek_khinchine(5, 0.1, square), rel=0.02)


def test_erlang_c() -> None:
    rng, count = Random(12), 400_000
    services = (rng.expovariate(10) for _ in range(count))
    waits_s = list(waits(poisson(28, count, Random(13)), services, 4))
    assert fmean(wait_s > 0 for wait_s in waits_s) == pytest.approx(erlang_c(28, 0.1, 4), rel=0.02)
    assert fmean(waits_s) == pytest.approx(allen_cunneen(28, 0.1, 0.02, 4), rel=0.04)


def test_all_formulas_agree_for_one_slot() -> None:
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
