"""What holds a valid cell up: the evidence, and what to change.

RULES in order; the first that applies is taken. The order is by what would make the next one's
advice wrong: a full accept queue also looks like waiting in it, a blocked event loop also like too
few slots, a busy machine also like slots that more workers would add. Where the load tool is the
limit, no advice on the server is worth anything.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.analysis.diagnosis_cpu import blocked_loop, busy_machine, busy_workers, slow_together
from harness.analysis.diagnosis_slots import full_queue, nothing_waits, uneven, waiting
from harness.analysis.facts import Facts
from harness.analysis.handshakes import handshakes
from harness.analysis.load_tool import FULL
from harness.analysis.outcomes import NEVER_ACCEPTED
from harness.model import CellResult, Finding


def load_tool(facts: Facts, cell: CellResult) -> Finding | None:
    """Whoever reads on would change the server in vain."""
    if not cell.generator_bound:
        return None
    host = facts.usage.host_busy
    crowded = host is not None and host > FULL
    advice = Finding("advice.load_from_elsewhere", {"host": host})
    if not crowded:
        advice = Finding("advice.faster_load_tool")
    return Finding("diagnosis.load_tool", {"limit": cell.reason, "advice": (advice,)})


RULES: tuple[Callable[[Facts, CellResult], Finding | None], ...] = (
    load_tool,
    full_queue,
    blocked_loop,
    busy_machine,
    busy_workers,
    uneven,
    waiting,
    slow_together,
    nothing_waits,
)


def diagnosis(facts: Facts, cell: CellResult) -> Finding:
    """With its evidence, the `advice` that follows, and the `failures` of requests."""
    found = next(found for rule in RULES if (found := rule(facts, cell)) is not None)
    return Finding(found.code, {**found.values, "failures": _failures(facts)})


def _failures(facts: Facts) -> Finding | None:
    """What failed, by cause, but for what the full queue has told."""
    told = {NEVER_ACCEPTED} if handshakes(facts).dropped else set[str]()
    errors = facts.outcome.errors
    causes = {cause: n for cause, n in sorted(errors.items()) if cause not in told}
    if not causes:
        return None
    failed = facts.outcome.failed - sum(errors.get(cause, 0) for cause in told)
    return Finding("diagnosis.failures", {"requests": failed, "causes": causes})
