"""What `workerlab bottleneck` shows: one table per factor, and whose limit was found."""

from collections.abc import Iterable, Sequence

from workerlab.analysis.facts import Facts, TrialData, unusable
from workerlab.experiments.bottleneck.findings import (
    FACTORS,
    comparisons,
    findings,
    generator_of,
)  # fmt: skip
from workerlab.experiments.bottleneck.phases import phases_answer
from workerlab.experiments.bottleneck.pooled import Pooled, pooled
from workerlab.experiments.document import Field, cores_of, table
from workerlab.experiments.reading import notes_of, report_of
from workerlab.model import Cell, CellResult, Chart, Document, Finding, Report, Series, Table
from workerlab.run_store import Run

# Shown only in the tables that are about them, or in which they differ
SETTINGS: tuple[Field, ...] = (
    ("tool", "text", lambda c: c.trial.cell.tool),
    ("processes", "count", lambda c: c.trial.cell.processes),
    ("users", "count", lambda c: c.trial.cell.concurrency),
    ("threads", "count", lambda c: c.trial.cell.server.threads),
    ("servers", "count", lambda c: c.trial.cell.server.instances),
)
RESULTS: tuple[Field, ...] = (
    ("trials", "count", lambda c: len(c.rates) or None),
    ("throughput_rps", "number", lambda c: c.throughput_rps),
    ("response_mean_s", "seconds", lambda c: c.response.mean),
    ("response_p95_s", "seconds", lambda c: c.response.p95),
    ("service_mean_s", "seconds", lambda c: c.service.mean),
    ("failed", "count", lambda c: c.failed),
    ("errors", "counts", lambda c: c.errors or None),
    ("achieved_concurrency", "number", lambda c: c.achieved_concurrency),
    ("generator_cores", "number", lambda c: c.usage.generator_cores),
    ("server_cores", "number", lambda c: c.usage.server_cores),
    ("host_busy", "percent", lambda c: c.usage.host_busy),
    ("generator_bound", "text", lambda c: c.generator_bound),
    ("verdict", "text", lambda c: c.verdict),
)


SIDES: tuple[Field, ...] = (
    ("response_mean_s", "seconds", lambda c: c.response.mean),
    ("connect_calls_s", "seconds", lambda c: c.usage.connect_calls_s),
    ("send_calls_s", "seconds", lambda c: c.usage.send_calls_s),
    ("receive_calls_s", "seconds", lambda c: c.usage.receive_calls_s),
    ("service_mean_s", "seconds", lambda c: c.service.mean),
    ("received_bytes_per_s", "bytes", lambda c: c.usage.received_bytes_per_s),
    ("generator_rss_bytes", "bytes", lambda c: c.usage.generator_rss_bytes),
    ("server_rss_bytes", "bytes", lambda c: c.usage.server_rss_bytes),
    ("host_memory_bytes", "bytes", lambda c: c.usage.host_memory_bytes),
)


def document(run: Run) -> Document:
    trials: dict[str, TrialData] = {}
    report = report_of(run, known=trials)
    closing = [data for data in trials.values() if data.cell.server.null and data.record]
    return study(report, notes_of(run), closing)


def study(
    report: Report, notes: Sequence[Finding] = (), closing: Sequence[TrialData] = ()
) -> Document:
    """`report`: of the run's cells, which are ordinary ones; `notes`: of its plan; `closing`: the
    trials on a server that closes connections."""
    cells = pooled(report.cells)
    generator = generator_of(cells)
    compared = {name: comparisons(name, cells, generator) for name in FACTORS}
    closing_facts = [facts for data in closing if isinstance(facts := data.facts, Facts)]
    invalid = [*_invalid(report.cells), *_not_measured(closing)]
    return Document(
        run=report.run,
        kind="bottleneck",
        title=_title(report.cells, generator),
        environment=report.environment,
        findings=(
            *findings(compared, generator, cores_of(report.environment)),
            *phases_answer(closing_facts),
        ),
        tables=(*_tables(compared), *_sides(cells)),
        charts=_charts(cells, generator),
        notes=(*notes, *invalid),
        valid=bool(report.cells) and not invalid,
    )


def _not_measured(closing: Iterable[TrialData]) -> Iterable[Finding]:
    load = Finding("bottleneck.phases.load")
    for data in closing:
        if (why := unusable(data)) is not None:
            yield Finding("note.not_measured", {"what": load, "why": why})


def _invalid(cells: Iterable[CellResult]) -> Iterable[Finding]:
    for cell in cells:
        if cell.verdict == "invalid":
            planned = cell.trial.cell
            trial = cell.trial.number if cell.trial.number > 1 else None
            about = {**_way(planned), "users": planned.concurrency, "trial": trial}
            name = Finding("bottleneck.cell", about)
            values = {"cell": name, "reason": cell.reason}
            yield Finding("bottleneck.invalid", values, (cell.trial.key,))


def _title(cells: Sequence[CellResult], generator: str) -> Finding:
    if not cells:
        return Finding("bottleneck.title.empty")
    server = cells[0].trial.cell.server
    values = {"worker_class": server.worker_class, "workers": server.workers}
    return Finding("bottleneck.title", {"generator": generator, **values})


def _way(cell: Cell) -> dict[str, object]:
    """What a cell differs in from others but users; what is one is not worth a word."""
    return {
        "tool": cell.tool,
        "processes": cell.processes if cell.processes > 1 else None,
        "servers": cell.server.instances if cell.server.instances > 1 else None,
        "threads": cell.server.threads,
    }


def _tables(compared: dict[str, list[list[Pooled]]]) -> Iterable[Table]:
    """One per factor that was varied; what explains the columns stands below the first."""
    note: Finding | None = Finding("bottleneck.table.note")
    for factor, groups in compared.items():
        cells = [cell for group in groups for cell in group]
        settings = [
            (name, form, value)
            for name, form, value in SETTINGS
            if name in (factor, "users") or len(set(map(value, cells))) > 1
        ]
        if cells:
            name = Finding(f"bottleneck.table.{factor}")
            yield table(name, (*settings, *RESULTS), cells, note)
            note = None


def _sides(cells: Sequence[Pooled]) -> Iterable[Table]:
    """What the load cost each side, and where the generator's time went, of every cell."""
    settings = [field for field in SETTINGS if len({field[2](cell) for cell in cells}) > 1]
    if settings:
        note = Finding("bottleneck.table.sides.note")
        yield table(Finding("bottleneck.table.sides"), (*settings, *SIDES), cells, note)


def _charts(cells: Sequence[CellResult], generator: str) -> tuple[Chart, ...]:
    """Requests/s against users: a line for the generator, a mark for each other way."""
    lines: dict[tuple[object, ...], tuple[Finding, list[tuple[float, float]]]] = {}
    for cell in cells:
        asked, rps = cell.trial.cell, cell.throughput_rps
        if rps is None:
            continue
        way = _way(asked)
        if asked.server.threads == cells[0].trial.cell.server.threads:
            way["threads"] = None
        line = lines.setdefault(tuple(way.values()), (Finding("bottleneck.line", way), []))
        line[1].append((float(asked.concurrency), rps))
    if not lines:
        return ()
    series = tuple(Series(name, tuple(sorted(points))) for name, points in lines.values())
    title, x, y = (Finding(f"bottleneck.chart{part}") for part in ("", ".users", ".rps"))
    note = Finding("bottleneck.chart.note", {"generator": generator})
    return (Chart(title, x, y, series, (True, False), note),)
