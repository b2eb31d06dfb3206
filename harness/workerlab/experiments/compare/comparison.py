"""The effect of B compared with A, from pairs of fresh launches, one of each, in random order.

Each pair gives one difference per metric: of logarithms for a ratio (throughput, times, CPU,
memory), of times for the parts of a response, of shares for failures. Their mean has Student's
interval over pairs. An interval over requests would be far too narrow, because launches differ more
than the requests within one.

Pairs are added until every metric is decided. Checking after every pair would eventually find a
difference between identical servers, so results are checked only after the numbers of pairs in
LOOKS, and the error of 5 % is divided among these looks and the metrics (Bonferroni): the intervals
of all metrics are simultaneously valid, whenever the comparison stops.

    different      the interval excludes "no difference"
    same           it lies within `at_least`, even if it excludes "no difference": the difference
                   does not matter
    inconclusive   neither, so far

A build can fail on limits of a change, such as 'p95>+10%,rps<-5%'. A limit is exceeded if the whole
interval of the change is beyond it, met if the whole interval is within it, otherwise inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, geometric_mean, stdev
from typing import Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from workerlab import codec
from workerlab.analysis.cell_targets import load_level
from workerlab.analysis.trials import Replicates
from workerlab.analysis.verdict import was_left_out
from workerlab.experiments.budget import used_s
from workerlab.experiments.compare.options import METRIC_NAMES
from workerlab.experiments.reading import report_of, trial_data
from workerlab.model.plan import Cell, Plan
from workerlab.model.result import Invalid, Result, TrialResult
from workerlab.numbers.intervals import half_width, two_sided_t
from workerlab.numbers.units import FORMATS, amount, fill, format_bytes, format_duration
from workerlab.report.values import Names
from workerlab.run_store import Run
from workerlab.slo import Limit, parse_limits

LOOKS = (4, 6, 9, 13, 19, 28, 40)  # numbers of pairs after which results are checked
FALSE_ALARM_PROBABILITY = 0.05  # of finding any difference between identical servers

MAX_INVALID_PAIRS = 3  # after this many without a valid one, a comparison ends
SIDES = ("A", "B")

Word = Literal["different", "same", "inconclusive"]
Outcome = Literal["exceeded", "met", "inconclusive"]  # of a limit
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
# Over the responses that are divided into the parts below, not over those of the median and p95
RESPONSE = Metric("response_s", "mean response", "part")
PARTS = (
    Metric("connect_s", "in connect", "part"),
    Metric("accept_queue_s", "in the accept queue", "part"),
    Metric("in_worker_s", "in the worker", "part"),
    Metric("service_s", "in the app", "part"),
    Metric("transfer_s", "in transfer", "part"),
)
# Start and stop are measured once per launch, and vary too much to wait until they are decided
DECIDING_METRICS = tuple(m.name for m in METRICS if m.name not in ("start_s", "stop_s"))
QUEUES = tuple(metric for metric in PARTS if metric.name in ("accept_queue_s", "in_worker_s"))
# The time that a slot is held after the app: not part of the response, but later requests wait
HOLD_AFTER_APP = Metric("held_s", "slot held after the app", "part")
RESPONSE_METRICS = (RESPONSE, *PARTS, HOLD_AFTER_APP)  # they show where a response changed
MAX_LOGARITHM = 700.0  # of the ends of an interval: math.exp overflows at 710
FAILURES_PER_EFFECT = 0.02  # times `at_least`: 0.1 % of the requests if `at_least` is 5 %

Launch = Mapping[str, float | None]  # metrics by name; None or missing: unknown
Pair = tuple[Launch, Launch]  # A and B
P = TypeVar("P")


class Change(Struct, frozen=True):
    """The change of one metric over `n` pairs. `a`, `b`: means, geometric for a ratio; `value`:
    B / A for a ratio, else B - A as a share of the response time or of the requests; `low`, `high`:
    interval of `value`, None with too few pairs."""

    metric: Metric
    n: int
    a: float
    b: float
    value: float
    low: float | None = None
    high: float | None = None
    word: Word = "inconclusive"


def at_last_look(pairs: Sequence[P]) -> Sequence[P]:
    """The pairs that counted at the last look; before the first one, all."""
    return pairs[: max((look for look in LOOKS if look <= len(pairs)), default=len(pairs))]


def changes(pairs: Sequence[Pair], at_least: float) -> list[Change]:
    """The change of every metric that both sides of some pair have, as of the last look; before the
    first one, all are inconclusive. `at_least`: the smallest difference that matters, a share."""
    pairs_at_look = at_last_look(pairs)
    by_metric = {
        metric: triples
        for metric in (*METRICS, *RESPONSE_METRICS)
        if (triples := _paired(pairs_at_look, metric))
    }
    return [
        _change(triples, metric, at_least, metrics=len(by_metric))
        for metric, triples in by_metric.items()
    ]


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
        for metric in (*METRICS, *RESPONSE_METRICS)
        if all(values := [_values(side, metric) for side in sides])
        if metric.kind != "part" or response_s
    }
    alpha = FALSE_ALARM_PROBABILITY / (comparisons * max(1, len(samples)))
    results = []
    for metric, values in samples.items():
        divisor = (response_s or 1.0) if metric.kind == "part" else 1.0
        scaled_a, scaled_b = ([math.log(value) if metric.kind == "ratio" else value / divisor
                               for value in side] for side in values)  # fmt: skip
        half = None
        if min(map(len, values)) > 1:
            half = half_width(scaled_a, scaled_b, lambda degrees: two_sided_t(1 - alpha, degrees))
        difference = fmean(scaled_b) - fmean(scaled_a)
        results.append(_change_of(metric, values[0], values[1], difference, half, at_least))
    return results


def _values(launches: Replicates[Launch], metric: Metric) -> list[float]:
    is_ratio = metric.kind == "ratio"
    return launches.positive(metric.name) if is_ratio else launches.values(metric.name)


def _change_of(
    metric: Metric, a: Sequence[float], b: Sequence[float], difference: float, half: float | None,
    at_least: float,
) -> Change:  # fmt: skip
    """The change of a metric. `difference`: the mean difference, of logarithms for a ratio; `half`:
    half the width of its interval."""
    to_effect, mean = (_ratio_of, geometric_mean) if metric.kind == "ratio" else (float, fmean)
    change = Change(metric, min(len(a), len(b)), mean(a), mean(b), to_effect(difference))
    if half is None:
        return change
    low, high = to_effect(difference - half), to_effect(difference + half)
    if metric in (RESPONSE, *PARTS):  # none can shrink by more than the whole response
        low = max(-1.0, low)
    return replace(change, low=low, high=high, word=_word(low, high, metric, at_least))


def _ratio_of(logarithm: float) -> float:
    """The ratio; infinite if math.exp would overflow, as it may for the wide interval over two
    launches."""
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
    """The change of a metric. `metrics`: the number of metrics compared at once."""
    is_ratio = metric.kind == "ratio"
    differences = [math.log(b / a) if is_ratio else (b - a) / divisor for a, b, divisor in triples]
    a, b, _ = zip(*triples, strict=True)
    n, half = len(triples), None
    if n >= LOOKS[0]:
        confidence = 1 - FALSE_ALARM_PROBABILITY / (len(LOOKS) * metrics)
        half = two_sided_t(confidence, n - 1) * stdev(differences) / math.sqrt(n)
    return _change_of(metric, a, b, fmean(differences), half, at_least)


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


# --- limits ---------------------------------------------------------------------------------------


def judge(limit: Limit, changes: Iterable[Change]) -> Outcome:
    """The outcome of a limit for the changes of one group."""
    change = next((change for change in changes if change.metric.name == limit.metric), None)
    if change is None or change.low is None or change.high is None:
        return "inconclusive"
    bound = limit.share if change.metric.kind == "share" else 1 + limit.share
    if (change.low > bound) if limit.above else (change.high < bound):
        return "exceeded"
    is_met = change.high <= bound if limit.above else change.low >= bound
    return "met" if is_met else "inconclusive"


def outcomes(limits: str | None, changes: Sequence[Change]) -> list[tuple[Limit, Outcome]]:
    """The outcome of each limit of --fail-if for one group; [] without limits."""
    parsed = parse_limits(limits, METRIC_NAMES) if limits else ()
    return [(limit, judge(limit, changes)) for limit in parsed]


# --- the pairs of a run ---------------------------------------------------------------------------


class Group(Struct, frozen=True):
    """A cell of A and a cell of B with the same class and load."""

    a: Cell
    b: Cell


class CompareRequest(Struct, frozen=True):
    """The user's request, stored as the Plan's details."""

    groups: tuple[Group, ...]
    at_least: float
    budget_s: float
    words: tuple[str, str]  # of --a and --b
    limits: str = ""  # of --fail-if
    strict: bool = False
    junit: str = ""  # path of the limits as JUnit XML

    @classmethod
    def of(cls, plan: Plan) -> CompareRequest:
        return codec.convert(plan.details, cls)


LaunchPair = tuple[Result, Result]  # of A and of B
InvalidOfSide = tuple[str, Invalid]  # "A" or "B"


class GroupChanges(NamedTuple):
    """A group and its results at the last look. `invalid`: invalid launches, each with its side;
    `pair_count`: number of valid pairs, including those since the last look; `launches`: number of
    valid launches of A and of B, None for pairs."""

    group: Group
    pairs: Sequence[LaunchPair]
    changes: Sequence[Change]
    invalid: Sequence[InvalidOfSide]
    outcomes: Sequence[tuple[Limit, Outcome]] = ()  # of --fail-if
    settings: tuple[str, ...] = ()  # that distinguish it from groups of the same class and load
    pair_count: int = 0
    launches: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """'sync at 8 connections', 'sync (4 workers) against gevent at 8 connections'."""
        a, b = (cell.server.worker_class for cell in (self.group.a, self.group.b))
        values = {"a": a, "b": b if b != a else None, "settings": self.settings}
        servers = fill("{a}[[ ({settings:, })]][[ against {b}]]", values)
        return f"{servers} at {load_level(self.group.a)}"

    @property
    def is_decided(self) -> bool:
        """Whether no more pairs are needed. A group without a valid pair is given up after
        MAX_INVALID_PAIRS, or after the first pair if a server does not boot. With limits, only
        their outcomes count."""
        invalid_pairs = {cell.trial.cell.schedule for _, cell in self.invalid}
        none_boots = invalid_pairs and all(was_left_out(cell) for _, cell in self.invalid)
        if not self.pairs and (none_boots or len(invalid_pairs) >= MAX_INVALID_PAIRS):
            return True
        if self.outcomes:
            return all(outcome != "inconclusive" for _, outcome in self.outcomes)
        return all_decided(self.changes, DECIDING_METRICS)

    @property
    def next_look(self) -> int | None:
        """The number of pairs at the next look; None after the last."""
        return next((look for look in LOOKS if look > self.pair_count), None)

    @property
    def needs_more_pairs(self) -> bool:
        return not self.is_decided and self.next_look is not None


def distinguishing_settings(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """For each group, the settings of its server and load, as text, that distinguish groups of the
    same class and load."""
    cells = [group.a for group in groups]
    names = Names(planned=cells)
    return [tuple(names.distinctions(cell)) for cell in cells]


def launch_metrics(run: Run, cell: Result) -> Launch:
    """The metrics of one launch by name; None if unknown."""
    record = run.records[cell.trial.key]
    cores = cell.usage.server_cores
    return {
        "throughput_rps": cell.throughput_rps,
        "response_p50_s": cell.response.p50,
        "response_p95_s": cell.response.p95,
        "cpu_s": cores * cell.load_s / cell.requests if cores and cell.load_s else None,
        "memory_bytes": cell.usage.server_rss_bytes,
        "start_s": record.start_s,
        "stop_s": record.stop_s,
        "failed": cell.failed / cell.requests,
        **{part.name: getattr(cell.breakdown, part.name) for part in (RESPONSE, *PARTS)},
        "held_s": cell.held_s,
    }


def pairs_of(
    cells: Iterable[TrialResult], group: Group
) -> tuple[list[LaunchPair], list[InvalidOfSide]]:
    """The pairs of valid launches, in order; and the invalid launches of the other pairs, each with
    its side, "A" or "B"."""
    launches = {cell.trial.cell: cell for cell in cells}
    valid, invalid = list[LaunchPair](), list[InvalidOfSide]()
    for number in sorted({cell.schedule for cell in launches if cell.schedule}):
        a, b = (launches.get(replace(side, schedule=number)) for side in (group.a, group.b))
        if a is None or b is None:
            continue
        if isinstance(a, Result) and isinstance(b, Result):
            valid.append((a, b))
        sides = zip(SIDES, (a, b), strict=True)
        invalid += [(side, launch) for side, launch in sides if isinstance(launch, Invalid)]
    return valid, invalid


def compare_groups(run: Run) -> list[GroupChanges]:
    """The changes in every group, from the pairs stored so far."""
    request, comparisons = CompareRequest.of(run.plan), []
    cells = report_of(run, trial_data(run, keep=True)).cells
    all_settings = distinguishing_settings(request.groups)
    for group, settings in zip(request.groups, all_settings, strict=True):
        pairs, invalid = pairs_of(cells, group)
        metrics: list[Pair] = [(launch_metrics(run, a), launch_metrics(run, b)) for a, b in pairs]
        metric_changes = changes(metrics, request.at_least)
        comparisons.append(
            GroupChanges(
                group=group,
                pairs=at_last_look(pairs),
                changes=metric_changes,
                invalid=invalid,
                outcomes=outcomes(request.limits, metric_changes),
                settings=settings,
                pair_count=len(pairs),
            )
        )
    return comparisons


def next_look_s(run: Run, groups: Sequence[GroupChanges]) -> float | None:
    """Predicted seconds until the next look at undecided groups, from the launches so far; until
    the next pair, if some pairs for that look exist. None if no group needs more."""
    undecided = [group for group in groups if group.needs_more_pairs]
    if not undecided:
        return None
    if any(group.pair_count > 1 and group.pair_count not in LOOKS for group in undecided):
        pairs = 1
    else:
        pairs = max((group.next_look or 0) - group.pair_count for group in undecided)
    launches_s = [used_s(record) for record in run.records.values()]
    return 2 * pairs * len(undecided) * fmean(launches_s) if launches_s else 0.0
