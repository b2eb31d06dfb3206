"""The conclusions of `workerlab generators`.

    low rate     the least CPU per request among generators that reach the rate; a difference counts
                 if it exceeds the resolution of the kernel's clock and the variation of the trials
    high rate    the most requests/s; a lower bound if the server's core was busy, or if the
                 server's delay was the limit
    GIL          shown if more threads gain nothing although together they use only one core, and
                 processes use more; inconclusive if either waited for a core, or cores are too few
    machine      the highest throughput of any generator; a server is measured reliably up to a
                 third of it (above that, the generator may be the limit)
    overhead     generators whose reported response time is mostly their own queueing; loads that
                 waited for a core or met a busy server are excluded

An inconclusive answer names what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from workerlab.analysis.trials import grouped
from workerlab.experiments.generators.usage import GeneratorLoad, disturbance_of, is_low_rate
from workerlab.finding import Answer, Finding, Inconclusive
from workerlab.load.registry import tool_named
from workerlab.numbers.intervals import TRIALS, Ratio
from workerlab.numbers.units import counted

MIN_RATE_SHARE = 0.9  # of the highest throughput at the low rate; with less, the rate was missed
HEADROOM_RATIO = 3.0  # of ceiling to throughput; at or above it, the generator is not the limit
DOMINANT_SHARE = 0.5  # of a reported response time: a larger client overhead dominates
MIN_GROWTH_RATIO = 1.2  # a smaller gain from more threads does not count as growth
MAX_GIL_CORES = 1.25  # used by threads that share a GIL, kernel work included
MIN_PARALLEL_CORES = 1.3  # used by processes that run in parallel

COST = "cpu_per_request_s"
Loads = Sequence[GeneratorLoad]

TOO_FEW_TRIALS = f"too few valid trials to compare; repeat with --trials {TRIALS}"
NOT_MEASURED = "no generator was measured at full speed"
NO_CPU_AT_LOW_RATE = "no CPU time of a generator was recorded at the low rate"
TOO_FEW_LEVELS = (
    "this needs threads at two levels of connections, and processes, where neither the server's"
    " delay nor its core is the limit"
)
SERVER_BUSY_OR_DISTURBED = (
    "in all loads with known response times, the server's core was busy, so requests waited for it,"
    " or other programs kept the generator waiting for a core"
)


def findings(full: Loads, low: Loads, cores: int | None) -> tuple[Answer, ...]:
    """`full`: loads at full speed; `low`: at the low rate; `cores`: of the machine."""
    full, low = ([load for load in loads if load.rps and not load.doubt] for loads in (full, low))
    quiet = [load for load in (*low, *full) if not (load.server_busy or disturbance_of([load]))]
    return (
        least_cpu(low),
        most_requests(full),
        thread_growth(
            [load for load in full if load.delay_bound_rps is None and not load.server_busy], cores
        ),
        machine_ceiling(full),
        client_overhead(quiet),
    )


# --- the low rate ---------------------------------------------------------------------------------


class CpuOfLoad(Finding):
    """{name}: {rps:number} requests/s, {cpu_s:duration} of CPU each (give or take
    {step_s:duration})"""

    name: str
    rps: float
    cpu_s: float  # per request
    step_s: float  # resolution, from the kernel's clock


class SlowAtLowRate(Finding):
    """{name} sent only {rps:number} requests/s"""

    name: str
    rps: float


class LeastCpu(Answer):
    """At {rps:number} requests/s, {names:list}:[[ {cpu_s:duration} of CPU per request]]
    [[ at most {tied_cpu_s:duration} of CPU per request, too close to call]].
    [[ Of the Python generators, {python.name} needs the least ({python.cpu_s:duration}), then
    {second_python.name} ({second_python.cpu_s:duration}).]]"""

    question = "Which generator needs the least CPU at a low rate?"

    rps: float
    names: tuple[str, ...]
    cpu_s: float | None  # if one generator needs the least
    tied_cpu_s: float | None  # the highest, if several generators are tied
    python: CpuOfLoad | None
    second_python: CpuOfLoad | None


def least_cpu(loads: Loads) -> LeastCpu | Inconclusive:
    highest_rps = max((load.rps for load in loads), default=0.0)
    at_rate = [load for load in loads if load.rps >= MIN_RATE_SHARE * highest_rps]
    loads_with_cpu = (load for load in at_rate if load.cpu_per_request_s is not None)
    ranked = sorted(loads_with_cpu, key=lambda load: load.cpu_per_request_s or 0.0)
    if not ranked:
        return LeastCpu.unanswered(NO_CPU_AT_LOW_RATE)
    slow = [load for load in loads if load not in at_rate and not load.was_paused]
    evidence = (
        *map(cpu_of, ranked),
        *(SlowAtLowRate(load.name, load.rps) for load in slow),
    )
    if min(load.count(COST) for load in ranked) < 2:
        return LeastCpu.unanswered(TOO_FEW_TRIALS, evidence)
    tied = [load for load in ranked if load is ranked[0] or not costs_more(load, ranked[0])]
    python = best_in_python(ranked)
    differ = bool(python) and costs_more(python[1], python[0])
    return LeastCpu(
        rps=highest_rps,
        names=tuple(load.name for load in tied),
        cpu_s=tied[0].cpu_per_request_s if len(tied) == 1 else None,
        tied_cpu_s=tied[-1].cpu_per_request_s if len(tied) > 1 else None,
        python=cpu_of(python[0]) if differ else None,
        second_python=cpu_of(python[1]) if differ else None,
        evidence=evidence,
    )


def cpu_of(load: GeneratorLoad) -> CpuOfLoad:
    return CpuOfLoad(load.name, load.rps, load.cpu_per_request_s or 0.0, load.cpu_step_s)


def costs_more(load: GeneratorLoad, least: GeneratorLoad) -> bool:
    """Whether a request costs more CPU than with `least`: significantly over the trials, and by
    more than the kernel's clock resolves."""
    difference_s = (load.cpu_per_request_s or 0.0) - (least.cpu_per_request_s or 0.0)
    if difference_s <= load.cpu_step_s + least.cpu_step_s:
        return False
    return bool(load.ratio(least, COST).differs)


