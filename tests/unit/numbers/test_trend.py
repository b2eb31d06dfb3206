"""Trends of any scale, and values without one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.samples import mann_kendall, slope

values = st.lists(st.integers(-5, 5).map(float), max_size=12)


@pytest.mark.parametrize("flat", [[], [1.0], [1.0, 2.0], [3.0] * 9])
def test_values_without_a_trend(flat: list[float]) -> None:
    assert mann_kendall(flat) == 0


@given(values)
def test_reversed_values_have_the_opposite_trend(sample: list[float]) -> None:
    assert mann_kendall(sample[::-1]) == -mann_kendall(sample)


@given(values)
def test_a_trend_depends_only_on_the_order(sample: list[float]) -> None:
    assert mann_kendall([math.exp(value) for value in sample]) == mann_kendall(sample)


def test_one_value_has_no_slope() -> None:
    with pytest.raises(ValueError, match="two values"):
        slope([1.0])
