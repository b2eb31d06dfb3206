"""The nouns of the lab, frozen. Seconds and bytes inside; pretty units only at the edge.

    plan     -> Server, WorkerClass, Load, Cell, Trial (what shall be done)
    measure  -> Record                                 (what was seen: facts, nothing derived)
                Observations                           (what the kernel and /proc said meanwhile)
    tools    -> Command, Output -> Measurement         (what one load tool says)
    analyse  -> Summary, Breakdown, CellResult, ClassResult, Timeline, Report   (what it means)
                Document                               (what a run shows, whichever command made it)

`None` means "not known" or "unlimited", never 0. They are Structs of msgspec: classes and objects
are made several times as fast as dataclasses, and spans come by the hundred thousand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from workerlab.finding import Finding, StoredFinding

SCHEMA = 2  # of the JSON that a report is
LONG_NAME = 40  # characters of a path within the name of a file

Verdict = Literal[
    "below capacity", "at capacity", "saturated", "generator-bound", "inconclusive", "invalid"
]


class LabError(Exception):
    """Something the user can mend, said in one sentence; `exit_code` is what the command ends with:
    2 usage, 3 the environment cannot do it."""

    exit_code = 3


class UsageError(LabError):
    """The command's words are off; nothing was started."""

    exit_code = 2


class EnvironmentProblem(LabError):
    """This machine, interpreter or app cannot do it: something is missing or does not boot."""


class ParseError(Exception):
    """A tool's output cannot be read with certainty. `line` is the offending line."""

    def __init__(self, why: str, line: str = "") -> None:
        self.why, self.line = why, line.strip()[:200]
        super().__init__(f"{why}: {self.line!r}" if self.line else why)


Label = str | Finding  # a name, or the finding that says one


# --- what shall be done -------------------------------------------------------------------


class Route(Struct, frozen=True):
    """One kind of request of a mix, and what it must answer."""

    path: str = "/"
    method: str = "GET"
    weight: float = 1.0  # of all requests; only the ratio to the others counts
    headers: tuple[tuple[str, str], ...] = ()
    body_file: str | None = None
    expect: tuple[int, ...] = ()  # statuses that count as success; (): any 2xx and 3xx
    name: str = ""  # in results; "": "METHOD PATH"

    @property
    def label(self) -> str:
        return self.name or f"{self.method} {self.path}"


class App(Struct, frozen=True):
    """The application under test, how it is asked and what it must answer."""

    target: str = ""  # Gunicorn's spelling: "module:callable" or "module:create_app()"
    chdir: str = ""  # absolute; "" = the run's own copy of apps/
    path: str = "/"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body_file: str | None = None
    expect_status: int = 200
    env: tuple[tuple[str, str], ...] = ()
    sleep_s: float | None = None  # known only for the lab's own apps
    body_sha256: str | None = None  # of the only right answer, where that is known beforehand
    mix: tuple[Route, ...] = ()  # (): every request is the one above


class NullServer(Struct, frozen=True):
    """A server that does nothing: it answers at once, or after a seeded random delay."""

    body_bytes: int = 12
    delay_s: tuple[float, float] = (0.0, 0.0)  # uniform between
    seed: int = 1
    core: int | None = None  # the CPU it is pinned to; None: any
    fault: str = ""  # of every answer: reset, stall, garbage, half, status500, close, kept
    requests_per_connection: int = 0  # it closes a kept connection after so many; 0: never
    tw_reuse: int | None = None  # net.ipv4.tcp_tw_reuse in a network namespace of its own


class Server(Struct, frozen=True):
    """What a load is sent to, as asked for; the proof says what became of the settings."""

    worker_class: str
    workers: int
    threads: int
    backlog: int
    worker_connections: int
    instances: int = 1  # servers of this kind at once, on a port each; the load picks at random
    app: App = App()  # what Gunicorn serves
    name: str = ""  # of the configuration, where an experiment names it; begins its trials' keys
    null: NullServer | None = None  # a server that does nothing takes Gunicorn's place
    preload: bool = False  # the app is loaded once, before the workers are forked
    cores: int | None = None  # that it may run on; None: all
    cpu_s: float | None = None  # that each request computes, where an experiment says how long
    gunicorn: str = ""  # the version that serves, where there are several; "": the plan's
    python: str = ""  # the interpreter that serves, where there are several; "": the plan's
    config: str | None = None  # its own Gunicorn file, where there are several; None: the plan's

    @property
    def key(self) -> str:
        """Safe as a file name, and different for different settings."""
        key = f"{self.worker_class}-w{self.workers}-t{self.threads}-b{self.backlog}"
        key = f"{self.name}-{key}" if self.name else key
        several = f"-x{self.instances}" if self.instances > 1 else ""
        cpu = "" if self.cpu_s is None else f"-cpu{1000 * self.cpu_s:g}ms"
        preload = "-preload" if self.preload else ""
        cores = "" if self.cores is None else f"-on{self.cores}"
        version = f"-g{self.gunicorn}" if self.gunicorn else ""
        python = f"-py{_as_name(self.python)}" if self.python else ""
        return f"{key}-wc{self.worker_connections}{several}{cpu}{preload}{cores}{version}{python}"

    @property
    def variant(self) -> str:
        """Its worker class, and what serves it where that was asked for."""
        version = f"Gunicorn {self.gunicorn}" if self.gunicorn else ""
        return ", ".join(filter(None, (self.worker_class, version, self.python)))


