"""Ratios of geometric means and their 95 % intervals."""

from __future__ import annotations

import math
from statistics import geometric_mean

import pytest

from workerlab.numbers.intervals import half_of_mean, half_width, ratio


def test_half_of_students_interval() -> None:
    """By hand: s = 1, n = 3, 2 degrees of freedom."""
    assert half_of_mean([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3))
    assert half_of_mean([1.0]) is None


def test_half_of_welchs_interval() -> None:
    """By hand: s^2 = 0.01, n = 3 on both sides, 4 degrees of freedom."""
    logs = [-0.1, 0.0, 0.1]
    assert half_width(logs, [one + 0.5 for one in logs]) == pytest.approx(
        2.776 * math.sqrt(2 * 0.01 / 3)
    )


def test_a_ratio_is_one_of_geometric_means() -> None:
    after, before = [180.0, 200.0, 220.0, 210.0], [90.0, 100.0, 120.0]
    found = ratio(after, before)
    half = half_width(*([math.log(one) for one in side] for side in (after, before)))
    assert half is not None
    assert found.value == pytest.approx(geometric_mean(after) / geometric_mean(before))
    assert found.low == pytest.approx(found.value * math.exp(-half))
    assert found.high == pytest.approx(found.value * math.exp(half))
    assert found.differs is True


def test_an_interval_that_includes_1_is_no_difference() -> None:
    assert ratio([1.05, 1.1, 1.2], [1.0, 1.1, 1.2]).differs is False


@pytest.mark.parametrize("after", [[1.1], [1.1, 1.1, 1.1]])
def test_one_value_on_a_side_has_no_interval(after: list[float]) -> None:
    found = ratio(after, [1.0])
    assert found.value == pytest.approx(1.1)
    assert (found.low, found.high, found.differs) == (None, None, None)
