"""CSV: the rows of all tables below one header. The first field names the table, then come the
columns of all of them, the shared ones once. Base units; empty is missing or not of this table."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from harness.model import Document, Finding, Value
from harness.report.messages import text
from harness.report.study.values import counted, plain
from harness.report.terminal import clean


def render(study: Document) -> str:
    """RFC 4180 with line feeds; the header is there even where no row is."""
    names = dict.fromkeys(column.name for table in study.tables for column in table.columns)
    file = io.StringIO()
    writer = csv.DictWriter(file, ["table", *names], lineterminator="\n")
    writer.writeheader()
    for table in study.tables:
        own = [column.name for column in table.columns]
        for row in table.rows:
            values = dict(zip(own, map(_field, row), strict=True))
            writer.writerow({"table": clean(text(table.title)), **values})
    return file.getvalue()


def _field(value: Value) -> Value:
    """On one line: a server's last words may hold anything."""
    if isinstance(value, Mapping):
        return counted(value)
    return clean(text(value)) if isinstance(value, str | Finding) else plain(value)
