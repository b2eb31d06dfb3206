"""Percentiles from buckets, beside the exact ones."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.histogram import SUB_BUCKETS, Histogram, bucket, middle
from workerlab.numbers.samples import quantile

durations = st.integers(0, 1 << 50)


def of(*values: int) -> Histogram:
    made = Histogram()
    made.record_all(values)
    return made


@given(durations)
def test_a_bucket_is_no_wider_than_its_share_of_what_it_counts(value: int) -> None:
    assert abs(middle(bucket(value)) - value) <= value / (2 * SUB_BUCKETS)


@given(durations, durations)
def test_buckets_are_in_the_order_of_what_they_count(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert bucket(low) <= bucket(high)


def test_no_bucket_is_left_out() -> None:
    numbers = [bucket(value) for value in range(100_000)]
    assert sorted(set(numbers)) == list(range(max(numbers) + 1))


@given(st.lists(durations, min_size=1), st.floats(0, 1))
def test_quantiles_are_within_a_percent_of_the_exact_ones(values: list[int], share: float) -> None:
    exact = quantile(sorted(map(float, values)), share)
    found = of(*values).quantile(share)
    assert found is not None
    assert math.isclose(found, exact, rel_tol=0.01, abs_tol=1e-6)


@given(st.lists(durations, min_size=1))
def test_count_mean_and_ends_are_exact(values: list[int]) -> None:
    found = of(*values)
    assert (found.count, found.sum) == (len(values), sum(values))
    assert (found.least, found.most) == (min(values), max(values))
    assert found.mean == sum(values) / len(values)
    assert (found.quantile(0), found.quantile(1)) == (min(values), max(values))


@given(st.lists(durations), st.lists(durations))
def test_two_are_what_one_would_have_counted(one: list[int], other: list[int]) -> None:
    both = of(*one)
    both.add(of(*other))
    assert both.to_json() == of(*one, *other).to_json()


@given(st.lists(durations))
def test_it_survives_json(values: list[int]) -> None:
    found = of(*values)
    again = Histogram.from_json(json.loads(json.dumps(found.to_json())))
    assert again.to_json() == found.to_json()


def test_nothing_has_no_quantile() -> None:
    assert (of().quantile(0.5), of().mean) == (None, None)


def test_a_negative_duration_is_refused_and_changes_nothing() -> None:
    found = of(5)
    with pytest.raises(ValueError, match="-1"):
        found.record_all([3, -1])
    assert found.to_json() == of(5).to_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 3},
        {"count": True},
        {"sum": -1},
        {"least": None},
        {"most": None},
        {"least": 1},
        {"most": 1_000_000},
        {"buckets": {}},
        {"buckets": {"x": 2}},
        {"buckets": [2]},
    ],
)
def test_what_disagrees_with_itself_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Histogram.from_json(of(10, 2000).to_json() | changes)
    with pytest.raises(ValueError, match="not a histogram"):
        Histogram.from_json({})
