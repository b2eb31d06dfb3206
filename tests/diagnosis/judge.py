"""What a report says, held against what is known to be so. Pure.

A Statement is one thing that was said, or that should have been: a verdict, a finding, a law that
the numbers must keep, a contradiction between cells. Its outcome:

    right     said, and so
    false     said, and not so
    missing   so, and not said
    excused   so, and not said, but the cell says that it is inconclusive, and rightly
    allowed   said; may be so or not

"Inconclusive" is a right answer only beside noise, only where the processes measured waited for a
core for 5 % and more of the response, and never for an app that only sleeps: such a run is exact on
a machine that is nearly full. Runs that were meant to be quiet and were not, as others used a
quarter of a core or more, are judged as noisy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from harness.analysis.facts import TrialData
from harness.model import Cell, CellResult, Finding, Report
from harness.report.document import of_sweep
from harness.report.messages import text
from tests.diagnosis.truth import BESIDE_NOISE, CODES, Scenario, Truth

DISTURBED = 0.25  # cores that others used
WAITED = 0.05  # of the response, for a core
LITTLE = 0.05
KNEE = 0.05
DIFFERENCES = frozenset({"compare.longer", "compare.shorter"})
FALSE, MISSING, RIGHT, EXCUSED, ALLOWED = "false", "missing", "right", "excused", "allowed"


class Statement(Struct, frozen=True):
    scenario: str
    where: str  # level or rate, and trial; or the series
    noisy: bool
    kind: str  # verdict, finding, premise, law, contradiction, comparison, exit
    code: str
    outcome: str
    sentence: str = ""

    @property
    def wrong(self) -> bool:
        return self.outcome in (FALSE, MISSING)


def level_of(result: CellResult) -> str:
    """As a Scenario names its cells."""
    rate = result.trial.cell.rate
    return str(result.trial.cell.concurrency) if rate is None else rate.label


def place_of(result: CellResult) -> str:
    rate = "" if result.trial.cell.rate is None else "/s"
    return f"{level_of(result)}{rate} by {result.trial.cell.tool}, trial {result.trial.number}"


def others_cores(result: CellResult, cores: int) -> float:
    """That neither server nor load tool used, or another machine on the same host did; 0 where that
    is not known."""
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
    found: list[Statement] = []
    disturbed = False
    for result in report.cells:
        noisy = noise or others_cores(result, cores) >= DISTURBED
        disturbed = disturbed or noisy
        found += of_cell(scenario, result, noisy)
        found += premises(scenario, result, noisy)
        found += laws(scenario, result, raw[result.trial.key], noisy)
    found += contradictions(scenario, report, disturbed)
    if scenario.identical:
        found += differences(scenario, report, disturbed)
    for key in raw.keys() - {result.trial.key for result in report.cells}:
        found.append(Statement(scenario.name, key, noise, "exit", "unfinished", FALSE))
    return tuple(found)


# --- a cell -------------------------------------------------------------------------------------


def said(result: CellResult) -> dict[str, Finding]:
    """Its findings by code, without their common prefix."""
    every = (*((result.diagnosis,) if result.diagnosis else ()), *result.findings)
    return {one.code.removeprefix("diagnosis."): one for one in every}


def beside_noise(scenario: Scenario) -> frozenset[str]:
    """What may be so of any cell while others take the cores; that the machine is full is nothing
    to an app that sleeps."""
    return BESIDE_NOISE if scenario.sleeper else BESIDE_NOISE | {"busy_machine"}


def rightly_inconclusive(scenario: Scenario, result: CellResult, noisy: bool) -> bool:
    if result.verdict != "inconclusive" or not noisy or scenario.sleeper:
        return False
    waits = result.core_wait
    return waits is not None and waits.share + waits.stolen_share >= WAITED


def of_cell(scenario: Scenario, result: CellResult, noisy: bool) -> Iterator[Statement]:
    level, findings = level_of(result), said(result)
    truth, where = scenario.cells[level], place_of(result)
    excused = rightly_inconclusive(scenario, result, noisy)

    def state(kind: str, code: str, outcome: str, about: Finding | None = None) -> Statement:
        sentence = text(about or result.diagnosis or result.reason)
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


def premises(scenario: Scenario, result: CellResult, noisy: bool) -> Iterator[Statement]:
    """Whether kept connections were dealt as the app was told to."""
    quotas, kept = scenario.env.get("QUOTAS"), result.connections_per_worker
    if quotas and kept is not None:
        asked = sorted(share for word in quotas.split(",") if (share := int(word)))
        outcome = RIGHT if sorted(filter(None, kept.values())) == asked else FALSE
        where, sentence = place_of(result), f"dealt {kept}, asked for {quotas}"
        yield Statement(scenario.name, where, noisy, "premise", "dealt", outcome, sentence)


# --- laws ---------------------------------------------------------------------------------------


def laws(
    scenario: Scenario, result: CellResult, data: TrialData, noisy: bool
) -> Iterator[Statement]:
    """Little (1961), of the whole load: requests in flight = throughput x mean response."""
    seen, rps, mean_s = in_flight(data), result.whole_rps, mean_response_s(result, data)
    if result.verdict == "invalid" or not seen or not rps or not mean_s:
        return
    ratio = rps * mean_s / seen
    sentence = f"X R = {rps:.4g}/s * {mean_s:.4g} s = {rps * mean_s:.4g}; in flight {seen:.4g}"
    outcome = RIGHT if abs(ratio - 1) <= LITTLE else FALSE
    where = place_of(result)
    yield Statement(scenario.name, where, noisy, "law", "little", outcome, sentence)


def mean_response_s(result: CellResult, data: TrialData) -> float | None:
    """As the report has it, less the lone first request, which no throughput has in it."""
    timed, mean_s = data.measurement.timings if data.measurement else (), result.response.mean
    if mean_s is None or not data.lone_first or len(timed) < 2:
        return mean_s
    good = sum(one.cause is None for one in timed)
    return (mean_s * good - (timed[0].end_s or 0.0)) / max(1, good - 1)


def in_flight(data: TrialData) -> float | None:
    """On average from the first request that is not alone to the last answer, from each request as
    the client timed it; of successes, as throughput is. None where it does not time each."""
    timed = data.measurement.timings if data.measurement else ()
    ended = [one for one in timed[data.lone_first :] if one.end_s is not None]
    if not ended:
        return None
    length_s = max(one.start_s + (one.end_s or 0.0) for one in ended) - ended[0].start_s
    good = sum(one.end_s or 0.0 for one in ended if one.cause is None)
    return good / length_s if length_s > 0 else None


# --- a series -----------------------------------------------------------------------------------


def contradictions(scenario: Scenario, report: Report, noise: bool) -> Iterator[Statement]:
    """More load cannot turn a saturated server into one below capacity, nor can a level beyond the
    knee be below it or one before the knee be saturated."""
    series: dict[Cell, list[CellResult]] = defaultdict(list)
    for result in report.cells:
        if result.trial.cell.rate is None:
            series[result.trial.cell.series].append(result)
    for key, results in series.items():
        knee = next((one.knee for one in report.classes if one.series == key), None)
        found = [*_order(results), *(_beyond(results, knee) if knee else ())]
        outcome = FALSE if found else RIGHT
        for sentence in found or [""]:
            where = f"{key.server.worker_class} by {key.tool}"
            yield Statement(
                scenario.name, where, noise, "contradiction", "series", outcome, sentence
            )


def _order(results: Sequence[CellResult]) -> Iterator[str]:
    for one, other in combinations(results, 2):
        few, many = sorted((one, other), key=lambda cell: cell.trial.cell.concurrency)
        n, more = few.trial.cell.concurrency, many.trial.cell.concurrency
        if n < more and few.verdict == "saturated" and many.verdict == "below capacity":
            yield f"saturated at {n} and below capacity at {more}"
        if n == more and {few.verdict, many.verdict} == {"saturated", "below capacity"}:
            yield f"saturated and below capacity at {n}, in two trials"


def _beyond(results: Sequence[CellResult], knee: float) -> Iterator[str]:
    for one in results:
        n = one.trial.cell.concurrency
        if one.verdict == "below capacity" and n > (1 + KNEE) * knee:
            yield f"below capacity at {n}, with a knee at {knee:.3g}"
        if one.verdict == "saturated" and n < (1 - KNEE) * knee:
            yield f"saturated at {n}, with a knee at {knee:.3g}"


# --- comparisons --------------------------------------------------------------------------------


def differences(scenario: Scenario, report: Report, noise: bool) -> Iterator[Statement]:
    """Of what differs in nothing. (That another tool gets more, too, is seen by its verdict.)"""
    found = [one for top in of_sweep(report).findings for one in within(top)]
    claimed = [one for one in found if one.code in DIFFERENCES]
    outcome = FALSE if claimed else RIGHT
    for sentence in [text(one) for one in claimed] or [""]:
        yield Statement(scenario.name, "", noise, "comparison", "difference", outcome, sentence)


def within(finding: Finding) -> Iterator[Finding]:
    """It and all that it is made of."""
    yield finding
    inner = [*finding.values.values(), *finding.evidence]
    for value in inner:
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Finding):
                yield from within(one)
