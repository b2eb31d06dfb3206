"""JSON, schema 1. A table's rows are objects, keyed by its columns' names, in base units (seconds,
bytes, shares of 1); null is missing; never NaN or Infinity."""

from __future__ import annotations

import json
from typing import Any

from harness.model import SCHEMA, Answer, Chart, Document, Finding, Table, Value
from harness.report.messages import heading, question_of
from harness.report.study.values import plain
from harness.report.values import jsonable, spoken


def render(study: Document) -> str:
    """One JSON document. Raises ValueError rather than write NaN."""
    return json.dumps(document(study), indent=2, allow_nan=False) + "\n"


def document(study: Document) -> dict[str, Any]:
    """The whole study."""
    return {
        "schema": SCHEMA,
        "kind": study.kind,
        "run": study.run,
        "title": spoken(study.title),
        "valid": study.valid,
        "environment": jsonable(study.environment),
        "findings": [_finding(one) for one in study.findings],
        "tables": [_table(one) for one in study.tables],
        "charts": [_chart(one) for one in study.charts],
        "notes": [spoken(note) for note in study.notes],
    }


def _finding(finding: Answer | Finding) -> dict[str, Any]:
    evidence = [spoken(one) for one in finding.evidence]
    answer = finding.answer if isinstance(finding, Answer) else finding
    return {"question": question_of(finding), "answer": spoken(answer), "evidence": evidence}


def _value(value: Value) -> object:
    return spoken(value) if isinstance(value, Finding) else plain(value)


def _table(table: Table) -> dict[str, Any]:
    names = [column.name for column in table.columns]
    return {
        "title": spoken(table.title),
        "columns": [
            {"name": column.name, "title": heading(column), "form": column.form}
            for column in table.columns
        ],
        "rows": [dict(zip(names, map(_value, row), strict=True)) for row in table.rows],
        "note": spoken(table.note),
    }


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "title": spoken(chart.title),
        "x_title": spoken(chart.x_title),
        "y_title": spoken(chart.y_title),
        "form": chart.form,
        "log": list(chart.log),
        "names": [spoken(name) for name in chart.names],
        "series": [
            {"name": spoken(one.name), "points": [[plain(x), plain(y)] for x, y in one.points]}
            for one in chart.series
        ],
        "note": spoken(chart.note),
    }
