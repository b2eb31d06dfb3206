"""One trial over time, thinned to what a page can show, and saying what was left out.

Requests: one contiguous stretch from the load's beginning, so that the lone first request, the
filling and the steady part are seen as they were. A sample drawn at random was rejected: its bars
would not touch, and idle slots could not be told from requests left out. Series: even buckets of
time over the whole load. Of a bucket the queue keeps its longest, states keep their last; usage is
cumulative, so the last sample of each bucket gives the exact mean rate between them.

A request's worker is known from its span, its row is reckoned: the lowest of that worker's that
was free. When its client began it is known only where the tool names its requests.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from workerlab.analysis.facts import Facts
from workerlab.analysis.phases import over_time, phases_of, responses_of, timed
from workerlab.analysis.samples import NS, without_others
from workerlab.analysis.trace import trace
from workerlab.finding import Note
from workerlab.model import (
    Bar,
    Cell,
    ConnectionSample,
    Moment,
    ProcessSample,
    QueueSample,
    Span,
    Timeline,
)
from workerlab.numbers.formats import counted
from workerlab.numbers.rows import row_numbers
from workerlab.numbers.units import format_duration

BARS = 14_000  # on one page, shared by its timelines
MOST, LEAST = 800, 150  # in one timeline
POINTS = 300  # of a series of one number
WIDTHS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # of a bar of times to connect
CONNECTS = 100  # of these bars, where the widest is not too narrow


T = TypeVar("T", QueueSample, ProcessSample, ConnectionSample)


def timelines(valid: Iterable[Facts]) -> tuple[Timeline, ...]:
    """One of each cell, of its first valid trial."""
    first: dict[Cell, Facts] = {}
    for facts in valid:
        if facts.data.trial.number <= first.setdefault(facts.cell, facts).data.trial.number:
            first[facts.cell] = facts
    budget = max(LEAST, min(MOST, BARS // max(1, len(first))))
    return tuple(timeline(facts, budget) for facts in first.values())


def timeline(facts: Facts, budget: int = MOST) -> Timeline:
    """A valid trial over time, with at most `budget` of its requests."""
    spans, ended = facts.spans[:budget], facts.ended_ns
    cut = facts.spans[budget].start_ns if len(facts.spans) > budget else ended
    clock = _Clock(facts.started_ns, ended)
    seen, steady, phases = facts.data.observations, facts.window, phases_of(facts)
    peaks = (max(bucket, key=lambda one: one.length) for bucket in clock.buckets(seen.queue))
    return Timeline(
        key=facts.key,
        bars=_bars(spans, _arrivals(facts, spans), clock, cut),
        shown=(0.0, clock.at_s(cut)),
        spans=len(facts.spans),
        workers=tuple(facts.per_worker),
        queue=tuple((clock.at_s(one.at_ns), one.length) for one in peaks),
        queue_limit=seen.queue[-1].limit if seen.queue else None,
        states=tuple(_states(seen.connections, clock)),
        usage=tuple(_usage(clock.lasts(seen.processes), seen.cores, clock)),
        steady=(clock.at_s(steady.opens_ns), clock.at_s(steady.closes_ns)) if steady else None,
        connects=_connects(facts.measurement.connects_s),
        syn_steps_s=seen.syn_steps_s,
        notes=tuple(_notes(spans, facts, clock, cut)),
        phases=phases,
        responses=over_time(responses_of(facts), clock.at_s(ended)) if phases else (),
        in_app=not timed(facts),
        trace=trace(facts, budget),
    )


class _Clock:
    """Seconds since the load began, and its even buckets."""

    def __init__(self, begun_ns: int, ended_ns: int) -> None:
        self.begun_ns, self.ended_ns = begun_ns, ended_ns
        self.bucket_ns = (ended_ns - begun_ns) // POINTS + 1

    def at_s(self, at_ns: int) -> float:
        return (at_ns - self.begun_ns) / NS

    def buckets(self, samples: Sequence[T]) -> Iterable[list[T]]:
        """The samples of the load, alone or by bucket where there are too many."""
        inside = [one for one in samples if self.begun_ns <= one.at_ns <= self.ended_ns]
        wide_ns = 1 if len(inside) <= POINTS else self.bucket_ns
        found: dict[int, list[T]] = defaultdict(list)
        for one in inside:
            found[(one.at_ns - self.begun_ns) // wide_ns].append(one)
        return found.values()

    def lasts(self, samples: Sequence[T]) -> list[T]:
        return [bucket[-1] for bucket in self.buckets(samples)]


def _arrivals(facts: Facts, spans: Sequence[Span]) -> Mapping[str | None, int]:
    """When the clients began the requests of these spans, by id, in nanoseconds."""
    origin = facts.measurement.origin_ns
    wanted = {span.request_id for span in spans} - {None}
    if origin is None or not wanted:
        return {}
    timings = (one for one in facts.measurement.timings if one.request_id in wanted)
    return {one.request_id: origin + round(one.start_s * NS) for one in timings}


def _bars(
    spans: Sequence[Span], arrivals: Mapping[str | None, int], clock: _Clock, cut: int
) -> tuple[Bar, ...]:
    """Spans come by start. One that never ended is drawn to the end of what is shown."""
    ends = [max(cut, span.start_ns) if span.end_ns is None else span.end_ns for span in spans]
    mine: dict[int, list[int]] = defaultdict(list)
    for place, span in enumerate(spans):
        mine[span.pid].append(place)
    rows: dict[int, int] = {}
    for places in mine.values():
        found = row_numbers((spans[place].start_ns, ends[place]) for place in places)
        rows.update(zip(places, found, strict=True))
    arrived = [arrivals.get(span.request_id) for span in spans]
    return tuple(
        Bar(
            worker=span.pid,
            row=rows[place],
            start_s=clock.at_s(span.start_ns),
            end_s=clock.at_s(end),
            arrived_s=None if at is None else clock.at_s(at),
        )
        for place, (span, end, at) in enumerate(zip(spans, ends, arrived, strict=True))
    )


def _states(samples: Sequence[ConnectionSample], clock: _Clock) -> Iterable[tuple[float, str, int]]:
    """A state that a whole sample does not list has no socket. The last sample is taken when the
    load has ended, and shows what that left."""
    last = clock.lasts(samples)
    last += [one for one in samples[-1:] if one not in last and one.at_ns > clock.ended_ns]
    for side in ("client", "server"):
        by_time = [(clock.at_s(one.at_ns), getattr(one, side)) for one in last]
        names = sorted({name for _, states in by_time for name in states})
        yield from (
            (at_s, f"{side} {name}", states.get(name, 0))
            for at_s, states in by_time
            for name in names
        )


def _usage(samples: Sequence[ProcessSample], cores: int | None, clock: _Clock) -> Iterable[Moment]:
    for before, now in pairwise(samples):
        passed_s = (now.at_ns - before.at_ns) / NS
        if passed_s <= 0:
            continue
        busy = _rate(without_others(before), without_others(now), passed_s)
        yield Moment(
            at_s=clock.at_s(now.at_ns),
            server_cores=_rate(before.server_cpu_s, now.server_cpu_s, passed_s),
            generator_cores=_rate(before.tool_cpu_s, now.tool_cpu_s, passed_s),
            host_busy=min(1.0, busy / cores) if busy is not None and cores else None,
            server_rss_bytes=now.server_rss_bytes,
            generator_rss_bytes=now.tool_rss_bytes,
        )


def _rate(before: float | None, now: float | None, passed_s: float) -> float | None:
    """A process that ended took its seconds with it: less than before is not a rate."""
    if before is None or now is None or now < before:
        return None
    return (now - before) / passed_s


def _connects(connects_s: Sequence[float]) -> tuple[tuple[float, float, int], ...]:
    """Times to connect by even bars, those with any."""
    longest_s = max(connects_s, default=0.0)
    wide = next((one for one in WIDTHS_S if longest_s <= one * CONNECTS), WIDTHS_S[-1])
    found = Counter(int(one / wide) for one in connects_s)
    return tuple((wide * i, wide * (i + 1), count) for i, count in sorted(found.items()))


PARTLY_SEEN = {
    "queue": "accept queue",
    "processes": "CPU and memory",
    "connections": "TCP connections",
}


def _notes(spans: Sequence[Span], facts: Facts, clock: _Clock, cut: int) -> Iterator[Note]:
    """What was left out and how; nothing where all is there."""
    if len(spans) < len(facts.spans):
        drawn, load = format_duration(clock.at_s(cut)), format_duration(facts.load_s)
        yield Note(
            f"Drawn are the first {drawn} of {load}, {len(spans):,} of {len(facts.spans):,}"
            " requests."
        )
    if never := sum(span.end_ns is None for span in spans):
        yield Note(f"{counted(never, 'request')} never ended; drawn to the end.")
    observations = facts.data.observations
    if len(observations.queue) > POINTS:
        bucket = format_duration(clock.bucket_ns / NS)
        yield Note(f"The accept queue is drawn at its longest of every {bucket}.")
    for name, words in PARTLY_SEEN.items():
        if name in observations.missing and getattr(observations, name):
            yield Note(f"Shown only in part: {words} ({observations.missing[name]}).")
