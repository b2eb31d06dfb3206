"""Confidence intervals of a share (k of n requests), and of a quantile by ranks.

A share has the interval of Clopper & Pearson (1934), exact for any k and n. That of a quantile
lies between two order statistics (Hahn & Meeker 1991, 5.2): the number of values below it is
binomial, whatever their distribution. Both assume independent requests. Requests that queue are
not, so the true interval of a single load is wider.

The binomial distribution is a regularised incomplete beta function (DLMF 8.17.5), which a continued
fraction gives for a million requests as fast as for ten. Rejected: sums of its terms (half a
million of them for a median), the normal approximation (wrong where hardly any request fails).
"""

import math
from collections.abc import Callable

BISECTIONS = 60  # more than the digits of a float between 0 and 1
TINY = 1e-300  # replaces a zero denominator


def at_most(k: int, n: int, p: float) -> float:
    """P(X <= k) of n trials that succeed with probability p each."""
    if k >= n or p <= 0:
        return 1.0 if k >= 0 else 0.0
    return _beta(n - k, k + 1, 1 - p, p) if k >= 0 and p < 1 else 0.0


def share_interval(k: int, n: int, tail: float) -> tuple[float, float]:
    """(low, high) of a share observed as k of n: each end is wrong with a probability of at most
    `tail`. (0, 1) for n = 0."""
    low = 0.0 if k == 0 else _root(lambda p: 1 - at_most(k - 1, n, p) < tail)
    high = 1.0 if k == n else _root(lambda p: at_most(k, n, p) > tail)
    return low, high


def quantile_ranks(n: int, q: float, tail: float) -> tuple[int | None, int | None]:
    """Ranks (from 1) of n ascending values that enclose the q-quantile: it lies below the first, or
    above the second, with a probability of at most `tail`. None where n is too small."""
    low = _first(n, lambda rank: at_most(rank - 1, n, q) > tail) - 1
    high = _first(n, lambda rank: 1 - at_most(rank - 1, n, q) <= tail)
    return low or None, high if high <= n else None


def clean_needed(q: float, tail: float) -> int:
    """How many values, all below a limit, show that their q-quantile is below it."""
    return math.ceil(math.log(tail) / math.log(q))


def _root(below: Callable[[float], bool]) -> float:
    """The value between 0 and 1 from which on `below` is false."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def _first(n: int, true: Callable[[int], bool]) -> int:
    """The first rank from 1 to n for which `true` holds, as it does for all above; else n + 1."""
    low, high = 1, n + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if true(middle) else (middle + 1, high)
    return low


def _beta(a: float, b: float, x: float, y: float) -> float:
    """I_x(a, b), 0 < x < 1, y = 1 - x. The fraction converges fast below the mean; above it, the
    complement is used (DLMF 8.17.4)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(b, a, y, x)
    log_front = a * math.log(x) + b * math.log(y) - _log_beta(a, b)
    return math.exp(log_front) / (a * _fraction(a, b, x))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1 x/(1 + d2 x/(1 + ...)), DLMF 8.17.22, from the front by the recurrences of its
    numerators and denominators as ratios (Lentz 1976; Thompson & Barnett 1986)."""
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
