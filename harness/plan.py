"""From axes to trials, and how long they will take. Pure.

    n      = 1 + rounds * c                                     requests of a tool that counts
    ideal  = R0 * (1 + ceil((n - 1) / min(c, slots)))           seconds, R0 = a lone response

The lone first request is ab's habit: it sends the others when the first one's headers arrive.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.model import App, Cell, Load, Rate, Server, Trial
from harness.worker_classes import ASGI_CLASSES, configured_slots

SETUP_S = 1.0  # boot, warm-up and stop beside the lone request; only for the prediction
TIMED_LEAST_S = 2.0
# Where a full accept queue drops packets: until the client's kernel repeats a request for the last
# time (0.2 s, doubled each time) and learns that the server has given the connection up
DROPS_S = 240.0
DROPS_OFTEN_S = 20.0  # what that mostly costs; only for the prediction
WARMUP_RECORDS = 16_384  # far more than the warm-up's bursts can make
UNKNOWN_RECORDS = 500_000  # 20 MB a worker: for a tool that runs for a time on an unknown app


@dataclass(frozen=True)
class Plan:
    """All that a run is made of, and all that resuming it needs. JSON in, JSON out."""

    servers: tuple[Server, ...]
    tools: tuple[str, ...]
    levels: tuple[int, ...]
    trials: int
    rounds: int
    seed: int  # of the order of trials
    wsgi_app: App
    asgi_app: App
    python: str
    config: str | None
    unavailable: Mapping[str, str]  # class -> why
    notes: tuple[str, ...]
    keepalive: tuple[bool, ...] = (False,)
    cells: tuple[Cell, ...] = ()  # these, in this order, instead of the product of the axes
    kind: str = "sweep"  # the command that made it, and that understands it
    processes: tuple[int, ...] = (1,)  # of the load tool
    rates: tuple[Rate, ...] = ()  # open model, after the closed cells
    duration_s: float | None = None  # load for so long, instead of counting requests
    ramp_s: float = 0.0
    load_hosts: tuple[str, ...] = ()

    def app(self, server: Server) -> App:
        return self.asgi_app if server.worker_class in ASGI_CLASSES else self.wsgi_app


def to_json(plan: Plan) -> dict[str, Any]:
    return dataclasses.asdict(plan)


def from_json(values: Mapping[str, Any]) -> Plan:
    """The inverse of `to_json`, after a trip through JSON made lists of tuples."""

    def app(of: Mapping[str, Any]) -> App:
        pairs = {name: tuple((k, v) for k, v in of[name]) for name in ("headers", "env")}
        return App(**{**of, **pairs})

    lists = {name: tuple(values[name]) for name in ("tools", "levels", "notes")}
    apps = {name: app(values[name]) for name in ("wsgi_app", "asgi_app")}
    servers = tuple(Server(**server) for server in values["servers"])
    cells = tuple(
        Cell(**{**cell, "server": Server(**cell["server"])}) for cell in values.get("cells", ())
    )
    return Plan(
        **{**values, **lists, **apps, "servers": servers, "cells": cells,
           "keepalive": tuple(values.get("keepalive", (False,)))}
    )  # fmt: skip


def grid(plan: Plan) -> list[Trial]:
    """Every trial of the plan, in the order a reader expects."""
    cells = plan.cells or tuple(
        Cell(server, tool, level, keepalive)
        for tool in plan.tools
        for server in plan.servers
        for keepalive in plan.keepalive
        for level in plan.levels
    )
    return [Trial(cell, number) for number in range(1, plan.trials + 1) for cell in cells]


def trials(plan: Plan) -> list[Trial]:
    """Every trial in the order of execution. Repeated ones come in random order: a machine that
    grows slower with time must not look like a class that does."""
    all_trials = grid(plan)
    if plan.trials > 1:
        random.Random(plan.seed).shuffle(all_trials)
    return all_trials


def ideal_s(requests: int, concurrency: int, slots: int | None, lone_s: float) -> float:
    """How long `requests` take if no slot is ever idle, the first one alone."""
    parallel = concurrency if slots is None else min(concurrency, slots)
    return lone_s * (1 + math.ceil((requests - 1) / parallel))


def load_for(plan: Plan, cell: Cell, lone_s: float) -> Load:
    """What the tool is asked to do, once a lone request has shown what one costs.

    The deadline supposes the worst a class can do: one request per worker at a time, whatever its
    slots (something blocks its loop), three times over, a load tool that needs 10 ms a request, and
    dropped handshakes where there are more connections than the accept queue takes.
    """
    app, c = plan.app(cell.server), cell.concurrency
    requests = 1 + plan.rounds * c
    slots = configured_slots(cell.server)
    rounds_s = ideal_s(requests, c, slots, lone_s)
    worst_s = ideal_s(requests, c, cell.server.workers, lone_s)
    duration_s = float(math.ceil(max(TIMED_LEAST_S, rounds_s)))
    drops = cell.server.backlog < c
    return Load(
        concurrency=c,
        requests=requests,
        duration_s=duration_s,
        deadline_s=math.ceil(30 + 3 * worst_s + 0.01 * requests + (DROPS_S if drops else 0)),
        keepalive=cell.keepalive,
        drops=drops,
        method=app.method,
        headers=app.headers,
        body_file=app.body_file,
        expect_status=app.expect_status,
    )


def predicted_s(plan: Plan, cell: Cell, lone_s: float, *, counted: bool) -> float:
    """How long the trial will take, start and stop of the server included."""
    load = load_for(plan, cell, lone_s)
    slots = configured_slots(cell.server)
    beside_s = SETUP_S + lone_s + (DROPS_OFTEN_S if load.drops else 0.0)
    if not counted:
        return beside_s + load.duration_s
    return beside_s + ideal_s(load.requests, cell.concurrency, slots, lone_s)


def records_for(plan: Plan, cell: Cell, *, counted: bool) -> int:
    """Spans a worker's map must hold. One worker may get them all: the kernel deals, not we."""
    if counted:
        return 1 + plan.rounds * cell.concurrency + WARMUP_RECORDS
    sleep_s = plan.app(cell.server).sleep_s
    if not sleep_s or sleep_s < 0.01:
        return UNKNOWN_RECORDS
    load = load_for(plan, cell, sleep_s)
    return WARMUP_RECORDS + math.ceil(4 * cell.concurrency * load.duration_s / sleep_s)
