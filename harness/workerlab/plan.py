"""From axes to trials, and how long they will take. Pure.

    n      = 1 + rounds * c                                     requests of a tool that counts
                                                                (without the 1: Plan.together)
    ideal  = R0 * (1 + ceil((n - 1) / min(c, slots)))           seconds, R0 = a lone response
    open   = max(10 s, 100 / rate)                              how long arrivals at a rate go on

The lone first request is ab's habit: it sends the others when the first one's headers arrive.

Where neither rounds nor a time were asked for, a load whose throughput varies is followed by a
longer one (`experiments/length.py`), for which the span maps have room from the start.
"""

import itertools
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workerlab.analysis.target import needed
from workerlab.finding import Finding, stored
from workerlab.load.locust import JOIN_S
from workerlab.load.registry import tool_named
from workerlab.model import Cell, Load, NullServer, Plan, Rate, Server, Trial
from workerlab.server.worker_classes import class_named, configured_slots
from workerlab.slo import parse

SLEEP_ENV = "WORKERLAB_SLEEP"  # tells the lab's own apps how long to sleep
SETUP_S = 1.0  # boot, warm-up and stop beside the lone request; only for the prediction
TIMED_LEAST_S = 2.0
# Where a full accept queue drops packets: until the client's kernel repeats a request for the last
# time (0.2 s, doubled each time) and learns that the server has given the connection up
DROPS_S = 240.0
DROPS_OFTEN_S = 20.0  # what that mostly costs; only for the prediction
WARMUP_RECORDS = 16_384  # far more than the warm-up's bursts can make
UNKNOWN_RECORDS = 500_000  # 20 MB a worker: for a tool that runs for a time on an unknown app
UNKNOWN_RPS = 10_000  # more than a worker gives
MOST_REQUESTS = 100_000  # of a load that follows another
HEADROOM = 2.0  # connections of an open cell over what is under way if nothing waits
OPEN_MOST = 1000  # connections for a backlog
ARRIVALS = 100  # of an open cell at least, for a percentile
ENOUGH = 1.1  # times as many arrivals as are needed: chance lets fewer arrive
OPEN_LEAST_S, OPEN_MOST_S = 10.0, 120.0  # how long an open cell lasts
LEAST_LONE_S = 1e-4
SHORT_S = 0.01  # a sleep that says little of what a request takes
NULL_BACKLOG = 4096
SCHEDULES = 10_000  # of a plan; the next seed has others
# Of a load on a null server, only for the prediction: start and end of server and tool, a fork, and
# how fast bodies are read
NULL_SETUP_S, LOCUST_S, FORK_S, READ_BYTES_PER_S = 1.3, 2.3, 0.02, 400e6


def product(
    servers: Iterable[Server],
    tools: Iterable[str],
    levels: Sequence[int],
    keepalive: Iterable[bool] = (False,),
    processes: Iterable[int] = (1,),
    rates: Iterable[Rate] = (),
    requests: int | None = None,
) -> tuple[Cell, ...]:
    """Every cell of these axes: of the closed loop, then of the open model at the highest level.
    `requests`: of each load of the closed loop, exactly; None: by rounds."""
    closed = [(level, None) for level in levels]
    opened = [(max(levels), rate) for rate in rates]
    return tuple(
        Cell(server, tool, level, kept, many, rate, requests=None if rate else requests)
        for loads in (closed, opened)
        for tool, server, kept, many, (level, rate) in itertools.product(
            tools, servers, keepalive, processes, loads
        )
    )


def null_cell(name: str, null: NullServer, tool: str, load: Load) -> Cell:
    """A load on a server that does nothing. `name` begins the keys of its trials."""
    server = Server("null", 1, 1, NULL_BACKLOG, 0, null=null)
    return Cell(server, tool, load.concurrency, load.keepalive, load.processes, None, load, name)


def null_plan(
    kind: str,
    cells: Iterable[Cell],
    notes: Iterable[Finding] = (),
    details: Mapping[str, Any] | None = None,
) -> Plan:
    """Loads on null servers, in this order."""
    python, kept = sys.executable, tuple(map(stored, notes))
    return Plan(kind, tuple(cells), 1, 1, 0, python, None, {}, kept, details=details or {})


def grid(plan: Plan) -> list[Trial]:
    """Every trial of the plan, in the order a reader expects."""
    return [Trial(cell, number) for number in range(1, plan.trials + 1) for cell in plan.cells]


def trials(plan: Plan) -> list[Trial]:
    """Every trial in the order of execution. Repeated ones come in random order: a machine that
    grows slower with time must not look like a class that does; those at a rate come last, as it
    may be a share of what the others measure. A single trial of each keeps the plan's order."""
    all_trials = grid(plan)
    if plan.trials == 1:
        return all_trials
    random.Random(plan.seed).shuffle(all_trials)
    return sorted(all_trials, key=lambda trial: trial.cell.rate is not None)


