"""The keys of a trial and of a series in JSON and CSV, in this order, and the table columns made
from them.

Each key is declared here once, with its `JsonKey`: the path to its value, its heading and meaning.
Table columns (`column`), CSV, JSON and the JSON Schema (`json.py`) are derived from it.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from workerlab.model.plan import Arrivals
from workerlab.model.result import Column, Form, Value, Verdict
from workerlab.report.values import rounded


class JsonKey(Struct, frozen=True):
    """How tables show a key, and where its value is. The schema uses `meaning` as the description,
    unless the annotation contains a string for it."""

    heading: str = ""  # "": the same as the key
    meaning: str = ""
    path: str = ""  # attribute path in the result; "": the key without "_ms"
    form: Form | None = None  # None: derived from the type
    decimals: int = 4
    hint: Any = None  # the type of the key, set by `keys_of`


T = TypeVar("T")
Number = float | None
Count = int | None
FORMS: Mapping[object, Form] = {int: "count", Count: "count", Number: "number"}  # or else "text"
# Shared by cells and classes
PROCESSES = "processes of the load tool"
SlotsConfigured = Annotated[
    Count, JsonKey("slots set", "requests that the server can serve at once with these settings")
]
SlotsMeasured = Annotated[Count, JsonKey("slots used", "the most that were served at once")]


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all objects whose keys are fixed. `number` rounds one of its numbers."""

    @staticmethod
    def number(value: float, decimals: int) -> float | None:
        return rounded(value, decimals)


class Milliseconds(Shape, frozen=True):
    """Base of objects with times in milliseconds, converted from seconds."""

    @staticmethod
    def number(value: float, decimals: int) -> float | None:
        return rounded(value * 1e3, 3)


class JsonText(Shape, frozen=True):
    """A sentence, its code, and its values in seconds, bytes and shares of 1. Programs should use
    the code and the values: sentences may be reworded."""

    code: str
    values: dict[str, Any]
    text: str

    def __str__(self) -> str:
        return self.text


class JsonMilliseconds(Milliseconds, frozen=True):
    """A distribution of times in milliseconds; null: unknown."""

    mean: Number
    p50: Number
    p90: Number
    p95: Number
    p99: Number
    max: Number


# --- a sweep: its cells -----------------------------------------------------------------------


class JsonServedBy(Shape, frozen=True):
    """The versions that the workers reported."""

    gunicorn: str | None
    python: str | None


class JsonInForce(Shape, frozen=True):
    """Effective settings of the server; null: ignored by the worker class, or unknown."""

    workers: Count
    threads: Count
    backlog: Count
    worker_connections: Count


class JsonSplit(Milliseconds, frozen=True):
    """The parts of the response time: means in milliseconds over the steady part."""

    connect: Annotated[Number, JsonKey(meaning="until the client was connected")]
    accept_queue: Annotated[Number, JsonKey(meaning="until a worker accepted the connection")]
    in_worker: Annotated[Number, JsonKey(meaning="accepted, not yet in the app")]
    service: Annotated[Number, JsonKey(meaning="in the app")]
    transfer: Annotated[Number, JsonKey(meaning="until the client had the last byte")]
    unattributed: Annotated[Number, JsonKey("rest", "time that none of the parts explains")]


class JsonKernel(Shape, frozen=True):
    """Growth of the kernel's counters during the load, and the accept queue."""

    listen_overflows: Count
    listen_drops: Count
    syn_retransmits: Count
    socket_drops: Count
    accept_queue_max: Count
    accept_queue_limit: Count


class JsonCpu(Shape, frozen=True):
    """CPU seconds per second used by server and load tool, and the busy share of all cores."""

    server_cores: Number
    generator_cores: Number
    host_busy: Number


class JsonCoreWait(Shape, frozen=True):
    """Waiting for a core: its share of the response time, the share that other programs may have
    caused, the cores they used, and seconds of waiting per request in the worker and the tool."""

    share: Number
    others_share: Number
    others_cores: Number
    steal_cores: Number
    worker_s: Annotated[Number, JsonKey(decimals=6)]
    tool_s: Annotated[Number, JsonKey(decimals=6)]


