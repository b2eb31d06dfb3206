"""Service times that change during the load: a drift, or a slow start.

Drift is found by the Mann-Kendall trend test on the means of eight batches of requests, in order of
their start: |z| >= 2.35 (reached by chance in 1.4 % of sequences of eight independent values).
Batches make it robust against the autocorrelation of single requests. Because a run tests many
cells, there are two more conditions: |z| >= 3 over single requests (0.27 % by chance), and a change
of at least 10 % from the first to the last batch, by Sen's slope. One slow request of a heavy tail
shifts the mean of its batch, but hardly the ranks of single requests.

A slow start is found by MSER (White 1997), which cuts off the beginning of a load where the
standard error of the remaining mean is smallest. It also cuts off slow requests of a heavy tail
that happen to come early, so the beginning must be slow as a whole: at least half of its requests
are slower than nine in ten of the rest, which happens by chance in 1 of 100,000 cases (binomial: 5
of 5, 6 of 7); they take 25 % longer on average; and the rest must not drift, as it does if a server
keeps getting faster.

Other programs also come and go, so the whole wait for a core may fall on the first requests, or on
one half of the load: the excess time of either finding must be 25 % longer than that wait. A drift
may also show in the fastest request of each batch, by |z| >= 2.6 and 10 %: at least one of 16
requests or more, over a second or more, had a core. CPU-bound cells get neither diagnosis.

Requests are ordered by their start, without a lone first request and those during which the machine
was paused. Drift uses only requests that began in the steady window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import comb
from statistics import fmean, median

from workerlab.analysis.core_wait import core_wait, is_disturbed
from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.diagnosis.failing import failed_share
from workerlab.analysis.diagnosis.shared import MIN_INCREASE_RATIO, Shared, is_cpu_bound
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, durations_s
from workerlab.analysis.stall import machine_paused
from workerlab.model.evidence import Span
from workerlab.numbers.samples import mann_kendall, quantile, slope

BATCHES = 8
MIN_DRIFT_REQUESTS = 32  # twice as many for a slow start
MIN_WINDOW_S = 1.0
MIN_EXCESS_RATIO = 1.25  # excess time / the time that waiting for a core can explain
MIN_TREND_Z = 2.35  # |z| of the batches' means
MONOTONIC_Z = 3.3  # |z| of eight means that rise, or fall, monotonically
MIN_SINGLE_Z = 3.0  # |z| of single requests
MIN_FASTEST_Z = 2.6  # |z| of the batches' fastest requests
MIN_BATCH_REQUESTS = 16  # requests of a batch, so that at least one had a core
MIN_FASTEST_S = 1.0  # of a batch; in a shorter one, all requests may have waited for a core
MAX_CPU_OF_FASTEST = 0.1  # CPU / fastest time; above it, other programs slow down even the fastest
MIN_CHANGE_SHARE = 0.10  # change / median batch
MAX_COMPARED_REQUESTS = 512  # in pairs; if there are more, only every n-th is compared
MAX_UNKNOWN_FAILED_SHARE = 0.01  # of requests, if it is unknown which failed
MIN_SLOW_FIRST = 5  # requests; fewer are not reported
SLOW_QUANTILE = 0.9  # a first request is slow if it exceeds this quantile of the rest
MIN_SLOW_SHARE = 0.5  # of the first requests
MAX_SLOW_CHANCE = 1e-5  # probability of that many slow requests
MAX_CHANCE_REQUESTS = 32  # if there are more, a slow half is even less likely by chance

LOOK_FOR_GROWTH = "look for what grows with every request (a list, a table, a file)"
AVOID_SLOW_START = "measure for longer, and do one-time work (pools, caches) at start-up"


class ChangingTimes(Diagnosis):
    """Service times that change during the load."""

    explains = (Shared,)  # a change lifts the mean above that of lone requests
    below_slots = "service times change"


class Drift(ChangingTimes):
    """Service times drift: {first_s:duration} on average in the first eighth of
    {requests:# request}, {last_s:duration} in the last eighth (Mann-Kendall, z = {z:number})"""

    rank = 80

    first_s: float
    last_s: float
    requests: int
    z: float  # of the batches: their means, or their fastest requests
    z_single: float  # of single requests

    @classmethod
    def diagnose(cls, facts: Facts, *_: object) -> Drift | None:
        return None if is_cpu_bound(facts) else drift(facts)

    @property
    def advice(self) -> tuple[str, ...]:
        return (LOOK_FOR_GROWTH if self.last_s > self.first_s else AVOID_SLOW_START,)


class SlowFirst(ChangingTimes):
    """The first {requests:# request} spent {first_s:duration} inside the app on average, later ones
    {rest_s:duration}: only the start is slow"""

    rank, advice = 90, (AVOID_SLOW_START,)

    requests: int
    first_s: float  # their mean
    rest_s: float  # mean of the later requests
    until_s: float  # when the last of them ended, in seconds since the load began

    @classmethod
    def diagnose(cls, facts: Facts, *_: object) -> SlowFirst | None:
        return None if is_cpu_bound(facts) else slow_first(facts)


def drift_of(
    times_s: Sequence[float],
    batch_statistic: Callable[[Sequence[float]], float] = fmean,
    min_z: float = MIN_TREND_Z,
) -> Drift | None:
    """The drift of service times, in the order in which the requests began, by a statistic of each
    batch. `min_z`: minimum |z| of its trend."""
    count = len(times_s)
    if count < MIN_DRIFT_REQUESTS:
        return None
    edges = pairwise(round(number * count / BATCHES) for number in range(BATCHES + 1))
    batches = [times_s[first:end] for first, end in edges]
    values_s = list(map(batch_statistic, batches))
    change_s, z = slope(values_s) * (BATCHES - 1), mann_kendall(values_s)
    if abs(z) < min_z or abs(change_s) < MIN_CHANGE_SHARE * median(values_s):
        return None
    z_single = mann_kendall(times_s[:: -(-count // MAX_COMPARED_REQUESTS)])
    if abs(z_single) < MIN_SINGLE_Z or z_single * z < 0:
        return None
    return Drift(
        first_s=fmean(batches[0]),
        last_s=fmean(batches[-1]),
        requests=count,
        z=z,
        z_single=z_single,
    )


def mser_cut(times_s: Sequence[float]) -> int:
    """The number of values to cut off at the beginning, at most half: MSER (White 1997)."""
    count = len(times_s)
    sums = list(accumulate(reversed(times_s)))[::-1]  # from each value on
    squares = list(accumulate(value * value for value in reversed(times_s)))[::-1]

    def error(cut: int) -> float:
        remaining = count - cut
        return (squares[cut] - sums[cut] ** 2 / remaining) / remaining**2

    return min(range(count // 2), key=error, default=0)


def count_slow_first(times_s: Sequence[float]) -> int:
    """The number of requests in a slow start; 0 if there is none."""
    if len(times_s) < 2 * MIN_DRIFT_REQUESTS or (cut := mser_cut(times_s)) < MIN_SLOW_FIRST:
        return 0
    threshold_s = quantile(sorted(times_s[cut:]), SLOW_QUANTILE)
    slow = list(accumulate(time_s > threshold_s for time_s in times_s[:cut]))
    rest_s = fmean(times_s[cut:])
    while cut and times_s[cut - 1] < MIN_INCREASE_RATIO * rest_s:
        cut -= 1  # MSER may cut a little late
    while cut >= MIN_SLOW_FIRST and not _slow_as_a_whole(slow[cut - 1], cut):
        cut -= 1
    first, rest = times_s[:cut], times_s[cut:]
    if cut < MIN_SLOW_FIRST or fmean(first) < MIN_INCREASE_RATIO * fmean(rest) or drift_of(rest):
        return 0
    return cut


def _slow_as_a_whole(slow: int, count: int) -> bool:
    """Whether at least half of `count` requests are slow, significantly more than by chance."""
    if slow < MIN_SLOW_SHARE * count or count > MAX_CHANCE_REQUESTS:
        return slow >= MIN_SLOW_SHARE * count
    slow_p, counts = 1 - SLOW_QUANTILE, range(slow, count + 1)
    chance = sum(comb(count, k) * slow_p**k * SLOW_QUANTILE ** (count - k) for k in counts)
    return chance <= 1.01 * MAX_SLOW_CHANCE  # 5 of 5 is exactly the limit, up to rounding


# --- applied to a trial -------------------------------------------------------------------------


@once
def slow_first(facts: Facts) -> SlowFirst | None:
    """The slow start of the whole load. Also valid for CPU-bound requests if they seldom wait for
    each other."""
    spans = _successes(facts)
    times_s = durations_s(spans)
    if not (cut := count_slow_first(times_s)):
        return None
    first_s, rest_s = fmean(times_s[:cut]), fmean(times_s[cut:])
    if cut * (first_s - rest_s) < MIN_EXCESS_RATIO * _max_lost_s(facts, times_s):
        return None
    until_s = (max(span.end_ns or 0 for span in spans[:cut]) - facts.started_ns) / NS
    return SlowFirst(requests=cut, first_s=first_s, rest_s=rest_s, until_s=until_s)


@once
def drift(facts: Facts) -> Drift | None:
    """The drift in the steady window; None after a slow start. Valid whenever `slow_first` is."""
    window = facts.steady_part
    if slow_first(facts):
        return None
    times_s = durations_s(span for span in _successes(facts) if window.contains(span.start_ns))
    trend, half = drift_of(times_s), len(times_s) // 2
    difference_s = abs(sum(times_s[-half:]) - sum(times_s[:half]))
    by_noise = is_disturbed(facts) and (trend is None or abs(trend.z) < MONOTONIC_Z)
    if not by_noise and difference_s >= MIN_EXCESS_RATIO * _max_lost_s(facts, times_s):
        return trend
    if len(times_s) < BATCHES * MIN_BATCH_REQUESTS or window.length_s < BATCHES * MIN_FASTEST_S:
        return None
    used = facts.usage.server_cores
    if used is None or used >= MAX_CPU_OF_FASTEST * min(times_s) * facts.rps:
        return None
    return drift_of(times_s, min, MIN_FASTEST_Z)


def _max_lost_s(facts: Facts, times_s: Sequence[float]) -> float:
    """Upper bound of the total seconds in which other programs or machines used the core during
    these times. Excludes the requests' waits for each other, which drift with them."""
    if (wait := core_wait(facts)) is None:
        return 0.0
    # `share_lost` is relative to the lone requests, so it is too low if these waited longer for a
    # core than the load did. The workers' wait while other programs ran does not depend on them
    others_cores = 1.0 if wait.others_cores is None else min(1.0, wait.others_cores)
    per_request_s = min(wait.worker_s, facts.workers * others_cores / facts.rps)
    return max(wait.share_lost * sum(times_s), per_request_s * len(times_s))


def _successes(facts: Facts) -> Sequence[Span]:
    """Spans of successes, without the lone first request; all spans if it is unknown which few
    failed. Empty if many may have failed, or if the load was so short that a moment without a core
    is a large part of it."""
    if facts.steady_part.length_s < MIN_WINDOW_S:
        return ()
    spans = facts.success_spans
    if spans is None:
        spans = facts.finished if failed_share(facts) <= MAX_UNKNOWN_FAILED_SHARE else ()
    loaded = spans[1:] if facts.data.lone_first else spans
    observed = facts.observations
    return [s for s in loaded if not machine_paused(observed, s.start_ns, s.end_ns or 0)]
