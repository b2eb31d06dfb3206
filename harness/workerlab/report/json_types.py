"""The types that `--format json` prints: their fields are its keys, in this order. `keys.py` has
those of trials and series.

`json.py` builds the shapes; `json_schema` describes them. No shape allows other keys, except the
`values` of a text, the environment, and the rows of a table, whose keys are its column names.
"""

from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from msgspec import Meta, Struct

from workerlab import codec
from workerlab.model import SCHEMA, ChartForm, Form, PhaseName
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
from workerlab.report.values import significant

Name = JsonText | str  # a plain name, or a text
# A table value. msgspec cannot describe a union of two types of objects (text, counts)
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
    """Base of objects with values of any size, in base units."""

    @staticmethod
    def number(value: float, decimals: int) -> float | None:
        return significant(value)


# --- a sweep -----------------------------------------------------------------------------------


class JsonPhase(Shape, frozen=True):
    """A stretch of the load, in seconds since it began."""

    name: PhaseName
    start_s: float
    end_s: float
    why: JsonText


class JsonCell(JsonCellRow, frozen=True):
    """One trial: a server under a load. Numbers are null where the verdict is invalid."""

    phases: list[JsonPhase]


# --- other commands: tables and charts --------------------------------------------------------


class JsonColumn(TableShape, frozen=True):
    """`name` is the key in the rows, its unit last."""

    name: str
    title: str
    form: Form


class JsonTable(TableShape, frozen=True):
    """Rows in base units: seconds, bytes, shares of 1; null: missing."""

    title: Name
    columns: list[JsonColumn]
    rows: list[dict[str, Value]]
    note: Name


class JsonMark(TableShape, frozen=True):
    """A point of a scatter, and its whisker in y."""

    name: Name
    low: Number
    high: Number


class JsonSeries(TableShape, frozen=True):
    """Points (x, y) under one name."""

    name: Name
    points: list[tuple[Number, Number]]
    marks: list[JsonMark]


class JsonLevel(TableShape, frozen=True):
    """A horizontal line."""

    name: Name
    y: Number


class JsonChart(TableShape, frozen=True):
    """`log`: whether the axes (x, y) are logarithmic; `names`: the places on x, from 0."""

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
    """`question` is empty where it answers none; `trials`: keys of those it rests on."""

    question: str
    answer: JsonText
    trials: list[str]
    evidence: list[JsonText]


class JsonDocument(Shape, frozen=True):
    """What every command prints of a run. `valid`: everything required was measured."""

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
    setup_s: Annotated[dict[str, Number], "median per cell, by stage"]
    findings: list[JsonFinding]
    notes: list[JsonText]


class JsonTables(JsonDocument, frozen=True):
    """The tables and charts of a run."""

    tables: list[JsonTable]
    charts: list[JsonChart]
    findings: list[JsonFinding]
    notes: list[JsonText]


# --- JSON Schema ------------------------------------------------------------------------------


def json_schema(documents: Mapping[str, type[JsonDocument]]) -> dict[str, Any]:
    """JSON Schema (2020-12) of the documents of one kind, or of any of several kinds."""
    shapes = tuple(dict.fromkeys(documents.values()))
    definitions = codec.schemas(shapes)
    for name, definition in definitions.items():
        _describe(definition, {**vars(keys), **globals()}[name])
    whole = {shape: definitions.pop(shape.__name__) for shape in shapes}
    of_kind = {kind: {**whole[shape], "title": kind} for kind, shape in documents.items()}
    for kind, schema in of_kind.items():
        fixed = {"schema": {"const": SCHEMA}, "kind": {"const": kind}}
        schema["properties"] = {**schema["properties"], **fixed}
    top: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if len(of_kind) == 1:
        ((kind, document),) = of_kind.items()
        return {**top, **document, "title": f"workerlab {kind}", "$defs": definitions}
    refs = [{"$ref": f"#/$defs/{kind}"} for kind in of_kind]
    return {**top, "title": "workerlab", "oneOf": refs, "$defs": {**of_kind, **definitions}}


def _describe(definition: dict[str, Any], shape: type[Struct]) -> None:
    """Describes each property by its string, or by its meaning, as the legends of tables do."""
    definition["description"] = " ".join(definition["description"].split())
    hints = get_type_hints(shape, include_extras=True)
    for name, key in keys_of(shape).items():
        if description := annotation(hints[name], str) or key.meaning:
            definition["properties"][name]["description"] = description