def _as_name(path: str) -> str:
    """Part of a file name; of a long path its end, and what tells it from others that end so."""
    name = re.sub(r"[^A-Za-z0-9.]+", "_", path).strip("_")
    return name if len(name) <= LONG_NAME else f"{name[-LONG_NAME:]}_{crc32(path.encode()):08x}"


Slots = Literal["one", "threads", "worker_connections", "unlimited", "unknown"]


class WorkerClass(Struct, frozen=True):
    """What is known of one of Gunicorn's worker classes, beside its file in `configs/`."""

    name: str
    slots: Slots  # requests that one worker serves at once, or the setting that says how many
    serves: tuple[str, ...] = ("wsgi",)  # wsgi, asgi, asgi2, tornado; () where that is not known
    accepts_first: bool = False  # more than it serves: chance decides which worker's requests wait
    loop: bool = False  # one event loop serves a whole worker: a call that blocks holds up all
    ignores: tuple[str, ...] = ()  # settings that change nothing
    heeds_from: Mapping[str, str] = {}  # those of them that later versions of Gunicorn heed
    packages: tuple[str, ...] = ()  # what it needs beside Gunicorn, as one imports them
    path: str = ""  # what Gunicorn's -k takes where it has no name for it
    advice: str = "more workers serve more at once"  # how to get more slots
    removed_in: str = ""  # the version of Gunicorn that no longer has it

    @property
    def asgi(self) -> bool:
        return "asgi" in self.serves

    @property
    def slots_known(self) -> bool:
        """False: no number of slots does not mean that there is no limit."""
        return self.slots != "unknown"

    def threaded(self, server: Server) -> bool:
        """Whether its threads are worth naming."""
        return self.slots == "threads" or (server.threads > 1 and "threads" not in self.ignores)

    def slots_per_worker(self, server: Server) -> int | None:
        """Requests one worker serves at once by the settings; None: unlimited, or not known."""
        settings = {"threads": server.threads, "worker_connections": server.worker_connections}
        return {"one": 1, **settings}.get(self.slots)

    def slots_of(self, server: Server) -> int | None:
        """Requests served at once by the settings; None: unlimited, or not known."""
        each = self.slots_per_worker(server)
        return None if each is None else server.workers * server.instances * each


ANY_CLASS = WorkerClass("", "unknown", serves=())  # of which nothing is known


class Rate(Struct, frozen=True):
    """Arrivals of the open model: requests per second, or a share of the capacity that the closed
    cells of the same run find. Exactly one of the two is known when it is planned."""

    rps: float | None = None
    share: float | None = None

    @property
    def label(self) -> str:
        """As the user wrote it: "200" (requests/s), "80%"."""
        return f"{self.rps:g}" if self.share is None else f"{self.share * 100:g}%"


Arrivals = Literal["even", "poisson"]  # of the open model: evenly spaced, or a Poisson process


class Load(Struct, frozen=True):
    """What a load tool is asked to do."""

    concurrency: int  # connections kept busy
    requests: int  # for tools that count: 1 + rounds * concurrency
    duration_s: float  # for tools that run for a time
    deadline_s: float  # when the harness gives up on the tool
    keepalive: bool = False  # connections are used again, where the server allows it
    drops: bool = False  # more connections than the accept queue takes: some will be dropped
    processes: int = 1  # of the load tool; they share the connections
    rate_rps: float | None = None  # open model: arrivals per second; None: closed loop
    ramp_s: float = 0.0  # the connections begin one after the other over this time
    linger_s: float = 0.0  # clients close so much later than their last answer
    timed: bool = False  # for duration_s, also by a tool that can count
    same_body: bool = False  # every body must equal the first one: the app is known to be constant
    hosts: tuple[str, ...] = ()  # that send the load; (): this one
    urls: tuple[str, ...] = ()  # further servers; each request picks one at random
    sources: tuple[str, ...] = ()  # local addresses to connect from; (): the kernel's choice
    ports: tuple[int, int] | None = None  # local ports to connect from, lowest and highest
    summed: bool = False  # timings as distributions only, not one by one: for a million of them
    open_files: int | None = None  # the most that the load tool may have open; None: as it is
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body_file: str | None = None
    expect_status: int = 200
    arrivals: Arrivals = "even"
    schedule: int = 0  # seed of the moments of arrival, and of which request of the mix comes when
    mix: tuple[Route, ...] = ()  # as in App
    together: bool = False  # a tool that would send its first request alone does not


Inside = Literal["", "needs", "stacks"]  # see Cell


class Cell(Struct, frozen=True):
    """One point of the grid: server settings x load settings."""

    server: Server
    tool: str  # "": no load tool loads it
    concurrency: int
    keepalive: bool = False
    processes: int = 1  # of the load tool
    rate: Rate | None = None  # open model; `concurrency` is then the most connections at once
    load: Load | None = None  # where that does not depend on what a lone request costs
    name: str = ""  # its trials' key, where an experiment names its cells itself
    schedule: int | None = None  # which of the plan's schedules; None: that of the trial's number
    duration_s: float | None = None  # of its load, instead of the plan's
    # What is measured inside the workers beside spans and beats: "needs" the CPU of each request,
    # "stacks" which line of the app is running. Either costs too much to be in other figures
    inside: Inside = ""
    requests: int | None = None  # of a load that counts them; None: by the plan's rounds

    @property
    def series(self) -> Cell:
        """The key of its series: the cells that differ from it in the amount of load alone."""
        less = replace(self, concurrency=0, rate=None, load=None, name="", schedule=None)
        return replace(less, requests=None)


