"""JSON, schema 1. A table's rows are objects, keyed by its columns' names, in base units (seconds,
bytes, shares of 1); null is missing; never NaN or Infinity."""

from __future__ import annotations

import json
from typing import Any

from harness.model import SCHEMA, Chart, Document, Table
from harness.report.study.values import plain
from harness.report.values import jsonable


def render(study: Document) -> str:
    """One JSON document. Raises ValueError rather than write NaN."""
    return json.dumps(document(study), indent=2, allow_nan=False) + "\n"


def document(study: Document) -> dict[str, Any]:
    """The whole study."""
    return {
        "schema": SCHEMA,
        "kind": study.kind,
        "run": study.run,
        "title": study.title,
        "valid": study.valid,
        "environment": jsonable(study.environment),
        "findings": [
            {"question": one.question, "answer": one.answer, "evidence": list(one.evidence)}
            for one in study.findings
        ],
        "tables": [_table(one) for one in study.tables],
        "charts": [_chart(one) for one in study.charts],
        "notes": list(study.notes),
    }


def _table(table: Table) -> dict[str, Any]:
    names = [column.name for column in table.columns]
    return {
        "title": table.title,
        "columns": [
            {"name": column.name, "title": column.title, "form": column.form}
            for column in table.columns
        ],
        "rows": [dict(zip(names, map(plain, row), strict=True)) for row in table.rows],
        "note": table.note,
    }


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "title": chart.title,
        "x_title": chart.x_title,
        "y_title": chart.y_title,
        "form": chart.form,
        "log": list(chart.log),
        "names": list(chart.names),
        "series": [
            {"name": one.name, "points": [[plain(x), plain(y)] for x, y in one.points]}
            for one in chart.series
        ],
        "note": chart.note,
    }
