"""The cells of a sweep that meet a target, and the highest load at which each series meets it.

Errors are counted over all trials of a cell, because more requests give more evidence; response
times and throughput are judged launch by launch.

Some cells cannot decide a term because of a disturbance during their load (`why_undecided`,
`explaining_pause`):

    the load tool was the limit         the server got less load than planned, and responses waited
                                        in the tool: only throughput can be met, only errors can
                                        be missed
    other programs used the cores       a term that is met despite them is met; it is missed only if
                                        it would be missed without the time lost to them. That time
                                        is subtracted from all requests in a saturated cell, else
                                        from the fastest one, which waited least for a core
    the machine was paused              a time limit is missed only if it would be missed without
                                        the longest pause, or if the fastest request exceeds it
    a backlog grows as long as the      a time limit that is met would be missed in a longer load:
    load lasts (at a rate)              it is not shown to be met

A level meets a target if each of its valid trials does. A series meets it if some level does or, if
it has cells at a rate, some rate does: its closed-loop cells only serve to find the capacity, and
requests have to wait at the highest level.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Literal

from msgspec.structs import replace

from workerlab.analysis import stall
from workerlab.analysis.facts import Facts
from workerlab.analysis.load_tool import Certainty, tool_certainty
from workerlab.analysis.target import Requests, TermOutcome, TermResult, judge
from workerlab.analysis.trials import Trials, by_cell
from workerlab.finding import Answer, Finding, Note
from workerlab.model.plan import Cell
from workerlab.model.result import Label, Result, TrialResult
from workerlab.slo import Term

WORST_FIRST: tuple[TermResult, ...] = ("broken", "undecidable", "not shown")


# --- cells ----------------------------------------------------------------------------------------


def with_targets(
    terms: Sequence[Term], cells: Sequence[TrialResult], valid: Iterable[Facts]
) -> list[TrialResult]:
    """The cells, the valid ones with the outcome of each term. `valid`: their facts."""
    by_key = {facts.key: facts for facts in valid}
    groups = by_cell(cells, keep=lambda _: True)
    pooled = {cell: pooled_requests(trials, by_key) for cell, trials in groups.items()}

    def judged(cell: Result, facts: Facts) -> Result:
        own, of_all_trials = requests(facts, cell), pooled[cell.trial.cell]
        outcomes = (
            (term, judge(term, of_all_trials if term.kind == "errors" else own)) for term in terms
        )
        final = (decided_outcome(term, outcome, cell, own, facts) for term, outcome in outcomes)
        return replace(cell, target=tuple(final))

    return [
        judged(cell, by_key[cell.trial.key]) if isinstance(cell, Result) else cell for cell in cells
    ]


def requests(facts: Facts, cell: Result) -> Requests:
    """The requests of a trial: one by one if the load tool timed each, else as a summary."""
    measurement, failed = facts.measurement, facts.outcome.failed
    times_s: list[float] | None = None
    in_order: list[float] = []
    if measurement.timings:
        in_order = [
            inf if timing.cause is not None or timing.end_s is None else timing.end_s
            for timing in measurement.timings
        ]
        times_s = sorted(time_s for time_s in in_order if time_s < inf)
        failed = len(in_order) - len(times_s)
    elif measurement.responses_s and not failed:
        times_s = sorted(measurement.responses_s)
    return Requests(
        times_s=times_s,
        failed=failed,
        in_order=in_order,
        unsent=measurement.unsent or 0 if facts.open_model else 0,
        rps=cell.throughput_rps,
        rps_half=cell.throughput_half_rps or 0.0,
        summary=cell.response,
        succeeded=facts.outcome.successes,
    )


def pooled_requests(trials: Trials, facts: Mapping[str, Facts]) -> Requests:
    """Successes and failures of all trials of a cell."""
    parts = [requests(facts[cell.trial.key], cell) for cell in trials.valid]
    return Requests(
        failed=sum(part.failed for part in parts), succeeded=sum(part.successes for part in parts)
    )


# --- terms that a load cannot decide --------------------------------------------------------------


class ToolWasLimit(Finding):
    """{tool} {certainty} the limit, not the server"""

    tool: str
    certainty: Certainty = "is"


class CoresUsedByOthers(Finding):
    """up to {share:percent} of the response time was lost to other programs"""

    share: float


BACKLOG = Note("the backlog grew, and responses would take longer under a longer load")


def decided_outcome(
    term: Term, outcome: TermOutcome, cell: Result, own: Requests, facts: Facts
) -> TermOutcome:
    """The outcome; "not shown" with a reason if this load cannot decide the term."""
    if outcome.result == "not shown":
        return outcome
    why = why_undecided(term, outcome, cell, own) or explaining_pause(term, outcome, own, facts)
    return outcome if why is None else replace(outcome, result="not shown", why=why)


def why_undecided(term: Term, outcome: TermOutcome, cell: Result, own: Requests) -> Finding | None:
    """Why the load tool, a backlog or other programs leave the outcome open; None if none does."""
    met, missed, errors = outcome.met, outcome.result == "broken", term.kind == "errors"
    if cell.generator_bound and not (met if term.kind == "rps" else missed and errors):
        return ToolWasLimit(cell.trial.cell.tool, tool_certainty([cell.bound_reasons]))
    if met and term.kind == "time" and cell.trial.cell.rate and cell.verdict == "saturated":
        return BACKLOG
    wait = cell.core_wait
    if met or errors or wait is None or not wait.disturbed:
        return None
    if missed and cell.verdict == "saturated" and not met_without(term, outcome, wait.share_lost):
        return None
    fastest_s = own.times_s[0] if own.times_s and term.kind == "time" else None
    if missed and fastest_s is not None and not term.holds(fastest_s * (1 - wait.share_lost)):
        return None
    return CoresUsedByOthers(wait.share_lost)


def explaining_pause(
    term: Term, outcome: TermOutcome, own: Requests, facts: Facts
) -> Finding | None:
    """The pauses, if a time limit that is not met might be met without the longest one. (The
    interval of a throughput includes pauses.)"""
    pause, value_s = stall.noticeable_pauses(facts), outcome.value
    if outcome.met or term.kind != "time" or pause is None or value_s is None:
        return None
    fastest_s = own.times_s[0] if own.times_s else 0.0
    return pause if term.holds(max(fastest_s, value_s - pause.longest_s)) else None


def met_without(term: Term, outcome: TermOutcome, share: float) -> bool:
    """Whether the term would be met without the `share` of the time lost to other programs."""
    value = outcome.value
    if value is None:  # the time of a failed request
        return False
    return term.holds(value / (1 - share) if term.kind == "rps" else value * (1 - share))


# --- levels ---------------------------------------------------------------------------------------


class TargetOfCell(Finding):
    """{result:outcome}[[: {metrics:, }]]"""

    result: TermResult
    metrics: tuple[str, ...]  # of the terms with that result; () if all are met


def target_of(cell: TrialResult) -> TargetOfCell | None:
    """The worst result of a cell's terms; None without a target or if the cell is invalid."""
    if not (term_outcomes := outcomes(cell)):
        return None
    for result in WORST_FIRST:
        metrics = tuple(term.metric for term in term_outcomes if term.result == result)
        if metrics:
            return TargetOfCell(result, metrics)
    return TargetOfCell("met", ())


