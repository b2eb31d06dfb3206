"""Why a launch broke the target: which terms it broke, and what was busy there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from workerlab.analysis.target import value_of
from workerlab.experiments.advise.forecast import mean_need
from workerlab.experiments.advise.result import BUSY, AdviseResult
from workerlab.experiments.advise.study import CandidateLaunch, holds
from workerlab.finding import Finding
from workerlab.model import CellResult
from workerlab.numbers.formats import fill

MENTIONED_CORES = 0.05  # of other programs; less is left out
SATURATED = ("saturated", "at capacity", "generator-bound")
FAILED = "{failed:count} of {due:count} requests failed[[ ({causes:counts})]]"
POOL = (
    "about {in_flight:number} of the {pool:count} requests that the app can work on at once were in"
    " flight"
)
USAGE = (
    "the server used {server_cores:cores}[[, the load tool {tool_cores:cores}]][[, other programs"
    " {others_cores:cores}]], and this machine was {host_busy:percent} busy[[; {occupancy:percent}"
    " of the slots were taken]]"
)
VALUE = "{term.metric} was {value:{term.kind}}"


def reasons(result: AdviseResult, launch: CandidateLaunch) -> Iterator[str | Finding]:
    """Of errors, how many; of a time, or a throughput, also what was full. One that failed nowhere
    was close to the limit."""
    broken = [term for term in result.search.terms if not holds(launch, [term])]
    for term in broken:
        if term.kind == "errors":
            outcome = launch.facts.outcome if launch.facts else None
            causes = outcome.errors if outcome else None
            yield fill(FAILED, {"failed": launch.failed, "due": launch.due, "causes": causes})
        elif math.isfinite(value := value_of(term.metric, launch.requests) or math.inf):
            yield fill(VALUE, {"term": term, "value": value})
    if not broken or any(term.kind != "errors" for term in broken):
        yield from _full(result, launch)


def _full(result: AdviseResult, launch: CandidateLaunch) -> Iterable[str | Finding]:
    """Queues grow before anything is full: where nothing is, how full it is stands there instead of
    a cause. Nothing, where not even that was seen."""
    cell = launch.cell
    if cell.verdict in SATURATED and (cell.diagnosis or cell.reason):
        return (cell.diagnosis or cell.reason,)
    return filter(None, (_pool(result, launch) or _usage(cell),))


def _pool(result: AdviseResult, launch: CandidateLaunch) -> str:
    """Where the app's own limit of requests at once is nearly reached."""
    pool, needs = result.limits.max_in_flight, result.needs
    if pool is None or needs is None:
        return ""
    mean = mean_need(needs)
    in_flight = launch.rps * (mean.wait_s + mean.cpu_s + mean.blocked_s)
    return fill(POOL, {"pool": pool, "in_flight": in_flight}) if in_flight > BUSY * pool else ""


def _usage(cell: CellResult) -> str:
    usage = cell.usage
    if usage.server_cores is None or usage.host_busy is None:
        return ""
    others_cores = (cell.core_wait.others_cores if cell.core_wait else None) or 0.0
    values = {
        "server_cores": usage.server_cores,
        "tool_cores": usage.generator_cores,
        "others_cores": others_cores if others_cores >= MENTIONED_CORES else None,
        "host_busy": usage.host_busy,
        "occupancy": cell.occupancy,
    }
    return fill(USAGE, values)
