"""What `workerlab bottleneck` shows: one table per factor, and whose limit was found.

An experiment is read from the cells themselves: those that agree in everything but one factor. The
hunted generator is the one with most cells; the others serve to compare it with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from harness.experiments.bottleneck.findings import findings
from harness.model import (
    Cell,
    CellResult,
    Chart,
    Column,
    Document,
    Report,
    Series,
    Table,
    Value,
)
from harness.numbers.words import plural

TITLE = "Is it the server or the load generator? One factor at a time"


@dataclass(frozen=True)
class Factor:
    """`level` of a cell; `without` gives cells that differ in nothing else the same value."""

    name: str
    title: str
    level: Callable[[Cell], Hashable]
    without: Callable[[Cell], Cell]


FACTORS = (
    Factor(
        "users",
        "More users",
        lambda cell: cell.concurrency,
        lambda cell: replace(cell, concurrency=1),
    ),
    Factor(
        "threads",
        "More threads in the server",
        lambda cell: cell.server.threads,
        lambda cell: replace(cell, server=replace(cell.server, threads=1)),
    ),
    Factor(
        "servers",
        "A second server, on a port of its own",
        lambda cell: cell.server.instances,
        lambda cell: replace(cell, server=replace(cell.server, instances=1)),
    ),
    Factor(
        "processes",
        "The generator in more processes",
        lambda cell: cell.processes,
        lambda cell: replace(cell, processes=1),
    ),
    Factor(
        "tool",
        "Another generator",
        lambda cell: cell.tool,
        lambda cell: replace(cell, tool=""),
    ),
)

COLUMNS: tuple[tuple[Column, Callable[[CellResult], Value]], ...] = (
    (Column("tool", "generator", "text"), lambda c: c.trial.cell.tool),
    (Column("processes", "proc.", "count"), lambda c: c.trial.cell.processes),
    (Column("users", "users", "count"), lambda c: c.trial.cell.concurrency),
    (Column("threads", "threads", "count"), lambda c: c.trial.cell.server.threads),
    (Column("servers", "servers", "count"), lambda c: c.trial.cell.server.instances),
    (Column("throughput_rps", "req/s"), lambda c: c.throughput_rps),
    (Column("response_mean_s", "mean", "seconds"), lambda c: c.response.mean),
    (Column("response_p95_s", "p95", "seconds"), lambda c: c.response.p95),
    (Column("service_mean_s", "in the app", "seconds"), lambda c: c.service.mean),
    (Column("failed", "failed", "count"), lambda c: c.failed),
    (Column("errors", "causes", "counts"), lambda c: c.errors or None),
    (Column("achieved_concurrency", "in flight"), lambda c: c.achieved_concurrency),
    (Column("generator_cores", "generator cores"), lambda c: c.usage.generator_cores),
    (Column("server_cores", "server cores"), lambda c: c.usage.server_cores),
    (Column("host_busy", "host busy", "percent"), lambda c: c.usage.host_busy),
    (Column("generator_bound", "generator-bound", "text"), lambda c: c.generator_bound),
    (Column("verdict", "verdict", "text"), lambda c: c.verdict),
)
# Said in a table only where they are what it is about, or differ in it
SETTINGS = ("tool", "processes", "users", "threads", "servers")
NOTE = (
    "Mean and p95: response times as the generator tells them. In the app: by the workers' records."
)


def study(report: Report) -> Document:
    """`report`: of the run's cells, which are ordinary ones."""
    hunted = hunted_of(report.cells)
    found = {factor.name: experiment(factor, report.cells, hunted) for factor in FACTORS}
    tables = [_table(factor, found[factor.name]) for factor in FACTORS if found[factor.name]]
    invalid = [cell for cell in report.cells if cell.verdict == "invalid"]
    cores = report.environment.get("cores")
    return Document(
        run=report.run,
        kind="bottleneck",
        title=_title(report.cells, hunted),
        environment=report.environment,
        findings=findings(found, hunted, cores if isinstance(cores, int) else None),
        tables=tuple(replace(one, note=NOTE if one is tables[0] else "") for one in tables),
        charts=_charts(report.cells, hunted),
        notes=(*(f"{_named(cell)}: {cell.reason}" for cell in invalid), *_unfinished(report)),
        valid=bool(report.cells) and not invalid,
    )


