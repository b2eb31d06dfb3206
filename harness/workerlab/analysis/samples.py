"""What spans and samples say by themselves. What was not seen is None, never 0.

The steady window of a load: when it was, its throughput, and means over it.

Of a closed loop the window opens at the first completion and closes at the first moment at which
fewer than N requests remain in flight, so that neither a lone first request, nor the filling, nor
the draining is in it. With a fixed number of requests m (the lone one set apart) that moment is
completion number m - N + 1: until then each answer is followed by a new request. A tool that runs
for a time keeps N in flight until it stops; there it is the last completion before the load's end.

Throughput comes from the spans alone, alike for every tool: every span counts by the fraction of
its duration that lies inside. Counting whole completions was rejected: a server that answers in
batches (3 workers, 4 connections) then yields 3.2 requests/s of at most 3.0, because the edges cut
a batch. The tools cannot give this figure: ab's start times are whole seconds, wrk's own rate
misses what it left unfinished.

That rests on a constant number of requests in flight: what the requests under way at its end lend
to the window, those under way at its begin take from it. At a rate it is not constant. Where the
requests of an overload queue inside the app (a pool, a semaphore) their spans grow with the queue,
and those at the end lend more than the others take: 249 requests/s of a pool that can do 240, of
which the client had 217. So at a rate every request counts by the fraction of the *last part* of
its span, which is as long as the shortest span (`counted_ns`) and so no longer in a longer queue.
The sum is then the number of completions, smoothed over a constant time: unbiased whatever is in
flight, and where all are served for the same time, queued or not, as exact as in a closed loop.
Counting whole completions is the limit of a part of length 0; it was not taken, because of the
batches.

A mean is an integral over the window divided by what was completed in it: Little's law (Little
1961) per part, mean time = mean number in it / throughput. The time a request spent outside the
window is cut off. The mean over the requests that end in the window was rejected: in a load of five
rounds it still contains the first batch, which found all slots free, so that 8 connections on 4
slots seemed to wait 0.91 instead of 1.0 service times."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import median

from msgspec import Struct

from workerlab.finding import Finding
from workerlab.model import Observations, ProcessSample, Record, Span, Usage

NS = 1e9


def most_open(spans: Sequence[Span]) -> int:
    """Most spans open at the same time. A span that ends in the nanosecond in which another starts
    has made room for it. One that never ended stays open. One without duration was open at its
    instant."""
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


def durations_s(spans: Iterable[Span]) -> list[float]:
    """Service times of the spans that ended."""
    return [(span.end_ns - span.start_ns) / NS for span in spans if span.end_ns is not None]


def per_second(sums: Iterable[tuple[int, float | None]], least_s: float = 0.0) -> float | None:
    """How fast a sum grew between its first and its last known value, by time in nanoseconds; None
    where these are less than `least_s` apart."""
    known = [(at_ns, value) for at_ns, value in sums if value is not None]
    lasted_ns = known[-1][0] - known[0][0] if known else 0
    if lasted_ns <= 0 or lasted_ns < least_s * NS:
        return None
    # A process that ended takes its CPU time out of the sum of those that are left
    return max(0.0, (known[-1][1] - known[0][1]) * NS / lasted_ns)


def waited_for_core_s(seen: Observations, workers: int) -> float:
    """How long the load tool and, on average, one of so many workers were ready to run and had no
    core; what the kernel does not tell is not in it."""
    servers_s = seen.processes[-1].server_wait_s if seen.processes else None
    return (servers_s or 0.0) / workers + tool_waited_s(seen)


def tool_waited_s(seen: Observations) -> float:
    """The load tool alone."""
    return (seen.processes[-1].tool_wait_s or 0.0) if seen.processes else 0.0


def usage(seen: Observations, record: Record, load_s: float) -> Usage:
    """The tool's CPU is exact where its guard reaped it, else from the samples."""
    samples = seen.processes
    generator = per_second((one.at_ns, one.tool_cpu_s) for one in samples)
    if record.tool_cpu_s is not None and load_s > 0:
        generator = record.tool_cpu_s / load_s
    host = per_second((one.at_ns, without_others(one)) for one in samples)
    return Usage(
        server_cores=per_second((one.at_ns, one.server_cpu_s) for one in samples),
        generator_cores=generator,
        # The host's clock ticks, so that a busy moment may seem longer than it was
        host_busy=min(1.0, host / seen.cores) if host is not None and seen.cores else None,
        server_rss_bytes=_most(one.server_rss_bytes for one in samples),
        generator_rss_bytes=_most(one.tool_rss_bytes for one in samples),
        host_memory_bytes=_most(one.host_memory_bytes for one in samples),
    )


def without_others(one: ProcessSample) -> float | None:
    """CPU seconds of all cores, less what other trials of the lab used."""
    if one.host_busy_s is None:
        return None
    return max(0.0, one.host_busy_s - (one.beside_cpu_s or 0.0))


def lab_cores(samples: Sequence[ProcessSample]) -> float:
    """Cores that the whole lab used: this trial's processes, those of others, and the lab itself;
    what is not known is not in it."""
    names = ("server_cpu_s", "tool_cpu_s", "lab_cpu_s", "beside_cpu_s")
    rates = (per_second((one.at_ns, getattr(one, name)) for one in samples) for name in names)
    return sum(rate or 0.0 for rate in rates)


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


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


