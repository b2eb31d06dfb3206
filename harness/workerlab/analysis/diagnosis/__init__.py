"""Diagnoses of a valid cell: what limits it, and what to change.

    base     what all diagnoses have: sentence, rank, advice, and the diagnoses it explains
    cpu      limits of the load tool, the workers or the machine; disturbance by other programs
    loop     a blocked event loop, and the lines that block it
    service  a shared resource; service times that change during the load; failed requests
    slots    too few or idle slots, a full accept queue; or nothing waits

Each cause is a class, followed by its rule. All rules are applied, except those on service times if
the cell is CPU-bound. A class may explain others (`explains`): these are left out, as their advice
would be wrong. The one with the lowest `rank` is the cell's diagnosis. Failures are reported in
addition. If many requests fail, `NothingWaits` is not reported, as refused requests do not wait.
"""

from collections.abc import Callable

from workerlab.analysis.diagnosis.base import Diagnosis, Observed
from workerlab.analysis.diagnosis.cpu import (
    Disturbance,
    busy_machine,
    busy_workers,
    disturbance,
    load_tool,
)
from workerlab.analysis.diagnosis.loop import blocked_loop
from workerlab.analysis.diagnosis.service import (
    MANY_FAILED_SHARE,
    Failures,
    computes,
    drift,
    failing,
    shared,
    shedding,
    slow_first,
)
from workerlab.analysis.diagnosis.slots import (
    full_queue,
    stall,
    uneven,
    waiting_for_slots,
    without_cause,
)
from workerlab.analysis.facts import Facts
from workerlab.analysis.series import Series
from workerlab.finding import Finding
from workerlab.model import CellResult

Rule = Callable[[Facts, CellResult], Diagnosis | None]
RANK_OF_MANY = 15  # of many failures: after LoadToolIsLimit and IdleWhileClientsWait
FAILURES: tuple[Rule, ...] = (shedding, failing)
AT_ANY_LOAD: tuple[Rule, ...] = (blocked_loop, busy_machine, busy_workers)
CLOSED_LOOP: tuple[Rule, ...] = (load_tool, stall, full_queue, uneven, waiting_for_slots)


def findings(facts: Facts, cell: CellResult, series: Series) -> tuple[Diagnosis, ...]:
    """Diagnoses of a valid closed-loop cell, the most important first; at least one."""
    rules = (*CLOSED_LOOP, *AT_ANY_LOAD, *FAILURES)
    candidates = [rule(facts, cell) for rule in rules]
    if not computes(facts):
        candidates += [shared(facts, cell, series), drift(facts), slow_first(facts)]
    diagnoses = [diagnosis for diagnosis in (*candidates, disturbance(facts)) if diagnosis]
    explained = tuple(kind for diagnosis in diagnoses for kind in diagnosis.explains)
    diagnoses = [diagnosis for diagnosis in diagnoses if not isinstance(diagnosis, explained)]
    many_failed = [
        kind for kind in diagnoses if isinstance(kind, Failures) and kind.share >= MANY_FAILED_SHARE
    ]
    if not many_failed and all(isinstance(diagnosis, Failures) for diagnosis in diagnoses):
        waits = series.requests_wait(facts) and not series.stood_still_alone(facts)
        diagnoses.append(without_cause(facts, cell, waits=waits))
    inconclusive = cell.verdict == "inconclusive"

    def order(diagnosis: Diagnosis) -> tuple[bool, int]:
        rank = RANK_OF_MANY if diagnosis in many_failed else diagnosis.rank
        return inconclusive and not isinstance(diagnosis, Disturbance), rank

    return tuple(sorted(diagnoses, key=order))


def findings_at_rate(facts: Facts, cell: CellResult) -> tuple[Finding, ...]:
    """Findings of a valid open-model cell: the reason for its verdict, then the diagnoses that do
    not depend on a law of the closed loop."""
    rules = FAILURES if cell.generator_bound else (*FAILURES, *AT_ANY_LOAD)
    candidates = (*(rule(facts, cell) for rule in rules), disturbance(facts))
    others = (diagnosis for diagnosis in candidates if diagnosis and diagnosis != cell.reason)
    return (cell.reason, *others)


def observed(cell: CellResult) -> frozenset[Observed]:
    """The observations over time that show the cell's diagnoses."""
    kinds = (diagnosis.seen_in for diagnosis in cell.findings if isinstance(diagnosis, Diagnosis))
    return frozenset(kind for kind in kinds if kind)
