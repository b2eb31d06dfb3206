"""Throughput in the steady part of a closed loop, from the spans alone, alike for every tool.

The window opens at the first completion and closes at the first moment at which fewer than N
requests remain in flight, so that neither a lone first request, nor the filling, nor the draining
is in it. With a fixed number of requests m (the lone one set apart) that moment is completion
number m - N + 1: until then each answer is followed by a new request. A tool that runs for a
time keeps N in flight until it stops; there it is the last completion before the load's end.

Within the window every span counts by the fraction of its duration that lies inside. Counting
whole completions was rejected: a server that answers in batches (3 workers, 4 connections)
then yields 3.2 requests/s of at most 3.0, because the edges cut a batch.
The tools cannot give this figure: ab's start times are whole seconds, wrk's own rate misses what
it left unfinished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from harness.analysis.spans import NS, durations_s, ended
from harness.model import Span


@dataclass(frozen=True)
class Rate:
    """Requests per second in the steady window, or the reason why there is none."""

    rps: float | None
    reason: str = ""
    opens_ns: int | None = None  # the window's edges, CLOCK_MONOTONIC
    closes_ns: int | None = None

    @property
    def window_s(self) -> float | None:
        if self.opens_ns is None or self.closes_ns is None:
            return None
        return (self.closes_ns - self.opens_ns) / NS


def steady_rate(
    spans: Sequence[Span],
    concurrency: int,
    *,
    lone_first: bool,
    stopped_ns: int | None = None,
    begun_ns: int = 0,
) -> Rate:
    """Completions per second (whatever their status) of `spans`, which are ordered by start.

    `stopped_ns`: when a tool that runs for a time stopped; None for a tool that counts. `begun_ns`:
    when all connections had begun: what was completed before is not steady.
    """
    rest = spans[1:] if lone_first else spans
    ends = sorted(span.end_ns for span in rest if span.end_ns is not None)
    if stopped_ns is None:
        last = len(rest) - concurrency
        if last < 1 or last >= len(ends):
            return Rate(None, _too_few(len(ends), concurrency))
    else:
        ends = [end for end in ends if begun_ns <= end <= stopped_ns]
        last = len(ends) - 1
        if last < 1:
            return Rate(None, _too_few(len(ends), concurrency))
    opens, closes = ends[0], ends[last]
    times = durations_s(ended(rest))
    if closes <= opens or closes - opens < min(times) * NS / 2:
        return Rate(
            None,
            f"the part of the load with {concurrency} requests in flight is too short"
            f" ({(closes - opens) / NS:.3g} s): give it more rounds or more time",
        )
    typical_ns = median(times) * NS
    count = sum(_share(span, opens, closes, typical_ns) for span in rest)
    return Rate(count * NS / (closes - opens), "", opens, closes)


def _too_few(completed: int, concurrency: int) -> str:
    return (
        f"{completed} requests are too few to see a steady part with {concurrency}"
        " in flight: give it more rounds or more time"
    )


def _share(span: Span, opens: int, closes: int, typical_ns: float) -> float:
    """The fraction of a request served inside the window.

    A span without duration is one request at its instant; the completion that opens the window
    is outside, the one that closes it inside. A span that never ended held its slot to the
    window's end at least; how long it would have taken is taken to be the typical time, or as
    long as it was seen.
    """
    if span.end_ns is None:
        duration = max(typical_ns, closes - span.start_ns, 1.0)
        return max(0, closes - max(span.start_ns, opens)) / duration
    return share(span.start_ns, span.end_ns, opens, closes)


def share(start: int, end: int, opens: int, closes: int) -> float:
    """The fraction of start..end inside opens..closes; an instant is inside or not."""
    if end == start:
        return 1.0 if opens < end <= closes else 0.0
    return max(0, min(end, closes) - max(start, opens)) / (end - start)