class Trial(Struct, frozen=True):
    """One execution of a cell, on a server launched for it alone. `number` counts from 1."""

    cell: Cell
    number: int

    @property
    def key(self) -> str:
        """Names the trial within its run, and its directory."""
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
    """All that a run is made of, and all that resuming it needs."""

    kind: str  # the command that made it, and that understands it
    cells: tuple[Cell, ...]  # in the order that a reader expects, those at a rate last
    trials: int
    rounds: int
    seed: int  # of the order of trials
    python: str
    config: str | None
    unavailable: Mapping[str, str]  # variant of a server -> why
    notes: tuple[StoredFinding, ...]
    duration_s: float | None = None  # load for so long, instead of counting requests
    ramp_s: float = 0.0
    linger_s: float = 0.0
    load_hosts: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}  # for the experiment, as JSON has them
    max_seconds: float | None = None  # of load where its length is not fixed; None: it is
    arrivals: Arrivals = "even"  # of its cells at a rate
    slo: str = ""  # the target of its cells (`workerlab.slo`); "": none
    gunicorn: str = ""  # the version that serves; "": that of the interpreter's environment
    together: bool = False  # no load tool sends its first request alone
    jobs: int | None = 1  # trials at the same time, at most; None: as many as leave cores idle
    project: tuple[str, ...] = ()  # options that the user's pyproject.toml gave

    @property
    def servers(self) -> tuple[Server, ...]:
        return tuple(dict.fromkeys(cell.server for cell in self.cells))

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.tool for cell in self.cells if cell.tool))


# --- what was seen ------------------------------------------------------------------------

FaultKind = Literal[
    "interrupted",  # the user or a signal ended the harness
    "unavailable",  # a package or program is missing, the app does not import: exit 3
    "server",  # the server, or a worker of it, failed or died under the load
    "tool",  # the load tool failed, hung, flooded or died
    "answer",  # the app did not answer what was expected
    "storage",  # the disk is full or a file could not be written
    "unmeasured",  # what it needs to know of other cells was not measured
]


class Fault(Struct, frozen=True):
    """Why a trial cannot be trusted, found while it ran."""

    kind: FaultKind
    reason: str
    detail: str = ""  # of this trial alone: a file to look into, a pid


class Record(Struct, frozen=True):
    """One trial as it happened: facts only. Everything else is derived from it and raw files. Times
    are CLOCK_MONOTONIC nanoseconds, the clock of the spans."""

    key: str
    fault: Fault | None
    lone_s: tuple[float, ...] = ()  # response times of lone requests, before the load
    load_start_ns: int | None = None
    load_end_ns: int | None = None
    start_s: float | None = None  # launch until a real request was answered, that wait excluded
    warmup_s: float | None = None  # lone request and warm-up
    stop_s: float | None = None
    planned_requests: int | None = None
    planned_duration_s: float | None = None
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    worker_pids: tuple[int, ...] = ()
    proof: Mapping[str, object] = {}  # effective configuration
    warnings: tuple[StoredFinding, ...] = ()
    tool_cpu_s: float | None = None  # user and system, of the load tool and the children it awaited
    asked_rps: float | None = None  # open model: arrivals per second, a share already resolved
    planned_connections: int | None = None  # the most at once
    pilot_s: float | None = None  # of shorter loads before, which told how long this one had to be
    lone_end_ns: int | None = None  # of the lone requests
    lone_begun_ns: tuple[int, ...] = ()  # of each of lone_s; others failed, before it or between
    # Of a mix: lone_s are rounds of its routes; what each request of a round stands for, sum 1
    lone_weights: tuple[float, ...] = ()
    beside: tuple[str, ...] = ()  # keys of the trials that ran at the same time
    # It ran beside others before, when the lab used so many cores; this is it again, alone
    again_cores: float | None = None
    arrivals: Arrivals = "even"  # open model: with the seed and planned_duration_s, of asked_rps:
    schedule: int = 0  # what `workerlab.numbers.schedule.schedule` makes again

    @property
    def interrupted(self) -> bool:
        """Whether the lab was ended before it was: it is made again."""
        return self.fault is not None and self.fault.kind == "interrupted"

    @property
    def alone_s(self) -> tuple[float, ...]:
        """What a lone request costs: of a mix the mean of each round, by weight."""
        count = len(self.lone_weights)
        if not count:
            return self.lone_s
        rounds = (self.lone_s[at : at + count] for at in range(0, len(self.lone_s), count))
        return tuple(
            sum(weight * took_s for weight, took_s in zip(self.lone_weights, one, strict=True))
            for one in rounds
        )


class SpanCost(Struct, frozen=True, gc=False):
    """What the thread of a request did for it while it was in the app, nanoseconds. `queued_ns`:
    ready to run and without a core. `steps_ns`: on a loop that it shares, how long its steps took
    in all by the wall clock, both others included; `held_up_ns`: how long steps of others held them
    up, by estimate. `route`: its place in the mix. Of a thread of its own: how many `looks` at the
    GIL there were meanwhile, and found it `held`; how often it `slept`."""

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
    end_ns: int | None  # None: never ended
    accept_ns: int | None = None  # of its connection, of all requests on it; None: not timed
    request_id: str | None = None  # what the client called it, where its load tool names requests
    cost: SpanCost | None = None  # where it is measured what each request needs


