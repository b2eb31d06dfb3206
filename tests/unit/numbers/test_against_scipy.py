"""The lab's statistics, compared with those of scipy. A fixture imports scipy, because an import at
the top would slow down collection by two seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.builders.recursion import erlang_c
from workerlab.experiments.load_trials import NORMAL_QUANTILE_20, _chi_squared
from workerlab.numbers.intervals import (
    T975,
    binomial_cdf,
    central_probability,
    half_width,
    half_width_of_mean,
    min_sample_size,
    quantile_ranks,
    ratio,
    share_interval,
    student_t,
    two_sided_t,
)
from workerlab.numbers.samples import mann_kendall, quantile, slope, summarise
from workerlab.numbers.schedule import NS, schedule

T975_ERROR = 3e-4  # relative: the table has three decimals
TAILS = st.sampled_from([0.005, 0.025, 0.05])
QUANTILES = st.sampled_from([0.5, 0.9, 0.95, 0.99])

measured = st.integers(-10_000, 10_000).map(lambda number: number / 100)
samples = st.lists(measured, min_size=2, max_size=12)
rates = st.lists(st.integers(1, 10_000).map(lambda number: number / 10), min_size=2, max_size=8)
# With ties, and unevenly spaced: a trend depends only on the order
ties = st.lists(st.integers(-5, 5).map(math.sinh), min_size=3, max_size=20)


@pytest.fixture(scope="module")
def stats() -> ModuleType:
    from scipy import stats

    return stats


# --- Student and Welch ----------------------------------------------------------------------------


def test_the_table_of_students_t_is_exact_to_three_decimals(stats: Any) -> None:
    exact = stats.t.ppf(0.975, range(1, 500)).tolist()
    table = [student_t(degrees) for degrees in range(1, 500)]
    assert table[: len(T975)] == pytest.approx(exact[: len(T975)], abs=5.01e-4)
    assert all(t >= true for t, true in zip(table[len(T975) :], exact[len(T975) :], strict=True))


@given(st.floats(0.5, 0.9999), st.integers(1, 200))
def test_students_t_matches_scipy(stats: Any, confidence: float, degrees: int) -> None:
    exact = stats.t.ppf((1 + confidence) / 2, degrees)
    assert two_sided_t(confidence, degrees) == pytest.approx(exact, rel=1e-7)
    assert central_probability(exact, degrees) == pytest.approx(confidence, abs=1e-9)


@given(samples)
def test_intervals_of_means_match_scipy(stats: Any, values: list[float]) -> None:
    exact = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    assert half_width_of_mean(values) == pytest.approx(exact, rel=T975_ERROR)


# "Precision loss": if all values of a side are equal
ignore_precision_loss = pytest.mark.filterwarnings("ignore:Precision loss")


def welch(stats: Any, left: Sequence[float], right: Sequence[float]) -> tuple[float, float]:
    """Half-widths of the interval, with exact degrees of freedom, and with rounded ones."""
    test = stats.ttest_ind(left, right, equal_var=False)
    interval = test.confidence_interval(0.95)
    half = (interval.high - interval.low) / 2
    error = half / stats.t.ppf(0.975, test.df)
    return half, stats.t.ppf(0.975, math.floor(test.df + 1e-9)) * error


@ignore_precision_loss
@given(samples, samples)
def test_intervals_of_differences_match_scipy(
    stats: Any, left: list[float], right: list[float]
) -> None:
    assume(len({*left}) > 1 or len({*right}) > 1)
    exact, whole_degrees = welch(stats, left, right)
    assert exact * (1 - T975_ERROR) <= half_width(left, right) <= whole_degrees * (1 + T975_ERROR)


@ignore_precision_loss
@given(rates, rates)
def test_intervals_of_ratios_match_scipy(stats: Any, new: list[float], old: list[float]) -> None:
    assume(len({*new}) > 1 or len({*old}) > 1)
    interval = ratio(new, old)
    assert interval.value == pytest.approx(stats.gmean(new) / stats.gmean(old))
    exact, whole_degrees = welch(stats, *([math.log(rate) for rate in side] for side in (new, old)))
    for half in (math.log(interval.high / interval.value), math.log(interval.value / interval.low)):
        assert exact * (1 - T975_ERROR) - 1e-12 <= half <= whole_degrees * (1 + T975_ERROR) + 1e-12


@pytest.mark.parametrize("degrees", range(3, 32))  # of 4 to 32 batches
def test_chi_squared_is_within_3_percent(stats: Any, degrees: int) -> None:
    exact = stats.chi2.ppf(stats.norm.cdf(NORMAL_QUANTILE_20), degrees)
    assert _chi_squared(NORMAL_QUANTILE_20, degrees) == pytest.approx(exact, rel=0.03)


# --- counts ---------------------------------------------------------------------------------------


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(-0.1, 1.1))
def test_binomial_probabilities_match_scipy(stats: Any, n: int, p: float, share: float) -> None:
    for k in (round(share * n), round(p * n)):
        assert binomial_cdf(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), abs=1e-8)


@given(st.data(), st.integers(1, 5000), TAILS)
def test_intervals_of_shares_match_scipy(
    stats: Any, data: st.DataObject, n: int, tail: float
) -> None:
    k = data.draw(st.integers(0, n))
    exact = stats.binomtest(k, n).proportion_ci(1 - 2 * tail, "exact")
    assert share_interval(k, n, tail) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_the_interval_of_an_empty_share_is_0_to_1() -> None:
    assert share_interval(0, 0, 0.025) == (0.0, 1.0)


@given(st.integers(1, 1000), QUANTILES, TAILS)
def test_ranks_around_a_quantile_match_scipy(stats: Any, n: int, q: float, tail: float) -> None:
    """Each value is its own rank; scipy gives nan if n is too small for a bound."""
    exact = stats.quantile_test(range(1, n + 1), q=0, p=q).confidence_interval(1 - 2 * tail)
    ranks = tuple(None if math.isnan(rank) else rank for rank in exact)
    assert quantile_ranks(n, q, tail) == ranks


@given(QUANTILES, TAILS)
def test_the_minimum_sample_size_is_the_smallest_with_a_bound(
    stats: Any, q: float, tail: float
) -> None:
    n = min_sample_size(q, tail)
    assert stats.binom.sf(n - 1, n, q) <= tail < stats.binom.sf(n - 2, n - 1, q)


# --- order ----------------------------------------------------------------------------------------


@given(ties)
def test_the_statistic_of_a_trend_matches_scipy(stats: Any, values: list[float]) -> None:
    """S of Kendall's tau against time, with the continuity correction that scipy lacks."""
    assume(len({*values}) > 1)
    n = len(values)
    tau = stats.kendalltau(range(n), values, method="asymptotic")
    pairs = n * (n - 1) / 2
    tied = sum(values.count(value) * (values.count(value) - 1) / 2 for value in {*values})
    s = round(tau.statistic * math.sqrt(pairs * (pairs - tied)))
    exact = stats.norm.isf(tau.pvalue / 2) * (abs(s) - 1) / abs(s) if s else 0.0
    assert mann_kendall(values) == pytest.approx(math.copysign(exact, s), abs=1e-9)


