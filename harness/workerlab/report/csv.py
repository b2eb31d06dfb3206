"""CSV: one row per trial of a sweep; for other commands, the rows of all tables under one header.

For a sweep, column names include units. An empty field means unknown, but an empty slots_configured
means unlimited if slots_known is True. Counts (errors, requests and connections per worker) are
written as `name=count`, separated by spaces; the routes of a mix are one JSON object.
For other commands, the first column is the table's title. The columns of all tables follow, shared
ones once, in base units. A field is empty if the value is missing or the table lacks the column.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import asdict

from workerlab import codec
from workerlab.analysis.verdict import TrialInvalid
from workerlab.finding import Finding
from workerlab.model.plan import Cell, Server, Trial
from workerlab.model.result import SWEEP, Document, Invalid, TrialResult, Value
from workerlab.report.json import json_cell, jsonable
from workerlab.report.keys import JsonCellRow, JsonText, Shape
from workerlab.report.values import counts_text, printable


def render(document: Document) -> str:
    """CSV as in RFC 4180, but with LF line endings. The header is written even without rows."""
    if document.kind == SWEEP:
        return _csv_text(HEADER, map(_cell_columns, document.cells))
    names = dict.fromkeys(column.name for table in document.tables for column in table.columns)
    rows = (
        {
            "table": printable(table.title),
            **{
                column.name: _field(value) for column, value in zip(table.columns, row, strict=True)
            },
        }
        for table in document.tables
        for row in table.rows
    )
    return _csv_text(["table", *names], rows)


def _csv_text(header: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _field(value: Value) -> object:
    if isinstance(value, str | Finding):
        return _sentence(value)
    return printable(counts_text(value)) if isinstance(value, Mapping) else jsonable(value)


def _cell_columns(result: TrialResult) -> dict[str, object]:
    """The columns of a trial. A group of numbers becomes one column per value, unit last."""
    row: dict[str, object] = {}
    for name, value in asdict(json_cell(result, JsonCellRow)).items():
        if isinstance(value, JsonText | str):
            row[name] = _sentence(value)
        elif isinstance(value, Shape):
            unit = next((unit for unit in ("_ms", "_bytes") if name.endswith(unit)), "")
            stem = name.removesuffix(unit)
            row |= {f"{stem}_{part}{unit}": inner for part, inner in asdict(value).items()}
        elif name == "routes":
            row[name] = printable(json.dumps(codec.plain(value))) if value else None
        elif isinstance(value, dict):
            row[name] = printable(" ".join(f"{key}={count}" for key, count in value.items()))
        elif isinstance(value, list):
            row[name] = " | ".join(map(_sentence, value))
        else:
            row[name] = value
    return row


def _sentence(value: object) -> str:
    """The text on one line: server output may contain control characters."""
    return printable(str(value))


_ANY_TRIAL = Trial(Cell(Server("sync", 1, 1, 1, 1), "ab", 1), 1)
_EMPTY_RESULT = Invalid(_ANY_TRIAL, "", None, TrialInvalid(()))
HEADER = tuple(_cell_columns(_EMPTY_RESULT))
