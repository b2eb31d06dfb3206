"""Judges whether requests meet a target (`workerlab.slo`), term by term, by the 95 % interval of
the metric:

    both ends are within the limit      met
    both ends are beyond it             broken, printed as missed
    the limit is on a step, from one    undecidable: if 5 % take a second, chance decides in each
    value to STEP_RATIO times as much   launch on which side of the step p95 is
    else                                not shown: too few requests, or too close to call

A failed request counts as slower than any limit: otherwise a server that responds with 500 at once
would have the best p95. So does a request that was due at a rate and never sent. A single one of
these therefore misses a limit on max or mean.

The interval of a quantile lies between order statistics; that of a share is Clopper and Pearson's
(`numbers/intervals.py`), that of a mean Student's, and that of throughput is the cell's own, if
known. For errors, each end is wrong in at most 5 % of cases, not 2.5 %: then 3/limit requests
without a failure show that the limit is met (rule of three: Hanley & Lippman-Hand 1983). For max,
and for times known only as a summary, the value alone counts.

Queued requests are slow together: with four servers that are 80 % busy, an interval from 3000
responses that treats them as independent lies below the true p95 in 45 % of loads, not 2.5 %. So if
the order of requests is known, they count as fewer independent ones. Their number is divided by the
variance of the share of slow requests between BATCHES parts of the load, relative to that of
independent requests (batch means: Conway 1963; Chen & Kelton 2006 for quantiles), and by the excess
of Student's t for so few parts. This reduces the 45 % to 12 %, and to 1 % at half the load. If
there are enough requests without this correction, the upper end is at most the largest time, so a
limit far above all times is shown to be met.

The result of one launch is valid for that launch only: in the next one, connections are distributed
differently. A prediction for new launches needs more than one launch.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, variance
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from workerlab.finding import Finding, Note
from workerlab.model.evidence import Summary
from workerlab.numbers.intervals import (
    half_width_of_mean,
    min_sample_size,
    quantile_ranks,
    share_interval,
    student_t,
)
from workerlab.numbers.samples import quantile
from workerlab.numbers.units import fill
from workerlab.slo import Metric, Term

TermResult = Literal["met", "broken", "undecidable", "not shown"]

QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
TAIL = 0.025  # probability that an end of an interval is wrong
ERROR_TAIL = 0.05
TAIL_Z = 1.96  # the normal quantile of 1 - TAIL
RULE_OF_THREE = 3.0  # 3/limit requests without a failure show that a limit on errors is met
STEP_RATIO = 1.5  # two adjacent times rarely differ by more in a smooth distribution
MIN_SLOW_REQUESTS = 5  # above the step; fewer are not a second kind of request
STRAY_SHARE = 0.1  # of the slow requests may lie on the step, and as many fast ones
BATCHES = 8  # equal parts of a load


class Requests(Struct, frozen=True):
    """The outcome of the requests of a load. `times_s`: response times of successes, ascending;
    None if not timed one by one: then `summary` describes them, and `succeeded` is their number.
    `rps`: successes per second. `unsent`: requests due in the open model but never sent because all
    connections were busy. `in_order`: times of all requests sent, in the load tool's order,
    infinite for failed requests; (): unknown."""

    times_s: Sequence[float] | None = None
    failed: int = 0
    rps: float | None = None
    rps_half: float = 0.0  # of its 95 % interval
    summary: Summary = Summary()
    succeeded: int = 0
    unsent: int = 0
    in_order: Sequence[float] = ()

    @property
    def successes(self) -> int:
        return self.succeeded if self.times_s is None else len(self.times_s)

    @property
    def sent(self) -> int:
        return self.successes + self.failed

    @property
    def without_time(self) -> int:
        """Requests that count as slower than any limit."""
        return self.failed + self.unsent

    @property
    def total(self) -> int:
        return self.sent + self.unsent

    def total_for(self, term: Term) -> int:
        """The number of requests that the term applies to."""
        return self.sent if term.kind == "errors" else self.total


def requests_of(times_s: Sequence[float], failed: int = 0, rps: float | None = None) -> Requests:
    """The requests with these response times of successes, in any order."""
    return Requests(sorted(times_s), failed, rps)


# --- the outcome of a term ------------------------------------------------------------------------


class TooFewRequests(Finding):
    """at least {needed:count} requests are needed"""

    needed: int


class StepAtLimit(Finding):
    """{slow:# request} of {requests:count} ({share:fraction}) [[took {above_s:duration} or more]]
    [[{failed}]], nearly all others took {below_s:duration} or less, so {metric} is one or the other
    by chance"""

    metric: Metric
    slow: int
    requests: int
    share: float
    below_s: float
    above_s: float | None
    failed: Literal["", "failed"]


UNKNOWN_OUTCOME = Note("not reported by the load tool")
TOO_CLOSE = Note("too close to call")
MEASURED_TEMPLATES = {
    "time": "{metric} {value:duration}[[ (95 % interval {low:duration} to {high:duration})]]",
    "failed": "{failed:count} of {requests:# request} failed[[, {unsent:count} were never sent]],"
    " which counts as slower than any limit",
    "errors": "{failed:count} of {requests:# request} failed"
    "[[ (95 % bounds {low:fraction} and {high:fraction})]]",
    "rps": "{value:number} req/s[[ (95 % interval {low:number} to {high:number})]]",
}


class TermOutcome(Finding, kw_only=True):
    """{term} is {result:outcome}[[: {measured}]][[; {why}]]"""

    term: str
    metric: Metric
    limit: float
    result: TermResult
    requests: int
    failed: int
    unsent: int | None
    value: float | None = None  # None if unknown or infinite
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    measured: str = ""  # the same in words
    why: Finding | None = None

    @property
    def met(self) -> bool:
        return self.result == "met"


def judge(term: Term, requests: Requests) -> TermOutcome:
    """The outcome of a term, by the rules above."""
    estimated = estimate(term.metric, requests)
    if estimated is None:
        return _outcome(term, requests, None, "not shown", UNKNOWN_OUTCOME)
    best, worst = estimated.low, estimated.high
    if term.kind == "rps":
        best, worst = worst, best
    if not term.holds(best):
        return _outcome(term, requests, estimated, "broken")
    few = too_few(term, requests)
    if few is not None:
        no_interval = replace(estimated, low=estimated.value, high=estimated.value)
        return _outcome(term, requests, no_interval, "not shown", few)
    if term.holds(worst):
        return _outcome(term, requests, estimated, "met")
    if (step := step_at_limit(term, requests)) is not None:
        return _outcome(term, requests, estimated, "undecidable", step)
    return _outcome(term, requests, estimated, "not shown", TOO_CLOSE)


def _outcome(
    term: Term,
    requests: Requests,
    estimated: MetricEstimate | None,
    result: TermResult,
    why: Finding | None = None,
) -> TermOutcome:
    values: dict[str, Any] = {
        "metric": term.metric,
        "requests": requests.total_for(term),
        "failed": requests.failed,
        "unsent": requests.unsent or None,
    }
    if estimated is not None:
        kind = "failed" if math.isinf(estimated.value) and term.kind == "time" else term.kind
        values |= estimated.finite_values
        values["measured"] = fill(MEASURED_TEMPLATES[kind], values)
    return TermOutcome(term=str(term), limit=term.limit, result=result, why=why, **values)


def requests_needed(term: Term) -> int:
    """The fewest requests that show a term to be met, if all are within the limit."""
    if term.kind == "errors":
        return math.ceil(RULE_OF_THREE / term.limit - 1e-9)
    q = QUANTILES.get(term.metric)
    return 1 if q is None else min_sample_size(q, TAIL)


def too_few(term: Term, requests: Requests) -> TooFewRequests | None:
    """A finding if the requests are too few to show the term to be met, even if all were fast."""
    min_count = requests_needed(term)
    return TooFewRequests(min_count) if requests.total_for(term) < min_count else None


def step_at_limit(term: Term, requests: Requests) -> StepAtLimit | None:
    """The step at the limit between two kinds of requests, for a quantile that may be on either
    side of it; None if there is no such step."""
    times_s = requests.times_s
    if term.metric not in QUANTILES or times_s is None:
        return None
    cut = bisect_left if term.op == "<" else bisect_right
    fast = cut(times_s, term.limit)
    slow = requests.total - fast
    if not fast or slow < MIN_SLOW_REQUESTS:
        return None
    stray = min(int(STRAY_SHARE * slow), fast - 1)
    below_s, above_s = (_at_rank(times_s, fast + i) for i in (-stray, stray + 1))
    if above_s < STEP_RATIO * below_s:
        return None
    return StepAtLimit(
        metric=term.metric,
        slow=slow,
        requests=requests.total,
        share=slow / requests.total,
        below_s=below_s,
        above_s=_finite(above_s),
        failed="failed" if math.isinf(above_s) else "",
    )


# --- estimates ----------------------------------------------------------------------------------


class MetricEstimate(Struct, frozen=True):
    """A metric and its 95 % interval: in seconds (infinite for a failed request), as a share of 1,
    or in requests per second."""

    value: float
    low: float
    high: float

    @property
    def finite_values(self) -> dict[str, float | None]:
        """The values by name; None for infinite values, or without an interval."""
        interval = self.low < self.high
        return {
            "value": _finite(self.value),
            "low": _finite(self.low) if interval else None,
            "high": _finite(self.high) if interval else None,
        }


def value_of(metric: Metric, requests: Requests) -> float | None:
    """The value of the metric; infinite if it is the time of a failed request, None if unknown."""
    estimated = estimate(metric, requests)
    return None if estimated is None else estimated.value


def estimate(metric: Metric, requests: Requests) -> MetricEstimate | None:
    """The value of the metric and its interval; None if unknown."""
    if metric == "rps":
        return _with_half_width(requests.rps, requests.rps_half)
    if not requests.total:
        return None
    if metric == "errors":
        if not requests.sent:
            return None
        return MetricEstimate(
            requests.failed / requests.sent,
            *share_interval(requests.failed, requests.sent, ERROR_TAIL),
        )
    if metric in QUANTILES:
        return _quantile(metric, requests)
    if requests.without_time:
        return MetricEstimate(math.inf, math.inf, math.inf)
    if requests.times_s is None:
        return _with_half_width(
            requests.summary.max if metric == "max" else requests.summary.mean, 0.0
        )
    if metric == "max":
        return _with_half_width(requests.times_s[-1], 0.0)
    half = half_width_of_mean(_batch_means(requests.in_order) or requests.times_s)
    return _with_half_width(
        math.fsum(requests.times_s) / len(requests.times_s), math.inf if half is None else half
    )


def _with_half_width(value: float | None, half: float) -> MetricEstimate | None:
    return None if value is None else MetricEstimate(value, value - half, value + half)


def _quantile(metric: Metric, requests: Requests) -> MetricEstimate | None:
    """The quantile of all requests, with failed and unsent ones above all successes."""
    q, n, times_s = QUANTILES[metric], requests.total, requests.times_s
    if times_s is None:
        return _from_summary(metric, requests)
    per_independent = _per_independent(requests.in_order, _at_rank(times_s, math.ceil(q * n)))
    independent = max(1, round(n / per_independent))
    low, high = quantile_ranks(independent, q, TAIL)
    if high is None and n >= min_sample_size(q, TAIL):
        high = independent
    return MetricEstimate(
        _interpolated(q, times_s, n),
        -math.inf if low is None else _at_rank(times_s, max(1, math.floor(low * n / independent))),
        math.inf if high is None else _at_rank(times_s, math.ceil(high * n / independent)),
    )


def _from_summary(metric: Metric, requests: Requests) -> MetricEstimate | None:
    """The quantile from the summary; None if requests failed, because the summary excludes them. It
    is infinite if more requests failed than may be slow."""
    if share_interval(requests.without_time, requests.total, TAIL)[0] > 1 - QUANTILES[metric]:
        return MetricEstimate(math.inf, math.inf, math.inf)
    return (
        None if requests.without_time else _with_half_width(getattr(requests.summary, metric), 0.0)
    )


def _per_independent(in_order: Sequence[float], limit_s: float) -> float:
    """How many requests count as one independent request, at least 1: the variance between parts of
    the load of the share above the limit, relative to that of independent requests."""
    above_limit = [float(time_s > limit_s) for time_s in in_order]
    share = fmean(above_limit) if above_limit else 0.0
    if not 0 < share < 1 or len(above_limit) < BATCHES:
        return 1.0
    t_factor = (student_t(BATCHES - 1) / TAIL_Z) ** 2
    chance_variance = share * (1 - share) * BATCHES / len(above_limit)
    return max(1.0, t_factor * variance(_batch_means(above_limit)) / chance_variance)


def _batch_means(in_order: Sequence[float]) -> list[float]:
    """The means of BATCHES equal parts; [] for too few requests."""
    n = len(in_order)
    if n < BATCHES:
        return []
    ends = [n * number // BATCHES for number in range(BATCHES + 1)]
    return [fmean(in_order[begin:end]) for begin, end in pairwise(ends)]


def _interpolated(q: float, times_s: Sequence[float], n: int) -> float:
    """The quantile (`numbers.samples.quantile`) of n values: `times_s`, the rest infinite."""
    if math.ceil(q * (n - 1)) >= len(times_s):
        return math.inf
    return quantile(times_s, q * (n - 1) / (len(times_s) - 1)) if len(times_s) > 1 else times_s[0]


def _at_rank(times_s: Sequence[float], rank: int) -> float:
    """The time at a rank, counted from 1; failed requests come after the successes."""
    return times_s[rank - 1] if rank <= len(times_s) else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
