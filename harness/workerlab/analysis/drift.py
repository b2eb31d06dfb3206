"""Service times that change during the load: that drift, or that are long only at first.

Drift: eight batches of requests in the order in which they began, and the test of Mann and Kendall
for a trend of their means, |z| >= 2.35 (of eight independent values in any order, 1.4 % get there).
That holds against dependence of neighbours, which single requests have under load. Since a run asks
it of many cells, two more things must agree: the same test over single requests, |z| >= 3 (0.27 %
by chance), and a change of 10 % and more between the first and the last batch by Sen's slope. The
mean of a batch follows one slow request of a heavy tail; the ranks of single requests do not.

Slow at first: where to cut the begin of a load off is MSER (White 1997), the cut after which the
standard error of the rest's mean is smallest. It cuts off every slow request of a heavy tail that
happens to come early, so that what is cut off must be slow as a whole: half of its requests and
more are slower than nine in ten of the rest, and so many as chance gives in one of 100,000
(binomial: 5 of 5, 6 of 7), and they take a quarter longer on average; and the rest must not drift.
A server that becomes faster all the time drifts.

Other programs come and go, too. All that waiting for a core cost could lie in the first requests,
or in one half of the load: both findings must exceed it by a quarter. A drift may show instead in
the fastest request of each batch, |z| >= 2.6 and by 10 %: of twenty and more, over a second and
more, some have their core. Neither is asked where the server itself takes the cores.

Requests count from the one that began first; for a drift those that began in the steady window.
Those during which the machine stood still (`pauses`) say nothing, and are left out.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import comb
from statistics import fmean, median

from msgspec import Struct

from workerlab.analysis.core_wait import core_wait, disturbance
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.failures import failed_share, success_spans
from workerlab.analysis.pauses import paused
from workerlab.analysis.samples import NS
from workerlab.analysis.shared import computes
from workerlab.model import CellResult, Finding, Span
from workerlab.numbers.quantiles import quantile
from workerlab.numbers.trend import mann_kendall, slope

FEWEST = 16  # of a batch, for its fastest to have had a core
BATCHES, LEAST, LEAST_S = 8, 32, 1.0  # requests (twice as many to cut) and steady seconds
BEYOND = 1.25  # times what waiting for a core can explain
COMPUTES = 0.1  # of the fastest request's time is CPU: others' programs stretch that, too
BATCH_S = 1.0  # least: in less all of a batch may have waited for a core
FASTEST = 2.6  # |z| of the fastest request of each batch
STEADILY = 3.3  # |z| of eight means of which each is above the one before
FEW = 0.01  # of the requests may be failures
TREND, SINGLE = 2.35, 3.0  # |z| of the batches' means, and of single requests
CHANGED = 0.10  # of the median batch
MOST = 512  # single requests that are compared each with each: of more, even steps between
FIRST, SLOW, MOSTLY = 5, 0.9, 0.5  # requests; the quantile of the rest; how many are above it
CHANCE, FEW_FIRST = 1e-5, 32  # that so many are; of more it is less whenever half are
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
    return _drift(times_s, fmean, TREND)


def _drift(
    times_s: Sequence[float], of: Callable[[Sequence[float]], float], least: float
) -> Drift | None:
    """`of`: what stands for a batch; `least`: its |z|."""
    batches = _batches(times_s)
    values = list(map(of, batches))
    change_s, z = slope(values) * (BATCHES - 1), mann_kendall(values)
    if abs(z) < least or abs(change_s) < CHANGED * median(values):
        return None
    single = mann_kendall(times_s[:: -(-len(times_s) // MOST)])
    if abs(single) < SINGLE or single * z < 0:
        return None
    return Drift(fmean(batches[0]), fmean(batches[-1]), z, single, len(times_s))


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
    if len(times_s) < 2 * LEAST or (cut := cut_of(times_s)) < FIRST:
        return 0
    above = quantile(sorted(times_s[cut:]), SLOW)
    slow = list(accumulate(value > above for value in times_s[:cut]))
    typical = fmean(times_s[cut:])
    while cut and times_s[cut - 1] < LONGER * typical:
        cut -= 1  # it may be somewhat late
    while cut >= FIRST and not _slow_as_a_whole(slow[cut - 1], cut):
        cut -= 1
    first, rest = times_s[:cut], times_s[cut:]
    if cut < FIRST or fmean(first) < LONGER * fmean(rest) or drift_of(rest):
        return 0
    return cut


def _slow_as_a_whole(slow: int, count: int) -> bool:
    """Whether half of them and more are slow, and chance hardly gives so many."""
    if slow < MOSTLY * count or count > FEW_FIRST:
        return slow >= MOSTLY * count
    tail = range(slow, count + 1)
    rare = 1 - SLOW
    return sum(comb(count, k) * rare**k * SLOW ** (count - k) for k in tail) <= 1.01 * CHANCE


# --- of a trial ---------------------------------------------------------------------------------


@once
def slow_first(facts: Facts) -> SlowFirst | None:
    spans = _successes(facts)
    times_s = _times_s(spans)
    if not (cut := slow_first_of(times_s)):
        return None
    first_s, rest_s = fmean(times_s[:cut]), fmean(times_s[cut:])
    if cut * (first_s - rest_s) < BEYOND * _lost_s(facts, times_s):
        return None
    until_s = (max(span.end_ns or 0 for span in spans[:cut]) - facts.started_ns) / NS
    return SlowFirst(cut, first_s, rest_s, until_s)


@once
def drift(facts: Facts) -> Drift | None:
    window = facts.window
    if window is None or slow_first(facts):
        return None
    times_s = _times_s([one for one in _successes(facts) if window.contains(one.start_ns)])
    found, half = drift_of(times_s), len(times_s) // 2
    apart_s = abs(sum(times_s[-half:]) - sum(times_s[:half]))
    theirs = disturbance(facts) is not None and (found is None or abs(found.z) < STEADILY)
    if not theirs and apart_s >= BEYOND * _lost_s(facts, times_s):
        return found
    if len(times_s) < BATCHES * FEWEST or window.length_s < BATCHES * BATCH_S:
        return None
    used = facts.usage.server_cores
    if used is None or used >= COMPUTES * min(times_s) * facts.rps:
        return None
    return _drift(times_s, min, FASTEST)


def _lost_s(facts: Facts, times_s: Sequence[float]) -> float:
    """The most of these times in which others, or other machines, had the core, all of it
    together. What requests take from each other is theirs: it drifts as they do."""
    if (waited := core_wait(facts)) is None:
        return 0.0
    lost_s = waited.taken * sum(times_s)
    if not facts.rps:
        return lost_s
    # `taken` trusts the lone requests. Where these waited longer for a core than the load did, it
    # is too low; what the workers waited, as far as others ran, is not.
    others = 1.0 if waited.others_cores is None else min(1.0, waited.others_cores)
    each_s = min(waited.worker_s, facts.workers * others / facts.rps)
    return max(lost_s, each_s * len(times_s))


def _successes(facts: Facts) -> Sequence[Span]:
    """Those after the lone first one; none where failures may be among them, or the load was so
    short that a moment without a core is a part of it."""
    if facts.window is None or facts.window.length_s < LEAST_S:
        return ()
    spans = success_spans(facts)
    if spans is None:
        spans = facts.finished if failed_share(facts) <= FEW else ()
    together = spans[1:] if facts.data.lone_first else spans
    return [one for one in together if not paused(facts, one.start_ns, one.end_ns or 0)]


def _times_s(spans: Sequence[Span]) -> list[float]:
    return [((span.end_ns or 0) - span.start_ns) / NS for span in spans]


def drifting(facts: Facts, _cell: CellResult) -> Finding | None:
    return None if computes(facts) else drift_told(facts)


def slow_at_first(facts: Facts, _cell: CellResult) -> Finding | None:
    return None if computes(facts) else slow_first_told(facts)


def drift_told(facts: Facts) -> Finding | None:
    """Also where the workers compute: of a load in which requests seldom wait for each other."""
    if (found := drift(facts)) is None:
        return None
    known = {"first_s": found.first_s, "last_s": found.last_s, "requests": found.requests}
    numbers = {"z": found.z, "z_single": found.z_single}
    advice = "longer_each_time" if found.last_s > found.first_s else "warm_up"
    known |= numbers
    return Finding("diagnosis.drift", {**known, "advice": (Finding(f"advice.{advice}"),)})


def slow_first_told(facts: Facts) -> Finding | None:
    if (found := slow_first(facts)) is None:
        return None
    known = {"requests": found.requests, "first_s": found.first_s, "rest_s": found.rest_s}
    advice = (Finding("advice.warm_up"),)
    return Finding("diagnosis.slow_first", {**known, "until_s": found.until_s, "advice": advice})
