"""One load generator at one load: its throughput, its cost, and the response times it reports.

**CPU per request** is a slope: the CPU seconds between two samples in the middle of the load,
divided by the responses in that time (throughput x time). This excludes the generator's start,
which takes Locust a second or two, and its end. The kernel counts CPU time in ticks of 10 ms, which
limits the resolution of the slope. `cpu_step_s` is two ticks times the square root of the number of
processes, whose errors are independent, divided by the requests in between. With too few samples
there is no slope.

**Client overhead** is the reported response time minus the same statistic of the server's spans:
p50 minus p50, p99 minus p99. It includes the kernel's work for connections, requests and responses,
about 10 microseconds. It is the generator's own queueing only if the server's core is not busy:
requests to a busy server also wait before its spans begin.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import asdict, replace

from workerlab.analysis.core_wait import LoadPart, core_wait_in
from workerlab.analysis.diagnosis.cpu import Disturbance, worst_disturbance
from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.samples import NS
from workerlab.analysis.samples import usage as sampled_usage
from workerlab.analysis.stall import machine_paused
from workerlab.analysis.trials import Replicates, grouped
from workerlab.model.evidence import Measurement, ProcessSample, Summary
from workerlab.model.plan import Cell
from workerlab.model.result import CoreWait
from workerlab.numbers.units import fill

EDGE_SHARE = 0.1  # of the load, excluded at its start and again at its end
TICK_S = 0.01  # resolution of CPU time in /proc
TIME_RESOLUTION_SHARE = 0.01  # of a response time: the width of the histograms' buckets
DELAY_BOUND_SHARE = 0.9  # of the rate that the server's delay allows; above, the delay is the limit
BUSY_SERVER_CORES = 0.9  # at or above it, the server is the limit
MAX_FAILED_SHARE = 0.01  # of the responses; above, failed requests distort rate and cost
MAX_COUNTED_RATIO = 1.01  # responses counted by the generator per response sent by the server


class GeneratorUsage(Struct, frozen=True):
    """One generator at one load. Rates per second, times in seconds; None: unknown.

    `cores`: CPU seconds per second, in the middle of the load; `cpu_s`: total CPU, including start
    and end. `memory_bytes`: the peak; a page shared by processes counts in each. `core_wait`: the
    cost of waiting for a core. `was_paused`: whether the machine was paused during the load.
    """

    cell: Cell
    measured: Measurement
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
    doubt: str | None  # why its count is unreliable
    was_paused: bool = False

    @property
    def delay_rps(self) -> float | None:
        """The rate that the server's delay allows the connections; None without a delay."""
        delay_s = sum(self.cell.server.null.delay_s) / 2 if self.cell.server.null else 0.0
        return self.cell.concurrency / delay_s if delay_s else None


def generator_name(cell: Cell) -> str:
    times = f" \N{MULTIPLICATION SIGN}{cell.processes}" if cell.processes > 1 else ""
    return f"{cell.tool}{times}"


def is_low_rate(cell: Cell) -> bool:
    """Whether the load of the cell is at the low rate, by its name."""
    return cell.name.startswith("low-")


def sending_processes(cell: Cell) -> int:
    """The tool `processes` starts one per connection."""
    return cell.concurrency if cell.tool == "processes" else cell.processes


class GeneratorLoad(Replicates[GeneratorUsage], frozen=True, kw_only=True):
    """The trials of one generator at one load, at least one. Values are means over the trials:
    geometric for requests/s, but the maximum for memory."""

    cell: Cell

    @property
    def name(self) -> str:
        return generator_name(self.cell)

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
        """Share of its core that the server used, if that was the limit; else None."""
        cores = self.mean("server_cores")
        return cores if cores is not None and cores >= BUSY_SERVER_CORES else None

    @property
    def delay_bound_rps(self) -> float | None:
        """The rate that the server's delay allows, if that was the limit; else None."""
        delay_rps = self.valid[0].delay_rps
        is_bound = delay_rps is not None and self.rps >= DELAY_BOUND_SHARE * delay_rps
        return delay_rps if is_bound else None

    @property
    def doubt(self) -> str | None:
        return next((usage.doubt for usage in self.valid if usage.doubt), None)

    @property
    def was_paused(self) -> bool:
        return any(usage.was_paused for usage in self.valid)

    @property
    def errors(self) -> dict[str, int] | None:
        causes = (Counter(usage.measured.errors) for usage in self.valid)
        return dict(sum(causes, Counter[str]())) or None

    def overhead_s(self, statistic: str) -> float | None:
        """The mean of a response time as reported minus that on the server's side; 0 if the
        difference is within the resolution of their histograms. None if either is missing, or if
        the generator reports less: its clock is too coarse for this server."""
        reported_s = self.mean(f"measured.response.{statistic}")
        server_side_s = self.mean(f"server_side.{statistic}")
        if reported_s is None or server_side_s is None:
            return None
        overhead_s = reported_s - server_side_s
        if abs(overhead_s) < TIME_RESOLUTION_SHARE * reported_s:
            return 0.0
        return overhead_s if overhead_s > 0 else None


