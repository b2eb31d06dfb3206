"""A histogram of durations in bounded memory.

Log-linear buckets, as in HdrHistogram: each power of two is split into SUB_BUCKETS buckets. A
quantile is the middle of its bucket, at most 1/(2*SUB_BUCKETS) = 0.4 % off; values below
2*SUB_BUCKETS, count, sum, minimum and maximum are exact.

Uses only the standard library: load generators import it in an interpreter without site packages.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

BITS = 7
SUB_BUCKETS = 1 << BITS


def bucket(value: int) -> int:
    """The number of the bucket for `value` (>= 0)."""
    shift = value.bit_length() - BITS - 1
    return value if shift <= 0 else (shift << BITS) + (value >> shift)


def middle(number: int) -> float:
    """The middle of a bucket's range: the inverse of `bucket`."""
    shift = max(0, (number >> BITS) - 1)
    return float(((number - (shift << BITS)) << shift) + ((1 << shift) - 1) / 2)


class Histogram:
    """A histogram of integers of at least 0; the lab records nanoseconds."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.least: int | None = None
        self.most: int | None = None
        self._buckets: Counter[int] = Counter()
        self._ranked: tuple[int, list[int], list[int]] = (
            0,
            [],
            [],
        )  # count, buckets, running counts

    def record(self, value: int) -> None:
        self.record_all((value,))

    def record_all(self, values: Iterable[int]) -> None:
        """Record many values, three times as fast as one by one. Raises ValueError for a negative
        value."""
        recorded = values if isinstance(values, (list, tuple)) else list(values)
        if not recorded:
            return
        least, most = min(recorded), max(recorded)
        if least < 0:
            raise ValueError(f"negative duration: {least}")
        self._buckets.update(map(bucket, recorded))
        self.count += len(recorded)
        self.sum += sum(recorded)
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)

    def add(self, other: Histogram) -> None:
        """Add the counts of `other`."""
        if other.least is None or other.most is None:
            return
        self._buckets.update(other._buckets)
        self.count += other.count
        self.sum += other.sum
        self.least = other.least if self.least is None else min(self.least, other.least)
        self.most = other.most if self.most is None else max(self.most, other.most)

    def quantile(self, share: float) -> float | None:
        """The quantile (type 7, as in `workerlab.numbers.samples.quantile`); None without
        values."""
        if not self.count:
            return None
        rank = share * (self.count - 1)
        low = math.floor(rank)
        below, above = self._value_at(low), self._value_at(min(low + 1, self.count - 1))
        return below + (rank - low) * (above - below)

    def _value_at(self, rank: int) -> float:
        """The value at a rank, counted from 0."""
        least, most = float(self.least or 0), float(self.most or 0)
        if rank in (0, self.count - 1):
            return most if rank else least
        if self._ranked[0] != self.count:  # cached: callers usually read several quantiles in a row
            numbers = sorted(self._buckets)
            running_counts = list(accumulate(self._buckets[number] for number in numbers))
            self._ranked = self.count, numbers, running_counts
        _, numbers, running_counts = self._ranked
        return min(max(middle(numbers[bisect(running_counts, rank)]), least), most)

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def to_json(self) -> dict[str, Any]:
        """Buckets by number; `least` and `most` are null for an empty histogram."""
        return {
            "count": self.count,
            "sum": self.sum,
            "least": self.least,
            "most": self.most,
            "buckets": {str(number): self._buckets[number] for number in sorted(self._buckets)},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Histogram:
        """The inverse of `to_json`. Raises ValueError if the values are invalid or inconsistent."""
        histogram = cls()
        try:
            histogram.count, histogram.sum = values["count"], values["sum"]
            buckets = {int(number): n for number, n in values["buckets"].items()}
            least, most = values["least"], values["most"]
            ends = () if least is None and most is None else (least, most)
            numbers = (histogram.count, histogram.sum, *buckets.values(), *ends)
            if not {*map(type, numbers)} <= {int} or min(numbers) < 0:
                raise ValueError(f"not counts: {values!r:.100}")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a histogram: {error!r}") from None
        histogram._buckets.update(buckets)
        histogram.least, histogram.most = least, most
        end_buckets = {min(buckets), max(buckets)} if histogram.count and buckets else set()
        total = sum(buckets.values())
        if histogram.count != total or {bucket(end) for end in ends} != end_buckets:
            raise ValueError("inconsistent histogram: its count and buckets disagree")
        return histogram
