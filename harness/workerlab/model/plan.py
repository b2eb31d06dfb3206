"""The types of a plan: cells of servers and loads, and the plan of a run.

Like all types of `workerlab.model`, these are immutable msgspec Structs, several times as fast to
define and create as dataclasses: a trial has hundreds of thousands of spans. Values are in seconds
and bytes; only output has other units. `None` means "unknown" or "unlimited", never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from workerlab.finding import StoredFinding

MAX_LENGTH = 40  # characters of a path in a file name


class Route(Struct, frozen=True):
    """One kind of request in a mix, and its expected response."""

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
    """The application under test, its request and the expected response."""

    target: str = ""  # Gunicorn's spelling: "module:callable" or "module:create_app()"
    chdir: str = ""  # absolute; "" = the run's own copy of apps/
    path: str = "/"
    method: str = "GET"
    headers: tuple[tuple[str, str], ...] = ()
    body_file: str | None = None
    expect_status: int = 200
    env: tuple[tuple[str, str], ...] = ()
    sleep_s: float | None = None  # known only for the bundled apps
    body_sha256: str | None = None  # of the only correct body, if known in advance
    mix: tuple[Route, ...] = ()  # (): every request is the one above


class NullServer(Struct, frozen=True):
    """A server that does no work: it responds at once, or after a seeded random delay."""

    body_bytes: int = 12
    delay_s: tuple[float, float] = (0.0, 0.0)  # uniform between these
    seed: int = 1
    core: int | None = None  # the core it is pinned to; None: any
    fault: str = ""  # in every response: reset, stall, garbage, half, status500, close, kept
    requests_per_connection: int = 0  # after these it closes the connection; 0: never
    tw_reuse: int | None = None  # net.ipv4.tcp_tw_reuse in a network namespace of its own


class Server(Struct, frozen=True):
    """The server under load as requested; the proofs of its workers have the effective settings."""

    worker_class: str
    workers: int
    threads: int
    backlog: int
    worker_connections: int
    instances: int = 1  # servers like this, each on its own port; every request picks one at random
    app: App = App()  # what Gunicorn serves
    name: str = ""  # of the configuration, if the experiment sets one; prefix of trial keys
    null: NullServer | None = None  # if set, it replaces Gunicorn
    preload: bool = False  # the app is loaded once, before the workers are forked
    cores: int | None = None  # number of cores it may use; None: all
    cpu_s: float | None = None  # CPU that each request uses, if the experiment sets it
    gunicorn: str = ""  # its version, if the plan has more than one; "": the plan's
    python: str = ""  # its interpreter, if the plan has more than one; "": the plan's
    config: str | None = None  # its Gunicorn file, if the plan has more than one; None: the plan's

    @property
    def key(self) -> str:
        """A name that is unique for the settings, and valid in a file name."""
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
        """The worker class, with the version and interpreter that serve it, if they are set."""
        version = f"Gunicorn {self.gunicorn}" if self.gunicorn else ""
        return ", ".join(filter(None, (self.worker_class, version, self.python)))


def _as_name(path: str) -> str:
    """The path in a form for file names; a long one becomes its end and a checksum."""
    name = re.sub(r"[^A-Za-z0-9.]+", "_", path).strip("_")
    return name if len(name) <= MAX_LENGTH else f"{name[-MAX_LENGTH:]}_{crc32(path.encode()):08x}"


Slots = Literal["one", "threads", "worker_connections", "unlimited", "unknown"]


class WorkerClass(Struct, frozen=True):
    """Facts about one of Gunicorn's worker classes, whose Gunicorn file is in `configs/`, or about
    another server (see `alone`)."""

    name: str
    slots: Slots  # requests that one worker serves at once, or the setting that limits them
    serves: tuple[str, ...] = ("wsgi",)  # wsgi, asgi, asgi2, tornado; (): unknown
    accepts_first: bool = False  # accepts more than it serves: chance decides which requests wait
    loop: bool = False  # one event loop per worker: a blocking call delays all its requests
    ignores: tuple[str, ...] = ()  # settings without effect
    effective_from: Mapping[str, str] = {}  # ignored settings that take effect from this version on
    packages: tuple[str, ...] = ()  # required in addition to Gunicorn, by import name
    path: str = ""  # value of Gunicorn's -k, if Gunicorn has no name for it
    alias: str = ""  # another dotted path for it in a Gunicorn file
    advice: str = "more workers serve more at once"  # how to get more slots
    removed_in: str = ""  # the first version of Gunicorn without it
    alone: bool = False  # a server of its own (`workerlab.server.backends`), without Gunicorn
    shares_port: bool = False  # each worker listens on a socket of its own (SO_REUSEPORT, Linux)
    unmeasured: str = ""  # a sentence about what the lab cannot measure in it
    closes_http_1_0: str = ""  # why it closes HTTP/1.0 connections: a predicate; "": it does not

    @property
    def asgi(self) -> bool:
        return "asgi" in self.serves

    @property
    def slots_known(self) -> bool:
        """Whether `slots_per_worker` is known: if False, None does not mean unlimited."""
        return self.slots != "unknown"

    def threaded(self, server: Server) -> bool:
        """Whether its number of threads matters and is shown."""
        return self.slots == "threads" or (server.threads > 1 and "threads" not in self.ignores)

    def slots_per_worker(self, server: Server) -> int | None:
        """Requests that one worker serves at once by its settings; None: unlimited or unknown."""
        settings = {"threads": server.threads, "worker_connections": server.worker_connections}
        return {"one": 1, **settings}.get(self.slots)

    def slots_of(self, server: Server) -> int | None:
        """Requests that the server serves at once by its settings; None: unlimited or unknown."""
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
    duration_s: float  # for tools that run for a duration
    deadline_s: float  # after which the harness stops the tool
    keepalive: bool = False  # reuse connections if the server allows it
    drops: bool = False  # more connections than the accept queue holds: some will be dropped
    processes: int = 1  # of the load tool; they share the connections
    rate_rps: float | None = None  # open model: arrivals per second; None: closed loop
    ramp_s: float = 0.0  # connections start one after the other over this time
    linger_s: float = 0.0  # clients close this long after their last response
    timed: bool = False  # lasts duration_s, even if the tool can count requests
    same_body: bool = False  # all bodies must equal the first: the app's response is constant
    hosts: tuple[str, ...] = ()  # hosts that send the load; (): this machine
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
    name: str = ""  # prefix of the keys of its trials, if the experiment names its cells
    schedule: int | None = None  # which of the plan's schedules; None: by the number of the trial
    duration_s: float | None = None  # of its load, instead of the plan's
    # Measured in the workers in addition to spans and beats: "needs", the CPU of each request;
    # "stacks", the running line of the app. Both would distort other figures
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
    """Everything that a run needs to start or resume."""

    kind: str  # the command that made it and can resume it
    cells: tuple[Cell, ...]  # in display order, those with a rate last
    trials: int
    rounds: int
    seed: int  # of the order of trials
    python: str
    config: str | None
    unavailable: Mapping[str, str]  # the reason, by variant of a server
    notes: tuple[StoredFinding, ...]
    duration_s: float | None = None  # of each load, instead of a number of requests
    ramp_s: float = 0.0
    linger_s: float = 0.0
    load_hosts: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}  # specific to the experiment, as in JSON
    max_seconds: float | None = None  # of a load without a fixed length; None: it is fixed
    arrivals: Arrivals = "even"  # of its cells with a rate
    slo: str = ""  # the target of its cells (`workerlab.slo`); "": none
    gunicorn: str = ""  # the version that serves; "": that of the interpreter's environment
    together: bool = False  # no load tool sends its first request alone
    jobs: int | None = 1  # maximum number of parallel trials; None: as many as leave cores idle
    project: tuple[str, ...] = ()  # options given by the user's pyproject.toml

    @property
    def servers(self) -> tuple[Server, ...]:
        return tuple(dict.fromkeys(cell.server for cell in self.cells))

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.tool for cell in self.cells if cell.tool))