def hunted_of(cells: Sequence[CellResult]) -> str:
    """The generator that most cells are about; "" where there is none."""
    counts = Counter(cell.trial.cell.tool for cell in cells)
    return counts.most_common(1)[0][0] if counts else ""


def experiment(factor: Factor, cells: Sequence[CellResult], hunted: str) -> list[list[CellResult]]:
    """Groups of cells that differ in this factor alone, each by the factor's level, first the
    lowest (of `tool` the hunted one); but for the factor `tool`, of the hunted generator."""
    groups: dict[Cell, list[CellResult]] = {}
    for cell in cells:
        if factor.name == "tool" or cell.trial.cell.tool == hunted:
            groups.setdefault(factor.without(cell.trial.cell), []).append(cell)

    def place(cell: CellResult) -> tuple[bool, str]:
        level = factor.level(cell.trial.cell)
        return level != hunted, f"{level:>9}"

    several = [sorted(group, key=place) for group in groups.values()]
    found = [group for group in several if len({factor.level(c.trial.cell) for c in group}) > 1]
    return found[:1] if factor.name == "users" else found  # on the usual server


def _table(factor: Factor, groups: Sequence[Sequence[CellResult]]) -> Table:
    cells = [cell for group in groups for cell in group]

    def told(column: Column, value: Callable[[CellResult], Value]) -> bool:
        if column.name not in SETTINGS:
            return True
        return column.name in (factor.name, "users") or len({value(cell) for cell in cells}) > 1

    shown = [(column, value) for column, value in COLUMNS if told(column, value)]
    return Table(
        title=factor.title,
        columns=tuple(column for column, _ in shown),
        rows=tuple(tuple(value(cell) for _, value in shown) for cell in cells),
    )


def _title(cells: Sequence[CellResult], hunted: str) -> str:
    if not cells:
        return f"{TITLE}: no cell has been finished."
    server = cells[0].trial.cell.server
    where = f"{server.worker_class} with {plural(server.workers, 'worker')}"
    return f"{TITLE}. Hunted: {hunted}, on {where}."


def _named(cell: CellResult) -> str:
    asked = cell.trial.cell
    many = f" x{asked.processes}" if asked.processes > 1 else ""
    servers = f", {asked.server.instances} servers" if asked.server.instances > 1 else ""
    threads = f"{asked.server.threads} threads"
    return f"{asked.tool}{many} at {asked.concurrency} users, {threads}{servers}"


def _unfinished(report: Report) -> list[str]:
    return [
        note.replace("sweep --resume", "bottleneck --resume")
        for note in report.notes
        if "not finished" in note
    ]


def _charts(cells: Sequence[CellResult], hunted: str) -> tuple[Chart, ...]:
    """Requests/s against users: a line for the hunted generator, a mark for each other way."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        asked, rps = cell.trial.cell, cell.throughput_rps
        if rps is None:
            continue
        name = asked.tool
        name += f", {asked.processes} processes" if asked.processes > 1 else ""
        name += f", {asked.server.instances} servers" if asked.server.instances > 1 else ""
        usual = asked.server.threads == cells[0].trial.cell.server.threads
        name += "" if usual else f", {asked.server.threads} threads"
        lines.setdefault(name, []).append((float(asked.concurrency), rps))
    series = tuple(Series(name, tuple(sorted(points))) for name, points in lines.items())
    if not series:
        return ()
    note = f"What differs from {hunted} on the usual server is named; all ask for the same page."
    return (Chart("What came out", "users", "requests/s", series, (True, False), note),)
