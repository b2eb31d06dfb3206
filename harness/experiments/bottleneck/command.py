"""`workerlab bottleneck`: is it the server or the load generator? A hunt, one factor at a time.

Each cell differs from the others of its experiment in one thing: how many users, threads of the
server, servers, processes of the generator, or which generator. A factor of the server that changes
nothing, and one of the generator that changes much, name the bottleneck between them. The cells are
ordinary ones, on a real server with an app that does nothing; a cell that two experiments share is
run once.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from harness import run_store as store
from harness.experiments.planning import SLEEP_ENV, check, lacking
from harness.experiments.reading import find
from harness.experiments.shooting import lacks, versions
from harness.experiments.studies import document_of
from harness.experiments.sweep import execute, tell, unfinished
from harness.load.registry import tool_named
from harness.model import App, Cell, EnvironmentProblem, Server, UsageError
from harness.options import program
from harness.plan import Plan, from_json, to_json
from harness.server import preflight
from harness.terminal.interrupt import Stopped

KIND = "bottleneck"
HUNTED = ("locust", "fast")  # the first that is installed
BESIDE = ("wrk", "fast", "locust-fast")  # who shows what the server can do
APP = App("apps.sleep_wsgi:app", "", env=((SLEEP_ENV, "0"),), sleep_s=0.0)
SERVER = Server("gthread", workers=1, threads=6, backlog=2048, worker_connections=4000)
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


def cells(hunted: str, beside: Iterable[str], scale: Scale) -> tuple[Cell, ...]:
    """Every experiment's cells, each once."""
    most = scale.users[-1]
    found = [_cell(SERVER, hunted, users) for users in scale.users]
    found += [_cell(replace(SERVER, threads=many), hunted, most) for many in scale.threads]
    found += [_cell(replace(SERVER, instances=2), hunted, users) for users in scale.users[1:]]
    if tool_named(hunted).PROCESSES:
        found.append(replace(_cell(SERVER, hunted, scale.middle), processes=PROCESSES))
    found += [_cell(SERVER, tool, scale.middle) for tool in beside if tool != hunted]
    return tuple(dict.fromkeys(found))


def _cell(server: Server, tool: str, users: int) -> Cell:
    return Cell(server, tool, users, keepalive=True)


def plan_of(scale: Scale) -> tuple[Plan, preflight.Interpreter]:
    """What is to be run, with what is installed here. Raises EnvironmentProblem, UsageError."""
    preflight.check_levels(scale.users)
    found = preflight.interpreter(sys.executable, Path(), None)
    missing = {name: why for name in dict.fromkeys((*HUNTED, *BESIDE)) if (why := lacks(name))}
    hunted = next(name for name in HUNTED if name not in missing)
    beside = [name for name in BESIDE if name not in missing]
    planned = cells(hunted, beside, scale)
    servers = tuple(dict.fromkeys(cell.server for cell in planned))
    plan = Plan(
        servers=servers,
        tools=tuple(dict.fromkeys(cell.tool for cell in planned)),
        levels=scale.users,
        trials=1,
        rounds=5,
        seed=random.SystemRandom().randrange(2**32),
        wsgi_app=APP,
        asgi_app=APP,
        python=sys.executable,
        config=None,
        unavailable=lacking(servers, found),
        notes=tuple(f"left out: {why}" for why in missing.values()),
        keepalive=(True,),
        cells=planned,
        kind=KIND,
        duration_s=scale.duration_s,
    )
    for cell in planned:
        check(plan, cell)
    return plan, found


def bottleneck(options: argparse.Namespace) -> tuple[Path, int]:
    """Make or resume a run. Returns its directory and the exit code it has earned."""
    directory, plan = _resumed(options) if options.resume else _new(options)
    for note in plan.notes:
        tell(note)
    again = f"{program()} bottleneck --resume {directory}"
    try:
        execute(directory, plan, unfinished(directory, plan))
    except Stopped as stopped:
        tell(f"stopped; finish it with: {again}")
        return directory, stopped.exit_code
    except (EnvironmentProblem, OSError) as problem:
        tell(f"stopped: {problem}; when that is mended: {again}")
        return directory, 3
    return directory, 0 if document_of(directory).valid else 1


def _new(options: argparse.Namespace) -> tuple[Path, Plan]:
    plan, found = plan_of(QUICK if options.quick else FULL)
    environment = preflight.fingerprint(found, versions(plan.tools))
    directory = store.fresh(options.out, KIND)
    store.create(directory, to_json(plan), environment)
    return directory, plan


def _resumed(options: argparse.Namespace) -> tuple[Path, Plan]:
    """Raises UsageError for a run of another kind, or words that would change its plan."""
    if options.quick or options.out is not None:
        raise UsageError("--resume takes a run and no other arguments: its plan is on file")
    directory = find(options.resume)
    said = store.load(directory).plan
    if said.get("kind") != KIND:
        raise UsageError(f"{options.resume} is no run of `bottleneck`")
    return directory, from_json(said)
