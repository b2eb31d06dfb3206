"""Immutable types shared by all packages. Seconds and bytes inside; other units only in output.

    plan     -> Server, WorkerClass, Load, Cell, Trial (what is to be measured)
    measure  -> Record                                 (what happened: facts, nothing derived)
                Observations                           (kernel and /proc samples of the load)
    tools    -> Command, Output -> Measurement         (what the output of one load tool says)
    analyse  -> Result or Invalid, ClassResult, Report  (what it means)
                Document                               (what a run shows, for any command)

`None` means "not known" or "unlimited", never 0. The types are msgspec Structs, several times as
fast to define and create as dataclasses: a trial has hundreds of thousands of spans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Literal
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from workerlab.finding import Finding, StoredFinding

SCHEMA = 2  # of a report in JSON
LONG_NAME = 40  # characters of a path in a file name

ValidVerdict = Literal[
    "below capacity", "at capacity", "saturated", "generator-bound", "inconclusive"
]
Verdict = Literal[ValidVerdict, "invalid"]


class ExitCode(IntEnum):
    """Of a command. A signal gives 128 + its number."""

    DONE = 0
    INVALID = 1  # a cell is invalid, or the run shows too little
    USAGE = 2
    UNAVAILABLE = 3  # the machine, interpreter or app cannot do it
    TARGET_MISSED = 4  # or a limit is exceeded, or nothing meets the target
    INCONCLUSIVE = 5  # a limit, with --strict


class LabError(Exception):
    """An error the user can fix, in one sentence."""

    exit_code = ExitCode.UNAVAILABLE


class UsageError(LabError):
    """Invalid arguments; nothing was started."""

    exit_code = ExitCode.USAGE


class EnvironmentProblem(LabError):
    """The machine, interpreter or app lacks something, or something does not start."""


class ParseError(Exception):
    """Tool output that cannot be parsed with certainty. `line`: the offending line."""

    def __init__(self, why: str, line: str = "") -> None:
        self.why, self.line = why, line.strip()[:200]
        super().__init__(f"{why}: {self.line!r}" if self.line else why)


Label = str | Finding  # a name, or a finding whose sentence is the name


# --- the plan -----------------------------------------------------------------------------


class Route(Struct, frozen=True):
    """One kind of request in a mix, and its expected answer."""

    path: str = "/"
    method: str = "GET"
    weight: float = 1.0  # relative to the other routes
    headers: tuple[tuple[str, str], ...] = ()
    body_file: str | None = None
    expect: tuple[int, ...] = ()  # statuses that count as success; (): any 2xx and 3xx
    name: str = ""  # in results; "": "METHOD PATH"

    @property
    def label(self) -> str:
        return self.name or f"{self.method} {self.path}"


class App(Struct, frozen=True):
    """The application under test, its request and the expected answer."""

    target: str = ""  # Gunicorn's spelling: "module:callable" or "module:create_app()"
    chdir: str = ""  # absolute; "" = the run's own copy of apps/
    path: str = "/"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body_file: str | None = None
    expect_status: int = 200
    env: tuple[tuple[str, str], ...] = ()
    sleep_s: float | None = None  # known for the bundled apps only
    body_sha256: str | None = None  # of the only correct body, if known in advance
    mix: tuple[Route, ...] = ()  # (): every request is as above


class NullServer(Struct, frozen=True):
    """A server that does nothing: it answers at once, or after a seeded random delay."""

    body_bytes: int = 12
    delay_s: tuple[float, float] = (0.0, 0.0)  # uniform between these
    seed: int = 1
    core: int | None = None  # the core it is pinned to; None: any
    fault: str = ""  # in every answer: reset, stall, garbage, half, status500, close, kept
    requests_per_connection: int = 0  # after which it closes the connection; 0: never
    tw_reuse: int | None = None  # net.ipv4.tcp_tw_reuse in a network namespace of its own


class Server(Struct, frozen=True):
    """The server under load as requested; the proofs of its workers have the effective settings."""

    worker_class: str
    workers: int
    threads: int
    backlog: int
    worker_connections: int
    instances: int = 1  # servers like this, a port each; every request picks one at random
    app: App = App()  # what Gunicorn serves
    name: str = ""  # of the configuration, if the experiment sets one; prefix of trial keys
    null: NullServer | None = None  # if set, a server that does nothing replaces Gunicorn
    preload: bool = False  # the app is loaded once, before the workers are forked
    cores: int | None = None  # number of cores it may use; None: all
    cpu_s: float | None = None  # CPU that each request uses, if the experiment sets it
    gunicorn: str = ""  # its version, if there are several; "": the plan's
    python: str = ""  # its interpreter, if there are several; "": the plan's
    config: str | None = None  # its Gunicorn file, if there are several; None: the plan's

    @property
    def key(self) -> str:
        """Unique for the settings, and valid in a file name."""
        key = f"{self.worker_class}-w{self.workers}-t{self.threads}-b{self.backlog}"
        key = f"{self.name}-{key}" if self.name else key
        copies = f"-x{self.instances}" if self.instances > 1 else ""
        cpu = "" if self.cpu_s is None else f"-cpu{1000 * self.cpu_s:g}ms"
        preload = "-preload" if self.preload else ""
        cores = "" if self.cores is None else f"-on{self.cores}"
        version = f"-g{self.gunicorn}" if self.gunicorn else ""
        python = f"-py{_as_name(self.python)}" if self.python else ""
        return f"{key}-wc{self.worker_connections}{copies}{cpu}{preload}{cores}{version}{python}"

    @property
    def variant(self) -> str:
        """The worker class, with the version and interpreter that serve it if they were chosen."""
        version = f"Gunicorn {self.gunicorn}" if self.gunicorn else ""
        return ", ".join(filter(None, (self.worker_class, version, self.python)))


def _as_name(path: str) -> str:
    """The path in a form for file names; a long one becomes its end and a checksum."""
    name = re.sub(r"[^A-Za-z0-9.]+", "_", path).strip("_")
    return name if len(name) <= LONG_NAME else f"{name[-LONG_NAME:]}_{crc32(path.encode()):08x}"


Slots = Literal["one", "threads", "worker_connections", "unlimited", "unknown"]


class WorkerClass(Struct, frozen=True):
    """Facts about one of Gunicorn's worker classes; `configs/` has its Gunicorn file. Or about
    another server, see `alone`."""

    name: str
    slots: Slots  # requests that one worker serves at once, or the setting that says how many
    serves: tuple[str, ...] = ("wsgi",)  # wsgi, asgi, asgi2, tornado; (): not known
    accepts_first: bool = False  # accepts more than it serves: chance decides which requests wait
    loop: bool = False  # one event loop per worker: a blocking call delays all its requests
    ignores: tuple[str, ...] = ()  # settings without effect
    effective_from: Mapping[str, str] = {}  # ignored settings that take effect from this version on
    packages: tuple[str, ...] = ()  # required in addition to Gunicorn, by import name
    path: str = ""  # for Gunicorn's -k, if Gunicorn has no name for it
    alias: str = ""  # another dotted path that a Gunicorn file may have for it
    advice: str = "more workers serve more at once"  # how to get more slots
    removed_in: str = ""  # the first version of Gunicorn without it
    alone: bool = False  # a server of its own (`workerlab.server.backends`), without Gunicorn
    shares_port: bool = False  # each worker listens on a socket of its own (SO_REUSEPORT, Linux)
    unmeasured: str = ""  # a sentence on what the lab cannot measure of it
    closes_http_1_0: str = ""  # why it keeps no such connection alive: a predicate; "": it does

    @property
    def asgi(self) -> bool:
        return "asgi" in self.serves

    @property
    def slots_known(self) -> bool:
        """Whether `slots_per_worker` is known: if False, None does not mean unlimited."""
        return self.slots != "unknown"

    def threaded(self, server: Server) -> bool:
        """Whether its number of threads matters, and is shown."""
        return self.slots == "threads" or (server.threads > 1 and "threads" not in self.ignores)

    def slots_per_worker(self, server: Server) -> int | None:
        """Requests that one worker serves at once by its settings; None: unlimited, or not
        known."""
        settings = {"threads": server.threads, "worker_connections": server.worker_connections}
        return {"one": 1, **settings}.get(self.slots)

    def slots_of(self, server: Server) -> int | None:
        """Requests that the server serves at once by its settings; None: unlimited, or not
        known."""
        per_worker = self.slots_per_worker(server)
        return None if per_worker is None else server.workers * server.instances * per_worker


UNKNOWN_CLASS = WorkerClass("", "unknown", serves=())  # a class that has no row in WORKER_CLASSES


class Rate(Struct, frozen=True):
    """Arrival rate of the open model: requests per second, or a share of the capacity measured by
    the closed cells of the same run. A plan sets exactly one of the two."""

    rps: float | None = None
    share: float | None = None

    @property
    def label(self) -> str:
        """As the user wrote it: "200" (requests/s), "80%"."""
        return f"{self.rps:g}" if self.share is None else f"{self.share * 100:g}%"


Arrivals = Literal["even", "poisson"]  # of the open model: evenly spaced or a Poisson process


class Load(Struct, frozen=True):
    """A load for a load tool to generate."""

    concurrency: int  # connections kept busy
    requests: int  # for tools that count: 1 + rounds * concurrency
    duration_s: float  # for tools that run for a time
    deadline_s: float  # after which the harness stops the tool
    keepalive: bool = False  # reuse connections if the server allows it
    drops: bool = False  # more connections than the accept queue holds: some will be dropped
    processes: int = 1  # of the load tool; they share the connections
    rate_rps: float | None = None  # open model: arrivals per second; None: closed loop
    ramp_s: float = 0.0  # connections start one after the other over this time
    linger_s: float = 0.0  # clients close this long after their last answer
    timed: bool = False  # lasts duration_s, even if the tool can count requests
    same_body: bool = False  # all bodies must equal the first: the app's answer is constant
    hosts: tuple[str, ...] = ()  # that send the load; (): this machine
    urls: tuple[str, ...] = ()  # further servers; each request picks one at random
    sources: tuple[str, ...] = ()  # local addresses to connect from; (): the kernel's choice
    ports: tuple[int, int] | None = None  # local ports to connect from, lowest and highest
    summed: bool = False  # report timings as distributions only, for a million requests
    open_files: int | None = None  # limit of the load tool's open files; None: unchanged
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body_file: str | None = None
    expect_status: int = 200
    arrivals: Arrivals = "even"
    schedule: int = 0  # seed of the arrivals, and of the order of a mix
    mix: tuple[Route, ...] = ()  # as in App
    together: bool = False  # the load tool does not send its first request alone


Inside = Literal["", "needs", "stacks"]  # see Cell


class Cell(Struct, frozen=True):
    """One point of the grid: server settings x load settings."""

    server: Server
    tool: str  # "": no load tool
    concurrency: int
    keepalive: bool = False
    processes: int = 1  # of the load tool
    rate: Rate | None = None  # open model; `concurrency` then limits the connections
    load: Load | None = None  # set if it does not depend on the lone response time
    name: str = ""  # begins the keys of its trials, if the experiment names its cells
    schedule: int | None = None  # which of the plan's schedules; None: by the number of the trial
    duration_s: float | None = None  # of its load, instead of the plan's
    # Measured in the workers in addition to spans and beats: "needs", the CPU of each request;
    # "stacks", the running line of the app. Both cost too much for a trial with other figures
    inside: Inside = ""
    requests: int | None = None  # of a counted load; None: by the plan's rounds

    @property
    def series(self) -> Cell:
        """The key of its series: the cells that differ only in the amount of load."""
        return replace(
            self, concurrency=0, rate=None, load=None, name="", schedule=None, requests=None
        )


class Trial(Struct, frozen=True):
    """One execution of a cell, on a server launched for it alone. `number` counts from 1."""

    cell: Cell
    number: int

    @property
    def key(self) -> str:
        """The name of the trial within its run, and of its directory."""
        cell = self.cell
        if cell.name:
            return f"{cell.name}-{self.number}"
        tool = cell.tool + ("-k" if cell.keepalive else "")
        tool += f"-p{cell.processes}" if cell.processes > 1 else ""
        rate = f"-r{cell.rate.label.replace('%', 'pc')}" if cell.rate else ""
        rate += "" if cell.schedule is None else f"-s{cell.schedule}"
        inside = f"-{cell.inside}" if cell.inside else ""
        return f"{cell.server.key}-{tool}-c{cell.concurrency}{rate}{inside}-{self.number}"


class Plan(Struct, frozen=True):
    """Everything a run needs, including to resume it."""

    kind: str  # the command that made it, and can resume it
    cells: tuple[Cell, ...]  # in display order, those at a rate last
    trials: int
    rounds: int
    seed: int  # of the order of trials
    python: str
    config: str | None
    unavailable: Mapping[str, str]  # variant of a server -> why
    notes: tuple[StoredFinding, ...]
    duration_s: float | None = None  # of each load, instead of a number of requests
    ramp_s: float = 0.0
    linger_s: float = 0.0
    load_hosts: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}  # specific to the experiment, as in JSON
    max_seconds: float | None = None  # of a load without a fixed length; None: it is fixed
    arrivals: Arrivals = "even"  # of its cells at a rate
    slo: str = ""  # the target of its cells (`workerlab.slo`); "": none
    gunicorn: str = ""  # the version that serves; "": that of the interpreter's environment
    together: bool = False  # no load tool sends its first request alone
    jobs: int | None = 1  # maximum of parallel trials; None: as many as leave cores idle
    project: tuple[str, ...] = ()  # options given by the user's pyproject.toml

    @property
    def servers(self) -> tuple[Server, ...]:
        return tuple(dict.fromkeys(cell.server for cell in self.cells))

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.tool for cell in self.cells if cell.tool))


# --- the record ---------------------------------------------------------------------------

FaultKind = Literal[
    "interrupted",  # the user, or a signal, stopped the harness
    "unavailable",  # a package or program is missing, or the app cannot be imported: exit 3
    "server",  # the server, or one of its workers, failed or died under the load
    "tool",  # the load tool failed, hung, died or printed too much
    "answer",  # the app did not answer as expected
    "storage",  # the disk is full or a file could not be written
    "unmeasured",  # it depends on other cells, which were not measured
]


class Fault(Struct, frozen=True):
    """Why a trial is invalid, if that was found while it ran."""

    kind: FaultKind
    reason: str
    detail: str = ""  # of this trial: a file to read, a pid


class Record(Struct, frozen=True):
    """The facts of one trial; everything else is derived from them and the raw files. `_ns` fields
    are nanoseconds of CLOCK_MONOTONIC, the clock of the spans."""

    key: str
    fault: Fault | None
    lone_s: tuple[float, ...] = ()  # response times of lone requests, before the load
    load_start_ns: int | None = None
    load_end_ns: int | None = None
    start_s: float | None = None  # launch until the workers had loaded the app
    warmup_s: float | None = None  # lone request and warm-up
    stop_s: float | None = None
    planned_requests: int | None = None
    planned_duration_s: float | None = None
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    worker_pids: tuple[int, ...] = ()
    proof: Mapping[str, object] = {}  # effective configuration
    warnings: tuple[StoredFinding, ...] = ()
    tool_cpu_s: float | None = None  # user and system, of the load tool and children it awaited
    asked_rps: float | None = None  # open model: arrivals per second, also if planned as a share
    planned_connections: int | None = None  # maximum at once
    pilot_s: float | None = None  # of the earlier loads that determined the length of this one
    lone_end_ns: int | None = None  # after the lone requests
    lone_begun_ns: tuple[int, ...] = ()  # start of each of lone_s; failed requests are left out
    # Mix only (lone_s has its routes in rounds): weights of the requests of a round, sum 1
    lone_weights: tuple[float, ...] = ()
    beside: tuple[str, ...] = ()  # keys of the trials that ran at the same time
    # Cores that the lab used when the trial ran in parallel; None: it was not repeated alone
    again_cores: float | None = None
    arrivals: Arrivals = "even"  # open model. With asked_rps, planned_duration_s and this seed,
    schedule: int = 0  # `workerlab.numbers.schedule.schedule` computes it again

    @property
    def interrupted(self) -> bool:
        """Whether the lab was stopped during the trial, so it is repeated."""
        return self.fault is not None and self.fault.kind == "interrupted"

    @property
    def alone_s(self) -> tuple[float, ...]:
        """Response times of lone requests; of a mix, the weighted mean of each round."""
        count = len(self.lone_weights)
        if not count:
            return self.lone_s
        rounds = (self.lone_s[at : at + count] for at in range(0, len(self.lone_s), count))
        return tuple(
            sum(weight * took_s for weight, took_s in zip(self.lone_weights, round_s, strict=True))
            for round_s in rounds
        )


class SpanCost(Struct, frozen=True, gc=False):
    """What the thread of a request did while the request was in the app, in nanoseconds.
    `queued_ns`: ready to run, without a core. On a shared loop, `steps_ns`: wall-clock time of its
    steps, including the two before; `held_up_ns`: estimated delay by the steps of other requests.
    `route`: index in the mix. If the request has a thread of its own, `looks`: samples of the GIL;
    `held`: how many found it held; `slept`: how often the thread gave up its core."""

    cpu_ns: int
    queued_ns: int
    steps_ns: int | None = None
    held_up_ns: int = 0
    route: int | None = None
    looks: int = 0
    held: int = 0
    slept: int = 0


class Span(Struct, frozen=True, gc=False):
    """One request inside a worker. Nanoseconds, CLOCK_MONOTONIC."""

    pid: int
    start_ns: int
    end_ns: int | None  # None: it never ended
    accept_ns: int | None = None  # of its connection, for all requests on it; None: not timed
    request_id: str | None = None  # given by the client, if its load tool numbers requests
    cost: SpanCost | None = None  # in a trial that measures it (`Cell.inside` "needs")


class Spans(Struct, frozen=True):
    """All spans of a trial."""

    spans: tuple[Span, ...]
    full: tuple[int, ...] = ()  # workers whose map was full


class Beat(Struct, frozen=True, gc=False):
    """A timer that fired on a worker's event loop. Nanoseconds; `at_ns` is CLOCK_MONOTONIC, the
    others cover the time since the previous beat. `cpu_ns` and `queued_ns` (run-queue time) are the
    loop thread's, `others_*` the sum of all other threads of its process."""

    pid: int
    at_ns: int
    length_ns: int
    late_ns: int  # after it was due
    cpu_ns: int
    queued_ns: int
    others_cpu_ns: int
    others_queued_ns: int


