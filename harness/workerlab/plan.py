"""Expands axes to trials, and decides how long their loads are.

    n      = 1 + rounds * c                                     requests of a counted load
                                                                (without the 1: Plan.together)
    ideal  = R0 * (1 + ceil((n - 1) / min(c, slots)))           seconds; R0: response time alone
    open   = max(10 s, 100 / rate), at most 120 s               duration of arrivals at a rate

The 1 is ab's first request, which it sends alone: the others follow once the headers of the
response arrive.

If no option fixes the length of a load whose throughput varies, a longer load may follow it
(`experiments/load_trials.py`); the span maps are large enough for both.
"""

import itertools
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workerlab.analysis.target import requests_needed
from workerlab.finding import Finding, stored
from workerlab.load.locust import JOIN_S
from workerlab.load.registry import tool_named
from workerlab.model.plan import Cell, Load, NullServer, Plan, Rate, Server, Trial
from workerlab.server.worker_classes import class_named, configured_slots
from workerlab.slo import parse

SLEEP_ENV = "WORKERLAB_SLEEP"  # seconds that the bundled apps sleep
MIN_TIMED_S = 2.0
# If a full accept queue drops packets: the time until the client's kernel has sent its last
# retransmission (the first after 0.2 s, then doubling) and learns that the connection is closed
DROPS_S = 240.0
WARMUP_RECORDS = 16_384  # many more than the warm-up needs
UNKNOWN_RECORDS = 500_000  # 20 MB per worker, for a timed load on an unknown app
UNKNOWN_RPS = 10_000  # above the rate of any single worker
MAX_FOLLOW_UP_REQUESTS = 100_000  # in a load that follows another
HEADROOM = 2.0  # connections of an open cell / requests in flight without waiting
MAX_BACKLOG_CONNECTIONS = 1000  # additional connections for a backlog
MIN_ARRIVALS = 100  # per open cell, enough for a percentile
ARRIVALS_MARGIN = 1.1  # planned arrivals / required ones, because the number is random
MIN_OPEN_S, MAX_OPEN_S = 10.0, 120.0  # duration of an open load
MIN_LONE_S = 1e-4
MIN_DOMINANT_SLEEP_S = 0.01  # shorter sleeps do not dominate the time of a request
NULL_BACKLOG = 4096
SCHEDULES_PER_SEED = 10_000  # so that plans with different seeds share no schedule


def product(
    servers: Iterable[Server],
    tools: Iterable[str],
    levels: Sequence[int],
    keepalive: Iterable[bool] = (False,),
    processes: Iterable[int] = (1,),
    rates: Iterable[Rate] = (),
    requests: int | None = None,
) -> tuple[Cell, ...]:
    """Every cell of these axes: first the closed loop, then the open model at the highest level.
    `requests`: the number per closed load; None: determined by rounds."""
    closed_loads = [(level, None) for level in levels]
    open_loads = [(max(levels), rate) for rate in rates]
    return tuple(
        Cell(
            server,
            tool,
            concurrency=level,
            keepalive=is_kept,
            processes=process_count,
            rate=rate,
            requests=None if rate else requests,
        )
        for loads in (closed_loads, open_loads)
        for tool, server, is_kept, process_count, (level, rate) in itertools.product(
            tools, servers, keepalive, processes, loads
        )
    )


def null_cell(name: str, null: NullServer, tool: str, load: Load) -> Cell:
    """A load on a server that does nothing. The keys of its trials begin with `name`."""
    server = Server(
        worker_class="null",
        workers=1,
        threads=1,
        backlog=NULL_BACKLOG,
        worker_connections=0,
        null=null,
    )
    return Cell(
        server,
        tool,
        concurrency=load.concurrency,
        keepalive=load.keepalive,
        processes=load.processes,
        load=load,
        name=name,
    )


def null_plan(
    kind: str,
    cells: Iterable[Cell],
    notes: Iterable[Finding] = (),
    details: Mapping[str, Any] | None = None,
) -> Plan:
    """A plan that runs loads on null servers in this order."""
    return Plan(
        kind=kind,
        cells=tuple(cells),
        trials=1,
        rounds=1,
        seed=0,
        python=sys.executable,
        config=None,
        unavailable={},
        notes=tuple(map(stored, notes)),
        details=details or {},
    )


def grid(plan: Plan) -> list[Trial]:
    """Every trial of the plan, in the order of reports."""
    return [Trial(cell, number) for number in range(1, plan.trials + 1) for cell in plan.cells]


