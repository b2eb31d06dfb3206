"""A Document in every format, each pure: `render(study)` returns the text. A new one: a line here.

The page stands apart (`page`): it needs packages that the others do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from harness.model import Document
from harness.report.study import as_csv, as_json, markdown, table


class StudyFormat(Protocol):
    """What a format's module offers."""

    def render(self, study: Document) -> str:
        """The whole study as text, ending in a newline."""


STUDY_FORMATS: Mapping[str, StudyFormat] = {
    "table": table,
    "json": as_json,
    "csv": as_csv,
    "markdown": markdown,
}