class Beats(Struct, frozen=True):
    """The recorded beats of a trial."""

    beats: tuple[Beat, ...] = ()
    cut: tuple[int, ...] = ()  # workers whose first beats were overwritten


class CodeLine(Struct, frozen=True, gc=False):
    """A source line that a worker's event loop was running in a sample. `called`: the name it
    calls, as in the source; `inside`: the running function, if it is another one. Both "" if
    unknown. `app`: whether the line is the app's; if not, the app was not on the stack, and the
    line is a library's."""

    number: int  # in its trial
    file: str  # relative to the app's directory, or to that of installed packages
    line: int
    function: str
    called: str = ""
    inside: str = ""
    app: bool = True


class StackSample(Struct, frozen=True, gc=False):
    """One sample of what an event loop runs. Nanoseconds; `at_ns` is CLOCK_MONOTONIC."""

    at_ns: int
    length_ns: int  # since the previous sample, like all up to `others_ran_ns`
    waited_ns: int  # the sampler had no core
    ran_ns: int  # CPU of the loop's thread
    starved_ns: int  # the loop's thread was ready to run and had no core
    others_ran_ns: int  # CPU of all other threads
    late_ns: int  # after it was due: the sampler got no core, or no GIL
    overdue_ns: int  # of the loop's next beat
    since_ns: int  # the loop's last beat, like all up to `others_cpu_ns`
    cpu_ns: int  # of the loop's thread
    queued_ns: int  # the loop's thread was ready to run and had no core
    others_cpu_ns: int  # of all other threads
    stuck_ns: int  # how long the same call of the app has been seen, without a beat
    sleeps: int  # 1: the loop's thread sleeps, 0: it runs or waits for a core
    number: int  # of the line; 0: none, the loop waits or runs only itself; 1: not stored
    other: int  # of the line of another thread that may hold the GIL; 0: none