def best_in_python(ranked: Loads) -> Loads:
    """The first two generators that are ordinary Python applications; empty if there are fewer."""
    python = [load for load in ranked if tool_named(load.cell.tool).IS_EXAMPLE][:2]
    return python if len(python) == 2 else []


# --- full speed -----------------------------------------------------------------------------------


class ReachedRate(Finding):
    """{name}: {rps:number} requests/s at {connections:# connection}[[ with {cores:.2f} cores]]
    [[, a lower bound: the server's core was {server_busy:percent} busy]]
    [[, a lower bound: the server's delay allows no more than {delay_rps:number}]]"""

    name: str
    rps: float
    connections: int
    cores: float | None
    server_busy: float | None  # if that is the limit
    delay_rps: float | None  # if that is the limit


def reached_rate(load: GeneratorLoad) -> ReachedRate:
    return ReachedRate(
        name=load.name,
        rps=load.rps,
        connections=load.cell.concurrency,
        cores=load.cores,
        server_busy=load.server_busy,
        delay_rps=load.delay_bound_rps,
    )


class MostRequests(Answer):
    """{best}.[[ Too close to call: {tied:list}.]]
    [[ Of the Python generators, {python}, {times:number} times {second_python}.]]"""

    question = "Which generator sends the most at a high rate?"

    best: ReachedRate
    tied: tuple[str, ...]
    python: ReachedRate | None
    second_python: str | None
    times: float | None


