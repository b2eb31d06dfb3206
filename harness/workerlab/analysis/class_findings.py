"""The findings of a sweep on each series: where throughput levels off and why, with the evidence.

The evidence consists of the diagnoses of each level, the cells at a rate compared with the closed
loop, the phases of loads, and two identities in ab's report.

Inconclusive cells do not show where throughput levels off, so their verdict and throughput are
ignored; the sentence names their levels. Disturbed cells do not show it either: if the most telling
cell is disturbed, the sentence only names the disturbance.

ApacheBench's two times per request follow from its other figures. Both identities are checked
within its rounding: it prints times in s or ms with three decimals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workerlab.analysis.cell_targets import load_level
from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.diagnosis.cpu import Disturbance, worst_disturbance
from workerlab.analysis.diagnosis.failing import Failures
from workerlab.analysis.knee import KneeDoubtful
from workerlab.analysis.load_tool import Certainty, tool_certainty
from workerlab.analysis.open_closed import comparisons
from workerlab.analysis.phases import PhaseOfLoad, has_ramp_or_drain, phase_finding
from workerlab.analysis.series import REACHED_SHARE
from workerlab.analysis.trials import by_level, conclusive, grouped, valid_results
from workerlab.finding import Answer, Finding, Findings
from workerlab.model.evidence import AbReport
from workerlab.model.result import ClassResult, Label, Phase, Result, TrialResult
from workerlab.numbers.units import counted

TIME_ROUNDING_S = 0.0006
TIME_PER_REQUEST_ROUNDING_S = 6e-7


class IdentityHolds(Finding):
    """holds"""


class IdentityBroken(Finding):
    """does not hold"""


IDENTITY_OUTCOMES: Mapping[bool, Finding] = {True: IdentityHolds(), False: IdentityBroken()}


class AbIdentities(Finding):
    """ab with {load}: time taken x concurrency = {time_taken_s:duration} x {concurrency} =
    {busy_s:duration}, time per request x requests = {time_per_request_s:duration} x {requests} =
    {requests_s:duration}: {mean}. Time taken / requests = {each_s:duration}, time per request
    across all = {time_per_request_across_s:duration}: {across}.[[ Its connection times (total) add
    up to {share:percent} of the first product.]]"""

    load: Label
    concurrency: int
    requests: int
    time_taken_s: float
    time_per_request_s: float
    time_per_request_across_s: float
    busy_s: float
    requests_s: float
    each_s: float
    mean: Finding  # whether the first identity holds
    across: Finding  # whether the second one does
    share: float | None  # of the first product


def identities(ab: AbReport, load: Label) -> AbIdentities | None:
    """Both identities, with the figures on either side in seconds. `share`: connection times /
    (concurrency x time taken), which is 1 if all connections were busy throughout. None if ab
    printed no times per request."""
    mean_s, across_s, total_s = (
        ab.time_per_request_s, ab.time_per_request_across_s, ab.times["total"].mean
    )  # fmt: skip
    if not ab.time_taken_s or mean_s is None or across_s is None:
        return None
    busy_s, requests_s = ab.time_taken_s * ab.concurrency, mean_s * ab.requests
    each_s = ab.time_taken_s / ab.requests
    rounding_s = TIME_ROUNDING_S * ab.concurrency + TIME_PER_REQUEST_ROUNDING_S * ab.requests
    across_rounding_s = TIME_ROUNDING_S / ab.requests + TIME_PER_REQUEST_ROUNDING_S
    return AbIdentities(
        load=load,
        concurrency=ab.concurrency,
        requests=ab.requests,
        time_taken_s=ab.time_taken_s,
        time_per_request_s=mean_s,
        time_per_request_across_s=across_s,
        busy_s=busy_s,
        requests_s=requests_s,
        each_s=each_s,
        mean=IDENTITY_OUTCOMES[abs(busy_s - requests_s) <= rounding_s],
        across=IDENTITY_OUTCOMES[abs(each_s - across_s) <= across_rounding_s],
        share=None if total_s is None else total_s * ab.requests / busy_s,
    )


MIN_EXPLAINED_SHARE = 0.5  # a reason's share of requests or time / the gap from knee to slots

Cells = Sequence[Result]


class NoValidCell(Answer):
    """{name}: no valid cell, so no result."""

    name: Label


class InconclusiveSeries(Answer):
    """{name}: {slots}; every cell[[ {of}]] is inconclusive: it is unknown where throughput
    levels off."""

    name: Label
    slots: str
    of: str


class DisturbedSeries(Answer):
    """{name}: {slots}; inconclusive: {disturbance.brief}."""

    name: Label
    slots: str
    disturbance: Disturbance


class SeriesLimits(Answer):
    """{name}: {slots}[[, knee at {knee:number}]][[, below the {slots_used} slots used ({because})]]
    [[: throughput levels off at {level_rps:number} req/s]]
    [[, saturated from {saturated_from:# connection} on]]
    [[, capacity {capacity_rps:number} req/s (95 % interval {low_rps:number} to {high_rps:number})]]
    [[, {tool} {certainty} the limit from {tool_limit_from:# connection} on]]
    [[, inconclusive at {inconclusive:list}]]
    [[, knee {knee_note}]].[[ {why.brief}]]"""

    name: Label
    slots: str
    knee: float | None
    knee_note: Finding | None  # why there is no knee
    slots_used: int | None
    because: str | None
    level_rps: float | None
    saturated_from: int | None
    capacity_rps: float | None
    low_rps: float | None
    high_rps: float | None
    tool: str
    certainty: Certainty | None  # None: the load tool is not the limit
    tool_limit_from: int | None
    inconclusive: tuple[str, ...]  # levels whose trials are all inconclusive
    why: Diagnosis | None  # of the most telling cell, if it is limited


def class_finding(
    group: ClassResult,
    cells: Sequence[TrialResult],
    phases: Mapping[str, tuple[Phase, ...]],
    *,
    name: Label,
) -> NoValidCell | InconclusiveSeries | DisturbedSeries | SeriesLimits:
    """The finding on a series, with evidence. `cells`: all of its cells; `phases`: by trial key."""
    valid = valid_results(cells)
    closed = [cell for cell in valid if cell.trial.cell.rate is None]
    phase_findings = (  # of loads that had a ramp-up or a drain
        PhasesOfCell(load_level(cell.trial.cell), tuple(map(phase_finding, cell_phases)))
        for cell in cells
        if has_ramp_or_drain(cell_phases := phases.get(cell.trial.key, ()))
    )
    ab_findings = (identities(cell.ab, load_level(cell.trial.cell)) for cell in closed if cell.ab)
    common: dict[str, Any] = {
        "name": name,
        "evidence": (
            *_diagnoses_of_levels(closed),
            *comparisons(cells),
            *phase_findings,
            *filter(None, ab_findings),
        ),
        "trials": tuple(cell.trial.key for cell in cells),
    }
    if (noise := _disturbance_of(group, closed)) is not None:
        return DisturbedSeries(**common, slots=_slots(group), disturbance=noise)
    if any(map(conclusive, closed)):
        return _limits(group, closed, common)
    if closed:
        at_rate = any(cell.trial.cell.rate is not None and conclusive(cell) for cell in valid)
        of = "of the closed loop" if at_rate else ""
        return InconclusiveSeries(**common, slots=_slots(group), of=of)
    return NoValidCell(**common)


def _disturbance_of(group: ClassResult, closed: Cells) -> Disturbance | None:
    """The worst disturbance, if it is why there is no knee: the most telling cell was disturbed."""
    disturbed = any(
        cell.trial.key == group.diagnosed_trial and cell.is_disturbed for cell in closed
    )
    if not disturbed or not isinstance(group.knee_note, KneeDoubtful):
        return None
    return worst_disturbance(cell.core_wait for cell in closed)


def findings_of(cell: Result) -> Findings:
    """The findings of a cell; only disturbance and failures if it was disturbed: then other
    diagnoses may describe effects of other programs, and their advice might not help."""
    if not cell.is_disturbed:
        return cell.findings
    return tuple(
        finding
        for finding in cell.findings
        if not isinstance(finding, Diagnosis) or isinstance(finding, Disturbance | Failures)
    )


def conclusions_of(cell: Result) -> Findings:
    """The findings of a cell, or else the reason for its verdict; if it is inconclusive, the reason
    comes first."""
    diagnosis = () if cell.diagnosis is None else (cell.diagnosis,)
    findings = findings_of(cell) or diagnosis or (cell.reason,)
    if cell.verdict != "inconclusive":
        return findings
    return tuple(dict.fromkeys((cell.reason, *findings)))


def _limits(group: ClassResult, closed: Cells, common: Mapping[str, Any]) -> SeriesLimits:
    """Slots, knee and capacity from the conclusive cells, and the diagnosis of the most telling one
    unless that was disturbed: disturbances are reported once for all cells."""
    cells, knee = list(filter(conclusive, closed)), _finite(group.knee)
    undisturbed = [cell for cell in cells if not cell.is_disturbed]
    with_verdict = [c for c in cells if not (c.core_wait and c.core_wait.precludes_verdict)]
    slots = max((cell.slots_measured for cell in cells), default=0)
    why_below = None
    if knee is not None and knee < REACHED_SHARE * slots:
        why_below = _why_below_slots(knee, slots, undisturbed)
    bounds = [cell.bound_reasons for cell in undisturbed]
    low_rps, high_rps = group.capacity_ci95 or (None, None)
    limiting = (
        cell.diagnosis
        for cell in cells
        if cell.trial.key == group.diagnosed_trial and _is_limited(cell) and not cell.is_disturbed
        and isinstance(cell.diagnosis, Diagnosis) and not isinstance(cell.diagnosis, Disturbance)
    )  # fmt: skip
    why = next(limiting, None)
    if why is not None and why_below is not None and why_below.rank < why.rank:
        why = why_below  # otherwise the sentence would give two causes
    return SeriesLimits(
        **common,
        slots=_slots(group),
        knee=None if knee is None else round(knee, 1),  # the second decimal is noise
        knee_note=group.knee_note if knee is None else None,
        slots_used=slots if why_below else None,
        because=why_below.below_slots if why_below else None,
        level_rps=None if knee is None else _finite(group.level_rps),
        saturated_from=_lowest(with_verdict, "saturated"),
        capacity_rps=_finite(group.capacity_rps) if group.capacity_ci95 else None,
        low_rps=low_rps,
        high_rps=high_rps,
        tool=group.tool,
        certainty=tool_certainty(bounds) if any(bounds) else None,
        tool_limit_from=None if knee is None else _lowest(undisturbed, "generator-bound"),
        inconclusive=_inconclusive_levels(closed),
        why=why,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _why_below_slots(knee: float, slots: int, cells: Cells) -> Diagnosis | None:
    """The diagnosis that explains why slots beyond the knee add nothing; None without one."""
    reasons = [
        diagnosis
        for cell in cells
        if cell.trial.cell.concurrency > knee
        for diagnosis in cell.findings
        if isinstance(diagnosis, Diagnosis) and diagnosis.below_slots
        and diagnosis.share >= MIN_EXPLAINED_SHARE * (1 - knee / slots)
    ]  # fmt: skip
    return min(reasons, key=lambda reason: reason.rank, default=None)


def _inconclusive_levels(cells: Iterable[Result]) -> tuple[str, ...]:
    """The levels whose trials are all inconclusive."""
    return tuple(
        str(level)
        for level, trials in sorted(by_level(cells).items())
        if not any(map(conclusive, trials))
    )


def _lowest(cells: Iterable[Result], verdict: str) -> int | None:
    """The lowest concurrency with this verdict."""
    return min((c.trial.cell.concurrency for c in cells if c.verdict == verdict), default=None)


def _slots(group: ClassResult) -> str:
    """The configured slots, and the most slots used at once if that differs."""
    configured, used = group.slots_configured, group.slots_measured
    slots = "unlimited slots" if group.worker_class.slots_known else "unknown number of slots"
    slots = slots if configured is None else counted(configured, "slot")
    return slots if used in (None, configured) else f"{slots}, at most {used} used"


def _is_limited(cell: Result) -> bool:
    """Whether a cell is saturated, limited by the load tool, or below its bound."""
    below_bound = cell.throughput_rps < REACHED_SHARE * (cell.bound_rps or 0.0)
    return cell.verdict in ("saturated", "generator-bound") or below_bound


# --- evidence -------------------------------------------------------------------------------------


class DiagnosesOfLevel(Finding):
    """At {load}: {diagnoses: }"""

    load: Label
    diagnoses: Findings


class InSomeTrials(Finding):
    """{diagnosis} (In {count} of {trials_of_level} trials.)"""

    diagnosis: Finding
    count: int
    trials_of_level: int


class PhasesOfCell(Finding):
    """Phases with {load}. {phases: }"""

    load: Label
    phases: tuple[PhaseOfLoad, ...]


def _diagnoses_of_levels(cells: Cells) -> Iterable[DiagnosesOfLevel]:
    """Each kind of diagnosis once per level, from the first trial that has it, with the number of
    trials that have it if not all do."""
    for trials in by_level(cells).values():
        all_diagnoses = (diagnosis for cell in trials for diagnosis in findings_of(cell))
        kinds = grouped(all_diagnoses, lambda diagnosis: diagnosis.code)
        diagnoses = tuple(
            first if len(rest) + 1 == len(trials)
            else InSomeTrials(first, count=len(rest) + 1, trials_of_level=len(trials))
            for first, *rest in kinds.values()
        )  # fmt: skip
        if diagnoses:
            yield DiagnosesOfLevel(load_level(trials[0].trial.cell), diagnoses)
