"""Whether a candidate meets the target at a rate, from launches with fresh servers and schedules.

The result must hold for the *next* launch, so this uses a prediction bound, not a confidence bound
of the mean, which almost one launch in two may exceed. With m and s the mean and standard deviation
of the logarithms of n launches' values, a share p of further launches exceeds

    exp(m + t(1 - p, n - 1) * s * sqrt(1 + 1/n))            (Hahn & Meeker, Statistical Intervals)

At the target's rate p is 1 in 40; at the highest rate 1 in 20, since no server should run there. A
target is missed ("broken") if the mean exceeds the limit, if the bound still does after
MAX_LAUNCHES, or if it would even after many more. Errors are pooled over the launches: it takes
3000 requests without a failure to show a share below 0.1 % (rule of three).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import Literal, get_args

from msgspec import Struct

from workerlab.analysis.target import Requests, TermOutcome, judge, value_of
from workerlab.experiments.advise.study import CandidateLaunch, meets_target, pooled
from workerlab.finding import Finding
from workerlab.numbers.intervals import two_sided_t
from workerlab.slo import Term

MIN_LAUNCHES = 3  # for a bound
MAX_LAUNCHES = 8  # of a candidate at a rate
CLEAR_MISS_RATIO = 1.5  # mean over limit: above it, a single launch shows the target to be missed
TARGET_BEYOND_SHARE = 0.025  # of further launches that exceed the bound, at the target's rate
RATE_BEYOND_SHARE = 0.05  # the same, at the highest rate
USUAL_SD = 0.07  # of the logarithms of launches at a rate; three then have a bound of 1.27 means
SUFFICIENT_MET_LAUNCHES = 6  # at a rate and slightly above: if all met the target, the rate passes

TOO_UNEVEN = "the launches differ too much to confirm it"

TargetWord = Literal["broken", "undecidable", "not shown yet", "met"]
WORST_FIRST: tuple[TargetWord, ...] = get_args(TargetWord)


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
    inconclusive: tuple[TermOutcome, ...] = ()  # terms on errors: too few requests for a verdict
    met: tuple[TermOutcome, ...] = ()  # terms on errors


def prediction_half_width(deviation: float, count: int, beyond_share: float) -> float:
    """The distance from the mean of `count` logarithms to the bound that a share `beyond_share` of
    further ones exceeds."""
    t = two_sided_t(1 - 2 * beyond_share, count - 1)
    return t * deviation * math.sqrt(1 + 1 / count)


def expected_to_pass(
    launches: Sequence[CandidateLaunch], terms: Sequence[Term], count: int
) -> bool:
    """Whether all these launches met the target, and the bound of every time and throughput would
    be within its limit after `count` launches in total, if further ones change neither the mean nor
    the standard deviation. The latter counts as at least USUAL_SD, and as USUAL_SD with fewer than
    MIN_LAUNCHES."""
    if not launches or not all(meets_target(launch, terms) for launch in launches):
        return False
    for term in (term for term in terms if term.kind != "errors"):
        logs = _logarithms(launches, term)
        if len(logs) < len(launches):
            return False
        deviation = max(USUAL_SD, stdev(logs) if len(logs) >= MIN_LAUNCHES else 0.0)
        half = prediction_half_width(deviation, count, RATE_BEYOND_SHARE)
        if not term.holds(math.exp(fmean(logs) + (-half if term.kind == "rps" else half))):
            return False
    return True


def _logarithms(launches: Sequence[CandidateLaunch], term: Term) -> list[float]:
    """The logarithms of the positive and finite values of the metric, one per launch."""
    values = (value_of(term.metric, launch.requests) for launch in launches)
    return [math.log(value) for value in values if value is not None and 0 < value < math.inf]


def standing(
    launches: Sequence[CandidateLaunch],
    terms: Sequence[Term],
    at_other_rates: Sequence[CandidateLaunch] = (),
    *,
    beyond_share: float = TARGET_BEYOND_SHARE,
) -> Standing:
    """The standing from launches at one rate; of those `at_other_rates` only the errors count."""
    if not launches:
        return Standing("not shown yet")
    requests = pooled(launches)
    bounds = [
        _bound(launches, requests, term, beyond_share) for term in terms if term.kind != "errors"
    ]
    outcomes: list[TermOutcome] = []
    for term in terms:
        if term.kind == "errors":
            outcome = judge(term, pooled([*launches, *at_other_rates]))
            if outcome.result == "broken":
                outcome = judge(term, requests)  # errors at other rates do not count against it
            if outcome.result == "broken":
                share = requests.failed / requests.total if requests.total else None
                bounds.append(TermBound(term, "broken", len(launches), share, why=outcome.measured))
            else:
                outcomes.append(outcome)
    return Standing(
        min((bound.word for bound in bounds), key=WORST_FIRST.index, default="met"),
        bounds=tuple(bounds),
        inconclusive=tuple(outcome for outcome in outcomes if not outcome.met),
        met=tuple(outcome for outcome in outcomes if outcome.met),
    )


def _bound(
    launches: Sequence[CandidateLaunch], requests: Requests, term: Term, beyond_share: float
) -> TermBound:
    """The bound of a term on a time or on throughput. `requests`: of all launches, pooled."""
    n, sign = len(launches), -1.0 if term.kind == "rps" else 1.0
    logs = [sign * log for log in _logarithms(launches, term)]
    if len(logs) < n:
        return TermBound(term, "broken", n)
    limit, mean = sign * math.log(term.limit), fmean(logs)
    centre = math.exp(sign * mean)
    outcome = judge(term, requests)
    by_chance = outcome.result == "undecidable"  # chance decides whether a launch meets the limit
    word: TargetWord
    if n < MIN_LAUNCHES:
        beyond = mean > limit + math.log(CLEAR_MISS_RATIO) or (n > 1 and min(logs) > limit)
        word = "broken" if beyond and not by_chance else "not shown yet"
        return TermBound(term, word, n, centre)
    high = mean + prediction_half_width(stdev(logs), n, beyond_share)
    after_many = mean + NormalDist().inv_cdf(1 - beyond_share) * stdev(logs)
    bound_holds, last = high <= limit, n >= MAX_LAUNCHES
    if by_chance:
        word = "not shown yet" if bound_holds and not last else "undecidable"
    elif bound_holds:
        word = "met"
    else:
        word = "broken" if last or max(mean, after_many) > limit else "not shown yet"
    uneven = TOO_UNEVEN if word == "broken" and mean <= limit else None
    why = outcome.why if by_chance else uneven
    return TermBound(term, word, n, centre, math.exp(sign * high), why)


def passes(
    launches: Sequence[CandidateLaunch], terms: Sequence[Term], nearby: int = 0
) -> bool | None:
    """Whether a rate tried on the way up or down passes. With fewer than MIN_LAUNCHES: False if one
    misses a term, else True if the bound of MIN_LAUNCHES like them would be within the limit, else
    None. Otherwise: whether their bound is; if not, the rate fails, since trying the next rate is
    worth more than another launch. `nearby`: the number of launches at the rate and slightly above
    that all met the target. SUFFICIENT_MET_LAUNCHES of them replace the bound, unless chance
    decides on which side of the limit a quantile lies: close to a server's limit, times vary too
    much for the bound of a few launches."""
    if not launches:
        return None
    if len(launches) >= MIN_LAUNCHES:
        result = standing(launches, terms, beyond_share=RATE_BEYOND_SHARE)
        by_chance = any(bound.why not in (None, TOO_UNEVEN) for bound in result.bounds)
        return result.word == "met" or (nearby >= SUFFICIENT_MET_LAUNCHES and not by_chance)
    if not all(meets_target(launch, terms) for launch in launches):
        return False
    return expected_to_pass(launches, terms, MIN_LAUNCHES) or None
