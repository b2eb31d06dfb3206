"""Bounds of shares and quantiles, beside sums of the binomial distribution and tabled values."""

from __future__ import annotations

import math
import random
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.binomial import at_most, clean_needed, quantile_ranks, share_interval


@given(st.integers(1, 80), st.floats(0.0, 1.0), st.integers(-1, 81))
def test_the_distribution_is_the_sum_of_its_terms(n: int, p: float, k: int) -> None:
    terms = (math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(min(k, n) + 1))
    assert at_most(k, n, p) == pytest.approx(math.fsum(terms), abs=1e-12)


def test_a_million_requests_are_no_harder_than_ten() -> None:
    """Beside the normal distribution, which differs by 1/sqrt(n p (1-p)) at most (Berry-Esseen)."""
    n, p = 1_000_000, 0.05
    sigma = math.sqrt(n * p * (1 - p))
    for z in (-3, -1, 0, 1, 3):
        normal = 0.5 * (1 + math.erf(z / math.sqrt(2)))
        assert at_most(round(n * p + z * sigma), n, p) == pytest.approx(normal, abs=1 / sigma)


def test_clopper_and_pearson() -> None:
    """10 of 100, 95 %: the interval that statistical packages give."""
    assert share_interval(10, 100, 0.025) == pytest.approx((0.0490047, 0.1762226), abs=1e-6)
    assert share_interval(0, 10, 0.025) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert share_interval(10, 10, 0.025) == pytest.approx((0.025**0.1, 1.0))
    assert share_interval(0, 0, 0.025) == (0.0, 1.0)


def test_the_rule_of_three() -> None:
    """Of 3/limit requests without a failure the bound is below the limit, and hardly below it."""
    for limit in (0.1, 0.01, 0.001, 1e-6):
        n = math.ceil(3 / limit)
        assert 0.93 * limit < share_interval(0, n, 0.05)[1] < limit


def test_ranks_of_a_median() -> None:
    """Of 100 values: 40th and 61st (Hahn & Meeker, as tables of the sign test have it)."""
    assert quantile_ranks(100, 0.5, 0.025) == (40, 61)
    assert quantile_ranks(5, 0.5, 0.025) == (None, None)
    assert quantile_ranks(6, 0.5, 0.025) == (1, 6)


@pytest.mark.parametrize(("q", "least"), [(0.5, 6), (0.9, 36), (0.95, 73), (0.99, 368)])
def test_as_many_values_as_a_bound_needs(q: float, least: int) -> None:
    n = clean_needed(q, 0.025)
    assert n == pytest.approx(least, abs=1)
    assert quantile_ranks(n, q, 0.025)[1] == n
    assert quantile_ranks(n - 1, q, 0.025)[1] is None


@given(st.integers(1, 2000), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_ranks_are_the_tightest_that_hold(n: int, q: float) -> None:
    low, high = quantile_ranks(n, q, 0.025)
    assert low is None or at_most(low - 1, n, q) <= 0.025 < at_most(low, n, q)
    assert high is None or 1 - at_most(high - 1, n, q) <= 0.025 < 1 - at_most(high - 2, n, q)


def test_an_interval_of_a_quantile_misses_it_as_rarely_as_it_says() -> None:
    """Of uniform values the q-quantile is q: each end beyond it in 2.5 % of samples at most; the
    seed is fixed, and 3 sigma of 2000 samples are allowed for."""
    draw, n, rounds = random.Random(12), 400, 2000
    allowed = 0.025 + 3 * math.sqrt(0.025 * 0.975 / rounds)
    for q in (0.5, 0.95, 0.99):
        low, high = quantile_ranks(n, q, 0.025)
        above = below = 0
        for _ in range(rounds):
            under = bisect_right(sorted(draw.random() for _ in range(n)), q)
            above += low is not None and under < low
            below += high is not None and under >= high
        assert above / rounds <= allowed
        assert below / rounds <= allowed
        assert above + below > 0  # or it is no 95 % interval at all
