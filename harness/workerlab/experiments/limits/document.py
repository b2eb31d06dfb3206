"""What a run of `workerlab limits` shows. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from workerlab.analysis.facts import TrialData
from workerlab.analysis.samples import NS
from workerlab.experiments.document import Field, table
from workerlab.experiments.limits.findings import findings, mistake_values
from workerlab.experiments.limits.results import Result, results_of
from workerlab.experiments.reading import notes_of, trial_data
from workerlab.model import Chart, Document, Finding, Series, Table
from workerlab.run_store import Run

CHAPTERS = ("clients", "unbounded", "far", "ports")
MEMORY_CHAPTERS = ("far", "memory")  # whose memory is drawn over time
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
    ("server_cpu_s", "seconds", lambda result: result.server_cpu_s),
    ("client_cores", "number", lambda result: result.client_cores),
    ("server_cores", "number", lambda result: result.server_cores),
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
        charts=tuple(_charts(results)),
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


def _charts(results: Sequence[Result]) -> Iterator[Chart]:
    yield from _times(results)
    lines = [
        Series(Finding("limits.chart.step", _what(result)), points)
        for result in results
        if result.chapter in MEMORY_CHAPTERS and (points := _memory_over_time(result))
    ]
    if lines:
        title, x, y, note = (
            Finding(f"limits.memory_chart.{name}") for name in ("title", "x", "y", "note")
        )
        yield Chart(title, x, y, tuple(lines), log=(True, False), note=note)


def _what(result: Result) -> dict[str, Any]:
    return {"tool": result.tool, "requests": result.load.requests, "step": result.label}


def _memory_over_time(result: Result) -> tuple[tuple[float, float], ...]:
    """(seconds of the load, MB), every so many samples."""
    record = result.data.record
    start_ns = (record.load_start_ns if record else None) or 0
    points = [
        ((sample.at_ns - start_ns) / NS, sample.tool_rss_bytes / 2**20)
        for sample in result.data.observations.processes
        if sample.tool_rss_bytes is not None
    ]
    return tuple(points[:: 1 + len(points) // MOST_POINTS])


def _times(results: Sequence[Result]) -> Iterator[Chart]:
    whole = sorted(
        (result for result in results if result.chapter in CHAPTERS and result.ratio),
        key=lambda result: result.load.requests,
    )
    if not whole:
        return
    lines = []
    for bound in sorted({result.load.concurrency for result in whole}):
        these = [result for result in whole if result.load.concurrency == bound]
        took = tuple((float(one.load.requests), one.wall_s or 0.0) for one in these)
        lines.append(Series(Finding("limits.chart.series", {"connections": bound}), took))
    ideal = tuple((float(one.load.requests), one.ideal_s or 0.0) for one in whole)
    lines.append(Series(Finding("limits.chart.ideal"), ideal))
    title, x, y, note = (Finding(f"limits.chart.{name}") for name in ("title", "x", "y", "note"))
    yield Chart(title, x, y, tuple(lines), log=(True, True), note=note)
