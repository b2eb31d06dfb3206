"""Ratios of geometric means and their 95 % intervals."""

from __future__ import annotations

import math

import pytest

from workerlab.numbers.intervals import half_of_mean, half_width, ratio


def test_an_interval_that_includes_1_is_no_difference() -> None:
    assert ratio([1.05, 1.1, 1.2], [1.0, 1.1, 1.2]).differs is False


@pytest.mark.parametrize("after", [[1.1], [1.1, 1.1, 1.1]])
def test_one_value_on_a_side_has_no_interval(after: list[float]) -> None:
    found = ratio(after, [1.0])
    assert found.value == pytest.approx(1.1)
    assert (found.low, found.high, found.differs) == (None, None, None)


def test_one_value_has_no_interval() -> None:
    assert half_of_mean([1.0]) is None


def test_equal_variances_have_all_degrees_of_freedom() -> None:
    """Two, which come out at 1.9999999999999996."""
    half = half_width([0.0, 0.2], [5.0, 5.2], lambda degrees: degrees)
    assert half == pytest.approx(2 * math.sqrt(0.02))