class Spans(Struct, frozen=True):
    """All spans of a trial."""

    spans: tuple[Span, ...]
    full: tuple[int, ...] = ()  # the workers whose map had no room left


class Beat(Struct, frozen=True, gc=False):
    """A timer that fired on a worker's event loop. Nanoseconds; `at_ns` is CLOCK_MONOTONIC, all
    others are since the beat before. CPU and waiting for a core (run-queue time): of the loop's
    thread, and of all other threads of its process together."""

    pid: int
    at_ns: int
    length_ns: int
    late_ns: int  # after it was due
    cpu_ns: int
    queued_ns: int
    others_cpu_ns: int
    others_queued_ns: int


class Beats(Struct, frozen=True):
    """All that are known of a trial."""

    beats: tuple[Beat, ...] = ()
    cut: tuple[int, ...] = ()  # the workers whose first beats had to make room


class CodeLine(Struct, frozen=True, gc=False):
    """A line that a worker's event loop was seen on. `called`: the name that it calls, as its
    source spells it; `inside`: the function that was running, where that is another. Either may not
    be known. `app`: whether the line is the app's own; else the app has none on the stack, and it
    is that of a library."""

    number: int  # in its trial
    file: str  # below the directory of the app, or that of installed packages
    line: int
    function: str
    called: str = ""
    inside: str = ""
    app: bool = True


class StackSample(Struct, frozen=True, gc=False):
    """One look at what an event loop runs. Nanoseconds; `at_ns` is CLOCK_MONOTONIC."""

    at_ns: int
    length_ns: int  # since the sample before; up to `others_ran_ns` likewise
    waited_ns: int  # the sampler had no core
    ran_ns: int  # CPU of the loop's thread
    starved_ns: int  # it was ready to run and had no core
    others_ran_ns: int  # of all other threads
    late_ns: int  # after it was due: the sampler had no core, or no GIL
    overdue_ns: int  # the loop's next beat
    since_ns: int  # the loop's last beat; up to `others_cpu_ns` likewise
    cpu_ns: int  # of the loop's thread
    queued_ns: int  # it was ready to run and had no core
    others_cpu_ns: int  # of all other threads
    stuck_ns: int  # the same call of the app was seen for so long, without a beat
    sleeps: int  # whether the loop's thread does (1), rather than run or wait for a core
    number: int  # of the line; 0: none, the loop waits or runs nothing but itself; 1: not kept
    other: int  # of the line of another thread that may have kept the GIL; 0: none


class Stacks(Struct, frozen=True):
    """What the event loop of one worker was seen to run, in order of time."""

    pid: int | None = None  # None: none was looked at
    samples: tuple[StackSample, ...] = ()
    lines: Mapping[int, CodeLine] = {}  # by number


class QueueSample(Struct, frozen=True):
    """The listening socket at one moment."""

    at_ns: int
    length: int  # connections waiting to be accepted
    limit: int  # the kernel lets limit + 1 in


class ProcessSample(Struct, frozen=True):
    """What the processes have used up to this moment, CPU seconds since sampling began, and the
    memory they hold now."""

    at_ns: int
    server_cpu_s: float | None
    tool_cpu_s: float | None
    host_busy_s: float | None  # of all cores together
    server_rss_bytes: int | None
    tool_rss_bytes: int | None
    host_memory_bytes: int | None = None  # of everything on it, caches aside
    host_irq_s: float | None = None  # of host_busy_s: in interrupts
    server_wait_s: float | None = None  # ready to run and without a core, all threads together
    tool_wait_s: float | None = None
    host_steal_s: float | None = None  # of host_busy_s: cores given to another machine
    lab_cpu_s: float | None = None  # of this process, which looks on
    beside_cpu_s: float | None = None  # of the lab's other trials; None: there were none
    network_bytes: Mapping[str, int] = {}  # "eth0 in", "eth0 out": since it came up, of everything


class ConnectionSample(Struct, frozen=True):
    """The server's TCP connections at one moment, both ends (load and server share the kernel)."""

    at_ns: int
    server: Mapping[str, int]  # sockets by state, in the kernel's names (SYN_RECV, ...)
    client: Mapping[str, int]
    per_worker: Mapping[int, int]  # connections it has accepted and not closed, by pid
    unread: int  # how many of these hold bytes of a request that nobody has read


class Counters(Struct, frozen=True):
    """How much the kernel's counters (TcpExt) grew during the load, in the whole network
    namespace; `socket_drops` those of this server's listening sockets alone. None: this kernel does
    not have that one, or others of the lab were counted in it, too."""

    listen_overflows: int | None = None
    listen_drops: int | None = None
    syn_retransmits: int | None = None
    syn_cookies: int | None = None  # TCPReqQFullDoCookies
    socket_drops: int | None = None  # sk_drops


class ServiceSample(Struct, frozen=True):
    """What stands beside the app (storage, cache) has used up to this moment, by name: CPU seconds
    since sampling began, and memory. Only what runs on this machine, started by the lab."""

    at_ns: int
    cpu_s: Mapping[str, float]
    rss_bytes: Mapping[str, int]


