"""The precision of a load's throughput and mean times, by batch means.

Successive requests are not independent, so their spread says little about the error of their
mean. The steady window is cut into batches of equal length. The means of long batches are nearly
independent, and Student's t over them gives the interval (Law & Kelton, Simulation Modeling and
Analysis, "batch means"; Schmeiser 1982: more than about 30 batches gain nothing).

A batch lasts a whole number of *cycles*. In a cycle, min(N, slots)/X, each slot (or connection, if
there are fewer) serves one request. Each span counts by its fraction inside the batch, as in
`samples`, so constant service times give equal batches wherever the cuts are. If whole completions
counted, a batch of half a round of 4 slots would have 4 or 0 of them.

If neighbouring batches are still correlated (at lag 1, significantly at 5 %), pairs of batches are
merged, repeatedly, as long as MIN_BATCHES remain. A load that drifts ends up with few, different
batches and a wide interval.

A mean time is a ratio: the sum of the times / their number, each counted in the batch in
which the request ends. Its interval is that of the residuals (Iglehart 1975), which allows any
number of requests in a batch, even 0.

Rejected: the spread of single requests (4 slots of 1 s that wait for each other would look
precise), overlapping batch means (their degrees of freedom are approximate, and they gain little).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from math import sqrt
from statistics import fmean, stdev

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, Intervals, Window, counted_parts
from workerlab.numbers.intervals import half_width_of_mean

MIN_BATCHES, MAX_BATCHES = 4, 32
BATCH_S = 1.0  # rounded to whole cycles, if the window has ENOUGH_BATCHES batches of this length
MIN_BATCH_S = BATCH_S / 1.5  # the shortest that this rounding gives
ENOUGH_BATCHES = 8
CORRELATION_Z = 1.645  # standard errors; exceeded by chance in 5 % of cases
MAX_CORRELATION = 0.8  # a higher correlation widens an interval no further
MAX_CUT_SHARE = 0.1  # of a cycle; the last cycle counts as whole if at most this is missing


class Estimate(Struct, frozen=True):
    """A mean and the half-width of its 95 % interval."""

    mean: float
    half: float


class Precision(Struct, frozen=True):
    """The precision of a load over its steady window. Fields are None with too few batches."""

    batches: int = 0
    batch_s: float | None = None
    variation: float | None = None  # standard deviation of the batches' rates / their mean
    throughput_rps: Estimate | None = None  # successful responses
    service_s: Estimate | None = None
    response_s: Estimate | None = None  # only if the client timed each request

    @property
    def is_long(self) -> bool:
        """Whether there are at least ENOUGH_BATCHES batches of MIN_BATCH_S or longer."""
        return self.batches >= ENOUGH_BATCHES and (self.batch_s or 0.0) >= MIN_BATCH_S


@once
def precision(facts: Facts) -> Precision:
    """The precision of throughput and mean times; empty if the window has too few cycles."""
    window, tail_ns = facts.window, facts.tail_ns
    if window is None:
        return Precision()
    # In a closed loop, the time of each slot (or connection, if there are fewer) per request. At a
    # rate, the counted part of a span: slots may be idle, and requests may queue inside the app
    cycle_s = facts.max_parallel / window.rps if tail_ns is None else tail_ns / NS
    spans = facts.under_load
    parts = counted_parts(spans, window.closes_ns, tail_ns)
    edges, rates = _merged_batches(parts, window, cycle_s)
    if len(rates) < MIN_BATCHES:
        return Precision()
    half_rps, mean_rps = _half_width(rates), fmean(rates)
    assert half_rps is not None
    services = ((span.end_ns, (span.end_ns - span.start_ns) / NS) for span in spans if span.end_ns)
    # Responses of successes that the client timed, except a lone first one
    timed = islice(facts.timed_requests(), facts.data.lone_first, None)
    responses = (
        (end_ns, timing.end_s or 0.0)
        for timing, _, end_ns in timed
        if end_ns is not None and timing.cause is None
    )
    return Precision(
        batches=len(rates),
        batch_s=(edges[1] - edges[0]) / NS,
        variation=stdev(rates) / mean_rps if mean_rps else None,
        throughput_rps=Estimate(facts.throughput_rps, half_rps * facts.outcome.success_share),
        service_s=_mean_time(services, edges),
        response_s=_mean_time(responses, edges),
    )


def _merged_batches(
    parts: Intervals, window: Window, cycle_s: float
) -> tuple[list[int], list[float]]:
    """Edges (ns) of the batches and the rate in each, merged while neighbours are correlated and
    MIN_BATCHES remain; empty if there are fewer from the start. Batches have whole cycles and end
    with the window; a remainder at its start is omitted."""
    cycles = int(window.length_s / cycle_s + MAX_CUT_SHARE) if cycle_s else MAX_BATCHES
    cycles_per_batch = 1
    if window.length_s >= ENOUGH_BATCHES * BATCH_S and cycle_s:
        cycles_per_batch = max(1, round(BATCH_S / cycle_s))
    batches = min(cycles // cycles_per_batch, MAX_BATCHES)
    edges, rates = list[int](), list[float]()
    while batches >= MIN_BATCHES:
        length_ns = cycles // batches * ((window.closes_ns - window.opens_ns) / cycles)
        edges = [round(window.closes_ns - length_ns * left) for left in range(batches, -1, -1)]
        counts = zip(parts.completed_between(edges), pairwise(edges), strict=True)
        rates = [count * NS / (end - begin) for count, (begin, end) in counts]
        if batches // 2 < MIN_BATCHES or _correlation(rates) <= CORRELATION_Z / sqrt(batches):
            break
        batches //= 2
    return edges, rates


def _half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean, widened for the remaining correlation."""
    half, lag1 = half_width_of_mean(values), min(max(0.0, _correlation(values)), MAX_CORRELATION)
    return None if half is None else half * sqrt((1 + lag1) / (1 - lag1))


def _correlation(values: Sequence[float]) -> float:
    """The lag-1 correlation; 0 if all values are equal."""
    mean = fmean(values)
    deviations = [value - mean for value in values]
    total = sum(value * value for value in deviations)
    return sum(first * after for first, after in pairwise(deviations)) / total if total else 0.0


def _mean_time(times: Iterable[tuple[int, float]], edges: Sequence[int]) -> Estimate | None:
    """The mean of (end in nanoseconds, seconds) pairs as a ratio over batches, its interval from
    residuals; None if none ends in a batch."""
    counts = [0] * (len(edges) - 1)
    sums_s = [0.0] * len(counts)
    for at_ns, time_s in times:
        number = bisect_left(edges, at_ns) - 1
        if 0 <= number < len(counts):
            sums_s[number] += time_s
            counts[number] += 1
    if not any(counts):
        return None
    mean_s = sum(sums_s) / sum(counts)
    half_s = _half_width([s - mean_s * n for s, n in zip(sums_s, counts, strict=True)])
    return None if half_s is None else Estimate(mean_s, half_s / fmean(counts))