def trials(plan: Plan) -> list[Trial]:
    """Every trial in the order of execution. Repeated trials run in random order, so that a machine
    that slows down does not look like a slow class. Open ones come last, because their rate may be
    a share of the capacity that closed ones measure. Single trials run in the order of the plan."""
    all_trials = grid(plan)
    if plan.trials == 1:
        return all_trials
    random.Random(plan.seed).shuffle(all_trials)
    return sorted(all_trials, key=lambda trial: trial.cell.rate is not None)


def ideal_s(
    requests: int, concurrency: int, slots: int | None, lone_s: float, alone: int = 1
) -> float:
    """The seconds that `requests` take if no slot is ever idle. `alone`: 1 if the first request is
    sent alone, else 0."""
    parallel = concurrency if slots is None else min(concurrency, slots)
    return lone_s * (alone + math.ceil((requests - alone) / parallel))


def requests_of(plan: Plan, cell: Cell, connections: int) -> int:
    """The number of requests of a counted load."""
    if cell.requests is not None:
        return cell.requests
    return int(not plan.together) + plan.rounds * connections


def schedule_seed(plan: Plan, cell: Cell, number: int) -> int:
    """The seed of a trial's schedule: seed * SCHEDULES_PER_SEED + k, where k is the cell's own
    schedule or, without one, the number of the trial. So trial k has the same schedule in every
    cell, and different trials of a cell have different ones."""
    return plan.seed * SCHEDULES_PER_SEED + (number if cell.schedule is None else cell.schedule)


