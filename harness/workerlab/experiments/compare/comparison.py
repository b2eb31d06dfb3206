"""The effect of B compared with A, from pairs of fresh launches, one of each, in random order.

Each pair gives one difference per metric: of logarithms for a ratio (throughput, times, CPU,
memory), of parts of the response time for where a request waits, of shares for failures. Their mean
has Student's interval over pairs. An interval over requests would be far too narrow, as launches
differ more than the requests within one.

Pairs are added until every metric is decided. Checking after every pair would eventually find a
difference between identical servers, so results are checked only after the numbers of pairs in
LOOKS, and the error of 5 % is divided among these looks and the metrics (Bonferroni): the intervals
of all metrics hold together, whenever the comparison stops.

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

from workerlab.analysis.trials import Replicates
from workerlab.numbers.intervals import half_width, student_at
from workerlab.numbers.units import FORMATS, amount, format_bytes, format_duration

LOOKS = (4, 6, 9, 13, 19, 28, 40)  # numbers of pairs after which results are checked
FALSE_ALARM_PROBABILITY = 0.05  # of finding any difference where there is none

Word = Literal["different", "same", "inconclusive"]
Kind = Literal["ratio", "part", "share"]


class Metric(Struct, frozen=True):
    """`kind`: how A and B are compared. For a "part", both are divided by A's response time."""

    name: str
    label: str
    kind: Kind = "ratio"

    def formatted(self, value: float) -> str:
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
# Of the responses that the parts below belong to; the median and p95 are of others
RESPONSE = Metric("response_s", "mean response", "part")
PARTS = (
    Metric("connect_s", "in connect", "part"),
    Metric("accept_queue_s", "in the accept queue", "part"),
    Metric("in_worker_s", "in the worker", "part"),
    Metric("service_s", "in the app", "part"),
    Metric("transfer_s", "in transfer", "part"),
)
QUEUES = tuple(metric for metric in PARTS if metric.name in ("accept_queue_s", "in_worker_s"))
# How long a slot stays taken after the app: not part of the response, but later requests wait
HELD = Metric("held_s", "worker held after the app", "part")
PLACES = (RESPONSE, *PARTS, HELD)  # they show where a response changed
MAX_LOGARITHM = 700.0  # of the ends of an interval: math.exp fails at 710
FAILURES_PER_EFFECT = 0.02  # times `at_least`: 0.1 % of the requests if `at_least` is 5 %

Launch = Mapping[str, float | None]  # metrics by name; None or missing: unknown
Pair = tuple[Launch, Launch]  # A and B


class Change(Struct, frozen=True):
    """Of one metric over `n` pairs. `a`, `b`: means, geometric for a ratio. `value`: B / A for a
    ratio, else B - A as a share of the response time or of the requests. `low`, `high`: interval of
    `value`; None: too few pairs."""

    metric: Metric
    n: int
    a: float
    b: float
    value: float
    low: float | None = None
    high: float | None = None
    word: Word = "inconclusive"


def pairs_at_last_look(pairs: int) -> int:
    """The number of pairs at the last look; 0 before the first one."""
    return max((look for look in LOOKS if look <= pairs), default=0)


def changes(pairs: Sequence[Pair], at_least: float) -> list[Change]:
    """The change of every metric that both sides of some pair have, as of the last look; before the
    first one, all are inconclusive. `at_least`: the smallest difference that matters, a share."""
    counted = pairs[: pairs_at_last_look(len(pairs)) or len(pairs)]
    metrics = [metric for metric in (*METRICS, *PLACES) if _paired(counted, metric)]
    return [_change(_paired(counted, metric), metric, at_least, len(metrics)) for metric in metrics]


def all_decided(results: Sequence[Change], names: Sequence[str]) -> bool:
    """Whether all of these metrics are decided, and there is at least one."""
    selected = [change for change in results if change.metric.name in names]
    return bool(selected) and all(change.word != "inconclusive" for change in selected)


