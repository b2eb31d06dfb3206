"""95 % intervals of a mean, a difference of means, a ratio, a share and a quantile.

A mean has Student's interval. A difference has Welch's (Welch 1947), as the two sides may differ in
variance; the Welch-Satterthwaite degrees of freedom are rounded down. A ratio is a difference of
logarithms.

A share (k of n requests) has the interval of Clopper & Pearson (1934), exact for any k and n. The
interval of a quantile lies between two order statistics (Hahn & Meeker 1991, 5.2), as the number of
values below it is binomial, whatever their distribution. Both assume independent requests. Requests
that queue are not independent, so the true interval of a single load is wider.

The binomial distribution is a regularised incomplete beta function (DLMF 8.17.5), computed by a
continued fraction: as fast for a million requests as for ten. Rejected: sums of its terms (half a
million for a median), the normal approximation (wrong if hardly any request fails).
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

EQUAL_RATIO = 1.03  # times: throughputs that differ by less count as equal
ROUNDING = 1e-9  # floating-point error of integer degrees of freedom
FOUR_OF_FIVE = 0.8416  # standard normal quantile of 0.8
TRIALS = 3  # of each side: with fewer, the interval is too wide to be useful
# Student's t, 0.975 quantile, for 1 to 30 degrees of freedom; beyond, the value at 30 is used,
# which is a little too wide rather than too narrow.
T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
BISECTIONS = 60  # more than the bits of a float's significand


def student(degrees: int) -> float:
    """Student's t, 0.975 quantile."""
    return T975[min(degrees, len(T975)) - 1]


def within(t: float, degrees: int) -> float:
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
def student_at(confidence: float, degrees: int) -> float:
    """Half-width of the two-sided interval of Student's t with this probability."""
    high = 1.0
    while within(high, degrees) < confidence:
        high *= 2
    return _root(lambda t: within(t, degrees) < confidence, high)


def _root(below: Callable[[float], bool], high: float = 1.0) -> float:
    """The value between 0 and `high` at which `below` becomes false."""
    low = 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def half_width(
    left: Sequence[float], right: Sequence[float], quantile: Callable[[int], float] = student
) -> float:
    """Half-width of Welch's 95 % interval of a difference of means. `quantile`: of Student's t, by
    degrees of freedom; pass another for another probability. At least two values on each side."""
    parts = [(variance(side) / len(side), len(side) - 1) for side in (left, right)]
    total = sum(part for part, _ in parts)
    if total <= 0:
        return 0.0
    degrees = total**2 / sum(part**2 / df for part, df in parts)
    return quantile(int(degrees + ROUNDING)) * math.sqrt(total)


def half_of_mean(values: Sequence[float]) -> float | None:
    """Half-width of Student's 95 % interval of a mean; None for fewer than two values."""
    degrees = len(values) - 1
    if degrees < 1:
        return None
    return student(degrees) * math.sqrt(variance(values) / len(values))


class Ratio(Struct, frozen=True):
    """The ratio of two geometric means. `low`, `high`: its 95 % interval; None: there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; without one, the value for both."""
        return self.low or self.value, self.high or self.value

    @property
    def differs(self) -> bool | None:
        """Whether the interval lies beyond a relevant difference; None without an interval. Between
        identical trials, 5 % of the intervals exclude 1, but far fewer exclude a range around
        1."""
        effect = self.effect(EQUAL_RATIO)
        return effect and effect in ("more", "less")

    def effect(self, times: float) -> Effect | None:
        """What the whole interval shows: "more" or "less" by at least `times`, "none" if it is
        within that factor, else "chance"; None without an interval."""
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
    """`after` over `before`, at least one positive value on each side. With `count` (at least 2),
    the interval is a forecast for that many values on each side, of the same variance. It is
    widened so that the power is 80 %: if the forecast decides a question, so will the interval of
    the actual values, in four of five cases."""
    logs = [math.log(value) for value in after], [math.log(value) for value in before]
    centre = fmean(logs[0]) - fmean(logs[1])
    half = half_width(*logs) if min(map(len, logs)) > 1 else None
    if half is not None and count is not None:
        error = math.sqrt(sum(map(variance, logs)) / count)
        half = (student(count - 1) + FOUR_OF_FIVE) * error
    if half is None:
        return Ratio(math.exp(centre))
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


class Usual(NamedTuple):
    """What is expected before anything was observed: a mean, which counts as `weight`
    observations, and a standard deviation, which counts as USUAL_DEGREES."""

    mean: float
    deviation: float
    weight: float = 1.0


USUAL_DEGREES = 3
NINE_OF_TEN = 0.9


def interval_of_sum(count: int, observed: Sequence[float], usual: Usual) -> tuple[float, float]:
    """The 90 % prediction interval of the sum of `count` values of the same normal distribution as
    those observed: Student's, with the conjugate prior `usual` (Gelman et al., Bayesian Data
    Analysis, 3rd edition, 3.3)."""
    number, degrees = len(observed) + usual.weight, len(observed) + USUAL_DEGREES
    mean = (usual.weight * usual.mean + sum(observed)) / number
    squares = USUAL_DEGREES * usual.deviation**2 + usual.weight * (usual.mean - mean) ** 2
    squares += sum((value - mean) ** 2 for value in observed)
    error = math.sqrt(squares / degrees * (count + count**2 / number))
    half = student_at(NINE_OF_TEN, degrees) * error
    return count * mean - half, count * mean + half


TINY = 1e-300  # replaces a zero denominator


def at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) of n trials that succeed with probability p each."""
    if k >= n or p <= 0:
        return 1.0 if k >= 0 else 0.0
    return _beta(n - k, k + 1, 1 - p, p) if k >= 0 and p < 1 else 0.0


def share_interval(k: int, n: int, tail: float) -> tuple[float, float]:
    """(low, high) of a share observed as k of n. Each end is wrong with a probability of at most
    `tail`. (0, 1) for n = 0."""
    low = 0.0 if k == 0 else _root(lambda p: 1 - at_most(k - 1, n, p) < tail)
    high = 1.0 if k == n else _root(lambda p: at_most(k, n, p) > tail)
    return low, high


def quantile_ranks(n: int, q: float, tail: float) -> tuple[int | None, int | None]:
    """Ranks (from 1) of n ascending values that enclose the q-quantile: it is below the first, or
    above the second, with a probability of at most `tail`. None if n is too small."""
    ranks = range(1, n + 1)
    low = bisect_left(ranks, True, key=lambda rank: at_most(rank - 1, n, q) > tail)
    high = bisect_left(ranks, True, key=lambda rank: 1 - at_most(rank - 1, n, q) <= tail) + 1
    return low or None, high if high <= n else None


def clean_needed(q: float, tail: float) -> int:
    """How many values, all below a limit, show that their q-quantile is below it."""
    return math.ceil(math.log(tail) / math.log(q))


def _beta(a: float, b: float, x: float, y: float) -> float:
    """I_x(a, b), 0 < x < 1, y = 1 - x. The fraction converges fast below the mean; above it, the
    complement is used (DLMF 8.17.4)."""
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
