"""Counts durations in bounded memory, so that a million of them need no list.

Log-linear buckets (as HdrHistogram has them): a value of b bits falls into one of SUB buckets of
its power of two. A quantile is answered with a bucket's middle, at most 1/(2*SUB) = 0.4 % beside
the exact one; values below 2*SUB, count, sum, least and most are exact.

Standard library only: the load generators import it in an interpreter without site packages.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

BITS = 7
SUB = 1 << BITS


def bucket(value: int) -> int:
    """The number of the bucket that counts `value` (>= 0)."""
    shift = value.bit_length() - BITS - 1
    return value if shift <= 0 else (shift << BITS) + (value >> shift)


def middle(number: int) -> float:
    """The middle of what a bucket counts: the inverse of `bucket`."""
    shift = max(0, (number >> BITS) - 1)
    return float(((number - (shift << BITS)) << shift) + ((1 << shift) - 1) / 2)


class Histogram:
    """Whole numbers of 0 and above; in this lab nanoseconds."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.least: int | None = None
        self.most: int | None = None
        self._buckets: Counter[int] = Counter()
        self._ranked: tuple[int, list[int], list[int]] = (0, [], [])  # count, buckets, up to each

    def record(self, value: int) -> None:
        self.record_all((value,))

    def record_all(self, values: Iterable[int]) -> None:
        """Many at once cost a third of the same one by one. ValueError for a negative value."""
        known = values if isinstance(values, (list, tuple)) else list(values)
        if not known:
            return
        least, most = min(known), max(known)
        if least < 0:
            raise ValueError(f"a duration of {least}")
        self._buckets.update(map(bucket, known))
        self.count += len(known)
        self.sum += sum(known)
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)

    def add(self, other: Histogram) -> None:
        """Take over all that `other` counted."""
        if other.least is None or other.most is None:
            return
        self._buckets.update(other._buckets)
        self.count += other.count
        self.sum += other.sum
        self.least = other.least if self.least is None else min(self.least, other.least)
        self.most = other.most if self.most is None else max(self.most, other.most)

    def quantile(self, share: float) -> float | None:
        """As `workerlab.numbers.quantiles.quantile` (type 7) of the same values; None of none."""
        if not self.count:
            return None
        rank = share * (self.count - 1)
        low = math.floor(rank)
        below, above = self._at(low), self._at(min(low + 1, self.count - 1))
        return below + (rank - low) * (above - below)

    def _at(self, rank: int) -> float:
        """The value at a rank, counted from 0."""
        least, most = float(self.least or 0), float(self.most or 0)
        if rank in (0, self.count - 1):
            return most if rank else least
        if self._ranked[0] != self.count:  # several quantiles are asked of the same counts
            numbers = sorted(self._buckets)
            up_to = list(accumulate(self._buckets[number] for number in numbers))
            self._ranked = self.count, numbers, up_to
        _, numbers, up_to = self._ranked
        return min(max(middle(numbers[bisect(up_to, rank)]), least), most)

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def to_json(self) -> dict[str, Any]:
        """Buckets by number; `least` and `most` are null of nothing."""
        return {
            "count": self.count,
            "sum": self.sum,
            "least": self.least,
            "most": self.most,
            "buckets": {str(number): self._buckets[number] for number in sorted(self._buckets)},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Histogram:
        """The inverse of `to_json`. ValueError for anything else, and where its parts disagree."""
        found = cls()
        try:
            found.count, found.sum = values["count"], values["sum"]
            buckets = {int(number): n for number, n in values["buckets"].items()}
            least, most = values["least"], values["most"]
            ends = () if least is None and most is None else (least, most)
            numbers = (found.count, found.sum, *buckets.values(), *ends)
            if not {*map(type, numbers)} <= {int} or min(numbers) < 0:
                raise ValueError(f"not counts: {values!r:.100}")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a histogram: {error!r}") from None
        found._buckets.update(buckets)
        found.least, found.most = least, most
        known = {min(buckets), max(buckets)} if found.count and buckets else set()
        if found.count != sum(buckets.values()) or {bucket(end) for end in ends} != known:
            raise ValueError("a histogram whose parts disagree")
        return found