class WorkersSample(Struct, frozen=True):
    """CPU seconds that each worker has used since it began, by pid: all its threads, those that
    have ended among them, and the programs that it ran and awaited."""

    at_ns: int
    cpu_s: Mapping[int, float]


class MemorySample(Struct, frozen=True):
    """What the processes of the servers hold, maps of the lab's own left out."""

    at_ns: int
    pss_bytes: int  # of all of them: pages that several share are counted once
    private_bytes: Mapping[int, int]  # of each worker, by pid: pages that nobody shares


class AppMetricsSample(Struct, frozen=True):
    """What the app counts of itself at one moment, of all workers together since they started: see
    `observe/app_metrics.py` for what the names mean."""

    at_ns: int
    totals: Mapping[str, int]


class Pause(Struct, frozen=True):
    """In which the lab was not run, though it waited for no core: the machine stood still, or the
    lab was stopped. It was seen from where a thread of the lab was due, and may have begun earlier:
    by 0.1 s at most where the observer sleeps."""

    from_ns: int
    to_ns: int


class Observations(Struct, frozen=True):
    """What was seen from outside while the load ran. Times: CLOCK_MONOTONIC nanoseconds.

    `missing`: which sampler (queue, processes, connections, counters, services, app_metrics,
    workers, memory, pauses) gave nothing or died, and why; what it gave before that stays, but must
    not be summed up.
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
    syn_steps_s: tuple[float, ...] = ()  # after a SYN, when this kernel repeats it
    missing: Mapping[str, str] = {}


# --- what a tool says ---------------------------------------------------------------------


class Command(Struct, frozen=True):
    """How a load tool is run: its words, and files to write into its directory first."""

    argv: tuple[str, ...]
    files: Mapping[str, str] = {}


class Output(Struct, frozen=True):
    """All that a load tool left: texts, exit code (negative: ended by that signal), its files."""

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
    p90: float | None = None  # last, for those that fill it by place


class Timing(Struct, frozen=True, gc=False):
    """One request as the client timed it: seconds, `start_s` since the tool's own start. The others
    are measured from there; None: never reached."""

    start_s: float
    connect_s: float | None
    first_byte_s: float | None
    end_s: float | None
    status: int | None
    cause: str | None  # of the failure; None: a success
    request_id: str | None = None
    reused: bool = False  # sent on a connection that was there already; `connect_s` is then 0
    route: int | None = None  # of a mix: its place in Load.mix


class RouteResult(Struct, frozen=True):
    """What became of the requests of one route of a mix."""

    requests: int  # complete answers, whatever their status
    failed: int
    errors: Mapping[str, int] = {}  # why, by cause
    response: Summary = Summary()  # of successes
    statuses: Mapping[str, int] = {}  # of answers with a status that was not expected
    answer: str = ""  # the first of these: what a person would read first in its body


class AbTimes(Struct, frozen=True):
    """A row of ApacheBench's table of connection times, seconds."""

    min: float | None = None
    mean: float | None = None
    sd: float | None = None
    median: float | None = None
    max: float | None = None


class AbReport(Struct, frozen=True):
    """What ApacheBench prints. Both times per request and the rate are None where the run took no
    time; `time_per_request_across_s` is that "(mean, across all concurrent requests)"."""

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
    """What one tool's output says, and nothing it does not say. Causes of `errors`: non_2xx,
    timeout, reset, refused, connect, read, write, length, exception, ..."""

    requests: int  # responses it counts as complete, whatever their status
    failed: int  # requests that were not a success
    errors: Mapping[str, int]  # why, by cause
    duration_s: float
    rps: float | None
    response: Summary
    connect: Summary = Summary()
    first_byte: Summary = Summary()
    lone_s: float | None = None  # response time of a request that had the server for itself
    timings: tuple[Timing, ...] = ()  # every request, where the tool times each (fast)
    origin_ns: int | None = None  # CLOCK_MONOTONIC of the timings' zero, where the tool tells it
    responses_s: tuple[float, ...] = ()  # every response time, in no order, where `timings` are not
    connects_s: tuple[float, ...] = ()  # every connection's time to connect, in no order
    # By per cent, the response time that so many took no longer than, where neither of these is
    percentiles_s: Mapping[float, float] = {}
    achieved_concurrency: float | None = None  # mean number of requests in flight, as it says
    connections: int | None = None  # how many it opened
    asked_rps: float | None = None  # open model: arrivals per second that it was asked for
    sent: int | None = None
    unsent: int | None = None  # open model: due in its time and never sent
    lag: Summary = Summary()  # open model: sent later than intended; part of `response`
    cpu_s: float | None = None  # of the tool, by itself
    exact_mean: bool = True  # False: synthetic samples (wrk), so no Little's law from it
    body_sha256: str | None = None  # of the body that every complete answer had, where it compares
    received_bytes: int | None = None  # heads and bodies
    # Per request, in its socket's calls (connect, send, receive), waiting for its turn included
    calls_s: Mapping[str, float] = {}
    # When each answer ended (CLOCK_MONOTONIC) and how long it took, where `timings` are not
    answers_ns: tuple[tuple[int, int], ...] = ()
    notes: tuple[Finding, ...] = ()
    details: Mapping[str, Any] = {}  # what no other tool says
    routes: Mapping[str, RouteResult] = {}  # of a mix, by label
    ab: AbReport | None = None  # None: another tool


