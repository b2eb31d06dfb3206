"""Diagnoses of a valid cell: its limits, and advice.

    base     the base class: sentence, rank, advice, rule, and the diagnoses that it explains
    slots    too few slots, idle slots, a full accept queue; or nothing waits
    shared   a shared resource
    drift    service times that change during the load
    failing  failed requests
    cpu      limits of the load tool, the workers or the machine; disturbance by other programs
    loop     a blocked event loop; `blocking` finds the lines that block it

Each cause is a class with its rule, and all rules are applied. A class may explain other diagnoses
(`explains`), which are omitted because their advice would be wrong. The cell's diagnosis is the one
with the lowest `rank`; in an inconclusive cell, a disturbance comes first. If none remains except
failures, `no_limit` adds one, unless many requests fail: refused requests do not wait.
"""

# Importing a module adds its rules to `Diagnosis.rules`
from workerlab.analysis.diagnosis import loop as loop
from workerlab.analysis.diagnosis.base import Diagnosis, ObservationKind
from workerlab.analysis.diagnosis.cpu import Disturbance
from workerlab.analysis.diagnosis.failing import MANY_FAILED_SHARE, Failures
from workerlab.analysis.diagnosis.slots import no_limit
from workerlab.analysis.facts import Facts
from workerlab.analysis.series import Series
from workerlab.finding import Findings
from workerlab.model.result import Result

RANK_OF_MANY_FAILURES = 15  # after LoadToolIsLimit and IdleWhileClientsWait


def findings(facts: Facts, cell: Result, series: Series) -> tuple[Diagnosis, ...]:
    """Diagnoses of a valid closed-loop cell, the most important first; at least one."""
    diagnoses = [
        diagnosis for kind in Diagnosis.rules if (diagnosis := kind.diagnose(facts, cell, series))
    ]
    explained = tuple(kind for diagnosis in diagnoses for kind in diagnosis.explains)
    diagnoses = [diagnosis for diagnosis in diagnoses if not isinstance(diagnosis, explained)]
    failures = [diagnosis for diagnosis in diagnoses if isinstance(diagnosis, Failures)]
    many_failed = [failure for failure in failures if failure.share >= MANY_FAILED_SHARE]
    if len(failures) == len(diagnoses) and not many_failed:
        slower = series.requests_wait(facts) and not series.explained_by_pauses(facts)
        diagnoses.append(no_limit(facts, cell, slower=slower))
    inconclusive = cell.verdict == "inconclusive"

    def order(diagnosis: Diagnosis) -> tuple[bool, int]:
        rank = RANK_OF_MANY_FAILURES if diagnosis in many_failed else diagnosis.rank
        return inconclusive and not isinstance(diagnosis, Disturbance), rank

    return tuple(sorted(diagnoses, key=order))


def findings_at_rate(facts: Facts, cell: Result) -> Findings:
    """The reason for the verdict of a valid open cell, then the diagnoses that need no law of the
    closed loop, failures first; only failures and disturbance if the load tool was the limit."""
    kinds = [
        kind
        for kind in Diagnosis.rules
        if kind.at_rate and (not cell.generator_bound or issubclass(kind, (Failures, Disturbance)))
    ]
    kinds.sort(key=lambda kind: (not issubclass(kind, Failures), kind.rank))
    diagnoses = (
        diagnosis
        for kind in kinds
        if (diagnosis := kind.diagnose(facts, cell, None)) and diagnosis != cell.reason
    )
    return (cell.reason, *diagnoses)


def supporting_observations(cell: Result) -> frozenset[ObservationKind]:
    """The kinds of observations that are evidence for the cell's diagnoses."""
    return frozenset(
        diagnosis.seen_in
        for diagnosis in cell.findings
        if isinstance(diagnosis, Diagnosis) and diagnosis.seen_in
    )
