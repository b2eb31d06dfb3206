"""Percentiles and summaries of a sample, by linear interpolation between order statistics.

Type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996): as R and NumPy do."""

import math
from collections.abc import Iterable, Sequence

PERCENTS = (1.0, *map(float, range(5, 100, 5)), 99.0, 99.9)  # the points of a curve


def percents_of(count: int) -> tuple[float, ...]:
    """The PERCENTS that `count` values resolve: at least one value lies beyond each."""
    return tuple(percent for percent in PERCENTS if count * (100 - percent) >= 100)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of values in ascending order, in their unit. ValueError for an empty sample or
    a q outside [0, 1]."""
    if not ordered:
        raise ValueError("an empty sample has no quantile")
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile stands between 0 and 1, not at {q!r}")
    rank = q * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    below, above = ordered[low], ordered[high]
    # Clamped, because rounding could put the sum outside its own two neighbours.
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
