"""Percentiles, summaries and trends of samples.

Percentiles are linear interpolations between order statistics: type 7 of Hyndman and Fan, "Sample
Quantiles in Statistical Packages" (1996), the default of R and NumPy.

A trend test shows whether a sequence of values rises or falls, and a slope shows how steeply,
whatever their distribution. The test only compares pairs of values, and the slope is a median, so
one disturbed part of a load does not look like a trend. Rejected: a regression line, which outliers
at either end tilt.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

PERCENTS = (1.0, *map(float, range(5, 100, 5)), 99.0, 99.9)  # the points of a distribution curve


def percents_of(count: int) -> tuple[float, ...]:
    """The PERCENTS that `count` values resolve: at least one value lies above each."""
    return tuple(percent for percent in PERCENTS if count * (100 - percent) >= 100)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of values in ascending order, in their unit. Raises ValueError for an empty
    sample or a q outside [0, 1]."""
    if not ordered:
        raise ValueError("an empty sample has no quantile")
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile must be between 0 and 1, not {q!r}")
    rank = q * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    below, above = ordered[low], ordered[high]
    # Clamped: rounding could put the sum outside the range of its neighbours
    return min(max(below + (rank - low) * (above - below), below), above)


def summarise(values: Iterable[float]) -> tuple[float | None, ...]:
    """Mean, median, 95 %, 99 %, maximum and 90 %, in the unit of the values; all None for an empty
    sample."""
    ordered = sorted(values)
    if not ordered:
        return (None,) * 6
    mean = min(max(math.fsum(ordered) / len(ordered), ordered[0]), ordered[-1])
    p50, p90, p95, p99 = (quantile(ordered, q) for q in (0.50, 0.90, 0.95, 0.99))
    return mean, p50, p95, p99, ordered[-1], p90


SIGNIFICANT_Z = 1.96  # |z| exceeds it by chance in one of twenty loads without a trend


def mann_kendall(values: Sequence[float]) -> float:
    """The statistic z of the trend test of Mann (1945) and Kendall (1975), positive if values rise,
    with the variance for ties and the continuity correction (Gilbert 1987, 16.4.2). Approximately
    normal for 8 or more values; 0 for fewer than 3, or if all are equal.

    Values must be independent: means of batches, not single response times.
    """
    n = len(values)
    ties = Counter(values).values()
    variance = (_weight(n) - sum(map(_weight, ties))) / 18
    if n < 3 or variance <= 0:
        return 0.0
    rises = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    return math.copysign(max(abs(rises) - 1, 0), rises) / math.sqrt(variance)


def _weight(count: int) -> int:
    return count * (count - 1) * (2 * count + 5)


def slope(values: Sequence[float]) -> float:
    """Sen's slope (1968): the median slope of all pairs, in the values' unit per step. Raises
    ValueError for fewer than 2 values."""
    if len(values) < 2:
        raise ValueError("a slope needs two values")
    pairs = combinations(enumerate(values), 2)
    slopes = ((later - earlier) / (j - i) for (i, earlier), (j, later) in pairs)
    return quantile(sorted(slopes), 0.5)
