"""The JSON output, schema 2: its types, whose fields are the keys, in this order; the conversion of
documents to these types; and their JSON Schema. `keys.py` has the types of trials and series.

All keys are always present. Null means unknown, but a null slots_configured means unlimited if
slots_known is true. NaN and Infinity never occur. No shape allows other keys, except the `values`
of a text, the environment, and the rows of a table, whose keys are its column names.

A text is an object with a code, values and a sentence. A sweep has cells and classes whose keys
name the unit; their numbers are rounded to the precision of the clocks: 3 decimals for
milliseconds, 4 for rates. Other commands have tables whose rows are objects, keyed by column name,
in base units (seconds, bytes, shares of 1).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import asdict

from workerlab import codec
from workerlab.finding import Finding
from workerlab.model.plan import Server
from workerlab.model.result import (
    SCHEMA,
    SWEEP,
    ChartForm,
    Document,
    Form,
    Invalid,
    PhaseName,
    Table,
    TrialResult,
)
from workerlab.report import keys
from workerlab.report.keys import (
    JsonCellRow,
    JsonClass,
    JsonText,
    Number,
    Shape,
    annotation,
    keys_of,
)
from workerlab.report.values import (
    NUMERIC_SETTINGS,
    PARTS,
    figure_of,
    finite,
    heading,
    is_in_force,
    rounded,
    significant,
)

S = TypeVar("S", bound=Shape)
R = TypeVar("R", bound=JsonCellRow)

AB_TIMES = ("connect", "processing", "waiting", "total")  # as in AbReport

Name = JsonText | str  # a text, or a plain name
# The value of a table cell. msgspec cannot describe a union of two object types (text, counts)
Value = Annotated[
    Any,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": ["string", "boolean", "number", "null"]},
                {"$ref": "#/$defs/JsonText"},
                {"type": "object", "additionalProperties": {"type": "integer"}},
            ]
        }
    ),
]


class TableShape(Shape, frozen=True):
    """Base of objects whose values are in base units and can have any magnitude."""

    @staticmethod
    def number(value: float, decimals: int) -> float | None:
        return significant(value)


# --- a sweep -----------------------------------------------------------------------------------


class JsonPhase(Shape, frozen=True):
    """A phase of the load, in seconds since the load began."""

    name: PhaseName
    start_s: float
    end_s: float
    why: JsonText


class JsonCell(JsonCellRow, frozen=True):
    """One trial: a server under a load. Its numbers are null if the verdict is invalid."""

    phases: list[JsonPhase]


# --- other commands: tables and charts --------------------------------------------------------


class JsonColumn(TableShape, frozen=True):
    """A column. `name` is its key in the rows, and ends with the unit."""

    name: str
    title: str
    form: Form


class JsonTable(TableShape, frozen=True):
    """A table, with values in base units: seconds, bytes, shares of 1; null: missing."""

    title: Name
    columns: list[JsonColumn]
    rows: list[dict[str, Value]]
    note: Name


class JsonMark(TableShape, frozen=True):
    """A point of a scatter plot, with its whisker in y."""

    name: Name
    low: Number
    high: Number


class JsonSeries(TableShape, frozen=True):
    """A named series of points (x, y)."""

    name: Name
    points: list[tuple[Number, Number]]
    marks: list[JsonMark]


class JsonLevel(TableShape, frozen=True):
    """A horizontal line."""

    name: Name
    y: Number


class JsonChart(TableShape, frozen=True):
    """A chart. `log`: whether the axes (x, y) are logarithmic; `names`: labels of x = 0, 1, 2 …"""

    title: Name
    x_title: Name
    y_title: Name
    form: ChartForm
    log: tuple[bool, bool]
    names: list[Name]
    series: list[JsonSeries]
    level: JsonLevel | None
    note: Name


# --- documents --------------------------------------------------------------------------------


class JsonFinding(Shape, frozen=True):
    """`question`: the one it answers, or ""; `trials`: keys of the trials it is based on."""

    question: str
    answer: JsonText
    trials: list[str]
    evidence: list[JsonText]


class JsonDocument(Shape, frozen=True):
    """The keys common to all documents. `valid`: whether everything required was measured."""

    schema: int
    kind: str
    run: str
    title: Name
    valid: bool
    environment: Annotated[dict[str, Any], "the machine and its software"]


class JsonSweep(JsonDocument, frozen=True):
    """The cells and classes of a sweep. `overhead`: time of the load / time without idle slots."""

    overhead: Number
    cells: list[JsonCell]
    classes: list[JsonClass]
    setup_s: Annotated[dict[str, Number], "median duration of each stage, over the cells"]
    findings: list[JsonFinding]
    notes: list[JsonText]


class JsonTables(JsonDocument, frozen=True):
    """The tables and charts of a run."""

    tables: list[JsonTable]
    charts: list[JsonChart]
    findings: list[JsonFinding]
    notes: list[JsonText]


# --- from a document ---------------------------------------------------------------------------


def render(document: Document) -> str:
    """The document as JSON. Raises ValueError instead of writing NaN."""
    return json.dumps(codec.plain(json_of(document)), indent=2, allow_nan=False) + "\n"


def document_type(kind: str) -> type[JsonDocument]:
    """The type of the JSON of documents of this kind."""
    return JsonSweep if kind == SWEEP else JsonTables


def json_of(document: Document) -> JsonDocument:
    """The document in JSON types: the common fields, and those of its kind."""
    findings = [
        shaped(JsonFinding, finding, answer=jsonable(finding)) for finding in document.findings
    ]
    fields: dict[str, Any] = {"tables": [_table(table) for table in document.tables]}
    if document.kind == SWEEP:
        fields = {
            "cells": [
                json_cell(
                    cell,
                    JsonCell,
                    phases=jsonable(document.phases.get(cell.trial.key, ()), shape=JsonPhase),
                )
                for cell in document.cells
            ],
            "classes": [
                shaped(JsonClass, result, **_settings(result.server)) for result in document.classes
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


def _table(table: Table) -> JsonTable:
    names = [column.name for column in table.columns]
    return shaped(
        JsonTable,
        table,
        columns=[shaped(JsonColumn, column, title=heading(column)) for column in table.columns],
        rows=[dict(zip(names, jsonable(row), strict=True)) for row in table.rows],
    )


# --- cells -------------------------------------------------------------------------------------


# The keys of an invalid trial that are empty or false instead of null
EMPTY_VALUES: Mapping[str, Any] = {
    "errors": {},
    "split_exact": False,
    "requests_per_worker": {},
    "bound_reasons": [],
    "routes": {},
    "target": [],
    "findings": [],
}


def json_cell(result: TrialResult, kind: type[R], **more: Any) -> R:
    """The JSON of one trial. `more`: fields that `kind` has in addition to those of a row."""
    figure = partial(figure_of, result)
    return shaped(
        kind,
        result,
        **_settings(result.server),
        not_taken=[name for name in NUMERIC_SETTINGS if not is_in_force(name, result)],
        waiting_split_ms=shaped(
            keys.JsonSplit, {part: figure(f"breakdown.{part}_s") for part in PARTS}
        ),
        kernel=shaped(
            keys.JsonKernel,
            figure("counters"),
            accept_queue_max=figure("accept_queue_max"),
            accept_queue_limit=figure("accept_queue_limit"),
        ),
        rss_bytes=keys.JsonRss(
            server_max=figure("usage.server_rss_bytes"),
            generator_max=figure("usage.generator_rss_bytes"),
        ),
        **{
            f"ab_{name}_ms": shaped(keys.JsonAbTimes, figure(f"ab.times.{name}"))
            for name in AB_TIMES
        },
        **(EMPTY_VALUES if isinstance(result, Invalid) else {}),
        **more,
    )


def _settings(server: Server) -> dict[str, Any]:
    """The settings of a server. Versions are null if they are the same as the run's."""
    values = {name: getattr(server, name) for name in keys.JsonSettings.__struct_fields__}
    return {**values, "gunicorn": server.gunicorn or None, "python": server.python or None}


