"""The document of `workerlab reproduce`: original and new figures, and each claim judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workerlab import run_store
from workerlab.experiments.reading import document_of, notes_of
from workerlab.experiments.reproduce.claims import (
    ClaimCorrected,
    ClaimHeld,
    ClaimNotShown,
    MeasuredCell,
    MeasuredParts,
    OriginalTable,
    WriteUp,
    judge,
    measured_cells,
    write_ups,
)
from workerlab.finding import Finding
from workerlab.model.result import Chart, Column, Document, Table
from workerlab.report.values import cores_of, curves
from workerlab.run_store import Run

PARTS = "parts"  # subdirectory of a run, with a run for each part
DONE, MISSING = "parts_done", "parts_missing"  # keys of the run's saved state


class Title(Finding):
    """{title}: the write-up's figures and today's. Write-up: {theirs}. Today:[[ {cores:# core},]]
    {system}, Python {python}, {date}."""

    title: str
    theirs: str
    cores: int | None
    system: str
    python: str
    date: str


class ClaimCounts(Finding):
    """{held} of {claims:# claim} held, {corrected} corrected, {not_shown} not shown."""

    claims: int
    held: int
    corrected: int
    not_shown: int

    question = "What holds today?"


class PartMissing(Finding):
    """{part} was not measured: {why:sentence}"""

    part: str
    why: str

    prominence = "notes"


def document(run: Run) -> Document:
    writeups = [write_ups()[name] for name in run.plan.details["writeups"]]
    writeup_parts = [(writeup, measured_parts(run, writeup)) for writeup in writeups]
    claims = [judge(claim, parts) for writeup, parts in writeup_parts for claim in writeup.claim]
    missing = [
        PartMissing(f"{writeup.name}, {part}", why)
        for writeup, parts in writeup_parts
        for part, why in parts.missing.items()
    ]
    pairs = [(table, parts) for writeup, parts in writeup_parts for table in writeup.table]
    return Document(
        run=run.name,
        kind="reproduce",
        title=title(writeups, run),
        environment=run.environment,
        findings=(summary(claims), *claims),
        tables=tuple(table_of(original, parts) for original, parts in pairs),
        charts=tuple(chart_of(original, parts) for original, parts in pairs if original.chart),
        notes=(*missing, *notes_of(run)),
        valid=not missing,
    )


def title(writeups: Sequence[WriteUp], run: Run) -> Title:
    environment, (first, *others) = run.environment, writeups
    return Title(
        title="Five write-ups" if others else first.title,
        theirs="see each write-up" if others else first.machine,
        cores=cores_of(environment),
        system=str(environment.get("system", "an unknown system")),
        python=str(environment.get("python", "unknown")),
        date=f"{run.name[:4]}-{run.name[4:6]}-{run.name[6:8]}",
    )


def summary(claims: Sequence[ClaimHeld | ClaimCorrected | ClaimNotShown]) -> ClaimCounts:
    kinds = [type(claim) for claim in claims]
    return ClaimCounts(
        claims=len(claims),
        held=kinds.count(ClaimHeld),
        corrected=kinds.count(ClaimCorrected),
        not_shown=kinds.count(ClaimNotShown),
    )


def measured_parts(run: Run, writeup: WriteUp) -> MeasuredParts:
    """Results of the parts, and why other parts are missing, as stored in the run."""
    cells: dict[str, list[MeasuredCell]] = {}
    conclusions: dict[str, set[str]] = {}
    missing: dict[str, str] = {}
    reasons = (run_store.saved_machine(run.directory) or {}).get(MISSING, {})
    reused = run.plan.details.get("from", {})
    tested_parts = {test.part for claim in writeup.claim for test in claim.all_tests}
    for name, part in writeup.parts.items():
        path = Path(reused.get(name) or run.directory / PARTS / name)
        if not (path / "run.json").is_file():
            missing[part.name] = reasons.get(name, "it has not run yet")
            continue
        part_run = run_store.load(path)
        cells[part.name] = measured_cells(part_run)
        if part.name in tested_parts:
            conclusions[part.name] = codes_of(path)
    return MeasuredParts(
        cells=dict(matching_cells(writeup, cells)),
        conclusions=conclusions,
        missing=missing,
        parts={name: settings["part"] for name, settings in writeup.cells.items()},
        cores=cores_of(run.environment),
    )


def codes_of(directory: Path) -> set[str]:
    """Codes of all conclusions of a run's document, with those of their evidence."""

    def codes(value: Any) -> Iterator[str]:
        if isinstance(value, Finding):
            yield value.code
            yield from codes((*value.evidence, *value.values.values()))
        elif isinstance(value, list | tuple):
            for item in value:
                yield from codes(item)

    return set(codes(document_of(directory).findings))


def matching_cells(
    writeup: WriteUp, cells_by_part: Mapping[str, Sequence[MeasuredCell]]
) -> Iterator[tuple[str, MeasuredCell]]:
    """The cells that the write-up names: for each, the first measured cell of its part with
    the same settings."""
    for name, entry in writeup.entries.items():
        for cell in cells_by_part.get(entry["part"], ()):
            if cell.has(entry):
                yield name, cell
                break


def table_of(original: OriginalTable, parts: MeasuredParts) -> Table:
    """Each figure of the write-up, with today's mean over the launches to its right."""
    columns = [Column("row", "text", heading=" ")]
    for pair in original.headings:
        columns += [
            Column(f"{pair.name}_then", pair.form, heading=f"{pair.heading}, write-up"),
            Column(f"{pair.name}_today", pair.form, heading="today"),
        ]
    rows = []
    for row in original.rows:
        stand_in = parts.stand_in([row.cell])
        values: list[Any] = [f"{row.label}, on a {stand_in}" if stand_in else row.label]
        for pair, figure in zip(original.headings, row.figures, strict=True):
            values += [figure, parts.mean(f"{row.cell}.{pair.path}")]
        rows.append(tuple(values))
    return Table(original.title, tuple(columns), tuple(rows))


def chart_of(original: OriginalTable, parts: MeasuredParts) -> Chart:
    """Two curves for each line: the write-up's and today's."""
    names = [pair.name for pair in original.headings]
    index = names.index(original.chart)
    pair = original.headings[index]
    old_points = ((f"{row.line}, write-up", row.x, row.figures[index]) for row in original.rows)
    new_points = (
        (f"{row.line}, today", row.x, parts.mean(f"{row.cell}.{pair.path}"))
        for row in original.rows
    )
    return Chart(
        title=original.title,
        x_title=original.x_title,
        y_title=pair.heading,
        series=curves([*old_points, *new_points]),
        log=(False, True),
    )
