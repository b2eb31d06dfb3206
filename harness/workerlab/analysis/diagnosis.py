"""What is so of a valid cell: all that its own evidence shows, and what to change.

Every rule is asked, and what it finds carries what it was found by. The order of the rules is that
of importance: the first finding is the cell's diagnosis. A finding is left out only where another
one explains what it rests on (EXPLAINS), so that its advice would be wrong:

    load_tool       a tool that is the limit makes requests slow, and takes cores; idle slots, a
                    long service and a full machine then say nothing of the server
    full_queue      says where the rest waits, `waiting` the same once more
    blocked_loop    a request that waits for its loop is long in the app: nothing else is shared,
                    more slots are no remedy, and the many that begin together wait longest
    busy_workers,   workers without a core hold their slots for longer and leave others idle: more
    busy_machine    slots or an even dealing bring nothing, nothing else need be shared, and the
                    machine's moods look like drift
    shared          what waits in its slot for a lock fills the slots; more of them bring nothing
    drift,          the mean of such a service is above that of a lone one, with nothing shared
    slow_first
    core_wait,      others had the cores: a long response needs no other explanation. What rests on
    steal           service times (shared, drift) takes off what that cost, by itself
Failures are told beside everything else, first where they are a twentieth of the requests or more;
then it is not said that nothing waits, for what was refused did not wait.
Those findings that are about slots are in `diagnosis_slots`, the one about event loops in
`diagnosis_loop`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from workerlab.analysis.breakdown import in_server
from workerlab.analysis.core_wait import core_wait, disturbance
from workerlab.analysis.diagnosis_loop import blocked_loop
from workerlab.analysis.diagnosis_slots import full_queue, stall, uneven, waiting, without_cause
from workerlab.analysis.drift import drifting, slow_at_first
from workerlab.analysis.facts import Facts
from workerlab.analysis.failures import failing, shedding
from workerlab.analysis.series import Series
from workerlab.analysis.shared import shared
from workerlab.analysis.verdict import stood_still_alone
from workerlab.model import CellResult, Finding

FULL = 0.9  # of all cores
COMPUTING = 0.85  # of a core each: handing over the GIL, or accepting, takes the rest
MOSTLY, PART = 0.7, 0.25  # of a lone request
COUNTS = 0.25  # of all cores: less is not what the machine lacks


def load_tool(facts: Facts, cell: CellResult) -> Finding | None:
    """Whoever reads on would change the server in vain."""
    if not cell.generator_bound:
        return None
    host = facts.usage.host_busy
    advice = Finding("advice.faster_load_tool")
    if host is not None and host > FULL:
        advice = Finding("advice.load_from_elsewhere", {"host": host})
    return Finding("diagnosis.load_tool", {"limit": cell.reason, "advice": (advice,)})


def busy_machine(facts: Facts, cell: CellResult) -> Finding | None:
    """No core is left, and the server, its load and the services beside its app have them. What
    others have is not the limit of this server: `disturbance` tells what that cost. Beside them it
    is known by what requests need."""
    cores, used = facts.seen.cores, facts.usage
    server, tool = used.server_cores, used.generator_cores
    services = cell.app_metrics.cores if cell.app_metrics else {}
    if not cores or server is None or facts.connections < 2:
        return None
    ours = server + (tool or 0.0) + sum(services.values())
    used_by = [Finding("cores.server", {"cores": server})]
    used_by += [Finding("cores.load_tool", {"cores": tool})] if tool else []
    used_by += [Finding("cores.service", {"name": n, "cores": c}) for n, c in services.items()]
    measured = {"cores": cores, "host": used.host_busy, "used_by": tuple(used_by)}
    if server >= COUNTS * cores and ours >= FULL * cores:
        how = Finding("busy.cores", measured)
    elif (need := _needed(facts, cell)) and min(facts.connections, need["workers"]) > cores:
        how = Finding("busy.more_than_cores", {**need, "cores": cores})
    else:
        return None
    noise = () if how.code == "busy.cores" else (Finding("advice.close_other_programs"),)
    elsewhere = (Finding("advice.load_tool_elsewhere"),) if (tool or 0.0) >= COUNTS * cores else ()
    advice = (*noise, Finding("advice.faster_code_or_more_cores"), *elsewhere)
    reached = {"connections": facts.connections, "rps": facts.throughput_rps}
    values = {**reached, **measured, "how": how, "advice": advice}
    return Finding("diagnosis.busy_machine", values)


def busy_workers(facts: Facts, cell: CellResult) -> Finding | None:
    """Every worker, or every core that the server is bound to, computes all the time, and there are
    more requests than workers: a Python process computes on one core at a time. Beside other
    programs it is known by what requests need."""
    used, workers, cores = _while_serving(facts), facts.cell.server.workers, facts.cores
    fewer_cores = (facts.cell.server.cores or workers) < workers
    if used is None or facts.connections <= workers:
        return None
    measured = {"workers": workers, "used": used, "cores": cores}
    if used >= COMPUTING * (cores if cores and fewer_cores else workers):
        how = Finding("busy.workers", measured)
    elif (need := _needed(facts, cell)) and workers <= (cores or 0):
        how = Finding("busy.one_at_a_time", need)
    else:
        return None
    load = {"connections": facts.connections, "rps": facts.throughput_rps}
    more_workers = Finding("advice.faster_code_or_more_workers")
    advice = (Finding("advice.faster_code_or_more_cores") if fewer_cores else more_workers,)
    return Finding("diagnosis.busy_workers", {**measured, **load, "how": how, "advice": advice})


def _while_serving(facts: Facts) -> float | None:
    """Cores that the workers used while they had requests: of a short load the tool takes a part to
    start."""
    used, samples, finished = facts.usage.server_cores, facts.seen.processes, facts.finished
    if used is None or not finished or not samples:
        return used
    served_ns = max(one.end_ns or 0 for one in finished) - finished[0].start_ns
    sampled_ns = samples[-1].at_ns - samples[0].at_ns
    return used * max(1.0, sampled_ns / served_ns) if served_ns > 0 else used


def _needed(facts: Facts, cell: CellResult) -> dict[str, Any] | None:
    """What a request computes, where others kept the workers from a core: how much they got of it
    then says nothing. It has to be most of what a lone one takes; or a part of it, and the workers
    computed or waited for a core all the time."""
    used, lone_s = facts.usage.server_cores, min(facts.record.alone_s, default=0.0)
    workers, waited = facts.cell.server.workers, core_wait(facts)
    if used is None or not facts.rps or not lone_s or disturbance(facts) is None or not waited:
        return None
    if cell.verdict == "below capacity":
        return None  # it is no limit where more connections bring more
    if (inside := in_server(facts)) is not None and inside < INSIDE * facts.connections:
        return None  # the load tool holds them
    cpu_s, busy = used / facts.rps, used + waited.worker_s * facts.rps
    idle = (cell.occupancy if cell.occupancy is not None else 1.0) < IDLE
    always = busy >= COMPUTING * workers and cpu_s >= PART * lone_s and not idle
    if cpu_s < MOSTLY * lone_s and not always:
        return None
    return {"cpu_s": cpu_s, "lone_s": lone_s if lone_s >= cpu_s else None, "workers": workers}


Rule = Callable[[Facts, CellResult], Finding | None]
BEFORE: tuple[Rule, ...] = (load_tool, stall)
FULL_UP: tuple[Rule, ...] = (full_queue, blocked_loop, busy_machine, busy_workers)
SLOW: tuple[Rule, ...] = (uneven, drifting, slow_at_first, waiting)  # and, before them, `shared`
AT_RATE: tuple[Rule, ...] = (blocked_loop, busy_machine, busy_workers)
FAILURES: tuple[Rule, ...] = (shedding, failing)
IDLE = 0.5  # of the slots taken: below, most of what workers wait is for nothing
INSIDE = 0.5  # of the requests under way are in the server
MANY = 0.05  # of the requests failed: nothing is more important
CPU = frozenset({"uneven", "shared", "waiting", "drift", "slow_first"})
EXPLAINS: Mapping[str, frozenset[str]] = {
    "load_tool": CPU | {"busy_machine", "busy_workers"},
    "full_queue": frozenset({"waiting"}),
    "full_queue_likely": frozenset({"waiting"}),
    "blocked_loop": frozenset({"shared", "waiting", "drift", "slow_first"}),
    "busy_workers": CPU,
    "busy_machine": CPU,
    "shared": frozenset({"waiting"}),
    "drift": frozenset({"shared"}),
    "slow_first": frozenset({"shared"}),
}
# What is seen in a cell's CPU, accept queue or TCP states over time
SEEN_IN: Mapping[str, str] = {
    **dict.fromkeys(("load_tool", "busy_machine", "busy_workers", "core_wait", "steal"), "cpu"),
    **dict.fromkeys(("full_queue", "full_queue_likely"), "queue"),
    "stall": "states",
}
PREFIX = "diagnosis."


def seen_in(cell: CellResult) -> frozenset[str]:
    """Which observations over time (`cpu`, `queue`, `states`) show the cell's findings."""
    codes = map(_short, cell.findings)
    return frozenset(SEEN_IN[code] for code in codes if code in SEEN_IN)


