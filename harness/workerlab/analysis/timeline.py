"""One trial over time, thinned to what a page can show, with notes on what was left out.

Requests: one contiguous part from the beginning of the load, so the lone first request, the filling
and the steady part appear as they were. A random sample was rejected: its bars would not touch, and
idle slots would look like requests left out. Series: equal buckets of time over the whole load. The
queue keeps the maximum of a bucket, states keep their last value; usage is cumulative, so the last
sample of each bucket gives the exact mean rate between them.

A request's worker is known from its span; its row is inferred: the lowest free one of that worker.
When its client began it is known only if the tool names its requests.

A trial can also be replayed: `places` has where each request was at each moment, by its client, the
probe and the kernel. If the load tool names its requests, each is matched with its span. For other
tools, only requests in the app are shown one by one, and those that wait as a number.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from workerlab.analysis.facts import Facts
from workerlab.analysis.phases import over_time, phases_of, responses_of, timed
from workerlab.analysis.places import IN_APP, Event, Move, Places
from workerlab.analysis.samples import NS, without_others
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
    Timing,
    Trace,
)
from workerlab.numbers.units import counted, format_duration


def row_numbers(intervals: Iterable[tuple[float, float]]) -> list[int]:
    """The lowest free row for each interval (start, end); they must be sorted by start. An interval
    may start on a row at the moment at which another ends there."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    numbers: list[int] = []
    for start, end in intervals:
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end, row))
        numbers.append(row)
    return numbers


STEP_NS = 50_000_000  # between two looks at the queue, as in the live lesson
SAMPLED = 5  # steps between samples
SEEN_NS = 1_000_000  # shorter waits are not shown
MS_NS = 1e6

Sample = tuple[float, float | None, float | None, float | None, int | None, int | None]


def trace(facts: Facts, most: int) -> Trace | None:
    """The replay of the first `most` requests, up to the start of the next; None if none was
    seen."""
    timings, until_ns = _first_timings(facts, most)
    named = bool(timings)
    if not named and len(facts.spans) > most:
        until_ns = facts.spans[most].start_ns
    events = sorted(_events(facts, timings, most), key=lambda event: event.at_ns)
    if not events:
        return None
    accepts_first, timed = facts.data.worker_class.accepts_first, set(_timed(facts, timings))
    places = Places(accepts_first=accepts_first, slots=facts.slots, timed=timed)
    for pid in facts.per_worker:
        places.worker(pid)
    moves, samples = _played(facts, places, events, until_ns)
    if not named:  # arrivals and response times are unknown
        moves = [move for move in moves if move.place >= IN_APP]
        samples = [(at_ms, rps, None, None, queue, None) for at_ms, rps, _, _, queue, _ in samples]
    return Trace(
        server=facts.cell.server,
        slots=facts.slots,
        accepts_first=accepts_first,
        length_ms=_ms(facts, until_ns),
        moves=tuple(
            (move.number, move.place, move.worker, _ms(facts, move.at_ns)) for move in moves
        ),
        samples=tuple(samples),
        named=named,
        whole=until_ns >= facts.ended_ns,
    )


def _ms(facts: Facts, at_ns: int) -> float:
    """Milliseconds since the load began."""
    return round((at_ns - facts.started_ns) / MS_NS, 1)


def _played(
    facts: Facts, places: Places, events: list[Event], until_ns: int
) -> tuple[list[Move], list[Sample]]:
    """The moves and samples, step by step as if watched live."""
    queue, moves, samples = facts.data.observations.queue, list[Move](), list[Sample]()
    at_ns, length, limit, event, look, step = facts.started_ns, None, None, 0, 0, 0
    if queue:  # its length is known before the first connection is established
        places.settle(at_ns, queue[0].length, queue[0].limit)
    while at_ns < until_ns:
        at_ns, step, first = min(at_ns + STEP_NS, until_ns), step + 1, event
        while event < len(events) and events[event].at_ns <= at_ns:
            event += 1
        places.hear(events[first:event])
        while look < len(queue) and queue[look].at_ns <= at_ns:
            length, limit, look = queue[look].length, queue[look].limit, look + 1
        places.settle(at_ns, length, limit)
        moves += places.moves()
        if step % SAMPLED == 0:
            seen = places.sample(at_ns)
            figures = (seen.rps, seen.mean, seen.p95, length, seen.under_way)
            samples.append((_ms(facts, at_ns), *figures))
    return moves, samples


def _first_timings(facts: Facts, most: int) -> tuple[list[Timing], int]:
    """The first requests by start, and until when these are all; none if the load tool did not name
    them or the app did not see the names."""
    origin_ns, every = facts.measurement.origin_ns, facts.measurement.timings
    if origin_ns is None:
        return [], facts.ended_ns
    first = nsmallest(most + 1, every, key=attrgetter("start_s"))
    inside = {span.request_id for span in facts.spans[: most + 1]} - {None}
    if inside.isdisjoint(timing.request_id for timing in first):
        return [], facts.ended_ns
    if len(first) > most:
        return first[:most], origin_ns + round(first[most].start_s * NS)
    return first, facts.ended_ns