def most_requests(loads: Loads) -> MostRequests | Inconclusive:
    ranked = fastest_of_each(loads)
    if not ranked:
        return MostRequests.unanswered(NOT_MEASURED)
    evidence = tuple(map(reached_rate, ranked))
    if min(load.count("rps") for load in ranked) < 2:
        return MostRequests.unanswered(TOO_FEW_TRIALS, evidence)
    best, *others = ranked
    python = best_in_python(ranked)
    gain = python[0].ratio(python[1], "rps") if python else Ratio(1.0)
    return MostRequests(
        best=evidence[0],
        tied=tuple(load.name for load in others if not best.ratio(load, "rps").differs),
        python=reached_rate(python[0]) if gain.differs else None,
        second_python=python[1].name if gain.differs else None,
        times=gain.value if gain.differs else None,
        evidence=evidence,
    )


def fastest_of_each(loads: Loads) -> list[GeneratorLoad]:
    """Each generator at its highest rate, the fastest first."""
    return first_of_each(sorted(loads, key=lambda load: -load.rps))


Ranked = TypeVar("Ranked", GeneratorLoad, "OverheadOfLoad")


def first_of_each(ranked: Iterable[Ranked]) -> list[Ranked]:
    """The first entry of each generator."""
    return [group[0] for group in grouped(ranked, lambda load: load.name).values()]


# --- the GIL --------------------------------------------------------------------------------------


class ThreadGrowth(Answer):
    """{gil}: {threads:# thread} send {growth:times} as many requests as {fewer_threads:count}
    {growth:interval}, with at most {thread_cores:.2f} cores[[{remark}]]."""

    question = "Where does the GIL show?"

    gil: str
    growth: Ratio
    fewer_threads: int
    threads: int
    thread_cores: float
    process_cores: float
    remark: str


IN_THREADS, NOT_HERE, INCONCLUSIVE = "In the threads", "Not here", "Inconclusive"


def thread_growth(loads: Loads, cores: int | None) -> ThreadGrowth | Inconclusive:
    by_level = sorted(loads, key=lambda load: load.cell.concurrency)
    threads, processes = (
        [load for load in by_level if load.cell.tool == tool] for tool in ("threads", "processes")
    )
    if len(threads) < 2 or not processes:
        return ThreadGrowth.unanswered(TOO_FEW_LEVELS)
    evidence = tuple(map(reached_rate, (*threads, *processes)))
    baseline, best = threads[0], max(threads[1:], key=lambda load: load.rps)
    thread_cores, process_cores = max_cores(threads), max_cores(processes)
    if thread_cores is None or process_cores is None:
        return ThreadGrowth.unanswered("no CPU time was recorded", evidence)
    growth, disturbance = best.ratio(baseline, "rps"), disturbance_of((*threads, *processes))
    if growth.low is None or growth.high is None:
        return ThreadGrowth.unanswered(TOO_FEW_TRIALS, evidence)
    if disturbance is not None:
        return ThreadGrowth.unanswered(str(disturbance), evidence)
    if growth.low >= MIN_GROWTH_RATIO:
        gil, remark = NOT_HERE, ""
    elif growth.high >= MIN_GROWTH_RATIO:
        gil, remark = INCONCLUSIVE, "; more --trials would show whether that is growth"
    else:
        gil, remark = gil_without_growth(thread_cores, process_cores, cores)
    return ThreadGrowth(
        gil=gil,
        growth=growth,
        fewer_threads=baseline.cell.concurrency,
        threads=best.cell.concurrency,
        thread_cores=thread_cores,
        process_cores=process_cores,
        remark=remark,
        evidence=evidence,
    )


def gil_without_growth(
    thread_cores: float, process_cores: float, cores: int | None
) -> tuple[str, str]:
    """Where the GIL shows if more threads do not send more, and a remark."""
    if thread_cores > MAX_GIL_CORES:
        return NOT_HERE, "; threads that share a GIL do not use that many"
    if process_cores >= MIN_PARALLEL_CORES:
        return IN_THREADS, f"; processes used {process_cores:.2f}"
    remark = f", but processes used no more than {process_cores:.2f} either"
    if cores is not None:
        remark += f"; this machine has {counted(cores, 'core')}, and the server needs one"
    return INCONCLUSIVE, remark


