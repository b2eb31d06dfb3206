"""What `workerlab generators` shows: each load generator at full speed and at a low rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.analysis.evidence import TrialData
from harness.analysis.facts import unusable
from harness.experiments.generators.findings import findings
from harness.experiments.generators.usage import DISTURBED, Way, others_most, way_of
from harness.model import Chart, Column, Document, Series, Table, Value
from harness.plan import Plan
from harness.report.messages import text

TITLE = "Load generators, each against the same server, which does nothing"
GAP_S = 0.5  # CPU and memory are to be seen at least that often

Field = tuple[Column, Callable[[Way], Value]]

WHO: tuple[Field, ...] = (
    (Column("generator", "generator", "text"), lambda way: way.name),
    (Column("connections", "conn.", "count"), lambda way: way.connections),
)
RATE: Field = (Column("throughput_rps", "req/s"), lambda way: way.rps)
PER_REQUEST: Field = (
    Column("cpu_per_request_s", "CPU per request", "seconds"),
    lambda way: way.cpu_per_request_s,
)
COST: tuple[Field, ...] = (
    RATE,
    PER_REQUEST,
    (Column("cores", "cores"), lambda way: way.cores),
    (Column("memory_bytes", "memory", "bytes"), lambda way: way.memory_bytes),
    (Column("failed", "failed", "count"), lambda way: way.failed),
    (Column("errors", "causes", "counts"), lambda way: way.errors or None),
    (Column("server_cores", "server cores"), lambda way: way.server_cores),
    (Column("host_busy", "host busy", "percent"), lambda way: way.host_busy),
    (Column("cpu_s", "CPU in all", "seconds"), lambda way: way.cpu_s),
    (Column("host_memory_bytes", "host memory", "bytes"), lambda way: way.host_memory_bytes),
)
BELIEF: tuple[Field, ...] = (
    (Column("response_p50_s", "p50 believed", "seconds"), lambda way: way.believed.p50),
    (Column("service_p50_s", "p50 served", "seconds"), lambda way: way.served.p50),
    (Column("own_p50_s", "p50 own", "seconds"), lambda way: way.own_error_s("p50")),
    (Column("response_p99_s", "p99 believed", "seconds"), lambda way: way.believed.p99),
    (Column("service_p99_s", "p99 served", "seconds"), lambda way: way.served.p99),
    (Column("own_p99_s", "p99 own", "seconds"), lambda way: way.own_error_s("p99")),
    (Column("achieved_concurrency", "in flight"), lambda way: way.in_flight),
)
COST_NOTE = (
    "CPU per request and cores: the generator's, in the middle of the load; CPU in all: from its"
    " start to its end. Memory: the most; pages that processes share count in each. Server cores:"
    " of the one it has; near 1, the server sets the limit."
)
BELIEF_NOTE = (
    "Believed: response times as the generator tells them. Served: the server's own, from a request"
    " read until its answer was sent. Own: the difference, the generator's own queueing with the"
    " way through the kernel; missing where it is less than 1 %, which the figures cannot tell. In"
    " flight: requests under way at once, as the generator counts them."
)


def study(
    run: str, environment: Mapping[str, object], plan: Plan, trials: Sequence[TrialData]
) -> Document:
    """`plan.details`: `server_core`, `keepalive`. `trials`: all that it has."""
    found = [way for data in trials if (way := way_of(data)) is not None]
    full = _in_order([way for way in found if not way.low])
    low = _in_order([way for way in found if way.low])
    cores = environment.get("cores")
    return Document(
        run=run,
        kind="generators",
        title=_title(plan.details),
        environment=environment,
        findings=findings(full, low, cores if isinstance(cores, int) else None),
        tables=(
            _table("As fast as each can", (*WHO, *COST), full, COST_NOTE),
            _table("What each believes, as fast as it can", (*WHO, *BELIEF), full, BELIEF_NOTE),
            _table(_low_title(low), (*WHO[:1], *COST), low, ""),
            _table("What each believes at that rate", (*WHO[:1], *BELIEF), low, ""),
        ),
        charts=_charts(full),
        notes=(*plan.notes, *_notes(trials, found)),
        valid=len(found) == len(trials) > 0 and not any(way.doubt for way in found),
    )


def _title(details: Mapping[str, Any]) -> str:
    core = details.get("server_core")
    where = "it shares the only core" if core is None else f"it has core {core} to itself"
    kept = (
        "kept-alive connections" if details.get("keepalive", True) else "a connection per request"
    )
    return f"{TITLE}; {where}; {kept}."


def _low_title(low: Sequence[Way]) -> str:
    if not low:
        return "At a low rate"
    return f"At a low rate: {low[0].connections} connections to a server that takes its time"


def _in_order(ways: Sequence[Way]) -> list[Way]:
    """By generator, the fastest first, then by connections."""
    best: dict[str, float] = defaultdict(float)
    for way in ways:
        best[way.name] = max(best[way.name], way.rps)
    return sorted(ways, key=lambda way: (-best[way.name], way.name, way.connections))


def _table(title: str, fields: Sequence[Field], ways: Sequence[Way], note: str) -> Table:
    return Table(
        title=title,
        columns=tuple(column for column, _ in fields),
        rows=tuple(tuple(value(way) for _, value in fields) for way in ways),
        note=note,
    )


def _charts(full: Sequence[Way]) -> tuple[Chart, ...]:
    def chart(title: str, y_title: str, value: Callable[[Way], float | None], note: str) -> Chart:
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for way in full:
            if (known := value(way)) is not None:
                lines[way.name].append((way.connections, known))
        series = tuple(Series(name, tuple(points)) for name, points in lines.items())
        return Chart(title, "connections", y_title, series, (True, True), note)

    def micro(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * 1e6

    return (
        chart("Throughput", "requests/s", lambda way: way.rps,
              "Each generator as fast as it can. A factor of ten is one line of the grid."),
        chart("CPU per request", "microseconds", lambda way: micro(way.cpu_per_request_s),
              "What one request costs the generator, in the middle of the load."),
        chart("Memory", "MB", lambda way: way.memory_bytes and way.memory_bytes / 2**20,
              "The most, of all its processes."),
        chart("Believed beyond served, p50", "microseconds",
              lambda way: micro(way.own_error_s("p50")),
              "The generator's own queueing: what it adds to the response times it tells."),
    )  # fmt: skip


def _notes(trials: Sequence[TrialData], ways: Sequence[Way]) -> tuple[str, ...]:
    notes = [
        f"{data.trial.cell.tool} at {data.trial.cell.concurrency} connections was not measured:"
        f" {text(unusable(data) or 'its output holds no time')}"
        for data in trials
        if way_of(data) is None
    ]
    notes += [f"{way.name} at {way.connections}: {way.doubt}" for way in ways if way.doubt]
    gaps = [way.widest_gap_s for way in ways if way.widest_gap_s is not None]
    if gaps:
        seldom = sum(gap > GAP_S for gap in gaps)
        rest = f", more than {GAP_S:g} s apart in {seldom} of {len(gaps)} loads" if seldom else ""
        notes.append(f"CPU and memory were looked at every {max(gaps):.2f} s at least{rest}")
    if (away := others_most(ways)) > DISTURBED:
        times = sum((way.others_cores or 0.0) > DISTURBED for way in ways)
        notes.append(
            f"other programs used up to {away:.2f} cores, in {times} of {len(ways)} loads more than"
            f" {DISTURBED:g}: what needed a core was slower there; close them and repeat"
        )
    if any(way.tool == "wrk" for way in ways):
        notes.append(
            "wrk corrects its response times with samples of its own making, and has two threads"
            " above 64 connections"
        )
    return tuple(notes)
