"""Whether a candidate meets the target at a rate: from launches that differ in server and schedule.

Promised is what the *next* launch will show, so the bound is that of a prediction, not of a mean:
with m and s the mean and standard deviation of the logarithms of n launches' values,

    exp(m + t(0.975, n - 1) * s * sqrt(1 + 1/n))            (Hahn & Meeker, Statistical Intervals)

is exceeded by one further launch in 40. An interval of the mean would be exceeded by one in two.

A target is broken where the mean itself is beyond it, or where not even many more launches could
bring the bound below it. Errors are pooled over the launches: 3000 clean requests show less than
0.1 % (the rule of three), fewer show nothing.
"""

import math
from collections.abc import Sequence
from statistics import fmean, geometric_mean, stdev
from typing import Literal

from msgspec import Struct

from workerlab.analysis.target import Requests, TermOutcome, judge, value_of
from workerlab.experiments.advise.study import Launch, holds, pooled
from workerlab.numbers.intervals import student
from workerlab.slo import Term

LEAST = 3  # launches for a bound
MOST = 8  # launches of a candidate at a rate
ALWAYS = 1.96  # standard deviations: what the bound comes to after many launches
FAR = 1.5  # times the limit: one launch is enough
ROOM = 1.4  # what a bound of LEAST launches adds to their mean where they differ by 7 %

Word = Literal["met", "broken", "open", "undecidable"]


class Bound(Struct, frozen=True):
    """Of one term over n launches: the geometric mean, and what one in 40 further launches would
    exceed (or fall below, where the term is a lower limit); None: too few launches. `word`: of the
    term alone. `note`: why it is broken or undecidable, where that needs a word."""

    term: str
    n: int
    mean: float | None
    bound: float | None
    word: Word
    note: TermOutcome | None = None


class Standing(Struct, frozen=True):
    """Of a candidate at a rate."""

    word: Word
    bounds: tuple[Bound, ...] = ()
    unshown: tuple[TermOutcome, ...] = ()  # terms that too few requests show, which break nothing
    shown: tuple[TermOutcome, ...] = ()  # errors that enough requests show to be few


def prediction_half(logs: Sequence[float]) -> float:
    """Half of the two-sided 95 % prediction interval of one further value."""
    n = len(logs)
    return student(n - 1) * stdev(logs) * math.sqrt(1 + 1 / n)


def bound_after(current: Bound) -> float:
    """The bound after one more launch that changes neither mean nor deviation; infinite where there
    is none yet. With three launches, Student's factor is most of it."""
    if current.mean is None or current.bound is None:
        return math.inf
    n = current.n
    less = student(n) * math.sqrt(1 + 1 / (n + 1)) / (student(n - 1) * math.sqrt(1 + 1 / n))
    return current.mean * math.pow(current.bound / current.mean, less)


def standing(
    launches: Sequence[Launch], terms: Sequence[Term], also: Sequence[Launch] = ()
) -> Standing:
    """`also`: further launches whose errors count, and nothing else."""
    if not launches:
        return Standing("open")
    together = pooled(launches)
    every = pooled([*launches, *also]) if also else together
    bounds = [_bound(launches, together, term) for term in terms if term.kind != "errors"]
    unshown: list[TermOutcome] = []
    shown: list[TermOutcome] = []
    for term in terms:
        if term.kind == "errors":
            outcome = judge(term, every)
            if outcome.result == "broken" and also:
                outcome = judge(term, together)  # what fails at higher rates breaks nothing here
            if outcome.result == "broken":
                share = together.failed / together.number if together.number else None
                bounds.append(Bound(str(term), len(launches), share, None, "broken", outcome))
            else:
                (shown if outcome.result == "met" else unshown).append(outcome)
    words = {one.word for one in bounds}
    worst: tuple[Word, ...] = ("broken", "undecidable", "open", "met")
    word = next(one for one in worst if one in words or one == "met")
    return Standing(word, tuple(bounds), tuple(unshown), tuple(shown))


def _bound(launches: Sequence[Launch], together: Requests, term: Term) -> Bound:
    """A term that is a time or a throughput."""
    values = [value_of(term.metric, launch.requests) for launch in launches]
    known = [one for one in values if one is not None and math.isfinite(one) and one > 0]
    if len(known) < len(values):
        return Bound(str(term), len(values), None, None, "broken")
    sign = -1.0 if term.kind == "rps" else 1.0
    logs = [sign * math.log(one) for one in known]
    limit, n, mean = sign * math.log(term.limit), len(logs), fmean(logs)
    centre = math.exp(sign * mean)
    outcome = judge(term, together)
    on_a_step = outcome.result == "undecidable"  # chance decides on which side a launch comes out
    if n < LEAST:
        beyond = mean > limit + math.log(FAR) or (n > 1 and min(logs) > limit)
        return Bound(str(term), n, centre, None, "broken" if beyond and not on_a_step else "open")
    high = mean + prediction_half(logs)
    bound = math.exp(sign * high)
    if on_a_step:
        word: Word = "open" if high <= limit and n < MOST else "undecidable"
        return Bound(str(term), n, centre, bound, word, outcome)
    if high <= limit:
        return Bound(str(term), n, centre, bound, "met")
    hopeless = n >= MOST or mean > limit or mean + ALWAYS * stdev(logs) > limit
    return Bound(str(term), n, centre, bound, "broken" if hopeless else "open")


def passes(launches: Sequence[Launch], terms: Sequence[Term]) -> bool | None:
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


def _roomy(launches: Sequence[Launch], term: Term) -> bool:
    """Whether the mean of launches that hold leaves ROOM; failures have none, they are counted."""
    if term.kind == "errors":
        return True
    values = [value_of(term.metric, launch.requests) for launch in launches]
    if not all(one is not None and one > 0 for one in values):
        return False
    mean = geometric_mean(one for one in values if one)
    return term.holds(mean / ROOM if term.kind == "rps" else mean * ROOM)
