"""A shared resource: a lock, a pool or the GIL, for which requests wait.

Under load, requests spend longer in the app than a lone request. Quantiles are compared, because a
few lone requests say little about service times that vary: if one in ten is slow, all lone ones may
be fast, and the mean under load is far above theirs although nothing is shared. If both have the
same distribution, all n lone times lie below its quantile q with probability q^n. So the longest
lone time is compared with the quantile q = 0.01^(1/n) under load, or the median if that is lower.
With many lone requests, their upper quartile is compared with the lower quartile under load, which
exceeds it even less often by chance. Requests that wait for a lock are nearly always slow; those of
a heavy-tailed service only in its tail.

Other levels can be evidence where a few lone requests are not: shorter service times with fewer
requests at once, by the intervals of both means; or throughput that does not grow with more
requests although slots are free. The interval of a single load does not cover the variation between
launches, so times must be 50 % longer.

Times must be 25 % and 5 ms longer (the time slice that the GIL and the kernel give to other
threads), and CPU must not explain it: CPU-bound workers, or requests that need CPU on a machine
without a free core. The wait for a core is subtracted first; if other programs used the cores,
times must be 50 % longer. Rejected: Welch's interval for the difference from the mean of lone
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from statistics import fmean

from msgspec import Struct

from workerlab.analysis.batches import Estimate, precision
from workerlab.analysis.core_wait import core_wait, core_wait_share, is_disturbed
from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.diagnosis.failing import MOSTLY_SUCCESSES
from workerlab.analysis.diagnosis.slots import WaitingForSlots
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import by_worker, durations_s
from workerlab.analysis.series import MIN_STEP_RATIO, Series
from workerlab.analysis.slots import all_slots_taken, overhead_s
from workerlab.analysis.stall import stalled
from workerlab.model.result import Result
from workerlab.numbers.samples import quantile

MAX_ALL_FAST_CHANCE = 0.01  # probability that all of a few lone requests are fast
MIN_QUARTILE_REQUESTS = 8  # lone requests
LOWER_QUARTILE = 0.25
MAX_CORE_WAIT_SHARE = 0.25  # of the response
MIN_INCREASE_RATIO = 1.25  # times / those of lone requests, or of the rest of the load
MIN_INCREASE_S = 0.005
MIN_DOUBTFUL_RATIO = 1.5  # likewise, if other programs used the cores, or across launches
MIN_LOADED_REQUESTS = 32
WORKERS_BUSY_SHARE = 0.7  # of the cores that the workers can use
BUSY_MACHINE_SHARE = 0.9  # of all cores
CPU_BOUND_SHARE = 0.1  # CPU / fastest lone response, on a busy machine
CPU_BOUND_SHARE_WITH_WAIT = 0.4  # likewise, if the wait for a core is measured

LOOK_FOR_WHAT_IS_SHARED = (
    "look for what they share (a lock, a pool of connections or threads, a service behind the app)"
)


@once
def is_cpu_bound(facts: Facts) -> bool:
    """Whether CPU limits the requests: that of the workers, or of the whole machine."""
    if facts.workers_busy >= WORKERS_BUSY_SHARE:
        return True
    usage = facts.usage
    # A measured wait is subtracted later; it lacks only the wait of processes started by requests
    min_share = CPU_BOUND_SHARE_WITH_WAIT if core_wait(facts) else CPU_BOUND_SHARE
    machine_busy = usage.host_busy is not None and usage.host_busy > BUSY_MACHINE_SHARE
    if usage.server_cores is None or not machine_busy:
        return False
    return usage.server_cores / facts.rps >= min_share * min(facts.record.alone_s, default=0.0)


class SharingEvidence(Struct, frozen=True):
    """Times in the app from which it follows that requests share something."""

    low_s: float  # under load, without waits for a core: low quantile, or lower bound of the mean
    others_s: float  # with fewer requests at once: high quantile, mean, or its upper bound
    fewer: int | None = None  # connections of the other level; None: lone requests
    more: int | None = None  # connections of a higher level without more throughput


class Shared(Diagnosis):
    """With {connections:# connection} a request spends {service_s:duration}
    [[ ± {half_s:duration}]] inside the app, a lone one takes {lone_s:duration} in total
    [[, with {longer.fewer:# connection} at most {longer.others_s:duration}]], and CPU time does not
    explain it[[ (the server uses {used:.2f} of {cores:# core})]]
    [[; {longer.more:# connection} do not raise the throughput]]: requests wait for a shared
    resource"""

    rank, advice = 60, (LOOK_FOR_WHAT_IS_SHARED,)
    explains = (WaitingForSlots,)  # requests that wait for a lock fill the slots
    below_slots = "requests wait for a shared resource"

    connections: int
    service_s: float | None
    half_s: float | None  # of its 95 % interval
    lone_s: float  # R0
    longer: SharingEvidence
    lone_requests: int
    used: float | None
    cores: int | None

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, series: Series | None) -> Shared | None:
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
    """The evidence; None unless the times under load, without the wait for a core, are clearly
    longer. `level`: `fewer` or `more` if another launch is compared."""
    low_s = loaded_s * (1 - core_wait_share(facts))
    ratio = MIN_DOUBTFUL_RATIO if level or is_disturbed(facts) else MIN_INCREASE_RATIO
    clearly_longer = low_s >= max(ratio * others_s, others_s + MIN_INCREASE_S)
    return SharingEvidence(low_s, others_s, **level) if clearly_longer else None


def _longer_than_alone(facts: Facts) -> SharingEvidence | None:
    """Compares all requests with lone ones, then those of the busiest worker, in which more
    requests share resources."""
    outside_s, spans = overhead_s(facts), facts.success_spans
    lone_inside_s = sorted(max(0.0, lone_s - outside_s) for lone_s in facts.record.lone_s)
    if spans is None or not lone_inside_s or facts.record.lone_weights:
        return None  # a mix: the shares of its routes differ between lone requests and load
    loaded = [span for span in spans if facts.steady_part.contains(span.start_ns)]
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
    """Compares the mean with that of the lowest level, the same service with fewer requests at
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
    """Throughput: requests wait although slots are free, and more connections do not raise it."""
    n, own = facts.connections, _mean_service(facts)
    if all_slots_taken(facts) or not series.requests_wait(facts) or not series.levels_off(n):
        return None
    above = [trial for trial in series.closed if trial.connections >= MIN_STEP_RATIO * n]
    if own is None or any(map(_cores_or_stall_may_limit, (facts, *above))):
        return None
    lone_s, more = fmean(facts.record.alone_s), max(trial.connections for trial in above)
    return _evidence(facts, own.mean - own.half, lone_s, more=more)


def _cores_or_stall_may_limit(facts: Facts) -> bool:
    """Whether the cores or a stall may have limited the throughput."""
    waits = core_wait_share(facts) > MAX_CORE_WAIT_SHARE
    return waits or is_cpu_bound(facts) or stalled(facts) is not None
