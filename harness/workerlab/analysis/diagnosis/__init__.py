"""Diagnoses of a valid cell: what limits it, and what to change.

    base     what all diagnoses have: sentence, rank, advice, and the diagnoses it explains
    cpu      limits of the load tool, the workers or the machine; disturbance by other programs
    loop     a blocked event loop, and the lines that block it
    service  a shared resource; service times that change during the load; failed requests
    slots    too few or idle slots, a full accept queue; or nothing waits

Each cause is a class, followed by its rule. All rules are applied, except those on service times if
the cell is CPU-bound. A class may explain others (`explains`): these are left out, as their advice
would be wrong. The one with the lowest `rank` is the cell's diagnosis; in an inconclusive cell, a
disturbance. If there are none but failures, `no_limit_found` adds one, unless many requests fail:
refused requests do not wait.
"""

from collections.abc import Callable

from workerlab.analysis.diagnosis.base import Diagnosis, ObservationKind
from workerlab.analysis.diagnosis.cpu import (
    Disturbance,
    busy_machine,
    busy_workers,
    disturbance,
    load_tool_limit,
)
from workerlab.analysis.diagnosis.loop import blocked_loop
from workerlab.analysis.diagnosis.service import (
    MANY_FAILED_SHARE,
    Failures,
    drift,
    failing,
    is_cpu_bound,
    shared,
    shedding,
    slow_first,
)
from workerlab.analysis.diagnosis.slots import (
    full_queue,
    idle_slots,
    no_limit_found,
    unevenly_dealt,
    waiting_for_slots,
)
from workerlab.analysis.facts import Facts
from workerlab.analysis.series import Series
from workerlab.finding import Finding
from workerlab.model import CellResult

Rules = tuple[Callable[[Facts, CellResult], Diagnosis | None], ...]
FAILURES: Rules = (shedding, failing)
AT_ANY_LOAD: Rules = (blocked_loop, busy_machine, busy_workers)
CLOSED_LOOP: Rules = (load_tool_limit, idle_slots, full_queue, unevenly_dealt, waiting_for_slots)
RANK_OF_MANY_FAILURES = 15  # after LoadToolIsLimit and IdleWhileClientsWait


def findings(facts: Facts, cell: CellResult, series: Series) -> tuple[Diagnosis, ...]:
    """Diagnoses of a valid closed-loop cell, the most important first; at least one."""
    rules = (*CLOSED_LOOP, *AT_ANY_LOAD, *FAILURES)
    candidates = [rule(facts, cell) for rule in rules]
    if not is_cpu_bound(facts):
        candidates += [shared(facts, cell, series), drift(facts), slow_first(facts)]
    diagnoses = [diagnosis for diagnosis in (*candidates, disturbance(facts)) if diagnosis]
    explained = tuple(kind for diagnosis in diagnoses for kind in diagnosis.explains)
    diagnoses = [diagnosis for diagnosis in diagnoses if not isinstance(diagnosis, explained)]
    failures = [diagnosis for diagnosis in diagnoses if isinstance(diagnosis, Failures)]
    many_failed = [failure for failure in failures if failure.share >= MANY_FAILED_SHARE]
    if len(failures) == len(diagnoses) and not many_failed:
        slower = series.requests_wait(facts) and not series.explained_by_pauses(facts)
        diagnoses.append(no_limit_found(facts, cell, slower=slower))
    inconclusive = cell.verdict == "inconclusive"

    def order(diagnosis: Diagnosis) -> tuple[bool, int]:
        rank = RANK_OF_MANY_FAILURES if diagnosis in many_failed else diagnosis.rank
        return inconclusive and not isinstance(diagnosis, Disturbance), rank

    return tuple(sorted(diagnoses, key=order))


def findings_at_rate(facts: Facts, cell: CellResult) -> tuple[Finding, ...]:
    """The reason for the verdict of a valid open-model cell, then the diagnoses that need no law of
    the closed loop: if the load tool was the limit, only failures and disturbance."""
    rules = FAILURES if cell.generator_bound else (*FAILURES, *AT_ANY_LOAD)
    candidates = (*(rule(facts, cell) for rule in rules), disturbance(facts))
    diagnoses = (diagnosis for diagnosis in candidates if diagnosis and diagnosis != cell.reason)
    return (cell.reason, *diagnoses)


def telling_observations(cell: CellResult) -> frozenset[ObservationKind]:
    """The kinds of observations that show the cell's diagnoses."""
    kinds = (diagnosis.seen_in for diagnosis in cell.findings if isinstance(diagnosis, Diagnosis))
    return frozenset(kind for kind in kinds if kind)
