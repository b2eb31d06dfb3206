"""What a colleague would say of a cell: what holds it up, the evidence, and what to change.

RULES in order; the first that has something to say is heard. The order is by what would make the
next one's advice wrong: a full accept queue also looks like waiting in it, a blocked event loop
also like too few slots, a busy machine also like slots that more workers would add. Where the load
tool is the limit, no advice on the server is worth anything.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.analysis.case import Case, titled
from harness.analysis.diagnosis_cpu import blocked_loop, busy_machine, busy_workers, slow_together
from harness.analysis.diagnosis_slots import full_queue, nothing_waits, uneven, waiting
from harness.analysis.load_tool import load_tool
from harness.analysis.outcomes import NEVER_ACCEPTED
from harness.numbers.words import plural

RULES: tuple[Callable[[Case], str | None], ...] = (
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


def diagnose(case: Case) -> str | None:
    """One sentence with its evidence and the advice that follows; None where nothing is known."""
    if not case.rps:
        return None
    for rule in RULES:
        if (said := rule(case)) is not None:
            return f"{titled(case.server, case.worker_class)}: {said}{_failures(case)}"
    return None


def _failures(case: Case) -> str:
    """What failed, by cause, but for what the full queue has told."""
    told = {NEVER_ACCEPTED} if case.handshakes.dropped else set[str]()
    causes = {cause: n for cause, n in case.cell.errors.items() if cause not in told}
    if not causes:
        return ""
    listed = ", ".join(f"{cause}: {count}" for cause, count in sorted(causes.items()))
    failed = (case.cell.failed or 0) - sum(case.cell.errors.get(cause, 0) for cause in told)
    return f" {plural(failed, 'request')} failed ({listed})."
