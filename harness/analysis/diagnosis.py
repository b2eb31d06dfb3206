"""What holds a valid cell up: the evidence, and what to change.

RULES in order; the first that applies is taken, those in WAITING only where requests wait. The
order is by what would make the next one's advice wrong: a full accept queue also looks like waiting
in it, a blocked event loop also like too few slots, a busy machine also like slots that more
workers would add. Where the load tool is the limit, no advice on the server is worth anything.
Those that are about slots are in `diagnosis_slots`, the one about event loops in `diagnosis_loop`.
"""

from collections.abc import Callable

from harness.analysis.diagnosis_loop import blocked_loop
from harness.analysis.diagnosis_slots import (
    full_queue,
    nothing_waits,
    possible_rps,
    service_s,
    uneven,
    waiting,
    waits,
)
from harness.analysis.facts import Facts
from harness.analysis.handshakes import handshakes
from harness.analysis.knee import REACHED
from harness.analysis.outcomes import NEVER_ACCEPTED
from harness.model import CellResult, Finding

FULL = 0.9  # of all cores
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
    """No core is left: by the server itself, or while its slots are not what holds it up."""
    cores, used = facts.seen.cores, facts.usage
    if not cores:
        return None
    server, tool, host = used.server_cores, used.generator_cores, used.host_busy
    by_server = server is not None and server >= FULL * cores
    ours = (server or 0.0) + (tool or 0.0)
    beside = host is not None and host > FULL and ours > COUNTS * cores
    if not by_server and not (beside and facts.rps < REACHED * possible_rps(facts, cell)):
        return None
    others = 0.0
    if host is not None and server is not None and tool is not None:
        others = host * cores - server - tool
    shares = {"server": server, "load_tool": tool}
    if others > (1 - FULL) * cores:
        shares["others"] = others
    known = {name: share for name, share in shares.items() if share is not None}
    used_by = tuple(Finding(f"cores.{name}", {"cores": share}) for name, share in known.items())
    advice = "close_other_programs" if others > (server or 0.0) else "faster_code_or_more_cores"
    return Finding(
        "diagnosis.busy_machine",
        {
            "connections": facts.connections,
            "rps": facts.rps,
            "cores": cores,
            "host": host,
            "used_by": used_by or (Finding("cores.unknown"),),
            "advice": (Finding(f"advice.{advice}"),),
        },
    )


def busy_workers(facts: Facts, cell: CellResult) -> Finding | None:
    """Every worker computes all the time: a Python process does on one core at a time."""
    used, workers = facts.usage.server_cores, facts.cell.server.workers
    if used is None or used < FULL * workers:
        return None
    if facts.rps >= REACHED * possible_rps(facts, cell):
        return None  # the slots say it as well
    found = {"workers": workers, "used": used, "cores": facts.seen.cores}
    load = {"connections": facts.connections, "rps": facts.rps}
    advice = (Finding("advice.faster_code_or_more_workers"),)
    return Finding("diagnosis.busy_workers", {**found, **load, "advice": advice})


def slow_together(facts: Facts, cell: CellResult) -> Finding:
    """Nobody waits for a slot, and yet requests take longer than a lone one."""
    cores, used = facts.seen.cores, facts.usage.server_cores
    machine = {"used": used if cores else None, "cores": cores or None}
    times = {"service_s": service_s(cell), "lone_s": cell.lone_s}
    advice = (Finding("advice.look_for_what_is_shared"),)
    found = {"connections": facts.connections, **times, **machine, "advice": advice}
    return Finding("diagnosis.slow_together", found)


Rule = Callable[[Facts, CellResult], Finding | None]
WAITING: tuple[Rule, ...]
WAITING = (busy_machine, busy_workers, uneven, waiting, slow_together)
RULES: tuple[Rule, ...] = (load_tool, full_queue, blocked_loop, *WAITING, nothing_waits)


def diagnosis(facts: Facts, cell: CellResult) -> Finding:
    """With its evidence, the `advice` that follows, and the `failures` of requests."""
    wait = waits(facts, cell)
    rules = (rule for rule in RULES if wait or rule not in WAITING)
    found = next(found for rule in rules if (found := rule(facts, cell)) is not None)
    return Finding(found.code, {**found.values, "failures": _failures(facts)})


def _failures(facts: Facts) -> Finding | None:
    """What failed, by cause, but for what the full queue has told."""
    outcome, causes = facts.outcome, dict(sorted(facts.outcome.errors.items()))
    told = causes.pop(NEVER_ACCEPTED, 0) if handshakes(facts).dropped else 0
    if not causes:
        return None
    return Finding("diagnosis.failures", {"requests": outcome.failed - told, "causes": causes})