class Stacks(Struct, frozen=True):
    """Stack samples of one worker's event loop, in order of time."""

    pid: int | None = None  # None: none was sampled
    samples: tuple[StackSample, ...] = ()
    lines: Mapping[int, CodeLine] = {}  # by number


class QueueSample(Struct, frozen=True):
    """The listening socket at one moment."""

    at_ns: int
    length: int  # connections waiting to be accepted
    limit: int | None  # the queue holds limit + 1 at most; None: not known


class ProcessSample(Struct, frozen=True):
    """CPU seconds that the processes have used since sampling began, and the memory they hold
    now."""

    at_ns: int
    server_cpu_s: float | None
    tool_cpu_s: float | None
    host_busy_s: float | None  # of all cores together
    server_rss_bytes: int | None
    tool_rss_bytes: int | None
    host_memory_bytes: int | None = None  # used on the whole machine, without caches
    host_irq_s: float | None = None  # part of host_busy_s: interrupts
    server_wait_s: float | None = None  # ready to run without a core, sum of all threads
    tool_wait_s: float | None = None
    host_steal_s: float | None = None  # part of host_busy_s: cores given to other machines
    lab_cpu_s: float | None = None  # of this process, which takes the samples
    beside_cpu_s: float | None = None  # of other trials of the lab; None: there were none
    network_bytes: Mapping[str, int] = {}  # "eth0 in", "eth0 out": all traffic since it came up


