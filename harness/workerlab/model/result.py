"""The result of a trial, the result of a series, and the document of a run, independent of its
format. Immutable, in seconds and bytes, as in `workerlab.model.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from workerlab.finding import Finding
from workerlab.model.evidence import AbReport, Counters, RouteResult, Summary
from workerlab.model.plan import UNKNOWN_CLASS, Arrivals, Cell, Server, Trial, WorkerClass

SCHEMA = 2  # of a report in JSON


ValidVerdict = Literal[
    "below capacity", "at capacity", "saturated", "generator-bound", "inconclusive"
]


Verdict = Literal[ValidVerdict, "invalid"]


Label = str | Finding  # a name, or a finding whose sentence is the name


class RequestNeed(Struct, frozen=True, gc=False):
    """The needs of one request. `wait_s`: time in the app without computing or blocking other
    requests (database, sleep). `cpu_s`: CPU time with the GIL. `blocked_s`: in a call
    that holds up the worker's event loop without computing. `nogil_s`: CPU in addition to `cpu_s`
    that needs no GIL. None of them includes waiting for a core or for other requests."""

    wait_s: float
    cpu_s: float
    blocked_s: float = 0.0
    nogil_s: float = 0.0
    route: str = ""  # label of its Route; "": there is only one


class Memory(Struct, frozen=True):
    """Memory of a server after a load: shared + workers x private bytes."""

    shared_bytes: int  # master included
    private_bytes: int  # mean of the workers
    workers: int  # number of measured workers

    def total(self, workers: int) -> int:
        return self.shared_bytes + workers * self.private_bytes


class Needs(Struct, frozen=True):
    """The needs of a trial's requests. `requests`: a sample in order of arrival, whose mean CPU is
    the workers' CPU per request, including Gunicorn's own. `gap_s`: how long a request
    holds its slot beyond its waiting, computing and blocking. `beside_s`: the rest of a response
    time, without holding a slot or waiting for one (connect, transfer, the load tool).
    `cpu_by_request`: whether the CPU of each request is known; if not, it is the mean. `load_s`:
    CPU per request of the load tool and of interrupts, on the same cores; None: not measured.
    `disturbed`: whether other programs affected these times."""

    trial: str  # its key
    requests: tuple[RequestNeed, ...]
    gap_s: float
    beside_s: float
    start_s: float | None = None  # as in Record
    memory: Memory | None = None
    notes: tuple[Finding, ...] = ()
    cpu_by_request: bool = True
    load_s: float | None = None
    disturbed: bool = False


class Breakdown(Struct, frozen=True):
    """Parts of the response time: means in seconds over the steady window; None: no source."""

    response_s: float | None = None
    connect_s: float | None = None  # until the client's connect() returned
    accept_queue_s: float | None = None  # until a worker accepted
    in_worker_s: float | None = None  # until the app was called
    service_s: float | None = None  # in the app
    transfer_s: float | None = None  # until the client had the last byte
    unattributed_s: float | None = None  # response - known parts; may be negative
    exact: bool = False  # every request was traced by its id; if not, the parts are estimates
    sources: Mapping[str, str] = {}  # by part


class Usage(Struct, frozen=True):
    """Resources used during the load. Cores: CPU seconds per second, mean over the load.
    `host_busy`: the busy fraction of all cores, 0 to 1. Memory: the highest sample, in bytes."""

    server_cores: float | None = None
    generator_cores: float | None = None
    host_busy: float | None = None
    server_rss_bytes: int | None = None
    generator_rss_bytes: int | None = None
    host_memory_bytes: int | None = None  # used on the whole machine, without caches
    received_bytes_per_s: float | None = None  # by the generator, headers and bodies
    # Of the generator, per request: as `Measurement.calls_s`
    connect_calls_s: float | None = None
    send_calls_s: float | None = None
    receive_calls_s: float | None = None


MIN_CORE_WAIT_SHARE = 0.05  # of the response time: a shorter wait for a core is negligible


MIN_OTHERS_CORES = 0.25  # used by other programs or machines; fewer do not disturb a load


MAX_LOST_SHARE = 0.1  # of the response time: above it, no verdict on the server is possible


class CoreWait(Struct, frozen=True):
    """The cost of waiting for a core, in the workers and the load tool: its `share` of the response
    time, the part of it that other programs may have caused (`others_share`; threads also wait
    for each other), and run-queue seconds per request. Cores used by other programs
    (`others_cores`), or given to other machines on the host (`steal_cores`), which took
    `stolen_share` of the response time in addition to `share`. None: unknown."""

    share: float
    worker_s: float
    tool_s: float | None = None
    others_cores: float | None = None
    steal_cores: float | None = None
    stolen_share: float = 0.0
    cores: int | None = None  # of the machine
    others_share: float | None = None  # None: run time of other programs unknown

    @property
    def share_lost_to_programs(self) -> float:
        """The share of the response time lost to other programs: all of the wait for a core that
        they may have caused."""
        return self.share if self.others_share is None else self.others_share

    @property
    def share_lost(self) -> float:
        """The share lost to other programs and other machines."""
        return 1 - (1 - self.share_lost_to_programs) * (1 - self.stolen_share)

    @property
    def disturbed_by_programs(self) -> bool:
        """Whether other programs delayed the load for long enough to change its figures."""
        enough = self.share_lost_to_programs >= MIN_CORE_WAIT_SHARE
        return enough and (self.others_cores or 0.0) >= MIN_OTHERS_CORES

    @property
    def disturbed_by_machines(self) -> bool:
        """Whether other machines on the host, alone or with programs, changed the figures."""
        return (
            self.share_lost >= MIN_CORE_WAIT_SHARE and (self.steal_cores or 0.0) >= MIN_OTHERS_CORES
        )

    @property
    def disturbed(self) -> bool:
        """Whether the figures are unreliable because other programs or machines used the cores."""
        return self.disturbed_by_programs or self.disturbed_by_machines

    @property
    def precludes_verdict(self) -> bool:
        """Whether other programs and machines took so much that no verdict is possible."""
        return self.disturbed and self.share_lost > MAX_LOST_SHARE


class AppMetrics(Struct, frozen=True):
    """Costs of a request by the app's own metrics, and CPU of the app's services, over the steady
    window. Only what was observed has an entry."""

    requests: int
    per_request: Mapping[str, float]  # by name in the app's metrics (storage_trips, ...)
    spent_s: Mapping[str, float]  # wall-clock time by part (pool, storage, ...), without overlap
    hit_ratio: Mapping[str, float]  # of each cache (local, redis): hits per lookup, 0 to 1
    cores: Mapping[str, float]  # CPU seconds per second of each component (storage, cache)


class RateResult(Struct, frozen=True):
    """The arrivals of a trial of the open model. `schedule`: the seed of their times; `due_rps`:
    their rate in this schedule. None: the load tool does not report it."""

    asked_rps: float
    arrivals: Arrivals
    schedule: int
    due_rps: float
    sent_rps: float | None
    unsent: int | None
    lag: Summary


class TrialResult(Struct, frozen=True):
    """One trial, analysed: a `Result` if it is valid, else `Invalid`."""

    trial: Trial
    app: str
    sleep_s: float | None
    reason: Finding  # of the verdict
    in_force: Mapping[str, int | None] = {}  # effective settings; None: ignored
    served_by: Mapping[str, str] = {}  # versions of "gunicorn" and "python", from its workers
    notes: tuple[Finding, ...] = ()
    worker_class: WorkerClass = UNKNOWN_CLASS

    @property
    def verdict(self) -> Verdict:
        raise NotImplementedError

    @property
    def server(self) -> Server:
        return self.trial.cell.server


class Invalid(TrialResult, frozen=True):
    """A trial without figures. `reason`: the contradictions between its sources, or why it was not
    measured."""

    @property
    def verdict(self) -> Literal["invalid"]:
        return "invalid"


class Result(TrialResult, frozen=True, kw_only=True):
    """A valid trial."""

    verdict: ValidVerdict
    requests: int  # with a response, at least 1
    failed: int
    errors: Mapping[str, int] = {}
    slots_configured: int | None = None  # None: unlimited, or unknown for its class
    slots_measured: int
    # Share of its slots in use, 0 to 1; None: at a rate, or without a number of slots
    occupancy: float | None = None
    throughput_rps: float
    throughput_half_rps: float | None = None  # half of its 95 % interval in a launch; None: unknown
    tool_rps: float | None = None  # None: not reported
    # Successes/s of the whole load, without a lone first request; None: nothing after its ramp-up
    whole_rps: float | None = None
    lone_s: float | None = None  # R0 of its server; None: at a rate
    bound_rps: float | None = None  # None: at a rate
    response: Summary = Summary()
    connect: Summary = Summary()
    service: Summary = Summary()
    waiting: Summary = Summary()
    requests_per_worker: Mapping[int, int] = {}
    load_s: float
    ideal_s: float | None = None  # None: not computable, or at a rate
    breakdown: Breakdown = Breakdown()
    counters: Counters = Counters()
    accept_queue_max: int | None = None  # None: not sampled
    accept_queue_limit: int | None = None  # None: not sampled
    usage: Usage = Usage()
    core_wait: CoreWait | None = None  # cost of waiting for a core; None: unknown
    # Kept-alive connections, by pid; None: not kept alive, or not observed
    connections_per_worker: Mapping[int, int] | None = None
    split_prediction_rps: float | None = None  # None: no such connections, or another distribution
    # Whether the load tool was the limit, so throughput is a lower bound; None: unknown
    generator_bound: bool | None = None
    bound_reasons: tuple[Finding, ...] = ()  # why `generator_bound`, with numbers
    # Mean number of requests in flight, by the client; None: unknown
    achieved_concurrency: float | None = None
    at_rate: RateResult | None = None  # None: a closed loop
    app_metrics: AppMetrics | None = None  # None: not sampled, or at a rate
    routes: Mapping[str, RouteResult] = {}  # of a mix, by label
    held_s: float | None = None  # a slot is held this long after the app; None: no request waited
    diagnosis: Finding | None = None  # what limits it, and what to change; None: at a rate
    findings: tuple[Finding, ...] = ()  # the diagnosis first
    target: tuple[Finding, ...] = ()  # the outcome of each term
    ab: AbReport | None = None  # as ab printed it; None: another tool

    @property
    def asked_rps(self) -> float | None:
        """Arrivals per second; None for a closed loop."""
        return self.at_rate.asked_rps if self.at_rate else None

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs or machines used the cores, so its figures are unreliable."""
        return self.core_wait is not None and self.core_wait.disturbed


