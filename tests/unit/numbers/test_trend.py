"""Trends: on values without one, and whatever their scale."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.samples import mann_kendall, slope

values = st.lists(st.integers(-5, 5).map(float), max_size=12)


@pytest.mark.parametrize("flat", [[], [1.0], [1.0, 2.0], [3.0] * 9])
def test_no_trend_to_be_seen(flat: list[float]) -> None:
    assert mann_kendall(flat) == 0


@given(values)
def test_reversed_values_have_the_opposite_trend(one: list[float]) -> None:
    assert mann_kendall(one[::-1]) == -mann_kendall(one)


@given(values)
def test_only_the_order_counts(one: list[float]) -> None:
    assert mann_kendall([math.exp(value) for value in one]) == mann_kendall(one)


def test_one_value_has_no_slope() -> None:
    with pytest.raises(ValueError, match="two values"):
        slope([1.0])
