"""Service times that change during the load: that drift, or that are long only at first.

Drift: eight batches of requests in the order in which they began, and the test of Mann and Kendall
for a trend of their means, |z| >= 2.35 (of eight independent values in any order, 1.4 % get there).
That holds against dependence of neighbours, which single requests have under load. Since a run asks
it of many cells, two more things must agree: the same test over single requests, |z| >= 3 (0.27 %
by chance), and a change of 10 % and more between the first and the last batch by Sen's slope. The
mean of a batch follows one slow request of a heavy tail; the ranks of single requests do not.

Slow at first: where to cut the begin of a load off is MSER (White 1997), the cut after which the
standard error of the rest's mean is smallest. It cuts off every slow request of a heavy tail that
happens to come early, so that what is cut off must be slow as a whole: four requests or more, nine
in ten of them slower than nine in ten of the rest (four independent ones are in 0.01 %), a quarter
longer on average; and the rest must not drift. A server that becomes faster all the time drifts.

Requests count from the one that began first; for a drift those that began in the steady window. Not
asked where requests compute and no core is free for them: the machine's moods are no drift.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median

from msgspec import Struct

from harness.analysis.facts import Facts, once
from harness.analysis.failures import failed_share, success_spans
from harness.analysis.samples import NS
from harness.analysis.shared import computes
from harness.model import CellResult, Finding, Span
from harness.numbers.quantiles import quantile
from harness.numbers.trend import mann_kendall, slope

BATCHES, LEAST, LEAST_S = 8, 32, 1.0  # requests and steady seconds at least
FEW = 0.01  # of the requests may be failures
TREND, SINGLE = 2.35, 3.0  # |z| of the batches' means, and of single requests
CHANGED = 0.10  # of the median batch
MOST = 512  # single requests that are compared each with each: of more, even steps between
FIRST, SLOW, MOSTLY = 4, 0.9, 0.9  # requests; the quantile of the rest; how many are above it
LONGER = 1.25  # times the mean of the rest


class Drift(Struct, frozen=True):
    """Seconds in the first and in the last eighth of the requests; z of both tests."""

    first_s: float
    last_s: float
    z: float
    z_single: float
    requests: int


class SlowFirst(Struct, frozen=True):
    """So many requests at first, their mean, that of the others, and until when: seconds since the
    load began."""

    requests: int
    first_s: float
    rest_s: float
    until_s: float


def drift_of(times_s: Sequence[float]) -> Drift | None:
    """Of service times in the order in which they began."""
    if len(times_s) < LEAST:
        return None
    means = [fmean(batch) for batch in _batches(times_s)]
    change_s = slope(means) * (BATCHES - 1)
    z, typical_s = mann_kendall(means), median(means)
    if abs(z) < TREND or abs(change_s) < CHANGED * typical_s:
        return None
    step = -(-len(times_s) // MOST)
    single = mann_kendall(times_s[::step])
    if abs(single) < SINGLE or single * z < 0:
        return None
    return Drift(means[0], means[-1], z, single, len(times_s))


def _batches(times_s: Sequence[float]) -> Sequence[Sequence[float]]:
    edges = [round(number * len(times_s) / BATCHES) for number in range(BATCHES + 1)]
    return [times_s[since:until] for since, until in pairwise(edges)]


def cut_of(times_s: Sequence[float]) -> int:
    """How many values to cut off at the begin: MSER, at most half of them (White 1997)."""
    count = len(times_s)
    tails = list(accumulate(reversed(times_s)))[::-1]
    squares = list(accumulate(value * value for value in reversed(times_s)))[::-1]

    def error(cut: int) -> float:
        left = count - cut
        return (squares[cut] - tails[cut] ** 2 / left) / left**2

    return min(range(count // 2), key=error, default=0)


def slow_first_of(times_s: Sequence[float]) -> int:
    """How many requests at first were slow; 0 where none."""
    if len(times_s) < LEAST or (cut := cut_of(times_s)) < FIRST:
        return 0
    above = quantile(sorted(times_s[cut:]), SLOW)
    slow = list(accumulate(value > above for value in times_s[:cut]))
    while cut >= FIRST and slow[cut - 1] < MOSTLY * cut:  # the cut may be somewhat late
        cut -= 1
    first, rest = times_s[:cut], times_s[cut:]
    if cut < FIRST or fmean(first) < LONGER * fmean(rest) or drift_of(rest):
        return 0
    return cut


# --- of a trial ---------------------------------------------------------------------------------


@once
def slow_first(facts: Facts) -> SlowFirst | None:
    spans = _successes(facts)
    times_s = _times_s(spans)
    if not (cut := slow_first_of(times_s)):
        return None
    until_s = (max(span.end_ns or 0 for span in spans[:cut]) - facts.started_ns) / NS
    return SlowFirst(cut, fmean(times_s[:cut]), fmean(times_s[cut:]), until_s)


@once
def drift(facts: Facts) -> Drift | None:
    window = facts.window
    if window is None or slow_first(facts):
        return None
    return drift_of(_times_s([one for one in _successes(facts) if window.contains(one.start_ns)]))


def _successes(facts: Facts) -> Sequence[Span]:
    """Those after the lone first one; none where failures may be among them, or the load was so
    short that a moment without a core is a part of it."""
    if facts.window is None or facts.window.length_s < LEAST_S:
        return ()
    spans = success_spans(facts)
    if spans is None:
        spans = facts.finished if failed_share(facts) <= FEW else ()
    return spans[1:] if facts.data.lone_first else spans


def _times_s(spans: Sequence[Span]) -> list[float]:
    return [((span.end_ns or 0) - span.start_ns) / NS for span in spans]


def drifting(facts: Facts, _cell: CellResult) -> Finding | None:
    found = None if computes(facts) else drift(facts)
    if found is None:
        return None
    known = {"first_s": found.first_s, "last_s": found.last_s, "requests": found.requests}
    numbers = {"z": found.z, "z_single": found.z_single}
    advice = "longer_each_time" if found.last_s > found.first_s else "warm_up"
    known |= numbers
    return Finding("diagnosis.drift", {**known, "advice": (Finding(f"advice.{advice}"),)})


def slow_at_first(facts: Facts, _cell: CellResult) -> Finding | None:
    found = None if computes(facts) else slow_first(facts)
    if found is None:
        return None
    known = {"requests": found.requests, "first_s": found.first_s, "rest_s": found.rest_s}
    advice = (Finding("advice.warm_up"),)
    return Finding("diagnosis.slow_first", {**known, "until_s": found.until_s, "advice": advice})
