"""Own statistics beside those of scipy, of any values. The import costs two seconds: only here, and
not where tests are collected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workerlab.experiments.length import NORMAL_QUANTILE_20, _chi_squared
from workerlab.experiments.lesson.law import erlang_c
from workerlab.numbers.intervals import (
    T975,
    at_most,
    clean_needed,
    half_of_mean,
    half_width,
    quantile_ranks,
    ratio,
    share_interval,
    student,
    student_at,
    within,
)
from workerlab.numbers.samples import mann_kendall, quantile, slope, summarise
from workerlab.numbers.schedule import NS, schedule

TABLED = 3e-4  # relative: T975 has three decimals
TAILS = st.sampled_from([0.005, 0.025, 0.05])
QUANTILES = st.sampled_from([0.5, 0.9, 0.95, 0.99])

measured = st.integers(-10_000, 10_000).map(lambda number: number / 100)
samples = st.lists(measured, min_size=2, max_size=12)
rates = st.lists(st.integers(1, 10_000).map(lambda number: number / 10), min_size=2, max_size=8)
ties = st.lists(st.integers(-5, 5).map(float), min_size=3, max_size=20)


@pytest.fixture(scope="module")
def stats() -> ModuleType:
    from scipy import stats

    return stats


# --- Student and Welch ----------------------------------------------------------------------------


def test_the_table_of_student(stats: Any) -> None:
    exact = stats.t.ppf(0.975, range(1, 500)).tolist()
    table = [student(degrees) for degrees in range(1, 500)]
    assert table[: len(T975)] == pytest.approx(exact[: len(T975)], abs=5.01e-4)
    assert all(t >= true for t, true in zip(table[len(T975) :], exact[len(T975) :], strict=True))


@given(st.floats(0.5, 0.9999), st.integers(1, 200))
def test_student_at_any_confidence(stats: Any, confidence: float, degrees: int) -> None:
    exact = stats.t.ppf((1 + confidence) / 2, degrees)
    assert student_at(confidence, degrees) == pytest.approx(exact, rel=1e-7)
    assert within(exact, degrees) == pytest.approx(confidence, abs=1e-9)


@given(samples)
def test_the_interval_of_a_mean(stats: Any, values: list[float]) -> None:
    exact = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    assert half_of_mean(values) == pytest.approx(exact, rel=TABLED)


def welch(stats: Any, one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Half of the interval, with the degrees of freedom as they are, and rounded down."""
    test = stats.ttest_ind(one, other, equal_var=False)
    interval = test.confidence_interval(0.95)
    half = (interval.high - interval.low) / 2
    error = half / stats.t.ppf(0.975, test.df)
    return half, stats.t.ppf(0.975, math.floor(test.df + 1e-9)) * error


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(samples, samples)
def test_the_interval_of_a_difference(stats: Any, one: list[float], other: list[float]) -> None:
    assume(len({*one}) > 1 or len({*other}) > 1)
    exact, whole_degrees = welch(stats, one, other)
    assert exact * (1 - TABLED) <= half_width(one, other) <= whole_degrees * (1 + TABLED)


@pytest.mark.filterwarnings("ignore:Precision loss")  # of sides whose values are all the same
@given(rates, rates)
def test_the_interval_of_a_ratio(stats: Any, after: list[float], before: list[float]) -> None:
    assume(len({*after}) > 1 or len({*before}) > 1)
    found = ratio(after, before)
    assert found.value == pytest.approx(stats.gmean(after) / stats.gmean(before))
    logs = [[math.log(rate) for rate in side] for side in (after, before)]
    exact, whole_degrees = welch(stats, *logs)
    for half in (math.log(found.high / found.value), math.log(found.value / found.low)):
        assert exact * (1 - TABLED) - 1e-12 <= half <= whole_degrees * (1 + TABLED) + 1e-12


@pytest.mark.parametrize("degrees", range(3, 32))  # of 4 to 32 batches
def test_chi_squared_within_3_percent(stats: Any, degrees: int) -> None:
    exact = stats.chi2.ppf(stats.norm.cdf(NORMAL_QUANTILE_20), degrees)
    assert _chi_squared(NORMAL_QUANTILE_20, degrees) == pytest.approx(exact, rel=0.03)


# --- counts ---------------------------------------------------------------------------------------


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(-0.1, 1.1))
def test_the_binomial_distribution(stats: Any, n: int, p: float, share: float) -> None:
    for k in (round(share * n), round(p * n)):
        assert at_most(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), abs=1e-8)


@given(st.data(), st.integers(1, 5000), TAILS)
def test_clopper_and_pearson(stats: Any, data: st.DataObject, n: int, tail: float) -> None:
    k = data.draw(st.integers(0, n))
    exact = stats.binomtest(k, n).proportion_ci(1 - 2 * tail, "exact")
    assert share_interval(k, n, tail) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_a_share_of_nothing_may_be_any() -> None:
    assert share_interval(0, 0, 0.025) == (0.0, 1.0)


