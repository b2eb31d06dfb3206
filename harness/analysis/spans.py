"""What the spans of one trial say by themselves: how many, by whom, how many at once, how long.

The spans of the load are those that start between its start and its end, so that the readiness
request and the warm-up stay out. ab's lone first request stays in: the tool's response times
contain it, and what is subtracted from one another must be about the same requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter

from harness.model import Record, Span, Spans, Summary
from harness.numbers.quantiles import summarise

NS = 1e9


def of_load(spans: Spans, record: Record) -> tuple[Span, ...]:
    """The spans that start during the load, by start. Empty where no load was started."""
    start, end = record.load_start_ns, record.load_end_ns
    if start is None or end is None:
        return ()
    inside = [span for span in spans.spans if start <= span.start_ns <= end]
    return tuple(sorted(inside, key=attrgetter("start_ns", "pid")))


def most_open(spans: Sequence[Span]) -> int:
    """Most spans open at the same time.

    A span that ends in the nanosecond in which another starts has made room for it. One that
    never ended stays open. A span without duration was open at its instant.
    """
    # Numbers that sort by time and, within one nanosecond, ends before starts before the ends of
    # what started just now: 0, 1, 2 beside four times the nanoseconds.
    instants = [4 * span.start_ns + 1 for span in spans]
    instants += [
        4 * span.end_ns + 2 * (span.end_ns <= span.start_ns)
        for span in spans
        if span.end_ns is not None
    ]
    instants.sort()
    return max(accumulate(1 if instant & 1 else -1 for instant in instants), default=0)


def per_worker(spans: Iterable[Span], pids: Sequence[int]) -> Mapping[int, int]:
    """Requests by worker pid; a worker that got none says 0."""
    return dict.fromkeys(sorted(pids), 0) | Counter(map(attrgetter("pid"), spans))


def ended(spans: Iterable[Span], until_ns: int | None = None) -> tuple[Span, ...]:
    """The spans that ended, by `until_ns` if given."""
    return tuple(
        span
        for span in spans
        if span.end_ns is not None and (until_ns is None or span.end_ns <= until_ns)
    )


def durations_s(spans: Iterable[Span]) -> list[float]:
    """Service times in seconds, of the spans that ended."""
    return [(span.end_ns - span.start_ns) / NS for span in spans if span.end_ns is not None]


def service(spans: Iterable[Span]) -> Summary:
    """How long the app held requests: seconds, over the spans that ended."""
    return Summary(*summarise(durations_s(spans)))
