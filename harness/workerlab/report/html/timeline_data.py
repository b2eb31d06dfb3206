"""Thins one trial over time to the amount that a page can show, with notes on what is omitted.

Requests are shown from the beginning of the load without gaps, so the lone first request, the
ramp-up and the steady part appear as they were. Rejected: a random sample. Its bars would not
touch, and idle slots would look like omitted requests. Observations are thinned to equal buckets of
time over the whole load: the queue keeps its maximum in a bucket, and states their last value;
usage is cumulative, so the last sample of each bucket gives the exact mean rate between buckets.

A request's worker is known from its span. Its row is inferred: the lowest free one of that worker.
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
    row: int  # its slot in the worker, from 0
    start_s: float
    end_s: float
    arrived_s: float | None = None  # its start at the client; None: unknown

    @property
    def waited_s(self) -> float | None:
        """Seconds from its start at the client until the app was called; None if unknown."""
        return None if self.arrived_s is None else max(0.0, self.start_s - self.arrived_s)


class Moment(Usage, frozen=True):
    """CPU and memory at one moment of a timeline; rates are means since the previous moment."""

    at_s: float = 0.0


class Timeline(Struct, frozen=True):
    """One trial over time, thinned for a page. Times are seconds since the load began."""

    key: str  # the key of the Trial
    bars: tuple[Bar, ...]
    shown: tuple[float, float]  # the period that the bars cover
    workers: tuple[int, ...] = ()  # pids, in the order of their rows
    queue: tuple[tuple[float, int], ...] = ()  # (moment, length of the accept queue)
    queue_limit: int | None = None
    states: tuple[tuple[float, str, int], ...] = ()  # (moment, side and state, sockets)
    usage: tuple[Moment, ...] = ()
    steady: tuple[float, float] | None = None  # the period of the cell's means
    connects: tuple[tuple[float, float, int], ...] = ()  # times to connect: (from, until, count)
    syn_steps_s: tuple[float, ...] = ()  # as in Observations
    notes: tuple[Finding, ...] = ()  # on omitted data
    phases: tuple[Phase, ...] = ()
    responses: tuple[tuple[float, float, float], ...] = ()  # (moment, median, p95), seconds
    in_app: bool = False  # whether `responses` are times in the app, since the client timed none
    trace: Trace | None = None  # None: no request was recorded


class Rows:
    """Assigns each interval the lowest free row. Intervals come roughly sorted by start: for one
    that comes late, a row is free if it was free at the latest start so far."""

    def __init__(self) -> None:
        self._latest_start = 0.0
        self._ends: list[float] = []  # end of the last interval in each row

    def take(self, start: float, end: float) -> int:
        self._latest_start = max(self._latest_start, start)
        free_rows = (row for row, row_end in enumerate(self._ends) if row_end <= self._latest_start)
        row = next(free_rows, len(self._ends))
        self._ends[row : row + 1] = [end]
        return row


MAX_BARS_PER_PAGE = 14_000  # in all timelines together
MAX_BARS = 800  # in one timeline
MIN_BARS = 150  # in one timeline, even if that exceeds MAX_BARS_PER_PAGE
MAX_POINTS = 300  # per series of observations
BAR_WIDTHS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # in the histogram of connect times
MAX_CONNECT_BARS = 100  # exceeded only if even the widest bars are too narrow


T = TypeVar("T", QueueSample, ProcessSample, ConnectionSample)


def timelines(trials: Sequence[Facts]) -> tuple[Timeline, ...]:
    """The timelines of one page."""
    max_requests = max(MIN_BARS, min(MAX_BARS, MAX_BARS_PER_PAGE // max(1, len(trials))))
    return tuple(timeline(facts, max_requests) for facts in trials)


def timeline(facts: Facts, max_requests: int = MAX_BARS) -> Timeline:
    """A valid trial over time, with at most `max_requests` of its requests. The result is cached,
    because a page and images may both need it."""
    key = f"{__name__}.timeline-{max_requests}"
    if key not in facts.derived:
        facts.derived[key] = _timeline(facts, max_requests)
    result: Timeline = facts.derived[key]
    return result


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
    """Converts times to seconds since the load began, and divides the load into equal buckets."""

    def __init__(self, begun_ns: int, ended_ns: int) -> None:
        self.begun_ns, self.ended_ns = begun_ns, ended_ns
        self.bucket_ns = (ended_ns - begun_ns) // MAX_POINTS + 1

    def at_s(self, at_ns: int) -> float:
        return (at_ns - self.begun_ns) / NS

    def buckets(self, samples: Sequence[T]) -> Iterable[list[T]]:
        """The samples of the load, one by one, or grouped by bucket if there are too many."""
        in_load = [sample for sample in samples if self.begun_ns <= sample.at_ns <= self.ended_ns]
        width_ns = 1 if len(in_load) <= MAX_POINTS else self.bucket_ns
        by_bucket: dict[int, list[T]] = defaultdict(list)
        for sample in in_load:
            by_bucket[(sample.at_ns - self.begun_ns) // width_ns].append(sample)
        return by_bucket.values()

    def last_of_each(self, samples: Sequence[T]) -> list[T]:
        return [bucket[-1] for bucket in self.buckets(samples)]


def _arrivals(facts: Facts, spans: Sequence[Span]) -> Mapping[str | None, int]:
    """When the clients began the requests of these spans, by id, in nanoseconds."""
    ids, requests = {span.request_id for span in spans} - {None}, facts.timed_requests()
    return {timing.request_id: sent for timing, sent, _ in requests if timing.request_id in ids}


def _bars(
    spans: Sequence[Span], arrivals: Mapping[str | None, int], clock: _Clock, cut_ns: int
) -> Iterator[Bar]:
    """The bars of `spans`, sorted by start. Those that never ended reach to the end of the
    period."""
    rows = defaultdict[int, Rows](Rows)  # by worker
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
    """Sockets by state over time; 0 for a state that a sample does not list. The last sample, taken
    after the load, shows the sockets that remain."""
    chosen = clock.last_of_each(samples)
    chosen += [
        sample for sample in samples[-1:] if sample not in chosen and sample.at_ns > clock.ended_ns
    ]
    for side in ("client", "server"):
        by_time = [(clock.at_s(sample.at_ns), getattr(sample, side)) for sample in chosen]
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
    """The rate per second; None if the sum fell, since it loses the CPU seconds of ended
    processes."""
    if previous is None or current is None or current < previous:
        return None
    return (current - previous) / elapsed_s


def _connects(connects_s: Sequence[float]) -> tuple[tuple[float, float, int], ...]:
    """The bars (from, to, count) of a histogram of connect times in seconds, without empty ones."""
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
    """Notes on omitted data; none if everything is shown."""
    if len(spans) < len(facts.spans):
        period, load = format_duration(clock.at_s(cut_ns)), format_duration(facts.load_s)
        yield Note(
            f"Shows the first {period} of {load}: {len(spans):,} of {len(facts.spans):,} requests."
        )
    if unfinished := sum(span.end_ns is None for span in spans):
        yield Note(f"{counted(unfinished, 'request')} never ended, drawn to the end of the chart.")
    observations = facts.data.observations
    if len(observations.queue) > MAX_POINTS:
        bucket = format_duration(clock.bucket_ns / NS)
        yield Note(f"The accept queue is shown as its maximum in every {bucket}.")
    for name, label in OBSERVATION_NAMES.items():
        if name in observations.missing and getattr(observations, name):
            yield Note(f"Incomplete: {label} ({observations.missing[name]}).")
