"""A document in every format: `render(document, "markdown")`. A new one: a module, a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.model import Document
from harness.report import as_csv, as_json, markdown, table
from harness.report.document import SWEEP, SweepResult
from harness.report.study import STUDY_FORMATS
from harness.report.study import table as study_table


class Format(Protocol):
    """What a format's module offers."""

    def render(self, report: SweepResult) -> str:
        """The whole report as text, ending in a newline."""


FORMATS: Mapping[str, Format] = {
    "table": table,
    "json": as_json,
    "csv": as_csv,
    "markdown": markdown,
}


def render(
    document: Document, chosen: str = "table", *, colour: bool = False, width: int | None = None
) -> str:
    """The whole document as text, ending in a newline. `colour`, `width`: of the table's terminal,
    None: as wide as it needs."""
    if chosen == "table":
        draw = table.render if document.kind == SWEEP else study_table.render
        return draw(document, colour=colour, width=width)
    formats = FORMATS if document.kind == SWEEP else STUDY_FORMATS
    return formats[chosen].render(document)
