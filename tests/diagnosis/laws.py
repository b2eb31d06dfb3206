"""Checks of any report, whatever the server: Little's law, no contradictions within a series, no
differences between identical servers; and whether the app distributed connections as planned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from tests.diagnosis.statement import FALSE, RIGHT, Statement, name_of
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

TOLERANCE = 0.05


def premises(scenario: Scenario, result: TrialResult, noisy: bool) -> Iterator[Statement]:
    """Whether the app distributed kept-alive connections as configured."""
    if not isinstance(result, Result):
        return
    quotas, connections = scenario.env.get("QUOTAS"), result.connections_per_worker
    if quotas and connections is not None:
        planned = sorted(share for word in quotas.split(",") if (share := int(word)))
        outcome = RIGHT if sorted(filter(None, connections.values())) == planned else FALSE
        where, sentence = name_of(result), f"distributed {connections}, configured {quotas}"
        yield Statement(scenario.name, where, noisy, "premise", "dealt", outcome, sentence)


# --- laws ---------------------------------------------------------------------------------------


def laws(
    scenario: Scenario, result: TrialResult, data: TrialData, noisy: bool
) -> Iterator[Statement]:
    """Little (1961) over the whole load: requests in flight = throughput x mean response. Pauses at
    either end, and differences between the client's and the workers' ends of a short load, make the
    two sides refer to different periods; the tolerance includes them."""
    if not isinstance(result, Result):
        return
    requests, rps, mean_s = in_flight(data), result.whole_rps, mean_response_s(result, data)
    if not requests or not rps or not mean_s:
        return
    ratio = rps * mean_s / requests
    sentence = f"X R = {rps:.4g}/s * {mean_s:.4g} s = {rps * mean_s:.4g}; in flight {requests:.4g}"
    record, pauses = data.record, data.observations.pauses
    load_ns = (record.load_end_ns or 0) - (record.load_start_ns or 0) if record else 0
    paused_ns = sum(pause.to_ns - pause.from_ns for pause in pauses)
    paused_share = paused_ns / load_ns if load_ns > 0 else 0.0
    tolerance = TOLERANCE + paused_share + share_between_ends(data)
    outcome = RIGHT if abs(ratio - 1) <= tolerance else FALSE
    yield Statement(scenario.name, name_of(result), noisy, "law", "little", outcome, sentence)


def mean_response_s(result: Result, data: TrialData) -> float | None:
    """The reported mean without the lone first request, which throughput excludes."""
    timings, mean_s = data.measurement.timings if data.measurement else (), result.response.mean
    if mean_s is None or not data.lone_first or len(timings) < 2:
        return mean_s
    successes = sum(timing.cause is None for timing in timings)
    return (mean_s * successes - (timings[0].end_s or 0.0)) / max(1, successes - 1)


def in_flight(data: TrialData) -> float | None:
    """The mean number of successful requests in flight, from the first request that is not alone to
    the last answer, by the client's times; None if the client does not time each request."""
    timings = data.measurement.timings if data.measurement else ()
    ended = [timing for timing in timings[data.lone_first :] if timing.end_s is not None]
    if not ended:
        return None
    length_s = max(timing.start_s + (timing.end_s or 0.0) for timing in ended) - ended[0].start_s
    sum_s = sum(timing.end_s or 0.0 for timing in ended if timing.cause is None)
    return sum_s / length_s if length_s > 0 else None


def share_between_ends(data: TrialData) -> float:
    """The time between the client's and the workers' ends of the load, as a share of it: the first
    request waits to be accepted, and a worker that has sent the last answer may wait for a core
    before it closes the span."""
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
    """More load cannot turn a saturated server into one below capacity; no level above the knee is
    below capacity, and none below it is saturated."""
    series: dict[Cell, list[TrialResult]] = defaultdict(list)
    for result in report.cells:
        if result.trial.cell.rate is None:
            series[result.trial.cell.series].append(result)
    for key, results in series.items():
        knee = next((group.knee for group in report.classes if group.series == key), None)
        sentences = [*_between_levels(results), *_within_sentences(report)]
        if knee:
            sentences += _with_knee(results, knee)
        where, outcome = f"{key.server.worker_class} by {key.tool}", FALSE if sentences else RIGHT
        for sentence in sentences or [""]:
            yield Statement(
                scenario.name, where, noise, "contradiction", "series", outcome, sentence
            )


def _between_levels(results: Sequence[TrialResult]) -> Iterator[str]:
    for pair in combinations(results, 2):
        low, high = sorted(pair, key=lambda result: result.trial.cell.concurrency)
        few, many = low.trial.cell.concurrency, high.trial.cell.concurrency
        if few < many and low.verdict == "saturated" and high.verdict == "below capacity":
            yield f"saturated at {few} and below capacity at {many}"
        if few == many and {low.verdict, high.verdict} == {"saturated", "below capacity"}:
            yield f"saturated and below capacity at {few}, in two trials"


def _with_knee(results: Sequence[TrialResult], knee: float) -> Iterator[str]:
    for result in results:
        n = result.trial.cell.concurrency
        if result.verdict == "below capacity" and n > (1 + TOLERANCE) * knee:
            yield f"below capacity at {n}, with a knee at {knee:.3g}"
        if result.verdict == "saturated" and n < (1 - TOLERANCE) * knee:
            yield f"saturated at {n}, with a knee at {knee:.3g}"


def _within_sentences(report: Report) -> Iterator[str]:
    """Sentences about a class that say that requests wait and also that more connections would show
    where they do, or that state a throughput that no cell reports."""
    for finding in sweep_document(report).findings:
        if not isinstance(finding, SeriesLimits):
            continue
        note, level_rps = finding.knee_note, finding.level_rps
        if finding.saturated_from and note and note.values.get("add"):
            yield text(finding)
        all_rps = [result.throughput_rps for result in valid_results(report.cells)]
        if level_rps and not any(abs(rps / level_rps - 1) <= TOLERANCE for rps in all_rps):
            yield text(finding)
        if finding.slots_used and not finding.because:
            yield text(finding)


# --- comparisons --------------------------------------------------------------------------------


def differences(scenario: Scenario, report: Report, noise: bool) -> Iterator[Statement]:
    """Reported differences between identical servers. If one load tool achieves more than another,
    their verdicts show it."""
    findings = [part for finding in sweep_document(report).findings for part in parts_of(finding)]
    reported = [text(finding) for finding in findings if finding.code == "ResponsesDiffer"]
    outcome = FALSE if reported else RIGHT
    for sentence in reported or [""]:
        yield Statement(scenario.name, "", noise, "comparison", "difference", outcome, sentence)


def parts_of(finding: Finding) -> Iterator[Finding]:
    """The finding and, recursively, those in its values and evidence."""
    yield finding
    for value in (*finding.values.values(), *finding.evidence):
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Finding):
                yield from parts_of(part)
