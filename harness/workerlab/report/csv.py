"""CSV: of a sweep a row per trial; of other commands the rows of all tables below one header.

Of a sweep, names bear units; an empty field is unknown, one of slots_configured unlimited where
slots_known is True. Pairs (errors, requests and connections per worker) are `name=count`, separated
by blanks; the routes of a mix are one object of JSON. Of others, the first field names the table,
then come the columns of all of them, the shared ones once, in base units; empty is missing, or not
of this table.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workerlab import codec
from workerlab.analysis.verdict import TrialInvalid
from workerlab.finding import Finding
from workerlab.model import Cell, CellResult, Document, Server, Trial, Value
from workerlab.report.document import SWEEP
from workerlab.report.shapes import JsonCellRow
from workerlab.report.text import clean
from workerlab.report.values import DIGITS, cell, counts_text, jsonable, text


def render(document: Document) -> str:
    """RFC 4180 with line feeds; the header is there even where no row is."""
    if document.kind == SWEEP:
        return _written(HEADER, map(_flat, document.cells))
    names = dict.fromkeys(column.name for table in document.tables for column in table.columns)
    return _written(["table", *names], _rows(document))


def _written(header: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _rows(document: Document) -> Iterable[Mapping[str, object]]:
    for table in document.tables:
        names = [column.name for column in table.columns]
        for row in table.rows:
            values = dict(zip(names, map(_field, row), strict=True))
            yield {"table": clean(text(table.title)), **values}


def _field(value: Value) -> object:
    if isinstance(value, str | Finding):
        return _sentence(text(value))
    return clean(counts_text(value)) if isinstance(value, Mapping) else jsonable(value, DIGITS)


def _flat(result: CellResult) -> dict[str, object]:
    """A distribution or a group of numbers becomes a column each, the unit last."""
    row: dict[str, object] = {}
    for name, value in codec.plain(cell(result, JsonCellRow)).items():
        stem, _, unit = name.rpartition("_")
        if unit in ("ms", "bytes"):
            row |= {f"{stem}_{which}_{unit}": inner for which, inner in value.items()}
        elif name in ("kernel", "cpu", "core_wait", "in_force", "served_by", "ab"):
            row |= {f"{name}_{which}": inner for which, inner in value.items()}
        elif name == "routes":
            row[name] = clean(json.dumps(value)) if value else None
        elif isinstance(value, dict) and "text" not in value:
            pairs = (f"{key}={count}" for key, count in value.items())
            row[name] = clean(" ".join(pairs))
        elif isinstance(value, list):
            row[name] = " | ".join(map(_sentence, value))
        elif isinstance(value, dict | str):
            row[name] = _sentence(value)
        else:
            row[name] = value
    return row


def _sentence(spoken: Any) -> str:
    """On one line: a server's last words may hold anything."""
    return clean(spoken["text"] if isinstance(spoken, dict) else spoken)


_ANY = Trial(Cell(Server("sync", 1, 1, 1, 1), "ab", 1), 1)
_EMPTY = CellResult(_ANY, "", None, "invalid", TrialInvalid(()))
HEADER = tuple(_flat(_EMPTY))
