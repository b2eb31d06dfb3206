"""`workerlab generators`: every load generator against the same server, which does nothing.

The server is not under test: it answers 12 bytes from a loop that is pinned to a core of its own
(the last one, where there are two). Two questions, two servers:

    as fast as it can     answers at once: requests/s at each number of connections
    at a low rate         answers after 50 ms: 25 connections make 500 requests/s of anybody

A slow server makes the low rate because most generators know no other way to keep to one.
"""

import argparse
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace

from workerlab.experiments.planning import installed
from workerlab.experiments.runner import Setup
from workerlab.load.registry import TOOLS, tool_named
from workerlab.model import Cell, EnvironmentProblem, Load, NullServer, Plan, UsageError
from workerlab.numbers.intervals import TRIALS
from workerlab.plan import null_cell, null_plan
from workerlab.server import preflight

LEVELS = (1, 10, 100)
DURATION_S = 2.0
LOW_CONNECTIONS, LOW_DELAY_S, LOW_LEAST_S = 25, 0.05, 3.0
# What a tool that only counts requests (ab) is supposed to do: on one connection, on several, and
# where each request connects anew
COUNTED_RPS = {"one": 30_000, "several": 50_000, "anew": 8_000}
SLACK_S = 60.0  # beside the load, until a tool is given up


class Generator(NamedTuple):
    """A load tool in so many processes."""

    tool: str
    processes: int = 1

    @property
    def name(self) -> str:
        return f"{self.tool}-p{self.processes}" if self.processes > 1 else self.tool


def generators_of(names: Iterable[str], cores: int) -> Iterator[Generator]:
    """Each tool in one process; the lab's own fast one also in one per core."""
    for name in names:
        yield Generator(name, max(2, cores) if name == "processes-coroutines" else 1)
        if name == "fast" and cores > 1:
            yield Generator(name, cores)


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

    def cell(
        rate: str, null: NullServer, one: Generator, level: int, duration_s: float, rps: float
    ) -> Cell:
        """`rps`: what tools that only count are supposed to reach."""
        load = Load(
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
        tool_named(one.tool).check(load)
        return null_cell(f"{rate}-{one.name}-c{level}", null, one.tool, load)

    low_s, low_rps = max(LOW_LEAST_S, duration_s), LOW_CONNECTIONS / LOW_DELAY_S
    planned = [cell("low", slow, one, LOW_CONNECTIONS, low_s, low_rps) for one in generators]
    for level in sorted(set(levels)):
        kind = "anew" if not keepalive else "one" if level == 1 else "several"
        planned += [
            cell("full", quick, one, level, duration_s, COUNTED_RPS[kind])
            for one in generators
            if one.processes <= level
        ]
    return planned


def plan_of(options: argparse.Namespace) -> Plan:
    """Raises UsageError, EnvironmentProblem. Looks at the machine, starts nothing."""
    levels = options.levels or LEVELS
    preflight.check_levels([*levels, LOW_CONNECTIONS])
    tools, notes = installed(options.tools or TOOLS)
    if not tools:
        raise EnvironmentProblem(" ".join(note.values["why"] for note in notes))
    duration_s = options.duration or DURATION_S
    if duration_s < 1:
        raise UsageError("--duration must be at least 1: a shorter load shows no CPU time")
    keepalive, core = options.keepalive is not False, preflight.own_core()
    generators = tuple(generators_of(tools, preflight.cores() or 1))
    planned = cells(generators, levels, duration_s, keepalive, core)
    details = {"server_core": core, "keepalive": keepalive}
    plan = null_plan("generators", planned, notes, details)
    return replace(
        plan, trials=options.trials or TRIALS, seed=random.SystemRandom().randrange(2**32)
    )


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    yield Setup(plan or plan_of(options))
