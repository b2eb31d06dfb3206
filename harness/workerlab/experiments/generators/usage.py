"""What one load generator did at one load: throughput, what it cost, what it reports.

**CPU per request** is a slope, not a sum: the CPU seconds between two samples in the middle of the
load, over the answers of that time (throughput x time). So neither a generator's start, which takes
Locust a second or two, nor its end is put on its requests. The kernel tells CPU in ticks of 10 ms,
so that a slope has a least step, `cpu_step_s`: two ticks times the root of the processes, whose
errors are independent, over the requests between. Where there are too few samples for a slope, it
is missing.

**Client overhead** is what it reports of a response time less what the server's spans say of the
same: p50 less p50, p99 less p99. Connections, requests and answers also cross the kernel in it,
some 10 microseconds. It is the generator's own queueing as long as the server's core is not busy; a
busy server lets requests wait in front of it where its spans do not look.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from workerlab.analysis.core_wait import Stretch, wait_in
from workerlab.analysis.diagnosis.cpu import Disturbance, worst
from workerlab.analysis.facts import TrialData, unusable
from workerlab.analysis.samples import NS, per_second
from workerlab.analysis.trials import Replicates
from workerlab.model import (
    Cell,
    CoreWait,
    Measurement,
    Observations,
    ProcessSample,
    Record,
    Summary,
)
from workerlab.numbers.formats import count_text

EDGE = 0.1  # of the load at either end, where it begins and ends
TICK_S = 0.01  # the kernel's, in which /proc tells CPU time
RESOLUTION = 0.01  # of a response time: less is within the buckets of the histograms
DELAY_BOUND = 0.9  # of what the server's delay allows: a faster generator would send no more
SERVER_BUSY = 0.9  # of a core: a server that takes as much is what limits the throughput
MAX_COUNTED_RATIO = 1.01  # answers a generator may count for each that the server sent


class Usage(Struct, frozen=True):
    """One generator at one load. Rates per second, times in seconds; None: not known.

    `low`: at the low rate. `cores`: its CPU seconds per second, steady; `cpu_s`: from its start to
    its end. `memory_bytes`: the most; pages that processes share count in each of them.
    `core_wait`: what it cost to wait for a core, and who had it. `stood_still`: whether the machine
    did, in a part of the load. `delay_rps`: what its connections get from a server that answers
    late, if the generator takes no time.
    """

    measured: Measurement
    tool: str
    processes: int
    connections: int
    low: bool
    rps: float
    cpu_s: float | None
    cores: float | None
    cpu_per_request_s: float | None
    cpu_step_s: float | None
    memory_bytes: int | None
    host_busy: float | None
    host_memory_bytes: int | None
    server_cores: float | None
    core_wait: CoreWait | None
    server_side: Summary
    widest_gap_s: float | None
    doubt: str | None  # why its count is unreliable: generator and server disagree
    stood_still: bool = False
    delay_rps: float | None = None

    @property
    def name(self) -> str:
        times = f" \N{MULTIPLICATION SIGN}{self.processes}" if self.processes > 1 else ""
        return f"{self.tool}{times}"


class GeneratorLoad(Replicates[Usage], frozen=True):
    """The trials of one generator at one load, at least one. Means, where a name says no other: of
    requests/s the geometric one, of memory the largest."""

    @property
    def first(self) -> Usage:
        return self.valid[0]

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def tool(self) -> str:
        return self.first.tool

    @property
    def connections(self) -> int:
        return self.first.connections

    @property
    def low(self) -> bool:
        return self.first.low

    @property
    def sending_processes(self) -> int:
        """One per connection where the tool starts one for each."""
        return self.connections if self.tool == "processes" else self.first.processes

    @property
    def rates(self) -> list[float]:
        return [rps for rps in self.values("rps") if rps > 0]

    @property
    def costs_s(self) -> list[float]:
        """CPU per request of each trial that has it."""
        return [cost_s for cost_s in self.values("cpu_per_request_s") if cost_s > 0]

    @property
    def rps(self) -> float:
        return self.geometric_mean("rps") or 0.0

    @property
    def cores(self) -> float | None:
        return self.mean("cores")

    @property
    def cpu_per_request_s(self) -> float | None:
        return self.mean("cpu_per_request_s")

    @property
    def cpu_step_s(self) -> float:
        return self.mean("cpu_step_s") or 0.0

    @property
    def server_busy(self) -> float | None:
        """The share of its core where the server is the limit; None where it is not."""
        cores = self.mean("server_cores")
        return cores if cores is not None and cores >= SERVER_BUSY else None

    @property
    def delay_bound_rps(self) -> float | None:
        """What the server's delay allows where that is the limit; None where it is not."""
        delay_rps = self.first.delay_rps
        return delay_rps if delay_rps is not None and self.rps >= DELAY_BOUND * delay_rps else None

    @property
    def doubt(self) -> str | None:
        return next((usage.doubt for usage in self.valid if usage.doubt), None)

    @property
    def stood_still(self) -> bool:
        return any(usage.stood_still for usage in self.valid)

    @property
    def failed(self) -> int:
        return sum(usage.measured.failed for usage in self.valid)

    @property
    def errors(self) -> dict[str, int] | None:
        causes = (Counter(usage.measured.errors) for usage in self.valid)
        return dict(sum(causes, Counter[str]())) or None

    def reported_s(self, statistic: str) -> float | None:
        """Of the response times that it reports; `statistic` as in Summary."""
        return self.mean(f"measured.response.{statistic}")

    def server_side_s(self, statistic: str) -> float | None:
        return self.mean(f"server_side.{statistic}")

    def overhead_s(self, statistic: str) -> float | None:
        """Reported less server-side; 0 where the buckets of their histograms cannot tell the two
        apart, None where either is missing."""
        reported_s, server_side_s = self.reported_s(statistic), self.server_side_s(statistic)
        if reported_s is None or server_side_s is None:
            return None
        overhead_s = reported_s - server_side_s
        return overhead_s if abs(overhead_s) >= RESOLUTION * reported_s else 0.0


