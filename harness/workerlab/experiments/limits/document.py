"""The document of `workerlab limits`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workerlab.analysis.facts import TrialData
from workerlab.analysis.samples import NS
from workerlab.experiments.limits.findings import Steps, findings
from workerlab.experiments.limits.results import results_of
from workerlab.experiments.reading import notes_of, trial_data
from workerlab.model.result import Chart, ChartSeries, Column, Document, Table
from workerlab.notes import NotMeasured
from workerlab.numbers.units import counted
from workerlab.report.values import curves, table
from workerlab.run_store import Run

CHAPTERS = {
    "clients": "A hundred requests by synchronous and asynchronous clients",
    "unbounded": "Unbounded and bounded clients, usually limited to 1,024 open files",
    "far": "How far one client goes",
    "memory": "Memory of clients that keep all tasks or bodies, and of one that keeps neither",
    "ports": "Running out of local ports",
}
MISTAKES = "Two classic mistakes and their symptoms"
MAX_POINTS_PER_LINE = 40

COLUMNS = (
    Column("step", "text", value="label"),
    Column("tool", "text", heading="load tool"),
    Column("requests", "count", value="load.requests"),
    Column("connections", "count", heading="conn.", value="load.concurrency"),
    Column("wall_s", "seconds", heading="took"),
    Column(
        "ideal_s",
        "seconds",
        heading="ideal",
        meaning="the sum of the server's delays divided by the number of connections, but at least"
        " its longest response",
    ),
    Column(
        "wall_to_ideal",
        heading="took / ideal",
        meaning="above 1 partly because fast sends its first request alone and connections idle at"
        " the end: the fewer requests per connection, the larger the effect",
        value="ratio",
    ),
    Column("failed", "count"),
    Column(
        "errors",
        "counts",
        heading="causes",
        value=lambda step: step.not_measured or step.errors,
    ),
    Column(
        "memory_bytes",
        "bytes",
        meaning="highest sample of the load tool; for clients that keep everything, the peak that"
        " they report",
    ),
    Column(
        "cpu_s",
        "seconds",
        heading="CPU total",
        meaning="of the load tool, from its start to its end",
    ),
    Column(
        "client_cores",
        meaning="CPU seconds of the load tool per second, including its start and exit",
        value="usage.generator_cores",
    ),
    Column(
        "server_cores",
        meaning="CPU seconds of the server per second, during the load",
        value="usage.server_cores",
    ),
)
MISTAKE_COLUMNS = (
    Column("mistake", "text", value=lambda form: form.mistake.replace("_", " ")),
    Column("form", "text"),
    Column("requested", "count", heading="requests intended"),
    Column("returned", "counts"),
    Column(
        "requests_seen",
        "count",
        heading="requests at the server",
        value="requests",
    ),
    Column(
        "connections_seen",
        "count",
        heading="connections at the server",
        value="connections",
    ),
    Column("took_s", "seconds", heading="took"),
    Column(
        "time_wait",
        "count",
        heading="in TIME_WAIT",
        meaning="client sockets that the kernel keeps for a minute",
    ),
    Column(
        "complaints",
        "text",
        heading="reported",
        value=lambda form: "; ".join(form.complaints),
    ),
)


def document(run: Run) -> Document:
    return study(run, trial_data(run))


def study(run: Run, trials: Sequence[TrialData]) -> Document:
    """The document of a run. `trials`: all trials of its plan; the `details` of the plan describe
    the steps."""
    results = results_of(trials, run.plan.details["steps"])
    not_measured = [
        NotMeasured(result.name, why=result.missing)
        for result in results
        if result.missing and result.data.record
    ]
    return Document(
        run=run.name,
        kind="limits",
        title="How far one client goes, and what stops it",
        environment=run.environment,
        findings=tuple(findings(results)),
        tables=tuple(tables(results)),
        charts=(*time_charts(results), *memory_charts(results)),
        notes=(*not_measured, *notes_of(run)),
        valid=not any(result.missing for result in results),
    )


def tables(results: Steps) -> Iterator[Table]:
    for chapter, title in CHAPTERS.items():
        steps = [result for result in results if result.chapter == chapter]
        if steps:
            yield table(title, COLUMNS, steps)
    mistakes = [result for result in results if result.chapter == "mistakes" and result.measurement]
    if mistakes:
        yield table(MISTAKES, MISTAKE_COLUMNS, [step.mistake_form for step in mistakes])


def time_charts(results: Steps) -> Iterator[Chart]:
    steps = sorted(
        (result for result in results if result.chapter in CHAPTERS and result.ratio),
        key=lambda step: step.load.requests,
    )
    if not steps:
        return
    times = (
        (counted(step.load.concurrency, "connection"), float(step.load.requests), step.wall_s)
        for step in sorted(steps, key=lambda step: step.load.concurrency)
    )
    ideal = (("ideal", float(step.load.requests), step.ideal_s) for step in steps)
    yield Chart(
        title="Time by number of requests",
        x_title="requests",
        y_title="seconds",
        series=curves([*times, *ideal]),
        log=(True, True),
        note="Steps without failures. Ideal: delays / connections, at least the longest response.",
    )


def memory_charts(results: Steps) -> Iterator[Chart]:
    """Memory of the load tool over time."""
    lines = []
    for result in results:
        samples = result.data.observations.processes
        points = [
            ((sample.at_ns - samples[0].at_ns) / NS, sample.tool_rss_bytes / 2**20)
            for sample in samples
            if sample.tool_rss_bytes is not None
        ]
        if points and result.chapter in ("far", "memory"):
            name = f"{result.tool}, {counted(result.load.requests, 'request')}: {result.label}"
            lines.append(
                ChartSeries(name, tuple(points[:: 1 + len(points) // MAX_POINTS_PER_LINE]))
            )
    if lines:
        yield Chart(
            title="Memory of the client over time",
            x_title="seconds",
            y_title="MB",
            series=tuple(lines),
            log=(True, False),
            note="From samples; the peaks are in the tables.",
        )
