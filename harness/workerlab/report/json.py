"""JSON, schema 1. All keys always; null is unknown, of slots_configured unlimited where slots_known
is true; never NaN or Infinity.

A text is an object of its code, the values it is made of, and its sentence. A sweep has its cells
and classes in milliseconds; the rows of other commands' tables are objects, keyed by the names of
its columns, in base units (seconds, bytes, shares of 1).
"""

import json
from typing import Any

from workerlab.model import SCHEMA, Chart, Document, Finding, Level, Series, Table
from workerlab.report.document import SWEEP
from workerlab.report.messages import heading, question_of
from workerlab.report.values import DIGITS, cell, fields, group, jsonable, rounded, spoken


def render(document: Document) -> str:
    """One JSON document. Raises ValueError rather than write NaN."""
    return json.dumps(json_of(document), indent=2, allow_nan=False) + "\n"


def json_of(document: Document) -> dict[str, Any]:
    """What every command has, and what it has shown."""
    return {
        "schema": SCHEMA,
        **fields(document, "kind run title valid"),
        "environment": jsonable(document.environment),
        **(_sweep(document) if document.kind == SWEEP else _tables(document)),
        "findings": [_finding(one) for one in document.findings],
        **fields(document, "notes"),
    }


def _sweep(document: Document) -> dict[str, Any]:
    phases = {
        one.key: [fields(phase, "name start_s end_s why") for phase in one.phases]
        for one in document.timelines
    }
    return {
        "overhead": rounded(document.overhead),
        "cells": [
            {**cell(result), "phases": phases.get(result.trial.key, [])}
            for result in document.cells
        ],
        "classes": [group(result) for result in document.classes],
        "setup_s": {name: rounded(value) for name, value in document.setup_s.items()},
    }


def _tables(document: Document) -> dict[str, Any]:
    return {
        "tables": [_table(one) for one in document.tables],
        "charts": [_chart(one) for one in document.charts],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    answer = {"question": question_of(finding), "answer": spoken(finding)}
    return answer | fields(finding, "trials evidence")


def _table(table: Table) -> dict[str, Any]:
    names = [column.name for column in table.columns]
    return {
        "title": spoken(table.title),
        "columns": [
            {
                "name": column.name,
                "title": heading(column, table.title.code, table.unit),
                "form": column.form,
            }
            for column in table.columns
        ],
        "rows": [
            dict(zip(names, (jsonable(one, DIGITS) for one in row), strict=True))
            for row in table.rows
        ],
        "note": spoken(table.note),
    }


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        **fields(chart, "title x_title y_title form log names"),
        "series": [_series(one) for one in chart.series],
        "level": _level(chart.level),
        "note": spoken(chart.note),
    }


def _level(level: Level | None) -> dict[str, Any] | None:
    if level is None:
        return None
    return {"name": spoken(level.name), "y": jsonable(level.y, DIGITS)}


def _series(series: Series) -> dict[str, Any]:
    return {
        "name": spoken(series.name),
        "points": jsonable(series.points, DIGITS),
        "marks": [
            {
                "name": spoken(one.name),
                "low": jsonable(one.low, DIGITS),
                "high": jsonable(one.high, DIGITS),
            }
            for one in series.marks
        ],
    }