class JsonAb(Shape, frozen=True):
    """Figures that ApacheBench prints; null: the load tool is another one."""

    requests: Count
    time_taken_s: Annotated[Number, JsonKey(form="seconds", decimals=6)]
    time_per_request_s: Annotated[
        Number,
        JsonKey(
            "per request",
            '"Time per request (mean)": time taken x concurrency / requests',
            form="seconds",
            decimals=6,
        ),
    ]
    time_per_request_across_s: Annotated[
        Number,
        JsonKey(
            "across all",
            '"(mean, across all concurrent requests)": time taken / requests',
            form="seconds",
            decimals=6,
        ),
    ]
    transfer_rate_bytes_per_s: Annotated[Number, JsonKey("received/s", form="bytes")]
    total_transferred_bytes: Annotated[Count, JsonKey("total", form="bytes")]
    html_transferred_bytes: Annotated[Count, JsonKey("HTML", form="bytes")]


class JsonAbTimes(Milliseconds, frozen=True):
    """A row of ApacheBench's table of connection times, in milliseconds; null: another tool."""

    min: Number
    mean: Number
    sd: Number
    median: Number
    max: Number


class JsonRss(Shape, frozen=True):
    """Resident memory in bytes, the highest sample of each."""

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
    """Requested server settings. `gunicorn`, `python`: null if the same as the run's."""

    worker_class: Annotated[str, JsonKey("class", path="server.worker_class")]
    workers: int
    threads: int
    backlog: int
    worker_connections: Annotated[int, JsonKey("w. conn.")]
    cpu_s: Annotated[
        Number,
        JsonKey("CPU s", form="text"),
        "CPU seconds per request, set with --cpu",
    ]
    cores: Annotated[
        Count,
        JsonKey(form="text"),
        "cores that the server may use (--server-cores); null: all",
    ]
    gunicorn: str | None
    python: str | None


class JsonCellRow(JsonSettings, frozen=True):
    """One trial, as in a row of CSV."""

    served_by: JsonServedBy
    in_force: JsonInForce
    not_taken: Annotated[list[str], "settings whose requested value is not effective"]
    app: str
    sleep_s: Annotated[Number, JsonKey(decimals=6)]
    tool: Annotated[str, JsonKey("load tool", path="trial.cell.tool")]
    tool_processes: Annotated[int, JsonKey("proc.", PROCESSES, "trial.cell.processes")]
    keepalive: Annotated[bool, JsonKey("keep-alive", path="trial.cell.keepalive")]
    concurrency: Annotated[int, JsonKey("conn.", "connections kept busy", "trial.cell.concurrency")]
    trial: Annotated[int, JsonKey(path="trial.number")]
    requests: Count
    failed: Count
    errors: Annotated[dict[str, int], "number of failed requests by cause"]
    slots_configured: SlotsConfigured
    slots_known: Annotated[
        bool,
        JsonKey(path="worker_class.slots_known"),
        "whether the slots are known: a null slots_configured then means unlimited",
    ]
    slots_measured: SlotsMeasured
    occupancy: Annotated[
        Number,
        JsonKey(
            "slots busy",
            "the mean share of slots in use, over the steady part, or over the whole load if it"
            " stalled",
            form="percent",
        ),
    ]
    throughput_rps: Annotated[Number, JsonKey("req/s")]
    throughput_half_rps: Annotated[
        Number,
        JsonKey(
            "± req/s",
            "half of the throughput's 95 % interval within this load",
        ),
    ]
    tool_rps: Annotated[Number, "the throughput that the load tool reports"]
    whole_rps: Annotated[Number, "throughput of the whole load, including start and drain"]
    bound_rps: Annotated[Number, JsonKey(meaning="the most that connections and slots allow")]
    response_ms: JsonMilliseconds
    connect_ms: JsonMilliseconds
    service_ms: JsonMilliseconds
    waiting_ms: JsonMilliseconds
    waiting_split_ms: JsonSplit
    split_exact: Annotated[
        bool, JsonKey("exact", "whether every request was traced", "breakdown.exact")
    ]
    kernel: JsonKernel
    cpu: Annotated[JsonCpu, JsonKey(path="usage")]
    core_wait: JsonCoreWait
    rss_bytes: JsonRss
    requests_per_worker: Annotated[dict[str, int], "requests by process id"]
    connections_per_worker: Annotated[dict[str, int] | None, "kept-alive connections by process id"]
    split_prediction_rps: Annotated[
        Number,
        JsonKey(
            "by worker req/s",
            "the throughput if each slot serves one of its worker's connections at a time",
        ),
    ]
    load_s: Annotated[Number, "how long the load took"]
    ideal_s: Annotated[Number, "how long the load takes if no slot is idle"]
    generator_bound: Annotated[bool | None, "whether the load tool was the limit, not the server"]
    bound_reasons: list[JsonText]
    rate: Annotated[
        str | None,
        JsonKey(path="trial.cell.rate.label"),
        "the requested rate: 200 or 80%; null: closed model",
    ]
    routes: Annotated[dict[str, JsonRoute], "routes of a mix by name"]
    asked_rps: Annotated[Number, JsonKey("rate req/s"), "the rate in requests/s"]
    arrivals: Annotated[Arrivals | None, JsonKey(path="at_rate.arrivals")]
    schedule: Annotated[Count, JsonKey(path="at_rate.schedule"), "seed of the arrival times"]
    due_rps: Annotated[Number, JsonKey(path="at_rate.due_rps"), "the rate of the schedule"]
    sent_rps: Annotated[Number, JsonKey(path="at_rate.sent_rps")]
    unsent: Annotated[Count, JsonKey(path="at_rate.unsent")]
    lag_ms: Annotated[JsonMilliseconds, JsonKey(path="at_rate.lag"), "how late requests were sent"]
    achieved_concurrency: Annotated[Number, "mean requests in flight"]
    ab: JsonAb
    ab_connect_ms: JsonAbTimes
    ab_processing_ms: JsonAbTimes
    ab_waiting_ms: JsonAbTimes
    ab_total_ms: JsonAbTimes
    verdict: Verdict
    target: Annotated[
        list[JsonText],
        JsonKey(meaning="whether the cell meets the target (--slo), or which metrics miss it"),
        "the outcome of each term of --slo",
    ]
    reason: Annotated[JsonText, "reason for the verdict"]
    diagnosis: JsonText | None
    findings: Annotated[list[JsonText], "all diagnoses; the first one is also `diagnosis`"]
    notes: list[JsonText]


