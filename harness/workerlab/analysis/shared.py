"""Something that requests share: a lock, a pool, the GIL. Seen by requests that spend longer in the
app together than a lone one did.

A few lone requests say little of a service that varies: those of an app that is slow once in ten
are all fast, and a mean under load is then far above theirs with nothing shared. So ranks are
compared. Where the times under load are those of lone requests, n of these all lie below the
quantile q of the former with probability q^n, whatever the distribution: q = 0.01^(1/n), at most
the median. Of many lone ones the upper quartile is asked instead of the most, and the lower
quartile under load, which chance gives less often still. What waits for one that holds a lock is
slow nearly always; a heavy tail is so in its tail.

What a few lone requests cannot tell, other levels can: the same service with fewer requests at
once, by the intervals of both means; and throughput that stays the same with more of them, while
slots are free. These are other launches, by which no interval of one load knows a service to vary:
it must be half as long again.

It must be a quarter longer and 5 ms (for so long the GIL and the kernel let others run), and
computing must not explain it: workers that compute, or requests that need CPU on a machine without
a free core. What waiting for a core cost is taken off first, and where others had the cores it must
be half as long again. Rejected: an interval of the difference of means (Welch) to lone ones,
for the reason above.
"""

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from statistics import fmean

from msgspec import Struct

from workerlab.analysis.batches import Estimate, precision
from workerlab.analysis.core_wait import core_wait, disturbance
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.failures import success_spans
from workerlab.analysis.occupancy import FULL as FULL_SLOTS
from workerlab.analysis.occupancy import occupancy, overhead_s
from workerlab.analysis.samples import durations_s
from workerlab.analysis.series import STEP, Series
from workerlab.analysis.stall import stalled
from workerlab.model import CellResult, Finding
from workerlab.numbers.quantiles import quantile

CHANCE = 0.01
MANY, QUARTER = 8, 0.25  # lone requests from which on quartiles are compared
LONGER, LEAST_S = 1.25, 0.005  # than a lone one: times, and seconds more
DOUBTFUL = 1.5  # times, where others kept the load from a core, and than another launch
REQUESTS = 32  # under load
COMPUTING = 0.7  # of the cores its workers could use
FULL = 0.9  # of all cores
ALL = 0.99  # of the answers are successes: spans of failures do not change the mean
NEEDS_CPU, MOSTLY = 0.1, 0.4  # of a lone request's time


class Longer(Struct, frozen=True):
    """What most requests exceed, and what others take that have less company, seconds. `fewer`,
    `more`: connections of the other level that shows it, None where lone requests do."""

    low_s: float
    others_s: float
    fewer: int | None = None
    more: int | None = None


def shared(facts: Facts, cell: CellResult, series: Series) -> Finding | None:
    """Requests that slow each other down, without computing."""
    if facts.connections < 2 or computes(facts):
        return None
    found = _than_alone(facts) or _than_fewer(facts, series) or _with_no_more(facts, series)
    if found is None:
        return None
    cores, used, known = facts.seen.cores, facts.usage.server_cores, precision(facts).service_s
    return Finding(
        "diagnosis.shared",
        {
            "connections": facts.connections,
            "service_s": known.mean if known else cell.breakdown.service_s or cell.service.mean,
            "half_s": known.half if known else None,
            "low_s": found.low_s,
            "lone_s": series.r0.seconds,
            "fewer": found.fewer,
            "fewer_s": found.others_s if found.fewer else None,
            "more": found.more,
            "lone_requests": len(facts.record.lone_s),
            "used": used if cores else None,
            "cores": cores or None,
            "advice": (Finding("advice.look_for_what_is_shared"),),
        },
    )


