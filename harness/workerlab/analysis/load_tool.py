"""Whether the load tool, not the server, was the limit.

In a closed loop, requests queue in front of the bottleneck. If a load tool cannot keep up, they
queue in the tool, and its figures are a lower bound for the server, however steady they are. Any of
six rules is enough; each reports its numbers:

    CPU           the tool used at least 80 % of a core per thread or process
    plateau       more connections raised throughput no further, while slots, workers and host were
                  less than 90 % busy and less than half of the requests in flight in the server
    ceiling       against a server that does nothing, the tool reaches less than three times as much
    second tool   another tool got over 5 % more from the same server with as many connections, by
                  the interval over trials of both; one trial of each is not enough
    connections   fewer kept-alive connections were established than requested
    own limits    requests that found no local port or no file descriptor: not the server's fault

A cell that reaches the bound of its slots or connections (X >= 0.95 * min(N, C)/R0) can only be
limited by the tool's own limits: no tool can get more. This requires that R0 is the server's time;
a lone response of less than 10 ms is partly the client's.

Likewise, only the tool's own limits count if other programs kept tool or server waiting for a core
(`core_wait`): a tool that gets half a core looks slow, and so does a server that is not kept busy.
If the tool reached none of these, it is unknown whether it was the limit.

A second tool shows nothing if most requests in flight are in the server: the two runs then differ
because of how the kernel distributes connections. If none of the first five rules can be evaluated,
it is unknown whether the tool was the limit.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import geometric_mean, median
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec
from workerlab.analysis.breakdown import mean_in_server
from workerlab.analysis.core_wait import MIN_SAMPLED_S, is_disturbed
from workerlab.analysis.facts import Facts
from workerlab.analysis.handshakes import ESTABLISHED, handshakes
from workerlab.analysis.samples import per_second
from workerlab.analysis.series import (
    FLAT_RATIO,
    MIN_STEP_RATIO,
    REACHED_SHARE,
    Reasons,
    Series,
)
from workerlab.analysis.trials import grouped
from workerlab.finding import Finding
from workerlab.model.evidence import Measurement
from workerlab.numbers.intervals import ratio

BUSY_UNIT_SHARE = 0.8  # of a core, per thread or process of the tool
BUSY_RESOURCE_SHARE = 0.9  # a server resource used this much or more counts as busy
INSIDE_SHARE = 0.5  # of the requests in flight; with as many inside, the server holds them
SAFE_CEILING_RATIO = 3.0  # ceiling / throughput; at or above it, the tool is not the limit
MIN_CLEAR_LONE_S = 0.01  # of a lone response; the client's part of a shorter one matters
MIN_LOAD_S = 2.0  # in a shorter load, the tool's start-up would distort its CPU use
MIN_SAMPLES = 3  # of connections

Certainty = Literal["is", "may be"]  # the verb before "the limit"
RuleResult = Finding | Literal[False] | None  # the tool's limit; False: none; None: unknown


class Ceiling(Struct, frozen=True):
    """The highest rate that a tool reached on this machine against a server that does nothing, in
    requests/s. `at_least`: that server's core was the limit, so the tool may reach more."""

    tool: str
    keepalive: bool
    processes: int
    connections: int
    rps: float
    at_least: bool = False


def ceilings(environment: Mapping[str, object]) -> tuple[Ceiling, ...]:
    """The ceilings in a run's environment; unreadable ones are left out."""
    stored, parsed = environment.get("ceilings"), []
    for entry in stored if isinstance(stored, list | tuple) else ():
        with contextlib.suppress(ValueError):
            parsed.append(codec.convert(entry, Ceiling))
    return tuple(entry for entry in parsed if entry.rps > 0)


class ToolComparison(Struct, frozen=True):
    """Requests/s that a trial is compared with. `levels`: medians of its series by connections;
    `own_rps`: trials of its series with as many connections; `other_tools`: the same for other
    tools on the same server, by (tool, processes). `lone_s`: R0 of its series."""

    lone_s: float
    levels: Mapping[int, float] = {}
    own_rps: Sequence[float] = ()
    other_tools: Mapping[tuple[str, int], Sequence[float]] = {}
    ceilings: Sequence[Ceiling] = ()