PhaseName = Literal["ramp-up", "drain", "steady", "churn"]


class Phase(Struct, frozen=True):
    """A part of the load that the analysis found: ramp-up (connections only rise), drain (no
    new ones, response times still fall), steady, churn (connections close). Seconds since the load
    began."""

    name: PhaseName
    start_s: float
    end_s: float
    why: Finding  # what marks its start, with numbers


class ClassResult(Struct, frozen=True):
    """All cells of one (class, workers, threads, backlog, tool, its processes, keep-alive)."""

    server: Server
    tool: str
    slots_configured: int | None
    slots_measured: int | None
    capacity_rps: float | None
    capacity_ci95: tuple[float, float] | None
    knee: float | None
    knee_note: Finding
    keepalive: bool = False
    diagnosis: Finding | None = None
    diagnosed_trial: str | None = None  # key of the trial with the diagnosis
    processes: int = 1  # of the load tool
    worker_class: WorkerClass = UNKNOWN_CLASS
    level_rps: float | None = None  # throughput where it levels off; None: no cell shows it
    knee_predicted: float | None = None  # from the configured wait and CPU time of a request

    @property
    def series(self) -> Cell:
        """The key of its cells, as `Cell.series`."""
        return Cell(self.server, self.tool, 0, self.keepalive, self.processes)


