"""What `workerlab generators` shows: each load generator at full speed and at a low rate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.analysis.facts import TrialData, unusable
from harness.experiments.generators.findings import findings
from harness.experiments.generators.usage import DISTURBED, Usage, others_most, usage_of
from harness.experiments.reading import notes_of, trial_data
from harness.model import Chart, Column, Document, Finding, Plan, Series, Table, Value
from harness.run_store import Run

GAP_S = 0.5  # CPU and memory are to be seen at least that often

Field = tuple[Column, Callable[[Usage], Value]]

WHO: tuple[Field, ...] = (
    (Column("generator", form="text"), lambda usage: usage.name),
    (Column("connections", form="count"), lambda usage: usage.connections),
)
COST: tuple[Field, ...] = (
    (Column("throughput_rps"), lambda usage: usage.rps),
    (Column("cpu_per_request_s", form="seconds"), lambda usage: usage.cpu_per_request_s),
    (Column("cores"), lambda usage: usage.cores),
    (Column("memory_bytes", form="bytes"), lambda usage: usage.memory_bytes),
    (Column("failed", form="count"), lambda usage: usage.failed),
    (Column("errors", form="counts"), lambda usage: usage.errors or None),
    (Column("server_cores"), lambda usage: usage.server_cores),
    (Column("host_busy", form="percent"), lambda usage: usage.host_busy),
    (Column("cpu_s", form="seconds"), lambda usage: usage.cpu_s),
    (Column("host_memory_bytes", form="bytes"), lambda usage: usage.host_memory_bytes),
)
TIMES: tuple[Field, ...] = (
    (Column("response_p50_s", form="seconds"), lambda usage: usage.reported.p50),
    (Column("service_p50_s", form="seconds"), lambda usage: usage.server_side.p50),
    (Column("own_p50_s", form="seconds"), lambda usage: usage.overhead_s("p50")),
    (Column("response_p99_s", form="seconds"), lambda usage: usage.reported.p99),
    (Column("service_p99_s", form="seconds"), lambda usage: usage.server_side.p99),
    (Column("own_p99_s", form="seconds"), lambda usage: usage.overhead_s("p99")),
    (Column("achieved_concurrency"), lambda usage: usage.in_flight),
)


def document(run: Run) -> Document:
    plan = replace(run.plan, notes=notes_of(run))
    return study(run.name, run.environment, plan, trial_data(run))


def study(
    run: str, environment: Mapping[str, object], plan: Plan, trials: Sequence[TrialData]
) -> Document:
    """`plan.details`: `server_core`, `keepalive`. `trials`: all that it has."""
    usages = [usage for data in trials if (usage := usage_of(data)) is not None]
    full = _in_order([usage for usage in usages if not usage.low])
    low = _in_order([usage for usage in usages if usage.low])
    cores = environment.get("cores")
    return Document(
        run=run,
        kind="generators",
        title=_title(plan.details),
        environment=environment,
        findings=findings(full, low, cores if isinstance(cores, int) else None),
        tables=(
            _table("full", (*WHO, *COST), full),
            _table("full_times", (*WHO, *TIMES), full),
            _table("low", (*WHO[:1], *COST), low),
            _table("low_times", (*WHO[:1], *TIMES), low),
        ),
        charts=_charts(full),
        notes=(*plan.notes, *_notes(trials, usages)),
        valid=len(usages) == len(trials) > 0 and not any(usage.doubt for usage in usages),
    )


def _title(details: Mapping[str, Any]) -> Finding:
    core, kept = details["server_core"], details["keepalive"]
    values = {
        "core": Finding("generators.core.own", {"core": core})
        if core is not None
        else Finding("generators.core.shared"),
        "connections": Finding(f"generators.connections.{'kept' if kept else 'anew'}"),
    }
    return Finding("generators.title", values)


def _in_order(usages: Sequence[Usage]) -> list[Usage]:
    """By generator, the fastest first, then by connections."""
    best: dict[str, float] = defaultdict(float)
    for usage in usages:
        best[usage.name] = max(best[usage.name], usage.rps)
    return sorted(usages, key=lambda usage: (-best[usage.name], usage.name, usage.connections))


def _table(title: str, fields: Sequence[Field], usages: Sequence[Usage]) -> Table:
    connections = usages[0].connections if usages else None
    return Table(
        title=Finding(f"generators.table.{title}", {"connections": connections}),
        columns=tuple(column for column, _ in fields),
        rows=tuple(tuple(value(usage) for _, value in fields) for usage in usages),
    )


def _charts(full: Sequence[Usage]) -> tuple[Chart, ...]:
    def chart(name: str, unit: str, value: Callable[[Usage], float | None]) -> Chart:
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for usage in full:
            if (known := value(usage)) is not None:
                lines[usage.name].append((usage.connections, known))
        return Chart(
            title=Finding(f"generators.chart.{name}"),
            x_title=Finding("generators.axis.connections"),
            y_title=Finding(f"generators.axis.{unit}"),
            series=tuple(Series(name, tuple(points)) for name, points in lines.items()),
            log=(True, True),
            note=Finding(f"generators.chart.{name}.note"),
        )

    def micro(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * 1e6

    return (
        chart("throughput", "rps", lambda usage: usage.rps),
        chart("cpu", "microseconds", lambda usage: micro(usage.cpu_per_request_s)),
        chart("memory", "megabytes", lambda one: one.memory_bytes and one.memory_bytes / 2**20),
        chart("overhead", "microseconds", lambda usage: micro(usage.overhead_s("p50"))),
    )


def _notes(trials: Sequence[TrialData], usages: Sequence[Usage]) -> list[Finding]:
    notes = []
    for data in trials:
        if data.record and usage_of(data) is None:
            cell = data.trial.cell
            load = {"name": cell.tool, "connections": cell.concurrency}
            why = unusable(data) or Finding("generators.no_time")
            what = Finding("generators.load", load)
            notes.append(Finding("note.not_measured", {"what": what, "why": why}))
    for usage in usages:
        if usage.doubt is not None:
            load = {"name": usage.name, "connections": usage.connections}
            notes.append(Finding("generators.doubt", {**load, "doubt": usage.doubt}))
    gaps = [usage.widest_gap_s for usage in usages if usage.widest_gap_s is not None]
    if gaps:
        wide = sum(gap > GAP_S for gap in gaps)
        values = {"gap_s": max(gaps), "limit_s": GAP_S, "wide": wide or None, "loads": len(gaps)}
        notes.append(Finding("generators.note.gaps", values))
    if (cores := others_most(usages)) > DISTURBED:
        times = sum((usage.others_cores or 0.0) > DISTURBED for usage in usages)
        values = {"cores": cores, "times": times, "loads": len(usages), "limit": DISTURBED}
        notes.append(Finding("generators.note.others", values))
    if any(usage.tool == "wrk" for usage in usages):
        notes.append(Finding("generators.note.wrk"))
    return notes