def ideal_s(
    requests: int, concurrency: int, slots: int | None, lone_s: float, alone: int = 1
) -> float:
    """How long `requests` take if no slot is ever idle, the first one `alone` (1) or not (0)."""
    parallel = concurrency if slots is None else min(concurrency, slots)
    return lone_s * (alone + math.ceil((requests - alone) / parallel))


def requests_of(plan: Plan, cell: Cell, connections: int) -> int:
    """Of a load that counts them."""
    if cell.requests is not None:
        return cell.requests
    return int(not plan.together) + plan.rounds * connections


def schedule_seed(plan: Plan, cell: Cell, number: int) -> int:
    """Of the schedule of a cell's trial: seed * SCHEDULES + k, where k is the cell's own schedule,
    or else the number of the trial. So trial k of every cell shares its schedule with the others,
    and every further trial has another one."""
    return plan.seed * SCHEDULES + (number if cell.schedule is None else cell.schedule)


def load_for(
    plan: Plan, cell: Cell, lone_s: float, rps: float | None = None, number: int = 1
) -> Load:
    """What the tool is asked to do, once a lone request has shown what one costs.

    `rps`: the rate of an open cell; of a share, as long as its capacity is not known, it is that of
    all that connections and slots allow. `number`: of the trial.

    The deadline supposes the worst a class can do: one request per worker at a time, whatever its
    slots (something blocks its loop), three times over, a load tool that needs 10 ms a request, and
    dropped handshakes where there are more connections than the accept queue takes.
    """
    if cell.load is not None:
        return cell.load
    app, c, slots, rate_rps = cell.server.app, cell.concurrency, configured_slots(cell.server), rps
    if rps is None and cell.rate is not None:
        most_rps = (c if slots is None else min(c, slots)) / max(lone_s, LEAST_LONE_S)
        rate_rps = cell.rate.rps or (cell.rate.share or 1.0) * most_rps
    if rate_rps is not None:
        c = max(c, open_connections(plan, cell, rate_rps, lone_s))
    requests, alone = requests_of(plan, cell, c), int(not plan.together)
    duration_s = _duration_s(plan, cell, rate_rps, ideal_s(requests, c, slots, lone_s, alone))
    worst_s = ideal_s(requests, c, cell.server.workers, lone_s, alone)
    timed = rate_rps is not None or fixed_s(plan, cell) is not None or plan.ramp_s > 0
    drops = cell.server.backlog < c
    deadline_s = 30 + 3 * worst_s + 0.01 * requests + (DROPS_S if drops else 0)
    deadline_s += (JOIN_S if plan.load_hosts else 0) + (duration_s if timed else 0)
    return Load(
        concurrency=c,
        requests=requests,
        duration_s=duration_s,
        deadline_s=math.ceil(deadline_s),
        keepalive=cell.keepalive,
        drops=drops,
        processes=cell.processes,
        rate_rps=rate_rps,
        ramp_s=plan.ramp_s if rate_rps is None else 0.0,
        linger_s=plan.linger_s,
        timed=timed,
        same_body=not (app.sleep_s is None and app.body_sha256 is None),  # known to be constant
        hosts=plan.load_hosts,
        method=app.method,
        headers=app.headers,
        body_file=app.body_file,
        expect_status=app.expect_status,
        arrivals=plan.arrivals,
        schedule=schedule_seed(plan, cell, number),
        mix=app.mix,
        together=plan.together,
    )


def fixed_s(plan: Plan, cell: Cell) -> float | None:
    """The length of its load, where that was asked for."""
    return plan.duration_s if cell.duration_s is None else cell.duration_s


def _duration_s(plan: Plan, cell: Cell, rate_rps: float | None, rounds_s: float) -> float:
    """How long a load that is not counted lasts: after a ramp as long again and some rounds; at a
    rate until enough have arrived for a percentile, and for the target."""
    if (asked_s := fixed_s(plan, cell)) is not None:
        return asked_s
    if rate_rps is None:
        return float(math.ceil(2 * plan.ramp_s + max(TIMED_LEAST_S, rounds_s)))
    arrivals = max(ARRIVALS, ENOUGH * target_requests(plan, OPEN_MOST_S * rate_rps / ENOUGH))
    return float(math.ceil(min(max(OPEN_LEAST_S, arrivals / rate_rps), OPEN_MOST_S)))


