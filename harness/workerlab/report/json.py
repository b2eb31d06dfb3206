"""JSON, schema 2. All keys are always present. Null is unknown, but a null slots_configured means
unlimited if slots_known is true. NaN and Infinity never occur.

A text is an object with its code, its values and its sentence. A sweep has cells and classes whose
keys name the unit; their numbers are rounded to the precision of the clocks, 3 decimals of a
millisecond, 4 of a rate. Other commands have tables whose rows are objects, keyed by column name,
in base units (seconds, bytes, shares of 1).
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import asdict

from workerlab import codec
from workerlab.finding import Finding
from workerlab.model import SCHEMA, SWEEP, CellResult, Document, Server, Table
from workerlab.numbers.units import value_at
from workerlab.report import json_types, keys
from workerlab.report.values import (
    NUMERIC_SETTINGS,
    PARTS,
    finite,
    heading,
    is_in_force,
    rounded,
    significant,
)

S = TypeVar("S", bound=keys.Shape)
R = TypeVar("R", bound=keys.JsonCellRow)

AB_TIMES = ("connect", "processing", "waiting", "total")  # as in AbReport


def render(document: Document) -> str:
    """One JSON document. Raises ValueError instead of writing NaN."""
    return json.dumps(codec.plain(json_of(document)), indent=2, allow_nan=False) + "\n"


def document_type(kind: str) -> type[json_types.JsonDocument]:
    """The type of the JSON of all documents of this kind."""
    return json_types.JsonSweep if kind == SWEEP else json_types.JsonTables


def json_of(document: Document) -> json_types.JsonDocument:
    """The fields of every document, plus those of its kind."""
    findings = [
        shaped(json_types.JsonFinding, finding, answer=jsonable(finding))
        for finding in document.findings
    ]
    fields: dict[str, Any] = {"tables": [_table(table) for table in document.tables]}
    if document.kind == SWEEP:
        fields = {
            "cells": [
                json_cell(
                    cell,
                    json_types.JsonCell,
                    phases=jsonable(
                        document.phases.get(cell.trial.key, ()), shape=json_types.JsonPhase
                    ),
                )
                for cell in document.cells
            ],
            "classes": [
                shaped(keys.JsonClass, result, **_settings(result.server))
                for result in document.classes
            ],
            "setup_s": jsonable(document.setup_s, rounded),
        }
    return shaped(
        document_type(document.kind),
        document,
        schema=SCHEMA,
        environment=jsonable(document.environment, finite),
        findings=findings,
        **fields,
    )


def _table(table: Table) -> json_types.JsonTable:
    names = [column.name for column in table.columns]
    return shaped(
        json_types.JsonTable,
        table,
        columns=[
            shaped(json_types.JsonColumn, column, title=heading(column)) for column in table.columns
        ],
        rows=[dict(zip(names, jsonable(row), strict=True)) for row in table.rows],
    )


# --- cells -------------------------------------------------------------------------------------


def json_cell(result: CellResult, kind: type[R], **more: Any) -> R:
    """One trial. `more`: the fields that `kind` has in addition to a row."""
    usage, ab_times = result.usage, result.ab.times if result.ab else {}
    return shaped(
        kind,
        result,
        **_settings(result.server),
        not_taken=[name for name in NUMERIC_SETTINGS if not is_in_force(name, result)],
        waiting_split_ms=shaped(
            keys.JsonSplit, {part: getattr(result.breakdown, f"{part}_s") for part in PARTS}
        ),
        kernel=shaped(
            keys.JsonKernel,
            result.counters,
            accept_queue_max=result.accept_queue_max,
            accept_queue_limit=result.accept_queue_limit,
        ),
        rss_bytes=keys.JsonRss(
            server_max=usage.server_rss_bytes, generator_max=usage.generator_rss_bytes
        ),
        **{f"ab_{name}_ms": shaped(keys.JsonAbTimes, ab_times.get(name)) for name in AB_TIMES},
        **more,
    )


def _settings(server: Server) -> dict[str, Any]:
    """The settings of a server. Versions are null if they are those of the run's environment."""
    values = {name: getattr(server, name) for name in keys.JsonSettings.__struct_fields__}
    return {**values, "gunicorn": server.gunicorn or None, "python": server.python or None}


# --- conversion ---------------------------------------------------------------------------------


def shaped(kind: type[S], source: object, **values: Any) -> S:
    """A `kind` with these values; its other keys are read from `source` by their paths, and
    converted to their types. All are null if `source` is None."""
    for name, key in keys.keys_of(kind).items():
        if name not in values:
            value = value_at(source, key.path)
            number = partial(kind.number, decimals=key.decimals)
            is_shape = isinstance(key.hint, type) and issubclass(key.hint, keys.Shape)
            if is_shape and not isinstance(value, Finding):
                values[name] = shaped(key.hint, value)
            elif key.hint == keys.Number:
                values[name] = None if value is None else number(value)
            else:
                inner = _shape_in(key.hint)
                counts = isinstance(value, Mapping) and not inner
                values[name] = jsonable(
                    dict(sorted(value.items())) if counts else value, number, inner
                )
    return kind(**values)


def _shape_in(hint: Any) -> type[keys.Shape] | None:
    """The shape of the items of a list or mapping, or of an optional value."""
    shapes = [each for each in get_args(hint) if isinstance(each, type)]
    return next((each for each in shapes if issubclass(each, keys.Shape)), None)


def jsonable(
    value: object,
    number: Callable[[float], float | None] = significant,
    shape: type[keys.Shape] | None = None,
) -> Any:
    """`value` in JSON types. Floats by `number`, structs as `shape`, other types as text."""
    if isinstance(value, Finding):
        return keys.JsonText(code=value.code, values=jsonable(value.values), text=str(value))
    if isinstance(value, Struct):
        return shaped(shape, value) if shape else jsonable(asdict(value), number)
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner, number, shape) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner, number, shape) for inner in value]
    if isinstance(value, float):
        return number(value)
    return value if value is None or isinstance(value, str | int) else str(value)