def unpaired_changes(
    a: Sequence[Launch], b: Sequence[Launch], at_least: float, comparisons: int
) -> list[Change]:
    """The changes between unpaired launches, checked once, by Welch's intervals. The error of 5 %
    is divided among the metrics of all `comparisons`."""
    sides = (Replicates(tuple(a)), Replicates(tuple(b)))
    response_s = sides[0].mean("response_s")
    samples = {
        metric: values
        for metric in (*METRICS, *PLACES)
        if all(values := [_values(side, metric) for side in sides])
        if metric.kind != "part" or response_s
    }
    alpha = FALSE_ALARM_PROBABILITY / (comparisons * max(1, len(samples)))
    return [
        _unpaired(metric, values, response_s or 1.0, at_least, alpha)
        for metric, values in samples.items()
    ]


def _values(launches: Replicates[Launch], metric: Metric) -> list[float]:
    is_ratio = metric.kind == "ratio"
    return launches.positive(metric.name) if is_ratio else launches.values(metric.name)


def _unpaired(
    metric: Metric,
    sides: Sequence[Sequence[float]],
    response_s: float,
    at_least: float,
    alpha: float,
) -> Change:
    divisor = response_s if metric.kind == "part" else 1.0
    a, b = ([math.log(value) if metric.kind == "ratio" else value / divisor for value in side]
            for side in sides)  # fmt: skip
    half = None
    if min(map(len, sides)) > 1:
        half = half_width(a, b, lambda degrees: student_at(1 - alpha, degrees))
    return _change_of(metric, sides[0], sides[1], fmean(b) - fmean(a), half, at_least)


def _change_of(
    metric: Metric, a: Sequence[float], b: Sequence[float], middle: float, half: float | None,
    at_least: float,
) -> Change:  # fmt: skip
    """`middle`: the mean difference, of logarithms for a ratio; `half`: half of its interval."""
    to_effect, mean = (_ratio_of, geometric_mean) if metric.kind == "ratio" else (float, fmean)
    change = Change(metric, min(len(a), len(b)), mean(a), mean(b), to_effect(middle))
    if half is None:
        return change
    low, high = to_effect(middle - half), to_effect(middle + half)
    return replace(change, low=low, high=high, word=_word(low, high, metric, at_least))


def _ratio_of(logarithm: float) -> float:
    """Infinite if it is too large for a number: two launches that differ give a wide interval."""
    return math.exp(logarithm) if logarithm < MAX_LOGARITHM else math.inf


def _paired(pairs: Sequence[Pair], metric: Metric) -> list[tuple[float, float, float]]:
    """(A, B, divisor of their difference) of each pair in which all three are known."""
    triples = []
    for a, b in pairs:
        a_value, b_value = a.get(metric.name), b.get(metric.name)
        divisor = a.get("response_s") if metric.kind == "part" else 1.0
        if a_value is None or b_value is None or not divisor:
            continue
        if metric.kind != "ratio" or (a_value > 0 and b_value > 0):
            triples.append((a_value, b_value, divisor))
    return triples


def _change(
    triples: Sequence[tuple[float, float, float]], metric: Metric, at_least: float, metrics: int
) -> Change:
    is_ratio = metric.kind == "ratio"
    differences = [math.log(b / a) if is_ratio else (b - a) / divisor for a, b, divisor in triples]
    a, b, _ = zip(*triples, strict=True)
    half = _half(differences, metrics)
    return _change_of(metric, a, b, fmean(differences), half, at_least)


def _half(differences: Sequence[float], metrics: int) -> float | None:
    """Half-width of the interval of a mean, one of `metrics`; None before the first look."""
    n = len(differences)
    if n < LOOKS[0]:
        return None
    confidence = 1 - FALSE_ALARM_PROBABILITY / (len(LOOKS) * metrics)
    return student_at(confidence, n - 1) * stdev(differences) / math.sqrt(n)


def _word(low: float, high: float, metric: Metric, at_least: float) -> Word:
    no_effect = 1.0 if metric.kind == "ratio" else 0.0
    if metric.kind == "ratio":
        lower, upper = 1 / (1 + at_least), 1 + at_least
    else:
        upper = at_least * (FAILURES_PER_EFFECT if metric.kind == "share" else 1.0)
        lower = -upper
    if lower < low and high < upper:
        return "same"
    return "inconclusive" if low <= no_effect <= high else "different"
