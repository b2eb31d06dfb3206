"""One trial over time, thinned to what a page can show, with notes on what was left out.

Requests: one contiguous part from the beginning of the load, so the lone first request, the ramp-up
and the steady part appear as they were. A random sample was rejected: its bars would not touch, and
idle slots would look like omitted requests. Series: equal buckets of time over the whole load. The
queue keeps the maximum of a bucket, states keep their last value; usage is cumulative, so the last
sample of each bucket gives the exact mean rate between buckets.

A request's worker is known from its span; its row is inferred: the lowest free one of that worker.
Its start at the client is known only if the load tool gives requests an id.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct

from workerlab.analysis.facts import Facts
from workerlab.analysis.phases import client_timed, over_time, phases_of, responses_of
from workerlab.analysis.samples import NS, busy_without_others_s
from workerlab.finding import Finding, Note
from workerlab.model.evidence import ConnectionSample, ProcessSample, QueueSample, Span
from workerlab.model.result import Phase, Usage
from workerlab.numbers.units import counted, format_duration
from workerlab.report.player.places import Trace, trace


class Bar(Struct, frozen=True):
    """One request in a timeline: seconds since the load began."""

    worker: int
    row: int  # the slot it took in its worker, from 0
    start_s: float
    end_s: float
    arrived_s: float | None = None  # when the client began it; None: unknown

    @property
    def waited_s(self) -> float | None:
        """From its start at the client until the app was called; None: unknown."""
        return None if self.arrived_s is None else max(0.0, self.start_s - self.arrived_s)


class Moment(Usage, frozen=True):
    """CPU and memory at one moment of a timeline; rates are means since the previous moment."""

    at_s: float = 0.0


class Timeline(Struct, frozen=True):
    """One trial over time, thinned to what a page can show; seconds since the load began."""

    key: str  # of its Trial
    bars: tuple[Bar, ...]
    shown: tuple[float, float]  # the part of the load that the bars cover
    workers: tuple[int, ...] = ()  # pids, in the order of their rows
    queue: tuple[tuple[float, int], ...] = ()  # (moment, length of the accept queue)
    queue_limit: int | None = None
    states: tuple[tuple[float, str, int], ...] = ()  # (moment, side and state, sockets)
    usage: tuple[Moment, ...] = ()
    steady: tuple[float, float] | None = None  # the window of the cell's means
    connects: tuple[tuple[float, float, int], ...] = ()  # times to connect: (from, until, count)
    syn_steps_s: tuple[float, ...] = ()  # as in Observations
    notes: tuple[Finding, ...] = ()  # what was left out, and how
    phases: tuple[Phase, ...] = ()
    responses: tuple[tuple[float, float, float], ...] = ()  # (moment, median, p95), seconds
    in_app: bool = False  # `responses` are times in the app: the client timed none
    trace: Trace | None = None  # None: no request was recorded


class Rows:
    """Gives each interval the lowest free row. They come sorted by start. A row is free again at
    the end of its interval, and stays so for an earlier start that comes late."""

    def __init__(self) -> None:
        self._latest_start = 0.0
        self._ends: list[float] = []  # of the last interval of each row

    def take(self, start: float, end: float) -> int:
        self._latest_start = max(self._latest_start, start)
        free = (row for row, row_end in enumerate(self._ends) if row_end <= self._latest_start)
        row = next(free, len(self._ends))
        self._ends[row : row + 1] = [end]
        return row


MAX_BARS_PER_PAGE = 14_000  # shared by its timelines
MAX_BARS = 800  # in one timeline
MIN_BARS = 150  # in one timeline, even if that exceeds MAX_BARS_PER_PAGE
MAX_POINTS = 300  # of a series
BAR_WIDTHS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # of connect times
MAX_CONNECT_BARS = 100  # exceeded only if the widest bars are too narrow


T = TypeVar("T", QueueSample, ProcessSample, ConnectionSample)


def timelines(trials: Sequence[Facts]) -> tuple[Timeline, ...]:
    """The timelines of one page."""
    max_requests = max(MIN_BARS, min(MAX_BARS, MAX_BARS_PER_PAGE // max(1, len(trials))))
    return tuple(timeline(facts, max_requests) for facts in trials)


def timeline(facts: Facts, max_requests: int = MAX_BARS) -> Timeline:
    """A valid trial over time, with at most `max_requests` of its requests. Cached, as a page and
    images may both need it."""
    key = f"{__name__}.timeline-{max_requests}"
    if key not in facts.derived:
        facts.derived[key] = _timeline(facts, max_requests)
    cached: Timeline = facts.derived[key]
    return cached


def _timeline(facts: Facts, max_requests: int) -> Timeline:
    spans, ended_ns = facts.spans[:max_requests], facts.ended_ns
    cut_ns = facts.spans[max_requests].start_ns if len(facts.spans) > max_requests else ended_ns
    clock = _Clock(facts.started_ns, ended_ns)
    observations, steady, phases = facts.data.observations, facts.window, phases_of(facts)
    peaks = (max(bucket, key=attrgetter("length")) for bucket in clock.buckets(observations.queue))
    return Timeline(
        key=facts.key,
        bars=tuple(_bars(spans, _arrivals(facts, spans), clock, cut_ns)),
        shown=(0.0, clock.at_s(cut_ns)),
        workers=tuple(facts.requests_per_worker),
        queue=tuple((clock.at_s(peak.at_ns), peak.length) for peak in peaks),
        queue_limit=observations.queue[-1].limit if observations.queue else None,
        states=tuple(_states(observations.connections, clock)),
        usage=tuple(_usage(clock.last_of_each(observations.processes), observations.cores, clock)),
        steady=(clock.at_s(steady.opens_ns), clock.at_s(steady.closes_ns)) if steady else None,
        connects=_connects(facts.measurement.connects_s),
        syn_steps_s=observations.syn_steps_s,
        notes=tuple(_notes(spans, facts, clock, cut_ns)),
        phases=phases,
        responses=over_time(responses_of(facts), clock.at_s(ended_ns)) if phases else (),
        in_app=not client_timed(facts),
        trace=trace(facts, max_requests),
    )


class _Clock:
    """Seconds since the load began, in equal buckets."""

    def __init__(self, begun_ns: int, ended_ns: int) -> None:
        self.begun_ns, self.ended_ns = begun_ns, ended_ns
        self.bucket_ns = (ended_ns - begun_ns) // MAX_POINTS + 1

    def at_s(self, at_ns: int) -> float:
        return (at_ns - self.begun_ns) / NS

    def buckets(self, samples: Sequence[T]) -> Iterable[list[T]]:
        """The samples of the load, one by one, or by bucket if there are too many."""
        inside = [sample for sample in samples if self.begun_ns <= sample.at_ns <= self.ended_ns]
        width_ns = 1 if len(inside) <= MAX_POINTS else self.bucket_ns
        by_bucket: dict[int, list[T]] = defaultdict(list)
        for sample in inside:
            by_bucket[(sample.at_ns - self.begun_ns) // width_ns].append(sample)
        return by_bucket.values()

    def last_of_each(self, samples: Sequence[T]) -> list[T]:
        return [bucket[-1] for bucket in self.buckets(samples)]


def _arrivals(facts: Facts, spans: Sequence[Span]) -> Mapping[str | None, int]:
    """When the clients began the requests of these spans, by id, in nanoseconds."""
    ids, timed = {span.request_id for span in spans} - {None}, facts.timed_requests()
    return {timing.request_id: sent for timing, sent, _ in timed if timing.request_id in ids}


def _bars(
    spans: Sequence[Span], arrivals: Mapping[str | None, int], clock: _Clock, cut_ns: int
) -> Iterator[Bar]:
    """`spans`: sorted by start. One that never ended is drawn to the end of the part shown."""
    rows = defaultdict[int, Rows](Rows)  # of each worker
    for span in spans:
        end_ns = max(cut_ns, span.start_ns) if span.end_ns is None else span.end_ns
        arrived_ns = arrivals.get(span.request_id)
        yield Bar(
            worker=span.pid,
            row=rows[span.pid].take(span.start_ns, end_ns),
            start_s=clock.at_s(span.start_ns),
            end_s=clock.at_s(end_ns),
            arrived_s=None if arrived_ns is None else clock.at_s(arrived_ns),
        )


def _states(samples: Sequence[ConnectionSample], clock: _Clock) -> Iterable[tuple[float, str, int]]:
    """Sockets by state over time; 0 for a state that a sample does not list. The last sample is
    taken after the load and shows the sockets it left behind."""
    thinned = clock.last_of_each(samples)
    thinned += [
        sample for sample in samples[-1:] if sample not in thinned and sample.at_ns > clock.ended_ns
    ]
    for side in ("client", "server"):
        by_time = [(clock.at_s(sample.at_ns), getattr(sample, side)) for sample in thinned]
        names = sorted({name for _, states in by_time for name in states})
        yield from (
            (at_s, f"{side} {name}", states.get(name, 0))
            for at_s, states in by_time
            for name in names
        )


def _usage(samples: Sequence[ProcessSample], cores: int | None, clock: _Clock) -> Iterable[Moment]:
    for previous, current in pairwise(samples):
        elapsed_s = (current.at_ns - previous.at_ns) / NS
        if elapsed_s <= 0:
            continue
        busy = _rate(busy_without_others_s(previous), busy_without_others_s(current), elapsed_s)
        yield Moment(
            at_s=clock.at_s(current.at_ns),
            server_cores=_rate(previous.server_cpu_s, current.server_cpu_s, elapsed_s),
            generator_cores=_rate(previous.tool_cpu_s, current.tool_cpu_s, elapsed_s),
            host_busy=min(1.0, busy / cores) if busy is not None and cores else None,
            server_rss_bytes=current.server_rss_bytes,
            generator_rss_bytes=current.tool_rss_bytes,
        )


def _rate(previous: float | None, current: float | None, elapsed_s: float) -> float | None:
    """Per second; None if it fell, as a process that ended takes its CPU seconds out of the sum."""
    if previous is None or current is None or current < previous:
        return None
    return (current - previous) / elapsed_s


def _connects(connects_s: Sequence[float]) -> tuple[tuple[float, float, int], ...]:
    """A histogram of connect times (from, to, count), without empty bars. Seconds."""
    longest_s = max(connects_s, default=0.0)
    width_s = next((s for s in BAR_WIDTHS_S if longest_s <= s * MAX_CONNECT_BARS), BAR_WIDTHS_S[-1])
    counts = Counter(int(connect_s / width_s) for connect_s in connects_s)
    return tuple(
        (width_s * index, width_s * (index + 1), count) for index, count in sorted(counts.items())
    )


OBSERVATION_NAMES = {
    "queue": "accept queue",
    "processes": "CPU and memory",
    "connections": "TCP connections",
}


def _notes(spans: Sequence[Span], facts: Facts, clock: _Clock, cut_ns: int) -> Iterator[Note]:
    """Notes on what was left out; none if everything is shown."""
    if len(spans) < len(facts.spans):
        drawn, load = format_duration(clock.at_s(cut_ns)), format_duration(facts.load_s)
        yield Note(
            f"Shows the first {drawn} of {load}, {len(spans):,} of {len(facts.spans):,} requests."
        )
    if unfinished := sum(span.end_ns is None for span in spans):
        yield Note(f"{counted(unfinished, 'request')} never ended; drawn to the end of the chart.")
    observations = facts.data.observations
    if len(observations.queue) > MAX_POINTS:
        bucket = format_duration(clock.bucket_ns / NS)
        yield Note(f"The accept queue is shown by its maximum in every {bucket}.")
    for name, label in OBSERVATION_NAMES.items():
        if name in observations.missing and getattr(observations, name):
            yield Note(f"Incomplete: {label} ({observations.missing[name]}).")
