"""The steady window of a load, and figures from spans or samples alone. Times are nanoseconds on
CLOCK_MONOTONIC.

A value that was not observed is None, never 0.

In a closed loop the window opens at the first completion and closes when fewer requests than
connections (N) remain in flight, so it excludes a lone first request, the ramp-up and the drain.
With a fixed number of requests m (without the lone one) it closes at completion number m - N + 1:
before that, each response is followed by a new request. A tool that runs for a fixed time keeps N
in flight until it stops; there the window closes at the last completion before the load's end.

Throughput comes from the spans alone, in the same way for every tool: each span counts by the
fraction of its duration inside the window. Rejected: counting whole completions. A server that
responds in batches (3 workers, 4 connections) then yields 3.2 requests/s where 3.0 is the maximum,
because the edges cut a batch. The tools cannot give this figure: ab's start times are whole
seconds, and wrk's own rate omits the requests it left unfinished.

This relies on a constant number of requests in flight: requests in progress at the window's end add
as much as those in progress at its start subtract. At a rate the number is not constant. If an
overload makes requests queue inside the app (a pool, a semaphore), their spans grow with the queue,
and those at the end add more than those at the start subtract: 249 requests/s for a pool with a
capacity of 240, while the client received 217. So at a rate each request counts by the fraction of
the *last part* of its span. This part is as long as the shortest span (`tail_ns`), which does not
grow with the queue. The sum is then the number of completions, smoothed over a constant time: it is
unbiased for any number of requests in flight, and as exact as in a closed loop if all take equally
long to serve, queued or not. Counting whole completions is the limit of a part of length 0, and was
rejected because of batches.

A mean is an integral over the window divided by the completions in it: Little's law (Little 1961)
for each part, mean time = mean number in it / throughput. Time that a request spent outside the
window is cut off. Rejected: the mean over requests that end in the window. In a load of five rounds
it still contains the first batch, which found all slots free: 8 connections on 4 slots seemed to
wait 0.91 instead of 1.0 service times.

Plain Python: numpy is not a dependency of the lab, and most of the time is spent on reading spans.
"""

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from operator import attrgetter, itemgetter
from statistics import median
from typing import Literal, Protocol, TypeVar

from msgspec import Struct

from workerlab.analysis.trials import grouped
from workerlab.finding import Finding, Findings
from workerlab.model.evidence import Beat, Observations, ProcessSample, Record, Span
from workerlab.model.result import Usage

NS = 1e9

K = TypeVar("K", bound=Hashable)
P = TypeVar("P", Span, Beat)
S = TypeVar("S", bound="Sample")
Value = str | Callable[[S], float | None]  # a field of a sample, or a function of the sample
Change = tuple[int, K, int]  # time, key, and change in the number of the key
MOMENT = itemgetter(0)


class Sample(Protocol):
    @property
    def at_ns(self) -> int: ...


class Period(Struct, frozen=True):
    """A part of a load, including its edges."""

    opens_ns: int
    closes_ns: int

    @property
    def length_s(self) -> float:
        return (self.closes_ns - self.opens_ns) / NS

    def contains(self, at_ns: int) -> bool:
        return self.opens_ns <= at_ns <= self.closes_ns

    def select(self, samples: Iterable[S]) -> list[S]:
        return [sample for sample in samples if self.contains(sample.at_ns)]

    def mean_level(self, samples: Iterable[S], value: Value[S], min_count: int) -> float | None:
        """The mean of a sampled value, each sample weighted by the time to the next one. None if
        fewer than `min_count` (2 or more) are in the period. `samples`: by time."""
        inside = values_of(self.select(samples), value)
        if len(inside) < min_count or inside[-1][0] <= inside[0][0]:
            return None
        area = sum(value * (after - at) for (at, value), (after, _) in pairwise(inside))
        return area / (inside[-1][0] - inside[0][0])


ALWAYS = Period(0, sys.maxsize)


