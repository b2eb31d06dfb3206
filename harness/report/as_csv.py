"""CSV: a header, then one row per trial. Names bear units; an empty field is unknown, one of
slots_configured unlimited where slots_known is True.

Pairs (errors, requests and connections per worker) are `name=count`, separated by blanks.
"""

from __future__ import annotations

import csv
import io
from typing import Any

from harness.model import Cell as AskedCell
from harness.model import CellResult, Server, Trial
from harness.report.document import SweepResult
from harness.report.values import cell


def render(report: SweepResult) -> str:
    """RFC 4180 with line feeds; the header is there even where no trial is."""
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADER, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_flat(cell(result)) for result in report.cells)
    return text.getvalue()


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """A distribution or a group of numbers becomes a column each, the unit last."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        stem, _, unit = name.rpartition("_")
        if unit in ("ms", "bytes"):
            row |= {f"{stem}_{which}_{unit}": one for which, one in value.items()}
        elif name in ("kernel", "cpu"):
            row |= {f"{name}_{which}": one for which, one in value.items()}
        elif isinstance(value, dict) and "text" in value:
            row[name] = value["text"]
        elif isinstance(value, dict):
            row[name] = " ".join(f"{key}={count}" for key, count in value.items())
        elif isinstance(value, list):
            row[name] = " | ".join(map(_sentence, value))
        else:
            row[name] = value
    return row


def _sentence(spoken: Any) -> str:
    return spoken["text"] if isinstance(spoken, dict) else str(spoken)


_ANY = Trial(AskedCell(Server("sync", 1, 1, 1, 1), "ab", 1), 1)
HEADER = tuple(_flat(cell(CellResult(_ANY, "", None, "invalid", ""))))
