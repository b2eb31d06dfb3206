"""Whether requests keep a target (`workerlab.slo`): met, broken, not shown, or undecidable.

    estimate of the metric: a value and its 95 % interval
      both ends keep the limit            met
      both ends break it                  broken
      the limit is on a step, from one    undecidable: 5 % take a second, so that p95 is one or the
      value to STEP times as much         other by chance, in each launch anew
      else                                not shown: too few requests, or too close to tell

A failed request counts as slower than any limit, or a server that answers 500 at once would have
the best p95; so does one that was due by the rate and never sent. A single one breaks a limit of
max or mean, therefore.

The interval of a quantile stands between order statistics, that of a share is Clopper and Pearson's
(`numbers/binomial.py`), of a mean it is Student's. Of errors each end is wrong in 5 % of cases at
most, not in 2.5 %: then 3/limit clean requests show them (rule of three: Hanley & Lippman-Hand
1983). Of max and throughput, and of times of which only quantiles are known, the value counts.

Requests that queue are slow together: of four servers that are busy for 80 % of the time, the
interval of 3000 responses as if none depended on another is below the true p95 in 45 % of loads,
not 2.5. Where the order of requests is known they count for fewer, therefore: by how much more the
shares of slow ones in BATCHES stretches of the load differ than chance would make them (batch
means: Conway 1963; Chen & Kelton 2006 of quantiles), and by Student's t for so few stretches. Then
it is 12 %, and 1 % at half the load. The largest time is the upper end at most where there are
enough requests by themselves, lest a limit far beyond all of them is not shown.

What one launch shows is true of that launch: the next one deals its connections anew. To promise
something of a fresh launch takes several of them.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, variance

from msgspec import Struct

from workerlab.model import Finding, Summary
from workerlab.numbers.binomial import clean_needed, quantile_ranks, share_interval
from workerlab.numbers.intervals import half_of_mean, student
from workerlab.numbers.quantiles import quantile
from workerlab.slo import Metric, Term

QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
TAIL, ERROR_TAIL = 0.025, 0.05
NORMAL = 1.96  # quantile of the tail
CLEAN = 3.0  # over the limit: as many requests without a failure show it
STEP = 1.5  # times as long: of a smooth distribution hardly any value is, of the one before it
SLOW = 5  # requests at least above the step: fewer are no second kind of request
STRAY = 0.1  # of these may be on the step, as many of the others, too
BATCHES = 8  # stretches of a load


class Requests(Struct, frozen=True):
    """What became of the requests of a load. `times_s`: of the successes, in ascending order; where
    nobody timed each (None), `summary` is of them, and `succeeded` their number. `rps`: successes
    per second. `unsent`: of the open model, due and never sent, as all connections were busy.
    `in_order`: all that were sent, as they came, infinite where they failed; (): not known."""

    times_s: Sequence[float] | None = None
    failed: int = 0
    rps: float | None = None
    rps_half: float = 0.0  # of its 95 % interval
    summary: Summary = Summary()
    succeeded: int = 0
    unsent: int = 0
    in_order: Sequence[float] = ()

    @property
    def good(self) -> int:
        return self.succeeded if self.times_s is None else len(self.times_s)

    @property
    def sent(self) -> int:
        return self.good + self.failed

    @property
    def endless(self) -> int:
        """Slower than any limit."""
        return self.failed + self.unsent

    @property
    def number(self) -> int:
        return self.sent + self.unsent


class Estimate(Struct, frozen=True):
    """Seconds (infinite: of a request that failed), a share of 1, or requests per second."""

    value: float
    low: float
    high: float


def requests_of(times_s: Sequence[float], failed: int = 0, rps: float | None = None) -> Requests:
    """`times_s`: of the successes, in any order."""
    return Requests(sorted(times_s), failed, rps)


def value_of(metric: Metric, of: Requests) -> float | None:
    """Of that metric; infinite where it is the time of a request that failed; None: unknown."""
    found = estimate(metric, of)
    return None if found is None else found.value


def judge(term: Term, of: Requests) -> Finding:
    """`target.met`, `.broken`, `.not_shown` or `.undecidable`, with the numbers."""
    found = estimate(term.metric, of)
    if found is None:
        return _outcome("not_shown", term, of, None, Finding("target.unknown"))
    best, worst = found.low, found.high
    if term.kind == "rps":
        best, worst = worst, best
    if not term.holds(best):
        return _outcome("broken", term, of, found)
    few = too_few(term, of)
    if few is not None:
        return _outcome("not_shown", term, of, found, few)
    if term.holds(worst):
        return _outcome("met", term, of, found)
    if (step := _step(term, of)) is not None:
        return _outcome("undecidable", term, of, found, step)
    return _outcome("not_shown", term, of, found, Finding("target.too_close"))


def word(outcome: Finding) -> str:
    """met, broken, not_shown or undecidable."""
    return outcome.code.removeprefix("target.")


def needed(term: Term) -> int:
    """Requests at least, all of them within the limit, that show a term to be met."""
    if term.kind == "errors":
        return math.ceil(CLEAN / term.limit - 1e-9)
    q = QUANTILES.get(term.metric)
    return 1 if q is None else clean_needed(q, TAIL)


def too_few(term: Term, of: Requests) -> Finding | None:
    """Why no number of fast and clean ones among them could show the term."""
    least = needed(term)
    number = of.sent if term.kind == "errors" else of.number
    return Finding("target.too_few", {"needed": least}) if number < least else None


# --- estimates ----------------------------------------------------------------------------------


def estimate(metric: Metric, of: Requests) -> Estimate | None:
    """None: unknown."""
    if metric == "rps":
        return _around(of.rps, of.rps_half)
    if not of.number:
        return None
    if metric == "errors":
        if not of.sent:
            return None
        return Estimate(of.failed / of.sent, *share_interval(of.failed, of.sent, ERROR_TAIL))
    if metric in QUANTILES:
        return _quantile(QUANTILES[metric], of)
    if of.endless:
        return Estimate(math.inf, math.inf, math.inf)
    if of.times_s is None:
        return _around(of.summary.max if metric == "max" else of.summary.mean, 0.0)
    if metric == "max":
        return _around(of.times_s[-1], 0.0)
    half = half_of_mean(_means(of.in_order) or of.times_s)
    return _around(math.fsum(of.times_s) / len(of.times_s), math.inf if half is None else half)


def _around(value: float | None, half: float) -> Estimate | None:
    return None if value is None else Estimate(value, value - half, value + half)


def _quantile(q: float, of: Requests) -> Estimate | None:
    """Of the successes, followed by the failed ones."""
    if of.times_s is None:
        return _from_summary(q, of)
    n = of.number
    alike = _alike(of.in_order, _at(of.times_s, math.ceil(q * n)))
    counted = max(1, round(n / alike))  # as many independent ones
    low, high = quantile_ranks(counted, q, TAIL)
    if high is None and n >= clean_needed(q, TAIL):
        high = counted
    return Estimate(
        _interpolated(q, of.times_s, n),
        -math.inf if low is None else _at(of.times_s, max(1, math.floor(low * n / counted))),
        math.inf if high is None else _at(of.times_s, math.ceil(high * n / counted)),
    )


def _from_summary(q: float, of: Requests) -> Estimate | None:
    """Where requests failed, a quantile of the others says nothing of all; but if more failed than
    may be slow, it is the time of one of those."""
    if share_interval(of.endless, of.number, TAIL)[0] > 1 - q:
        return Estimate(math.inf, math.inf, math.inf)
    name = next(name for name, one in QUANTILES.items() if one == q)
    return None if of.endless else _around(getattr(of.summary, name), 0.0)


def _alike(in_order: Sequence[float], limit_s: float) -> float:
    """How many requests count for one: the variance of the share beyond the limit between stretches
    over that of independent requests, not less than 1."""
    beyond = [float(time_s > limit_s) for time_s in in_order]
    share = fmean(beyond) if beyond else 0.0
    if not 0 < share < 1 or len(beyond) < BATCHES:
        return 1.0
    few = (student(BATCHES - 1) / NORMAL) ** 2
    chance = share * (1 - share) * BATCHES / len(beyond)
    return max(1.0, few * variance(_means(beyond)) / chance)


def _means(in_order: Sequence[float]) -> list[float]:
    """Of stretches of equal length; [] where there are too few requests."""
    n = len(in_order)
    if n < BATCHES:
        return []
    ends = [n * number // BATCHES for number in range(BATCHES + 1)]
    return [fmean(in_order[begin:end]) for begin, end in pairwise(ends)]


def _interpolated(q: float, times_s: Sequence[float], n: int) -> float:
    """As `numbers.quantiles.quantile`, of n values of which the last ones are infinite."""
    if math.ceil(q * (n - 1)) >= len(times_s):
        return math.inf
    return quantile(times_s, q * (n - 1) / (len(times_s) - 1)) if len(times_s) > 1 else times_s[0]


def _at(times_s: Sequence[float], rank: int) -> float:
    return times_s[rank - 1] if rank <= len(times_s) else math.inf


# --- what is said ---------------------------------------------------------------------------------


def _step(term: Term, of: Requests) -> Finding | None:
    """Where the limit is between two kinds of requests, of about as many as the quantile divides
    them into."""
    if term.metric not in QUANTILES or of.times_s is None:
        return None
    cut = bisect_left if term.op == "<" else bisect_right
    within = cut(of.times_s, term.limit)
    slow = of.number - within
    if not within or slow < SLOW:
        return None
    stray = min(int(STRAY * slow), within - 1)
    below_s, above_s = _at(of.times_s, within - stray), _at(of.times_s, within + stray + 1)
    if above_s < STEP * below_s:
        return None
    values = {
        "metric": term.metric,
        "slow": slow,
        "requests": of.number,
        "share": slow / of.number,
        "below_s": below_s,
    }
    if math.isinf(above_s):
        return Finding("target.step_to_failed", values)
    return Finding("target.step", {**values, "above_s": above_s})


def _outcome(
    word: str, term: Term, of: Requests, found: Estimate | None, why: Finding | None = None
) -> Finding:
    """`low`, `high`: the interval, None where an end is not known or that of no success."""
    values: dict[str, object] = {
        "term": str(term),
        "metric": term.metric,
        "limit": term.limit,
        "requests": of.sent if term.kind == "errors" else of.number,
        "failed": of.failed,
        "unsent": of.unsent or None,
    }
    if found is not None:
        interval = found.low < found.high and (why is None or why.code != "target.too_few")
        values["value"] = _finite(found.value)
        values["low"] = _finite(found.low) if interval else None
        values["high"] = _finite(found.high) if interval else None
        slow = math.isinf(found.value) and term.kind == "time"
        code = "failed" if slow else term.kind
        values["measured"] = Finding(f"target.measured.{code}", dict(values))
    return Finding(f"target.{word}", {**values, "why": why})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
