"""JSON, schema 2. All keys are always present. Null is unknown, but a null slots_configured means
unlimited if slots_known is true. NaN and Infinity never occur.

A text is an object with its code, its values and its sentence. A sweep has cells and classes whose
keys name the unit. Other commands have tables whose rows are objects, keyed by column name, in base
units (seconds, bytes, shares of 1).
"""

import json

from workerlab import codec
from workerlab.finding import Finding
from workerlab.model import SCHEMA, Chart, ChartSeries, Document, Level, Mark, Table
from workerlab.report import json_types
from workerlab.report.sweep_document import SWEEP
from workerlab.report.values import (
    DIGITS,
    from_source,
    heading,
    json_cell,
    json_class,
    json_text,
    jsonable,
    rounded,
)


def render(document: Document) -> str:
    """One JSON document. Raises ValueError instead of writing NaN."""
    return json.dumps(codec.plain(json_of(document)), indent=2, allow_nan=False) + "\n"


def document_type(kind: str) -> type[json_types.JsonDocument]:
    """The type of the JSON of all documents of this kind."""
    return json_types.JsonSweep if kind == SWEEP else json_types.JsonTables


def json_of(document: Document) -> json_types.JsonDocument:
    """The fields of every document, plus those of its kind."""
    fields_of_kind = _sweep(document) if document.kind == SWEEP else _tables(document)
    return from_source(
        document_type(document.kind),
        document,
        schema=SCHEMA,
        environment=jsonable(document.environment),
        findings=[_finding(conclusion) for conclusion in document.findings],
        **fields_of_kind,
    )


def _sweep(document: Document) -> dict[str, object]:
    phases = {
        key: [from_source(json_types.JsonPhase, phase) for phase in phases]
        for key, phases in document.phases.items()
    }
    return {
        "cells": [
            json_cell(result, json_types.JsonCell, phases=phases.get(result.trial.key, []))
            for result in document.cells
        ],
        "classes": [json_class(result) for result in document.classes],
        "setup_s": {name: rounded(value) for name, value in document.setup_s.items()},
    }


def _tables(document: Document) -> dict[str, object]:
    return {
        "tables": [_table(table) for table in document.tables],
        "charts": [_chart(chart) for chart in document.charts],
    }


def _finding(finding: Finding) -> json_types.JsonFinding:
    return from_source(
        json_types.JsonFinding, finding, question=finding.question, answer=json_text(finding)
    )


def _table(table: Table) -> json_types.JsonTable:
    names = [column.name for column in table.columns]
    return from_source(
        json_types.JsonTable,
        table,
        columns=[
            from_source(json_types.JsonColumn, column, title=heading(column))
            for column in table.columns
        ],
        rows=[
            dict(zip(names, (jsonable(value, DIGITS) for value in row), strict=True))
            for row in table.rows
        ],
        note=json_text(table.note),
    )


def _chart(chart: Chart) -> json_types.JsonChart:
    return from_source(
        json_types.JsonChart,
        chart,
        series=[_series(series) for series in chart.series],
        level=None if chart.level is None else _level(chart.level),
        note=json_text(chart.note),
    )


def _level(level: Level) -> json_types.JsonLevel:
    return from_source(json_types.JsonLevel, level, y=jsonable(level.y, DIGITS))


def _series(series: ChartSeries) -> json_types.JsonSeries:
    return from_source(
        json_types.JsonSeries,
        series,
        points=jsonable(series.points, DIGITS),
        marks=[_mark(mark) for mark in series.marks],
    )


def _mark(mark: Mark) -> json_types.JsonMark:
    return from_source(
        json_types.JsonMark, mark, low=jsonable(mark.low, DIGITS), high=jsonable(mark.high, DIGITS)
    )
