"""What must hold of the numbers of any report, whatever the server: a law, a series without
contradictions, no differences between what is the same; and whether the app did its part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from tests.diagnosis.statement import FALSE, RIGHT, Statement, place_of
from tests.diagnosis.truth import Scenario
from workerlab.analysis.class_findings import SeriesLimits
from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.samples import NS
from workerlab.analysis.trials import valid_results
from workerlab.experiments.sweep.document import sweep_document
from workerlab.finding import Finding
from workerlab.model.plan import Cell
from workerlab.model.result import Report, Result, TrialResult
from workerlab.report.values import text

LITTLE = 0.05
KNEE = 0.05
DIFFERENCES = frozenset({"ResponsesDiffer"})


def premises(scenario: Scenario, result: TrialResult, noisy: bool) -> Iterator[Statement]:
    """Whether kept connections were dealt as the app was told to."""
    if not isinstance(result, Result):
        return
    quotas, kept = scenario.env.get("QUOTAS"), result.connections_per_worker
    if quotas and kept is not None:
        planned = sorted(share for word in quotas.split(",") if (share := int(word)))
        outcome = RIGHT if sorted(filter(None, kept.values())) == planned else FALSE
        where, sentence = place_of(result), f"dealt {kept}, asked for {quotas}"
        yield Statement(scenario.name, where, noisy, "premise", "dealt", outcome, sentence)


# --- laws ---------------------------------------------------------------------------------------


def laws(
    scenario: Scenario, result: TrialResult, data: TrialData, noisy: bool
) -> Iterator[Statement]:
    """Little (1961), of the whole load: requests in flight = throughput x mean response. While the
    machine stands still at either end of it the two are not of the same time, and in a short load
    a worker that waits for a core makes its ends others than the client's."""
    if not isinstance(result, Result):
        return
    requests, rps, mean_s = in_flight(data), result.whole_rps, mean_response_s(result, data)
    if not requests or not rps or not mean_s:
        return
    ratio = rps * mean_s / requests
    sentence = f"X R = {rps:.4g}/s * {mean_s:.4g} s = {rps * mean_s:.4g}; in flight {requests:.4g}"
    record, pauses = data.record, data.observations.pauses
    load_ns = (record.load_end_ns or 0) - (record.load_start_ns or 0) if record else 0
    still = sum(pause.to_ns - pause.from_ns for pause in pauses) / load_ns if load_ns > 0 else 0.0
    outcome = RIGHT if abs(ratio - 1) <= LITTLE + still + apart(data) else FALSE
    where = place_of(result)
    yield Statement(scenario.name, where, noisy, "law", "little", outcome, sentence)


def mean_response_s(result: Result, data: TrialData) -> float | None:
    """As the report has it, less the lone first request, which no throughput has in it."""
    timed, mean_s = data.measurement.timings if data.measurement else (), result.response.mean
    if mean_s is None or not data.lone_first or len(timed) < 2:
        return mean_s
    good = sum(timing.cause is None for timing in timed)
    return (mean_s * good - (timed[0].end_s or 0.0)) / max(1, good - 1)


def in_flight(data: TrialData) -> float | None:
    """On average from the first request that is not alone to the last answer, from each request as
    the client timed it; of successes, as throughput is. None where it does not time each."""
    timed = data.measurement.timings if data.measurement else ()
    ended = [timing for timing in timed[data.lone_first :] if timing.end_s is not None]
    if not ended:
        return None
    length_s = max(timing.start_s + (timing.end_s or 0.0) for timing in ended) - ended[0].start_s
    good = sum(timing.end_s or 0.0 for timing in ended if timing.cause is None)
    return good / length_s if length_s > 0 else None