def _events(facts: Facts, timings: Sequence[Timing], most: int) -> Iterator[Event]:
    """`timings`: of the replayed requests; empty if they cannot be matched with spans."""
    numbers = {one.request_id: number for number, one in enumerate(timings, 1)}
    accepted_ns = _timed(facts, timings)
    for timing in timings:
        yield from _of_client(facts, timing, numbers[timing.request_id])
    spans = facts.spans if timings else facts.spans[:most]
    for place, span in enumerate(spans, 1):
        number = numbers.get(span.request_id) if timings else place
        if number is None:
            continue
        if not timings:
            yield Event(span.start_ns, "b", number)
        elif span.start_ns - accepted_ns.get(number, span.start_ns) >= SEEN_NS:
            yield Event(accepted_ns[number], "a", number, span.pid)
        yield Event(span.start_ns, "s", number, span.pid)
        if span.end_ns is not None:
            yield Event(span.end_ns, "x" if timings else "e", number, span.pid)


def _timed(facts: Facts, timings: Sequence[Timing]) -> dict[int, int]:
    """When new connections were accepted, by the number of their request, if the probe timed it."""
    numbers = {one.request_id: number for number, one in enumerate(timings, 1) if not one.reused}
    return {
        numbers[span.request_id]: span.accept_ns
        for span in facts.spans
        if span.accept_ns is not None and span.request_id in numbers
    }


def _of_client(facts: Facts, one: Timing, number: int) -> Iterator[Event]:
    begun_ns = (facts.measurement.origin_ns or 0) + round(one.start_s * NS)
    yield Event(begun_ns, "b", number)
    if one.reused:
        yield Event(begun_ns, "k", number)
    elif one.connect_s is not None:
        yield Event(begun_ns + round(one.connect_s * NS), "c", number)
    ended_ns = facts.ended_ns if one.end_s is None else begun_ns + round(one.end_s * NS)
    yield Event(ended_ns, "e" if one.cause is None and one.end_s is not None else "f", number)


BARS = 14_000  # on one page, shared by its timelines
MOST, LEAST = 800, 150  # in one timeline
POINTS = 300  # of a series
WIDTHS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # of a bar of connect times
CONNECTS = 100  # of these bars at most, unless the widest are too narrow


T = TypeVar("T", QueueSample, ProcessSample, ConnectionSample)


def timelines(valid: Iterable[Facts]) -> tuple[Timeline, ...]:
    """The timeline of each cell's first valid trial."""
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
    """Seconds since the load began, in equal buckets."""

    def __init__(self, begun_ns: int, ended_ns: int) -> None:
        self.begun_ns, self.ended_ns = begun_ns, ended_ns
        self.bucket_ns = (ended_ns - begun_ns) // POINTS + 1

    def at_s(self, at_ns: int) -> float:
        return (at_ns - self.begun_ns) / NS

    def buckets(self, samples: Sequence[T]) -> Iterable[list[T]]:
        """The samples of the load, one by one, or by bucket if there are too many."""
        inside = [sample for sample in samples if self.begun_ns <= sample.at_ns <= self.ended_ns]
        wide_ns = 1 if len(inside) <= POINTS else self.bucket_ns
        found: dict[int, list[T]] = defaultdict(list)
        for sample in inside:
            found[(sample.at_ns - self.begun_ns) // wide_ns].append(sample)
        return found.values()

    def lasts(self, samples: Sequence[T]) -> list[T]:
        return [bucket[-1] for bucket in self.buckets(samples)]


def _arrivals(facts: Facts, spans: Sequence[Span]) -> Mapping[str | None, int]:
    """When the clients began the requests of these spans, by id, in nanoseconds."""
    origin = facts.measurement.origin_ns
    wanted = {span.request_id for span in spans} - {None}
    if origin is None or not wanted:
        return {}
    timings = (timing for timing in facts.measurement.timings if timing.request_id in wanted)
    return {timing.request_id: origin + round(timing.start_s * NS) for timing in timings}


def _bars(
    spans: Sequence[Span], arrivals: Mapping[str | None, int], clock: _Clock, cut: int
) -> tuple[Bar, ...]:
    """`spans`: sorted by start. One that never ended is drawn to the end of what is shown."""
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
    """Sockets by state over time. A state that a sample does not list has none. The last sample is
    taken after the load and shows what it left behind."""
    last = clock.lasts(samples)
    last += [
        sample for sample in samples[-1:] if sample not in last and sample.at_ns > clock.ended_ns
    ]
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
    """Per second; None if it fell, as a process that ended takes its CPU seconds out of the sum."""
    if before is None or now is None or now < before:
        return None
    return (now - before) / passed_s


def _connects(connects_s: Sequence[float]) -> tuple[tuple[float, float, int], ...]:
    """A histogram of connect times (from, to, count), without empty bars."""
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
    """What was left out, and how; none if everything is shown."""
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
