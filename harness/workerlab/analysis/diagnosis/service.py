"""Diagnoses of service times (a shared resource, drift, a slow start) and of failed requests.

Shared: requests wait for a lock, a pool or the GIL, so under load they spend longer in the app than
a lone request. Ranks are compared, because a few lone requests say little about service times that
vary: if one in ten is slow, all lone ones may be fast, and the mean under load is far above theirs
although nothing is shared. If both kinds have the same distribution, whatever it is, all n lone
times lie below its quantile q with probability q^n. So the longest lone time is compared with the
quantile q = 0.01^(1/n) under load, at most the median. With many lone requests, their upper
quartile is compared with the lower quartile under load, which exceeds it even less often by chance.
Requests that wait for a lock are nearly always slow; a heavy-tailed service only in its tail.

Other levels can show what a few lone requests cannot: shorter service times with fewer requests at
once, by the intervals of both means; or throughput that does not grow with more requests although
slots are free. Each level is another launch, and the interval of a single load does not cover the
variation between launches, so times must be 50 % longer.

Times must be 25 % and 5 ms longer (the time slice that the GIL and the kernel give to others), and
CPU must not explain it: CPU-bound workers, or requests that need CPU on a machine without a free
core. The wait for a core is subtracted first; if other programs used the cores, times must be 50 %
longer. Rejected: Welch's interval for the difference to the mean of lone requests, for the reason
above.

Drift: the Mann-Kendall trend test on the means of eight batches of requests, in order of their
start, |z| >= 2.35 (reached by chance in 1.4 % of sequences of eight independent values). Batches
make it robust against autocorrelation, which single requests have under load. As a run tests many
cells, two more conditions must hold: |z| >= 3 over single requests (0.27 % by chance), and a change
of at least 10 % from the first to the last batch, by Sen's slope. One slow request of a heavy tail
shifts the mean of its batch, but hardly the ranks of single requests.

Slow at first: MSER (White 1997) cuts off the beginning of a load where the standard error of the
remaining mean is smallest. It also cuts off slow requests of a heavy tail that happen to come
early, so the beginning must be slow as a whole: at least half of its requests are slower than nine
in ten of the rest, which happens by chance in 1 of 100,000 cases (binomial: 5 of 5, 6 of 7); they
take 25 % longer on average; and the rest must not drift. A server that keeps getting faster drifts.

Other programs come and go too, so the whole wait for a core may fall on the first requests, or on
one half of the load: the excess time of either finding must be 25 % longer than that wait. A drift
may show instead in the fastest request of each batch, |z| >= 2.6 and by 10 %: of at least 16
requests in at least a second, one had a core. Neither is tested if the server itself takes the
cores.

Requests are ordered by their start, without a lone first one and those during which the machine
stood still. Drift uses only requests that began in the steady window.

Failures: requests refused under load, or failed otherwise. They are reported in addition to other
diagnoses, and before most of them if they are at least 5 % of the requests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
    ended,
    failed_share,
    refused,
    shed,
    shed_share,
    success_spans,
    wrong_statuses,
)
from workerlab.analysis.handshakes import handshakes
from workerlab.analysis.samples import NS, durations_s
from workerlab.analysis.series import MIN_STEP_RATIO, Series
from workerlab.analysis.slots import FULL_OCCUPANCY, occupancy, overhead_s
from workerlab.analysis.stall import paused, stalled
from workerlab.model import CellResult, Span
from workerlab.numbers.samples import mann_kendall, quantile, slope

MAX_CHANCE = 0.01
MIN_LONE_REQUESTS, LOWER_QUARTILE = 8, 0.25  # needed to compare quartiles
MAX_CORE_WAIT_SHARE = 0.25  # of the response
MIN_INCREASE_RATIO, MIN_INCREASE_S = 1.25, 0.005  # over lone requests, or the rest of the load
DOUBTFUL_INCREASE_RATIO = 1.5  # if other programs used the cores, or across launches
MIN_REQUESTS = 32  # under load
WORKERS_BUSY_SHARE = 0.7  # of the cores its workers could use
BUSY_MACHINE_SHARE = 0.9  # of all cores
NEEDS_CPU_OF_LONE, MOSTLY_CPU_OF_LONE = 0.1, 0.4  # of a lone request's time

MIN_BATCH_REQUESTS = 16  # so that at least one of a batch had a core
BATCHES = 8
MIN_DRIFT_REQUESTS = 32  # twice as many for a slow start
MIN_STEADY_S = 1.0
BEYOND_WAIT_RATIO = 1.25  # excess time / what waiting for a core can explain
MIN_CPU_OF_FASTEST = 0.1  # CPU / time of the fastest request: with more, others slow it down, too
MIN_BATCH_S = 1.0  # all requests of a shorter batch may have waited for a core
FASTEST_Z = 2.6  # |z| of the batches' fastest requests
STEADY_TREND_Z = 3.3  # |z| of eight means that rise, or fall, monotonically
MAX_FAILED_SHARE = 0.01
TREND_Z, SINGLE_TREND_Z = 2.35, 3.0  # |z| of the batches' means, and of single requests
MIN_CHANGE_SHARE = 0.10  # change, as a share of the median batch
MAX_COMPARED = 512  # single requests compared in pairs; if there are more, every n-th
MIN_SLOW_FIRST = 5  # requests; fewer are not reported
SLOW_QUANTILE, MIN_SLOW_SHARE = 0.9, 0.5  # of the rest; share of the first ones above it
MAX_SLOW_CHANCE = 1e-5  # probability of that many slow ones
FEW_REQUESTS = 32  # among more, half being slow is even less likely

LOOK_FOR_WHAT_IS_SHARED = (
    "look for what they share (a lock, a pool of connections or threads, a service behind the app)"
)
LOOK_FOR_GROWTH = "look for what grows with every request (a list, a table, a file)"
WARM_UP = "measure for longer, and do one-time work (pools, caches) at start-up"


@once
def computes(facts: Facts) -> bool:
    """Whether CPU limits the requests, that of their workers or of the machine."""
    cores, usage, workers = facts.cores, facts.usage, facts.cell.server.workers
    if (used := usage.server_cores) is None:
        return False
    if used >= WORKERS_BUSY_SHARE * min(workers, cores or workers):
        return True
    # If the wait for a core is measured, it lacks only that of processes that requests start
    needs = MOSTLY_CPU_OF_LONE if core_wait(facts) else NEEDS_CPU_OF_LONE
    crowded = usage.host_busy is not None and usage.host_busy > BUSY_MACHINE_SHARE
    alone_s = min(facts.record.alone_s, default=0.0)
    return crowded and bool(facts.rps) and used / facts.rps >= needs * alone_s


# --- something shared -----------------------------------------------------------------------------


class LongerThan(Struct, frozen=True):
    """`low_s`: most requests take longer; `others_s`: time with fewer requests at once. `fewer`,
    `more`: connections of the other level that shows it; both None: lone requests show it."""

    low_s: float
    others_s: float
    fewer: int | None = None
    more: int | None = None


class Shared(Diagnosis):
    """With {connections:# connection} a request spends {service_s:duration}
    [[ ± {half_s:duration}]] inside the app, a lone one {lone_s:duration}
    [[, {longer.others_s:duration} with {longer.fewer:# connection}]], and computing does not
    explain it[[ (the server uses {used:.2f} of {cores:# core})]]
    [[; {longer.more:# connection} bring no more throughput]]: requests wait for something they
    share"""

    rank, advice = 60, (LOOK_FOR_WHAT_IS_SHARED,)
    explains = (WaitingForSlots,)  # requests that wait for a lock fill the slots
    below_slots = "requests wait for something they share"

    connections: int
    service_s: float | None
    half_s: float | None
    lone_s: float
    longer: LongerThan
    lone_requests: int
    used: float | None
    cores: int | None


def shared(facts: Facts, cell: CellResult, series: Series) -> Shared | None:
    """Diagnosed if requests slow each other down. For loads that are not CPU-bound."""
    if facts.connections < 2:
        return None
    longer = (
        _longer_than_alone(facts)
        or _longer_than_fewer(facts, series)
        or _no_gain_with_more(facts, series)
    )
    if longer is None:
        return None
    cores, estimate = facts.seen.cores, precision(facts).service_s
    service_s = cell.breakdown.service_s or cell.service.mean
    return Shared(
        connections=facts.connections,
        service_s=estimate.mean if estimate else service_s,
        half_s=estimate.half if estimate else None,
        lone_s=series.r0.seconds,
        longer=longer,
        lone_requests=len(facts.record.lone_s),
        used=facts.usage.server_cores if cores else None,
        cores=cores or None,
    )


def _longer_than_alone(facts: Facts) -> LongerThan | None:
    """Compares ranks with lone requests: those of all requests, then those of the busiest worker,
    as requests in the others share with fewer."""
    outside_s, window, spans = overhead_s(facts), facts.window, success_spans(facts)
    alone = sorted(max(0.0, lone_s - outside_s) for lone_s in facts.record.lone_s)
    if window is None or spans is None or not alone or facts.record.lone_weights:
        return None  # a mix: the shares of its routes differ between lone requests and load
    inside = [span for span in spans if window.contains(span.start_ns)]
    by_worker = defaultdict[int, list[float]](list)
    for span in inside:
        by_worker[span.pid] += durations_s([span])
    fullest = max(by_worker.values(), key=sum, default=[])
    candidates = (
        _compare_quantiles(sorted(times), alone, facts) for times in (durations_s(inside), fullest)
    )
    return next(filter(None, candidates), None)


def _compare_quantiles(
    times: Sequence[float], alone: Sequence[float], facts: Facts
) -> LongerThan | None:
    """Compares a low quantile under load with a high one of lone requests; both are sorted."""
    if len(times) < MIN_REQUESTS:
        return None
    if len(alone) < MIN_LONE_REQUESTS:
        most_s, low_s = alone[-1], quantile(times, min(0.5, MAX_CHANCE ** (1 / len(alone))))
    else:
        most_s, low_s = quantile(alone, 1 - LOWER_QUARTILE), quantile(times, LOWER_QUARTILE)
    low_s *= 1 - _lost(facts)
    return LongerThan(low_s, most_s) if _clearly_longer(low_s, most_s, facts) else None


def _clearly_longer(
    low_s: float, most_s: float, facts: Facts, *, other_launch: bool = False
) -> bool:
    ratio = DOUBTFUL_INCREASE_RATIO if other_launch or is_disturbed(facts) else MIN_INCREASE_RATIO
    return low_s >= max(ratio * most_s, most_s + MIN_INCREASE_S)


def _longer_than_fewer(facts: Facts, series: Series) -> LongerThan | None:
    """Compares the mean with that of the lowest level: the same service with fewer requests at
    once, whatever its distribution. The intervals must not overlap."""
    fewest = min(series.closed, key=attrgetter("connections"))
    own, other = _mean(facts), _mean(fewest)
    if fewest.connections * MIN_STEP_RATIO > facts.connections or own is None or other is None:
        return None
    low_s, most_s = (own.mean - own.half) * (1 - _lost(facts)), other.mean + other.half
    if not _clearly_longer(low_s, most_s, facts, other_launch=True):
        return None
    return LongerThan(low_s, most_s, fewer=fewest.connections)


def _mean(facts: Facts) -> Estimate | None:
    """Mean service time of successes; None if there are few, or if they are CPU-bound."""
    few = facts.outcome.success < MOSTLY_SUCCESSES or len(facts.finished) < MIN_REQUESTS
    return None if few or computes(facts) else precision(facts).service_s


def _no_gain_with_more(facts: Facts, series: Series) -> LongerThan | None:
    """By throughput: requests wait although slots are free, and more connections add nothing."""
    n, occupied = facts.connections, occupancy(facts)
    if (
        not series.requests_wait(facts)
        or not series.levels_off(n)
        or (occupied or 0.0) >= FULL_OCCUPANCY
    ):
        return None
    above = [trial for trial in series.closed if trial.connections >= MIN_STEP_RATIO * n]
    trials = (facts, *above)
    if any(
        _lost(trial) > MAX_CORE_WAIT_SHARE or computes(trial) or stalled(trial) for trial in trials
    ):
        return None
    own, lone_s = _mean(facts), fmean(facts.record.alone_s)
    most = max(trial.connections for trial in above)
    if own is None:
        return None
    low_s = (own.mean - own.half) * (1 - _lost(facts))
    beyond = _clearly_longer(low_s, lone_s, facts, other_launch=True)
    return LongerThan(low_s, lone_s, more=most) if beyond else None


def _lost(facts: Facts) -> float:
    """The share of the response time spent waiting for a core."""
    wait = core_wait(facts)
    return wait.share if wait else 0.0


# --- times that change ----------------------------------------------------------------------------


class Drift(Diagnosis):
    """Service times drift: {first_s:duration} in the first eighth of {requests:# request},
    {last_s:duration} in the last (Mann-Kendall, z = {z:number})"""

    rank = 80
    explains = (Shared,)  # a drift lifts the mean above that of lone requests
    below_slots = "service times change"

    first_s: float
    last_s: float
    requests: int
    z: float  # of the batches' means
    z_single: float  # of single requests

    @property
    def advice(self) -> tuple[str, ...]:
        return (LOOK_FOR_GROWTH if self.last_s > self.first_s else WARM_UP,)


class SlowFirst(Diagnosis):
    """The first {requests:# request} spent {first_s:duration} inside the app, later ones
    {rest_s:duration}: it is slow only at first"""

    rank, advice = 90, (WARM_UP,)
    explains, below_slots = Drift.explains, Drift.below_slots

    requests: int
    first_s: float  # mean of these
    rest_s: float  # mean of the others
    until_s: float  # end of the last of these, since the load began


def drift_of(times_s: Sequence[float]) -> Drift | None:
    """The drift of service times, given in the order in which the requests began."""
    if len(times_s) < MIN_DRIFT_REQUESTS:
        return None
    return _trend(times_s, fmean, TREND_Z)


def _trend(
    times_s: Sequence[float], of: Callable[[Sequence[float]], float], least: float
) -> Drift | None:
    """`of`: the statistic of a batch; `least`: its minimum |z|."""
    batches = _batches(times_s)
    values = list(map(of, batches))
    change_s, z = slope(values) * (BATCHES - 1), mann_kendall(values)
    if abs(z) < least or abs(change_s) < MIN_CHANGE_SHARE * median(values):
        return None
    single = mann_kendall(times_s[:: -(-len(times_s) // MAX_COMPARED)])
    if abs(single) < SINGLE_TREND_Z or single * z < 0:
        return None
    return Drift(
        first_s=fmean(batches[0]),
        last_s=fmean(batches[-1]),
        requests=len(times_s),
        z=z,
        z_single=single,
    )


def _batches(times_s: Sequence[float]) -> Sequence[Sequence[float]]:
    edges = [round(number * len(times_s) / BATCHES) for number in range(BATCHES + 1)]
    return [times_s[since:until] for since, until in pairwise(edges)]


def mser_cut(times_s: Sequence[float]) -> int:
    """How many values to cut off at the beginning, at most half of them: MSER (White 1997)."""
    count = len(times_s)
    tails = list(accumulate(reversed(times_s)))[::-1]
    squares = list(accumulate(value * value for value in reversed(times_s)))[::-1]

    def error(cut: int) -> float:
        left = count - cut
        return (squares[cut] - tails[cut] ** 2 / left) / left**2

    return min(range(count // 2), key=error, default=0)


def count_slow_first(times_s: Sequence[float]) -> int:
    """How many requests were slow at first; 0 if none."""
    if len(times_s) < 2 * MIN_DRIFT_REQUESTS or (cut := mser_cut(times_s)) < MIN_SLOW_FIRST:
        return 0
    threshold_s = quantile(sorted(times_s[cut:]), SLOW_QUANTILE)
    slow = list(accumulate(value > threshold_s for value in times_s[:cut]))
    typical = fmean(times_s[cut:])
    while cut and times_s[cut - 1] < MIN_INCREASE_RATIO * typical:
        cut -= 1  # MSER may cut a little late
    while cut >= MIN_SLOW_FIRST and not _slow_as_a_whole(slow[cut - 1], cut):
        cut -= 1
    first, rest = times_s[:cut], times_s[cut:]
    if cut < MIN_SLOW_FIRST or fmean(first) < MIN_INCREASE_RATIO * fmean(rest) or drift_of(rest):
        return 0
    return cut


def _slow_as_a_whole(slow: int, count: int) -> bool:
    """Whether at least half of `count` requests are slow, and hardly by chance."""
    if slow < MIN_SLOW_SHARE * count or count > FEW_REQUESTS:
        return slow >= MIN_SLOW_SHARE * count
    tail, rare = range(slow, count + 1), 1 - SLOW_QUANTILE
    chance = sum(comb(count, k) * rare**k * SLOW_QUANTILE ** (count - k) for k in tail)
    return chance <= 1.01 * MAX_SLOW_CHANCE  # 5 of 5 is exactly the limit, up to rounding


# --- applied to a trial -------------------------------------------------------------------------


@once
def slow_first(facts: Facts) -> SlowFirst | None:
    """Also valid for CPU-bound workers if requests seldom wait for each other."""
    spans = _successes(facts)
    times_s = durations_s(spans)
    if not (cut := count_slow_first(times_s)):
        return None
    first_s, rest_s = fmean(times_s[:cut]), fmean(times_s[cut:])
    if cut * (first_s - rest_s) < BEYOND_WAIT_RATIO * _lost_s(facts, times_s):
        return None
    until_s = (max(span.end_ns or 0 for span in spans[:cut]) - facts.started_ns) / NS
    return SlowFirst(requests=cut, first_s=first_s, rest_s=rest_s, until_s=until_s)


@once
def drift(facts: Facts) -> Drift | None:
    """Also valid for CPU-bound workers, like `slow_first`."""
    window = facts.window
    if window is None or slow_first(facts):
        return None
    times_s = durations_s(span for span in _successes(facts) if window.contains(span.start_ns))
    trend, half = drift_of(times_s), len(times_s) // 2
    difference_s = abs(sum(times_s[-half:]) - sum(times_s[:half]))
    by_others = is_disturbed(facts) and (trend is None or abs(trend.z) < STEADY_TREND_Z)
    if not by_others and difference_s >= BEYOND_WAIT_RATIO * _lost_s(facts, times_s):
        return trend
    if len(times_s) < BATCHES * MIN_BATCH_REQUESTS or window.length_s < BATCHES * MIN_BATCH_S:
        return None
    used = facts.usage.server_cores
    if used is None or used >= MIN_CPU_OF_FASTEST * min(times_s) * facts.rps:
        return None
    return _trend(times_s, min, FASTEST_Z)


def _lost_s(facts: Facts, times_s: Sequence[float]) -> float:
    """Upper bound of the seconds, in total, in which other programs or machines used the core
    during these times. Excludes the requests' waits for each other, which drift with them."""
    if (wait := core_wait(facts)) is None:
        return 0.0
    lost_s = wait.taken * sum(times_s)
    if not facts.rps:
        return lost_s
    # `taken` is relative to the lone requests, so it is too low if these waited longer for a core
    # than the load did. The workers' wait while others ran does not depend on them
    others = 1.0 if wait.others_cores is None else min(1.0, wait.others_cores)
    per_request_s = min(wait.worker_s, facts.workers * others / facts.rps)
    return max(lost_s, per_request_s * len(times_s))


def _successes(facts: Facts) -> Sequence[Span]:
    """Spans of successes, without the lone first one. Empty if failures may be among them, or if
    the load was so short that a moment without a core is a large part of it."""
    if facts.window is None or facts.window.length_s < MIN_STEADY_S:
        return ()
    spans = success_spans(facts)
    if spans is None:
        spans = facts.finished if failed_share(facts) <= MAX_FAILED_SHARE else ()
    under_load = spans[1:] if facts.data.lone_first else spans
    return [span for span in under_load if not paused(facts, span.start_ns, span.end_ns or 0)]


# --- failures -----------------------------------------------------------------------------------

MANY_FAILED_SHARE = 0.05  # of the requests: from here on, failures rank before most diagnoses


class Failures(Diagnosis):
    """Requests that fail."""

    rank, advice = 110, ()

    requests: int
    share: float  # of all requests


class Shedding(Failures):
    """{share:percent} of the requests were refused[[ (status {statuses:list})]]
    [[ (answers other than 2xx that took hardly any time; {tool} does not tell their status)]],
    and {successes_rps:number} requests/s succeeded"""

    below_slots = "the server refuses the rest"

    statuses: tuple[str, ...]
    tool: str | None  # set if it does not report statuses
    successes_rps: float


def shedding(facts: Facts, cell: CellResult) -> Shedding | None:
    if not (count := shed(facts)):
        return None
    statuses = tuple(refused(facts))
    return Shedding(
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
    below_slots = "failures are left out"

    causes: Mapping[str, int]
    statuses: tuple[str, ...]


def failing(facts: Facts, _cell: CellResult) -> Failing | None:
    """Failures other than refusals, without those that a full accept queue explains."""
    causes = Counter(facts.outcome.errors)
    if handshakes(facts).dropped:
        del causes[NEVER_ACCEPTED]
        causes["non_2xx"] -= _by_server(facts, causes["non_2xx"])
    refusals = shed(facts)
    for cause in ANSWERED:
        of_cause = min(refusals, causes[cause])
        causes[cause] -= of_cause
        refusals -= of_cause
    if not (causes := +causes):
        return None
    return Failing(
        requests=causes.total(),
        share=min(1.0, causes.total() / ended(facts)),
        causes=dict(sorted(causes.items())),
        statuses=tuple(map(str, sorted(wrong_statuses(facts).keys() - REFUSING_STATUSES))),
    )


def _by_server(facts: Facts, wrong: int) -> int:
    """How many error responses the server itself sent when it killed a worker that was waiting for
    a request. Counted if some requests never reached the app and the tool (ab) does not say which
    response belongs to which request."""
    unseen = 0 if facts.measurement.timings else facts.measurement.requests - len(facts.spans)
    return wrong if wrong <= 2 * unseen else 0