@given(st.integers(1, 1000), QUANTILES, TAILS)
def test_ranks_around_a_quantile(stats: Any, n: int, q: float, tail: float) -> None:
    """Of values that are their own ranks; nan where n is too small for a bound."""
    exact = stats.quantile_test(range(1, n + 1), q=0, p=q).confidence_interval(1 - 2 * tail)
    ranks = tuple(None if math.isnan(rank) else rank for rank in exact)
    assert quantile_ranks(n, q, tail) == ranks


@given(QUANTILES, TAILS)
def test_as_many_clean_values_as_a_bound_needs(stats: Any, q: float, tail: float) -> None:
    n = clean_needed(q, tail)
    assert stats.binom.sf(n - 1, n, q) <= tail < stats.binom.sf(n - 2, n - 1, q)


# --- order ----------------------------------------------------------------------------------------


@given(ties)
def test_the_statistic_of_a_trend(stats: Any, values: list[float]) -> None:
    """Kendall's tau against time: its S, less the correction that scipy does not have."""
    assume(len({*values}) > 1)
    n = len(values)
    found = stats.kendalltau(range(n), values, method="asymptotic")
    pairs = n * (n - 1) / 2
    tied = sum(values.count(value) * (values.count(value) - 1) / 2 for value in {*values})
    s = round(found.statistic * math.sqrt(pairs * (pairs - tied)))
    exact = stats.norm.isf(found.pvalue / 2) * (abs(s) - 1) / abs(s) if s else 0.0
    assert mann_kendall(values) == pytest.approx(math.copysign(exact, s), abs=1e-9)


@given(samples)
def test_the_slope_of_a_trend(stats: Any, values: list[float]) -> None:
    assert slope(values) == pytest.approx(stats.theilslopes(values).slope)


@given(st.lists(measured, min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles(stats: Any, values: list[float], q: float) -> None:
    ordered = sorted(values)
    assert quantile(ordered, q) == pytest.approx(stats.quantile(ordered, q, method="linear"))
    exact = [stats.quantile(ordered, one) for one in (0.5, 0.95, 0.99, 1.0, 0.9)]
    assert summarise(values) == pytest.approx((sum(values) / len(values), *exact), abs=1e-9)


# --- arrivals and queues --------------------------------------------------------------------------


@given(st.floats(0.01, 0.99), st.integers(1, 200))
def test_erlang(stats: Any, busy: float, slots: int) -> None:
    offered = busy * slots
    blocked = stats.poisson.pmf(slots, offered) / stats.poisson.cdf(slots, offered)
    assert erlang_c(offered, 1.0, slots) == pytest.approx(blocked / (1 - busy * (1 - blocked)))


PASSES = 0.01  # the least p-value; seeds are fixed


def gaps_of(moments: Sequence[int], rate: float) -> list[float]:
    """Of a process whose mean gap is 1; the first is that from the origin."""
    return [(after - before) / NS * rate for before, after in pairwise((0, *moments))]


@pytest.mark.parametrize("rate", [4.0, 38.0, 900.0])
def test_gaps_of_poisson_arrivals_are_exponential(stats: Any, rate: float) -> None:
    for seed in range(10_001, 10_006):  # of five trials of a plan with seed 1
        gaps = gaps_of(schedule("poisson", rate, 60, seed), rate)
        assert stats.kstest(gaps, "expon").pvalue > PASSES


def test_gaps_follow_from_none_of_those_before() -> None:
    moments = schedule("poisson", 1000, 60, 10_001)
    gaps = gaps_of(moments, 1000)
    n = len(gaps)
    for apart in (1, 2, 3, 10):
        products = ((a - 1) * (b - 1) for a, b in zip(gaps, gaps[apart:], strict=False))
        assert abs(math.fsum(products) / n) < 3 / math.sqrt(n)


def test_many_schedules_are_as_far_from_exponential_as_chance_takes_them(stats: Any) -> None:
    """Their p-values are uniform, then; and the number that is due varies as it should."""
    many = [schedule("poisson", 50, 20, seed) for seed in range(400)]
    p_values = [stats.kstest(gaps_of(moments, 50), "expon").pvalue for moments in many]
    assert stats.kstest(p_values, "uniform").pvalue > PASSES
    # A count of mean 1000 is nearly normal, with a standard deviation of its root
    normal = [(len(moments) + 0.5 - 1000) / math.sqrt(1000) for moments in many]
    assert stats.kstest(normal, "norm").pvalue > PASSES


def test_the_test_tells_other_gaps(stats: Any) -> None:
    even = schedule("even", 38, 60)
    assert stats.kstest(gaps_of(even[1:], 38), "expon").pvalue < 1e-9
    slower = schedule("poisson", 34, 60, 10_001)
    assert stats.kstest(gaps_of(slower, 38), "expon").pvalue < PASSES
