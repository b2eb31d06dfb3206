"""The cost of waiting for a core: the share of the response time in which a thread of the workers
or of the load tool was ready to run without a core.

The number of cores that other programs use says nothing by itself: alongside these programs, an app
that sleeps responds as fast as alone, while one that computes takes twice as long. The time in the
run queue counts. With

    c, w    CPU seconds and run-queue seconds of the workers per request
    n       requests in progress per worker: those in flight, up to the number of slots
    h       time for which a request holds its slot; at most its response time
    z       its time other than computing and waiting for a core: sleeping, the network

a request holds its slot for h = H(c + w), and would hold it for H(c) with enough cores. H(d) is the
time that each of n requests takes to pass through a station that serves one at a time, for d each,
and then a delay z: approximate mean value analysis (Schweitzer 1979; Lazowska et al., Quantitative
System Performance, 1984, chapter 6) of the worker's loop. A request waits for half of the service
in progress instead of a whole one, because equal requests take equally long. z is the mean lone
response minus c, or more if that does not explain h: then something else holds the requests, such
as a lock or a service behind the app. So w costs w if workers sleep (n = 1), and n * w if a loop
computes all the time. Its share of the queue in front of the slots equals its share of the time in
them.

The share is (H(c + w) - H(c))/h, and likewise for the load tool, through which all requests pass.
For the workers it is limited to the part of h beyond the fastest lone request, which may have
waited for as long as it computed.

The share is an upper bound: a worker that wakes up for a connection that another worker accepts, or
to clean up after a response, delays no request, and a waiting thread of gthread delays no other
thread. Waits of a thread that ends between two samples are missing.

Rejected: n * w, correct only for a busy loop; a threshold of cores used by other programs (figures
of sleeping apps are exact even if others use 1.9 of 2 cores); (c + w)/c, which treats the app's
sleep as computing.
"""

from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, per_second
from workerlab.model.evidence import ProcessSample
from workerlab.model.result import CoreWait

MIN_SAMPLED_S = 0.5  # of the steady part; if less is sampled, the whole load counts
MAX_ITERATIONS = 100  # far more than needed
CONVERGED_SHARE = 1e-6  # of a cycle; a smaller change ends the iteration
BISECTION_STEPS = 20


class LoadPart(Struct, frozen=True):
    """A part of a load with `rps` responses per second, which took `response_s` each. `lone_s`,
    `fastest_lone_s`: mean and shortest response time of lone requests."""

    samples: Sequence[ProcessSample]
    rps: float
    response_s: float
    lone_s: float
    fastest_lone_s: float = 0.0
    workers: int = 1
    slots: int | None = None
    tool_units: int = 1  # threads or processes of the load tool
    remote_load: bool = False  # the load tool runs on other hosts, unobserved
    services_cores: float = 0.0  # used by the app's components (cache, ...)
    cores: int | None = None  # of the machine

    def rate(self, name: str) -> float | None:
        """The increase per second of a sample field that is in seconds; None if unknown."""
        if self.remote_load and "tool" in name:
            return None
        return per_second(self.samples, name)

    def others_cores(self) -> float | None:
        """Cores used by programs outside the lab; None if unknown. Interrupts are excluded: most
        belong to the load, and it depends on the kernel's build whether it charges them to the
        interrupted process."""
        names = ("host_busy_s", "server_cpu_s", *(() if self.remote_load else ("tool_cpu_s",)))
        busy, *lab = map(self.rate, names)
        if busy is None or None in lab:
            return None
        # Other trials of the lab do not count as other programs
        lab += map(self.rate, ("lab_cpu_s", "beside_cpu_s", "host_irq_s", "host_steal_s"))
        return max(0.0, busy - self.services_cores - sum(cores or 0.0 for cores in lab))

    def stolen_share(self, cpu_s: float) -> float:
        """The share of a response in which the host gave its core to another machine. That time is
        neither in the CPU time of the trial nor in the run queue."""
        stolen, busy = self.rate("host_steal_s"), self.rate("host_busy_s")
        if not stolen or not busy or cpu_s <= 0:
            return 0.0
        return stolen / busy * min(1.0, cpu_s / max(self.lone_s, cpu_s))


@once
def core_wait(facts: Facts) -> CoreWait | None:
    """The cost of waiting for a core in this trial; None if the kernel does not report how long the
    workers waited, or if no request was answered."""
    samples, rps = _samples_and_rps(facts)
    if rps <= 0:
        return None
    mean_s = facts.measurement.response.mean
    # In a closed loop N/X, the response time law (Denning & Buzen 1978)
    by_law_s = facts.connections / (facts.rps or rps)
    response_s = mean_s if facts.open_model and mean_s is not None else by_law_s
    lone_s = facts.record.alone_s or (response_s,)
    services = facts.observations.services
    return core_wait_in(
        LoadPart(
            samples=samples,
            rps=rps,
            response_s=response_s,
            lone_s=fmean(lone_s),
            fastest_lone_s=min(lone_s),
            workers=facts.workers,
            slots=facts.slots,
            tool_units=facts.data.tool_units,
            remote_load=facts.data.remote_load,
            services_cores=per_second(services, lambda sample: sum(sample.cpu_s.values())) or 0.0,
            cores=facts.observations.cores,
        )
    )


