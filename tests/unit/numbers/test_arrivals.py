"""When requests are due: a Poisson process, the same for whoever asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from workerlab.numbers.arrivals import NS, schedule

SEEDS = range(10_001, 10_006)  # of five trials of a plan with seed 1
RATES = (4.0, 38.0, 900.0)
PASSES = 0.01
FIRST = [44_050_706, 218_210_373, 230_928_447, 317_923_443, 421_175_797]


def kolmogorov_smirnov(values: Sequence[float], below: Callable[[float], float]) -> float:
    """How probable so large a distance of `values` from the distribution function `below` is, if
    they are of it: asymptotic, with the correction of Stephens (1970) for few."""
    n = len(values)
    distance = max(
        max((rank + 1) / n - below(value), below(value) - rank / n)
        for rank, value in enumerate(sorted(values))
    )
    root = math.sqrt(n)
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.2:  # the series does not converge; it is 1 to twelve digits
        return 1.0
    terms = ((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, 2 * math.fsum(terms)))


def gaps_of(moments: Sequence[int], rate: float) -> list[float]:
    """Of a process whose mean gap is 1; the first is that from the origin."""
    return [(after - before) / NS * rate for before, after in pairwise((0, *moments))]


def exponential(gap: float) -> float:
    return 1 - math.exp(-gap)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seed", SEEDS)
def test_gaps_of_poisson_arrivals_are_exponential(seed: int, rate: float) -> None:
    moments = schedule("poisson", rate, 60, seed)
    assert kolmogorov_smirnov(gaps_of(moments, rate), exponential) > PASSES


def test_gaps_follow_from_none_of_those_before() -> None:
    moments = schedule("poisson", 1000, 60, 10_001)
    gaps = gaps_of(moments, 1000)
    n = len(gaps)
    for apart in (1, 2, 3, 10):
        products = ((a - 1) * (b - 1) for a, b in zip(gaps, gaps[apart:], strict=False))
        assert abs(math.fsum(products) / n) < 3 / math.sqrt(n)


def test_many_schedules_are_as_far_from_exponential_as_chance_takes_them() -> None:
    """Their p-values are uniform, then; and the number that is due varies as it should."""
    rate, many = 50.0, [schedule("poisson", 50, 20, seed) for seed in range(400)]
    p_values = [kolmogorov_smirnov(gaps_of(moments, rate), exponential) for moments in many]
    assert kolmogorov_smirnov(p_values, lambda p: p) > PASSES
    # A count of mean 1000 is nearly normal, with a standard deviation of its root
    normal = [(len(moments) + 0.5 - 1000) / math.sqrt(1000) for moments in many]
    assert kolmogorov_smirnov(normal, lambda z: (1 + math.erf(z / math.sqrt(2))) / 2) > PASSES


def test_the_test_tells_other_gaps() -> None:
    even = schedule("even", 38, 60)
    assert kolmogorov_smirnov(gaps_of(even[1:], 38), exponential) < 1e-9
    slower = schedule("poisson", 34, 60, 10_001)
    assert kolmogorov_smirnov(gaps_of(slower, 38), exponential) < PASSES


def test_even_arrivals_are_spaced_evenly() -> None:
    assert list(schedule("even", 4, 1.3)) == [0, 250e6, 500e6, 750e6, 1000e6, 1250e6]
    assert len(schedule("even", 4, 1.25)) == 5  # what would be due at the end, is not
    assert schedule("even", 4, 2, seed=7) == schedule("even", 4, 2)


def test_the_same_seed_gives_the_same_moments_in_every_version_of_python() -> None:
    assert list(schedule("poisson", 10, 0.5, 10_001)) == pytest.approx(FIRST, abs=1)
    assert schedule("poisson", 10, 60, 10_001) == schedule("poisson", 10, 60, 10_001)
    assert schedule("poisson", 10, 60, 10_001) != schedule("poisson", 10, 60, 10_002)


def test_a_longer_load_begins_as_a_shorter_one_and_a_faster_one_is_the_same_in_less_time() -> None:
    short, long = schedule("poisson", 20, 5, 3), schedule("poisson", 20, 50, 3)
    assert short == long[: len(short)]
    twice = schedule("poisson", 40, 25, 3)
    assert [2 * ns for ns in twice] == pytest.approx(list(long), abs=2)


@pytest.mark.parametrize("kind", ["even", "poisson"])
def test_all_moments_are_within_the_load_and_in_order(kind: str) -> None:
    moments = list(schedule(kind, 333.3, 3.7, 5))
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] < 3.7 * NS
    assert sorted(ns for i in range(3) for ns in moments[i::3]) == moments


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown arrivals 'odd'"):
        schedule("odd", 1, 1)