def open_connections(plan: Plan, cell: Cell, rate_rps: float, lone_s: float) -> int:
    """The most connections at once that arrivals at a rate are given.

    With too few, arrivals wait for answers, and the open model is a closed loop again. So there is
    HEADROOM over what is under way if nothing waits (Little's law), and room for a backlog: all
    that arrive, if need be, but no more than the server works off in as long again, than the accept
    queue takes, and than OPEN_MOST.
    """
    slots = configured_slots(cell.server)
    bound_rps = math.inf if slots is None else slots / max(lone_s, LEAST_LONE_S)
    served_rps = min(rate_rps, bound_rps)
    backlog = served_rps * _duration_s(plan, cell, rate_rps, 0.0)
    room = min(backlog, cell.server.backlog, OPEN_MOST)
    return math.ceil(max(HEADROOM * served_rps * lone_s, room))


def counts(plan: Plan, cell: Cell) -> bool:
    """Whether the load is a number of requests."""
    timed = fixed_s(plan, cell) is not None or plan.ramp_s > 0 or cell.rate is not None
    return tool_named(cell.tool).COUNTED and not (cell.load.timed if cell.load else timed)


def target_requests(plan: Plan, most: float) -> int:
    """As many requests of a cell show each term of the target that `most` can show, if they are
    fast and clean; 0 where there is none. Errors are counted over the trials together."""
    needs = (
        math.ceil(needed(term) / (plan.trials if term.kind == "errors" else 1))
        for term in (parse(plan.slo) if plan.slo else ())
    )
    return max((need for need in needs if need <= most), default=0)


def may_go_on(plan: Plan, cell: Cell) -> bool:
    """Whether a longer load may follow the first."""
    return plan.max_seconds is not None and cell.rate is None and cell.load is None


def varies(plan: Plan, cell: Cell) -> bool:
    """Whether that is to be expected: of any app but the lab's own, which always take the same
    time, and of a worker class that deals its requests by chance."""
    steady = cell.server.app.sleep_s is not None and not cell.server.cpu_s
    return may_go_on(plan, cell) and not (steady and not accepts_first(cell))


def longer_s(plan: Plan, one: Trial) -> float:
    """By how much it may take longer than predicted."""
    longer = varies(plan, one.cell) or (plan.slo and may_go_on(plan, one.cell))
    return plan.max_seconds or 0.0 if longer else 0.0


def accepts_first(cell: Cell) -> bool:
    return class_named(cell.server.worker_class).accepts_first


def predicted_s(plan: Plan, cell: Cell, lone_s: float, rps: float | None = None) -> float:
    """How long the trial will take, start and stop of the server included."""
    if cell.load is not None:
        return null_s(cell, cell.load)
    load = load_for(plan, cell, lone_s, rps)
    slots = configured_slots(cell.server)
    beside_s = SETUP_S + lone_s + (DROPS_OFTEN_S if load.drops else 0.0)
    if counts(plan, cell):
        alone = int(not plan.together)
        return beside_s + ideal_s(load.requests, cell.concurrency, slots, lone_s, alone)
    drain_s = 0.0  # until the backlog of more arrivals than the slots can serve is worked off
    if load.rate_rps is not None and slots is not None and lone_s > 0:
        bound_rps = slots / lone_s
        backlog = max(0.0, load.rate_rps - bound_rps) * load.duration_s
        drain_s = min(backlog, load.concurrency) / bound_rps
    return beside_s + load.duration_s + drain_s


def null_s(cell: Cell, load: Load) -> float:
    """How long a null server and a fixed load take: the delays, shared by the connections, but at
    least the longest."""
    null = cell.server.null or NullServer()
    forks = tool_named(cell.tool).cores_used(load.concurrency, load.processes)
    beside_s = NULL_SETUP_S + FORK_S * forks
    beside_s += LOCUST_S if cell.tool.startswith("locust") else 0.0
    if load.timed:
        return beside_s + load.duration_s
    delays_s = load.requests * sum(null.delay_s) / 2 / load.concurrency
    reading_s = load.requests * null.body_bytes / READ_BYTES_PER_S
    return beside_s + max(delays_s, min(max(null.delay_s), 2 * delays_s), reading_s)


def records_for(plan: Plan, cell: Cell, rps: float | None = None) -> int:
    """Spans a worker's map must hold. One worker may get them all: the kernel deals, not we."""
    counted, sleep_s = counts(plan, cell), cell.server.app.sleep_s or 0.0
    lone_s = max(sleep_s, SHORT_S)
    requests = requests_of(plan, cell, cell.concurrency) if counted else 0
    timed_s = 0.0 if counted else load_for(plan, cell, lone_s, rps).duration_s
    timed_s += plan.max_seconds or 0.0 if may_go_on(plan, cell) else 0.0
    if rps is not None:
        expected = 1.5 * rps * timed_s
    elif sleep_s >= SHORT_S:
        expected = requests + 4 * cell.concurrency * timed_s / sleep_s
    elif counted:
        expected = requests + (MOST_REQUESTS if timed_s else 0)
    else:
        return max(UNKNOWN_RECORDS, math.ceil(UNKNOWN_RPS * timed_s))
    return WARMUP_RECORDS + math.ceil(expected)