@once
def computes(facts: Facts) -> bool:
    """Whether the CPU is what its requests wait for: of its workers or of the machine."""
    cores, usage, workers = facts.cores, facts.usage, facts.cell.server.workers
    if (used := usage.server_cores) is None:
        return False
    if used >= COMPUTING * min(workers, cores or workers):
        return True
    # What waiting for a core cost is known, but for that of processes which requests start and end
    needs = MOSTLY if core_wait(facts) else NEEDS_CPU
    crowded = usage.host_busy is not None and usage.host_busy > FULL
    alone_s = min(facts.record.alone_s, default=0.0)
    return crowded and bool(facts.rps) and used / facts.rps >= needs * alone_s


def _than_alone(facts: Facts) -> Longer | None:
    """By ranks: of all requests, or of those of the worker that had most of them at once, where the
    others have fewer to share with."""
    beside_s, window, spans = overhead_s(facts), facts.window, success_spans(facts)
    alone = sorted(max(0.0, one - beside_s) for one in facts.record.lone_s)
    if window is None or spans is None or not alone or facts.record.lone_weights:
        return None  # of a mix, there are not as many lone requests of each route as in the load
    inside = [span for span in spans if window.contains(span.start_ns)]
    by_worker: dict[int, list[float]] = defaultdict(list)
    for span in inside:
        by_worker[span.pid].extend(durations_s([span]))
    fullest = max(by_worker.values(), key=sum, default=[])
    for times in (durations_s(inside), fullest):
        if found := _above(sorted(times), alone, facts):
            return found
    return None


def _above(times: Sequence[float], alone: Sequence[float], facts: Facts) -> Longer | None:
    """Both sorted."""
    if len(times) < REQUESTS:
        return None
    if len(alone) < MANY:
        most_s, low_s = alone[-1], quantile(times, min(0.5, CHANCE ** (1 / len(alone))))
    else:
        most_s, low_s = quantile(alone, 1 - QUARTER), quantile(times, QUARTER)
    low_s *= 1 - _lost(facts)
    return Longer(low_s, most_s) if _beyond(low_s, most_s, facts) else None


def _beyond(low_s: float, most_s: float, facts: Facts, *, other_launch: bool = False) -> bool:
    longer = DOUBTFUL if other_launch or disturbance(facts) else LONGER
    return low_s >= max(longer * most_s, most_s + LEAST_S)


def _than_fewer(facts: Facts, series: Series) -> Longer | None:
    """By means: than at the lowest level. That is the same service with fewer requests at once,
    whatever it varies by; both intervals are kept off."""
    fewest = min(series.closed, key=attrgetter("connections"))
    own, other = _mean(facts), _mean(fewest)
    if fewest.connections * STEP > facts.connections or own is None or other is None:
        return None
    low_s, most_s = (own.mean - own.half) * (1 - _lost(facts)), other.mean + other.half
    found = Longer(low_s, most_s, fewer=fewest.connections)
    return found if _beyond(low_s, most_s, facts, other_launch=True) else None


def _mean(facts: Facts) -> Estimate | None:
    """Service of successes."""
    few = facts.outcome.success < ALL or len(facts.finished) < REQUESTS
    return None if few or computes(facts) else precision(facts).service_s


def _with_no_more(facts: Facts, series: Series) -> Longer | None:
    """By throughput: slots are free and requests wait, and yet more connections get no more."""
    n, taken = facts.connections, occupancy(facts)
    if not series.waits(facts) or not series.levels_off(n) or (taken or 0.0) >= FULL_SLOTS:
        return None
    above = [one for one in series.closed if one.connections >= STEP * n]
    if any(_lost(one) > QUARTER or computes(one) or stalled(one) for one in (facts, *above)):
        return None
    own, lone_s = _mean(facts), fmean(facts.record.alone_s)
    more = max(one.connections for one in above)
    if own is None:
        return None
    low_s = (own.mean - own.half) * (1 - _lost(facts))
    found = Longer(low_s, lone_s, more=more)
    return found if _beyond(low_s, lone_s, facts, other_launch=True) else None


def _lost(facts: Facts) -> float:
    """The part of a response that was waiting for a core."""
    found = core_wait(facts)
    return found.share if found else 0.0
