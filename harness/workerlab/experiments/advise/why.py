"""Why a launch broke the target: which terms it broke, and what was busy there."""

import math
from collections.abc import Iterable, Iterator

from workerlab import finding
from workerlab.analysis.target import value_of
from workerlab.experiments.advise.result import BUSY, Result
from workerlab.experiments.advise.study import Launch, holds
from workerlab.model import CellResult, Finding

OTHERS = 0.05  # cores: what is told of other programs
FULL = ("saturated", "at capacity", "generator-bound")


def reasons(result: Result, launch: Launch) -> Iterator[finding.Finding]:
    """Of errors, how many; of a time, or a throughput, also what was full. One that failed nowhere
    was close to the limit."""
    broken = [one for one in result.search.terms if not holds(launch, [one])]
    for term in broken:
        if term.kind == "errors":
            outcome = launch.facts.outcome if launch.facts else None
            causes = dict(outcome.errors) if outcome and outcome.errors else None
            values = {"failed": launch.failed, "requests": launch.due, "causes": causes}
            yield Finding("advise.why.failed", values)
        elif math.isfinite(value := value_of(term.metric, launch.requests) or math.inf):
            unit = Finding(f"advise.value.{term.kind}", {"value": value})
            yield Finding("advise.why.value", {"metric": term.metric, "value": unit})
    if not broken or any(term.kind != "errors" for term in broken):
        yield from _full(result, launch)


def _full(result: Result, launch: Launch) -> Iterable[finding.Finding]:
    """Queues grow before anything is full: where nothing is, how full it is stands there instead of
    a cause. Nothing, where not even that was seen."""
    cell = launch.cell
    if cell.verdict in FULL and (cell.diagnosis or cell.reason):
        yield cell.diagnosis or cell.reason
    elif (pool := _pool(result, launch)) is not None:
        yield pool
    elif (busy := _busy(cell)) is not None:
        yield busy


def _pool(result: Result, launch: Launch) -> Finding | None:
    """Where the app's own limit of requests at once is nearly reached."""
    pool, needs = result.limits.max_in_flight, result.needs
    if pool is None or needs is None:
        return None
    holds_s = [one.wait_s + one.cpu_s + one.blocked_s for one in needs.requests]
    under_way = launch.rps * sum(holds_s) / len(holds_s)
    if under_way <= BUSY * pool:
        return None
    return Finding("advise.why.pool", {"pool": pool, "under_way": under_way})


def _busy(cell: CellResult) -> Finding | None:
    used = cell.usage
    if used.server_cores is None or used.host_busy is None:
        return None
    others = cell.core_wait.others_cores if cell.core_wait else None
    values = {
        "server_cores": used.server_cores,
        "tool_cores": used.generator_cores,
        "others_cores": others if others and others >= OTHERS else None,
        "host_busy": used.host_busy,
        "occupancy": cell.occupancy,
    }
    return Finding("advise.busy", values)
