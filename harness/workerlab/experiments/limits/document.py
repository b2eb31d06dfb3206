"""What a run of `workerlab limits` shows. Pure."""

from collections.abc import Sequence
from typing import Any

from workerlab.analysis.facts import TrialData
from workerlab.analysis.samples import NS
from workerlab.experiments.document import Field, table
from workerlab.experiments.limits.findings import findings, mistake_values
from workerlab.experiments.limits.results import Result, results_of
from workerlab.experiments.reading import notes_of, trial_data
from workerlab.model import Chart, Document, Finding, Series, Table
from workerlab.run_store import Run

CHAPTERS = ("clients", "unbounded", "far", "memory", "ports")
MOST_POINTS = 40  # of a line
FIELDS: tuple[Field, ...] = (
    ("step", "text", lambda result: result.label),
    ("tool", "text", lambda result: result.tool),
    ("requests", "count", lambda result: result.load.requests),
    ("connections", "count", lambda result: result.load.concurrency),
    ("wall_s", "seconds", lambda result: result.wall_s),
    ("ideal_s", "seconds", lambda result: result.ideal_s),
    ("wall_to_ideal", "number", lambda result: result.ratio),
    ("failed", "count", lambda result: result.failed),
    ("errors", "counts", lambda result: result.not_measured or result.errors),
    ("memory_bytes", "bytes", lambda result: result.memory_bytes),
    ("cpu_s", "seconds", lambda result: result.cpu_s),
    ("client_cores", "number", lambda result: result.usage.generator_cores),
    ("server_cores", "number", lambda result: result.usage.server_cores),
)
MISTAKE_FIELDS: tuple[Field, ...] = (
    ("mistake", "text", lambda values: Finding(f"limits.mistake.{values['mistake']}")),
    ("form", "text", lambda values: values["form"]),
    ("asked", "count", lambda values: values["asked"]),
    ("got", "counts", lambda values: values["returned"]),
    ("requests_seen", "count", lambda values: values["requests"]),
    ("connections_seen", "count", lambda values: values["connections"]),
    ("took_s", "seconds", lambda values: values["took_s"]),
    ("time_wait", "count", lambda values: values["time_wait"]),
    ("complaints", "text", lambda values: "; ".join(values["complaints"])),
)


def document(run: Run) -> Document:
    return study(run, trial_data(run))


def study(run: Run, trials: Sequence[TrialData]) -> Document:
    """`trials`: all that the plan has; its `details.steps` name them."""
    results = results_of(trials, run.plan.details["steps"])
    lost = [
        Finding("note.not_measured", {"what": result.name, "why": result.missing})
        for result in results
        if result.missing and result.data.record
    ]
    return Document(
        run=run.name,
        kind="limits",
        title=Finding("limits.title"),
        environment=run.environment,
        findings=findings(results),
        tables=_tables(results),
        charts=(*_charts(results), *_memory_charts(results)),
        notes=(*lost, *notes_of(run)),
        valid=not any(result.missing for result in results),
    )


def _tables(results: Sequence[Result]) -> tuple[Table, ...]:
    chapters: dict[str, list[Result]] = {name: [] for name in (*CHAPTERS, "mistakes")}
    for result in results:
        chapters[result.chapter].append(result)
    made = [result for result in chapters.pop("mistakes") if result.measured]
    mistakes = [{**mistake_values(result), "asked": result.load.requests} for result in made]
    rows: list[tuple[str, Sequence[Field], Sequence[Any]]] = [
        *((name, FIELDS, those) for name, those in chapters.items()),
        ("mistakes", MISTAKE_FIELDS, mistakes),
    ]
    return tuple(
        table(Finding(f"limits.chapter.{name}"), fields, items)
        for name, fields, items in rows
        if items
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
    title, x, y, note = (Finding(f"limits.chart.{name}") for name in ("title", "x", "y", "note"))
    return (Chart(title, x, y, tuple(lines), log=(True, True), note=note),)


def _memory_charts(results: Sequence[Result]) -> tuple[Chart, ...]:
    """Of the load tool, over the time of its load."""
    lines = []
    for result in results:
        samples = result.data.observations.processes
        points = [
            ((sample.at_ns - samples[0].at_ns) / NS, sample.tool_rss_bytes / 2**20)
            for sample in samples
            if sample.tool_rss_bytes is not None
        ]
        if points and result.chapter in ("far", "memory"):
            name = Finding("limits.chart.step", result.evidence.values)
            lines.append(Series(name, tuple(points[:: 1 + len(points) // MOST_POINTS])))
    title, x, y, note = (Finding(f"limits.memory.{name}") for name in ("title", "x", "y", "note"))
    chart = Chart(title, x, y, tuple(lines), log=(True, False), note=note)
    return (chart,) if lines else ()
