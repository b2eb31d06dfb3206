"""A document in every format: `render(document, "markdown")`. A new one: a module, a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.model import Document
from harness.report import csv, json, markdown, text

FORMATS: Mapping[str, Callable[[Document], str]] = {
    "table": text.render,
    "json": json.render,
    "csv": csv.render,
    "markdown": markdown.render,
}  # each: the whole document, ending in a newline
