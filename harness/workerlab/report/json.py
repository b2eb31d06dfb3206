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
from workerlab.report import shapes
from workerlab.report.document import SWEEP
from workerlab.report.values import DIGITS, cell, filled, group, heading, jsonable, rounded, spoken


def render(document: Document) -> str:
    """One JSON document. Raises ValueError instead of writing NaN."""
    return json.dumps(codec.plain(json_of(document)), indent=2, allow_nan=False) + "\n"


def shape_of(kind: str) -> type[shapes.JsonDocument]:
    """The type of all documents of this kind."""
    return shapes.JsonSweep if kind == SWEEP else shapes.JsonTables


def json_of(document: Document) -> shapes.JsonDocument:
    """The fields of every document, plus those of its kind."""
    own = _sweep(document) if document.kind == SWEEP else _tables(document)
    return filled(
        shape_of(document.kind),
        document,
        schema=SCHEMA,
        environment=jsonable(document.environment),
        findings=[_finding(conclusion) for conclusion in document.findings],
        **own,
    )


def _sweep(document: Document) -> dict[str, object]:
    phases = {
        key: [filled(shapes.JsonPhase, phase) for phase in phases]
        for key, phases in document.phases.items()
    }
    return {
        "cells": [
            cell(result, shapes.JsonCell, phases=phases.get(result.trial.key, []))
            for result in document.cells
        ],
        "classes": [group(result) for result in document.classes],
        "setup_s": {name: rounded(value) for name, value in document.setup_s.items()},
    }


def _tables(document: Document) -> dict[str, object]:
    return {
        "tables": [_table(table) for table in document.tables],
        "charts": [_chart(chart) for chart in document.charts],
    }


def _finding(finding: Finding) -> shapes.JsonFinding:
    return filled(shapes.JsonFinding, finding, question=finding.question, answer=spoken(finding))


def _table(table: Table) -> shapes.JsonTable:
    names = [column.name for column in table.columns]
    return filled(
        shapes.JsonTable,
        table,
        columns=[
            filled(shapes.JsonColumn, column, title=heading(column)) for column in table.columns
        ],
        rows=[
            dict(zip(names, (jsonable(value, DIGITS) for value in row), strict=True))
            for row in table.rows
        ],
        note=spoken(table.note),
    )


def _chart(chart: Chart) -> shapes.JsonChart:
    return filled(
        shapes.JsonChart,
        chart,
        series=[_series(series) for series in chart.series],
        level=None if chart.level is None else _level(chart.level),
        note=spoken(chart.note),
    )


def _level(level: Level) -> shapes.JsonLevel:
    return filled(shapes.JsonLevel, level, y=jsonable(level.y, DIGITS))


def _series(series: ChartSeries) -> shapes.JsonSeries:
    return filled(
        shapes.JsonSeries,
        series,
        points=jsonable(series.points, DIGITS),
        marks=[_mark(mark) for mark in series.marks],
    )


def _mark(mark: Mark) -> shapes.JsonMark:
    return filled(
        shapes.JsonMark, mark, low=jsonable(mark.low, DIGITS), high=jsonable(mark.high, DIGITS)
    )