def by_load(usages: Iterable[GeneratorUsage]) -> list[GeneratorLoad]:
    """The trials of each generator at each load."""
    trials = grouped(usages, lambda usage: usage.cell)
    return [GeneratorLoad(valid=tuple(group), cell=cell) for cell, group in trials.items()]


def usage_of(data: TrialData) -> GeneratorUsage | None:
    """The usage in a trial; None if it has no usable measurement."""
    facts, cell = data.facts, data.cell
    if not isinstance(facts, Facts) or facts.measurement.duration_s <= 0:
        return None
    measured, samples, steady = facts.measurement, facts.observations.processes, _mid_load(facts)
    cpu_s, answered_rps = facts.record.tool_cpu_s, measured.requests / measured.duration_s
    # With load_s=0, the CPU of the generator comes from the samples
    mid_load = replace(facts.observations, processes=steady)
    usage = sampled_usage(mid_load, facts.record, load_s=0.0)
    cores, step_s = usage.generator_cores, 2 * TICK_S * math.sqrt(sending_processes(cell))
    responses = answered_rps * (steady[-1].at_ns - steady[0].at_ns) / NS if steady else 0.0
    gaps_s = ((later.at_ns - sample.at_ns) / NS for sample, later in pairwise(samples))
    return GeneratorUsage(
        cell=cell,
        measured=measured,
        rps=measured.rps if measured.rps is not None else answered_rps,
        cpu_s=measured.cpu_s if cpu_s is None else cpu_s,
        cores=cores,
        cpu_per_request_s=cores / answered_rps if cores is not None and answered_rps else None,
        cpu_step_s=step_s / responses if responses else None,
        memory_bytes=facts.usage.generator_rss_bytes,
        host_busy=usage.host_busy,
        host_memory_bytes=facts.usage.host_memory_bytes,
        server_cores=usage.server_cores,
        core_wait=_core_wait(facts, steady, answered_rps),
        server_side=data.null.service if data.null else Summary(),
        widest_gap_s=max(gaps_s, default=None),
        doubt=_doubt(data, measured),
        was_paused=machine_paused(facts.observations, facts.started_ns, facts.ended_ns),
    )


def _doubt(data: TrialData, measured: Measurement) -> str | None:
    """Why the generator's count is unreliable; None if the server's agrees and hardly any request
    failed."""
    if not data.null:
        return "the server's own count is missing"
    if measured.failed > MAX_FAILED_SHARE * measured.requests:
        return fill("{failed:# request} failed, with {requests:# response}", asdict(measured))
    if measured.requests <= MAX_COUNTED_RATIO * data.null.answers + data.cell.concurrency:
        return None
    counts = {"counted": measured.requests, "sent": data.null.answers}
    return fill(
        "it counted {counted:count} responses, but the server sent {sent:count}; one is wrong",
        counts,
    )


def _mid_load(facts: Facts) -> tuple[ProcessSample, ...]:
    """Samples in the middle of the load. If a tool does not report its start, it is computed from
    the end of the load."""
    length_ns, begin_ns = facts.measurement.duration_s * NS, facts.measurement.origin_ns
    if begin_ns is None:
        begin_ns = round(facts.ended_ns - length_ns)
    edge_ns = EDGE_SHARE * length_ns
    return tuple(
        sample
        for sample in facts.observations.processes
        if begin_ns + edge_ns <= sample.at_ns <= begin_ns + length_ns - edge_ns
    )


def _core_wait(facts: Facts, steady: Sequence[ProcessSample], rps: float) -> CoreWait | None:
    if rps <= 0:
        return None
    response_s, units = facts.cell.concurrency / rps, facts.data.tool_units
    cores = facts.observations.cores
    part = LoadPart(steady, rps, response_s, response_s, tool_units=units, cores=cores)
    return core_wait_in(part)


def disturbance_of(usages: Iterable[GeneratorUsage | GeneratorLoad]) -> Disturbance | None:
    """The worst disturbance among the usages; None if none was disturbed."""
    return worst_disturbance(usage.core_wait for usage in usages)
