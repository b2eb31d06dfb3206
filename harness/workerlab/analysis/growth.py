"""Whether the backlog of an open load grows and would go on growing.

With random arrivals, queues come and go: at 90 % of a server's capacity, one in six loads of 10 s
ends with a longer queue than it began with (simulated: 4 slots, 0.2 s each), and one in three if
service times vary widely. If a resource is full, however, the server works at its limit, which is
either below the requested rate or not. So a backlog grows if both conditions are true:

    full      over the second half of the load, 95 % of the slots, or of the cores that the workers
              can use, were busy
    too slow  throughput in that half is below the requested rate (whatever actually arrived), by at
              least 2 % and by more than the scatter of service times explains. It is first scaled
              to full use: at 95 %, throughput / 0.95

Of 80 simulated loads with Poisson arrivals at 98 % of the capacity of four slots, none was
classified as growing (constant service). If the server is full, but the deficit is within the
scatter, the result is unknown, as for most loads at 105 % if service times vary widely.

If no measured resource is full (the limit may be a lock, a pool or unevenly loaded workers), the
trend decides: requests in flight in GROWTH_PARTS parts of the load rise (Mann-Kendall) by at least
2 % of the arrivals, do not fall back to levels of the first half, and the second half is too slow,
as above: then requests were always waiting, whatever limits the server. (While a burst drains,
throughput exceeds the requested rate.) Of 40 simulated loads of 10 s at 105 % of the capacity, 34
are detected if the limit is 16 requests at once (constant service); about half if it is 4.

Rejected: the trend alone (Mann-Kendall and a slope of 2 % classify 12 to 30 % of all loads at 90 %
as growing); the trend in addition to a full resource (it detects 61 % of the loads at 105 % instead
of 98 %, because random arrivals hide an excess of 5 %); throughput below 97 % of the requested
rate, which happens by chance in one of ten loads.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, pstdev

from msgspec import Struct

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.handshakes import ESTABLISHED
from workerlab.analysis.samples import Intervals, Period, Window, durations_s, per_second
from workerlab.analysis.slots import FULL_OCCUPANCY, occupancy_in
from workerlab.analysis.stall import requests_in_flight
from workerlab.numbers.samples import SIGNIFICANT_Z, mann_kendall, slope

GROWTH_PARTS = 8
MIN_EXCESS_SHARE = 0.02  # of the arrival rate
DEFICIT_Z = 2.35  # standard errors; exceeded by chance in 1 % of cases
FULL_CPU_SHARE = 0.95  # of the usable cores


class Growth(Struct, frozen=True):
    """Growth of a backlog. `done_rps`: throughput in the second half of the load. `full`: the
    resource that was full then ("slots", "workers") or "". `grows`: None if the deficit is within
    the scatter."""

    done_rps: float
    full: str
    grows: bool | None
    slope: float = 0.0  # growth of the requests in flight / arrivals, both per second


@once
def growth(facts: Facts) -> Growth:
    """Whether the backlog of a valid load at a rate grows."""
    window = facts.steady_part
    second_half = Period((window.opens_ns + window.closes_ns) // 2, window.closes_ns)
    half = Window.counting(Intervals.of(facts.spans).last(facts.tail_ns), second_half)
    full, share = _full(facts, half)
    if full:
        return Growth(half.rps, full, _too_slow(facts, half, share))
    levels = _in_flight(facts, window)
    if len(levels) < GROWTH_PARTS:
        return Growth(half.rps, "", grows=False)
    part_s = window.length_s / GROWTH_PARTS
    rise = slope(levels) / part_s / facts.asked_rps
    above = min(levels[GROWTH_PARTS // 2 :]) > max(levels[: GROWTH_PARTS // 2])
    rises = mann_kendall(levels) >= SIGNIFICANT_Z and rise >= MIN_EXCESS_SHARE and above
    return Growth(half.rps, "", rises and _too_slow(facts, half) is True, rise)


def _full(facts: Facts, half: Window) -> tuple[str, float]:
    """The full resource ("" if no measured resource was full), and its utilisation."""
    occupied = occupancy_in(facts, half)
    if occupied is not None and occupied >= FULL_OCCUPANCY:
        return "slots", occupied
    used = per_second(half.select(facts.observations.processes), "server_cpu_s")
    usable = min(facts.workers, facts.cores or facts.workers)
    if used is not None and used >= FULL_CPU_SHARE * usable:
        return "workers", used / usable
    return "", 0.0


def _too_slow(facts: Facts, half: Window, use: float = 1.0) -> bool | None:
    """Whether the requested rate exceeds the throughput at full use; None if the excess is within
    the scatter. `use`: the actual utilisation, which the throughput is scaled by."""
    possible_rps = half.rps / min(1.0, use)
    if possible_rps > (1 - MIN_EXCESS_SHARE) * facts.asked_rps:
        return False
    services_s = durations_s(facts.finished)
    variation = pstdev(services_s) / fmean(services_s) if fmean(services_s) > 0 else 0.0
    error_rps = half.rps * variation / sqrt(max(1.0, half.completed))
    return True if facts.asked_rps - possible_rps >= DEFICIT_Z * error_rps else None


def _in_flight(facts: Facts, window: Window) -> Sequence[float]:
    """Mean number of requests in flight in each part, without parts for which it is unknown."""
    length_ns = (window.closes_ns - window.opens_ns) // GROWTH_PARTS
    starts_ns = [window.opens_ns + number * length_ns for number in range(GROWTH_PARTS)]
    parts = [Period(start_ns, start_ns + length_ns) for start_ns in starts_ns]
    if facts.measurement.timings and facts.measurement.origin_ns is not None:
        in_flight = requests_in_flight(facts)
        return [in_flight.inside_s(part) / part.length_s for part in parts]
    samples = facts.observations.connections
    levels = [
        part.mean_level(samples, lambda sample: sample.client.get(ESTABLISHED, 0), 2)
        for part in parts
    ]
    return [level for level in levels if level is not None]