class NullCounts(Struct, frozen=True):
    """What a null server counted."""

    requests: int
    answers: int
    connections: int
    most_connections: int  # at once
    cpu_s: float  # from its start to its end
    delays_s: float  # that it gave, added up
    service: Summary  # of `answers`: from a request read until it was answered, delay included


# --- what it means ------------------------------------------------------------------------


class RequestNeed(Struct, frozen=True, gc=False):
    """What one request needs of a worker. `wait_s`: in the app without computing or blocking
    others (database, sleep). `cpu_s`: of a core, and of the worker's GIL. `blocked_s`: in a call
    that holds up the worker's event loop without computing. `nogil_s`: CPU beside `cpu_s` that
    needs no GIL. Waiting for a core or for other requests is in none of them."""

    wait_s: float
    cpu_s: float
    blocked_s: float = 0.0
    nogil_s: float = 0.0
    route: str = ""  # label of its Route; "": there is one only


class Memory(Struct, frozen=True):
    """Of a server after a load, as shared + workers x private bytes."""

    shared_bytes: int  # master included
    private_bytes: int  # of each worker, mean
    workers: int  # that were measured

    def of(self, workers: int) -> int:
        return self.shared_bytes + workers * self.private_bytes


class Needs(Struct, frozen=True):
    """What the requests of a trial needed. `requests`: a sample of them, in order of arrival, whose
    mean CPU is that of the workers per request, Gunicorn's own part included. `gap_s`: how much
    longer than for its waiting, computing and blocking a request holds its slot. `beside_s`: of a
    response, what holds no slot and is none of these (connect, transfer, the load tool). `each`:
    the CPU is known of each request; else it is the mean of all. `load_s`: CPU per request that the
    load itself takes of the same cores, its tool and interrupts; None: not measured."""

    trial: str  # its key
    requests: tuple[RequestNeed, ...]
    gap_s: float
    beside_s: float
    start_s: float | None = None  # boot until a request is answered
    memory: Memory | None = None
    notes: tuple[Finding, ...] = ()
    each: bool = True
    load_s: float | None = None


class Breakdown(Struct, frozen=True):
    """Where a response time went: means in seconds over the steady window, None: no source."""

    response_s: float | None = None
    connect_s: float | None = None  # until the client's connect() returned
    accept_queue_s: float | None = None  # until a worker accepted
    in_worker_s: float | None = None  # until the app was called
    service_s: float | None = None  # in the app
    transfer_s: float | None = None  # until the client had the last byte
    unattributed_s: float | None = None  # response - the known parts; may be negative, never spread
    exact: bool = False  # each request was followed by its id; else each part is an estimate
    sources: Mapping[str, str] = {}  # by part


class Usage(Struct, frozen=True):
    """What the load cost. Cores: CPU seconds per second, mean over the load. `host_busy`: the
    busy fraction of all cores, 0 to 1. Memory: the most that was seen, in bytes."""

    server_cores: float | None = None
    generator_cores: float | None = None
    host_busy: float | None = None
    server_rss_bytes: int | None = None
    generator_rss_bytes: int | None = None
    host_memory_bytes: int | None = None  # of everything on it, caches aside
    received_bytes_per_s: float | None = None  # by the generator, heads and bodies
    # Of the generator, per request: as `Measurement.calls_s`
    connect_calls_s: float | None = None
    send_calls_s: float | None = None
    receive_calls_s: float | None = None


WAITED = 0.05  # of the response time: from here on, waiting for a core is not to be neglected
TAKEN = 0.25  # cores: as much as others must use to be the reason


class CoreWait(Struct, frozen=True):
    """What it cost that workers and load tool were ready to run and had no core: the `share` of the
    response time, the part of it that others can have caused (`others_share`; threads wait for each
    other, too), and run-queue seconds per request. Cores: busy with nothing of the trial
    (`others`), or given to another machine on the same host (`steal`), which took `stolen_share` of
    the response time beside `share`. None: not known."""

    share: float
    worker_s: float
    tool_s: float | None = None
    others_cores: float | None = None
    steal_cores: float | None = None
    stolen_share: float = 0.0
    cores: int | None = None  # of the machine
    others_share: float | None = None  # None: how long others ran is not known

    @property
    def lost(self) -> float:
        """The part of the response time that is to be taken for others' doing: of what waited for a
        core all that others can have caused."""
        return self.share if self.others_share is None else self.others_share

    @property
    def taken(self) -> float:
        """The same, and what other machines took of the rest."""
        return 1 - (1 - self.lost) * (1 - self.stolen_share)

    @property
    def disturbed(self) -> bool:
        """Whether other programs kept the load from a core for long enough to be in its figures."""
        return self.lost >= WAITED and (self.others_cores or 0.0) >= TAKEN

    @property
    def stolen(self) -> bool:
        """Likewise, other machines."""
        return self.taken >= WAITED and (self.steal_cores or 0.0) >= TAKEN

    @property
    def doubtful(self) -> bool:
        """Whether the figures are of the machine's use by others as much as of the server."""
        return self.disturbed or self.stolen


