"""95 % confidence intervals of a mean, a difference of means, a ratio, a share and a quantile.

A mean has Student's interval. A difference has Welch's (Welch 1947), because the two samples may
differ in variance; the Welch-Satterthwaite degrees of freedom are rounded down. A ratio is a
difference of logarithms.

A share (k of n requests) has the interval of Clopper & Pearson (1934), exact for any k and n. The
interval of a quantile lies between two order statistics (Hahn & Meeker 1991, 5.2): the number of
values below a quantile is binomial, whatever their distribution. Both assume independent requests.
Requests that queue are not independent, so the true interval of a single load is wider.

The binomial distribution is a regularised incomplete beta function (DLMF 8.17.5), computed by a
continued fraction, as fast for a million requests as for ten. Rejected: sums of its terms (half a
million for a median) and the normal approximation (wrong if hardly any request fails).
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from statistics import fmean, variance
from typing import Literal, NamedTuple

from msgspec import Struct

from workerlab.numbers.units import three_digits

Effect = Literal["more", "less", "none", "chance"]

EQUAL_RATIO = 1.03  # throughputs that differ by a smaller factor count as equal
ROUNDING_ERROR = 1e-9  # of degrees of freedom that are exact integers
POWER_Z = 0.8416  # standard normal quantile of the power, 80 %
TRIALS = 3  # on each side; with fewer, the interval is too wide to be useful
# 0.975 quantile of Student's t for 1 to 30 degrees of freedom. Above 30, the value at 30 is used:
# then the interval is slightly too wide rather than too narrow.
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
BISECTIONS = 60  # more than the bits of a float's significand


def student_t(degrees: int) -> float:
    """The 0.975 quantile of Student's t."""
    return T975[min(degrees, len(T975)) - 1]


def central_probability(t: float, degrees: int) -> float:
    """The probability that Student's t lies between -t and t (Abramowitz & Stegun 26.7.3 and
    26.7.4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine, total, term = math.cos(angle), 0.0, 1.0
    odd = degrees % 2
    if odd:
        term = cosine
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


@cache
def two_sided_t(confidence: float, degrees: int) -> float:
    """The t for which Student's t lies between -t and t with this probability."""
    high = 1.0
    while central_probability(high, degrees) < confidence:
        high *= 2
    return _root(lambda t: central_probability(t, degrees) < confidence, high)


def _root(is_below: Callable[[float], bool], high: float = 1.0) -> float:
    """The value between 0 and `high` at which `is_below` becomes false."""
    low = 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def half_width(
    left: Sequence[float], right: Sequence[float], quantile: Callable[[int], float] = student_t
) -> float:
    """Half-width of Welch's interval of a difference of means, each of at least two values.
    `quantile`: the quantile of Student's t by degrees of freedom; by default for 95 %."""
    parts = [(variance(side) / len(side), len(side) - 1) for side in (left, right)]
    total = sum(part for part, _ in parts)
    if total <= 0:
        return 0.0
    degrees = total**2 / sum(part**2 / df for part, df in parts)
    return quantile(int(degrees + ROUNDING_ERROR)) * math.sqrt(total)


def half_width_of_mean(values: Sequence[float]) -> float | None:
    """Half-width of Student's 95 % interval of a mean; None for fewer than two values."""
    degrees = len(values) - 1
    if degrees < 1:
        return None
    return student_t(degrees) * math.sqrt(variance(values) / len(values))


class Ratio(Struct, frozen=True):
    """The ratio of two geometric means. `low`, `high`: its 95 % interval; None if unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; the value twice if there is no interval."""
        return self.low or self.value, self.high or self.value

    @property
    def differs(self) -> bool | None:
        """Whether the whole interval shows a difference of more than EQUAL_RATIO; None without an
        interval. For identical servers, 5 % of the intervals exclude 1, but far fewer exclude a
        range around 1."""
        effect = self.effect(EQUAL_RATIO)
        return effect and effect in ("more", "less")

    def effect(self, times: float) -> Effect | None:
        """The effect that the interval shows: "more" or "less" by more than `times`, "none" if it
        is within that factor, else "chance"; None without an interval."""
        if self.low is None or self.high is None:
            return None
        if self.low > times:
            return "more"
        if self.high < 1 / times:
            return "less"
        return "none" if self.low > 1 / times and self.high < times else "chance"

    def __format__(self, form: str) -> str:
        """`times`: "1.23 times"; `interval`: " (95 % interval 1.10 to 1.37)", or "" without one."""
        if form == "times":
            return f"{three_digits(self.value)} times"
        if self.low is None or self.high is None:
            return ""
        return f" (95 % interval {three_digits(self.low)} to {three_digits(self.high)})"