class ConnectionSample(Struct, frozen=True):
    """The server's TCP connections at one moment, both ends (load and server share the kernel)."""

    at_ns: int
    server: Mapping[str, int]  # sockets by state, as the kernel names it (SYN_RECV, ...)
    client: Mapping[str, int]
    per_worker: Mapping[int, int]  # connections accepted and not closed, by pid
    unread: int  # how many of these hold unread bytes of a request


class Counters(Struct, frozen=True):
    """Growth of the kernel's counters (TcpExt) during the load, in the whole network namespace;
    `socket_drops` covers this server's listening sockets alone. None: this kernel lacks the
    counter, or parallel trials are counted in it, too."""

    listen_overflows: int | None = None
    listen_drops: int | None = None
    syn_retransmits: int | None = None
    syn_cookies: int | None = None  # TCPReqQFullDoCookies
    socket_drops: int | None = None  # sk_drops


class ServiceSample(Struct, frozen=True):
    """Resources of the app's services (storage, cache), by name: CPU seconds since sampling began,
    and memory. Only services that the lab started on this machine."""

    at_ns: int
    cpu_s: Mapping[str, float]
    rss_bytes: Mapping[str, int]


class WorkersSample(Struct, frozen=True):
    """CPU seconds that each worker has used since it started, by pid: all threads, including ended
    ones, and the child processes it has waited for."""

    at_ns: int
    cpu_s: Mapping[int, float]