class AppMetrics(Struct, frozen=True):
    """What a request costs inside an app that counts it, and what stands beside it uses, over the
    steady window. What was not seen is not in there."""

    requests: int
    per_request: Mapping[str, float]  # by name in the app's metrics (storage_trips, ...)
    spent_s: Mapping[str, float]  # wall-clock by part (pool, storage, ...); they exclude each other
    hit_ratio: Mapping[str, float]  # of each cache (local, redis), of what it was asked for, 0 to 1
    cores: Mapping[str, float]  # CPU seconds per second of each component (storage, cache)


class CellResult(Struct, frozen=True):
    """One trial, analysed. Where the verdict is invalid, every number is None."""

    trial: Trial
    app: str
    sleep_s: float | None
    verdict: Verdict
    reason: Finding
    requests: int | None = None
    failed: int | None = None
    errors: Mapping[str, int] = {}
    slots_configured: int | None = None  # None: unlimited, or not known to its class
    slots_measured: int | None = None
    occupancy: float | None = None  # of its slots, the part that was taken; 0 to 1
    throughput_rps: float | None = None
    throughput_half_rps: float | None = None  # of its 95 % interval in this launch; None: unknown
    tool_rps: float | None = None
    whole_rps: float | None = None  # successes/s of the whole load; a lone first request apart
    in_force: Mapping[str, int | None] = {}  # settings as the server has them; None: ignored
    served_by: Mapping[str, str] = {}  # versions of "gunicorn" and "python", as its workers say
    lone_s: float | None = None  # R0 of its server
    bound_rps: float | None = None
    response: Summary = Summary()
    connect: Summary = Summary()
    service: Summary = Summary()
    waiting: Summary = Summary()
    requests_per_worker: Mapping[int, int] = {}
    load_s: float | None = None
    ideal_s: float | None = None
    breakdown: Breakdown = Breakdown()
    counters: Counters = Counters()
    accept_queue_max: int | None = None
    accept_queue_limit: int | None = None
    usage: Usage = Usage()
    core_wait: CoreWait | None = None  # what it cost to wait for a core; None: not known
    connections_per_worker: Mapping[int, int] | None = None  # kept-alive connections, by pid
    split_prediction_rps: float | None = None
    generator_bound: bool | None = None  # the load tool set the limit: X is a lower bound
    bound_reasons: tuple[Finding, ...] = ()  # why it is called so, each with its numbers
    achieved_concurrency: float | None = None  # mean requests in flight, as the client counts
    asked_rps: float | None = None  # open model
    arrivals: Arrivals | None = None  # open model: how they came
    schedule: int | None = None  # the seed of when
    due_rps: float | None = None  # what the schedule made of the rate that was asked for
    sent_rps: float | None = None
    unsent: int | None = None
    lag: Summary = Summary()
    app_metrics: AppMetrics | None = None  # of an app that publishes them
    routes: Mapping[str, RouteResult] = {}  # of a mix, by label
    held_s: float | None = None  # a slot stays taken so long after the app; None: nobody waited
    diagnosis: Finding | None = None  # what holds it up, and what to change
    findings: tuple[Finding, ...] = ()  # all that is so of it, the diagnosis first
    notes: tuple[Finding, ...] = ()
    worker_class: WorkerClass = ANY_CLASS
    target: tuple[Finding, ...] = ()  # the outcome of each of its terms
    ab: AbReport | None = None  # as ab printed it; None: another tool

    @property
    def server(self) -> Server:
        return self.trial.cell.server


class Bar(Struct, frozen=True):
    """One request in a timeline: seconds since the load began."""

    worker: int
    row: int  # which of its worker's slots it took, from 0
    start_s: float
    end_s: float
    arrived_s: float | None = None  # when its client began it; None: not known


class Moment(Usage, frozen=True):
    """What was used at one moment of a timeline; rates since the moment before."""

    at_s: float = 0.0


class Phase(Struct, frozen=True):
    """A stretch of the load that the analysis found: ramp-up (connections only rise), drain (no
    new ones, response times still fall), steady, churn (connections close). Seconds since the load
    began."""

    name: Literal["ramp-up", "drain", "steady", "churn"]
    start_s: float
    end_s: float
    why: Finding  # what marks its begin, with numbers


class Trace(Struct, frozen=True):
    """Where each request of a trial was at each moment, to be played. `moves`: (request, place as
    in `analysis/places`, its worker's number or None, ms since the load began), ascending in time;
    `samples`: (ms, answers/s, p50 and p95 in seconds, accept queue, requests under way). Where the
    clients did not name their requests (`named`) only what was in the app is known one by one."""

    server: Server
    slots: int | None
    accepts_first: bool
    length_ms: float  # of what is shown
    moves: tuple[tuple[int, int, int | None, float], ...]
    samples: tuple[
        tuple[float, float | None, float | None, float | None, int | None, int | None], ...
    ]
    named: bool = True
    whole: bool = True  # it is the whole load


