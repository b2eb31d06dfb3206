"""`workerlab bottleneck`: is it the server or the load generator? A hunt, one factor at a time.

Each cell differs from the others of its experiment in one thing: how many users, threads of the
server, servers, processes of the generator, or which generator. A factor of the server that changes
nothing, and one of the generator that changes much, name the bottleneck between them. The cells are
ordinary ones, on a real server with an app that does nothing; a cell that two experiments share is
run once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.experiments.planning import check, lacking, lacks, new_seed
from harness.experiments.runner import Setup, recheck, versions
from harness.load.registry import tool_named
from harness.model import App, Cell, Finding, Plan, Server
from harness.plan import SLEEP_ENV
from harness.server import preflight

KIND = "bottleneck"
RESUMES_WITH = ()
GENERATORS = ("locust", "fast")  # the first that is installed
OTHERS = ("wrk", "fast", "locust-fast")  # who shows what the server can do
APP = App("apps.sleep_wsgi:app", "", env=((SLEEP_ENV, "0"),), sleep_s=0.0)
SERVER = Server("gthread", workers=1, threads=6, backlog=2048, worker_connections=4000, app=APP)
PROCESSES = 4


@dataclass(frozen=True)
class Scale:
    """How much of everything, and for how long."""

    users: tuple[int, ...]
    threads: tuple[int, ...]
    duration_s: float

    @property
    def middle(self) -> int:
        return self.users[len(self.users) // 2]


FULL = Scale((200, 500, 1000), (1, 6, 200), 6.0)
QUICK = Scale((50, 200), (1, 6), 3.0)


def cells(generator: str, others: Iterable[str], scale: Scale) -> tuple[Cell, ...]:
    """Every experiment's cells, each once."""
    most = scale.users[-1]
    found = [_cell(SERVER, generator, users) for users in scale.users]
    found += [_cell(replace(SERVER, threads=many), generator, most) for many in scale.threads]
    found += [_cell(replace(SERVER, instances=2), generator, users) for users in scale.users[1:]]
    if tool_named(generator).PROCESSES:
        found.append(replace(_cell(SERVER, generator, scale.middle), processes=PROCESSES))
    found += [_cell(SERVER, tool, scale.middle) for tool in others if tool != generator]
    return tuple(dict.fromkeys(found))


def _cell(server: Server, tool: str, users: int) -> Cell:
    return Cell(server, tool, users, keepalive=True)


def plan_of(scale: Scale) -> tuple[Plan, preflight.Interpreter]:
    """What is to be run, with what is installed here. Raises EnvironmentProblem, UsageError."""
    preflight.check_levels(scale.users)
    found = preflight.interpreter(sys.executable, Path(), None)
    missing = {name: why for name in dict.fromkeys((*GENERATORS, *OTHERS)) if (why := lacks(name))}
    generator = next(name for name in GENERATORS if name not in missing)
    others = [name for name in OTHERS if name not in missing]
    planned = cells(generator, others, scale)
    plan = Plan(
        kind=KIND,
        cells=planned,
        trials=1,
        rounds=5,
        seed=new_seed(),
        python=sys.executable,
        config=None,
        unavailable=lacking([cell.server for cell in planned], found),
        notes=tuple(Finding("note.left_out", {"why": why}) for why in missing.values()),
        duration_s=scale.duration_s,
    )
    for cell in planned:
        check(plan, cell)
    return plan, found


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    if plan is None:
        plan, interpreter = plan_of(QUICK if options.quick else FULL)
    else:
        interpreter = recheck(plan)
    yield Setup(plan, preflight.fingerprint(interpreter, versions(plan)))
