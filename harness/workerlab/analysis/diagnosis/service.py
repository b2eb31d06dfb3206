"""Diagnoses of service times (a shared resource, drift, a slow start) and of failed requests.

Shared: requests wait for a lock, a pool or the GIL, so under load they spend longer in the app than
a lone request. Quantiles are compared, as a few lone requests say little about service times that
vary: if one in ten is slow, all lone ones may be fast, and the mean under load is far above theirs
although nothing is shared. If both kinds have the same distribution, all n lone times lie below its
quantile q with probability q^n. So the longest lone time is compared with the quantile q =
0.01^(1/n) under load, at most the median; with many lone requests, their upper quartile with the
lower quartile under load, which exceeds it even less often by chance. Requests that wait for a lock
are nearly always slow; a heavy-tailed service only in its tail.

Other levels can show what a few lone requests cannot: shorter service times with fewer requests at
once, by the intervals of both means; or throughput that does not grow with more requests although
slots are free. The interval of a single load does not cover the variation between launches, so
times must be 50 % longer.

Times must be 25 % and 5 ms longer (the time slice that the GIL and the kernel give to others), and
CPU must not explain it: CPU-bound workers, or requests that need CPU on a machine without a free
core. The wait for a core is subtracted first; if other programs used the cores, times must be 50 %
longer. Rejected: Welch's interval for the difference to the mean of lone requests.

Drift: the Mann-Kendall trend test on the means of eight batches of requests, in order of their
start, |z| >= 2.35 (reached by chance in 1.4 % of sequences of eight independent values). Batches
make it robust against the autocorrelation of single requests. As a run tests many cells, two more
conditions must hold: |z| >= 3 over single requests (0.27 % by chance), and a change of at least
10 % from the first to the last batch, by Sen's slope. One slow request of a heavy tail shifts the
mean of its batch, but hardly the ranks of single requests.

Slow at first: MSER (White 1997) cuts off the beginning of a load where the standard error of the
remaining mean is smallest. It also cuts off slow requests of a heavy tail that happen to come
early, so the beginning must be slow as a whole: at least half of its requests are slower than nine
in ten of the rest, which happens by chance in 1 of 100,000 cases (binomial: 5 of 5, 6 of 7); they
take 25 % longer on average; and the rest must not drift, as in a server that keeps getting faster.

Other programs come and go too, so the whole wait for a core may fall on the first requests, or on
one half of the load: the excess time of either finding must be 25 % longer than that wait. A drift
may show instead in the fastest request of each batch, |z| >= 2.6 and by 10 %: of at least 16
requests in at least a second, one had a core. A CPU-bound cell is diagnosed with neither.

Requests are ordered by their start, without a lone first one and those during which the machine
stood still. Drift uses only requests that began in the steady window.

Failures: requests refused under load, or failed otherwise. They are reported in addition, before
most diagnoses if they are at least 5 % of the requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import comb
from operator import attrgetter
from statistics import fmean, median

from msgspec import Struct

from workerlab.analysis.batches import Estimate, precision
from workerlab.analysis.core_wait import core_wait, is_disturbed
from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.diagnosis.slots import WaitingForSlots
from workerlab.analysis.facts import ANSWERED, NEVER_ACCEPTED, Facts, once
from workerlab.analysis.failures import (
    MOSTLY_SUCCESSES,
    REFUSING_STATUSES,
    failed_share,
    refusals_by_status,
    requests_ended,
    shed_count,
    shed_share,
    success_spans,
    wrong_statuses,
)
from workerlab.analysis.handshakes import handshakes
from workerlab.analysis.intervals import NS
from workerlab.analysis.samples import by_worker, durations_s
from workerlab.analysis.series import MIN_STEP_RATIO, Series
from workerlab.analysis.slots import FULL_OCCUPANCY, occupancy, overhead_s
from workerlab.analysis.stall import machine_paused, stalled
from workerlab.model import CellResult, Span
from workerlab.numbers.samples import mann_kendall, quantile, slope

MAX_ALL_FAST_CHANCE = 0.01  # of a few lone requests
MIN_QUARTILE_REQUESTS = 8  # lone ones
LOWER_QUARTILE = 0.25
MAX_CORE_WAIT_SHARE = 0.25  # of the response
MIN_INCREASE_RATIO = 1.25  # over lone requests, or the rest of the load
MIN_INCREASE_S = 0.005
MIN_DOUBTFUL_RATIO = 1.5  # if other programs used the cores, or across launches
MIN_LOADED_REQUESTS = 32
WORKERS_BUSY_SHARE = 0.7  # of the cores its workers could use
BUSY_MACHINE_SHARE = 0.9  # of all cores
CPU_BOUND_SHARE = 0.1  # CPU / fastest lone response, on a busy machine
CPU_BOUND_SHARE_WITH_WAIT = 0.4  # likewise, if the wait for a core is measured

BATCHES = 8
MIN_DRIFT_REQUESTS = 32  # twice as many for a slow start
MIN_WINDOW_S = 1.0
MIN_EXCESS_RATIO = 1.25  # excess time / what waiting for a core can explain
MIN_TREND_Z = 2.35  # |z| of the batches' means
MONOTONIC_Z = 3.3  # |z| of eight means that rise, or fall, monotonically
MIN_SINGLE_Z = 3.0  # |z| of single requests
MIN_FASTEST_Z = 2.6  # |z| of the batches' fastest requests
MIN_FASTEST_OF = 16  # requests of a batch, so that at least one had a core
MIN_FASTEST_S = 1.0  # all requests of a shorter batch may have waited for a core
MAX_CPU_OF_FASTEST = 0.1  # CPU / its time: with more, other programs slow it down, too
MIN_CHANGE_SHARE = 0.10  # change, as a share of the median batch
MAX_COMPARED = 512  # single requests compared in pairs; if there are more, every n-th
MAX_UNKNOWN_FAILURES = 0.01  # share of requests, if it is unknown which failed
MIN_SLOW_FIRST = 5  # requests; fewer are not reported
SLOW_QUANTILE = 0.9  # of the rest: above it, a request is slow
MIN_SLOW_SHARE = 0.5  # of the first requests
MAX_SLOW_CHANCE = 1e-5  # probability of that many slow ones
MAX_CHANCE_REQUESTS = 32  # among more, half being slow is even less likely

LOOK_FOR_WHAT_IS_SHARED = (
    "look for what they share (a lock, a pool of connections or threads, a service behind the app)"
)
LOOK_FOR_GROWTH = "look for what grows with every request (a list, a table, a file)"
AVOID_SLOW_START = "measure for longer, and do one-time work (pools, caches) at start-up"


def are_workers_busy(facts: Facts) -> bool:
    """Whether the workers use most of the cores that they may use; False if unknown."""
    used, workers = facts.usage.server_cores, facts.workers
    return (used or 0.0) >= WORKERS_BUSY_SHARE * min(workers, facts.cores or workers)


@once
def is_cpu_bound(facts: Facts) -> bool:
    """Whether CPU limits the requests: that of the workers, or of the whole machine."""
    if are_workers_busy(facts):
        return True
    usage = facts.usage
    # A measured wait is subtracted later; it lacks only that of processes that requests start
    min_share = CPU_BOUND_SHARE_WITH_WAIT if core_wait(facts) else CPU_BOUND_SHARE
    machine_busy = usage.host_busy is not None and usage.host_busy > BUSY_MACHINE_SHARE
    if usage.server_cores is None or not machine_busy or not facts.rps:
        return False
    return usage.server_cores / facts.rps >= min_share * min(facts.record.alone_s, default=0.0)


# --- something shared -----------------------------------------------------------------------------


class SharingEvidence(Struct, frozen=True):
    """Times in the app that show that requests share something."""

    low_s: float  # under load, without waits for a core: low quantile, or lower bound of the mean
    others_s: float  # with fewer requests at once: high quantile, mean or upper bound of the mean
    fewer: int | None = None  # connections of the other level; None: lone requests
    more: int | None = None  # connections of the level that brings no more throughput


class Shared(Diagnosis):
    """With {connections:# connection} a request spends {service_s:duration}
    [[ ± {half_s:duration}]] inside the app, a lone one takes {lone_s:duration} in all
    [[, with {longer.fewer:# connection} at most {longer.others_s:duration}]], and computing does
    not explain it[[ (the server uses {used:.2f} of {cores:# core})]]
    [[; {longer.more:# connection} bring no more throughput]]: requests wait for something they
    share"""

    rank, advice = 60, (LOOK_FOR_WHAT_IS_SHARED,)
    explains = (WaitingForSlots,)  # requests that wait for a lock fill the slots
    below_slots = "requests wait for something they share"

    connections: int
    service_s: float | None
    half_s: float | None  # of its 95 % interval
    lone_s: float  # R0
    longer: SharingEvidence
    lone_requests: int
    used: float | None
    cores: int | None

    @classmethod
    def diagnose(cls, facts: Facts, cell: CellResult, series: Series | None) -> Shared | None:
        """Diagnosed if requests slow each other down, unless they are CPU-bound."""
        if series is None or facts.connections < 2 or is_cpu_bound(facts):
            return None
        evidence = (
            _longer_than_alone(facts)
            or _longer_than_fewer(facts, series)
            or _no_gain_with_more(facts, series)
        )
        if evidence is None:
            return None
        cores, estimate = facts.observations.cores, precision(facts).service_s
        service_s = cell.breakdown.service_s or cell.service.mean
        return cls(
            connections=facts.connections,
            service_s=estimate.mean if estimate else service_s,
            half_s=estimate.half if estimate else None,
            lone_s=series.r0.seconds,
            longer=evidence,
            lone_requests=len(facts.record.lone_s),
            used=facts.usage.server_cores if cores else None,
            cores=cores or None,
        )


def _evidence(
    facts: Facts, loaded_s: float, others_s: float, **level: int
) -> SharingEvidence | None:
    """None if the times under load, without the wait for a core, are not clearly longer. `level`:
    `fewer` or `more`, in another launch than this."""
    low_s = loaded_s * (1 - _core_wait_share(facts))
    ratio = MIN_DOUBTFUL_RATIO if level or is_disturbed(facts) else MIN_INCREASE_RATIO
    clearly_longer = low_s >= max(ratio * others_s, others_s + MIN_INCREASE_S)
    return SharingEvidence(low_s, others_s, **level) if clearly_longer else None


def _longer_than_alone(facts: Facts) -> SharingEvidence | None:
    """Compares all requests with lone ones, then the busiest worker's, which share with more."""
    outside_s, window, spans = overhead_s(facts), facts.window, success_spans(facts)
    lone_inside_s = sorted(max(0.0, lone_s - outside_s) for lone_s in facts.record.lone_s)
    if window is None or spans is None or not lone_inside_s or facts.record.lone_weights:
        return None  # a mix: the shares of its routes differ between lone requests and load
    loaded = [span for span in spans if window.contains(span.start_ns)]
    busiest_s = max(map(durations_s, by_worker(loaded).values()), key=sum, default=[])
    by_all = _longer_quantile(facts, durations_s(loaded), lone_inside_s)
    return by_all or _longer_quantile(facts, busiest_s, lone_inside_s)


def _longer_quantile(
    facts: Facts, times_s: Sequence[float], lone_s: Sequence[float]
) -> SharingEvidence | None:
    """Compares a low quantile under load with a high one of lone requests, which are sorted."""
    if len(times_s) < MIN_LOADED_REQUESTS:
        return None
    if len(lone_s) < MIN_QUARTILE_REQUESTS:
        high_s, q = lone_s[-1], min(0.5, MAX_ALL_FAST_CHANCE ** (1 / len(lone_s)))
    else:
        high_s, q = quantile(lone_s, 1 - LOWER_QUARTILE), LOWER_QUARTILE
    return _evidence(facts, quantile(sorted(times_s), q), high_s)


def _longer_than_fewer(facts: Facts, series: Series) -> SharingEvidence | None:
    """Compares the mean with that of the lowest level: the same service with fewer requests at
    once, whatever its distribution. The intervals must not overlap."""
    fewest = min(series.closed, key=attrgetter("connections"))
    own, other, fewer = _mean_service(facts), _mean_service(fewest), fewest.connections
    if fewer * MIN_STEP_RATIO > facts.connections or own is None or other is None:
        return None
    return _evidence(facts, own.mean - own.half, other.mean + other.half, fewer=fewer)


def _mean_service(facts: Facts) -> Estimate | None:
    """Mean time in the app; None with few requests or some failures, or if CPU-bound."""
    few = len(facts.finished) < MIN_LOADED_REQUESTS
    if few or facts.outcome.success_share < MOSTLY_SUCCESSES or is_cpu_bound(facts):
        return None
    return precision(facts).service_s


def _no_gain_with_more(facts: Facts, series: Series) -> SharingEvidence | None:
    """By throughput: requests wait although slots are free, and more connections add nothing."""
    n, own = facts.connections, _mean_service(facts)
    slots_free = (occupancy(facts) or 0.0) < FULL_OCCUPANCY
    if not slots_free or not series.requests_wait(facts) or not series.levels_off(n):
        return None
    above = [trial for trial in series.closed if trial.connections >= MIN_STEP_RATIO * n]
    if own is None or any(map(_may_lack_cores, (facts, *above))):
        return None
    lone_s, more = fmean(facts.record.alone_s), max(trial.connections for trial in above)
    return _evidence(facts, own.mean - own.half, lone_s, more=more)


def _may_lack_cores(facts: Facts) -> bool:
    """Whether its throughput was limited by the cores, or by a stall."""
    waits = _core_wait_share(facts) > MAX_CORE_WAIT_SHARE
    return waits or is_cpu_bound(facts) or stalled(facts) is not None


def _core_wait_share(facts: Facts) -> float:
    """The share of the response time spent waiting for a core; 0 if unknown."""
    wait = core_wait(facts)
    return wait.share if wait else 0.0


# --- times that change ----------------------------------------------------------------------------


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
    first_s: float  # mean of these
    rest_s: float  # mean of the others
    until_s: float  # end of the last of these, since the load began

    @classmethod
    def diagnose(cls, facts: Facts, *_: object) -> SlowFirst | None:
        return None if is_cpu_bound(facts) else slow_first(facts)


def drift_of(
    times_s: Sequence[float],
    of_batch: Callable[[Sequence[float]], float] = fmean,
    min_z: float = MIN_TREND_Z,
) -> Drift | None:
    """The drift of service times, which are in the order in which the requests began, by a
    statistic of each batch. `min_z`: minimum |z| of its trend."""
    count = len(times_s)
    if count < MIN_DRIFT_REQUESTS:
        return None
    edges = pairwise(round(number * count / BATCHES) for number in range(BATCHES + 1))
    batches = [times_s[first:end] for first, end in edges]
    values_s = list(map(of_batch, batches))
    change_s, z = slope(values_s) * (BATCHES - 1), mann_kendall(values_s)
    if abs(z) < min_z or abs(change_s) < MIN_CHANGE_SHARE * median(values_s):
        return None
    z_single = mann_kendall(times_s[:: -(-count // MAX_COMPARED)])
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
    """How many values to cut off at the beginning, at most half of them: MSER (White 1997)."""
    count = len(times_s)
    sums = list(accumulate(reversed(times_s)))[::-1]  # from each value on
    squares = list(accumulate(value * value for value in reversed(times_s)))[::-1]

    def error(cut: int) -> float:
        remaining = count - cut
        return (squares[cut] - sums[cut] ** 2 / remaining) / remaining**2

    return min(range(count // 2), key=error, default=0)


def count_slow_first(times_s: Sequence[float]) -> int:
    """How many requests were slow at first; 0 if none."""
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
    """Whether at least half of `count` requests are slow, more than chance explains."""
    if slow < MIN_SLOW_SHARE * count or count > MAX_CHANCE_REQUESTS:
        return slow >= MIN_SLOW_SHARE * count
    slow_p, counts = 1 - SLOW_QUANTILE, range(slow, count + 1)
    chance = sum(comb(count, k) * slow_p**k * SLOW_QUANTILE ** (count - k) for k in counts)
    return chance <= 1.01 * MAX_SLOW_CHANCE  # 5 of 5 is exactly the limit, up to rounding


# --- applied to a trial -------------------------------------------------------------------------


@once
def slow_first(facts: Facts) -> SlowFirst | None:
    """Of the whole load. Also valid if CPU-bound, if requests seldom wait for each other."""
    spans = _successes(facts)
    times_s = durations_s(spans)
    if not (cut := count_slow_first(times_s)):
        return None
    first_s, rest_s = fmean(times_s[:cut]), fmean(times_s[cut:])
    if cut * (first_s - rest_s) < MIN_EXCESS_RATIO * _max_taken_s(facts, times_s):
        return None
    until_s = (max(span.end_ns or 0 for span in spans[:cut]) - facts.started_ns) / NS
    return SlowFirst(requests=cut, first_s=first_s, rest_s=rest_s, until_s=until_s)


@once
def drift(facts: Facts) -> Drift | None:
    """In the steady window; None if slow at first. Valid as `slow_first`."""
    window = facts.window
    if window is None or slow_first(facts):
        return None
    times_s = durations_s(span for span in _successes(facts) if window.contains(span.start_ns))
    trend, half = drift_of(times_s), len(times_s) // 2
    difference_s = abs(sum(times_s[-half:]) - sum(times_s[:half]))
    by_others = is_disturbed(facts) and (trend is None or abs(trend.z) < MONOTONIC_Z)
    if not by_others and difference_s >= MIN_EXCESS_RATIO * _max_taken_s(facts, times_s):
        return trend
    if len(times_s) < BATCHES * MIN_FASTEST_OF or window.length_s < BATCHES * MIN_FASTEST_S:
        return None
    used = facts.usage.server_cores
    if used is None or used >= MAX_CPU_OF_FASTEST * min(times_s) * facts.rps:
        return None
    return drift_of(times_s, min, MIN_FASTEST_Z)


def _max_taken_s(facts: Facts, times_s: Sequence[float]) -> float:
    """Upper bound of the seconds, in total, in which other programs or machines used the core
    during these times. Excludes the requests' waits for each other, which drift with them."""
    if (wait := core_wait(facts)) is None:
        return 0.0
    taken_s = wait.taken * sum(times_s)
    if not facts.rps:
        return taken_s
    # `taken` is relative to the lone requests, so it is too low if these waited longer for a core
    # than the load did. The workers' wait while others ran does not depend on them
    others = 1.0 if wait.others_cores is None else min(1.0, wait.others_cores)
    per_request_s = min(wait.worker_s, facts.workers * others / facts.rps)
    return max(taken_s, per_request_s * len(times_s))


def _successes(facts: Facts) -> Sequence[Span]:
    """Spans of successes, without the lone first one; all spans if it is unknown which of a few
    failed. Empty if many may have failed, or if the load was so short that a moment without a core
    is a large part of it."""
    if facts.window is None or facts.window.length_s < MIN_WINDOW_S:
        return ()
    spans = success_spans(facts)
    if spans is None:
        spans = facts.finished if failed_share(facts) <= MAX_UNKNOWN_FAILURES else ()
    loaded = spans[1:] if facts.data.lone_first else spans
    observed = facts.observations
    return [s for s in loaded if not machine_paused(observed, s.start_ns, s.end_ns or 0)]


# --- failures -----------------------------------------------------------------------------------

MANY_FAILED_SHARE = 0.05  # of the requests: from here on, failures rank before most diagnoses


class Failures(Diagnosis):
    """Requests that fail."""

    rank, advice = 110, ()
    at_rate = True

    requests: int
    share: float  # of all requests


class Shedding(Failures):
    """{share:percent} of the requests were refused[[ (status {statuses:list})]]
    [[ (non-2xx answers after less than half of a lone request's time in the app; {tool} does not
    report their status)]], and {successes_rps:number} requests/s succeeded"""

    below_slots = "the server refuses the rest"

    statuses: tuple[str, ...]
    tool: str | None  # set if it does not report statuses
    successes_rps: float

    @classmethod
    def diagnose(cls, facts: Facts, cell: CellResult, *_: object) -> Shedding | None:
        if not (count := shed_count(facts)):
            return None
        statuses = tuple(refusals_by_status(facts))
        return cls(
            requests=count,
            share=shed_share(facts),
            statuses=statuses,
            tool=None if statuses else facts.tool,
            successes_rps=cell.throughput_rps or 0.0,
        )


class Failing(Failures):
    """{requests:# request} failed, {share:percent} of all ({causes:counts})
    [[, with status {statuses:list}]]"""

    rank = 120
    below_slots = "failed requests do not count"

    causes: Mapping[str, int]
    statuses: tuple[str, ...]

    @classmethod
    def diagnose(cls, facts: Facts, *_: object) -> Failing | None:
        """Failures other than refusals, without those that a full accept queue explains."""
        causes = Counter(facts.outcome.errors)
        if handshakes(facts).dropped:
            del causes[NEVER_ACCEPTED]
            causes["non_2xx"] -= _killed_worker_errors(facts, causes["non_2xx"])
        refusals = shed_count(facts)
        for cause in ANSWERED:
            of_cause = min(refusals, causes[cause])
            causes[cause] -= of_cause
            refusals -= of_cause
        if not (causes := +causes):
            return None
        return cls(
            requests=causes.total(),
            share=min(1.0, causes.total() / requests_ended(facts)),
            causes=dict(sorted(causes.items())),
            statuses=tuple(map(str, sorted(wrong_statuses(facts).keys() - REFUSING_STATUSES))),
        )


def _killed_worker_errors(facts: Facts, non_2xx: int) -> int:
    """How many error responses the server itself sent when it killed a worker that was waiting for
    a request. Counted if some requests never reached the app and the tool (ab) does not say which
    response belongs to which request."""
    timed = bool(facts.measurement.timings)
    never_in_app = 0 if timed else facts.measurement.requests - len(facts.spans)
    return non_2xx if non_2xx <= 2 * never_in_app else 0
