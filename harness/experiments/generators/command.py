"""`workerlab generators`: every load generator against the same server, which does nothing.

The server is not under test: it answers 12 bytes from a loop that is pinned to a core of its own
(the last one, where there are two), so that what differs between two cells is the generator. Two
questions, two servers:

    as fast as it can     answers at once: requests/s at each number of connections
    at a low rate         answers after 50 ms: 25 connections make 500 requests/s of anybody

A slow server makes the low rate because most generators know no other way to keep to one, and so
all are asked for the very same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.experiments.planning import lacks
from harness.experiments.runner import Setup, versions
from harness.load.registry import TOOLS, tool_named
from harness.model import Cell, EnvironmentProblem, Finding, Load, NullServer, Plan, UsageError
from harness.plan import null_cell, null_plan
from harness.server import preflight

KIND = "generators"
RESUMES_WITH = ()
LEVELS = (1, 10, 100)
DURATION_S = 3.0
LOW_CONNECTIONS, LOW_DELAY_S, LOW_LEAST_S = 25, 0.05, 4.0
# What a tool that only counts requests (ab) is supposed to do: on one connection, on several, and
# where each request connects anew
COUNTED_RPS = {"one": 30_000, "several": 50_000, "anew": 8_000}
SLACK_S = 60.0  # beside the load, until a tool is given up


@dataclass(frozen=True)
class Generator:
    """A load tool in so many processes."""

    tool: str
    processes: int = 1

    @property
    def name(self) -> str:
        return f"{self.tool}-p{self.processes}" if self.processes > 1 else self.tool


def generators_of(names: Iterable[str], cores: int) -> list[Generator]:
    """Each tool in one process; the lab's own fast one also in one per core."""
    generators = []
    for name in names:
        if name == "processes-coroutines":
            generators.append(Generator(name, max(2, cores)))
            continue
        generators.append(Generator(name))
        if name == "fast" and cores > 1:
            generators.append(Generator(name, cores))
    return generators


def cells(
    generators: Sequence[Generator],
    levels: Iterable[int],
    duration_s: float,
    keepalive: bool,
    core: int | None,
) -> list[Cell]:
    """Level by level, the low rate first: neighbours in time are what is compared."""
    quick = NullServer(core=core)
    slow = replace(quick, delay_s=(LOW_DELAY_S, LOW_DELAY_S))
    low_s = max(LOW_LEAST_S, duration_s)
    planned = []
    for one in generators:
        load = _load(one, LOW_CONNECTIONS, low_s, LOW_CONNECTIONS / LOW_DELAY_S, keepalive)
        planned.append(null_cell(f"low-{one.name}-c{LOW_CONNECTIONS}", slow, one.tool, load))
    for level in sorted(set(levels)):
        for one in generators:
            if one.processes > level > 0:
                continue
            kind = "anew" if not keepalive else "one" if level == 1 else "several"
            load = _load(one, level, duration_s, COUNTED_RPS[kind], keepalive)
            planned.append(null_cell(f"full-{one.name}-c{level}", quick, one.tool, load))
    return planned


def _load(one: Generator, level: int, duration_s: float, rps: float, keepalive: bool) -> Load:
    """`rps`: what tools that only count are supposed to reach."""
    return Load(
        concurrency=level,
        requests=max(1 + level, round(rps * duration_s)),
        duration_s=duration_s,
        deadline_s=duration_s + SLACK_S,
        keepalive=keepalive,
        processes=one.processes,
        timed=True,
        same_body=True,
        summed=True,
    )


def plan_of(options: argparse.Namespace) -> Plan:
    """Raises UsageError, EnvironmentProblem. Looks at the machine, starts nothing."""
    asked, levels = options.tools or tuple(TOOLS), options.levels or LEVELS
    preflight.check_levels([*levels, LOW_CONNECTIONS])
    missing = {name: why for name in asked if (why := lacks(name))}
    there = [name for name in asked if name not in missing]
    if not there:
        raise EnvironmentProblem(" ".join(missing.values()))
    duration_s = options.duration or DURATION_S
    if duration_s < 1:
        raise UsageError("--duration must be at least 1: a shorter load shows no CPU time")
    keepalive, core = options.keepalive != (False,), preflight.own_core()
    generators = generators_of(there, preflight.cores() or 1)
    planned = cells(generators, levels, duration_s, keepalive, core)
    for cell in planned:
        assert cell.load is not None
        tool_named(cell.tool).check(cell.load)
    notes = [Finding("note.left_out", {"why": why}) for why in missing.values()]
    return null_plan(KIND, planned, notes, {"server_core": core, "keepalive": keepalive})


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    if plan is None:
        plan = plan_of(options)
    else:
        preflight.check_levels(cell.concurrency for cell in plan.cells)
    yield Setup(plan, preflight.machine(versions(plan)))
