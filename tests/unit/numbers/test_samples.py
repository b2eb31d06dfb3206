"""Edge cases of trends and quantiles; `test_against_scipy.py` compares typical ones with scipy."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.samples import mann_kendall, quantile, slope, summarise


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [3.0] * 9])
def test_few_or_equal_values_have_no_trend(values: list[float]) -> None:
    assert mann_kendall(values) == 0


def test_a_single_value_has_no_slope() -> None:
    with pytest.raises(ValueError, match="two values"):
        slope([1.0])


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=50).map(sorted),
    st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted),
)
def test_quantiles_ascend_within_the_sample(values: list[float], q: list[float]) -> None:
    low, high = quantile(values, q[0]), quantile(values, q[1])
    assert values[0] <= low <= high <= values[-1]


@pytest.mark.parametrize(
    ("values", "q"), [([], 0.5), ([1.0], 1.01), ([1.0], -0.1), ([1.0], math.nan)]
)
def test_an_invalid_quantile_is_rejected(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        quantile(values, q)


def test_a_summary_of_no_values_is_empty() -> None:
    assert summarise([]) == (None,) * 6
