"""The keys of a trial and of a series in JSON and CSV, in this order, and the table columns made of
them.

A key is declared here once, with its `JsonKey`: the path to its value, its heading and its meaning.
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
    """How tables show a key, and where its value is. `meaning` is also the schema's description,
    unless the annotation has a string, which only the schema shows."""

    heading: str = ""  # "": the key
    meaning: str = ""
    path: str = ""  # attribute path in the result; "": the key, without "_ms"
    form: Form | None = None  # None: from the type
    decimals: int = 4
    hint: Any = None  # the type of the key, set by `keys_of`


T = TypeVar("T")
Number = float | None
Count = int | None
FORMS: Mapping[object, Form] = {int: "count", Count: "count", Number: "number"}  # others: "text"
# Shared by cells and classes
PROCESSES = "processes of the load tool"
SlotsConfigured = Annotated[
    Count, JsonKey("slots set", "requests that can be served at once with these settings")
]
SlotsMeasured = Annotated[Count, JsonKey("slots used", "the most that were served at once")]


class Shape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all objects whose keys are fixed. `number`: rounds a number of such an object."""

    @staticmethod
    def number(value: float, decimals: int) -> float | None:
        return rounded(value, decimals)


class Milliseconds(Shape, frozen=True):
    """Base of objects with times in milliseconds, converted from seconds."""

    @staticmethod
    def number(value: float, decimals: int) -> float | None:
        return rounded(value * 1e3, 3)


class JsonText(Shape, frozen=True):
    """A sentence, its code, and its values, in seconds, bytes and shares of 1. Programs should use
    code and values; sentences may be reworded."""

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
    """Versions that the workers reported."""

    gunicorn: str | None
    python: str | None


class JsonInForce(Shape, frozen=True):
    """Settings as the server has them; null: ignored by the worker class, or unknown."""

    workers: Count
    threads: Count
    backlog: Count
    worker_connections: Count


class JsonSplit(Milliseconds, frozen=True):
    """Where a response time went: means in milliseconds over the steady part."""

    connect: Annotated[Number, JsonKey(meaning="until the client was connected")]
    accept_queue: Annotated[Number, JsonKey(meaning="until a worker accepted the connection")]
    in_worker: Annotated[Number, JsonKey(meaning="accepted, not yet in the app")]
    service: Annotated[Number, JsonKey(meaning="in the app")]
    transfer: Annotated[Number, JsonKey(meaning="until the client had the last byte")]
    unattributed: Annotated[
        Number, JsonKey("rest", "time that no part explains, not distributed over the parts")
    ]


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
    worker_s: Annotated[Number, JsonKey(decimals=6)]
    tool_s: Annotated[Number, JsonKey(decimals=6)]


class JsonAb(Shape, frozen=True):
    """What ApacheBench prints; null: another tool."""

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
    """Requested server settings. `gunicorn`, `python`: null if the same as the run's."""

    worker_class: Annotated[str, JsonKey("class", path="server.worker_class")]
    workers: int
    threads: int
    backlog: int
    worker_connections: Annotated[int, JsonKey("w. conn.")]
    cpu_s: Annotated[
        Number,
        JsonKey("CPU s", form="text"),
        "CPU seconds that --cpu makes each request compute",
    ]
    cores: Annotated[
        Count,
        JsonKey(form="text"),
        "cores that --server-cores lets the server use; null: all",
    ]
    gunicorn: str | None
    python: str | None


class JsonCellRow(JsonSettings, frozen=True):
    """One trial, as in a row of CSV."""

    served_by: JsonServedBy
    in_force: JsonInForce
    not_taken: Annotated[list[str], "settings not in force as requested"]
    app: str
    sleep_s: Annotated[Number, JsonKey(decimals=6)]
    tool: Annotated[str, JsonKey("load tool", path="trial.cell.tool")]
    tool_processes: Annotated[int, JsonKey("proc.", PROCESSES, "trial.cell.processes")]
    keepalive: Annotated[bool, JsonKey("keep-alive", path="trial.cell.keepalive")]
    concurrency: Annotated[int, JsonKey("conn.", "connections kept busy", "trial.cell.concurrency")]
    trial: Annotated[int, JsonKey(path="trial.number")]
    requests: Count
    failed: Count
    errors: Annotated[dict[str, int], "failed requests by cause"]
    slots_configured: SlotsConfigured
    slots_known: Annotated[
        bool,
        JsonKey(path="worker_class.slots_known"),
        "whether slots_configured null means unlimited; else it is unknown",
    ]
    slots_measured: SlotsMeasured
    occupancy: Annotated[
        Number,
        JsonKey(
            "slots busy",
            "the mean share of slots taken, over the steady part, or over the whole load if it"
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
    tool_rps: Annotated[Number, "throughput as the load tool reports it"]
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
    requests_per_worker: Annotated[dict[str, int], "by process id"]
    connections_per_worker: Annotated[dict[str, int] | None, "kept alive, by process id"]
    split_prediction_rps: Annotated[
        Number,
        JsonKey(
            "by worker req/s",
            "what the connections per worker allow: a worker serves at most one per slot at once",
        ),
    ]
    load_s: Annotated[Number, "how long the load took"]
    ideal_s: Annotated[Number, "how long it takes with no idle slot"]
    generator_bound: Annotated[bool | None, "whether the load tool was the limit, not the server"]
    bound_reasons: list[JsonText]
    rate: Annotated[
        str | None,
        JsonKey(path="trial.cell.rate.label"),
        "as requested: 200 or 80%; null: closed model",
    ]
    routes: Annotated[dict[str, JsonRoute], "of a mix, by name"]
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
        JsonKey(
            meaning="whether the cell meets the target (--slo), or which of its metrics do not"
        ),
        "the outcome of each term of --slo",
    ]
    reason: Annotated[JsonText, "of the verdict"]
    diagnosis: JsonText | None
    findings: Annotated[list[JsonText], "all diagnoses; the first is `diagnosis`"]
    notes: list[JsonText]


class JsonClass(JsonSettings, frozen=True):
    """The cells that differ in load alone."""

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
            "what sleep, CPU per request, slots and cores allow, without Gunicorn's own CPU",
        ),
    ]
    diagnosis: JsonText | None


# --- the columns of tables ----------------------------------------------------------------------


@cache
def keys_of(shape: type[Struct]) -> Mapping[str, JsonKey]:
    """The `JsonKey` of each field of `shape`, in order, with its path, form and type."""
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
    """The table column for key `name` of `of`. `value`: shown instead of the JSON value."""
    key = keys_of(of)[name]
    form = key.form or "text"
    return Column(name, form, expendable, key.heading, key.meaning, value or key.path)