def with_tool_limits(
    all_series: Sequence[Series], environment: Mapping[str, object]
) -> tuple[Series, ...]:
    """The series with `tool_limits` set. `environment`: the run's, with its ceilings."""
    stored = ceilings(environment)
    by_server = grouped(all_series, lambda series: (series.key.server, series.key.keepalive))

    def reasons(series: Series, facts: Facts) -> Reasons:
        level = facts.connections
        other_tools = {
            (other.key.tool, other.key.processes): rates
            for other in by_server[series.key.server, series.key.keepalive]
            if other is not series and (rates := other.rates_at(level))
        }
        own_rps, lone_s = series.rates_at(level), series.r0.seconds
        comparison = ToolComparison(lone_s, series.levels, own_rps, other_tools, stored)
        return tool_limit_reasons(facts, comparison)

    return tuple(
        replace(series, tool_limits={facts.key: reasons(series, facts) for facts in series.closed})
        for series in all_series
    )


def tool_limit_reasons(facts: Facts, comparison: ToolComparison) -> Reasons:
    """Why the load tool was the limit of this valid closed-loop trial; (): it was not; None:
    unknown."""
    results = [result for rule in RULES if (result := rule(facts, comparison)) is not None]
    if not results:
        return None
    reaches_bound = facts.rps >= REACHED_SHARE * facts.max_parallel / comparison.lone_s
    limits = own_limits(facts)
    if reaches_bound and comparison.lone_s >= MIN_CLEAR_LONE_S:
        return limits
    if is_disturbed(facts):
        return limits or None
    return (*(reason for reason in results if reason), *limits)


# --- the rules ----------------------------------------------------------------------------------


class ToolBusy(Finding):
    """it used {cores:.2f} cores, {share:percent} of the {of_cores:# core} it can use"""

    cores: float
    share: float
    of_cores: int


def check_cpu(facts: Facts, _comparison: ToolComparison) -> RuleResult:
    samples = facts.steady_part.select(facts.observations.processes)
    used, total_s = per_second(samples, "tool_cpu_s", MIN_SAMPLED_S), facts.record.tool_cpu_s
    if used is None and total_s is not None and facts.load_s >= MIN_LOAD_S:
        used = total_s / facts.load_s
    if used is None or facts.data.remote_load:
        return None
    usable = min(facts.data.tool_units, facts.observations.cores or facts.data.tool_units)
    if used < BUSY_UNIT_SHARE * usable:
        return False
    return ToolBusy(used, used / usable, usable)


class ServerIdleAtPlateau(Finding):
    """from {below} to {connections} connections, requests/s changed by {gain:change}, although no
    part of the server is busy ([[slots {slots:percent}, ]]workers' CPU {workers_cpu:percent}, host
    {host:percent}) and only {inside:number} of {connections} requests were inside it on average"""

    below: int
    connections: int
    gain: float
    slots: float | None
    workers_cpu: float
    host: float
    inside: float


def check_plateau(facts: Facts, comparison: ToolComparison) -> RuleResult:
    n = facts.connections
    lower = [level for level in comparison.levels if MIN_STEP_RATIO * level <= n]
    below = max(lower, default=None)
    inside, resources = mean_in_server(facts), _resources(facts, comparison.lone_s)
    if below is None or inside is None or resources is None:
        return None
    growth = facts.rps / comparison.levels[below]
    waits = facts.rps * comparison.lone_s / n < REACHED_SHARE
    busiest_share = max(share for share in resources if share is not None)
    if (
        growth > FLAT_RATIO
        or not waits
        or inside >= INSIDE_SHARE * n
        or busiest_share >= BUSY_RESOURCE_SHARE
    ):
        return False
    slots, workers_cpu, host = resources
    return ServerIdleAtPlateau(
        below=below,
        connections=n,
        gain=growth - 1,
        slots=slots,
        workers_cpu=workers_cpu,
        host=host,
        inside=inside,
    )


def _resources(facts: Facts, lone_s: float) -> tuple[float | None, float, float] | None:
    """The utilisation of slots, workers' CPU and host, 0 to 1; None if CPU use is unknown."""
    cores, usage = facts.observations.cores, facts.usage
    if usage.server_cores is None or usage.host_busy is None or not cores:
        return None
    usable_cores = min(facts.workers, cores)
    slots = None if facts.slots is None else min(1.0, facts.rps * lone_s / facts.slots)
    return slots, usage.server_cores / usable_cores, usage.host_busy


class NearCeiling(Finding):
    """against a server that does nothing it reaches {ceiling_rps:number} requests/s
    ({connections:# connection}), less than {times:g} times the {rps:number} measured here"""

    ceiling_rps: float
    connections: int
    times: float
    rps: float