class Timeline(Struct, frozen=True):
    """One trial over time, thinned to what a page can show; seconds since the load began."""

    key: str  # of its Trial
    bars: tuple[Bar, ...]
    shown: tuple[float, float]  # the stretch that the bars are of
    spans: int  # requests in all
    workers: tuple[int, ...] = ()  # pids, in the order of their rows
    queue: tuple[tuple[float, int], ...] = ()  # (moment, length of the accept queue)
    queue_limit: int | None = None
    states: tuple[tuple[float, str, int], ...] = ()  # (moment, side and state, sockets)
    usage: tuple[Moment, ...] = ()
    steady: tuple[float, float] | None = None  # the window the cell's means are taken from
    connects: tuple[tuple[float, float, int], ...] = ()  # (from, until, how many took so long)
    syn_steps_s: tuple[float, ...] = ()  # as in Observations
    notes: tuple[Finding, ...] = ()  # what was left out and how
    phases: tuple[Phase, ...] = ()
    responses: tuple[tuple[float, float, float], ...] = ()  # (moment, median, p95), seconds
    in_app: bool = False  # these are times inside the app: the client did not time each request
    trace: Trace | None = None  # None: no request was seen


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
    telling: str | None = None  # key of the trial whose diagnosis it is
    processes: int = 1  # of the load tool
    worker_class: WorkerClass = ANY_CLASS
    level_rps: float | None = None  # what throughput levels off at; None: no cell reports that
    knee_predicted: float | None = None  # from what a request is told to wait and to compute

    @property
    def series(self) -> Cell:
        """As `Cell.series` of its cells."""
        return Cell(self.server, self.tool, 0, self.keepalive, self.processes)


class Report(Struct, frozen=True):
    """What a run showed. `overhead`: load time / ideal time over the valid cells."""

    run: str
    environment: Mapping[str, object]
    overhead: float | None
    cells: tuple[CellResult, ...]
    classes: tuple[ClassResult, ...]
    setup_s: Mapping[str, float | None]  # median per cell of start, warmup, stop
    notes: tuple[Finding, ...] = ()
    timelines: tuple[Timeline, ...] = ()  # for the page; other formats leave them out


# --- experiments beyond the sweep ---------------------------------------------------------

Value = str | int | float | bool | Mapping[str, int] | Finding | None
Form = Literal["text", "count", "number", "seconds", "bytes", "percent", "counts"]


class Column(Struct, frozen=True):
    """`name` is the key in JSON and CSV, unit last (`response_p50_s`)."""

    name: str
    form: Form = "number"  # how values are shown: number with three digits, percent of 1
    expendable: int = 0  # left out first of a narrow terminal where it is highest; 0: never
    heading: str = ""  # "": its name
    meaning: str = ""  # what it holds, where the heading does not tell; "": that of the same
    value: Callable[[Any], Value] | None = None  # of a row's item; None: its attribute `name`

    def of(self, item: Any) -> Value:
        value: Value = self.value(item) if self.value else getattr(item, self.name)
        return value


class Table(Struct, frozen=True):
    """`rows` hold a value per column; None is missing."""

    title: Label
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: Label | None = None
    keys: int = 1  # first columns that say what a row is about; equal ones stand together
    unit: str = ""  # of all durations, "s" or "ms"; "": each in its own
    anchors: tuple[str, ...] = ()  # of a page: what leads to each row; "": nothing does
    links: tuple[str, ...] = ()  # of a page: the anchor that each row leads to; "": none
    detailed: bool = False  # in a terminal, shown with --explain only
    short_note: str = ""  # in a terminal, without --explain
    # In a terminal: without its title; its columns beside those of the table before, if they fit
    terminal: Literal["", "untitled", "beside"] = ""

    @property
    def code(self) -> str:
        """Of its title; "" for a plain one."""
        return "" if isinstance(self.title, str) else self.title.code


class Mark(Struct, frozen=True):
    """What a point of a scatter is. `low`, `high`: its whisker in y; `link`: the anchor of the row
    of a table that tells more."""

    name: Label
    low: float | None = None
    high: float | None = None
    link: str = ""


Look = tuple[str, str]  # a colour, by what it stands for, and a shape


class ChartSeries(Struct, frozen=True):
    name: Label
    points: tuple[tuple[float, float], ...]
    marks: tuple[Mark, ...] = ()  # of a scatter, one per point
    look: Look | None = None  # None: the next that is free


class Level(Struct, frozen=True):
    """A horizontal line across a scatter."""

    name: Label
    y: float


class Chart(Struct, frozen=True):
    """`form`: "lines" with points; "scatter", points that have names; "bars", one per series beside
    each other for each of `names`; or "stacked" on each other. Of bars, and of a scatter that has
    `names`, x is the place in them, from 0."""

    title: Label
    x_title: Label
    y_title: Label
    series: tuple[ChartSeries, ...]
    log: tuple[bool, bool] = (False, False)  # whether the axes (x, y) are logarithmic
    note: Label | None = None
    form: Literal["lines", "scatter", "bars", "stacked"] = "lines"
    names: tuple[Label, ...] = ()
    level: Level | None = None


class Document(Struct, frozen=True):
    """What a run has to show, whichever command made it (`kind`), before it has a format. From
    `cells` on as in Report: of a sweep."""

    run: str
    kind: str
    title: Label
    environment: Mapping[str, object]
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...] = ()
    notes: tuple[Finding, ...] = ()
    valid: bool = True  # False: something it had to measure could not be (exit 1)
    target_kept: bool | None = None  # False: a target is not kept (exit 4); None: there is none
    exit_code: int | None = None  # of the command; None: by `valid` and the records
    cells: tuple[CellResult, ...] = ()
    classes: tuple[ClassResult, ...] = ()
    timelines: tuple[Timeline, ...] = ()
    overhead: float | None = None
    setup_s: Mapping[str, float | None] = {}
