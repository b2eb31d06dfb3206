"""One file per format, each pure: `render(report)` returns the text. A new one: a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.model import Report
from harness.report import as_csv, as_json, markdown, table


class Format(Protocol):
    """What a format's module offers."""

    def render(self, report: Report) -> str:
        """The whole report as text, ending in a newline."""


FORMATS: Mapping[str, Format] = {
    "table": table,
    "json": as_json,
    "csv": as_csv,
    "markdown": markdown,
}
