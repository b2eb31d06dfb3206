"""Whether a sequence of values rises or falls, and how steeply, whatever their distribution.

The test only compares values in pairs, and the slope is a median, so one disturbed part of a load
makes no trend. Rejected: a regression line, which outliers at either end tilt.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import median

SIGNIFICANT = 1.96  # |z|: one in twenty loads without a trend exceeds it by chance


def mann_kendall(values: Sequence[float]) -> float:
    """Mann (1945) and Kendall (1975): the statistic z of the test for a trend, above 0 where values
    rise, with the variance for ties and the continuity correction (Gilbert 1987, 16.4.2). Normal
    from about 8 values on. 0 for fewer than 3 values, or if all are equal.

    Values must be independent: means over stretches, not single response times.
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
    """Sen (1968): the median of the slopes of all pairs, in the values' unit per step. ValueError
    for fewer than 2."""
    if len(values) < 2:
        raise ValueError("a slope needs two values")
    pairs = combinations(enumerate(values), 2)
    return median((later - earlier) / (j - i) for (i, earlier), (j, later) in pairs)
