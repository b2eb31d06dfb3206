"""Compares a report with the known truth; does no I/O.

"Inconclusive" is correct if the lab notes a pause of the machine, or with noise, if the measured
processes waited for a core for 5 % or more of the response time; but never for an app that only
sleeps, which is measured exactly even on a nearly full machine. A quiet run is judged as noisy if
other programs used a quarter of a core or more, or if the machine paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.diagnosis.laws import contradictions, differences, laws, premises
from tests.diagnosis.statement import (
    ALLOWED,
    EXCUSED,
    FALSE,
    MISSING,
    RIGHT,
    Statement,
    level_of,
    name_of,
)
from tests.diagnosis.truth import ALLOWED_WITH_NOISE, CODES, Scenario, Truth
from workerlab.analysis.facts import TrialData
from workerlab.analysis.stall import PauseDuringLoad
from workerlab.finding import Finding
from workerlab.model.result import Report, Result, TrialResult
from workerlab.report.values import text

DISTURBING_CORES = 0.25  # used by others
MIN_CORE_WAIT = 0.05  # share of the response time


def others_cores(result: TrialResult, cores: int) -> float:
    """Cores used by other programs and by other machines on the same host; 0 if unknown."""
    if not isinstance(result, Result):
        return 0.0
    waits, usage = result.core_wait, result.usage
    if waits is not None and waits.others_cores is not None:
        return waits.others_cores + (waits.steal_cores or 0.0)
    own_cores = (usage.server_cores or 0.0) + (usage.generator_cores or 0.0)
    return max(0.0, (usage.host_busy or 0.0) * cores - own_cores)


def judged(
    scenario: Scenario, report: Report, data: Sequence[TrialData], *, noise: bool
) -> tuple[Statement, ...]:
    """All statements of a run. `noise`: whether another program burned a core."""
    cores = int(str(report.environment.get("cores") or 1))
    raw = {trial.trial.key: trial for trial in data}
    statements: list[Statement] = []
    disturbed = False
    for result in report.cells:
        noisy = noise or others_cores(result, cores) >= DISTURBING_CORES or paused(result)
        disturbed = disturbed or noisy
        statements += cell_statements(scenario, result, noisy)
        statements += premises(scenario, result, noisy)
        statements += laws(scenario, result, raw[result.trial.key], noisy)
    statements += contradictions(scenario, report, disturbed)
    if scenario.identical:
        statements += differences(scenario, report, disturbed)
    for key in raw.keys() - {result.trial.key for result in report.cells}:
        statements.append(Statement(scenario.name, key, noise, "exit", "unfinished", FALSE))
    return tuple(statements)


# --- a cell -------------------------------------------------------------------------------------


def findings_of(result: TrialResult) -> dict[str, Finding]:
    """By code; an invalid cell has none."""
    if not isinstance(result, Result):
        return {}
    findings = (*((result.diagnosis,) if result.diagnosis else ()), *result.findings)
    return {finding.code: finding for finding in findings}


def allowed_with_noise(scenario: Scenario) -> frozenset[str]:
    """An app that sleeps is not affected by a full machine."""
    return ALLOWED_WITH_NOISE if scenario.sleeper else ALLOWED_WITH_NOISE | {"BusyMachine"}


def paused(result: TrialResult) -> bool:
    """According to the lab's observer, the only one that can know."""
    return any(isinstance(note, PauseDuringLoad) for note in result.notes)


def rightly_inconclusive(scenario: Scenario, result: TrialResult, noisy: bool) -> bool:
    if paused(result):
        return result.verdict == "inconclusive"
    if result.verdict != "inconclusive" or not noisy or scenario.sleeper:
        return False
    waits = result.core_wait if isinstance(result, Result) else None
    return waits is not None and waits.share + waits.stolen_share >= MIN_CORE_WAIT


def cell_statements(scenario: Scenario, result: TrialResult, noisy: bool) -> Iterator[Statement]:
    level, findings = level_of(result), findings_of(result)
    why = (result.diagnosis if isinstance(result, Result) else None) or result.reason
    truth, where = scenario.cells[level], name_of(result)
    excused = rightly_inconclusive(scenario, result, noisy)

    def state(kind: str, code: str, outcome: str, about: Finding | None = None) -> Statement:
        sentence = text(about or why)
        if about is None or kind == "verdict":
            sentence = f"[{result.verdict}] {sentence}"
        return Statement(scenario.name, where, noisy, kind, code, outcome, sentence)

    if excused:
        yield state("verdict", "inconclusive", RIGHT, result.reason)
    elif result.verdict in truth.verdicts:
        yield state("verdict", result.verdict, RIGHT, result.reason)
    else:
        yield state("verdict", result.verdict, FALSE, result.reason)
        yield state("verdict", "|".join(truth.verdicts), MISSING, result.reason)
    forbidden = truth.forbidden - (allowed_with_noise(scenario) if noisy else frozenset())
    yield from _findings(truth, findings, forbidden, excused, state)


def _findings(
    truth: Truth,
    findings: Mapping[str, Finding],
    forbidden: frozenset[str],
    excused: bool,
    state: Callable[..., Statement],
) -> Iterator[Statement]:
    required: set[str] = set()
    for must in truth.must:
        alternatives = must.split("|")
        required.update(alternatives)
        reported = [code for code in alternatives if code in findings]
        for code in reported:
            yield state("finding", code, RIGHT, findings[code])
        if not reported:
            yield state("finding", must, EXCUSED if excused else MISSING)
    for code in sorted(findings.keys() & CODES - required):
        yield state("finding", code, FALSE if code in forbidden else ALLOWED, findings[code])