def findings(facts: Facts, cell: CellResult, series: Series) -> tuple[Finding, ...]:
    """All that is so of a valid cell of the closed loop, the most important first: at least one.
    Each with its evidence and the `advice` that follows."""
    failed = _asked(FAILURES, facts, cell)
    many = [found for found in failed if found.values["share"] >= MANY]
    few = [found for found in failed if found not in many]
    before, causes = _asked(BEFORE, facts, cell), _causes(facts, cell, series)
    disturbed = [found for found in (disturbance(facts),) if found is not None]
    if not (before or many or causes or disturbed):
        waits = series.waits(facts) and not stood_still_alone(facts, series)
        causes = [without_cause(facts, cell, waits=waits)]
    if cell.verdict == "inconclusive":
        return (*disturbed, *before, *many, *causes, *few)
    return (*before, *many, *causes, *few, *disturbed)


def _causes(facts: Facts, cell: CellResult, series: Series) -> list[Finding]:
    """Those that no other one explains, by importance."""
    together = shared(facts, cell, series)
    every = [*_asked(FULL_UP, facts, cell), *((together,) if together else ())]
    every += _asked(SLOW, facts, cell)
    left_out = set[str]()
    for found in (*_asked(BEFORE, facts, cell), *every):
        left_out |= EXPLAINS.get(_short(found), frozenset())
    return [found for found in every if _short(found) not in left_out]


def findings_at_rate(facts: Facts, cell: CellResult) -> tuple[Finding, ...]:
    """Of a cell of the open model, beside its verdict's reason: what needs no law of the closed
    loop."""
    failed, causes = _asked(FAILURES, facts, cell), _asked(AT_RATE, facts, cell)
    if cell.generator_bound:
        causes = []
    reason = cell.reason.code
    disturbed = [found for found in (disturbance(facts),) if found and found.code != reason]
    return (cell.reason, *failed, *causes, *disturbed)


def _asked(rules: tuple[Rule, ...], facts: Facts, cell: CellResult) -> list[Finding]:
    return [found for rule in rules if (found := rule(facts, cell)) is not None]


def _short(found: Finding) -> str:
    return found.code.removeprefix(PREFIX)