def core_wait_in(part: LoadPart) -> CoreWait | None:
    """The cost of waiting for a core in a part of a load, as in `core_wait`."""
    rps, wait, cpu = part.rps, part.rate("server_wait_s"), part.rate("server_cpu_s")
    if wait is None or cpu is None or rps <= 0:
        return None
    in_flight = rps * part.response_s
    in_slots = in_flight if part.slots is None else min(in_flight, part.slots)
    others = part.others_cores()
    tool_wait, tool_cpu, tool_share = part.rate("tool_wait_s"), part.rate("tool_cpu_s"), 0.0
    if tool_wait is not None and tool_cpu is not None:
        per_unit, response_s = max(1.0, in_flight / max(1, part.tool_units)), part.response_s
        tool_share = lost_share(tool_cpu / rps, tool_wait / rps, per_unit, response_s, part.lone_s)

    def total_share(wait: float) -> float:
        per_worker, cpu_s, held_s = max(1.0, in_slots / part.workers), cpu / rps, in_slots / rps
        # The fastest lone request may have waited for as long as it computed
        limit = 1 - max(cpu_s, part.fastest_lone_s - cpu_s) / held_s if held_s > 0 else 0.0
        workers_share = min(limit, lost_share(cpu_s, wait / rps, per_worker, held_s, part.lone_s))
        return 1 - (1 - max(0.0, workers_share)) * (1 - tool_share)

    others_share = None
    if others is not None:
        # Other programs delay a worker no longer than they run; for the rest, its threads wait for
        # each other
        others_share = total_share(min(wait, part.workers * min(1.0, others)))
    return CoreWait(
        share=total_share(wait),
        others_share=others_share,
        worker_s=wait / rps,
        tool_s=None if tool_wait is None else tool_wait / rps,
        others_cores=others,
        steal_cores=part.rate("host_steal_s"),
        stolen_share=part.stolen_share((cpu + (tool_cpu or 0.0)) / rps),
        cores=part.cores,
    )


def core_wait_share(facts: Facts) -> float:
    """The share of the response time spent waiting for a core; 0 if unknown."""
    wait = core_wait(facts)
    return wait.share if wait else 0.0


def is_disturbed(facts: Facts) -> bool:
    """Whether other programs or machines used the cores long enough to distort the figures."""
    wait = core_wait(facts)
    return wait is not None and wait.disturbed


def lost_share(cpu_s: float, wait_s: float, n: float, held_s: float, lone_s: float) -> float:
    """(H(c + w) - H(c))/h, 0 to 1, for c `cpu_s`, w `wait_s` and h `held_s`. `lone_s`: the response
    time of a lone request."""
    demand_s = cpu_s + wait_s
    delay_s = max(0.0, min(lone_s - cpu_s, held_s - demand_s))
    if _modelled_held_s(demand_s, n, delay_s) < held_s:
        delay_s = fitted_delay_s(demand_s, n, held_s, delay_s)
    without_s, with_s = (_modelled_held_s(s, n, delay_s) for s in (cpu_s, demand_s))
    return max(0.0, (with_s - without_s) / max(with_s, held_s)) if with_s > 0 else 0.0


def fitted_delay_s(demand_s: float, n: float, held_s: float, min_s: float = 0.0) -> float:
    """The delay z, at least `min_s`, for which H(demand_s) is `held_s`. It is longer than for a
    lone request if something else holds the requests."""
    max_s = held_s
    for _ in range(BISECTION_STEPS):
        middle_s = (min_s + max_s) / 2
        if _modelled_held_s(demand_s, n, middle_s) < held_s:
            min_s = middle_s
        else:
            max_s = middle_s
    return max_s


def _modelled_held_s(demand_s: float, n: float, delay_s: float) -> float:
    """H(demand_s) if z is `delay_s`."""
    station_s, other_requests = demand_s, n - 1
    for _ in range(MAX_ITERATIONS):
        cycle_s = station_s + delay_s
        if cycle_s <= 0:
            return 0.0
        at_station, in_service = (
            part_s / cycle_s * other_requests for part_s in (station_s, demand_s)
        )
        by_queue_s = demand_s * (1 + max(0.0, at_station - min(1.0, in_service) / 2))
        before_s, station_s = station_s, max(by_queue_s, n * demand_s - delay_s)
        if abs(station_s - before_s) <= CONVERGED_SHARE * cycle_s:
            break
    return station_s + delay_s


# --- samples --------------------------------------------------------------------------------------


def _samples_and_rps(facts: Facts) -> tuple[Sequence[ProcessSample], float]:
    """The samples and the responses per second of the steady part, or of the whole load if that
    part is too short."""
    steady, samples = facts.window, facts.observations.processes
    if steady is not None:
        inside = steady.select(samples)
        if inside and inside[-1].at_ns - inside[0].at_ns >= MIN_SAMPLED_S * NS:
            return inside, steady.rps
    rps = len(facts.finished) / facts.load_s if facts.load_s > 0 else 0.0
    if len(samples) < 2:
        return samples, rps
    # The load tool's waits during its start-up delay no response. Its CPU time is known: it started
    # after the first sample, and its guard recorded the total at the end
    reliable = [replace(sample, tool_wait_s=None) for sample in samples]
    if (cpu_s := facts.record.tool_cpu_s) is not None:
        reliable[0] = replace(reliable[0], tool_cpu_s=0.0)
        reliable[-1] = replace(reliable[-1], tool_cpu_s=cpu_s)
    return reliable, rps