class Intervals(Struct, frozen=True):
    """Intervals of time, each (start, end). They may overlap."""

    stretches: Sequence[tuple[int, int]]

    @classmethod
    def of(
        cls, spans: Iterable[Span], until_ns: int | None = None, more_ns: int = 0
    ) -> "Intervals":
        """Each span from its start to `more_ns` after its end. A span that never ended lasts until
        `until_ns`; None: it is omitted."""
        return cls(
            [
                (span.start_ns, end_ns + more_ns)
                for span in spans
                if (end_ns := span.end_ns or until_ns) is not None
            ]
        )

    def last(self, tail_ns: int | None) -> "Intervals":
        """The last `tail_ns` of each interval; None: the whole interval."""
        if tail_ns is None:
            return self
        return Intervals([(max(start, end - tail_ns), end) for start, end in self.stretches])

    def lengths_ns(self, period: Period) -> Iterator[int]:
        """The overlap with the period of each interval that overlaps it."""
        opens, closes = period.opens_ns, period.closes_ns
        for start, end in self.stretches:
            length_ns = (end if end < closes else closes) - (start if start > opens else opens)
            if length_ns > 0:
                yield length_ns

    def inside_s(self, period: Period) -> float:
        """Overlap with the period in seconds, summed over all intervals."""
        return sum(self.lengths_ns(period)) / NS

    def completed(self, period: Period) -> float:
        """The number completed in the period; each interval counts by its fraction inside."""
        opens, closes = period.opens_ns, period.closes_ns
        return sum(_share(start, end, opens, closes) for start, end in self.stretches)

    def completed_between(self, edges: Sequence[int]) -> list[float]:
        """`completed` for each period between two adjacent edges, which ascend."""
        counts = [0.0] * (len(edges) - 1)
        for start, end in self.stretches:
            first, last = bisect_left(edges, start) - 1, bisect_left(edges, end)
            for number in range(max(0, first), min(len(counts), last)):
                counts[number] += _share(start, end, edges[number], edges[number + 1])
        return counts

    def per_second(self, period: Period) -> float:
        """The number completed per second of the period."""
        return self.completed(period) * NS / max(1, period.closes_ns - period.opens_ns)

    def max_open(self) -> int:
        """The largest number open at the same time. An interval that ends in the nanosecond in
        which another starts does not overlap it; one of length 0 is open at its instant."""
        # Sort keys: four times the nanoseconds, plus 0 for an end, 1 for a start, and 2 for the end
        # of an interval that started in the same nanosecond
        instants = [4 * start + 1 for start, _ in self.stretches]
        instants += [4 * end + 2 * (end <= start) for start, end in self.stretches]
        instants.sort()
        return max(accumulate(1 if instant & 1 else -1 for instant in instants), default=0)

    def open_at(self, moments: Iterable[float]) -> tuple[int, ...]:
        """The number open at each moment."""
        return tuple(sum(start <= at < end for start, end in self.stretches) for at in moments)

    def changes(self, key: K) -> Iterator[Change[K]]:
        for start, end in self.stretches:
            yield start, key, 1
            yield end, key, -1


def states(
    changes: Iterable[Change[K]], period: Period = ALWAYS
) -> Iterator[tuple[int, Counter[K]]]:
    """Each state in the period up to the last change: its length and the number of each key. The
    counter is updated in place."""
    numbers, since_ns = Counter[K](), period.opens_ns
    for at_ns, simultaneous in groupby(sorted(changes, key=MOMENT), MOMENT):
        if (until_ns := min(at_ns, period.closes_ns)) > since_ns:
            yield until_ns - since_ns, numbers
            since_ns = until_ns
        for _, key, change in simultaneous:
            numbers[key] += change


def _share(start: int, end: int, opens: int, closes: int) -> float:
    """The fraction of start..end inside opens..closes. If start equals end, the instant `opens` is
    outside, `closes` inside."""
    if end == start:
        return 1.0 if opens < end <= closes else 0.0
    if opens <= start and end <= closes:
        return 1.0
    return max(0, min(end, closes) - max(start, opens)) / (end - start)


# --- spans and samples ----------------------------------------------------------------------------


def by_worker(records: Iterable[P]) -> Mapping[int, Sequence[P]]:
    """Spans or beats by pid, those of each worker in their original order."""
    return grouped(records, lambda record: record.pid)


def durations_s(spans: Iterable[Span]) -> list[float]:
    """Durations of the spans that ended, in seconds."""
    return [(span.end_ns - span.start_ns) / NS for span in spans if span.end_ns is not None]


def values_of(samples: Iterable[S], value: Value[S]) -> list[tuple[int, float]]:
    """The known values as (nanoseconds, value)."""
    value_of = attrgetter(value) if isinstance(value, str) else value
    return [
        (sample.at_ns, number) for sample in samples if (number := value_of(sample)) is not None
    ]


def per_second(samples: Iterable[S], value: Value[S], min_s: float = 0.0) -> float | None:
    """Growth of a cumulative value per second, from its first to its last known value. None if
    these are less than `min_s` apart, or not apart at all."""
    points = values_of(samples, value)
    lasted_ns = points[-1][0] - points[0][0] if points else 0
    if lasted_ns <= 0 or lasted_ns < min_s * NS:
        return None
    # The CPU time of a process that ended is missing from the sum
    return max(0.0, (points[-1][1] - points[0][1]) * NS / lasted_ns)


def waited_for_core_s(observations: Observations, process: Literal["server", "tool"]) -> float:
    """Seconds that the workers or the load tool were ready to run without a core; 0 if unknown."""
    last = observations.processes[-1:]
    return sum(getattr(sample, f"{process}_wait_s") or 0.0 for sample in last)


