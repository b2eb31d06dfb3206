"""The steady window, and means over it.

A mean is an integral over the window divided by what was completed in it: Little's law (Little
1961) per part, mean time = mean number in it / throughput. The time a request spent outside the
window is cut off, and a request counts by the fraction of its service inside, as it does in the
throughput. The mean over the requests that end in the window was rejected: in a load of five
rounds it still contains the first batch, which found all slots free, so that 8 connections on 4
slots seemed to wait 0.91 instead of 1.0 service times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.analysis.spans import NS
from harness.analysis.throughput import Rate


@dataclass(frozen=True)
class Window:
    """CLOCK_MONOTONIC nanoseconds; rps: completions per second in it, above 0."""

    opens_ns: int
    closes_ns: int
    rps: float

    @property
    def completed(self) -> float:
        return self.rps * (self.closes_ns - self.opens_ns) / NS

    def inside_s(self, start_ns: int, end_ns: int) -> float:
        """The part of start..end that lies inside, in seconds."""
        return max(0, min(end_ns, self.closes_ns) - max(start_ns, self.opens_ns)) / NS

    def samples(self, samples: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
        """Those that were taken inside."""
        return [one for one in samples if self.opens_ns <= one[0] <= self.closes_ns]

    def level(self, samples: Sequence[tuple[int, float]], least: int) -> float | None:
        """The mean of a sampled length, each sample weighted by the time until the next one. None
        where fewer than `least` samples (at least 2) were taken inside, in order of time."""
        inside = self.samples(samples)
        if len(inside) < least or inside[-1][0] <= inside[0][0]:
            return None
        area = sum(value * (after - at) for (at, value), (after, _) in pairwise(inside))
        return area / (inside[-1][0] - inside[0][0])


def window(steady: Rate) -> Window | None:
    """The window of a steady rate, if there is one in which anything was completed."""
    if not steady.rps or steady.opens_ns is None or steady.closes_ns is None:
        return None
    return Window(steady.opens_ns, steady.closes_ns, steady.rps)
