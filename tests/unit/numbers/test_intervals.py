"""Ratios of geometric means and their 95 % intervals."""

from __future__ import annotations

import math
import random

import pytest

from workerlab.numbers.intervals import (
    Prior,
    half_width,
    half_width_of_mean,
    interval_of_sum,
    ratio,
)


def test_an_interval_that_includes_1_is_no_difference() -> None:
    assert ratio([1.05, 1.1, 1.2], [1.0, 1.1, 1.2]).differs is False


@pytest.mark.parametrize("values", [[1.1], [1.1, 1.1, 1.1]])
def test_a_single_value_on_one_side_gives_no_interval(values: list[float]) -> None:
    interval = ratio(values, [1.0])
    assert interval.value == pytest.approx(1.1)
    assert (interval.low, interval.high, interval.differs) == (None, None, None)
    assert half_width_of_mean([1.0]) is None


def test_more_values_narrow_an_interval_around_the_same_ratio() -> None:
    new, old = [0.9, 1.0, 1.1], [2.0, 2.1, 2.2]
    intervals = [ratio(new, old), *(ratio(new, old, count) for count in (3, 12, 48))]
    assert len({round(interval.value, 12) for interval in intervals}) == 1
    widths = [math.log(interval.high / interval.low) for interval in intervals]
    assert widths[1] > 2 * widths[2] > 3.9 * widths[3]
    assert widths[1] > widths[0]


def test_the_needed_sample_size_is_that_of_the_textbook() -> None:
    """Two means a standard deviation apart: 17 on each side for a power of 80 %."""
    offset = math.sqrt(0.5)  # for a standard deviation of 1
    new, old = ([math.exp(mean - offset), math.exp(mean + offset)] for mean in (1, 0))
    needed = next(n for n in range(3, 40) if ratio(new, old, n).low > 1)
    assert needed in (17, 18, 19)  # with Student's t of fewer degrees of freedom


def test_equal_variances_have_all_degrees_of_freedom() -> None:
    """Two degrees, computed as 1.9999999999999996."""
    half = half_width([0.0, 0.2], [5.0, 5.2], lambda degrees: degrees)
    assert half == pytest.approx(2 * math.sqrt(0.02))


@pytest.mark.parametrize("observed", [0, 1, 4])
@pytest.mark.parametrize("prior", [Prior(0.0, 1.0), Prior(24.0, 5.4, weight=1 / 3)])
def test_an_interval_of_a_sum_covers_it_in_nine_of_ten_cases(observed: int, prior: Prior) -> None:
    chance, covered = random.Random(f"{observed}"), 0
    for _ in range(500):
        mean = chance.gauss(prior.mean, prior.deviation / math.sqrt(prior.weight))
        values = [chance.gauss(mean, prior.deviation) for _ in range(observed + 6)]
        low, high = interval_of_sum(6, values[:observed], prior)
        covered += low <= sum(values[observed:]) <= high
    assert covered >= 0.9 * 500


def test_observed_values_narrow_the_interval_of_a_sum() -> None:
    widths, prior = [], Prior(24.0, 5.4, weight=1 / 3)
    for values in ([], [14.0], [13.0, 15.0, 14.0, 14.0]):
        low, high = interval_of_sum(6, values, prior)
        widths.append(high - low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]
