"""`workerlab limits`: how far one client goes, and what stops it.

It reaches the limits of the machine (errno 24, errno 99) on purpose, explains them, and avoids
them. It also makes two classic mistakes. Each step is a cell on a null server, which responds after
a seeded random delay (at once for the mistakes). Steps that cannot run here are left out, with the
reason.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from workerlab.durations import null_s, predicted_s
from workerlab.errors import UsageError
from workerlab.experiments.limits.options import LimitsOptions
from workerlab.experiments.limits.results import SPARE_FILES
from workerlab.experiments.planning import available_tools, check_tools, why_unavailable
from workerlab.experiments.runner import Setup
from workerlab.finding import Note
from workerlab.load.mistakes import MISTAKES
from workerlab.model.plan import Cell, Load, NullServer, Plan
from workerlab.notes import add_notes
from workerlab.numbers.units import fill
from workerlab.plan import null_cell, null_plan
from workerlab.server import preflight
from workerlab.server.null_server import own_network

Chapter = Literal["clients", "unbounded", "far", "memory", "ports", "mistakes"]

USUAL_FILES = 1024  # the soft limit that most systems set
BOUNDED_CONNECTIONS = 1000  # below USUAL_FILES: an asyncio client has seven other files open
NOVEL_BYTES = 440 << 10
PAGE_BYTES = 1024
LONG_DELAY_S = (0.0, 3.0)  # of the server: shortest and longest
DELAY_S = (0.0, 1.0)
SHORT_DELAY_S = (0.0, 0.2)
FEW_PORTS = 200
ALL_PORTS = 28_232  # 32768 to 60999, the kernel's default, as in a new network namespace
NO_REUSE, LOOPBACK_REUSE = 0, 2  # net.ipv4.tcp_tw_reuse: the default before and since Linux 4.19
MIN_FILES = FEW_PORTS * 3 // 2 + SPARE_FILES  # with fewer, the ports cannot be used up either
AIOHTTP_REQUESTS = (100_000, 1_000_000)  # the second only with --long
# For clients that keep all tasks or bodies: two numbers of requests, and the bytes of a body
KEPT_LOADS = {"tasks": (10_000, 20_000, PAGE_BYTES), "bodies": (250, 500, NOVEL_BYTES)}
# Requests of each mistake's program, and its connections
MISTAKE_LOADS = {"missing_await": (100, 100), "session_per_request": (2000, 20)}

NO_PORTS = "Left out: errno 99. Only Linux 6.3 or newer can narrow a socket's local ports."
NO_NETWORK = (
    "Left out: running out of ports in TIME_WAIT (errno 99). Without a network namespace, other"
    " programs would run out of ports too, and this user cannot create one ({why})."
)
WITH_QUICK = (
    "Left out: [[{synchronous} ]]100,000 requests on new connections and the million, because of"
    " --quick."
)
FEW_CONNECTIONS = (
    "Left out: more than {connections:count} connections. The limit of open files is"
    " {files:count}; raise it (ulimit -n 10064) for 10,000."
)
NO_MISTAKES = (
    "Left out: 100,000 requests by aiohttp, clients that keep everything, and the classic mistakes."
    " They need aiohttp: pip install 'workerlab[generators]'."
)
LONG_NOTE = "A million requests by aiohttp take at least {least_s:duration}, mostly delays."


class PlannedStep(NamedTuple):
    """A step of the plan. `what`: what it shows, a key of LABELS in `results`."""

    cell: Cell
    chapter: Chapter
    what: str


class Extent(Struct, frozen=True):
    """What the machine and the options allow. `has(tool)`: whether that load tool can run; `files`:
    how many a process may open, None: unlimited; `ports`: lowest and highest local port, None:
    sockets cannot choose a range; `core`: reserved for the server; `no_network`: why a network
    namespace cannot be created; `synchronous`: include the synchronous client despite `quick`."""

    has: Callable[[str], bool]
    files: int | None
    ports: tuple[int, int] | None
    core: int | None
    no_network: str = ""
    quick: bool = False
    long: bool = False
    synchronous: bool = False

    @property
    def connections(self) -> int:
        """Connections that one process can open, at most 10,000."""
        return 10_000 if self.files is None else min(10_000, self.files - SPARE_FILES)

    @property
    def mistakes(self) -> bool:
        """Whether the programs with mistakes can run."""
        return self.has(next(iter(MISTAKES)))


def this_machine() -> Extent:
    return Extent(
        has=lambda tool: why_unavailable(tool) is None,
        files=preflight.raise_file_limit(),
        ports=preflight.port_range() if preflight.can_restrict_ports() else None,
        core=preflight.own_core(),
        no_network=_why_no_network(),
    )


def _why_no_network() -> str:  # "" if a namespace can be created
    try:
        with own_network(LOOPBACK_REUSE):
            return ""
    except OSError as error:
        return str(error)


def setup(options: LimitsOptions, plan: Plan | None) -> Setup:
    if plan is None:
        check_tools(["coroutines"] if options.long else ())
        extent = replace(
            this_machine(),
            quick=options.quick,
            long=options.long,
            synchronous=options.synchronous,
        )
        plan = plan_of(extent)
        preflight.check_levels(cell.concurrency for cell in plan.cells)
    return Setup(plan)


def plan_of(extent: Extent) -> Plan:
    """The plan of all steps that can run. Raises UsageError if too few files can be open."""
    if extent.files is not None and extent.files < MIN_FILES:
        raise UsageError(
            f"limits needs at least {MIN_FILES} open files, and 10,064 to show everything; the"
            f" limit is {extent.files}: raise it (ulimit -n 10064, as root if refused)"
        )
    notes = [*left_out(extent), *available_tools(("threads", "coroutines"))[1]]
    all_steps = steps(extent)
    details = {step.cell.name: {"chapter": step.chapter, "what": step.what} for step in all_steps}
    plan = null_plan("limits", (step.cell for step in all_steps), notes, {"steps": details})
    if extent.long:
        least_s = predicted_s(plan, plan.cells[-1], 0.0)
        plan = add_notes(plan, [Note(fill(LONG_NOTE, {"least_s": least_s}))])
    return plan


def left_out(extent: Extent) -> list[Note]:
    """A note for everything left out, with the reason."""
    values = {
        "connections": extent.connections,
        "files": extent.files,
        "why": extent.no_network,
        "synchronous": None if extent.synchronous else "the synchronous client,",
    }
    reasons = {
        NO_PORTS: extent.ports is None,
        NO_NETWORK: bool(extent.no_network),
        WITH_QUICK: extent.quick,
        FEW_CONNECTIONS: extent.connections < 10_000,
        NO_MISTAKES: not extent.mistakes,
    }
    return [Note(fill(reason, values)) for reason, applies in reasons.items() if applies]


def steps(extent: Extent) -> list[PlannedStep]:
    """The steps that the machine and the options allow, in the order of execution."""
    return [
        *_clients(extent),
        *_unbounded(extent),
        *_memory(extent),
        *_ports(extent),
        *_mistakes(extent),
        *_far(extent),
    ]


def _step(
    extent: Extent,
    chapter: Chapter,
    name: str,
    what: str,
    *,
    tool: str,
    requests: int,
    connections: int,
    delay_s: tuple[float, float] = DELAY_S,
    body_bytes: int = PAGE_BYTES,
    tw_reuse: int | None = None,
    **load: Any,
) -> PlannedStep:
    fault = "" if tw_reuse is None else "kept"  # makes the client close first
    null = NullServer(body_bytes, delay_s, core=extent.core, fault=fault, tw_reuse=tw_reuse)
    defaults: dict[str, Any] = {"keepalive": True, "same_body": True, "summed": True}
    requested = Load(
        concurrency=connections,
        requests=requests,
        duration_s=1.0,
        deadline_s=0.0,
        **{**defaults, **load},
    )
    cell = null_cell(name, null, tool, requested)
    deadline_s = round(60 + 4 * null_s(cell, requested), 1)
    return PlannedStep(replace(cell, load=replace(requested, deadline_s=deadline_s)), chapter, what)


def _clients(extent: Extent) -> Iterable[PlannedStep]:
    """The same hundred requests, one after the other and all at once."""
    hundred_requests = partial(_step, extent, "clients", requests=100, delay_s=LONG_DELAY_S)
    if extent.synchronous or not extent.quick:
        sync_tool = "threads" if extent.has("threads") else "fast"
        yield hundred_requests("sync-100", "synchronous", tool=sync_tool, connections=1)
    for tool in filter(extent.has, ("coroutines", "fast")):
        yield hundred_requests(f"async-100-{tool}", "asynchronous", tool=tool, connections=100)


def _unbounded(extent: Extent) -> Iterable[PlannedStep]:
    """As many connections as requests, with 1024 files per process; then the two remedies."""
    tool = "coroutines" if extent.has("coroutines") else "fast"
    connection_limit = extent.connections
    usual_files = USUAL_FILES if extent.files is None else min(USUAL_FILES, extent.files)
    bound = min(BOUNDED_CONNECTIONS, connection_limit)
    variants = [("unbounded", bound, bound, usual_files)] if bound < connection_limit else []
    variants += [
        ("unbounded", connection_limit, connection_limit, usual_files),
        ("raised", connection_limit, connection_limit, connection_limit + SPARE_FILES),
        ("bounded", connection_limit, bound, usual_files),
    ]
    for what, requests, connections, files in variants:
        yield _step(
            extent, "unbounded", f"{what}-{requests}", what, tool=tool,
            requests=requests, connections=connections, open_files=files,
        )  # fmt: skip


def _far(extent: Extent) -> Iterable[PlannedStep]:
    max_connections, bounded = extent.connections, min(BOUNDED_CONNECTIONS, extent.connections)
    far_step = partial(_step, extent, "far", tool="fast")
    large_bodies: dict[str, Any] = {"delay_s": LONG_DELAY_S, "body_bytes": NOVEL_BYTES}
    yield far_step("bodies-10000", "bodies", requests=10_000, connections=bounded, **large_bodies)
    yield far_step("kept-100000", "bodies", requests=100_000, connections=max_connections)
    if not extent.quick:
        new_connections: dict[str, Any] = {"connections": bounded, "keepalive": False}
        yield far_step("new-100000", "new_connections", requests=100_000, **new_connections)
        yield far_step("kept-1000000", "bodies", requests=1_000_000, connections=max_connections)
    aiohttp = partial(_step, extent, "far", what="bodies", tool="coroutines", connections=bounded)
    for requests in AIOHTTP_REQUESTS[: 1 + extent.long] if extent.has("coroutines") else ():
        yield aiohttp(f"aiohttp-{requests}", requests=requests)


def _memory(extent: Extent) -> Iterable[PlannedStep]:
    """Memory of clients that keep all tasks or all bodies, and of one that keeps neither."""
    has_tools = extent.mistakes and extent.has("coroutines")
    if not has_tools or extent.connections < BOUNDED_CONNECTIONS:
        return
    step = partial(_step, extent, "memory", connections=BOUNDED_CONNECTIONS)
    for what, (*sizes, body_bytes) in KEPT_LOADS.items():
        keeping_step = partial(step, what=f"all_{what}", tool=f"everything_at_once-{what}")
        for requests in sizes:
            yield keeping_step(f"all-{what}-{requests}", requests=requests, body_bytes=body_bytes)
    yield step("dropped-5000", "bodies", tool="coroutines", requests=5000, body_bytes=NOVEL_BYTES)


def _ports(extent: Extent) -> Iterable[PlannedStep]:
    """All ports used up by closed connections. Then more connections than local ports, and the two
    remedies; each step has its own ports because the previous one leaves some in TIME_WAIT."""
    step = partial(_step, extent, "ports", tool="fast", delay_s=SHORT_DELAY_S)
    for tw_reuse in () if extent.no_network else (NO_REUSE, LOOPBACK_REUSE):
        yield step(
            f"time-wait-{tw_reuse}", "time_wait", requests=ALL_PORTS + 1800, keepalive=False,
            connections=min(BOUNDED_CONNECTIONS, extent.connections), tw_reuse=tw_reuse,
        )  # fmt: skip
    if extent.ports is None:
        return
    low, too_many = sum(extent.ports) // 2, FEW_PORTS * 3 // 2
    loads: tuple[tuple[str, int, Mapping[str, Any]], ...] = (
        ("used-up", too_many, {}),
        ("sources", too_many, {"sources": ("127.0.0.2", "127.0.0.3")}),
        ("reuse", too_many // 2, {}),
    )
    for what, connections, load in loads:
        yield step(
            f"ports-{what}", f"ports_{what.replace('-', '_')}", requests=4 * FEW_PORTS,
            connections=connections, ports=(low, low + FEW_PORTS - 1), **load,
        )  # fmt: skip
        low += FEW_PORTS


def _mistakes(extent: Extent) -> Iterable[PlannedStep]:
    mistakes = {tool: form for tool, form in MISTAKES.items() if form.mistake in MISTAKE_LOADS}
    for tool, mistake in mistakes.items() if extent.mistakes else ():
        requests, connections = MISTAKE_LOADS[mistake.mistake]
        load = Load(connections, requests, duration_s=1.0, deadline_s=60.0)
        name = tool.replace("_", "-")
        cell = null_cell(name, NullServer(core=extent.core), tool, load)
        yield PlannedStep(cell, "mistakes", mistake.form)
