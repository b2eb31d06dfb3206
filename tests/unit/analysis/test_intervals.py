"""Intervals of time, compared with a count at every instant."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.analysis.samples import NS, Intervals, Period, states
from workerlab.model.evidence import Span

Stretches = list[tuple[int, int]]
STRETCHES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 25)).map(lambda pair: (pair[0], sum(pair)))
)
PERIODS = st.tuples(st.integers(0, 50), st.integers(1, 20)).map(
    lambda pair: Period(pair[0], sum(pair))
)


@given(STRETCHES, PERIODS)
def test_lengths_and_shares_equal_counting_at_every_instant(
    stretches: Stretches, period: Period
) -> None:
    instants = range(period.opens_ns, period.closes_ns)
    inside = [sum(start <= at < end for at in instants) for start, end in stretches]
    intervals = Intervals(stretches)
    assert list(intervals.lengths_ns(period)) == [length for length in inside if length]
    assert intervals.inside_s(period) == sum(inside) / NS
    shares = [
        count / (end - start) if end > start else float(period.opens_ns < end <= period.closes_ns)
        for count, (start, end) in zip(inside, stretches, strict=True)
    ]
    assert intervals.completed(period) == pytest.approx(sum(shares))
    assert intervals.per_second(period) == pytest.approx(sum(shares) / period.length_s)
    edges = sorted({period.opens_ns, 7, 9, period.closes_ns})
    between = [intervals.completed(Period(*pair)) for pair in pairwise(edges)]
    assert intervals.completed_between(edges) == pytest.approx(between)


@given(st.dictionaries(st.sampled_from("abc"), STRETCHES), PERIODS)
def test_states_equal_counting_at_every_instant(
    by_key: dict[str, Stretches], period: Period
) -> None:
    instants = range(period.opens_ns, period.closes_ns)
    changes = [
        change for key, stretches in by_key.items() for change in Intervals(stretches).changes(key)
    ]
    computed = [
        +Counter(numbers)
        for length_ns, numbers in states(changes, period)
        for _ in range(length_ns)
    ]
    pairs = [(key, stretch) for key, stretches in by_key.items() for stretch in stretches]
    expected = [Counter(key for key, (start, end) in pairs if start <= at < end) for at in instants]
    totals = tuple(numbers.total() for numbers in expected)
    assert Intervals([stretch for _, stretch in pairs]).open_at(instants) == totals
    assert computed == expected[: len(computed)]
    assert not any(expected[len(computed) :])


@given(STRETCHES)
def test_the_maximum_is_the_highest_count_at_any_start(stretches: Stretches) -> None:
    counts = (
        sum(start <= at < end or start == at == end for start, end in stretches)
        for at, _ in stretches
    )
    assert Intervals(stretches).max_open() == max(counts, default=0)


@given(STRETCHES, st.integers(0, 30))
def test_the_last_part_of_an_interval_has_the_same_end(stretches: Stretches, tail_ns: int) -> None:
    tails = [(end - min(tail_ns, end - start), end) for start, end in stretches]
    assert Intervals(stretches).last(tail_ns).stretches == tails
    assert Intervals(stretches).last(None).stretches == stretches


def test_a_span_without_an_end_is_left_out_or_ends_at_the_given_time() -> None:
    spans = [Span(1, 2, 5), Span(1, 3, None)]
    assert Intervals.of(spans).stretches == [(2, 5)]
    assert Intervals.of(spans, until_ns=9).stretches == [(2, 5), (3, 9)]
    assert Intervals.of(spans, until_ns=9, more_ns=1).stretches == [(2, 6), (3, 10)]
