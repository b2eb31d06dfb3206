"""What a run of `workerlab limits` shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.analysis.facts import TrialData
from harness.experiments.limits.findings import findings, mistake_values
from harness.experiments.limits.results import Result, results_of
from harness.experiments.reading import notes_of, trial_data
from harness.model import Chart, Column, Document, Finding, Plan, Series, Table, Value
from harness.run_store import Run

CHAPTERS = ("clients", "unbounded", "far", "ports")
COLUMNS = (
    Column("step", form="text"),
    Column("tool", form="text"),
    Column("requests", form="count"),
    Column("connections", form="count"),
    Column("wall_s", form="seconds"),
    Column("ideal_s", form="seconds"),
    Column("wall_to_ideal", form="number"),
    Column("failed", form="count"),
    Column("errors", form="counts"),
    Column("memory_bytes", form="bytes"),
    Column("cpu_s", form="seconds"),
)
MISTAKE_COLUMNS = (
    Column("mistake", form="text"),
    Column("form", form="text"),
    Column("asked", form="count"),
    Column("got", form="counts"),
    Column("requests_seen", form="count"),
    Column("connections_seen", form="count"),
    Column("took_s", form="seconds"),
    Column("time_wait", form="count"),
    Column("said", form="text"),
)


def document(run: Run) -> Document:
    plan = replace(run.plan, notes=notes_of(run))
    return study(run.name, run.environment, plan, trial_data(run))


def study(
    run: str, environment: Mapping[str, object], plan: Plan, trials: Sequence[TrialData]
) -> Document:
    """`trials`: all that the plan has; its `details.steps` name them."""
    results = results_of(trials, plan.details["steps"])
    lost = [
        Finding("note.not_measured", {"what": result.name, "why": result.missing})
        for result in results
        if result.missing and result.data.record
    ]
    return Document(
        run=run,
        kind="limits",
        title=Finding("limits.title"),
        environment=environment,
        findings=findings(results),
        tables=(*_tables(results), *_mistake_tables(results)),
        charts=_charts(results),
        notes=(*lost, *plan.notes),
        valid=not any(result.missing for result in results),
    )


def _tables(results: Sequence[Result]) -> list[Table]:
    """One per chapter that has steps."""
    present = [name for name in CHAPTERS if any(result.chapter == name for result in results)]
    return [
        Table(
            title=Finding(f"limits.chapter.{name}"),
            columns=COLUMNS,
            rows=tuple(_row(result) for result in results if result.chapter == name),
        )
        for name in present
    ]


def _row(result: Result) -> tuple[Value, ...]:
    missing = result.missing
    return (
        result.label,
        result.tool,
        result.load.requests,
        result.load.concurrency,
        result.wall_s,
        result.ideal_s,
        result.ratio,
        result.failed,
        Finding("limits.not_measured", {"why": missing}) if missing else result.errors,
        result.memory_bytes,
        result.cpu_s,
    )


def _mistake_tables(results: Sequence[Result]) -> list[Table]:
    made = [result for result in results if result.chapter == "mistakes" and result.measured]
    rows = tuple(_mistake_row(result) for result in made)
    return [Table(Finding("limits.chapter.mistakes"), MISTAKE_COLUMNS, rows)] if rows else []


def _mistake_row(result: Result) -> tuple[Value, ...]:
    values = mistake_values(result)
    return (
        Finding(f"limits.mistake.{values['mistake']}"),
        values["form"],
        result.load.requests,
        values["returned"],
        values["requests"],
        values["connections"],
        values["took_s"],
        values["time_wait"],
        "; ".join(values["complaints"]),
    )


def _charts(results: Sequence[Result]) -> tuple[Chart, ...]:
    whole = sorted(
        (result for result in results if result.chapter in CHAPTERS and result.ratio),
        key=lambda result: result.load.requests,
    )
    if not whole:
        return ()
    lines = []
    for bound in sorted({result.load.concurrency for result in whole}):
        these = [result for result in whole if result.load.concurrency == bound]
        took = tuple((float(one.load.requests), one.wall_s or 0.0) for one in these)
        lines.append(Series(Finding("limits.chart.series", {"connections": bound}), took))
    ideal = tuple((float(one.load.requests), one.ideal_s or 0.0) for one in whole)
    lines.append(Series(Finding("limits.chart.ideal"), ideal))
    return (
        Chart(
            title=Finding("limits.chart.title"),
            x_title=Finding("limits.chart.x"),
            y_title=Finding("limits.chart.y"),
            series=tuple(lines),
            log=(True, True),
            note=Finding("limits.chart.note"),
        ),
    )