def ratio(after: Sequence[float], before: Sequence[float], count: int | None = None) -> Ratio:
    """`after` / `before`, each of at least one value, all positive. With `count` (at least 2), the
    interval is a forecast for that many values on each side, of the same variance. It is widened to
    a power of 80 %: if the forecast decides a question, the interval of the actual values also
    decides it in four of five cases."""
    logs = [math.log(value) for value in after], [math.log(value) for value in before]
    centre = fmean(logs[0]) - fmean(logs[1])
    half = half_width(*logs) if min(map(len, logs)) > 1 else None
    if half is not None and count is not None:
        error = math.sqrt(sum(map(variance, logs)) / count)
        half = (student_t(count - 1) + POWER_Z) * error
    if half is None:
        return Ratio(math.exp(centre))
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


class Prior(NamedTuple):
    """The mean and standard deviation expected before any observation. The mean counts as `weight`
    observations, the deviation as PRIOR_DEGREES."""

    mean: float
    deviation: float
    weight: float = 1.0


PRIOR_DEGREES = 3  # of freedom
SUM_CONFIDENCE = 0.9


def interval_of_sum(count: int, observed: Sequence[float], prior: Prior) -> tuple[float, float]:
    """The 90 % prediction interval of the sum of `count` values of the same normal distribution as
    those observed: Student's, with a conjugate prior (Gelman et al., Bayesian Data Analysis, 3rd
    edition, 3.3)."""
    number, degrees = len(observed) + prior.weight, len(observed) + PRIOR_DEGREES
    mean = (prior.weight * prior.mean + sum(observed)) / number
    squares = PRIOR_DEGREES * prior.deviation**2 + prior.weight * (prior.mean - mean) ** 2
    squares += sum((value - mean) ** 2 for value in observed)
    error = math.sqrt(squares / degrees * (count + count**2 / number))
    half = two_sided_t(SUM_CONFIDENCE, degrees) * error
    return count * mean - half, count * mean + half


TINY = 1e-300  # replaces a zero denominator


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) for the number X of successes in n trials, each with probability p."""
    if k >= n or p <= 0:
        return 1.0 if k >= 0 else 0.0
    return _beta(n - k, k + 1, 1 - p, p) if k >= 0 and p < 1 else 0.0


def share_interval(k: int, n: int, tail: float) -> tuple[float, float]:
    """The interval (low, high) of a share observed as k of n. Each end is wrong with a probability
    of at most `tail`. (0, 1) for n = 0."""
    low = 0.0 if k == 0 else _root(lambda p: 1 - binomial_cdf(k - 1, n, p) < tail)
    high = 1.0 if k == n else _root(lambda p: binomial_cdf(k, n, p) > tail)
    return low, high


@cache
def quantile_ranks(n: int, q: float, tail: float) -> tuple[int | None, int | None]:
    """Two ranks (from 1) of n ascending values: the q-quantile is below the first, or above the
    second, with a probability of at most `tail` each. None if n is too small."""
    ranks = range(1, n + 1)
    low = bisect_left(ranks, True, key=lambda rank: binomial_cdf(rank - 1, n, q) > tail)
    high = bisect_left(ranks, True, key=lambda rank: 1 - binomial_cdf(rank - 1, n, q) <= tail) + 1
    return low or None, high if high <= n else None


def min_sample_size(q: float, tail: float) -> int:
    """The fewest values, all below a limit, that show that their q-quantile is below it."""
    return math.ceil(math.log(tail) / math.log(q))


def _beta(a: float, b: float, x: float, y: float) -> float:
    """I_x(a, b) for 0 < x < 1 and y = 1 - x. The fraction converges fast below the mean; above it,
    the complement is used (DLMF 8.17.4)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, y, x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    log_front = a * math.log(x) + b * math.log(y) - log_beta
    return math.exp(log_front) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1 x/(1 + d2 x/(1 + ...)), DLMF 8.17.22, evaluated from the front by ratios of successive
    numerators and denominators (Lentz 1976; Thompson & Barnett 1986)."""
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or TINY)
        c = 1 + term / c or TINY
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