class MemorySample(Struct, frozen=True):
    """Memory of the servers' processes, without the lab's own maps."""

    at_ns: int
    pss_bytes: int  # of all processes; shared pages are counted once
    private_bytes: Mapping[int, int]  # of each worker, by pid: pages that are not shared


class AppMetricsSample(Struct, frozen=True):
    """Metrics that the app publishes, summed over all workers since they started;
    `observe/app_metrics.py` defines the names."""

    at_ns: int
    totals: Mapping[str, int]


class Pause(Struct, frozen=True):
    """An interval in which the lab did not run although it did not wait for a core: the machine was
    paused, or the lab was stopped. `from_ns` is when a sleeping thread was due, so the pause may
    have begun up to one sleep earlier (0.1 s in the observer)."""

    from_ns: int
    to_ns: int


class Observations(Struct, frozen=True):
    """Samples taken from outside the server during the load. Times: CLOCK_MONOTONIC nanoseconds.

    `missing`: the samplers (queue, processes, connections, counters, services, app_metrics,
    workers, memory, pauses) that failed or have no samples, and why. Earlier samples of a
    failed sampler are kept, but must not be summed up.
    """

    queue: tuple[QueueSample, ...] = ()
    processes: tuple[ProcessSample, ...] = ()
    connections: tuple[ConnectionSample, ...] = ()
    counters: Counters | None = None
    services: tuple[ServiceSample, ...] = ()
    app_metrics: tuple[AppMetricsSample, ...] = ()
    workers: tuple[WorkersSample, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    pauses: tuple[Pause, ...] = ()
    cores: int | None = None
    syn_steps_s: tuple[float, ...] = ()  # times after a SYN at which this kernel repeats it
    missing: Mapping[str, str] = {}


# --- load tools ---------------------------------------------------------------------------


class Command(Struct, frozen=True):
    """How to run a load tool: its arguments, and files to write to its directory first."""

    argv: tuple[str, ...]
    files: Mapping[str, str] = {}


class Output(Struct, frozen=True):
    """All a load tool produced: output, exit code (negative: ended by that signal), files."""

    stdout: str
    stderr: str = ""
    exit_code: int | None = 0
    files: Mapping[str, str] = {}


class Summary(Struct, frozen=True):
    """A distribution in seconds. Any field may be unknown."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    p90: float | None = None  # last, for callers that pass values by position


class Timing(Struct, frozen=True, gc=False):
    """One request as timed by the client, in seconds. `start_s` is since the tool's own start, the
    others are since `start_s`; None: never reached."""

    start_s: float
    connect_s: float | None
    first_byte_s: float | None
    end_s: float | None
    status: int | None
    cause: str | None  # of the failure; None: a success
    request_id: str | None = None
    reused: bool = False  # on an existing connection; `connect_s` is then 0
    route: int | None = None  # of a mix: index in Load.mix


class RouteResult(Struct, frozen=True):
    """Results of the requests of one route of a mix."""

    requests: int  # complete answers with any status
    failed: int
    errors: Mapping[str, int] = {}  # by cause
    response: Summary = Summary()  # of successes
    statuses: Mapping[str, int] = {}  # of answers with an unexpected status
    answer: str = ""  # beginning of the visible text of the first of these


class AbTimes(Struct, frozen=True):
    """A row of ApacheBench's table of connection times, seconds."""

    min: float | None = None
    mean: float | None = None
    sd: float | None = None
    median: float | None = None
    max: float | None = None


class AbReport(Struct, frozen=True):
    """The figures that ApacheBench prints. Both times per request and the rate are None if the run
    took no time; `time_per_request_across_s` is its "(mean, across all concurrent requests)"."""

    concurrency: int
    requests: int
    time_taken_s: float
    time_per_request_s: float | None
    time_per_request_across_s: float | None
    transfer_rate_bytes_per_s: float | None
    total_transferred_bytes: int
    html_transferred_bytes: int
    times: Mapping[str, AbTimes]  # of connect, processing, waiting, total


class Measurement(Struct, frozen=True):
    """What the output of one load tool says, with nothing derived. Causes of `errors`: non_2xx,
    timeout, reset, refused, connect, read, write, length, exception, ..."""

    requests: int  # complete responses with any status
    failed: int  # requests that were not a success
    errors: Mapping[str, int]  # by cause
    duration_s: float
    rps: float | None
    response: Summary
    connect: Summary = Summary()
    first_byte: Summary = Summary()
    lone_s: float | None = None  # response time of the tool's own lone first request
    timings: tuple[Timing, ...] = ()  # of every request, if the tool reports each (fast)
    origin_ns: int | None = None  # zero of the timings in CLOCK_MONOTONIC, if the tool reports it
    responses_s: tuple[float, ...] = ()  # every response time, unordered, without `timings`
    connects_s: tuple[float, ...] = ()  # every connection's time to connect, unordered
    # Percentiles of the response time by per cent, without `timings` and `responses_s`
    percentiles_s: Mapping[float, float] = {}
    achieved_concurrency: float | None = None  # mean of requests in flight, as the tool reports it
    connections: int | None = None  # opened by the tool
    asked_rps: float | None = None  # open model: requested arrivals per second
    sent: int | None = None
    unsent: int | None = None  # open model: due during the load and never sent
    lag: Summary = Summary()  # open model: how late requests were sent; part of `response`
    cpu_s: float | None = None  # of the tool, as it reports it
    exact_mean: bool = True  # False: synthetic samples (wrk), useless for Little's law
    body_sha256: str | None = None  # of the body of all complete answers, if the tool compares them
    received_bytes: int | None = None  # headers and bodies
    # Per request, in socket calls (connect, send, receive), until gevent resumes the user
    calls_s: Mapping[str, float] = {}
    # End (CLOCK_MONOTONIC) and response time of each answer, without `timings`
    answers_ns: tuple[tuple[int, int], ...] = ()
    notes: tuple[Finding, ...] = ()
    details: Mapping[str, Any] = {}  # specific to the tool
    routes: Mapping[str, RouteResult] = {}  # of a mix, by label
    ab: AbReport | None = None  # None: another tool


class NullCounts(Struct, frozen=True):
    """What a null server counted."""

    requests: int
    answers: int
    connections: int
    most_connections: int  # at once
    cpu_s: float  # of the whole process
    delays_s: float  # sum of its delays
    service: Summary  # of `answers`: from reading a request to its answer, delay included


# --- analysis -----------------------------------------------------------------------------


class RequestNeed(Struct, frozen=True, gc=False):
    """What one request needs from a worker. `wait_s`: in the app without computing or blocking
    others (database, sleep). `cpu_s`: of a core, and of the worker's GIL. `blocked_s`: in a call
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
    private_bytes: int  # of each worker, mean
    workers: int  # measured

    def of(self, workers: int) -> int:
        return self.shared_bytes + workers * self.private_bytes


class Needs(Struct, frozen=True):
    """What the requests of a trial needed. `requests`: a sample of them in order of arrival; its
    mean CPU is the workers' CPU per request, including Gunicorn's own. `gap_s`: how long a request
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
    unattributed_s: float | None = None  # response - known parts; may be negative, stays as it is
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
MIN_OTHERS_CORES = 0.25  # cores: other programs that use fewer are not the cause
MAX_LOST_SHARE = 0.1  # of the response time: above it, the load says nothing about the server


class CoreWait(Struct, frozen=True):
    """What waiting for a core cost, in the workers and the load tool: its `share` of the response
    time, the part of that which other programs can have caused (`others_share`; threads also wait
    for each other), and run-queue seconds per request. Cores used by other programs
    (`others_cores`), or given to other machines on the host (`steal_cores`), which took
    `stolen_share` of the response time in addition to `share`. None: not known."""

    share: float
    worker_s: float
    tool_s: float | None = None
    others_cores: float | None = None
    steal_cores: float | None = None
    stolen_share: float = 0.0
    cores: int | None = None  # of the machine
    others_share: float | None = None  # None: not known how long others ran

    @property
    def share_lost_to_programs(self) -> float:
        """The share of the response time lost to other programs: all of the wait for a core that
        they can have caused."""
        return self.share if self.others_share is None else self.others_share

    @property
    def share_lost(self) -> float:
        """The share lost to other programs and other machines."""
        return 1 - (1 - self.share_lost_to_programs) * (1 - self.stolen_share)

    @property
    def disturbed_by_programs(self) -> bool:
        """Whether other programs kept the load from a core for long enough to change its
        figures."""
        enough = self.share_lost_to_programs >= MIN_CORE_WAIT_SHARE
        return enough and (self.others_cores or 0.0) >= MIN_OTHERS_CORES

    @property
    def disturbed_by_machines(self) -> bool:
        """Whether other machines on the host did so, alone or together with other programs."""
        return (
            self.share_lost >= MIN_CORE_WAIT_SHARE and (self.steal_cores or 0.0) >= MIN_OTHERS_CORES
        )

    @property
    def disturbed(self) -> bool:
        """Whether the figures are unreliable, as others used the cores."""
        return self.disturbed_by_programs or self.disturbed_by_machines

    @property
    def precludes_verdict(self) -> bool:
        """Whether others took so much that the load allows no verdict."""
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
    in_force: Mapping[str, int | None] = {}  # settings in force; None: ignored
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
    requests: int  # answered, at least 1
    failed: int
    errors: Mapping[str, int] = {}
    slots_configured: int | None = None  # None: unlimited, or not known to its class
    slots_measured: int
    # Share of its slots that was taken, 0 to 1; None: at a rate, or without a number of slots
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
    core_wait: CoreWait | None = None  # cost of waiting for a core; None: not known
    # Kept-alive connections, by pid; None: not kept alive, or not observed
    connections_per_worker: Mapping[int, int] | None = None
    split_prediction_rps: float | None = None  # None: no such connections, or another distribution
    # The load tool was the limit: throughput is a lower bound; None: not known
    generator_bound: bool | None = None
    bound_reasons: tuple[Finding, ...] = ()  # why `generator_bound`, with numbers
    # Mean of requests in flight, by the client; None: not known
    achieved_concurrency: float | None = None
    at_rate: RateResult | None = None  # None: a closed loop
    app_metrics: AppMetrics | None = None  # None: none sampled, or at a rate
    routes: Mapping[str, RouteResult] = {}  # of a mix, by label
    held_s: float | None = None  # a slot is held this long after the app; None: none waited
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
        """Whether others used the cores, so that its figures say little about the server."""
        return self.core_wait is not None and self.core_wait.disturbed


PhaseName = Literal["ramp-up", "drain", "steady", "churn"]


class Phase(Struct, frozen=True):
    """A stretch of the load that the analysis found: ramp-up (connections only rise), drain (no
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
    diagnosed_trial: str | None = None  # key of the trial that the diagnosis is from
    processes: int = 1  # of the load tool
    worker_class: WorkerClass = UNKNOWN_CLASS
    level_rps: float | None = None  # throughput where it levels off; None: no cell shows it
    knee_predicted: float | None = None  # from the times a request is set to wait and compute

    @property
    def series(self) -> Cell:
        """The key of its cells, as `Cell.series`."""
        return Cell(self.server, self.tool, 0, self.keepalive, self.processes)


class Report(Struct, frozen=True):
    """What a run showed. `overhead`: load time / ideal time over the valid cells."""

    run: str
    environment: Mapping[str, object]
    overhead: float | None = None
    cells: tuple[TrialResult, ...] = ()
    classes: tuple[ClassResult, ...] = ()
    setup_s: Mapping[str, float | None] = {}  # median per cell of start, warmup, stop
    notes: tuple[Finding, ...] = ()
    facts: tuple[Any, ...] = ()  # `analysis.facts.Facts` of each cell's first valid trial


# --- documents ----------------------------------------------------------------------------

Value = str | int | float | bool | Mapping[str, int] | Finding | None
Form = Literal["text", "count", "number", "seconds", "bytes", "percent", "counts"]


class Column(Struct, frozen=True):
    """`name` is the key in JSON and CSV, unit last (`response_p50_s`)."""

    name: str
    form: Form = "number"  # of values: number has three digits, percent is a share of 1
    expendable: int = 0  # in a narrow terminal, the highest are hidden first; 0: last
    heading: str = ""  # "": its name
    meaning: str = ""  # what it holds, if the heading does not say it; "": not explained
    # From a row's item; text: the path of an attribute, any of which may be None; None: `name`
    value: Callable[[Any], Value] | str | None = None
    width: int = 0  # in a terminal, longer texts are wrapped; 0: any


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
    # In a terminal: without its title; or beside the table before, if the columns fit
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
    """The report of a run with what it concludes and shows, independent of the output format.
    `kind`: the command that made it. Only SWEEP has cells, classes, facts and phases."""

    kind: str
    title: Label
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...] = ()
    valid: bool = True  # False: a required measurement failed
    target_kept: bool | None = None  # False: a target is not kept; None: no target
    exit_code: int | None = None  # of the command; None: by `valid` and the records
    phases: Mapping[str, tuple[Phase, ...]] = {}  # of loads, by key of the trial
    timelines: tuple[Any, ...] = ()  # on a page; (): made from `facts` when it is drawn