def apart(data: TrialData) -> float:
    """By how much of the load the client's begins and ends at other times than the workers': the
    first request waits to be accepted, and a worker that has sent the last answer may wait for a
    core before it closes the span."""
    facts = data.facts
    if not isinstance(facts, Facts):
        return 0.0
    measured, spans = facts.measurement, facts.spans[data.lone_first :]
    timings = measured.timings[data.lone_first :]
    ends = [timing.start_s + timing.end_s for timing in timings if timing.end_s is not None]
    closes_ns = max((span.end_ns for span in spans if span.end_ns is not None), default=None)
    if measured.origin_ns is None or closes_ns is None or not ends:
        return 0.0
    opened_s = (min(span.start_ns for span in spans) - measured.origin_ns) / NS
    closed_s = (closes_ns - measured.origin_ns) / NS
    first_s, last_s = timings[0].start_s, max(ends)
    return (abs(opened_s - first_s) + abs(closed_s - last_s)) / (last_s - first_s)


# --- a series -----------------------------------------------------------------------------------


def contradictions(scenario: Scenario, report: Report, noise: bool) -> Iterator[Statement]:
    """More load cannot turn a saturated server into one below capacity, nor can a level beyond the
    knee be below it or one before the knee be saturated."""
    series: dict[Cell, list[TrialResult]] = defaultdict(list)
    for result in report.cells:
        if result.trial.cell.rate is None:
            series[result.trial.cell.series].append(result)
    for key, results in series.items():
        knee = next((group.knee for group in report.classes if group.series == key), None)
        findings = [
            *_order(results),
            *(_beyond(results, knee) if knee else ()),
            *_sentences(report),
        ]
        outcome = FALSE if findings else RIGHT
        for sentence in findings or [""]:
            where = f"{key.server.worker_class} by {key.tool}"
            yield Statement(
                scenario.name, where, noise, "contradiction", "series", outcome, sentence
            )


def _order(results: Sequence[TrialResult]) -> Iterator[str]:
    for cell, other in combinations(results, 2):
        few, many = sorted((cell, other), key=lambda cell: cell.trial.cell.concurrency)
        n, more = few.trial.cell.concurrency, many.trial.cell.concurrency
        if n < more and few.verdict == "saturated" and many.verdict == "below capacity":
            yield f"saturated at {n} and below capacity at {more}"
        if n == more and {few.verdict, many.verdict} == {"saturated", "below capacity"}:
            yield f"saturated and below capacity at {n}, in two trials"


def _beyond(results: Sequence[TrialResult], knee: float) -> Iterator[str]:
    for cell in results:
        n = cell.trial.cell.concurrency
        if cell.verdict == "below capacity" and n > (1 + KNEE) * knee:
            yield f"below capacity at {n}, with a knee at {knee:.3g}"
        if cell.verdict == "saturated" and n < (1 - KNEE) * knee:
            yield f"saturated at {n}, with a knee at {knee:.3g}"


def _sentences(report: Report) -> Iterator[str]:
    """What the sentence of a class must not say at once: that requests wait, and that more
    connections would show where they do; a throughput that no cell reports."""
    for finding in sweep_document(report).findings:
        if not isinstance(finding, SeriesLimits):
            continue
        note, level = finding.knee_note, finding.level_rps
        if finding.saturated_from and note and note.values.get("add"):
            yield text(finding)
        shown = [cell.throughput_rps for cell in valid_results(report.cells)]
        if level and not any(abs(rps / level - 1) <= LITTLE for rps in shown):
            yield text(finding)
        if finding.slots_used and not finding.because:
            yield text(finding)


# --- comparisons --------------------------------------------------------------------------------


def differences(scenario: Scenario, report: Report, noise: bool) -> Iterator[Statement]:
    """Of what differs in nothing. (That another tool gets more, too, is seen by its verdict.)"""
    findings = [finding for top in sweep_document(report).findings for finding in within(top)]
    claimed = [finding for finding in findings if finding.code in DIFFERENCES]
    outcome = FALSE if claimed else RIGHT
    for sentence in [text(finding) for finding in claimed] or [""]:
        yield Statement(scenario.name, "", noise, "comparison", "difference", outcome, sentence)


def within(finding: Finding) -> Iterator[Finding]:
    """It and all that it is made of."""
    yield finding
    inner = [*finding.values.values(), *finding.evidence]
    for value in inner:
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Finding):
                yield from within(part)
