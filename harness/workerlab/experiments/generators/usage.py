"""What one load generator did at one load: throughput, what it cost, what it reports.

**CPU per request** is a slope, not a sum: the CPU seconds between two samples in the middle of the
load, over the answers of that time (throughput x time). So neither a generator's start, which takes
Locust a second or two, nor its end is put on its requests. The kernel tells CPU in ticks of 10 ms,
so that a slope has a least step, `cpu_step_s`: two ticks, of each process at its worst, over the
requests between. Where there are too few samples for a slope, it is missing.

**Client overhead** is what it reports of a response time less what the server's spans say of the
same: p50 less p50, p99 less p99. Connections, requests and answers also cross the kernel in it,
some 10 microseconds. It is the generator's own queueing as long as the server's core is not busy; a
busy server lets requests wait in front of it where its spans do not look.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, geometric_mean

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.core_wait import Stretch, wait_in, worst
from workerlab.analysis.facts import TrialData, unusable
from workerlab.analysis.samples import NS, per_second
from workerlab.model import (
    Cell,
    CoreWait,
    Finding,
    Measurement,
    Observations,
    ProcessSample,
    Record,
    Summary,
)

EDGE = 0.1  # of the load at either end, where it begins and ends
TICK_S = 0.01  # the kernel's, in which /proc tells CPU time
RESOLUTION = 0.01  # of a response time: less is within the buckets of the histograms
DELAY_BOUND = 0.9  # of what the server's delay allows: a faster generator would send no more
SERVER_BUSY = 0.9  # of a core: a server that takes as much is what limits the throughput
MOST_COUNTED = 1.01  # answers a generator may count for each that the server sent


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
    doubt: Finding | None  # why its count cannot be trusted: generator and server disagree
    rates: tuple[float, ...] = ()  # `rps` of each trial
    costs_s: tuple[float, ...] = ()  # `cpu_per_request_s` of each, where it is known
    stood_still: bool = False
    delay_rps: float | None = None

    @property
    def sending_processes(self) -> int:
        """A process per connection where the tool starts one for each, whoever asks."""
        return self.connections if self.tool == "processes" else self.processes

    @property
    def delay_bound(self) -> bool:
        """Whether the server's delay is what limits it."""
        return self.delay_rps is not None and self.rps >= DELAY_BOUND * self.delay_rps

    @property
    def name(self) -> str:
        many = f" \N{MULTIPLICATION SIGN}{self.processes}" if self.processes > 1 else ""
        return f"{self.tool}{many}"

    @property
    def server_busy(self) -> bool:
        """Whether the server is what limits it."""
        return self.server_cores is not None and self.server_cores >= SERVER_BUSY

    def overhead_s(self, statistic: str) -> float | None:
        """What it reports less what the server says; `statistic` as in Summary. None where the
        buckets of their histograms cannot tell the two apart."""
        reported: float | None = getattr(self.measured.response, statistic)
        server_side: float | None = getattr(self.server_side, statistic)
        if reported is None or server_side is None:
            return None
        overhead_s = reported - server_side
        return overhead_s if abs(overhead_s) >= RESOLUTION * reported else None


def pooled(usages: Sequence[Usage]) -> list[Usage]:
    """The trials of each generator at each load as one, in their order: means, of requests/s the
    geometric one, and the most memory."""
    trials: dict[tuple[str, int, bool], list[Usage]] = {}
    for usage in usages:
        trials.setdefault((usage.name, usage.connections, usage.low), []).append(usage)
    return [_pooled(mine) for mine in trials.values()]


def _pooled(trials: Sequence[Usage]) -> Usage:
    first, rates = trials[0], tuple(one.rps for one in trials if one.rps > 0)
    costs = tuple(s for one in trials if (s := one.cpu_per_request_s))
    if len(trials) == 1:
        return replace(first, rates=rates, costs_s=costs)
    causes = sum((Counter(one.measured.errors) for one in trials), Counter[str]())
    measured = replace(
        first.measured,
        failed=sum(one.measured.failed for one in trials),
        errors=dict(causes),
        response=_summary([one.measured.response for one in trials]),
        achieved_concurrency=_mean(one.measured.achieved_concurrency for one in trials),
    )
    means = ("cpu_s", "cores", "cpu_per_request_s", "cpu_step_s", "host_busy", "server_cores")
    most = ("memory_bytes", "host_memory_bytes", "widest_gap_s")
    waits = [one.core_wait for one in trials if one.core_wait is not None]
    return replace(
        first,
        measured=measured,
        rps=geometric_mean(rates) if rates else 0.0,
        **{name: _mean(getattr(one, name) for one in trials) for name in means},
        **{name: max(filter(None, (getattr(one, name) for one in trials)), default=None)
           for name in most},
        core_wait=max(waits, key=lambda wait: wait.share, default=None),
        server_side=_summary([one.server_side for one in trials]),
        doubt=next((one.doubt for one in trials if one.doubt), None),
        rates=rates,
        costs_s=costs,
        stood_still=any(one.stood_still for one in trials),
    )  # fmt: skip


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _summary(every: Sequence[Summary]) -> Summary:
    names = Summary.__struct_fields__
    return Summary(**{name: _mean(getattr(one, name) for one in every) for name in names})


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
    doubt = None if data.null else Finding("generators.doubt.uncounted")
    if data.null and measured.requests > MOST_COUNTED * data.null.answers + load.concurrency:
        counts = {"counted": measured.requests, "sent": data.null.answers}
        doubt = Finding("generators.doubt.more", counts)
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


def disturbed(usages: Sequence[Usage]) -> Finding | None:
    """What others did to one of them, the worst."""
    return worst(usage.core_wait for usage in usages)
