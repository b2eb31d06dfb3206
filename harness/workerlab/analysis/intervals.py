"""Intervals of time (requests in the app or in flight, pauses of the machine), and how many
overlap. Times are nanoseconds on CLOCK_MONOTONIC.

Plain Python: numpy is not a dependency of the lab, and most of the time goes into reading the
spans.
"""

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TypeVar

from msgspec import Struct

from workerlab.model import Span

NS = 1e9

K = TypeVar("K", bound=Hashable)
Change = tuple[int, K, int]  # when, of what, and by how much its number changes
MOMENT = itemgetter(0)


class Period(Struct, frozen=True):
    """A part of a load, its edges included."""

    opens_ns: int
    closes_ns: int

    @property
    def length_s(self) -> float:
        return (self.closes_ns - self.opens_ns) / NS

    def contains(self, at_ns: int) -> bool:
        return self.opens_ns <= at_ns <= self.closes_ns


ALWAYS = Period(0, sys.maxsize)


class Intervals(Struct, frozen=True):
    """Intervals, each (from, until). They may overlap."""

    stretches: Sequence[tuple[int, int]]

    @classmethod
    def of(
        cls, spans: Iterable[Span], until_ns: int | None = None, more_ns: int = 0
    ) -> "Intervals":
        """Each span from its start to `more_ns` after its end. One that never ended lasts until
        `until_ns`; None: it is left out."""
        ends = ((span.start_ns, span.end_ns or until_ns) for span in spans)
        return cls([(start, end + more_ns) for start, end in ends if end is not None])

    def last(self, tail_ns: int | None) -> "Intervals":
        """The last `tail_ns` of each interval; None: all of it."""
        if tail_ns is None:
            return self
        return Intervals([(max(start, end - tail_ns), end) for start, end in self.stretches])

    def lengths_ns(self, period: Period) -> Iterator[int]:
        """The length inside the period of each interval that overlaps it."""
        opens, closes = period.opens_ns, period.closes_ns
        for start, end in self.stretches:
            length_ns = (end if end < closes else closes) - (start if start > opens else opens)
            if length_ns > 0:
                yield length_ns

    def inside_s(self, period: Period) -> float:
        """Seconds inside the period, summed over all intervals."""
        return sum(self.lengths_ns(period)) / NS

    def completed(self, period: Period) -> float:
        """How many were completed in the period; each counts by the fraction inside."""
        opens, closes = period.opens_ns, period.closes_ns
        return sum(_share(start, end, opens, closes) for start, end in self.stretches)

    def completed_between(self, edges: Sequence[int]) -> list[float]:
        """`completed` of each period between two of the moments, which ascend."""
        counts = [0.0] * (len(edges) - 1)
        for start, end in self.stretches:
            first, last = bisect_left(edges, start) - 1, bisect_left(edges, end)
            for number in range(max(0, first), min(len(counts), last)):
                counts[number] += _share(start, end, edges[number], edges[number + 1])
        return counts

    def per_second(self, period: Period) -> float:
        """How many were completed per second of the period."""
        return self.completed(period) * NS / max(1, period.closes_ns - period.opens_ns)

    def max_open(self) -> int:
        """The largest number at the same time. One that ends in the nanosecond in which another
        starts does not overlap it; one without length was open at its instant."""
        # Four times the nanoseconds, plus 0 for an end, 1 for a start, and 2 for the end of an
        # interval that started in the same nanosecond
        instants = [4 * start + 1 for start, _ in self.stretches]
        instants += [4 * end + 2 * (end <= start) for start, end in self.stretches]
        instants.sort()
        return max(accumulate(1 if instant & 1 else -1 for instant in instants), default=0)

    def open_at(self, moments: Iterable[float]) -> tuple[int, ...]:
        """How many there are at each moment."""
        return tuple(sum(start <= at < end for start, end in self.stretches) for at in moments)

    def changes(self, key: K) -> Iterator[Change[K]]:
        for start, end in self.stretches:
            yield start, key, 1
            yield end, key, -1


def states(
    changes: Iterable[Change[K]], period: Period = ALWAYS
) -> Iterator[tuple[int, Counter[K]]]:
    """Each state of the period up to the last change: its length, and the number of each key. The
    numbers are updated in place."""
    numbers, since_ns = Counter[K](), period.opens_ns
    for at_ns, simultaneous in groupby(sorted(changes, key=MOMENT), MOMENT):
        if (until_ns := min(at_ns, period.closes_ns)) > since_ns:
            yield until_ns - since_ns, numbers
            since_ns = until_ns
        for _, key, change in simultaneous:
            numbers[key] += change


def _share(start: int, end: int, opens: int, closes: int) -> float:
    """The fraction of start..end inside opens..closes. An instant is either inside or not: at
    `opens` it is outside, at `closes` inside."""
    if end == start:
        return 1.0 if opens < end <= closes else 0.0
    if opens <= start and end <= closes:
        return 1.0
    return max(0, min(end, closes) - max(start, opens)) / (end - start)
