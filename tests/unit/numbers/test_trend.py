"""Trends: the statistic by hand, and on values without and with one."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.trend import mann_kendall, slope

values = st.lists(st.integers(-5, 5).map(float), max_size=12)


def test_the_statistic_without_ties() -> None:
    """By hand: of 28 pairs one falls, so S = 26; Var S = 8 x 7 x 21 / 18."""
    assert mann_kendall([1, 2, 3, 5, 4, 6, 7, 8]) == pytest.approx(25 / math.sqrt(1176 / 18))


def test_the_statistic_with_ties() -> None:
    """By hand: two pairs of equal values; S = 13, Var S = (6 x 5 x 17 - 2 x 2 x 1 x 9) / 18."""
    assert mann_kendall([1, 1, 2, 3, 3, 4]) == pytest.approx(12 / math.sqrt((510 - 36) / 18))


@pytest.mark.parametrize("flat", [[], [1.0], [1.0, 2.0], [3.0] * 9])
def test_no_trend_to_be_seen(flat: list[float]) -> None:
    assert mann_kendall(flat) == 0


@given(values)
def test_reversed_values_have_the_opposite_trend(one: list[float]) -> None:
    assert mann_kendall(one[::-1]) == -mann_kendall(one)


@given(values)
def test_only_the_order_counts(one: list[float]) -> None:
    assert mann_kendall([math.exp(value) for value in one]) == mann_kendall(one)


def test_how_often_chance_looks_like_a_trend() -> None:
    """0.05 of both signs by definition; a hundred tests more or less of 4000 are 7 sigma."""
    rng = random.Random(1)
    seen = sum(abs(mann_kendall([rng.random() for _ in range(8)])) >= 1.96 for _ in range(4000))
    assert 100 <= seen <= 300


def test_the_slope_is_a_median() -> None:
    assert slope([1.0, 1.5, 2.0, 90.0, 3.0, 3.5, 4.0, 4.5]) == pytest.approx(0.5)


def test_one_value_has_no_slope() -> None:
    with pytest.raises(ValueError, match="two values"):
        slope([1.0])
