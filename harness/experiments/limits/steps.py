"""The steps of `workerlab limits`: which loads, in which order, and what they are meant to show.

Pure. Each step is a Point against a server that answers after a seeded random delay; what one
cannot do here is left out with a sentence. `open_files`: the most that its load tool may have open,
None: as many as the machine allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.model import Load, Point, Target

Chapter = Literal["clients", "unbounded", "far", "ports"]

USUAL_FILES = 1024  # the soft limit that most systems set
BOUND = 900  # connections that fit into it, beside what else is open
SPARE_FILES = 64
NOVEL_BYTES = 440 << 10
PAGE_BYTES = 1024
SLOW_S, BRISK_S, QUICK_S = (0.0, 3.0), (0.0, 1.0), (0.0, 0.2)
FEW_PORTS = 200
LEAST_FILES = FEW_PORTS * 3 // 2 + SPARE_FILES  # below that not even the ports can be used up
BESIDE_S = 1.5  # start and stop of a server and a tool; only for the prediction
READ_BYTES_PER_S = 400e6  # only for the prediction


@dataclass(frozen=True)
class Step:
    """`what`: its row's title."""

    point: Point
    chapter: Chapter
    what: str
    open_files: int | None = None

    def to_json(self) -> dict[str, Any]:
        """All but the point, which the plan lists by itself."""
        return {"chapter": self.chapter, "what": self.what, "open_files": self.open_files}


@dataclass(frozen=True)
class Machine:
    """What it allows. `has(tool)`: whether that load tool can run; `files`: open in one process,
    None: unlimited; `ports`: local ones, lowest and highest, None: a socket cannot be told which
    to use; `core`: for the server alone."""

    has: Callable[[str], bool]
    files: int | None
    ports: tuple[int, int] | None
    core: int | None

    @property
    def connections(self) -> int:
        """The most of 10,000 that it allows."""
        return 10_000 if self.files is None else min(10_000, self.files - SPARE_FILES)


def steps(machine: Machine, quick: bool) -> tuple[list[Step], list[str]]:
    """In the order of execution; and what is left out, and why."""
    left_out = []
    found = [*_clients(machine, quick), *_unbounded(machine), *_far(machine, quick)]
    if machine.ports is not None:
        found += _ports(machine, machine.ports)
    else:
        left_out.append("errno 99: this kernel cannot narrow a socket's ports (Linux 6.3 can)")
    if quick:
        left_out.append("the synchronous client and the million: --quick")
    if machine.connections < 10_000:
        left_out.append(
            f"more than {machine.connections} connections: the limit of open files is"
            f" {machine.files}; raise it (ulimit -n 10064) for 10,000"
        )
    return found, left_out


def _step(
    machine: Machine,
    key: str,
    chapter: Chapter,
    what: str,
    *,
    tool: str,
    requests: int,
    connections: int,
    delay_s: tuple[float, float],
    body_bytes: int = PAGE_BYTES,
    open_files: int | None = None,
    **load: Any,
) -> Step:
    target = Target(body_bytes=body_bytes, delay_s=delay_s, core=machine.core)
    asked = Load(
        concurrency=connections,
        requests=requests,
        duration_s=1.0,
        deadline_s=0.0,
        **{"keepalive": True, "same_body": True, "summed": True, **load},
    )
    point = Point(key, target, tool, asked)
    late_s = 60 + 4 * predicted_s(point)
    return Step(_with_deadline(point, late_s), chapter, what, open_files)


def _with_deadline(point: Point, deadline_s: float) -> Point:
    return replace(point, load=replace(point.load, deadline_s=round(deadline_s, 1)))


def predicted_s(point: Point) -> float:
    """How long it will take: the delays shared by the connections, and at least the longest."""
    (least_s, most_s), load = point.target.delay_s, point.load
    delays_s = load.requests * (least_s + most_s) / 2 / load.concurrency
    bytes_s = load.requests * point.target.body_bytes / READ_BYTES_PER_S
    return BESIDE_S + max(delays_s, min(most_s, delays_s * 2), bytes_s)


def _clients(machine: Machine, quick: bool) -> list[Step]:
    """The same hundred requests, one after the other and all at once."""
    common: dict[str, Any] = {"requests": 100, "delay_s": SLOW_S}
    plain = "threads" if machine.has("threads") else "fast"
    found = []
    if not quick:
        what = "synchronous: one after the other"
        found.append(
            _step(machine, "sync-100", "clients", what, tool=plain, connections=1, **common)
        )
    for tool in ("coroutines", "fast"):
        if machine.has(tool):
            what = "asynchronous: all at once"
            key = f"async-100-{tool}"
            found.append(_step(machine, key, "clients", what, tool=tool, connections=100, **common))
    return found


def _unbounded(machine: Machine) -> list[Step]:
    """As many connections as requests, where a process may have 1024 files open; then the ways
    out."""
    tool = "coroutines" if machine.has("coroutines") else "fast"
    many = machine.connections
    usual = USUAL_FILES if machine.files is None else min(USUAL_FILES, machine.files)
    few = min(BOUND, many)

    def one(key: str, what: str, requests: int, connections: int, files: int | None) -> Step:
        return _step(
            machine, key, "unbounded", what, tool=tool, requests=requests,
            connections=connections, delay_s=BRISK_S, open_files=files,
        )  # fmt: skip

    found = [
        one(f"unbounded-{many}", "no bound", many, many, usual),
        one(f"raised-{many}", "no bound, limit raised", many, many, many + SPARE_FILES),
        one(f"bounded-{many}", f"at most {few} at once", many, few, usual),
    ]
    return found if few == many else [one(f"unbounded-{few}", "no bound", few, few, usual), *found]


def _far(machine: Machine, quick: bool) -> list[Step]:
    most = machine.connections

    def one(key: str, what: str, requests: int, connections: int, **more: Any) -> Step:
        words: dict[str, Any] = {"tool": "fast", "delay_s": BRISK_S, **more}
        return _step(machine, key, "far", what, requests=requests, connections=connections, **words)

    bounded = min(1000, most)
    novel: dict[str, Any] = {"delay_s": SLOW_S, "body_bytes": NOVEL_BYTES}
    found = [
        one("bodies-10000", "440 KB each", 10_000, bounded, **novel),
        one("kept-100000", "1 KB each", 100_000, most),
    ]
    if not quick:
        what = "1 KB each, a new connection for each"
        found.append(one("new-100000", what, 100_000, bounded, keepalive=False))
        found.append(one("kept-1000000", "1 KB each", 1_000_000, most))
    return found


def _ports(machine: Machine, ports: tuple[int, int]) -> list[Step]:
    """More connections than local ports; then the two ways out. Each step has ports of its own: the
    one before leaves some in TIME_WAIT."""
    middle = (ports[0] + ports[1]) // 2

    def one(number: int, key: str, what: str, connections: int, **more: Any) -> Step:
        low = middle + number * FEW_PORTS
        return _step(
            machine, key, "ports", what, tool="fast", requests=4 * FEW_PORTS,
            connections=connections, delay_s=QUICK_S, ports=(low, low + FEW_PORTS - 1), **more,
        )  # fmt: skip

    crowd = FEW_PORTS * 3 // 2
    return [
        one(0, "ports-used-up", f"{FEW_PORTS} ports", crowd),
        one(1, "ports-sources", f"{FEW_PORTS} ports, two source addresses", crowd,
            sources=("127.0.0.2", "127.0.0.3")),
        one(2, "ports-reuse", f"{FEW_PORTS} ports, fewer connections, used again", crowd // 2),
    ]  # fmt: skip