def load_for(
    plan: Plan, cell: Cell, lone_s: float, rps: float | None = None, number: int = 1
) -> Load:
    """The load of a trial, given the response time of a lone request.

    `rps`: the rate of an open cell; None: the planned rate, or the share of the throughput that
    connections and slots allow. `number`: that of the trial.
    """
    if cell.load is not None:
        return cell.load
    app, connections, slots = cell.server.app, cell.concurrency, configured_slots(cell.server)
    rate_rps = _rate_rps(cell, lone_s) if rps is None else rps
    if rate_rps is not None:
        connections = max(connections, open_connections(plan, cell, rate_rps, lone_s))
    requests, alone = requests_of(plan, cell, connections), int(not plan.together)
    rounds_s = ideal_s(requests, connections, slots, lone_s, alone)
    duration_s = _duration_s(plan, cell, rate_rps, rounds_s)
    is_timed = rate_rps is not None or fixed_s(plan, cell) is not None or plan.ramp_s > 0
    drops = cell.server.backlog < connections
    worst_s = ideal_s(requests, connections, cell.server.workers, lone_s, alone)
    deadline_s = _deadline_s(worst_s, requests, drops=drops)
    deadline_s += (JOIN_S if plan.load_hosts else 0) + (duration_s if is_timed else 0)
    return Load(
        concurrency=connections,
        requests=requests,
        duration_s=duration_s,
        deadline_s=math.ceil(deadline_s),
        keepalive=cell.keepalive,
        drops=drops,
        processes=cell.processes,
        rate_rps=rate_rps,
        ramp_s=plan.ramp_s if rate_rps is None else 0.0,
        linger_s=plan.linger_s,
        timed=is_timed,
        same_body=not (app.sleep_s is None and app.body_sha256 is None),  # else it may vary
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


def _deadline_s(worst_s: float, requests: int, *, drops: bool) -> float:
    """The deadline of a load in seconds: three times `worst_s`, the time with one request per
    worker whatever its slots (its loop may be blocked); 10 ms of the load tool per request; and
    time for dropped handshakes, if the accept queue cannot hold all connections."""
    return 30 + 3 * worst_s + 0.01 * requests + (DROPS_S if drops else 0)


def _rate_rps(cell: Cell, lone_s: float) -> float | None:
    """The rate of an open cell, or its estimate before the closed cells are measured; None for a
    closed cell."""
    if cell.rate is None:
        return None
    slots = configured_slots(cell.server)
    busy_slots = cell.concurrency if slots is None else min(cell.concurrency, slots)
    max_rps = busy_slots / max(lone_s, MIN_LONE_S)
    return cell.rate.rps or (cell.rate.share or 1.0) * max_rps


def fixed_s(plan: Plan, cell: Cell) -> float | None:
    """The duration of the load if an option fixes it, else None."""
    return plan.duration_s if cell.duration_s is None else cell.duration_s


def _duration_s(plan: Plan, cell: Cell, rate_rps: float | None, rounds_s: float) -> float:
    """The duration of a timed load. A closed loop lasts for twice the ramp plus some rounds;
    arrivals at a rate last until there are enough for a percentile and for the target."""
    if (option_s := fixed_s(plan, cell)) is not None:
        return option_s
    if rate_rps is None:
        return float(math.ceil(2 * plan.ramp_s + max(MIN_TIMED_S, rounds_s)))
    arrivals = max(
        MIN_ARRIVALS,
        ARRIVALS_MARGIN * target_requests(plan, MAX_OPEN_S * rate_rps / ARRIVALS_MARGIN),
    )
    return float(math.ceil(min(max(MIN_OPEN_S, arrivals / rate_rps), MAX_OPEN_S)))


def open_connections(plan: Plan, cell: Cell, rate_rps: float, lone_s: float) -> int:
    """The maximum number of connections for arrivals at a rate.

    With too few, arrivals wait for responses, and the open model becomes a closed loop. So there
    are HEADROOM connections per request in flight without waiting (Little's law). A backlog may
    need more: as many as the server serves during the load, but at most as many as the accept queue
    holds, and MAX_BACKLOG_CONNECTIONS.
    """
    slots = configured_slots(cell.server)
    bound_rps = math.inf if slots is None else slots / max(lone_s, MIN_LONE_S)
    served_rps = min(rate_rps, bound_rps)
    backlog = served_rps * _duration_s(plan, cell, rate_rps, 0.0)
    queued = min(backlog, cell.server.backlog, MAX_BACKLOG_CONNECTIONS)
    return math.ceil(max(HEADROOM * served_rps * lone_s, queued))


def is_counted_load(plan: Plan, cell: Cell) -> bool:
    """Whether the load has a fixed number of requests."""
    is_timed = fixed_s(plan, cell) is not None or plan.ramp_s > 0 or cell.rate is not None
    return tool_named(cell.tool).COUNTED and not (cell.load.timed if cell.load else is_timed)


def target_requests(plan: Plan, max_requests: float) -> int:
    """The number of requests that a cell needs to show that the target is met, if all are fast and
    succeed. Terms that need more than `max_requests` are ignored; 0 if none is left. Errors count
    over all trials."""
    needs = (
        math.ceil(requests_needed(term) / (plan.trials if term.kind == "errors" else 1))
        for term in (parse(plan.slo) if plan.slo else ())
    )
    return max((need for need in needs if need <= max_requests), default=0)


def may_have_follow_up(plan: Plan, cell: Cell) -> bool:
    """Whether a longer load may follow the first."""
    return plan.max_seconds is not None and cell.rate is None and cell.load is None


def varies(plan: Plan, cell: Cell) -> bool:
    """Whether the throughput is likely to vary: true of apps other than bundled ones that only
    sleep, and of worker classes that distribute requests at random."""
    steady = cell.server.app.sleep_s is not None and not cell.server.cpu_s
    return may_have_follow_up(plan, cell) and not (steady and not accepts_first(cell))


def accepts_first(cell: Cell) -> bool:
    return class_named(cell.server.worker_class).accepts_first


def records_for(plan: Plan, cell: Cell, rps: float | None = None) -> int:
    """The spans that a worker's map must hold. The kernel may give all requests to one worker."""
    counted, sleep_s = is_counted_load(plan, cell), cell.server.app.sleep_s or 0.0
    lone_s = max(sleep_s, MIN_DOMINANT_SLEEP_S)
    requests = requests_of(plan, cell, cell.concurrency) if counted else 0
    timed_s = 0.0 if counted else load_for(plan, cell, lone_s, rps).duration_s
    timed_s += plan.max_seconds or 0.0 if may_have_follow_up(plan, cell) else 0.0
    if rps is not None:
        expected = 1.5 * rps * timed_s
    elif sleep_s >= MIN_DOMINANT_SLEEP_S:
        expected = requests + 4 * cell.concurrency * timed_s / sleep_s
    elif counted:
        expected = requests + (MAX_FOLLOW_UP_REQUESTS if timed_s else 0)
    else:
        return max(UNKNOWN_RECORDS, math.ceil(UNKNOWN_RPS * timed_s))
    return WARMUP_RECORDS + math.ceil(expected)
