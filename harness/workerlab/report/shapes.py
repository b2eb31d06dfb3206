"""What `--format json` prints, as types: their fields are its keys, in this order.

`report/json.py` and `report/values.py` build them; `json_schema` describes them. Every shape is
closed. Open are only what a text is made of (`values`), the environment, and the rows of a table,
whose keys are the names of its columns.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from workerlab import codec
from workerlab.model import SCHEMA, Arrivals, Form, Verdict
from workerlab.report.messages import TEMPLATES

Number = float | None
Count = int | None


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all objects whose keys are fixed."""


class JsonText(Shape, frozen=True):
    """A sentence, the code of what it says, and the values it is made of: in seconds, bytes and
    shares of 1. Programs should use code and values; sentences may be reworded."""

    code: str
    values: dict[str, Any]
    text: str


Name = JsonText | str  # a plain name, or a text
# Of a table. A union of two kinds of objects is more than msgspec can describe: text, or counts
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


class JsonMilliseconds(Shape, frozen=True):
    """A distribution of times in milliseconds; null: unknown."""

    mean: Number
    p50: Number
    p90: Number
    p95: Number
    p99: Number
    max: Number


# --- a sweep: its cells -----------------------------------------------------------------------


class JsonServedBy(Shape, frozen=True):
    """Versions that the workers proved."""

    gunicorn: str | None
    python: str | None


class JsonInForce(Shape, frozen=True):
    """Settings as the server has them; null: ignored by the worker class, or unknown."""

    workers: Count
    threads: Count
    backlog: Count
    worker_connections: Count


class JsonSplit(Shape, frozen=True):
    """Where a response time went: means in milliseconds over the steady part."""

    connect: Number
    accept_queue: Number
    in_worker: Number
    service: Number
    transfer: Number
    unattributed: Number


class JsonKernel(Shape, frozen=True):
    """How much the kernel's counters grew during the load, and the accept queue."""

    listen_overflows: Count
    listen_drops: Count
    syn_retransmits: Count
    socket_drops: Count
    accept_queue_max: Count
    accept_queue_limit: Count


class JsonCpu(Shape, frozen=True):
    """CPU seconds per second of server and load tool; the busy share of all cores."""

    server_cores: Number
    generator_cores: Number
    host_busy: Number


class JsonCoreWait(Shape, frozen=True):
    """Waiting for a core: its share of the response time, the part of it that other programs can
    have caused, cores that others used, and seconds per request in the worker and the tool."""

    share: Number
    others_share: Number
    others_cores: Number
    steal_cores: Number
    worker_s: Number
    tool_s: Number


class JsonAb(Shape, frozen=True):
    """What ApacheBench prints; null: another tool."""

    requests: Count
    time_taken_s: Number
    time_per_request_s: Number
    time_per_request_across_s: Number
    transfer_rate_bytes_per_s: Number
    total_transferred_bytes: Count
    html_transferred_bytes: Count


class JsonAbTimes(Shape, frozen=True):
    """A row of ApacheBench's table of connection times, in milliseconds; null: another tool."""

    min: Number
    mean: Number
    sd: Number
    median: Number
    max: Number


class JsonRss(Shape, frozen=True):
    """Resident memory in bytes: the highest sample."""

    server_max: Count
    generator_max: Count


class JsonRoute(Shape, frozen=True):
    """The requests of one route of a mix."""

    requests: int
    failed: int
    errors: dict[str, int]
    statuses: dict[str, int]
    answer: str
    response_ms: JsonMilliseconds


class JsonSettings(Shape, frozen=True):
    """What a server was asked to be. `gunicorn`, `python`: null where it is that of the run."""

    worker_class: str
    workers: int
    threads: int
    backlog: int
    worker_connections: int
    cpu_s: Annotated[Number, Meta(description="that --cpu makes each request compute")]
    cores: Annotated[Count, Meta(description="that --server-cores leaves the server; null: all")]
    gunicorn: str | None
    python: str | None


