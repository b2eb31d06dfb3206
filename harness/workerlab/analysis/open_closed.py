"""Compares a server's response times in the closed loop and in the open model.

closed   N clients; each sends its next request as soon as it gets a response
open     requests arrive at a rate; each is timed from the moment it was due

Loads are compared only over repeated trials: identical ones may differ by half or more, because the
kernel distributes connections at random. They differ if Welch's interval of the ratio lies beyond
10 %; the cause is given only if the time spent before the app shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from workerlab.analysis.open_model import ArrivalsRefused
from workerlab.analysis.trials import Trials, by_cell, conclusive, valid_results
from workerlab.finding import Answer, Finding
from workerlab.model.result import Result, TrialResult
from workerlab.numbers.intervals import TRIALS, Ratio
from workerlab.numbers.units import fill

SIMILAR_RESPONSE_RATIO = 1.10  # response times that differ by a smaller factor count as equal
LATE_SHARE_OF_RESPONSE = (
    0.25  # lag / mean response; at or above it, the load tool's lag is reported
)
MAX_LEVEL_DIFFERENCE = 0.02  # throughputs that differ by a smaller share count as one level
MIN_EXPLAINED_SHARE = 0.5  # of a difference


class OneTrialEach(Finding):
    """One trial of each, so no comparison: repeat with --trials {needed}."""

    needed: int


class TooFewConclusiveTrials(Finding):
    """Too few conclusive trials for an interval ({opened} open, {closed} closed), so no
    comparison."""

    opened: int
    closed: int


class Backlog(Finding):
    """Arrivals do not wait for responses: more requests arrived than were served, so the backlog
    grew throughout the load[[ (waits up to {longest_s:duration})]]. In the closed loop at
    most {clients:# request} can wait."""

    longest_s: float | None
    clients: int


class LoadToolLag(Finding):
    """{lag_share:percent} of the mean response is the load tool's own lag: {tool} sent requests
    {lag_s:duration} late on average, so this says little about the server."""

    tool: str
    lag_s: float
    lag_share: float


class ResponsesAgree(Finding):
    """They agree ({ratio.value:factor} times, 95 % interval {ratio.low:factor} to
    {ratio.high:factor})."""

    ratio: Ratio


class TooCloseToCall(Finding):
    """Too close to call ({ratio.value:factor} times, 95 % interval {ratio.low:factor} to
    {ratio.high:factor}; a difference counts from 10 %)."""

    ratio: Ratio


class ResponsesDiffer(Finding):
    """{longer}, responses take longer ({of}{ratio.value:factor} times, 95 % interval
    {ratio.low:factor} to {ratio.high:factor})[[: before the app they wait {wait_s:duration} on
    average, {shorter} {other_wait_s:duration}]]."""

    longer: str  # "Open" or "Closed"
    shorter: str
    of: str
    ratio: Ratio  # open over closed
    wait_s: float | None  # if the waits explain the difference
    other_wait_s: float | None


class OpenVerdict(Finding):
    """{reason}."""

    reason: Finding


class NoClosedCell(Finding):
    """95 % answered within {p95_s:duration}[[ (geometric mean of {launches} trials)]]; there is no
    conclusive closed cell to compare with."""

    p95_s: float
    launches: int | None  # None: one


class BesideClosed(Finding):
    """95 % answered within {p95_s:duration}; with {clients:# closed client} ({closed_rps:number}
    req/s), within {closed_p95_s:duration}[[ (geometric means of {launches} open trials)]]. {why}"""

    p95_s: float
    launches: int | None  # None: one
    clients: int
    closed_rps: float
    closed_p95_s: float
    why: Finding


class OpenLoad(Answer):
    """Open[[ at {share:percent} of what closed cells reached]][[, {asked_rps:number} req/s]]
    [[, {sent_rps:number} of them sent]][[ ({unsent} never sent, in all trials)]]:
    {outcome}"""

    share: float | None
    asked_rps: float | None
    sent_rps: float | None  # if not all were sent
    unsent: int | None
    outcome: OpenVerdict | NoClosedCell | BesideClosed


def comparisons(cells: Sequence[TrialResult]) -> Iterator[OpenLoad]:
    """The comparison of response times with the closed loop for each rate of a series."""
    for opened, closed in open_and_closed(cells):
        results = (*opened.valid, *(closed.valid if closed else ()))
        rate, unsent = opened.cell.rate, int(opened.total("at_rate.unsent") or 0)
        yield OpenLoad(
            share=rate.share if rate else None,
            asked_rps=opened.valid[0].asked_rps,
            sent_rps=opened.mean("at_rate.sent_rps") if unsent else None,
            unsent=unsent or None,
            outcome=outcome_of(opened, closed),
            trials=tuple(result.trial.key for result in results),
        )


def open_and_closed(cells: Sequence[TrialResult]) -> list[tuple[Trials, Trials | None]]:
    """The conclusive trials of each open cell, and their closed counterpart, if any."""
    return [
        (trials, counterpart(trials, cells))
        for trials in by_cell(cells, keep=conclusive).values()
        if trials.cell.rate is not None and trials.valid
    ]


def counterpart(opened: Trials, cells: Iterable[TrialResult]) -> Trials | None:
    """The closed cell of the same series with the nearest throughput; if the throughput of multiple
    cells is about equal, the one with the fewest connections. None without closed cells."""
    rps = opened.throughput_rps
    distances = [
        (abs(math.log(trials.throughput_rps) - math.log(rps)), trials)
        for trials in by_cell(cells, keep=conclusive).values()
        if trials.cell.rate is None and trials.cell.series == opened.cell.series
        if trials.throughput_rps and rps
    ]
    if not distances:
        return None
    limit = min(distance for distance, _ in distances) + MAX_LEVEL_DIFFERENCE
    near = [trials for distance, trials in distances if distance <= limit]
    return min(near, key=lambda trials: trials.cell.concurrency)


def outcome_of(opened: Trials, closed: Trials | None) -> OpenVerdict | NoClosedCell | BesideClosed:
    """The outcome of one rate, compared with its closed counterpart."""
    usable = tuple(result for result in opened.valid if result.verdict != "generator-bound")
    opened = replace(opened, valid=usable or opened.valid)
    first, p95_s = opened.valid[0], opened.geometric_mean("response.p95")
    # A server that refuses requests has no backlog, and serves few of them
    if first.verdict == "generator-bound" or isinstance(first.reason, ArrivalsRefused) or not p95_s:
        return OpenVerdict(first.reason)
    launches = len(opened.valid) if len(opened.valid) > 1 else None
    closed_p95_s = closed.geometric_mean("response.p95") if closed else None
    if closed is None or not closed_p95_s:
        return NoClosedCell(p95_s, launches)
    return BesideClosed(
        p95_s=p95_s,
        launches=launches,
        clients=closed.cell.concurrency,
        closed_rps=closed.throughput_rps or 0.0,
        closed_p95_s=closed_p95_s,
        why=why_different(opened, closed),
    )


def why_different(opened: Trials, closed: Trials) -> Finding:
    """A finding on whether response times differ and why, from the cells' own numbers."""
    if all(result.verdict == "saturated" for result in opened.valid):
        return Backlog(opened.largest("response.max") or None, closed.cell.concurrency)
    lag_s, mean_s = opened.mean("at_rate.lag.mean") or 0.0, opened.mean("response.mean") or 0.0
    if lag_s >= LATE_SHARE_OF_RESPONSE * mean_s > 0:
        return LoadToolLag(opened.cell.tool, lag_s, lag_s / mean_s)
    ratio = opened.ratio(closed, "response.p95")
    effect = ratio.effect(SIMILAR_RESPONSE_RATIO)
    if effect is None:
        return repeat_advice((*opened.valid, *closed.valid)) or TooFewConclusiveTrials(
            len(opened.valid), len(closed.valid)
        )
    if effect == "none":
        return ResponsesAgree(ratio)
    if effect == "chance":
        return TooCloseToCall(ratio)
    if effect == "more":
        return ResponsesDiffer("Open", "closed", "", ratio, **waits(opened, closed))
    return ResponsesDiffer("Closed", "open", "open: ", ratio, **waits(closed, opened))


def repeat_advice(cells: Iterable[TrialResult]) -> OneTrialEach | None:
    """Advice to repeat the trials; None if they are repeated."""
    repeated = any(cell.trial.number > 1 for cell in cells)
    return None if repeated else OneTrialEach(TRIALS)


def waits(longer: Trials, shorter: Trials) -> dict[str, Any]:
    """The mean waits before the app; both None unless they explain the difference."""
    waited_s = longer.difference(shorter, before_app_s)
    longer_s = longer.difference(shorter, "response.mean")
    if waited_s is None or longer_s is None or not waited_s >= MIN_EXPLAINED_SHARE * longer_s > 0:
        return {"wait_s": None, "other_wait_s": None}
    return {"wait_s": longer.mean(before_app_s), "other_wait_s": shorter.mean(before_app_s)}


def before_app_s(cell: Result) -> float | None:
    """Mean wait in accept queue and worker."""
    parts = (cell.breakdown.accept_queue_s, cell.breakdown.in_worker_s)
    return None if None in parts else sum(part or 0.0 for part in parts)


ARRIVALS = {"poisson": "at random (Poisson)", "even": "evenly spaced"}


def models_note(at_rate: Sequence[TrialResult], cells: Sequence[TrialResult]) -> str:
    """A note on both models. `at_rate`: the open cells; their kind of arrivals is named if it is
    the same for all. `cells`: those shown."""
    kinds = {cell.at_rate.arrivals for cell in valid_results(at_rate) if cell.at_rate is not None}
    values = {
        "arrivals": ARRIVALS[kinds.pop()] if len(kinds) == 1 else None,
        "one_trial": repeat_advice(cells),
    }
    return fill(
        "Closed: each client waits for a response before its next request, so a slow server slows"
        " down its own load. Open: requests arrive[[ {arrivals}]] whether or not earlier ones were"
        " answered, and are timed from the moment each was due.[[ {one_trial}]]",
        values,
    )
