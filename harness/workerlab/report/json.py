"""JSON, schema 2. All keys always; null is unknown, of slots_configured unlimited where slots_known
is true; never NaN or Infinity.

A text is an object of its code, the values it is made of, and its sentence. A sweep has its cells
and classes in milliseconds; the rows of other commands' tables are objects, keyed by the names of
its columns, in base units (seconds, bytes, shares of 1).
"""

import json

from workerlab import codec
from workerlab.finding import Finding
from workerlab.model import SCHEMA, Chart, ChartSeries, Document, Level, Mark, Table
from workerlab.report import shapes
from workerlab.report.document import SWEEP
from workerlab.report.values import DIGITS, cell, filled, group, heading, jsonable, rounded, spoken


def render(document: Document) -> str:
    """One JSON document. Raises ValueError rather than write NaN."""
    return json.dumps(codec.plain(json_of(document)), indent=2, allow_nan=False) + "\n"


def shape_of(kind: str) -> type[shapes.JsonDocument]:
    """Of the documents that a command makes."""
    return shapes.JsonSweep if kind == SWEEP else shapes.JsonTables


def json_of(document: Document) -> shapes.JsonDocument:
    """What every command has, and what it has shown."""
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
        timeline.key: [filled(shapes.JsonPhase, phase) for phase in timeline.phases]
        for timeline in document.timelines
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