def usage(observations: Observations, record: Record, load_s: float) -> Usage:
    """CPU and memory use. The load tool's CPU time is exact if its guard reaped it, else
    sampled."""
    samples = observations.processes
    generator = per_second(samples, "tool_cpu_s")
    if record.tool_cpu_s is not None and load_s > 0:
        generator = record.tool_cpu_s / load_s
    host = per_second(samples, busy_without_others_s)
    return Usage(
        server_cores=per_second(samples, "server_cpu_s"),
        generator_cores=generator,
        # The host counts CPU time in ticks, so the share may exceed 1
        host_busy=min(1.0, host / observations.cores)
        if host is not None and observations.cores
        else None,
        server_rss_bytes=_largest(samples, "server_rss_bytes"),
        generator_rss_bytes=_largest(samples, "tool_rss_bytes"),
        host_memory_bytes=_largest(samples, "host_memory_bytes"),
    )


def busy_without_others_s(sample: ProcessSample) -> float | None:
    """CPU seconds of all cores, without those that other trials of the lab used."""
    if sample.host_busy_s is None:
        return None
    return max(0.0, sample.host_busy_s - (sample.beside_cpu_s or 0.0))


def lab_cores(samples: Sequence[ProcessSample]) -> float:
    """Cores that the whole lab used: this trial's processes, those of other trials, and the lab's
    own; unknown parts count as 0."""
    names = ("server_cpu_s", "tool_cpu_s", "lab_cpu_s", "beside_cpu_s")
    return sum(per_second(samples, name) or 0.0 for name in names)


def _largest(samples: Iterable[ProcessSample], name: str) -> int | None:
    values = [value for sample in samples if (value := getattr(sample, name)) is not None]
    return max(values, default=None)


SAMPLERS = {
    "queue": "accept queue",
    "processes": "CPU and memory",
    "connections": "TCP connections",
    "counters": "kernel counters",
    "services": "CPU of storage and cache",
    "app_metrics": "app metrics",
    "workers": "CPU of each worker",
    "memory": "memory of the workers",
    "pauses": "pauses of the machine",
}


class SamplesMissing(Finding):
    """{samplers:, } missing: {why}"""

    samplers: tuple[str, ...]
    why: str


def missing_notes(observations: Observations) -> Findings:
    """Notes on missing samplers, one for each reason."""
    missing = observations.missing
    return tuple(
        SamplesMissing(tuple(map(SAMPLERS.__getitem__, samplers)), why)
        for why, samplers in grouped(missing, missing.__getitem__).items()
    )


class Window(Period, frozen=True):
    """A part of a load in which requests were completed."""

    rps: float  # completed per second, above 0

    @classmethod
    def counting(cls, counted: Intervals, period: Period) -> "Window":
        return cls(period.opens_ns, period.closes_ns, counted.per_second(period))

    @property
    def completed(self) -> float:
        return self.rps * self.length_s


class TooFewCompleted(Finding):
    """{completed:# request} completed: too few for a steady part with {in_flight} in flight; use
    more rounds or a longer load"""

    completed: int
    in_flight: int


class SteadyPartTooShort(Finding):
    """the part of the load with {in_flight} requests in flight is too short ({length_s:duration}):
    use more rounds or a longer load"""

    in_flight: int
    length_s: float


def steady_window(
    under_load: Sequence[Span],
    concurrency: int,
    *,
    stopped_ns: int | None = None,
    begun_ns: int = 0,
    tail_ns: int | None = None,
) -> Window | TooFewCompleted | SteadyPartTooShort:
    """The window of the spans `under_load`, which are ordered by start, or the reason why there is
    none. `stopped_ns`: when a load of fixed duration stopped; None for a fixed number of requests.
    `begun_ns`: when all connections had started; earlier completions are not steady. `tail_ns`: how
    much of each span counts at most, up to its end; None: the whole span."""
    ended = Intervals.of(under_load).stretches
    ends = sorted(end for _, end in ended)
    if stopped_ns is None:
        last = len(under_load) - concurrency
    else:
        ends = [end for end in ends if begun_ns <= end <= stopped_ns]
        last = len(ends) - 1
    if last < 1 or last >= len(ends):
        return TooFewCompleted(len(ends), concurrency)
    steady = Period(ends[0], ends[last])
    shortest_s = min(end - start for start, end in ended) / NS
    if steady.length_s <= 0 or steady.length_s < shortest_s / 2:
        return SteadyPartTooShort(concurrency, steady.length_s)
    return Window.counting(counted_parts(under_load, steady.closes_ns, tail_ns), steady)


def counted_parts(spans: Sequence[Span], closes_ns: int, tail_ns: int | None) -> Intervals:
    """The part of each span that counts. A span that never ended held its slot at least to the
    window's end; its duration is assumed to be the median, or the observed time if that is longer.
    At a rate it does not count, because it may have waited for a slot inside the app."""
    ended = Intervals.of(spans)
    if tail_ns is not None or len(ended.stretches) == len(spans):
        return ended.last(tail_ns)
    typical_ns = round(median(end - start for start, end in ended.stretches))
    unfinished = (span.start_ns for span in spans if span.end_ns is None)
    assumed = ((start, max(start + typical_ns, closes_ns, start + 1)) for start in unfinished)
    return Intervals([*ended.stretches, *assumed])