def max_cores(loads: Loads) -> float | None:
    return max((load.cores for load in loads if load.cores is not None), default=None)


# --- the machine ----------------------------------------------------------------------------------


class GeneratorCeiling(Finding):
    """{name} at {connections:# connection}: up to {reliable_rps:number} requests/s reliably,
    {rps:number} at most[[; the server's core was {server_busy:percent} busy]]"""

    name: str
    connections: int
    rps: float
    reliable_rps: float
    server_busy: float | None


class MachineCeiling(Answer):
    """Above {ceiling.reliable_rps:number} requests/s, a third of the {ceiling.rps:number} that
    {ceiling.name}, the fastest generator here, reaches on this machine
    [[ (a lower bound: {lower_bound_because})]]. Beyond that, the generator may be the limit."""

    question = "When is a second machine needed?"

    ceiling: GeneratorCeiling
    lower_bound_because: str


SERVER_WAS_BUSY = "the server was busy"
DELAY_WAS_LIMIT = "with this delay, more connections would raise throughput"
WAITED_FOR_CORES = "the generator had to wait for cores used by other programs or machines"


def machine_ceiling(loads: Loads) -> MachineCeiling | Inconclusive:
    ranked = fastest_of_each(loads)
    if not ranked:
        return MachineCeiling.unanswered(NOT_MEASURED)
    reasons = {
        SERVER_WAS_BUSY: ranked[0].server_busy is not None,
        DELAY_WAS_LIMIT: ranked[0].delay_bound_rps is not None,
        WAITED_FOR_CORES: disturbance_of(ranked[:1]) is not None,
    }
    ceilings = [
        GeneratorCeiling(
            name=load.name,
            connections=load.cell.concurrency,
            rps=load.rps,
            reliable_rps=load.rps / HEADROOM_RATIO,
            server_busy=load.server_busy,
        )
        for load in ranked
    ]
    return MachineCeiling(
        ceiling=ceilings[0],
        lower_bound_because=next((reason for reason, applies in reasons.items() if applies), ""),
        evidence=tuple(ceilings),
    )


# --- client overhead ------------------------------------------------------------------------------


class OverheadOfLoad(Finding):
    """{name} at {connections:# connection}[[ ({rate})]]: {overhead_s:duration} of
    {reported_s:duration}; the server took {server_s:duration}"""

    name: str
    connections: int
    rate: str
    overhead_s: float  # all three: p50
    reported_s: float
    server_s: float


class ClientOverhead(Answer):
    """In {affected:count} of {loads:# load}, more than half of the reported median is client
    overhead. Most: {most}. Least: {least}."""

    question = "Which generators inflate latency with client-side queueing?"

    affected: int
    loads: int
    most: OverheadOfLoad
    least: OverheadOfLoad


def client_overhead(loads: Loads) -> ClientOverhead | Inconclusive:
    """`loads`: those whose server was not busy and whose generator did not wait for a core."""
    overheads = [overhead for load in loads if (overhead := overhead_of(load)) is not None]
    if not overheads:
        return ClientOverhead.unanswered(SERVER_BUSY_OR_DISTURBED)
    overheads.sort(key=lambda load: -load.overhead_s / load.reported_s)
    affected = [load for load in overheads if load.overhead_s > DOMINANT_SHARE * load.reported_s]
    return ClientOverhead(
        affected=len(affected),
        loads=len(overheads),
        most=overheads[0],
        least=overheads[-1],
        evidence=tuple(first_of_each(overheads)),
    )


def overhead_of(load: GeneratorLoad) -> OverheadOfLoad | None:
    overhead_s = load.overhead_s("p50")
    if overhead_s is None:
        return None
    return OverheadOfLoad(
        name=load.name,
        connections=load.cell.concurrency,
        rate="low rate" if is_low_rate(load.cell) else "",
        overhead_s=overhead_s,
        reported_s=load.mean("measured.response.p50") or 0.0,
        server_s=load.mean("server_side.p50") or 0.0,
    )