class LoadLevel(Finding):
    """[[{connections:# connection}]][[{share} of the capacity]][[{rate} requests/s]]
    [[ ({asked_rps:number} requests/s)]]"""

    connections: int | None = None
    share: str | None = None
    rate: str | None = None
    asked_rps: float | None = None  # the rate that the share amounts to


def load_level(cell: Cell, asked_rps: float | None = None) -> LoadLevel:
    if cell.rate is None:
        return LoadLevel(connections=cell.concurrency)
    if cell.rate.share is None:
        return LoadLevel(rate=cell.rate.label)
    return LoadLevel(share=cell.rate.label, asked_rps=asked_rps)


class TermsAtLevel(Finding):
    """At {level} {outcomes:; }."""

    level: LoadLevel
    outcomes: tuple[TermOutcome, ...]  # of the terms that are not met


class TermsBreak(Finding):
    """At {level} {terms:list} {number:is/are} missed[[ in {broken} of {trial_count} trials]]:
    {measured:; }."""

    level: LoadLevel
    terms: tuple[str, ...]
    number: int
    measured: tuple[str, ...]
    broken: int | None  # trials; None: there is only one
    trial_count: int


class TargetInTrial(Answer):
    """{level}[[ (trial {trial})]]: {outcomes:; }."""

    level: LoadLevel
    trial: int | None
    outcomes: tuple[TermOutcome, ...]


Axis = Literal["level", "rate"]
Keeps = Literal["meets", "is shown to meet", "does not meet", "is not shown to meet"]

HIGHEST_MEASURED = "the highest measured"


class TargetKept(Answer):
    """{name}: the highest {axis} that meets {target} is {highest}[[, {last}]].[[ {beyond: }]]"""

    name: Label
    target: str
    axis: Axis
    highest: LoadLevel
    last: str  # "" if a higher one was measured
    beyond: tuple[TermsAtLevel | TermsBreak, ...]