def by_load(usages: Iterable[Usage]) -> list[GeneratorLoad]:
    trials: dict[tuple[str, int, bool], list[Usage]] = {}
    for usage in usages:
        trials.setdefault((usage.name, usage.connections, usage.low), []).append(usage)
    return [GeneratorLoad(tuple(group)) for group in trials.values()]


def at_low_rate(cell: Cell) -> bool:
    """By the name that its plan gave it."""
    return cell.name.startswith("low-")


def usage_of(data: TrialData) -> Usage | None:
    """None where nothing was measured."""
    measured, record, load = data.measurement, data.record, data.cell.load
    if unusable(data) is not None or measured is None or record is None or load is None:
        return None
    if measured.duration_s <= 0:
        return None
    steady = _steady(data, measured, record)
    seen, answered_rps = data.observations, measured.requests / measured.duration_s
    cores, server, host = (
        per_second((one.at_ns, getattr(one, name)) for one in steady)
        for name in ("tool_cpu_s", "server_cpu_s", "host_busy_s")
    )
    doubt = None if data.null else "the server's own count is missing"
    if data.null and measured.requests > MAX_COUNTED_RATIO * data.null.answers + load.concurrency:
        counts = count_text(measured.requests), count_text(data.null.answers)
        doubt = "it counts {} answers, the server sent {}; one of them is wrong".format(*counts)
    tool, null = data.cell.tool, data.cell.server.null
    processes = load.concurrency if tool == "processes" else load.processes
    everything = () if "processes" in seen.missing else seen.processes
    answered = answered_rps * (steady[-1].at_ns - steady[0].at_ns) / NS if steady else 0.0
    memory = {
        name: max(filter(None, (getattr(one, name) for one in everything)), default=None)
        for name in ("tool_rss_bytes", "host_memory_bytes")
    }
    gaps = ((later.at_ns - one.at_ns) / NS for one, later in pairwise(everything))
    return Usage(
        measured=measured,
        tool=tool,
        processes=load.processes,
        connections=load.concurrency,
        low=at_low_rate(data.cell),
        rps=measured.rps if measured.rps is not None else answered_rps,
        cpu_s=record.tool_cpu_s if record.tool_cpu_s is not None else measured.cpu_s,
        cores=cores,
        cpu_per_request_s=cores / answered_rps if cores is not None and answered_rps else None,
        cpu_step_s=2 * TICK_S * math.sqrt(processes) / answered if answered else None,
        memory_bytes=memory["tool_rss_bytes"],
        host_busy=min(1.0, host / seen.cores) if host is not None and seen.cores else None,
        host_memory_bytes=memory["host_memory_bytes"],
        server_cores=server,
        core_wait=_core_wait(data, steady, answered_rps),
        server_side=data.null.service if data.null else Summary(),
        widest_gap_s=max(gaps, default=None),
        doubt=doubt,
        stood_still=_stood_still(seen, record),
        delay_rps=2 * load.concurrency / sum(null.delay_s) if null and any(null.delay_s) else None,
    )


def _stood_still(seen: Observations, record: Record) -> bool:
    begin_ns, end_ns = record.load_start_ns, record.load_end_ns
    if begin_ns is None or end_ns is None:
        return bool(seen.pauses)
    return any(one.from_ns < end_ns and one.to_ns > begin_ns for one in seen.pauses)


def _steady(data: TrialData, measured: Measurement, record: Record) -> tuple[ProcessSample, ...]:
    """Of the middle of the load. A tool that does not say when it began ended with its load."""
    length_ns, begin_ns = measured.duration_s * NS, measured.origin_ns
    if begin_ns is None and record.load_end_ns is not None:
        begin_ns = round(record.load_end_ns - length_ns)
    if begin_ns is None or "processes" in data.observations.missing:
        return ()
    opens, closes = begin_ns + EDGE * length_ns, begin_ns + (1 - EDGE) * length_ns
    return tuple(one for one in data.observations.processes if opens <= one.at_ns <= closes)


def _core_wait(data: TrialData, steady: Sequence[ProcessSample], rps: float) -> CoreWait | None:
    if rps <= 0:
        return None
    response_s = data.cell.concurrency / rps
    cores = data.observations.cores
    return wait_in(Stretch(steady, rps, response_s, response_s, units=data.units, cores=cores))


def disturbed(usages: Iterable[Usage | GeneratorLoad]) -> Disturbance | None:
    """What others did to one of them, the worst."""
    return worst(usage.core_wait for usage in usages)
