"""The conclusions of a comparison of A and B, for each class and load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from workerlab.analysis.trials import grouped
from workerlab.experiments.compare.comparison import (
    DECIDING_METRICS,
    HOLD_AFTER_APP,
    PARTS,
    QUEUES,
    RESPONSE,
    RESPONSE_METRICS,
    Change,
    GroupChanges,
    Kind,
    Outcome,
    Word,
)
from workerlab.experiments.sweep.document import grouped_by_cause
from workerlab.finding import Answer, Finding
from workerlab.numbers.units import FORMATS, format_duration, three_digits

MAX_INTERVAL_RATIO = 100.0  # upper over lower end; wider intervals are not shown
MAX_PARTS_RATIO = 1.05  # sum of the parts over the response; above it, the two are inconsistent
MAX_DECIMALS = 7  # a value even closer to no change is printed as no change


class MetricChange(Finding):
    """One metric of A and B. `a`, `b`: means, in seconds, bytes, requests/s or a share; `change`,
    `low`, `high`: B over A for a ratio, else B minus A, as a share of A's response or of the
    requests, and its interval."""

    name: str
    metric: str
    kind: Kind
    a: float
    b: float
    a_text: str
    b_text: str
    change: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        """'p95 20.0 ms instead of 10.0 ms (2.00 times, 1.90 to 2.11)'."""
        values = f"{self.metric} {self.b_text} instead of {self.a_text}"
        interval = None
        if self.low is not None and self.high is not None:
            interval = f"{self.change_text(self.low)} to {self.change_text(self.high)}"
        if self.kind == "share":
            return values + (f" (by {interval} of the requests)" if interval else "")
        change = self.change_text(self.change)
        change += " times" if self.kind == "ratio" else " of a response"
        return f"{values} ({change}{f', {interval}' if interval else ''})"

    def change_text(self, change: float) -> str:
        if self.kind == "ratio":
            decimals = visible_decimals(change, 1.0, 2)
            return three_digits(change) if decimals == 2 else f"{change:.{decimals}f}"
        return FORMATS["fraction"](change) if self.kind == "share" else signed_percent(change)

    @classmethod
    def of(cls, change: Change) -> MetricChange:
        low, high, metric = change.low, change.high, change.metric
        if metric.kind == "ratio" and high is not None and high > MAX_INTERVAL_RATIO * (low or 0.0):
            low = high = None
        return cls(
            name=metric.name,
            metric=metric.label,
            kind=metric.kind,
            a=change.a,
            b=change.b,
            a_text=metric.formatted(change.a),
            b_text=metric.formatted(change.b),
            change=change.value,
            low=low,
            high=high,
        )


def visible_decimals(value: float, no_change: float, min_decimals: int) -> int:
    """The fewest decimals, at least `min_decimals`, that show on which side of `no_change` a value
    is, since the end of an interval decides whether there is a difference."""
    decimals = (n for n in range(min_decimals, MAX_DECIMALS) if round(value, n) != no_change)
    return next(decimals, min_decimals)


def signed_percent(share: float) -> str:
    """'+5 %', '-0.1 %', '+0.04 %'."""
    decimals = visible_decimals(100 * share, 0.0, 1)
    return FORMATS["change"](share) if decimals == 1 else f"{100 * share:+.{decimals}f} %"


# --- answers about one class and load -------------------------------------------------------------


class GroupAnswer(Answer):
    """An answer about one class and load."""

    group: str

    @property
    def question(self) -> str:
        return f"{self.group}: does B differ from A?"


class InvalidSide(Finding):
    """{side}: {reason:sentence}"""

    side: str
    reason: Finding


class NoValidLaunches(GroupAnswer):
    """Inconclusive: no pair of valid launches.[[ {reasons: }]]"""

    reasons: tuple[InvalidSide, ...]


class MetricsAnswer(GroupAnswer):
    """An answer about the metrics. `same`, `inconclusive`: labels of those metrics."""

    launches: str  # their number, in words
    at_least: float
    same: tuple[str, ...]
    inconclusive: tuple[str, ...]
    disturbed: str  # a sentence
    next_step: str  # a sentence on how to decide the inconclusive metrics


class BDiffers(MetricsAnswer):
    """Yes: {changes:; }.[[ {where}]][[ No difference of {at_least:fraction} or more:
    {same:list}.]][[ Inconclusive: {inconclusive:list}.]][[ {disturbed}]][[ {next_step}]]"""

    changes: tuple[MetricChange, ...]
    where: str


class BIsSame(MetricsAnswer):
    """No, not by {at_least:fraction} or more: {same:list} ({launches}).
    [[ Inconclusive: {inconclusive:list}.]][[ {disturbed}]][[ {next_step}]]"""


class DifferenceInconclusive(MetricsAnswer):
    """Inconclusive after {launches}: {inconclusive:list}.[[ No difference of {at_least:fraction} or
    more: {same:list}.]][[ {disturbed}]][[ {next_step}]]"""


def answer_of(
    group_changes: GroupChanges, *, at_least: float, launches: str, next_step: str
) -> GroupAnswer:
    """The answer for one group: different if any metric is, else inconclusive if one of
    DECIDING_METRICS is, else the same. `launches`: their number, in words; `next_step`: a sentence
    on how to get a result, or ""."""
    group = group_changes.name
    if not group_changes.pairs:
        return NoValidLaunches(group, tuple(reasons_of(group_changes)))
    changes = (change for change in group_changes.changes if change.metric not in RESPONSE_METRICS)
    by_word = grouped(changes, lambda change: change.word)
    different, same, inconclusive = (by_word.get(word, []) for word in get_args(Word))
    common: dict[str, Any] = {
        "group": group,
        "launches": launches,
        "at_least": at_least,
        "same": tuple(change.metric.label for change in same),
        "inconclusive": tuple(change.metric.label for change in inconclusive),
        "disturbed": disturbance_sentence(group_changes),
        "next_step": next_step if inconclusive else "",
        "evidence": tuple(map(MetricChange.of, group_changes.changes)),
    }
    if different:
        metric_changes = tuple(map(MetricChange.of, different))
        return BDiffers(**common, changes=metric_changes, where=where_changed(group_changes))
    if any(change.metric.name in DECIDING_METRICS for change in inconclusive):
        return DifferenceInconclusive(**common)
    return BIsSame(**common)


def reasons_of(group_changes: GroupChanges) -> Iterator[InvalidSide]:
    """For each side with invalid launches, the reason for the first one; a shared reason once."""
    first = dict(reversed(group_changes.invalid))
    causes = ((first[side].reason, first[side]) for side in sorted(first))
    for reason, launches, _ in grouped_by_cause(causes):
        sides = (side for side in sorted(first) if first[side] in launches)
        yield InvalidSide(" and ".join(sides), reason)


def disturbance_sentence(group_changes: GroupChanges) -> str:
    """A sentence on the number of launches that other programs or virtual machines disturbed; "" if
    there are none."""
    launches = [cell for pair in group_changes.pairs for cell in pair]
    disturbed = sum(cell.is_disturbed for cell in launches)
    if not disturbed:
        return ""
    count = f"{disturbed} of the {len(launches)} launches"
    return f"{count} had to wait for a core that other programs or machines used."


def where_changed(group_changes: GroupChanges) -> str:
    """A sentence on the part of the response that changed most, or on how long the worker holds a
    slot after the app. "" if the response itself did not change, if no part changed in the same
    direction (time only moved between parts), or if the parts of a side add up to more than its
    response. A part that some launch lacks counts as unchanged: the other launches would be a
    biased selection. A longer hold is attributed to the worker even if later requests wait longer
    still: queues grow with any delay."""
    differences_by_metric = {
        change.metric: change
        for change in group_changes.changes
        if change.metric in RESPONSE_METRICS and change.word == "different"
    }
    response = differences_by_metric.pop(RESPONSE, None)
    if response is None or not _add_up(group_changes.changes, response):
        return ""
    parts = [
        change
        for change in differences_by_metric.values()
        if change.n == response.n and change.value * response.value > 0
    ]
    largest, cause = (
        max(changes, key=lambda change: abs(change.value), default=None)
        for changes in (parts, [change for change in parts if change.metric not in QUEUES])
    )
    if largest is None:
        return ""
    if cause is None or cause.metric != HOLD_AFTER_APP:
        before, after = format_duration(largest.a), format_duration(largest.b)
        return f"The change is {largest.metric.label}: {after} of a response instead of {before}."
    waiting = ", and the next requests wait for the slot" if cause.value > 0 else ""
    return (
        f"The change is in the worker: it holds a slot for {format_duration(cause.b)} after the app"
        f" finishes, instead of {format_duration(cause.a)}{waiting}."
    )


def _add_up(changes: Sequence[Change], response: Change) -> bool:
    """Whether the parts of a response add up to no more than the response, for A and for B."""
    parts = [change for change in changes if change.metric in PARTS]
    return all(
        sum(getattr(part, side) for part in parts) <= MAX_PARTS_RATIO * getattr(response, side)
        for side in ("a", "b")
    )


# --- answers about the whole comparison -----------------------------------------------------------


class RunDifference(Finding):
    """{label}: {a} and {b}"""

    name: str
    label: str
    a: str
    b: str


class RunsDiffer(Answer):
    """{differences:; }."""

    question = "What else differs between the runs?"

    differences: tuple[RunDifference, ...]


YesOrNo = Literal["No.", "Inconclusive.", "Yes."]


class LimitsAnswer(Answer):
    """{answer}[[ Exceeded: {exceeded:; }.]][[ Inconclusive: {inconclusive:; }.]]
    [[ Met: {kept:; }.]]"""

    question = "Are the limits met?"

    answer: YesOrNo
    exceeded: tuple[str, ...]
    inconclusive: tuple[str, ...]
    kept: tuple[str, ...]


# In order of precedence
ANSWERS: Mapping[Outcome, YesOrNo] = {
    "exceeded": "No.",
    "inconclusive": "Inconclusive.",
    "met": "Yes.",
}


def limits_answer(groups: Sequence[GroupChanges]) -> Iterator[LimitsAnswer]:
    """The answer on all limits; none without limits."""
    limits = {
        outcome: tuple(
            f"{limit.text} ({group_changes.name})"
            for group_changes in groups
            for limit, result in group_changes.outcomes
            if result == outcome
        )
        for outcome in ANSWERS
    }
    if any(limits.values()):
        yield LimitsAnswer(
            answer=next(answer for outcome, answer in ANSWERS.items() if limits[outcome]),
            exceeded=limits["exceeded"],
            inconclusive=limits["inconclusive"],
            kept=limits["met"],
        )