# --- conversion ---------------------------------------------------------------------------------


def shaped(kind: type[S], source: object, **values: Any) -> S:
    """A `kind` with these values. Its other keys are read from `source` by their paths and
    converted to their types; they are null if `source` is None."""
    for name, key in keys_of(kind).items():
        if name not in values:
            value = figure_of(source, key.path)
            number = partial(kind.number, decimals=key.decimals)
            is_shape = isinstance(key.hint, type) and issubclass(key.hint, Shape)
            if is_shape and not isinstance(value, Finding):
                values[name] = shaped(key.hint, value)
            elif key.hint == Number:
                values[name] = None if value is None else number(value)
            else:
                inner = _shape_in(key.hint)
                counts = isinstance(value, Mapping) and not inner
                values[name] = jsonable(
                    dict(sorted(value.items())) if counts else value, number, inner
                )
    return kind(**values)


def _shape_in(hint: Any) -> type[Shape] | None:
    """The shape of the items of a list or mapping, or of an optional value, if any."""
    types = [argument for argument in get_args(hint) if isinstance(argument, type)]
    return next((inner for inner in types if issubclass(inner, Shape)), None)


def jsonable(
    value: object,
    number: Callable[[float], float | None] = significant,
    shape: type[Shape] | None = None,
) -> Any:
    """`value` in JSON types: floats by `number`, structs as `shape`, other types as text."""
    if isinstance(value, Finding):
        return JsonText(code=value.code, values=jsonable(value.values), text=str(value))
    if isinstance(value, Struct):
        return shaped(shape, value) if shape else jsonable(asdict(value), number)
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner, number, shape) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner, number, shape) for inner in value]
    if isinstance(value, float):
        return number(value)
    return value if value is None or isinstance(value, str | int) else str(value)


# --- JSON Schema ------------------------------------------------------------------------------


def json_schema(kinds: Iterable[str]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of documents of these kinds."""
    documents = {kind: document_type(kind) for kind in kinds}
    shapes = tuple(dict.fromkeys(documents.values()))
    definitions = codec.schemas(shapes)
    for name, definition in definitions.items():
        _describe(definition, {**vars(keys), **globals()}[name])
    schemas = {shape: definitions.pop(shape.__name__) for shape in shapes}
    schema_of = {kind: {**schemas[shape], "title": kind} for kind, shape in documents.items()}
    for kind, schema in schema_of.items():
        constants = {"schema": {"const": SCHEMA}, "kind": {"const": kind}}
        schema["properties"] = {**schema["properties"], **constants}
    top: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if len(schema_of) == 1:
        ((kind, document),) = schema_of.items()
        return {**top, **document, "title": f"workerlab {kind}", "$defs": definitions}
    refs = [{"$ref": f"#/$defs/{kind}"} for kind in schema_of]
    return {**top, "title": "workerlab", "oneOf": refs, "$defs": {**schema_of, **definitions}}


def _describe(definition: dict[str, Any], shape: type[Struct]) -> None:
    """Describe the shape by its docstring, and each property by its string or its meaning."""
    definition["description"] = " ".join(definition["description"].split())
    hints = get_type_hints(shape, include_extras=True)
    for name, key in keys_of(shape).items():
        if description := annotation(hints[name], str) or key.meaning:
            definition["properties"][name]["description"] = description
