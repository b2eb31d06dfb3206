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


@pytest.mark.parametrize("after", [[1.1], [1.1, 1.1, 1.1]])
def test_one_value_on_a_side_has_no_interval(after: list[float]) -> None:
    interval = ratio(after, [1.0])
    assert interval.value == pytest.approx(1.1)
    assert (interval.low, interval.high, interval.differs) == (None, None, None)
    assert half_width_of_mean([1.0]) is None


def test_more_values_narrow_an_interval_around_the_same_ratio() -> None:
    after, before = [0.9, 1.0, 1.1], [2.0, 2.1, 2.2]
    intervals = [ratio(after, before), *(ratio(after, before, count) for count in (3, 12, 48))]
    assert len({round(interval.value, 12) for interval in intervals}) == 1
    widths = [math.log((interval.high or 0.0) / (interval.low or 1.0)) for interval in intervals]
    assert widths[1] > 2 * widths[2] > 3.9 * widths[3]
    assert widths[1] > widths[0]


def test_the_needed_sample_size_is_that_of_the_textbook() -> None:
    """Two means a standard deviation apart: 17 on each side for a power of 80 %."""
    off = math.sqrt(0.5)  # for a standard deviation of 1
    after, before = [math.exp(1 - off), math.exp(1 + off)], [math.exp(-off), math.exp(off)]
    least = next(n for n in range(3, 40) if (ratio(after, before, n).low or 0.0) > 1)
    assert least in (17, 18, 19)  # with Student's t of fewer degrees of freedom


def test_equal_variances_have_all_degrees_of_freedom() -> None:
    """Two, computed as 1.9999999999999996."""
    half = half_width([0.0, 0.2], [5.0, 5.2], lambda degrees: degrees)
    assert half == pytest.approx(2 * math.sqrt(0.02))


@pytest.mark.parametrize("observed", [0, 1, 4])
@pytest.mark.parametrize("prior", [Prior(0.0, 1.0), Prior(24.0, 5.4, weight=1 / 3)])
def test_a_predicted_sum_holds_in_nine_of_ten(observed: int, prior: Prior) -> None:
    source, held = random.Random(f"{observed}"), 0
    for _ in range(500):
        mean = source.gauss(prior.mean, prior.deviation / math.sqrt(prior.weight))
        values = [source.gauss(mean, prior.deviation) for _ in range(observed + 6)]
        low, high = interval_of_sum(6, values[:observed], prior)
        held += low <= sum(values[observed:]) <= high
    assert held >= 0.9 * 500


def test_a_predicted_sum_narrows_with_what_was_observed() -> None:
    widths = []
    for values in ([], [14.0], [13.0, 15.0, 14.0, 14.0]):
        low, high = interval_of_sum(6, values, Prior(24.0, 5.4, weight=1 / 3))
        widths.append(high - low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]