def missing_notes(seen: Observations) -> tuple[Finding, ...]:
    """One per reason, with the samplers that are missing for it."""
    about: dict[str, list[str]] = {}
    for sampler, why in seen.missing.items():
        about.setdefault(why, []).append(SAMPLERS[sampler])
    return tuple(SamplesMissing(tuple(samplers), why) for why, samplers in about.items())


class Window(Struct, frozen=True):
    """CLOCK_MONOTONIC nanoseconds; rps: completions per second in it, above 0."""

    opens_ns: int
    closes_ns: int
    rps: float

    @property
    def length_s(self) -> float:
        return (self.closes_ns - self.opens_ns) / NS

    @property
    def completed(self) -> float:
        return self.rps * self.length_s

    def inside_s(self, stretches: Iterable[tuple[int, int]]) -> float:
        """How much of all stretches, from and until, lies inside: seconds."""
        opens, closes, inside = self.opens_ns, self.closes_ns, 0
        for start, end in stretches:
            length = (end if end < closes else closes) - (start if start > opens else opens)
            if length > 0:
                inside += length
        return inside / NS

    def contains(self, at_ns: int) -> bool:
        return self.opens_ns <= at_ns <= self.closes_ns

    def level(self, samples: Iterable[tuple[int, float]], least: int) -> float | None:
        """The mean of a sampled length, each sample weighted by the time until the next one. None
        where fewer than `least` samples (at least 2) were taken inside, in order of time."""
        inside = [one for one in samples if self.contains(one[0])]
        if len(inside) < least or inside[-1][0] <= inside[0][0]:
            return None
        area = sum(value * (after - at) for (at, value), (after, _) in pairwise(inside))
        return area / (inside[-1][0] - inside[0][0])


class TooFewCompleted(Finding):
    """{completed:# request} completed: too few to see a steady part with {in_flight} in flight;
    give it more rounds or more time"""

    completed: int
    in_flight: int


class SteadyPartTooShort(Finding):
    """the part of the load with {in_flight} requests in flight is too short ({length_s:duration}):
    give it more rounds or more time"""

    in_flight: int
    length_s: float


def steady_window(
    spans: Sequence[Span],
    concurrency: int,
    *,
    lone_first: bool,
    stopped_ns: int | None = None,
    begun_ns: int = 0,
    counted_ns: int | None = None,
) -> Window | TooFewCompleted | SteadyPartTooShort:
    """The window of `spans`, which are ordered by start, or why there is none. `stopped_ns`: when a
    tool that runs for a time stopped; None for a tool that counts. `begun_ns`: when all connections
    had begun: what was completed before is not steady. `counted_ns`: of each span's end, at most;
    None: the whole."""
    rest = spans[1:] if lone_first else spans
    ends = sorted(span.end_ns for span in rest if span.end_ns is not None)
    if stopped_ns is None:
        last = len(rest) - concurrency
    else:
        ends = [end for end in ends if begun_ns <= end <= stopped_ns]
        last = len(ends) - 1
    if last < 1 or last >= len(ends):
        return TooFewCompleted(len(ends), concurrency)
    opens, closes = ends[0], ends[last]
    shortest = min(span.end_ns - span.start_ns for span in rest if span.end_ns is not None)
    if closes <= opens or closes - opens < shortest / 2:
        return SteadyPartTooShort(concurrency, (closes - opens) / NS)
    count = completions(stretches(rest, closes, counted_ns), opens, closes)
    return Window(opens, closes, count * NS / (closes - opens))


def stretches(
    spans: Sequence[Span], closes: int, counted_ns: int | None
) -> Sequence[tuple[int, int]]:
    """What counts of each. One that never ended held its slot to the window's end at least; how
    long it would have taken is taken to be the typical time, or as long as it was seen. At a rate
    it counts for nothing: it may have waited for a slot inside the app."""
    whole = ended(spans, counted_ns)
    if counted_ns is not None or len(whole) == len(spans):
        return whole
    typical_ns = round(median(end - start for start, end in whole))
    begun = (span.start_ns for span in spans if span.end_ns is None)
    return whole + [(start, max(start + typical_ns, closes, start + 1)) for start in begun]


def ended(spans: Iterable[Span], counted_ns: int | None) -> list[tuple[int, int]]:
    """What counts of those that ended."""
    whole = ((span.start_ns, span.end_ns) for span in spans if span.end_ns is not None)
    return last_parts(whole, counted_ns)


def last_parts(whole: Iterable[tuple[int, int]], counted_ns: int | None) -> list[tuple[int, int]]:
    """Of each no more than so much before its end; None: all."""
    if counted_ns is None:
        return list(whole)
    return [(max(start, end - counted_ns), end) for start, end in whole]


def completions(counted: Iterable[tuple[int, int]], opens: int, closes: int) -> float:
    """How many requests were completed in opens..closes."""
    return sum(share(start, end, opens, closes) for start, end in counted)


def share(start: int, end: int, opens: int, closes: int) -> float:
    """The fraction of start..end inside opens..closes. An instant is inside or not: what opens the
    window is outside, what closes it inside."""
    if end == start:
        return 1.0 if opens < end <= closes else 0.0
    if opens <= start and end <= closes:
        return 1.0
    return max(0, min(end, closes) - max(start, opens)) / (end - start)