class JsonClass(JsonSettings, frozen=True):
    """A series: the cells that differ only in load."""

    tool: str
    tool_processes: Annotated[int, JsonKey(meaning=PROCESSES, path="processes")]
    keepalive: bool
    slots_configured: SlotsConfigured
    slots_known: Annotated[bool, JsonKey(path="worker_class.slots_known")]
    slots_measured: SlotsMeasured
    capacity_rps: Annotated[Number, "highest sustained throughput"]
    capacity_ci95: Annotated[tuple[Number, Number] | None, "its 95 % interval over launches"]
    knee: Annotated[Number, JsonKey(decimals=3), "connections above which requests wait"]
    knee_note: JsonText
    knee_predicted: Annotated[
        Number,
        JsonKey(
            "predicted per worker",
            "throughput that sleep, CPU per request, slots and cores allow without Gunicorn's CPU",
        ),
    ]
    diagnosis: JsonText | None


# --- the columns of tables ----------------------------------------------------------------------


@cache
def keys_of(shape: type[Struct]) -> Mapping[str, JsonKey]:
    """The `JsonKey` of each field of `shape`, in order, with path, form and type filled in."""
    hints, keys = get_type_hints(shape), {}
    for name, hint in get_type_hints(shape, include_extras=True).items():
        key = annotation(hint, JsonKey) or JsonKey()
        keys[name] = replace(
            key,
            path=key.path or name.removesuffix("_ms"),
            form=key.form or FORMS.get(hints[name], "text"),
            hint=hints[name],
        )
    return keys


def annotation(hint: object, kind: type[T]) -> T | None:
    annotations = getattr(hint, "__metadata__", ())
    return next((item for item in annotations if isinstance(item, kind)), None)


def column(
    name: str,
    expendable: int = 0,
    value: Callable[[Any], Value] | None = None,
    *,
    of: type[Struct] = JsonCellRow,
) -> Column:
    """The table column for the key `name` of the type `of`. `value`: replaces the JSON value."""
    key = keys_of(of)[name]
    form = key.form or "text"
    return Column(name, form, expendable, key.heading, key.meaning, value or key.path)
