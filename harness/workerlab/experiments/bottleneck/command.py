"""`workerlab bottleneck`: is it the server or the load generator? A hunt, one factor at a time.

The cells are ordinary ones, on a real server with an app that does nothing. Each differs from the
others of its experiment in one thing; one that two experiments share is run once.
"""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace

from workerlab.bundled import target_of
from workerlab.experiments.environment import interpreters
from workerlab.experiments.planning import gunicorn_plan, installed
from workerlab.experiments.runner import Setup
from workerlab.load.registry import tool_named
from workerlab.model import App, Cell, Finding, Load, NullServer, Plan, Server
from workerlab.numbers.intervals import TRIALS
from workerlab.plan import SLEEP_ENV, null_cell
from workerlab.server import preflight

GENERATORS = ("locust", "fast")  # the first that is installed
OTHERS = ("wrk", "fast", "locust-fast")  # who shows what the server can do
APP = App(target_of("@sleep_wsgi"), "", env=((SLEEP_ENV, "0"),), sleep_s=0.0)
SERVER = Server("gthread", workers=1, threads=6, backlog=2048, worker_connections=4000, app=APP)
PROCESSES = 4


CORES = 3  # of the generator, against one
DELAY_S = (0.1, 0.1)  # of the server that closes connections


class Scale(NamedTuple):
    """How much of everything, and for how long."""

    users: tuple[int, ...]
    threads: tuple[int, ...]
    duration_s: float
    requests_per_connection: int  # of the server that closes connections
    phases: Load  # on that


PHASES = Load(50, 50, 18.0, 78.0, keepalive=True, ramp_s=4.0, timed=True, same_body=True)
FULL = Scale((200, 500, 1000, 1500), (1, 6, 200), 4.0, 100, PHASES)
# Connections must close in mid-load: after 40 requests of 0.1 s each
QUICK_PHASES = replace(PHASES, concurrency=20, duration_s=8.0, ramp_s=2.0)
QUICK = Scale((50, 200), (1, 6), 2.0, 40, QUICK_PHASES)


def cells(
    generator: str, others: Iterable[str], scale: Scale, cores: int | None = None
) -> tuple[Cell, ...]:
    """Every experiment's cells, each once. `cores`: of the machine."""

    def cell(users: int, tool: str = generator, processes: int = 1, **server: int) -> Cell:
        changed = replace(SERVER, **server)
        return Cell(changed, tool, users, keepalive=True, processes=processes)

    middle, many_users = scale.users[1], scale.users[:3][-1]
    found = [cell(users) for users in scale.users]
    found += [cell(many_users, threads=many) for many in scale.threads]
    found += [cell(users, instances=2) for users in scale.users[1:]]
    if tool_named(generator).PROCESSES:
        found.append(cell(middle, processes=PROCESSES))
        found += [cell(scale.users[-1], processes=CORES)] if (cores or 0) > CORES else []
    found += [cell(middle, tool) for tool in others if tool != generator]
    return tuple(dict.fromkeys(found))


@contextmanager
def setup(options: argparse.Namespace, plan: Plan | None) -> Iterator[Setup]:
    """With what is installed here."""
    scale = QUICK if options.quick else FULL
    if plan is not None:
        yield Setup(plan)
        return
    preflight.check_levels(scale.users)
    found = interpreters(options)
    tools, notes = installed((*GENERATORS, *OTHERS))
    generator = next(name for name in GENERATORS if name in tools)
    cores = preflight.cores()
    planned = cells(generator, [name for name in OTHERS if name in tools], scale, cores)
    if (cores or 0) <= CORES:
        values = {"processes": CORES, "users": scale.users[-1], "needed": CORES + 1, "cores": cores}
        notes = (*notes, Finding("bottleneck.one_core", values))
    closing = NullServer(delay_s=DELAY_S, requests_per_connection=scale.requests_per_connection)
    planned = (*planned, null_cell("phases", closing, generator, scale.phases))
    more = {"duration_s": scale.duration_s, "trials": options.trials or TRIALS}
    yield Setup(gunicorn_plan("bottleneck", planned, found, notes=notes, **more), found)