class TargetNotKept(Answer):
    """{name}: {levels} {keeps} {target}. {beyond: }"""

    name: Label
    target: str
    levels: str  # "no rate", "the only rate measured"
    axis: Axis
    keeps: Keeps
    beyond: tuple[TermsAtLevel | TermsBreak, ...]


SeriesTargets = tuple[TargetKept | TargetNotKept, ...]


def targets_of_series(
    cells: Sequence[TrialResult], name: Label, *, name_trials: bool
) -> SeriesTargets:
    """The findings on the levels and on the rates of a series, in this order; () without a
    target."""
    levels = by_cell(cells, keep=lambda cell: bool(cell.target)).values()
    axes: dict[Axis, list[Trials]] = {
        "level": [trials for trials in levels if trials.valid and trials.cell.rate is None],
        "rate": [trials for trials in levels if trials.valid and trials.cell.rate is not None],
    }
    return tuple(
        target_along(axis, levels, name, name_trials=name_trials)
        for axis, levels in axes.items()
        if levels
    )


def target_met(series: Collection[SeriesTargets]) -> bool | None:
    """Whether each series meets the target, at a rate if it has rates; a series without a valid
    cell does not. None without a target."""
    if not any(series):
        return None
    return all(targets and isinstance(targets[-1], TargetKept) for targets in series)


def target_along(
    axis: Axis, levels: Sequence[Trials], name: Label, *, name_trials: bool
) -> TargetKept | TargetNotKept:
    """The finding on the highest of these levels that meets the target, or that none does.
    `levels`: ascending, at least one."""
    met_indices = [i for i, trials in enumerate(levels) if not outcomes_at(trials, *WORST_FIRST)]
    above = levels[met_indices[-1] + 1 if met_indices else 0 :]
    cells = [cell for trials in levels for cell in trials.valid]
    common: dict[str, Any] = {
        "name": name,
        "target": ",".join(outcome.term for outcome in outcomes(cells[0])),
        "axis": axis,
        "beyond": tuple(findings_beyond(above)),
        "trials": tuple(cell.trial.key for cell in cells),
        "evidence": tuple(target_in_trial(cell, name_trials=name_trials) for cell in cells),
    }
    many, single = len(levels) > 1, f"the only {axis} measured"
    if met_indices:
        last = "" if above else HIGHEST_MEASURED if many else single
        return TargetKept(highest=level_of(levels[met_indices[-1]]), last=last, **common)
    missed = all(outcomes_at(trials, "broken") for trials in above)
    keeps: Keeps = "meets" if missed else "is shown to meet"
    if not many:
        keeps = "does not meet" if missed else "is not shown to meet"
    return TargetNotKept(levels=f"no {axis}" if many else single, keeps=keeps, **common)


def findings_beyond(levels: Iterable[Trials]) -> Iterator[TermsAtLevel | TermsBreak]:
    """Why the first of these levels does not meet the target; if that level is not shown to miss
    the target, also the first level above that misses it."""
    for index, trials in enumerate(levels):
        if missed := outcomes_at(trials, "broken").values():
            missed_count = sum(
                any(outcome.result == "broken" for outcome in outcomes(cell))
                for cell in trials.valid
            )
            yield TermsBreak(
                level=level_of(trials),
                terms=tuple(outcome.term for outcome in missed),
                number=len(missed),
                measured=tuple(outcome.measured for outcome in missed),
                broken=missed_count if len(trials.valid) > 1 else None,
                trial_count=len(trials.valid),
            )
            return
        if index == 0:
            failing = outcomes_at(trials, *WORST_FIRST)
            yield TermsAtLevel(level_of(trials), tuple(failing.values()))


def outcomes_at(trials: Trials, *results: TermResult) -> dict[str, TermOutcome]:
    """The first outcome of each term with one of these results, in the order of `results`."""
    worst: dict[str, TermOutcome] = {}
    for result in results:
        for cell in trials.valid:
            for outcome in outcomes(cell):
                if outcome.result == result:
                    worst.setdefault(outcome.term, outcome)
    return worst


def level_of(trials: Trials) -> LoadLevel:
    return load_level(trials.cell, trials.valid[0].asked_rps)


def target_in_trial(cell: Result, *, name_trials: bool) -> TargetInTrial:
    return TargetInTrial(
        level=load_level(cell.trial.cell, cell.asked_rps),
        trial=cell.trial.number if name_trials else None,
        outcomes=outcomes(cell),
        trials=(cell.trial.key,),
    )


def outcomes(cell: TrialResult) -> tuple[TermOutcome, ...]:
    """The outcome of each term; () without a target or if the cell is invalid."""
    target = cell.target if isinstance(cell, Result) else ()
    return tuple(outcome for outcome in target if isinstance(outcome, TermOutcome))