class JsonCellRow(JsonSettings, frozen=True):
    """One trial, as a row of CSV has it."""

    served_by: JsonServedBy
    in_force: JsonInForce
    not_taken: Annotated[list[str], Meta(description="settings that are in force otherwise")]
    app: str
    sleep_s: Number
    tool: str
    tool_processes: int
    keepalive: bool
    concurrency: int
    trial: int
    requests: Count
    failed: Count
    errors: Annotated[dict[str, int], Meta(description="failed requests by cause")]
    slots_configured: Count
    slots_known: Annotated[
        bool, Meta(description="whether slots_configured null means unlimited; else it is unknown")
    ]
    slots_measured: Count
    occupancy: Number
    throughput_rps: Number
    throughput_half_rps: Number
    tool_rps: Annotated[Number, Meta(description="throughput as the load tool reports it")]
    whole_rps: Annotated[
        Number, Meta(description="throughput of the whole load, start and drain included")
    ]
    bound_rps: Number
    response_ms: JsonMilliseconds
    connect_ms: JsonMilliseconds
    service_ms: JsonMilliseconds
    waiting_ms: JsonMilliseconds
    waiting_split_ms: JsonSplit
    split_exact: Annotated[bool, Meta(description=TEMPLATES["meaning.table.breakdown:exact"])]
    kernel: JsonKernel
    cpu: JsonCpu
    core_wait: JsonCoreWait
    rss_bytes: JsonRss
    requests_per_worker: Annotated[dict[str, int], Meta(description="by process id")]
    connections_per_worker: Annotated[
        dict[str, int] | None, Meta(description="kept connections, by process id")
    ]
    split_prediction_rps: Number
    load_s: Annotated[Number, Meta(description="how long the load took")]
    ideal_s: Annotated[Number, Meta(description="how long it takes with no idle slot")]
    generator_bound: Annotated[
        bool | None, Meta(description="whether the load tool was the limit, not the server")
    ]
    bound_reasons: list[JsonText]
    rate: Annotated[str | None, Meta(description="as requested: 200 or 80%; null: closed model")]
    routes: Annotated[dict[str, JsonRoute], Meta(description="of a mix, by name")]
    asked_rps: Annotated[Number, Meta(description="the rate in requests/s")]
    arrivals: Arrivals | None
    schedule: Annotated[Count, Meta(description="seed of the moments of arrival")]
    due_rps: Annotated[Number, Meta(description="what the schedule made of the rate")]
    sent_rps: Number
    unsent: Count
    lag_ms: Annotated[JsonMilliseconds, Meta(description="how late requests were sent")]
    achieved_concurrency: Annotated[Number, Meta(description="mean requests in flight")]
    ab: JsonAb
    ab_connect_ms: JsonAbTimes
    ab_processing_ms: JsonAbTimes
    ab_waiting_ms: JsonAbTimes
    ab_total_ms: JsonAbTimes
    verdict: Verdict
    target: Annotated[list[JsonText], Meta(description="the outcome of each term of --slo")]
    reason: Annotated[JsonText, Meta(description="of the verdict")]
    diagnosis: JsonText | None
    findings: Annotated[list[JsonText], Meta(description="all diagnoses; the first is `diagnosis`")]
    notes: list[JsonText]


class JsonPhase(Shape, frozen=True):
    """A stretch of the load, in seconds since it began."""

    name: Literal["ramp-up", "drain", "steady", "churn"]
    start_s: float
    end_s: float
    why: JsonText


class JsonCell(JsonCellRow, frozen=True):
    """One trial: a server under a load. Numbers are null where the verdict is invalid."""

    phases: list[JsonPhase]


