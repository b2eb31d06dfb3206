"""Whether a candidate meets the target at a rate, from launches with fresh servers and schedules.

The result must hold for the *next* launch, so this uses a prediction bound, not a confidence bound
of the mean, which almost one launch in two may exceed. With m and s the mean and standard deviation
of the logarithms of n launches' values, one further launch in 40 exceeds

    exp(m + t(0.975, n - 1) * s * sqrt(1 + 1/n))            (Hahn & Meeker, Statistical Intervals)

A target is broken if the mean exceeds it, if the bound still does after MAX_LAUNCHES, or if it
would even after many more. Errors are pooled over the launches: it takes 3000 requests without one
to show a share below 0.1 % (rule of three).
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

MIN_LAUNCHES = 3  # for a bound
MAX_LAUNCHES = 8  # of a candidate at a rate
BOUND_Z = 1.96  # standard deviations from mean to bound after many launches
CLEARLY_BROKEN_RATIO = 1.5  # mean over limit: with more, a single launch breaks the target
HEADROOM_RATIO = 1.4  # bound over mean, of MIN_LAUNCHES with a standard deviation of 7 %

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
    """Half the width of the two-sided 95 % prediction interval of one further logarithm."""
    n = len(logs)
    return student(n - 1) * stdev(logs) * math.sqrt(1 + 1 / n)


def bound_after(current: TermBound, launches: int) -> float:
    """The bound once there are so many launches, if those to come change neither mean nor
    deviation; infinite if there is none yet. With three launches Student's t dominates it."""
    if current.mean is None or current.bound is None:
        return math.inf
    now, then = (student(n - 1) * math.sqrt(1 + 1 / n) for n in (current.launches, launches))
    return current.mean * math.pow(current.bound / current.mean, then / now)


def standing(
    launches: Sequence[CandidateLaunch],
    terms: Sequence[Term],
    at_other_rates: Sequence[CandidateLaunch] = (),
) -> Standing:
    """The standing from launches at one rate; of those `at_other_rates` only the errors count."""
    if not launches:
        return Standing("not shown yet")
    requests = pooled(launches)
    with_others = pooled([*launches, *at_other_rates]) if at_other_rates else requests
    bounds = [_bound(launches, requests, term) for term in terms if term.kind != "errors"]
    unshown: list[TermOutcome] = []
    shown: list[TermOutcome] = []
    for term in terms:
        if term.kind == "errors":
            outcome = judge(term, with_others)
            if outcome.result == "broken" and at_other_rates:
                outcome = judge(term, requests)  # errors at other rates do not break this one
            if outcome.result == "broken":
                share = requests.failed / requests.total if requests.total else None
                counts = outcome.values["measured"]
                bounds.append(TermBound(term, "broken", len(launches), share, why=counts))
            else:
                (shown if outcome.result == "met" else unshown).append(outcome)
    words = {bound.word for bound in bounds}
    worst_first: tuple[TargetWord, ...] = ("broken", "undecidable", "not shown yet", "met")
    word = next(word for word in worst_first if word in words or word == "met")
    return Standing(word, tuple(bounds), tuple(unshown), tuple(shown))


def _bound(launches: Sequence[CandidateLaunch], requests: Requests, term: Term) -> TermBound:
    """The bound of a term on a time or on throughput. `requests`: of all launches, pooled."""
    values = [value_of(term.metric, launch.requests) for launch in launches]
    positive = [value for value in values if value is not None and 0 < value < math.inf]
    n = len(values)
    if len(positive) < n:
        return TermBound(term, "broken", n)
    sign = -1.0 if term.kind == "rps" else 1.0
    logs = [sign * math.log(value) for value in positive]
    limit, mean = sign * math.log(term.limit), fmean(logs)
    centre = math.exp(sign * mean)
    outcome = judge(term, requests)
    on_a_step = outcome.result == "undecidable"  # a launch keeps or breaks the limit by chance
    if n < MIN_LAUNCHES:
        beyond = mean > limit + math.log(CLEARLY_BROKEN_RATIO) or (n > 1 and min(logs) > limit)
        broken = beyond and not on_a_step
        return TermBound(term, "broken" if broken else "not shown yet", n, centre)
    high = mean + prediction_half(logs)
    hopeless = n >= MAX_LAUNCHES or mean > limit or mean + BOUND_Z * stdev(logs) > limit
    if on_a_step:
        word: TargetWord = "not shown yet" if high <= limit and n < MAX_LAUNCHES else "undecidable"
    else:
        word = "met" if high <= limit else "broken" if hopeless else "not shown yet"
    why = outcome.values["why"] if on_a_step else None
    return TermBound(term, word, n, centre, math.exp(sign * high), why)


def passes(launches: Sequence[CandidateLaunch], terms: Sequence[Term]) -> bool | None:
    """Whether a rate tried on the way up or down passes. With fewer than MIN_LAUNCHES: False if one
    breaks a term, else True if their mean leaves HEADROOM_RATIO for the bound; None if it does not,
    or without launches. With more: whether they meet the target; otherwise trying the next rate is
    worth more than another launch."""
    if not launches:
        return None
    if len(launches) >= MIN_LAUNCHES:
        return standing(launches, terms).word == "met"
    if not all(holds(launch, terms) for launch in launches):
        return False
    return True if all(_has_headroom(launches, term) for term in terms) else None


def _has_headroom(launches: Sequence[CandidateLaunch], term: Term) -> bool:
    """Whether the mean of the launches leaves HEADROOM_RATIO; True for errors (pooled)."""
    if term.kind == "errors":
        return True
    values = [value_of(term.metric, launch.requests) for launch in launches]
    positive = [value for value in values if value is not None and value > 0]
    if len(positive) < len(values):
        return False
    mean = geometric_mean(positive)
    return term.holds(mean / HEADROOM_RATIO if term.kind == "rps" else mean * HEADROOM_RATIO)
