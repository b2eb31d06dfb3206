"""Whether a candidate meets the target at a rate, from launches with fresh servers and schedules.

The result must hold for the *next* launch, so this uses a prediction bound, not a confidence bound
of the mean, which almost one launch in two may exceed. With m and s the mean and standard deviation
of the logarithms of n launches' values, one further launch in 40 exceeds

    exp(m + t(0.975, n - 1) * s * sqrt(1 + 1/n))            (Hahn & Meeker, Statistical Intervals)

A target is broken if the mean exceeds it, or if the bound would exceed it even after many more
launches. Errors are pooled over the launches: 3000 requests without one show a share below 0.1 %
(rule of three); fewer show nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, geometric_mean, stdev
from typing import Literal

from msgspec import Struct

from workerlab.analysis.target import Requests, TermOutcome, judge, value_of
from workerlab.experiments.advise.study import CandidateLaunch, holds, pooled
from workerlab.finding import Finding
from workerlab.numbers.intervals import student
from workerlab.slo import Term

LEAST = 3  # launches for a bound
MAX_LAUNCHES = 8  # of a candidate at a rate
ALWAYS = 1.96  # standard deviations from mean to bound after many launches
FAR_BEYOND = 1.5  # times the limit: a mean above it is broken after a single launch
ROOM = 1.4  # bound over mean for LEAST launches with a standard deviation of 7 %

TargetWord = Literal["met", "broken", "not shown yet", "undecidable"]


class TermBound(Finding):
    """{term}: {word}[[, {mean:{term.kind}} on average over {launches:# launch/launches}]]
    [[; the next one is predicted to stay within {bound:{term.kind}} (97.5 %)]][[; {why}]]."""

    term: Term
    word: TargetWord  # of the term alone
    launches: int
    mean: float | None = None  # geometric; of errors: their share of all requests
    bound: float | None = None  # exceeded by one launch in 40; None: too few launches
    why: str | Finding | None = None


class Standing(Struct, frozen=True):
    """Whether a candidate meets the target at a rate."""

    word: TargetWord
    bounds: tuple[TermBound, ...] = ()
    unshown: tuple[Finding, ...] = ()  # errors: too few requests for a verdict, not broken
    shown: tuple[Finding, ...] = ()  # errors: met


def prediction_half(logs: Sequence[float]) -> float:
    """Half the width of the two-sided 95 % prediction interval of one further value."""
    n = len(logs)
    return student(n - 1) * stdev(logs) * math.sqrt(1 + 1 / n)


def bound_after(current: TermBound) -> float:
    """The bound after one more launch that changes neither mean nor deviation; infinite if there is
    none yet. With three launches Student's t dominates the bound."""
    if current.mean is None or current.bound is None:
        return math.inf
    n = current.launches
    exponent = student(n) * math.sqrt(1 + 1 / (n + 1)) / (student(n - 1) * math.sqrt(1 + 1 / n))
    return current.mean * math.pow(current.bound / current.mean, exponent)


def standing(
    launches: Sequence[CandidateLaunch], terms: Sequence[Term], also: Sequence[CandidateLaunch] = ()
) -> Standing:
    """The standing from launches at one rate. `also`: at other rates, only for their errors."""
    if not launches:
        return Standing("not shown yet")
    requests = pooled(launches)
    with_others = pooled([*launches, *also]) if also else requests
    bounds = [_bound(launches, requests, term) for term in terms if term.kind != "errors"]
    unshown: list[TermOutcome] = []
    shown: list[TermOutcome] = []
    for term in terms:
        if term.kind == "errors":
            outcome = judge(term, with_others)
            if outcome.result == "broken" and also:
                outcome = judge(term, requests)  # errors at higher rates do not break this one
            if outcome.result == "broken":
                share = requests.failed / requests.number if requests.number else None
                counts = outcome.values["measured"]
                bounds.append(TermBound(term, "broken", len(launches), share, why=counts))
            else:
                (shown if outcome.result == "met" else unshown).append(outcome)
    words = {bound.word for bound in bounds}
    worst: tuple[TargetWord, ...] = ("broken", "undecidable", "not shown yet", "met")
    word = next(word for word in worst if word in words or word == "met")
    return Standing(word, tuple(bounds), tuple(unshown), tuple(shown))


def _bound(launches: Sequence[CandidateLaunch], together: Requests, term: Term) -> TermBound:
    """The bound of a term on a time or on throughput."""
    values = [value_of(term.metric, launch.requests) for launch in launches]
    positive = [value for value in values if value is not None and 0 < value < math.inf]
    n = len(values)
    if len(positive) < n:
        return TermBound(term, "broken", n)
    sign = -1.0 if term.kind == "rps" else 1.0
    logs = [sign * math.log(value) for value in positive]
    limit, mean = sign * math.log(term.limit), fmean(logs)
    centre = math.exp(sign * mean)
    outcome = judge(term, together)
    on_a_step = outcome.result == "undecidable"  # a launch keeps or breaks the limit by chance
    if n < LEAST:
        beyond = mean > limit + math.log(FAR_BEYOND) or (n > 1 and min(logs) > limit)
        broken = beyond and not on_a_step
        return TermBound(term, "broken" if broken else "not shown yet", n, centre)
    high = mean + prediction_half(logs)
    hopeless = n >= MAX_LAUNCHES or mean > limit or mean + ALWAYS * stdev(logs) > limit
    if on_a_step:
        word: TargetWord = "not shown yet" if high <= limit and n < MAX_LAUNCHES else "undecidable"
    else:
        word = "met" if high <= limit else "broken" if hopeless else "not shown yet"
    why = outcome.values["why"] if on_a_step else None
    return TermBound(term, word, n, centre, math.exp(sign * high), why)


def passes(launches: Sequence[CandidateLaunch], terms: Sequence[Term]) -> bool | None:
    """Whether a rate tried on the way up or down passes. With fewer than LEAST launches: each holds
    every term, and their mean holds with ROOM to spare. With more: their bound is within the limit;
    otherwise the rate fails, since trying the next rate is worth more than another launch. None
    without launches, or if the mean leaves too little ROOM for the bound."""
    if not launches:
        return None
    if len(launches) >= LEAST:
        return standing(launches, terms).word == "met"
    if not all(holds(launch, terms) for launch in launches):
        return False
    return True if all(_roomy(launches, term) for term in terms) else None


def _roomy(launches: Sequence[CandidateLaunch], term: Term) -> bool:
    """Whether the mean of the launches leaves ROOM to the limit; true for errors (pooled)."""
    if term.kind == "errors":
        return True
    values = [value_of(term.metric, launch.requests) for launch in launches]
    positive = [value for value in values if value is not None and value > 0]
    if len(positive) < len(values):
        return False
    mean = geometric_mean(positive)
    return term.holds(mean / ROOM if term.kind == "rps" else mean * ROOM)
