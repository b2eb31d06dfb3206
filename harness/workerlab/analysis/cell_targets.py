"""Which cells of a sweep keep a target.

Errors are counted over all trials of a cell, since the most clean requests show most; response
times and throughput are judged launch by launch.

What a cell shows of the server is not more than its load allows (`_doubt`):

    the load tool was the limit         less was asked of the server than planned, and its answers
                                        waited in the tool: only throughput can be met, only errors
                                        can break a limit
    other programs had the cores        what is met in spite of them is met; what is broken, only if
                                        it would be without what the others took of the times: of
                                        all in a saturated cell, else of the fastest request, which
                                        waited least for a core
    the machine stood still             what times are broken, only those that would be without its
                                        longest pause, or by the fastest request
    a backlog grows as long as the      what is met is so only for as long as the load lasted
    load lasts (at a rate)
"""

from collections.abc import Iterable, Sequence
from math import inf

from msgspec.structs import replace

from workerlab.analysis import pauses
from workerlab.analysis.facts import Facts
from workerlab.analysis.target import Requests, judge, word
from workerlab.model import Cell, CellResult, Finding
from workerlab.slo import Term


def with_targets(
    terms: Sequence[Term], cells: Sequence[CellResult], valid: Iterable[Facts]
) -> list[CellResult]:
    """The same cells, the valid ones with what became of each term. `valid`: their facts."""
    facts = {one.key: one for one in valid}
    every = {
        cell.trial.key: requests(facts[cell.trial.key], cell)
        for cell in cells
        if cell.trial.key in facts
    }
    counts = _over_trials(cells, every)
    return [
        replace(
            cell, target=_outcomes(terms, cell, every[key], counts[cell.trial.cell], facts[key])
        )
        if (key := cell.trial.key) in every
        else cell
        for cell in cells
    ]


def requests(facts: Facts, cell: CellResult) -> Requests:
    """What became of them: one by one where the load tool timed each, else as it sums them up."""
    said, failed = facts.measurement, facts.outcome.failed
    times_s: list[float] | None = None
    in_order: list[float] = []
    if said.timings:
        in_order = [
            inf if one.cause is not None or one.end_s is None else one.end_s for one in said.timings
        ]
        times_s = sorted(time_s for time_s in in_order if time_s < inf)
        failed = len(in_order) - len(times_s)
    elif said.responses_s and not failed:
        times_s = sorted(said.responses_s)
    return Requests(
        times_s=times_s,
        failed=failed,
        in_order=in_order,
        unsent=said.unsent or 0 if facts.open_model else 0,
        rps=cell.throughput_rps,
        rps_half=cell.throughput_half_rps or 0.0,
        summary=cell.response,
        succeeded=facts.outcome.answered - facts.outcome.wrong,
    )


def _over_trials(cells: Iterable[CellResult], every: dict[str, Requests]) -> dict[Cell, Requests]:
    """Successes and failures of all trials of a cell."""
    found: dict[Cell, list[Requests]] = {}
    for cell in cells:
        if cell.trial.key in every:
            found.setdefault(cell.trial.cell, []).append(every[cell.trial.key])
    return {
        asked: Requests(failed=sum(r.failed for r in trials), succeeded=sum(r.good for r in trials))
        for asked, trials in found.items()
    }


def _outcomes(
    terms: Sequence[Term], cell: CellResult, own: Requests, counts: Requests, facts: Facts
) -> tuple[Finding, ...]:
    return tuple(
        _allowed(term, judge(term, counts if term.kind == "errors" else own), cell, own, facts)
        for term in terms
    )


def _allowed(
    term: Term, outcome: Finding, cell: CellResult, own: Requests, facts: Facts
) -> Finding:
    """The outcome, or that it is not shown, and why."""
    why = None
    if word(outcome) != "not_shown":
        why = _doubt(term, outcome, cell, own) or _paused(term, outcome, own, facts)
    if why is None:
        return outcome
    return Finding("target.not_shown", {**outcome.values, "why": why})


def _doubt(term: Term, outcome: Finding, cell: CellResult, own: Requests) -> Finding | None:
    met, broken = word(outcome) == "met", word(outcome) == "broken"
    if cell.generator_bound and not (met if term.kind == "rps" else broken and _errors(term)):
        return Finding("target.tool_was_limit", {"tool": cell.trial.cell.tool})
    if met and term.kind == "time" and cell.trial.cell.rate and cell.verdict == "saturated":
        return Finding("target.backlog")
    wait = cell.core_wait
    if met or _errors(term) or wait is None or not wait.doubtful:
        return None
    if broken and cell.verdict == "saturated" and not _holds_without(term, outcome, wait.taken):
        return None
    fastest_s = own.times_s[0] if own.times_s and term.kind == "time" else None
    if broken and fastest_s is not None and not term.holds(fastest_s * (1 - wait.taken)):
        return None
    return Finding("target.disturbed", {"share": wait.taken})


def _paused(term: Term, outcome: Finding, own: Requests, facts: Facts) -> Finding | None:
    """Where a time is not met, and may be without the longest pause. (The interval of a throughput
    contains what a pause took.)"""
    still, value_s = pauses.note(facts), outcome.values.get("value")
    if word(outcome) == "met" or term.kind != "time" or still is None or value_s is None:
        return None
    fastest_s = own.times_s[0] if own.times_s else 0.0
    without_s = max(fastest_s, value_s - still.values["longest_s"])
    return Finding("target.stood_still", still.values) if term.holds(without_s) else None


def _errors(term: Term) -> bool:
    return term.kind == "errors"


def _holds_without(term: Term, outcome: Finding, share: float) -> bool:
    """Whether the term would hold if everything were faster by what others took."""
    value: float | None = outcome.values.get("value")
    if value is None:  # of a request that failed
        return False
    return term.holds(value / (1 - share) if term.kind == "rps" else value * (1 - share))