class JsonClass(JsonSettings, frozen=True):
    """The cells that differ in load alone."""

    tool: str
    tool_processes: int
    keepalive: bool
    slots_configured: Count
    slots_known: bool
    slots_measured: Count
    capacity_rps: Annotated[Number, Meta(description="highest sustained throughput")]
    capacity_ci95: Annotated[
        tuple[Number, Number] | None, Meta(description="its 95 % interval over launches")
    ]
    knee: Annotated[Number, Meta(description="connections from which on requests wait")]
    knee_note: JsonText
    knee_predicted: Annotated[Number, Meta(description=TEMPLATES["meaning.knee_predicted"])]
    diagnosis: JsonText | None


# --- other commands: tables and charts --------------------------------------------------------


class JsonColumn(Shape, frozen=True):
    """`name` is the key in the rows, its unit last."""

    name: str
    title: str
    form: Form


class JsonTable(Shape, frozen=True):
    """Rows in base units: seconds, bytes, shares of 1; null: missing."""

    title: Name
    columns: list[JsonColumn]
    rows: list[dict[str, Value]]
    note: Name


class JsonMark(Shape, frozen=True):
    """A point of a scatter, and its whisker in y."""

    name: Name
    low: Number
    high: Number


class JsonSeries(Shape, frozen=True):
    """Points (x, y) under one name."""

    name: Name
    points: list[tuple[Number, Number]]
    marks: list[JsonMark]


class JsonLevel(Shape, frozen=True):
    """A horizontal line."""

    name: Name
    y: Number


class JsonChart(Shape, frozen=True):
    """`log`: whether the axes (x, y) are logarithmic; `names`: the places on x, from 0."""

    title: Name
    x_title: Name
    y_title: Name
    form: Literal["lines", "scatter", "bars", "stacked"]
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
    """What every command prints of a run. `valid`: all that had to be measured was."""

    schema: int
    kind: str
    run: str
    title: Name
    valid: bool
    environment: Annotated[dict[str, Any], Meta(description="the machine and its software")]


class JsonSweep(JsonDocument, frozen=True):
    """The cells and classes of a sweep. `overhead`: time of the load / time with no idle slot."""

    overhead: Number
    cells: list[JsonCell]
    classes: list[JsonClass]
    setup_s: Annotated[dict[str, Number], Meta(description="median per cell, by stage")]
    findings: list[JsonFinding]
    notes: list[JsonText]


class JsonTables(JsonDocument, frozen=True):
    """The tables and charts of a run."""

    tables: list[JsonTable]
    charts: list[JsonChart]
    findings: list[JsonFinding]
    notes: list[JsonText]


# --- their schema -----------------------------------------------------------------------------


def json_schema(documents: Mapping[str, type[JsonDocument]]) -> dict[str, Any]:
    """JSON Schema (2020-12) of the document of one kind, or of several: any of them."""
    shapes = tuple(dict.fromkeys(documents.values()))
    definitions = codec.schemas(shapes)
    for one in definitions.values():
        _describe(one)
    whole = {shape: definitions.pop(shape.__name__) for shape in shapes}
    of_kind = {kind: _of_kind(whole[shape], kind) for kind, shape in documents.items()}
    top: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    if len(of_kind) == 1:
        ((kind, document),) = of_kind.items()
        return {**top, **document, "title": f"workerlab {kind}", "$defs": definitions}
    refs = [{"$ref": f"#/$defs/{kind}"} for kind in of_kind]
    return {**top, "title": "workerlab", "oneOf": refs, "$defs": {**of_kind, **definitions}}


def _of_kind(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    properties = {**schema["properties"], "schema": {"const": SCHEMA}, "kind": {"const": kind}}
    return {**schema, "title": kind, "properties": properties}


def _describe(definition: dict[str, Any]) -> None:
    """Say what each property is, by the meaning of the table column of that name."""
    definition["description"] = " ".join(definition["description"].split())
    for name, schema in definition["properties"].items():
        for code in (f"meaning.{name}", f"meaning.table.breakdown:{name}_s"):
            if code in TEMPLATES:
                schema.setdefault("description", TEMPLATES[code])
