"""The Document of a sweep: what analysis found, before it has a format."""

from __future__ import annotations

from harness.model import Document, Report

SWEEP = "sweep"
SweepResult = Report | Document  # in transition: what the page takes, and what the text formats do


def of_sweep(report: Report) -> Document:
    """`report`: of all the cells of a sweep, in the order of the plan."""
    return Document(
        run=report.run,
        kind=SWEEP,
        title=report.run,
        environment=report.environment,
        findings=(),
        tables=(),
        notes=report.notes,
        valid=all(cell.verdict != "invalid" for cell in report.cells),
        cells=report.cells,
        classes=report.classes,
        timelines=report.timelines,
        overhead=report.overhead,
        setup_s=report.setup_s,
    )


def report_of(document: Document) -> Report:
    """In transition: the page is still made of what analysis found."""
    return Report(
        run=document.run,
        environment=document.environment,
        overhead=document.overhead,
        cells=document.cells,
        classes=document.classes,
        setup_s=document.setup_s,
        notes=document.notes,
        timelines=document.timelines,
    )
