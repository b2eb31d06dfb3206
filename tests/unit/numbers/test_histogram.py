"""Percentiles from buckets, compared with exact ones."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.histogram import SUB_BUCKETS, Histogram, bucket, middle
from workerlab.numbers.samples import quantile

durations = st.integers(0, 1 << 50)


def histogram_of(*values: int) -> Histogram:
    histogram = Histogram()
    histogram.record_all(values)
    return histogram


@given(durations)
def test_the_width_of_a_bucket_is_relative_to_its_value(value: int) -> None:
    assert abs(middle(bucket(value)) - value) <= value / (2 * SUB_BUCKETS)


@given(durations, durations)
def test_buckets_are_in_the_order_of_values(left: int, right: int) -> None:
    low, high = sorted((left, right))
    assert bucket(low) <= bucket(high)


def test_bucket_numbers_have_no_gaps() -> None:
    numbers = [bucket(value) for value in range(100_000)]
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))


@given(st.lists(durations, min_size=1), st.floats(0, 1))
def test_quantiles_are_within_a_percent_of_the_exact_ones(values: list[int], share: float) -> None:
    exact = quantile(sorted(map(float, values)), share)
    estimate = histogram_of(*values).quantile(share)
    assert math.isclose(estimate, exact, rel_tol=0.01, abs_tol=1e-6)


@given(st.lists(durations, min_size=1))
def test_count_mean_and_ends_are_exact(values: list[int]) -> None:
    histogram = histogram_of(*values)
    assert (histogram.count, histogram.sum) == (len(values), sum(values))
    assert (histogram.least, histogram.most) == (min(values), max(values))
    assert histogram.mean == sum(values) / len(values)
    assert (histogram.quantile(0), histogram.quantile(1)) == (min(values), max(values))


@given(st.lists(durations), st.lists(durations))
def test_added_histograms_equal_one_of_all_values(left: list[int], right: list[int]) -> None:
    both = histogram_of(*left)
    both.add(histogram_of(*right))
    assert both.to_json() == histogram_of(*left, *right).to_json()


@given(st.lists(durations))
def test_a_histogram_survives_json(values: list[int]) -> None:
    document = histogram_of(*values).to_json()
    assert Histogram.from_json(json.loads(json.dumps(document))).to_json() == document


def test_an_empty_histogram_has_no_quantile() -> None:
    assert (histogram_of().quantile(0.5), histogram_of().mean) == (None, None)


def test_a_negative_duration_is_rejected_and_changes_nothing() -> None:
    histogram = histogram_of(5)
    with pytest.raises(ValueError, match="-1"):
        histogram.record_all([3, -1])
    assert histogram.to_json() == histogram_of(5).to_json()


@pytest.mark.parametrize(
    "changes",
    [{"count": 3}, {"count": True}, {"sum": -1}, {"least": None}, {"most": None}, {"least": 1},
     {"most": 1_000_000}, {"buckets": {}}, {"buckets": {"x": 2}}, {"buckets": [2]}],
)  # fmt: skip
def test_an_inconsistent_histogram_is_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Histogram.from_json(histogram_of(10, 2000).to_json() | changes)
    with pytest.raises(ValueError, match="not a histogram"):
        Histogram.from_json({})
