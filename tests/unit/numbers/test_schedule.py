"""Schedules of requests: evenly spaced, or a reproducible Poisson process; and their sequence in a
mix."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.schedule import NS, schedule, sequence


def test_even_arrivals_are_spaced_evenly() -> None:
    assert list(schedule("even", 4, 1.3)) == [0, 250e6, 500e6, 750e6, 1000e6, 1250e6]
    assert len(schedule("even", 4, 1.25)) == 5  # none is due at the very end
    assert schedule("even", 4, 2, seed=7) == schedule("even", 4, 2)


def test_the_same_seed_gives_the_same_schedule_in_every_python() -> None:
    moments_ns = [44_050_706, 218_210_373, 230_928_447, 317_923_443, 421_175_797]
    assert list(schedule("poisson", 10, 0.5, 10_001)) == pytest.approx(moments_ns, abs=1)
    assert schedule("poisson", 10, 60, 10_001) == schedule("poisson", 10, 60, 10_001)
    assert schedule("poisson", 10, 60, 10_001) != schedule("poisson", 10, 60, 10_002)


def test_a_schedule_extends_with_duration_and_scales_with_rate() -> None:
    short, long = schedule("poisson", 20, 5, 3), schedule("poisson", 20, 50, 3)
    assert short == long[: len(short)]
    double_rate = schedule("poisson", 40, 25, 3)
    assert [2 * ns for ns in double_rate] == pytest.approx(list(long), abs=2)


@pytest.mark.parametrize("kind", ["even", "poisson"])
def test_all_moments_are_within_the_load_and_in_order(kind: str) -> None:
    moments = list(schedule(kind, 333.3, 3.7, 5))
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] < 3.7 * NS
    assert sorted(ns for i in range(3) for ns in moments[i::3]) == moments


def test_unknown_arrivals_are_rejected() -> None:
    with pytest.raises(ValueError, match="unknown arrivals 'odd'"):
        schedule("odd", 1, 1)


# --- the sequence of a mix ----------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20), st.integers(0, 2**64))
def test_the_same_seed_gives_the_same_requests(weights: list[float], seed: int) -> None:
    first, second = (list(islice(sequence(weights, seed), 50)) for _ in range(2))
    assert first == second
    assert set(first) <= set(range(len(weights)))


def test_other_seeds_give_other_requests() -> None:
    assert len({tuple(islice(sequence((1, 2, 3), seed), 50)) for seed in range(20)}) == 20


@pytest.mark.parametrize("weights", [(1, 2, 7), (0.6, 0.39, 0.01), (1,)])
@pytest.mark.parametrize("seed", range(3))
def test_requests_are_as_frequent_as_their_weights(weights: tuple[float, ...], seed: int) -> None:
    """Within five standard deviations of the binomial distribution."""
    n = 20_000
    counts = Counter(islice(sequence(weights, seed), n))
    for route, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(counts[route] - n * share) <= 5 * (n * share * (1 - share)) ** 0.5


def test_the_sequence_is_the_same_in_every_python() -> None:
    """Stored runs are read later, and load hosts have their own Python."""
    routes = [2, 2, 2, 1, 2, 2, 2, 0, 2, 2, 2, 2, 0, 2, 0, 0, 2, 1, 2, 0]
    assert list(islice(sequence((1, 2, 7), 4), 20)) == routes
