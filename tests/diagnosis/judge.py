"""What a report says, held against what is known to be so. Pure.

"Inconclusive" is a right answer only beside noise, only where the processes measured waited for a
core for 5 % and more of the response, and never for an app that only sleeps: such a run is exact on
a machine that is nearly full; or where the lab notes that the machine stood still. Runs that were
meant to be quiet and were not, as others used a quarter of a core or more or the machine stood
still, are judged as noisy.
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
    place_of,
)
from tests.diagnosis.truth import BESIDE_NOISE, CODES, Scenario, Truth
from workerlab.analysis.facts import TrialData
from workerlab.analysis.stall import PauseDuringLoad
from workerlab.finding import Finding
from workerlab.model.result import Report, Result, TrialResult
from workerlab.report.values import text

DISTURBED = 0.25  # cores that others used
WAITED = 0.05  # of the response, for a core


def others_cores(result: TrialResult, cores: int) -> float:
    """That neither server nor load tool used, or another machine on the same host did; 0 where that
    is not known."""
    if not isinstance(result, Result):
        return 0.0
    waits, usage = result.core_wait, result.usage
    if waits is not None and waits.others_cores is not None:
        return waits.others_cores + (waits.steal_cores or 0.0)
    ours = (usage.server_cores or 0.0) + (usage.generator_cores or 0.0)
    return max(0.0, (usage.host_busy or 0.0) * cores - ours)


def judged(
    scenario: Scenario, report: Report, data: Sequence[TrialData], *, noise: bool
) -> tuple[Statement, ...]:
    """All statements of a run. `noise`: whether it was made beside a program that burns a core."""
    cores = int(str(report.environment.get("cores") or 1))
    raw = {trial.trial.key: trial for trial in data}
    statements: list[Statement] = []
    disturbed = False
    for result in report.cells:
        noisy = noise or others_cores(result, cores) >= DISTURBED or stood_still(result)
        disturbed = disturbed or noisy
        statements += of_cell(scenario, result, noisy)
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
    """Its findings by code; none if it is invalid."""
    if not isinstance(result, Result):
        return {}
    findings = (*((result.diagnosis,) if result.diagnosis else ()), *result.findings)
    return {each.code: each for each in findings}


def beside_noise(scenario: Scenario) -> frozenset[str]:
    """What may be so of any cell while others take the cores; that the machine is full is nothing
    to an app that sleeps."""
    return BESIDE_NOISE if scenario.sleeper else BESIDE_NOISE | {"BusyMachine"}


def stood_still(result: TrialResult) -> bool:
    """The observer's word: nothing else can know it."""
    return any(isinstance(note, PauseDuringLoad) for note in result.notes)


def rightly_inconclusive(scenario: Scenario, result: TrialResult, noisy: bool) -> bool:
    if stood_still(result):
        return result.verdict == "inconclusive"
    if result.verdict != "inconclusive" or not noisy or scenario.sleeper:
        return False
    waits = result.core_wait if isinstance(result, Result) else None
    return waits is not None and waits.share + waits.stolen_share >= WAITED


def of_cell(scenario: Scenario, result: TrialResult, noisy: bool) -> Iterator[Statement]:
    level, findings = level_of(result), findings_of(result)
    why = (result.diagnosis if isinstance(result, Result) else None) or result.reason
    truth, where = scenario.cells[level], place_of(result)
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
    forbidden = truth.forbidden - (beside_noise(scenario) if noisy else frozenset())
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
        options = must.split("|")
        required.update(options)
        given = [code for code in options if code in findings]
        for code in given:
            yield state("finding", code, RIGHT, findings[code])
        if not given:
            yield state("finding", must, EXCUSED if excused else MISSING)
    for code in sorted(findings.keys() & CODES - required):
        yield state("finding", code, FALSE if code in forbidden else ALLOWED, findings[code])
