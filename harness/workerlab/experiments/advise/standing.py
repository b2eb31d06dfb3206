"""Whether a candidate meets the target at a rate: from launches that differ in server and schedule.

Promised is what the *next* launch will show, so the bound is that of a prediction, not of a mean:
with m and s the mean and standard deviation of the logarithms of n launches' values,

    exp(m + t(0.975, n - 1) * s * sqrt(1 + 1/n))            (Hahn & Meeker, Statistical Intervals)

is exceeded by one further launch in 40. An interval of the mean would be exceeded by one in two.

A target is broken where the mean itself is beyond it, or where not even many more launches could
bring the bound below it. Errors are pooled over the launches: 3000 clean requests show less than
0.1 % (the rule of three), fewer show nothing.
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
ALWAYS = 1.96  # standard deviations: what the bound comes to after many launches
FAR_BEYOND = 1.5  # times the limit: one launch is enough
ROOM = 1.4  # what a bound of LEAST launches adds to their mean where they differ by 7 %

TargetWord = Literal["met", "broken", "not shown yet", "undecidable"]


class TermBound(Finding):
    """{term}: {word}[[, {mean:{term.kind}} on average over {launches:# launch/launches}]]
    [[; the next one is predicted to stay within {bound:{term.kind}} (97.5 %)]][[; {why}]]."""

    term: Term
    word: TargetWord  # of the term alone
    launches: int
    mean: float | None = None  # geometric; of errors the share of all
    bound: float | None = None  # one in 40 further launches is beyond it; None: too few launches
    why: str | Finding | None = None


class Standing(Struct, frozen=True):
    """Of a candidate at a rate."""

    word: TargetWord
    bounds: tuple[TermBound, ...] = ()
    unshown: tuple[Finding, ...] = ()  # terms that too few requests show, which break nothing
    shown: tuple[Finding, ...] = ()  # errors that enough requests show to be few


def prediction_half(logs: Sequence[float]) -> float:
    """Half of the two-sided 95 % prediction interval of one further value."""
    n = len(logs)
    return student(n - 1) * stdev(logs) * math.sqrt(1 + 1 / n)


def bound_after(current: TermBound) -> float:
    """The bound after one more launch that changes neither mean nor deviation; infinite where there
    is none yet. With three launches, Student's factor is most of it."""
    if current.mean is None or current.bound is None:
        return math.inf
    n = current.launches
    less = student(n) * math.sqrt(1 + 1 / (n + 1)) / (student(n - 1) * math.sqrt(1 + 1 / n))
    return current.mean * math.pow(current.bound / current.mean, less)


def standing(
    launches: Sequence[CandidateLaunch], terms: Sequence[Term], also: Sequence[CandidateLaunch] = ()
) -> Standing:
    """`also`: further launches whose errors count, and nothing else."""
    if not launches:
        return Standing("not shown yet")
    together = pooled(launches)
    with_others = pooled([*launches, *also]) if also else together
    bounds = [_bound(launches, together, term) for term in terms if term.kind != "errors"]
    unshown: list[TermOutcome] = []
    shown: list[TermOutcome] = []
    for term in terms:
        if term.kind == "errors":
            outcome = judge(term, with_others)
            if outcome.result == "broken" and also:
                outcome = judge(term, together)  # what fails at higher rates breaks nothing here
            if outcome.result == "broken":
                share = together.failed / together.number if together.number else None
                counts = outcome.values["measured"]
                bounds.append(TermBound(term, "broken", len(launches), share, why=counts))
            else:
                (shown if outcome.result == "met" else unshown).append(outcome)
    words = {bound.word for bound in bounds}
    worst: tuple[TargetWord, ...] = ("broken", "undecidable", "not shown yet", "met")
    word = next(word for word in worst if word in words or word == "met")
    return Standing(word, tuple(bounds), tuple(unshown), tuple(shown))


def _bound(launches: Sequence[CandidateLaunch], together: Requests, term: Term) -> TermBound:
    """A term that is a time or a throughput."""
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
    on_a_step = outcome.result == "undecidable"  # chance decides on which side a launch comes out
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
    """A rate that is tried on the way up or down: each launch holds every term by its values, and
    their mean does with ROOM; or once there are enough their bound does. A bound that is not within
    the limit by then does not pass: the rate next to it is worth more than another launch. None:
    not known, or so close to the limit that the bound would hardly be within it."""
    if not launches:
        return None
    if len(launches) >= LEAST:
        return standing(launches, terms).word == "met"
    if not all(holds(launch, terms) for launch in launches):
        return False
    return True if all(_roomy(launches, term) for term in terms) else None


def _roomy(launches: Sequence[CandidateLaunch], term: Term) -> bool:
    """Whether the mean of launches that hold leaves ROOM; failures have none, they are counted."""
    if term.kind == "errors":
        return True
    values = [value_of(term.metric, launch.requests) for launch in launches]
    positive = [value for value in values if value is not None and value > 0]
    if len(positive) < len(values):
        return False
    mean = geometric_mean(positive)
    return term.holds(mean / ROOM if term.kind == "rps" else mean * ROOM)