@given(samples)
def test_the_slope_of_a_trend_matches_scipy(stats: Any, values: list[float]) -> None:
    assert slope(values) == pytest.approx(stats.theilslopes(values).slope)


@given(st.lists(measured, min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_match_scipy(stats: Any, values: list[float], q: float) -> None:
    ordered = sorted(values)
    assert quantile(ordered, q) == pytest.approx(stats.quantile(ordered, q, method="linear"))
    exact = [stats.quantile(ordered, p) for p in (0.5, 0.95, 0.99, 1.0, 0.9)]
    assert summarise(values) == pytest.approx((sum(values) / len(values), *exact), abs=1e-9)


# --- arrivals and queues --------------------------------------------------------------------------


@given(st.floats(0.01, 0.99), st.integers(1, 200))
def test_erlang_c_matches_scipy(stats: Any, busy: float, slots: int) -> None:
    offered = busy * slots
    blocked = stats.poisson.pmf(slots, offered) / stats.poisson.cdf(slots, offered)
    assert erlang_c(offered, 1.0, slots) == pytest.approx(blocked / (1 - busy * (1 - blocked)))


MIN_P_VALUE = 0.01  # seeds are fixed


def gaps_of(moments: Sequence[int], rate: float) -> list[float]:
    """Gaps scaled to a mean of 1, the first one from the origin."""
    return [(end - start) / NS * rate for start, end in pairwise((0, *moments))]


@pytest.mark.parametrize("rate", [4.0, 38.0, 900.0])
def test_gaps_of_poisson_arrivals_are_exponential(stats: Any, rate: float) -> None:
    for seed in range(10_001, 10_006):  # the seeds of five trials with seed 1
        gaps = gaps_of(schedule("poisson", rate, 60, seed), rate)
        assert stats.kstest(gaps, "expon").pvalue > MIN_P_VALUE


def test_gaps_are_not_correlated() -> None:
    gaps = gaps_of(schedule("poisson", 1000, 60, 10_001), 1000)
    for distance in (1, 2, 3, 10):
        products = ((a - 1) * (b - 1) for a, b in zip(gaps, gaps[distance:], strict=False))
        assert abs(math.fsum(products) / len(gaps)) < 3 / math.sqrt(len(gaps))


def test_many_schedules_deviate_from_exponential_only_by_chance(stats: Any) -> None:
    schedules = [schedule("poisson", 50, 20, seed) for seed in range(400)]
    p_values = [stats.kstest(gaps_of(moments, 50), "expon").pvalue for moments in schedules]
    assert stats.kstest(p_values, "uniform").pvalue > MIN_P_VALUE
    # A Poisson count with mean 1000 is nearly normal
    normal = [(len(moments) + 0.5 - 1000) / math.sqrt(1000) for moments in schedules]
    assert stats.kstest(normal, "norm").pvalue > MIN_P_VALUE


def test_the_goodness_of_fit_test_detects_other_gaps(stats: Any) -> None:
    even = gaps_of(schedule("even", 38, 60)[1:], 38)
    assert stats.kstest(even, "expon").pvalue < 1e-9
    longer = gaps_of(schedule("poisson", 34, 60, 10_001), 38)
    assert stats.kstest(longer, "expon").pvalue < MIN_P_VALUE
