"""The effect of B compared with A, from pairs of fresh launches, one of each, in random order.

A pair gives one difference per metric: of logarithms for a ratio (throughput, times, CPU, memory),
of parts of the response for where a request waits, of shares for failures. The interval of their
mean is Student's over pairs. An interval over requests would be far too narrow, as launches differ
more than the requests within one.

Pairs are added until every metric is decided. Checking after every pair would eventually find a
difference in anything, so results are checked LOOKS times only, and the error of 5 % is divided
among these looks and the metrics (Bonferroni): the intervals of all metrics hold together, whenever
the comparison stops.

    different      the interval excludes "no difference"
    same           it lies within `at_least`, even if it excludes "no difference": the difference
                   does not matter
    inconclusive   neither, so far
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean, stdev
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from workerlab.model import CellResult
from workerlab.numbers.intervals import half_width, ratio, student_at
from workerlab.numbers.units import FORMATS, amount, format_bytes, format_duration

LOOKS = (4, 6, 9, 13, 19, 28, 40)  # after so many pairs
SIMILAR_RATIO = 1.05  # times: single launches whose throughputs differ by less are a tie
FALSE_ALARM_PROBABILITY = 0.05  # that any difference is found where there is none

Word = Literal["different", "same", "inconclusive"]
Kind = Literal["ratio", "part", "share"]


class Metric(Struct, frozen=True):
    """`kind`: how A and B are held against each other. Of a "part" both are divided by the response
    time of A."""

    name: str
    label: str
    kind: Kind = "ratio"

    def written(self, value: float) -> str:
        """A value of A or B with its unit: '3.98 req/s', '20.0 ms', '12.0 MB', '0.1 %'."""
        if self.name.endswith("_rps"):
            return f"{amount(value)} req/s"
        if self.name.endswith("_bytes"):
            return format_bytes(value)
        return FORMATS["fraction"](value) if self.kind == "share" else format_duration(value)


METRICS = (
    Metric("throughput_rps", "throughput"),
    Metric("response_p50_s", "median response"),
    Metric("response_p95_s", "p95"),
    Metric("cpu_s", "CPU per request"),  # of the server
    Metric("memory_bytes", "memory"),
    Metric("start_s", "start"),
    Metric("stop_s", "stop"),
    Metric("failed", "failed requests", "share"),
)
# Parts of a response
PARTS = (
    Metric("connect_s", "in connect", "part"),
    Metric("accept_queue_s", "in the accept queue", "part"),
    Metric("in_worker_s", "in the worker", "part"),
    Metric("service_s", "in the app", "part"),
    Metric("transfer_s", "in transfer", "part"),
)
QUEUES = tuple(one for one in PARTS if one.name in ("accept_queue_s", "in_worker_s"))
# How long a slot stays taken after the app: not part of the response, but the next ones wait for it
HELD = Metric("held_s", "worker held after the app", "part")
FAILURES_PER_EFFECT = 0.02  # of `at_least`, for failures: 0.1 % of the requests if that is 5 %

Launch = Mapping[str, float | None]  # metrics by name; None or missing: unknown
Pair = tuple[Launch, Launch]  # A and B


def tie(trials: Sequence[CellResult], others: Sequence[CellResult]) -> bool:
    """Whether the throughputs of two cells show no difference, by the interval of their ratio over
    trials. Without repeated trials it is a tie if they differ by less than SIMILAR_RATIO, as
    launches may differ by more than one load shows, or within the intervals of the single loads.
    All trials have a throughput above 0."""
    rates, other_rates = ([c.throughput_rps or 1.0 for c in cells] for cells in (trials, others))
    compared = ratio(rates, other_rates)
    if compared.differs is not None:
        return not compared.differs
    halves = [c.throughput_half_rps or 0.0 for cells in (trials, others) for c in cells[:1]]
    apart_rps = abs(fmean(rates) - fmean(other_rates))
    return 1 / SIMILAR_RATIO < compared.value < SIMILAR_RATIO or apart_rps <= math.hypot(*halves)


class Change(Struct, frozen=True):
    """Of one metric over `n` pairs. `a`, `b`: means, of ratios geometric ones. `value`: B / A for a
    ratio, else B - A, as a part of the response or of the requests; `low`, `high`: its interval."""

    metric: Metric
    n: int
    a: float
    b: float
    value: float
    low: float | None = None
    high: float | None = None
    word: Word = "inconclusive"


def looks_so_far(pairs: int) -> int:
    """The number of pairs at the last look; 0 before the first one."""
    return max((look for look in LOOKS if look <= pairs), default=0)


def changes(pairs: Sequence[Pair], at_least: float) -> list[Change]:
    """The change of every metric that both sides of some pair have, as of the last look; before the
    first one, all are inconclusive. `at_least`: the smallest difference that matters, a share."""
    seen = pairs[: looks_so_far(len(pairs)) or len(pairs)]
    known = [one for one in (*METRICS, *PARTS, HELD) if _both(seen, one)]
    return [_change(_both(seen, one), one, at_least, len(known)) for one in known]


def decided(found: Sequence[Change], names: Sequence[str]) -> bool:
    """Whether all of these metrics are decided, and there is at least one."""
    wanted = [one for one in found if one.metric.name in names]
    return bool(wanted) and all(one.word != "inconclusive" for one in wanted)


def unpaired(
    a: Sequence[Launch], b: Sequence[Launch], at_least: float, comparisons: int
) -> list[Change]:
    """The changes between launches that were not made in pairs and are checked once, by Welch's
    intervals. The error is divided among all metrics of so many comparisons."""
    response_s = _mean_of(a, "response_s")
    found: list[tuple[Metric, list[float], list[float]]] = []
    for metric in (*METRICS, *PARTS, HELD):
        one, other = _known(a, metric), _known(b, metric)
        if one and other and (metric.kind != "part" or response_s):
            found.append((metric, one, other))
    error = FALSE_ALARM_PROBABILITY / (comparisons * max(1, len(found)))
    return [
        _unpaired(metric, one, other, response_s or 1.0, at_least, error)
        for metric, one, other in found
    ]


def _known(launches: Sequence[Launch], metric: Metric) -> list[float]:
    values = [value for one in launches if (value := one.get(metric.name)) is not None]
    return [one for one in values if one > 0] if metric.kind == "ratio" else values


def _mean_of(launches: Sequence[Launch], name: str) -> float | None:
    values = [value for one in launches if (value := one.get(name)) is not None]
    return fmean(values) if values else None


def _unpaired(
    metric: Metric, a: Sequence[float], b: Sequence[float], over: float, at_least: float,
    error: float,
) -> Change:  # fmt: skip
    over = over if metric.kind == "part" else 1.0
    ends = [[math.log(one) if metric.kind == "ratio" else one / over for one in side]
            for side in (a, b)]  # fmt: skip
    half = None
    if min(map(len, ends)) > 1:
        half = half_width(ends[0], ends[1], lambda degrees: student_at(1 - error, degrees))
    return _told(metric, a, b, fmean(ends[1]) - fmean(ends[0]), half, at_least)


def _told(
    metric: Metric, a: Sequence[float], b: Sequence[float], middle: float, half: float | None,
    at_least: float,
) -> Change:  # fmt: skip
    """`middle`: the mean difference, of logarithms for a ratio; `half`: half of its interval."""
    said, mean = (math.exp, geometric_mean) if metric.kind == "ratio" else (float, fmean)
    found = Change(metric, min(len(a), len(b)), mean(a), mean(b), said(middle))
    if half is None:
        return found
    low, high = said(middle - half), said(middle + half)
    return replace(found, low=low, high=high, word=_word(low, high, metric, at_least))


def _both(pairs: Sequence[Pair], metric: Metric) -> list[tuple[float, float, float]]:
    """(A, B, what a difference is divided by) of the pairs in which all are known."""
    found = []
    for a, b in pairs:
        one, other = a.get(metric.name), b.get(metric.name)
        over = a.get("response_s") if metric.kind == "part" else 1.0
        if one is None or other is None or not over:
            continue
        if metric.kind != "ratio" or (one > 0 and other > 0):
            found.append((one, other, over))
    return found


def _change(
    pairs: Sequence[tuple[float, float, float]], metric: Metric, at_least: float, metrics: int
) -> Change:
    ratio = metric.kind == "ratio"
    found = [math.log(b / a) if ratio else (b - a) / over for a, b, over in pairs]
    a, b, _ = zip(*pairs, strict=True)
    return _told(metric, a, b, fmean(found), _half(found, metrics), at_least)


def _half(found: Sequence[float], metrics: int) -> float | None:
    """Half of the interval of a mean that is one of so many metrics; None before the first look."""
    n = len(found)
    if n < LOOKS[0]:
        return None
    confidence = 1 - FALSE_ALARM_PROBABILITY / (len(LOOKS) * metrics)
    return student_at(confidence, n - 1) * stdev(found) / math.sqrt(n)


def _word(low: float, high: float, metric: Metric, at_least: float) -> Word:
    none = 1.0 if metric.kind == "ratio" else 0.0
    if metric.kind == "ratio":
        least, most = 1 / (1 + at_least), 1 + at_least
    else:
        most = at_least * (FAILURES_PER_EFFECT if metric.kind == "share" else 1.0)
        least = -most
    if least < low and high < most:
        return "same"
    return "inconclusive" if low <= none <= high else "different"
