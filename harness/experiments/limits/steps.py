"""The steps of `workerlab limits`: which loads, in which order, and what they are meant to show.

Pure. Each step is a cell on a null server that answers after a seeded random delay; what cannot be
done here is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.load.mistakes.tool import MISTAKES
from harness.model import Cell, Finding, Load, NullServer
from harness.plan import null_cell, null_plan, predicted_s

Chapter = Literal["clients", "unbounded", "far", "ports", "mistakes"]

USUAL_FILES = 1024  # the soft limit that most systems set
BOUND = 900  # connections that fit into it, beside what else is open
SPARE_FILES = 64
NOVEL_BYTES = 440 << 10
PAGE_BYTES = 1024
SLOW_S, BRISK_S, QUICK_S = (0.0, 3.0), (0.0, 1.0), (0.0, 0.2)
FEW_PORTS = 200
LEAST_FILES = FEW_PORTS * 3 // 2 + SPARE_FILES  # below that not even the ports can be used up
# Requests of a mistake's program, and how many it has under way
MISTAKE_LOADS = {"missing_await": (100, 100), "session_per_request": (2000, 20)}
NO_PLAN = null_plan("limits", ())


@dataclass(frozen=True)
class Step:
    """`what`: the end of its code, `limits.step.WHAT`."""

    cell: Cell
    chapter: Chapter
    what: str

    def to_json(self) -> dict[str, str]:
        """All but the cell."""
        return {"chapter": self.chapter, "what": self.what}


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


def steps(machine: Machine, quick: bool) -> list[Step]:
    """In the order of execution."""
    return [
        *_clients(machine, quick),
        *_unbounded(machine),
        *_far(machine, quick),
        *_ports(machine),
        *_mistakes(machine),
    ]


def left_out(machine: Machine, quick: bool) -> list[Finding]:
    """What those do not show, and why."""
    many = {"connections": machine.connections, "files": machine.files}
    reasons = {
        "limits.left_out.ports": machine.ports is None,
        "limits.left_out.quick": quick,
        "limits.left_out.connections": machine.connections < 10_000,
        "limits.left_out.mistakes": not machine.has(next(iter(MISTAKES))),
    }
    return [Finding(code, many) for code, true in reasons.items() if true]


def _step(
    machine: Machine,
    name: str,
    chapter: Chapter,
    what: str,
    *,
    tool: str,
    requests: int,
    connections: int,
    delay_s: tuple[float, float],
    body_bytes: int = PAGE_BYTES,
    **load: Any,
) -> Step:
    null = NullServer(body_bytes=body_bytes, delay_s=delay_s, core=machine.core)
    usual: dict[str, Any] = {"keepalive": True, "same_body": True, "summed": True}
    asked = Load(connections, requests, duration_s=1.0, deadline_s=0.0, **{**usual, **load})
    cell = null_cell(name, null, tool, asked)
    deadline_s = 60 + 4 * predicted_s(NO_PLAN, cell, 0.0, counted=True)
    cell = replace(cell, load=replace(asked, deadline_s=round(deadline_s, 1)))
    return Step(cell, chapter, what)


def _clients(machine: Machine, quick: bool) -> list[Step]:
    """The same hundred requests, one after the other and all at once."""

    def one(name: str, what: str, tool: str, connections: int) -> Step:
        return _step(
            machine, name, "clients", what, tool=tool, requests=100,
            connections=connections, delay_s=SLOW_S,
        )  # fmt: skip

    plain = "threads" if machine.has("threads") else "fast"
    chosen = [] if quick else [one("sync-100", "synchronous", plain, 1)]
    tools = (tool for tool in ("coroutines", "fast") if machine.has(tool))
    return [*chosen, *(one(f"async-100-{tool}", "asynchronous", tool, 100) for tool in tools)]


def _unbounded(machine: Machine) -> list[Step]:
    """As many connections as requests, where a process may have 1024 files open; then the ways
    out."""
    tool = "coroutines" if machine.has("coroutines") else "fast"
    many = machine.connections
    usual = USUAL_FILES if machine.files is None else min(USUAL_FILES, machine.files)
    few = min(BOUND, many)

    def one(name: str, what: str, requests: int, connections: int, files: int) -> Step:
        return _step(
            machine, name, "unbounded", what, tool=tool, requests=requests,
            connections=connections, delay_s=BRISK_S, open_files=files,
        )  # fmt: skip

    chosen = [
        one(f"unbounded-{many}", "unbounded", many, many, usual),
        one(f"raised-{many}", "raised", many, many, many + SPARE_FILES),
        one(f"bounded-{many}", "bounded", many, few, usual),
    ]
    if few == many:
        return chosen
    return [one(f"unbounded-{few}", "unbounded", few, few, usual), *chosen]


def _far(machine: Machine, quick: bool) -> list[Step]:
    most = machine.connections
    bounded = min(1000, most)

    def one(name: str, what: str, requests: int, connections: int, **load: Any) -> Step:
        load = {"tool": "fast", "delay_s": BRISK_S, **load}
        return _step(machine, name, "far", what, requests=requests, connections=connections, **load)

    novel: dict[str, Any] = {"delay_s": SLOW_S, "body_bytes": NOVEL_BYTES}
    chosen = [
        one("bodies-10000", "bodies", 10_000, bounded, **novel),
        one("kept-100000", "bodies", 100_000, most),
    ]
    if not quick:
        chosen.append(one("new-100000", "new_connections", 100_000, bounded, keepalive=False))
        chosen.append(one("kept-1000000", "bodies", 1_000_000, most))
    return chosen


def _ports(machine: Machine) -> list[Step]:
    """More connections than local ports; then the two ways out. Each step has ports of its own: the
    one before leaves some in TIME_WAIT."""
    if machine.ports is None:
        return []
    middle, crowd = sum(machine.ports) // 2, FEW_PORTS * 3 // 2
    loads: tuple[tuple[str, int, Mapping[str, Any]], ...] = (
        ("used-up", crowd, {}),
        ("sources", crowd, {"sources": ("127.0.0.2", "127.0.0.3")}),
        ("reuse", crowd // 2, {}),
    )
    chosen = []
    for number, (what, connections, load) in enumerate(loads):
        low = middle + number * FEW_PORTS
        step = _step(
            machine, f"ports-{what}", "ports", f"ports_{what.replace('-', '_')}", tool="fast",
            requests=4 * FEW_PORTS, connections=connections, delay_s=QUICK_S,
            ports=(low, low + FEW_PORTS - 1), **load,
        )  # fmt: skip
        chosen.append(step)
    return chosen


def _mistakes(machine: Machine) -> list[Step]:
    chosen = []
    for tool, mistake in MISTAKES.items():
        requests, connections = MISTAKE_LOADS[mistake.mistake]
        load = Load(connections, requests, duration_s=1.0, deadline_s=60.0)
        name = tool.replace("_", "-")
        cell = null_cell(name, NullServer(core=machine.core), tool, load)
        chosen.append(Step(cell, "mistakes", mistake.form))
    return chosen if machine.has(next(iter(MISTAKES))) else []
