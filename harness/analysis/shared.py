"""Something that requests share: a lock, a pool, the GIL. Seen by requests that spend longer in the
app together than a lone one did.

A few lone requests say little of a service that varies: those of an app that is slow once in ten
are all fast, and a mean under load is then far above theirs with nothing shared. So ranks are
compared. Where the times under load are those of lone requests, n of these all lie below the
quantile q of the former with probability q^n, whatever the distribution: q = 0.01^(1/n), at most
the median. Of many lone ones the upper quartile is asked instead of the most, and the lower
quartile under load, which chance gives less often still. What waits for one that holds a lock is
slow nearly always; a heavy tail is so in its tail.

It must be a quarter longer and 5 ms (for so long the GIL and the kernel let others run), and
computing must not explain it: workers that compute, or requests that need CPU on a machine without
a free core. What waiting for a core cost is taken off first, and where others had the cores it must
be half as long again. Rejected: an interval of the difference of means (Welch), for the reason
above.
"""

from harness.analysis.batches import precision
from harness.analysis.core_wait import core_wait, disturbance
from harness.analysis.facts import Facts, once
from harness.analysis.failures import success_spans
from harness.analysis.occupancy import overhead_s
from harness.analysis.samples import durations_s
from harness.model import CellResult, Finding
from harness.numbers.quantiles import quantile

CHANCE = 0.01
MANY, QUARTER = 8, 0.25  # lone requests from which on quartiles are compared
LONGER, LEAST_S = 1.25, 0.005  # than a lone one: times, and seconds more
DISTURBED = 1.5  # times, where others kept the load from a core
REQUESTS = 32  # under load
COMPUTING = 0.7  # of the cores its workers could use
FULL = 0.9  # of all cores
NEEDS_CPU = 0.1  # of a lone request's time


def shared(facts: Facts, cell: CellResult) -> Finding | None:
    """Requests that slow each other down, without computing."""
    if facts.connections < 2 or computes(facts) or (found := _longer(facts)) is None:
        return None
    typical_s, lone_s = found
    cores, used, known = facts.seen.cores, facts.usage.server_cores, precision(facts).service_s
    return Finding(
        "diagnosis.shared",
        {
            "connections": facts.connections,
            "service_s": known.mean if known else cell.breakdown.service_s or cell.service.mean,
            "half_s": known.half if known else None,
            "low_s": typical_s,
            "lone_s": lone_s,
            "lone_requests": len(facts.record.lone_s),
            "used": used if cores else None,
            "cores": cores or None,
            "advice": (Finding("advice.look_for_what_is_shared"),),
        },
    )


@once
def computes(facts: Facts) -> bool:
    """Whether the CPU is what its requests wait for: of its workers or of the machine."""
    cores, usage, workers = facts.seen.cores, facts.usage, facts.cell.server.workers
    if (used := usage.server_cores) is None:
        return False
    if used >= COMPUTING * min(workers, cores or workers):
        return True
    if core_wait(facts):  # what that cost is known
        return False
    crowded = usage.host_busy is not None and usage.host_busy > FULL
    alone_s = min(facts.record.lone_s, default=0.0)
    return crowded and bool(facts.rps) and used / facts.rps >= NEEDS_CPU * alone_s


def _longer(facts: Facts) -> tuple[float, float] | None:
    """What most requests under load exceed, and what a lone one took at most, seconds."""
    beside_s, window, spans = overhead_s(facts), facts.window, success_spans(facts)
    alone = sorted(max(0.0, one - beside_s) for one in facts.record.lone_s)
    if window is None or spans is None or not alone:
        return None
    times = sorted(durations_s(span for span in spans if window.contains(span.start_ns)))
    if len(times) < REQUESTS:
        return None
    if len(alone) < MANY:
        most_s, low_s = alone[-1], quantile(times, min(0.5, CHANCE ** (1 / len(alone))))
    else:
        most_s, low_s = quantile(alone, 1 - QUARTER), quantile(times, QUARTER)
    low_s, longer = low_s * (1 - _lost(facts)), DISTURBED if disturbance(facts) else LONGER
    return (low_s, most_s) if low_s >= max(longer * most_s, most_s + LEAST_S) else None


def _lost(facts: Facts) -> float:
    """The part of a response that was waiting for a core."""
    found = core_wait(facts)
    return found.share if found else 0.0