def check_ceiling(facts: Facts, comparison: ToolComparison) -> RuleResult:
    tool_key = attrgetter("tool", "keepalive", "processes")
    matches = [c for c in comparison.ceilings if tool_key(c) == tool_key(facts.cell)]
    matches.sort(key=attrgetter("connections"))
    if not matches or facts.data.remote_load:
        return None
    nearest = next((c for c in matches if c.connections >= facts.connections), matches[-1])
    if nearest.rps >= SAFE_CEILING_RATIO * facts.rps:
        return False
    if nearest.at_least or nearest.rps < facts.rps:  # a ceiling below the throughput was disturbed
        return None
    return NearCeiling(
        ceiling_rps=nearest.rps,
        connections=nearest.connections,
        times=SAFE_CEILING_RATIO,
        rps=facts.rps,
    )


def tool_certainty(limits: Iterable[Reasons]) -> Certainty:
    """Whether the load tool certainly was the limit of each of these trials. A ceiling near the
    throughput is not conclusive, because it was measured in another run."""
    certain = all(
        any(not isinstance(reason, NearCeiling) for reason in reasons)
        for reasons in limits
        if reasons
    )
    return "is" if certain else "may be"


class OtherToolFaster(Finding):
    """{tool}[[ with {processes} processes]] got {rps:number} requests/s from the same server with
    as many connections, {more:percent} more (at least {low:percent} by {trial_count} trials of
    each)"""

    tool: str
    processes: int | None  # None: one
    rps: float
    more: float
    low: float  # of the 95 % interval
    trial_count: int


def check_second_tool(facts: Facts, comparison: ToolComparison) -> RuleResult:
    own_rps, other_tools = comparison.own_rps, comparison.other_tools
    if not other_tools or not own_rps:
        return None
    ratios = {other: ratio(rates, own_rps) for other, rates in other_tools.items()}
    (tool, processes), gain = max(ratios.items(), key=lambda pair: pair[1].low or 0.0)
    if gain.low is None:
        return None  # one trial of each is not enough
    if gain.low <= FLAT_RATIO:
        return False
    inside = mean_in_server(facts)
    if inside is None:
        inside = facts.connections if facts.worker_class.accepts_first else 0.0
    if inside >= INSIDE_SHARE * facts.connections:
        return False
    return OtherToolFaster(
        tool=tool,
        processes=processes if processes > 1 else None,
        rps=geometric_mean(other_tools[tool, processes]),
        more=gain.value - 1,
        low=gain.low - 1,
        trial_count=len(own_rps),
    )


class TooFewEstablished(Finding):
    """only {established} of {connections:# connection} were established"""

    established: int
    connections: int


def check_connections(facts: Facts, _comparison: ToolComparison) -> RuleResult:
    if not facts.cell.keepalive or handshakes(facts).dropped:
        return None
    accepts, requests = facts.accepts
    counts = [
        max(sample.client.get(ESTABLISHED, 0), sample.server.get(ESTABLISHED, 0))
        for sample in facts.steady_part.select(facts.observations.connections)
    ]
    if len(counts) < MIN_SAMPLES or not 0 < 2 * accepts <= requests:  # not kept alive
        return None
    established = round(median(counts[len(counts) // 2 :]))  # a tool may open them slowly
    if established >= facts.connections:
        return False
    return TooFewEstablished(established, facts.connections)


RULES: tuple[Callable[[Facts, ToolComparison], RuleResult], ...] = (
    check_cpu,
    check_plateau,
    check_ceiling,
    check_second_tool,
    check_connections,
)


class ToolOutOf(Finding):
    """{requests:# request} {lack}"""

    requests: int
    lack: str


LACKS = {  # by cause of failure
    "no_address": "found no free local port (errno 99): reuse connections, or widen"
    " ip_local_port_range",
    "no_files": "had no free file descriptor (errno 24): raise ulimit -n",
}


def own_limits(facts: Facts) -> tuple[ToolOutOf, ...]:
    errors = facts.outcome.errors
    return tuple(ToolOutOf(n, lack) for cause, lack in LACKS.items() if (n := errors.get(cause)))


# --- requests in flight -------------------------------------------------------------------------


def mean_in_flight(measurement: Measurement) -> float | None:
    """Mean number of requests in flight for the client: the tool's own figure, else by Little's law
    from its other figures. None if its mean is synthetic."""
    if measurement.achieved_concurrency is not None:
        return measurement.achieved_concurrency
    mean_s = measurement.response.mean
    if mean_s is None or not measurement.exact_mean or measurement.duration_s <= 0:
        return None
    return measurement.requests * mean_s / measurement.duration_s