class Report(Struct, frozen=True):
    """The results of a run. `overhead`: load time / ideal time over the valid cells."""

    run: str
    environment: Mapping[str, object]
    overhead: float | None = None
    cells: tuple[TrialResult, ...] = ()
    classes: tuple[ClassResult, ...] = ()
    setup_s: Mapping[str, float | None] = {}  # median per cell of start, warmup, stop
    notes: tuple[Finding, ...] = ()
    facts: tuple[Any, ...] = ()  # `analysis.facts.Facts` of each cell's first valid trial


Value = str | int | float | bool | Mapping[str, int] | Finding | None


Form = Literal["text", "count", "number", "seconds", "bytes", "percent", "counts"]


class Column(Struct, frozen=True):
    """`name` is the key in JSON and CSV, unit last (`response_p50_s`)."""

    name: str
    form: Form = "number"  # of values: number has three digits, percent is a share of 1
    expendable: int = 0  # order of hiding in a narrow terminal, highest first; 0: last
    heading: str = ""  # "": its name
    meaning: str = ""  # an explanation, if the heading needs one
    # A function of a row's item, or an attribute path in it, any part of which may be None;
    # None: `name`
    value: Callable[[Any], Value] | str | None = None
    width: int = 0  # in a terminal, longer texts are wrapped; 0: no limit


