"""The document of `workerlab generators`: each load generator at full speed and at a low rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from workerlab.analysis.facts import TrialData, why_unusable
from workerlab.analysis.trials import mean_of
from workerlab.experiments.generators.findings import Loads, findings
from workerlab.experiments.generators.usage import (
    GeneratorLoad,
    GeneratorUsage,
    by_load,
    disturbance_of,
    generator_name,
    is_low_rate,
    sending_processes,
    usage_of,
)
from workerlab.experiments.reading import notes_of, trial_data
from workerlab.finding import Finding, Note
from workerlab.load.registry import tool_named
from workerlab.model.result import Chart, Column, Document, Table
from workerlab.notes import NotMeasured
from workerlab.numbers.units import counted, fill, format_duration
from workerlab.report.values import cores_of, curves, mean_column, table
from workerlab.run_store import Run

MAX_GAP_S = 0.5  # between samples of CPU and memory; wider gaps are reported
SAMPLED = (
    "CPU and memory were sampled at least every {widest_s:.2f} s[[; the samples were more than"
    f" {MAX_GAP_S:g} s apart in {{wide}} of {{trials:# trial}}]]."
)

KEPT_ALIVE, NEW_CONNECTIONS = "kept-alive connections", "a new connection for each request"
REPORTED_BASIS = "response time as the generator reports it"
SERVER_BASIS = "from reading a request to sending its response"
OVERHEAD_BASIS = (
    "the difference: the generator's own queueing and the kernel's work; missing below 1 %, the"
    " resolution of these numbers"
)

GENERATOR = Column("generator", "text", value="name")
PROCESSES = Column(
    "processes",
    "count",
    heading="proc.",
    meaning="sending processes; they share the connections evenly",
    value=lambda load: sending_processes(load.cell),
)
CONNECTIONS = Column("connections", "count", heading="conn.", value="cell.concurrency")
MAX_RATE = Column(
    "delay_rps",
    heading="max req/s",
    meaning="connections / delay: the rate of a generator that takes no time itself",
    value=lambda load: load.valid[0].delay_rps,
)
COST = (
    Column("trials", "count", value=lambda load: load.count("rps") or None),
    Column("throughput_rps", heading="req/s", value="rps"),
    Column(
        "cpu_per_request_s",
        "seconds",
        heading="CPU per request",
        meaning="of the generator, in the middle of the load",
    ),
    Column("cores", meaning="used by the generator, in the middle of the load"),
    Column(
        "memory_bytes",
        "bytes",
        meaning="the highest sample; a page shared by processes counts in each",
        value=lambda load: load.largest("memory_bytes"),
    ),
    Column("failed", "count", value=lambda load: load.total("measured.failed")),
    Column("errors", "counts", heading="causes"),
    mean_column(
        "server_cores",
        meaning="cores used by the server, which has one; near 1, the server is the limit",
    ),
    mean_column("host_busy", "percent"),
    mean_column(
        "cpu_s",
        "seconds",
        heading="CPU total",
        meaning="of the generator, from its start to its end",
    ),
    Column("host_memory_bytes", "bytes", value=lambda load: load.largest("host_memory_bytes")),
)


def times_of(statistic: str) -> tuple[Column, ...]:
    """Columns of p50 or p99: reported, server-side, and client overhead."""
    return (
        Column(
            f"response_{statistic}_s",
            "seconds",
            heading=f"{statistic} reported",
            meaning=REPORTED_BASIS,
            value=mean_of(f"measured.response.{statistic}"),
        ),
        Column(
            f"service_{statistic}_s",
            "seconds",
            heading=f"{statistic} server-side",
            meaning=SERVER_BASIS,
            value=mean_of(f"server_side.{statistic}"),
        ),
        Column(
            f"own_{statistic}_s",
            "seconds",
            heading=f"{statistic} client overhead",
            meaning=OVERHEAD_BASIS,
            value=lambda load: load.overhead_s(statistic) or None,
        ),
    )


TIMES = (
    *times_of("p50"),
    *times_of("p99"),
    mean_column(
        "measured.achieved_concurrency",
        heading="in flight",
        meaning="requests in flight at once, as the generator counts them",
    ),
)


class UnreliableCount(Finding):
    """{name} at {connections:# connection}: {why}."""

    name: str
    connections: int
    why: str

    prominence = "notes"


class LoadsDisturbed(Finding):
    """{disturbed} of {trials_made:# trial} had to wait for cores used by other programs or
    machines. The worst: {worst}"""

    disturbed: int
    trials_made: int
    worst: Finding


class LoadsStoodStill(Finding):
    """This machine was paused, as when a hypervisor suspends its guests, in {stood_still} of
    {trials_made:# trial}; the figures include that time."""

    stood_still: int
    trials_made: int


def document(run: Run) -> Document:
    return study(run, trial_data(run))


def study(run: Run, trials: Sequence[TrialData]) -> Document:
    """The document of a run. `trials`: all of the plan. Details of older plans lack `delay_s`."""
    usages = {data.trial.key: usage_of(data) for data in trials}
    measured = [usage for usage in usages.values() if usage is not None]
    loads = by_load(measured)
    full = fastest_first(load for load in loads if not is_low_rate(load.cell))
    low = fastest_first(load for load in loads if is_low_rate(load.cell))
    missing = [data for data in trials if data.record and usages[data.trial.key] is None]
    return Document(
        run=run.name,
        kind="generators",
        title=title(run.plan.details),
        environment=run.environment,
        findings=findings(full, low, cores_of(run.environment)),
        tables=tuple(tables(full, low, delayed=any(run.plan.details.get("delay_s", ())))),
        charts=tuple(charts(full)),
        notes=(*notes_of(run), *map(not_measured, missing), *notes(measured)),
        valid=len(measured) == len(trials) > 0 and not any(usage.doubt for usage in measured),
    )


def title(details: Mapping[str, Any]) -> str:
    core, (min_s, max_s) = details["server_core"], details.get("delay_s", (0.0, 0.0))
    delay = format_duration(max_s)
    if min_s < max_s:
        delay = f"{format_duration(min_s)} to {delay}"
    values = {
        "delay": delay if max_s else None,
        "core": "shares the only core" if core is None else f"has core {core} to itself",
        "connections": KEPT_ALIVE if details["keepalive"] else NEW_CONNECTIONS,
    }
    return fill(
        "Load generators, each against the same server, which does nothing"
        "[[ and responds after {delay}]]; the server {core}; {connections}.",
        values,
    )


def fastest_first(loads: Iterable[GeneratorLoad]) -> list[GeneratorLoad]:
    """Sorted by generator, the fastest first, then by connections."""
    by_rate = sorted(loads, key=lambda load: load.rps)
    best_rps = {load.name: load.rps for load in by_rate}
    return sorted(
        by_rate, key=lambda load: (-best_rps[load.name], load.name, load.cell.concurrency)
    )


def tables(full: Loads, low: Sequence[GeneratorLoad], *, delayed: bool) -> Iterator[Table]:
    load = (GENERATOR, PROCESSES, CONNECTIONS)
    yield table("At full speed", (*load, *COST, *([MAX_RATE] if delayed else ())), full)
    yield table("Response times at full speed", (*load, *TIMES), full)
    rate = "At a low rate"
    if low:
        rate += f": {counted(low[0].cell.concurrency, 'connection')} to a server with a delay"
    yield table(rate, (*load[:2], *COST), low)
    yield table("Response times at the low rate", (*load[:2], *TIMES), low)


# Title, axis, note, value and scale of each chart
CHARTS: tuple[tuple[str, str, str, Callable[[GeneratorLoad], float | None], float], ...] = (
    (
        "Throughput",
        "requests/s",
        "Each generator at full speed. Grid lines are a factor of ten apart.",
        attrgetter("rps"),
        1.0,
    ),
    (
        "CPU per request",
        "microseconds",
        "CPU time of the generator, in the middle of the load.",
        mean_of("cpu_per_request_s"),
        1e6,
    ),
    (
        "Memory",
        "MB",
        "The highest sample, summed over the generator's processes.",
        lambda load: load.largest("memory_bytes"),
        2**-20,
    ),
    (
        "Client overhead, p50",
        "microseconds",
        "The generator's own queueing, which its reported response times include.",
        lambda load: load.overhead_s("p50") or None,
        1e6,
    ),
)


def charts(loads: Loads) -> Iterator[Chart]:
    for chart_title, axis, note, value, scale in CHARTS:
        values = ((load, value(load)) for load in loads)
        yield Chart(
            title=chart_title,
            x_title="connections",
            y_title=axis,
            series=curves(
                (load.name, load.cell.concurrency, y and y * scale) for load, y in values
            ),
            log=(True, True),
            note=note,
        )


def not_measured(data: TrialData) -> Finding:
    load = f"{data.cell.tool} at {counted(data.cell.concurrency, 'connection')}"
    return NotMeasured(load, why=why_unusable(data) or "its output has no duration")


def notes(usages: Sequence[GeneratorUsage]) -> Iterator[Finding]:
    for usage in usages:
        if usage.doubt is not None:
            cell = usage.cell
            yield UnreliableCount(generator_name(cell), cell.concurrency, usage.doubt)
    gaps_s = [usage.widest_gap_s for usage in usages if usage.widest_gap_s is not None]
    if gaps_s:
        wide = sum(gap_s > MAX_GAP_S for gap_s in gaps_s) or None
        values = {"widest_s": max(gaps_s), "wide": wide, "trials": len(gaps_s)}
        yield Note(fill(SAMPLED, values))
    if (worst := disturbance_of(usages)) is not None:
        disturbed = sum(disturbance_of([usage]) is not None for usage in usages)
        yield LoadsDisturbed(disturbed, len(usages), worst)
    if paused := sum(usage.was_paused for usage in usages):
        yield LoadsStoodStill(paused, len(usages))
    tools = dict.fromkeys(usage.cell.tool for usage in usages)
    yield from (Note(caveat) for name in tools if (caveat := tool_named(name).CAVEAT))
