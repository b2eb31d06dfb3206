"""Trends of any scale, values without one, and quantiles."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.samples import mann_kendall, quantile, slope, summarise

SAMPLES = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)
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


@given(SAMPLES, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_ascend_within_the_sample(values: list[float], a: float, b: float) -> None:
    ordered = sorted(values)
    low, high = quantile(ordered, min(a, b)), quantile(ordered, max(a, b))
    assert ordered[0] <= low <= high <= ordered[-1]


@pytest.mark.parametrize(
    ("values", "q"), [([], 0.5), ([1.0], 1.01), ([1.0], -0.1), ([1.0], math.nan)]
)
def test_an_invalid_quantile_is_rejected(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        quantile(values, q)


def test_a_summary_of_no_values_is_empty() -> None:
    assert summarise([]) == (None,) * 6
