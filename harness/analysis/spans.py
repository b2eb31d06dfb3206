"""What the spans of one trial say by themselves: how many, by whom, how many at once, how long.

The spans of the load are those that start between its start and its end, so that the readiness
request and the warm-up stay out. ab's lone first request stays in: the tool's response times
contain it, and what is subtracted from one another must be about the same requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.model import Record, Span, Spans, Summary
from harness.numbers.quantiles import summarise

NS = 1e9


def of_load(spans: Spans, record: Record) -> tuple[Span, ...]:
    """The spans that start during the load, by start. Empty where no load was started."""
    start, end = record.load_start_ns, record.load_end_ns
    if start is None or end is None:
        return ()
    inside = (span for span in spans.spans if start <= span.start_ns <= end)
    return tuple(sorted(inside, key=lambda span: (span.start_ns, span.pid)))


def most_open(spans: Iterable[Span]) -> int:
    """Most spans open at the same time.

    A span that ends in the nanosecond in which another starts has made room for it. One that
    never ended stays open. A span without duration was open at its instant.
    """
    instants = []
    for span in spans:
        # Order within one nanosecond: ends, then starts, then the ends of what started just now.
        instants.append((span.start_ns, 1, 1))
        if span.end_ns is not None:
            instants.append((span.end_ns, 0 if span.end_ns > span.start_ns else 2, -1))
    most = now = 0
    for _, _, change in sorted(instants):
        now += change
        most = max(most, now)
    return most


def per_worker(spans: Iterable[Span], pids: Sequence[int]) -> Mapping[int, int]:
    """Requests by worker pid; a worker that got none says 0."""
    counts = dict.fromkeys(sorted(pids), 0)
    for span in spans:
        counts[span.pid] = counts.get(span.pid, 0) + 1
    return counts


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
