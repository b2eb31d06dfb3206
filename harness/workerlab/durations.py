"""Predicts how long trials take, for progress bars, budgets, and the order of trials that run in
parallel. A trial lasts as long as its load, plus an overhead for starting and stopping its
server."""

from workerlab.load.registry import tool_named
from workerlab.model.plan import Cell, Load, NullServer, Plan, Trial
from workerlab.plan import ideal_s, is_counted_load, load_for, may_have_follow_up, varies
from workerlab.server.worker_classes import configured_slots

MIN_OVERHEAD_S = 1.2  # of the fastest launches, so that no sufficient budget is rejected
MEAN_OVERHEAD_S = 2.2  # mean of 300 launches, without lone requests
ASSUMED_OVERHEAD_S = 3.0  # for a class never launched before, with lone requests and planning
MAX_DROP_DELAY_S = 20.0  # if a full accept queue drops connections; the delay may be far shorter
NULL_OVERHEAD_S = 1.3  # for a load on a null server: start and end of server and tool
FORK_S = 0.02  # per process of the tool
READ_BYTES_PER_S = 400e6  # throughput of a tool that reads bodies


def predicted_s(plan: Plan, cell: Cell, lone_s: float, rps: float | None = None) -> float:
    """The predicted duration of the trial in seconds, with start and stop of the server."""
    if cell.load is not None:
        return null_s(cell, cell.load)
    load = load_for(plan, cell, lone_s, rps)
    slots = configured_slots(cell.server)
    overhead_s = MEAN_OVERHEAD_S + lone_s
    if is_counted_load(plan, cell):
        alone = int(not plan.together)
        return overhead_s + ideal_s(load.requests, cell.concurrency, slots, lone_s, alone)
    drain_s = 0.0  # to serve the backlog, if arrivals exceed what the slots can serve
    if load.rate_rps is not None and slots is not None and lone_s > 0:
        bound_rps = slots / lone_s
        backlog = max(0.0, load.rate_rps - bound_rps) * load.duration_s
        drain_s = min(backlog, load.concurrency) / bound_rps
    return overhead_s + load.duration_s + drain_s


def longer_s(plan: Plan, trial: Trial) -> float:
    """The seconds by which the trial may exceed the prediction."""
    if trial.cell.server.backlog < trial.cell.concurrency and trial.cell.load is None:
        return MAX_DROP_DELAY_S
    may_extend = varies(plan, trial.cell) or (plan.slo and may_have_follow_up(plan, trial.cell))
    return plan.max_seconds or 0.0 if may_extend else 0.0


def null_s(cell: Cell, load: Load) -> float:
    """The predicted duration of a fixed load on a null server: its delays divided among the
    connections, but at least the longest delay."""
    null = cell.server.null or NullServer()
    tool = tool_named(cell.tool)
    forks = tool.cores_used(load.concurrency, load.processes)
    overhead_s = NULL_OVERHEAD_S + tool.START_S + FORK_S * forks
    if load.timed:
        return overhead_s + load.duration_s
    delays_s = load.requests * sum(null.delay_s) / 2 / load.concurrency
    reading_s = load.requests * null.body_bytes / READ_BYTES_PER_S
    return overhead_s + max(delays_s, min(max(null.delay_s), 2 * delays_s), reading_s)