class Table(Struct, frozen=True):
    """`rows` hold a value per column; None is missing."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    keys: int = 1  # leading columns that identify a row; equal values are grouped
    unit: str = ""  # of all durations, "s" or "ms"; "": each has its own
    anchors: tuple[str, ...] = ()  # in a page: the anchor of each row; "": none
    links: tuple[str, ...] = ()  # in a page: the anchor that each row links to; "": none
    detailed: bool = False  # in a terminal, shown with --explain only
    short_note: str = ""  # in a terminal, without --explain
    # In a terminal: without its title, or next to the previous table if the columns fit
    terminal: Literal["", "untitled", "beside"] = ""


class Mark(Struct, frozen=True):
    """Label of a point in a scatter. `low`, `high`: ends of its whisker in y; `link`: anchor of the
    table row with its details."""

    name: Label
    low: float | None = None
    high: float | None = None
    link: str = ""


Look = tuple[str, str]  # the key of a colour, and a shape


class ChartSeries(Struct, frozen=True):
    name: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[Mark, ...] = ()  # of a scatter, one per point
    look: Look | None = None  # None: the next unused one


class Level(Struct, frozen=True):
    """A horizontal line across a scatter."""

    name: str
    y: float


ChartForm = Literal["lines", "scatter", "bars", "stacked"]


class Chart(Struct, frozen=True):
    """`form`: "lines" with points; "scatter", named points; "bars", side by side, one per series
    for each of `names`; or "stacked" bars. For bars, and for a scatter with `names`, x is an index
    into `names`."""

    title: str
    x_title: str
    y_title: str
    series: tuple[ChartSeries, ...]
    log: tuple[bool, bool] = (False, False)  # whether the axes (x, y) are logarithmic
    note: str = ""
    form: ChartForm = "lines"
    names: tuple[Label, ...] = ()
    level: Level | None = None


SWEEP = "sweep"  # the kind of documents that have cells and classes


class Document(Report, frozen=True, kw_only=True):
    """The report of a run with its conclusions, tables and charts, independent of the format.
    `kind`: the command that made it. Only SWEEP has cells, classes, facts and phases."""

    kind: str
    title: Label
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...] = ()
    valid: bool = True  # False: a required measurement failed
    target_kept: bool | None = None  # False: a target is missed; None: no target
    exit_code: int | None = None  # of the command; None: by `valid` and the records
    phases: Mapping[str, tuple[Phase, ...]] = {}  # of loads, by key of the trial
    timelines: tuple[Any, ...] = ()  # on a page; (): made from `facts` when it is drawn
