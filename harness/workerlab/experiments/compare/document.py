"""The document of `workerlab compare`. For each class and load it says whether B differs, in which
metrics, and which part of the response changed.

Charts: the ratios with their intervals, the response time distributions of A and B as reported by
the load tool, and the parts of a response.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from workerlab.analysis.facts import TrialData
from workerlab.analysis.trials import Replicates
from workerlab.errors import ExitCode
from workerlab.experiments.budget import used_s
from workerlab.experiments.compare.comparison import (
    METRICS,
    PARTS,
    SIDES,
    CompareRequest,
    GroupChanges,
    compare_groups,
    next_look_s,
)
from workerlab.experiments.compare.findings import (
    MetricChange,
    RunDifference,
    RunsDiffer,
    answer_of,
    limits_answer,
    signed_percent,
)
from workerlab.experiments.reading import as_argument, notes_of, trial_data
from workerlab.finding import Finding
from workerlab.model.result import Chart, ChartSeries, Column, Document, Level, Mark, Result, Table
from workerlab.numbers.samples import percents_of, quantile
from workerlab.numbers.units import counted, fill, format_wait, listed
from workerlab.paths import label_of
from workerlab.report.values import PART_LOOKS, curves, joined_table, serving_software
from workerlab.report.values import PARTS as PART_HEADINGS
from workerlab.run_store import Run

QUANTILES = {50.0: "p50", 90.0: "p90", 95.0: "p95", 99.0: "p99"}  # reported by every load tool

Curve = Mapping[float, float]  # percentile (0 to 100) -> response time, seconds
TrialsByKey = Mapping[str, TrialData]
BothTrials = tuple[TrialsByKey, TrialsByKey]  # of A and B


def trials_by_key(trials: Iterable[TrialData]) -> TrialsByKey:
    return {data.trial.key: data for data in trials}


def curve(data: TrialData | None, cell: Result) -> Curve:
    """The distribution of a launch's response times, at the resolution of its load tool. Failures
    are excluded; if there are some that the tool does not separate, only QUANTILES are used."""
    measurement = data.measurement if data else None
    if measurement is not None:
        timings = (timing for timing in measurement.timings if timing.cause is None)
        times_s = sorted(timing.end_s for timing in timings if timing.end_s is not None)
        if not measurement.failed:
            times_s = times_s or sorted(measurement.responses_s)
        if times_s:
            percents = percents_of(len(times_s))
            return {percent: quantile(times_s, percent / 100) for percent in percents}
        if not measurement.failed and measurement.percentiles_s:
            return measurement.percentiles_s
    quantiles = {percent: getattr(cell.response, name) for percent, name in QUANTILES.items()}
    return {percent: value for percent, value in quantiles.items() if value is not None}


def mean_curve(distributions: Sequence[Curve]) -> Curve:
    """The mean of the curves at their common points."""
    common = set.intersection(*map(set, distributions)) if distributions else set()
    return {
        percent: sum(times_s[percent] for times_s in distributions) / len(distributions)
        for percent in sorted(common)
    }


MEANS = "Means over the launches."
GROUP_GAP, MAX_GROUPS_WIDTH = 0.12, 0.8  # of the distance between two metrics


def charts(groups: Sequence[GroupChanges], trials: BothTrials) -> Iterable[Chart]:
    yield from _ratios(groups)
    for group in groups:
        if group.pairs:
            yield from _distributions(group, trials)
            yield from _breakdown(group)


def _ratios(groups: Sequence[GroupChanges]) -> Iterable[Chart]:
    """The ratios of all groups, next to each other at each metric; 1 is no difference."""
    series = []
    measured_metrics = {change.metric for group in groups for change in group.changes}
    ratios = (metric for metric in METRICS if metric.kind == "ratio")
    metrics = [metric for metric in ratios if metric in measured_metrics]
    for number, group in enumerate(groups):
        changes = [change for change in group.changes if change.metric in metrics and change.low]
        offset = min(GROUP_GAP, MAX_GROUPS_WIDTH / len(groups)) * (number - (len(groups) - 1) / 2)
        points = tuple((metrics.index(change.metric) + offset, change.value) for change in changes)
        marks = tuple(Mark(change.metric.label, change.low, change.high) for change in changes)
        if points:
            series.append(ChartSeries(group.name, points, marks))
    if series:
        yield Chart(
            title="B relative to A",
            x_title="metric",
            y_title="B / A",
            series=tuple(series),
            log=(False, True),
            note="With the intervals of the table; 1 is no difference.",
            form="scatter",
            names=tuple(metric.label for metric in metrics),
            level=Level("no difference", 1.0),
        )


def _sides(group: GroupChanges) -> list[Replicates[Result]]:
    """The launches of A and of B."""
    return [Replicates(valid=side) for side in zip(*group.pairs, strict=True)]


def _distributions(group: GroupChanges, trials: BothTrials) -> Iterable[Chart]:
    """The cumulative distribution of response times, both sides in one chart."""
    points = (
        (side, time_s, percent)
        for side, side_trials, launches in zip(SIDES, trials, _sides(group), strict=True)
        for percent, time_s in mean_curve(
            [curve(side_trials.get(launch.trial.key), launch) for launch in launches.valid]
        ).items()
    )
    if series := curves(points):
        yield Chart(
            title=f"Response times, {group.name}",
            x_title="seconds",
            y_title="% of responses that took no longer",
            series=series,
            log=(True, False),
            note=MEANS,
        )


def _breakdown(group: GroupChanges) -> Iterable[Chart]:
    """The mean parts of a response, for A and B."""
    series, sides = [], _sides(group)
    for part in PARTS:
        means = (launches.mean(f"breakdown.{part.name}") for launches in sides)
        points = tuple((float(x), mean) for x, mean in enumerate(means) if mean is not None)
        if points:
            name = part.name.removesuffix("_s")
            series.append(ChartSeries(PART_HEADINGS[name], points, look=PART_LOOKS[name]))
    if series:
        yield Chart(
            title=f"Parts of a response, {group.name}",
            x_title="side",
            y_title="seconds",
            series=tuple(series),
            note=MEANS,
            form="stacked",
            names=SIDES,
        )


CHANGE_NOTE = (
    "Change: B / A; for the mean response and its parts, the difference as a share of A's mean"
    " response (under a load without a rate, the parts are estimates); for failed requests, the"
    " difference as a share of the requests."
)
PAIRS_NOTE = (
    f"{CHANGE_NOTE} Low, high: its interval over the pairs of launches. In 95 of 100 comparisons,"
    " all intervals of a class and load are simultaneously correct, whenever the comparison stops."
    " Intervals that span more than a factor of 100 are not shown."
)
SAVED_RUNS_NOTE = (
    f"{CHANGE_NOTE} Low, high: its interval over the launches of both runs. In 95 of 100"
    " comparisons, all intervals are simultaneously correct. Intervals that span more than a factor"
    " of 100 are not shown."
)
MORE_TRIALS = "For narrower intervals, sweep with more --trials."


class InvalidLaunch(Finding):
    """Left out[[{with_pair}]]: a launch of {side}: {reason}"""

    side: str
    reason: Finding
    trial: str  # its key
    with_pair: str


def document(run: Run) -> Document:
    request, groups = CompareRequest.of(run.plan), compare_groups(run)
    trials = trials_by_key(trial_data(run, keep=True))
    return comparison(
        groups,
        title=title_of(request, groups, run),
        run=run,
        trials=(trials, trials),
        at_least=request.at_least,
        strict=request.strict,
    )


def comparison(
    groups: Sequence[GroupChanges],
    title: str,
    run: Run,
    trials: BothTrials,
    at_least: float,
    differences: Sequence[RunDifference] | None = None,
    *,
    strict: bool,
) -> Document:
    """The document of pairs of launches in one run, or of two saved runs. `run`: that of A;
    `differences`: other differences of the saved runs, listed first; None for pairs."""
    paired = differences is None
    next_step = how_to_continue(groups, run) if paired else MORE_TRIALS
    invalid = list(invalid_launches(groups, paired=paired))
    answers = [
        answer_of(
            group,
            at_least=at_least,
            launches=launches_text(group),
            next_step=next_step if group.needs_more_pairs or not paired else "",
        )
        for group in groups
    ]
    return Document(
        run=run.name,
        kind="compare",
        title=title,
        environment=run.environment,
        findings=(
            *([RunsDiffer(tuple(differences))] if differences else ()),
            *answers,
            *limits_answer(groups),
        ),
        tables=tuple(tables(groups, paired=paired)),
        charts=tuple(charts(groups, trials)),
        notes=(*notes_of(run), *invalid),
        valid=any(group.pairs for group in groups) and not invalid,
        exit_code=exit_code(groups, strict=strict),
    )


def invalid_launches(groups: Sequence[GroupChanges], *, paired: bool) -> Iterator[InvalidLaunch]:
    with_pair = ", with its pair" if paired else ""
    for group in groups:
        for side, launch in group.invalid:
            yield InvalidLaunch(side, launch.reason, trial=launch.trial.key, with_pair=with_pair)


def exit_code(groups: Sequence[GroupChanges], *, strict: bool) -> int | None:
    """The exit code by the outcomes of the limits; None without limits, or if a group has no valid
    launches."""
    outcomes = {outcome for group in groups for _, outcome in group.outcomes}
    if "exceeded" in outcomes:
        return ExitCode.TARGET_MISSED
    if strict and "inconclusive" in outcomes:
        return ExitCode.INCONCLUSIVE
    return ExitCode.DONE if outcomes and all(group.pairs for group in groups) else None


def launches_text(group: GroupChanges) -> str:
    if group.launches is None:
        return f"{counted(len(group.pairs), 'pair')} of launches"
    a, b = group.launches
    launches = counted(a, "launch/launches")
    return f"{launches} of each" if a == b else f"{launches} of A and {b} of B"


def how_to_continue(groups: Sequence[GroupChanges], run: Run) -> str:
    """A sentence on what the run lacks and how to continue it; "" if no group needs more pairs."""
    remaining_s = next_look_s(run, groups)
    if remaining_s is None:
        return ""
    total_s = remaining_s + sum(map(used_s, run.records.values()))
    minutes = math.ceil(1.1 * total_s / 60)
    return (
        f"The next check needs more launches, which take about {format_wait(remaining_s)}: continue"
        f" with --resume {as_argument(run)} --budget {minutes}m."
    )


def title_of(request: CompareRequest, groups: Sequence[GroupChanges], run: Run) -> str:
    a, b = (words or "unchanged" for words in request.words)
    cells = [cell for group in groups for cell in (group.group.a, group.group.b)]
    apps = {label_of(cell.server.app) for cell in cells}
    values = {
        "a": a,
        "b": b,
        "app": next(iter(apps)) if len(apps) == 1 else None,
        "served": serving_software(run.environment, (cell.server for cell in cells)),
        "tools": listed(list(dict.fromkeys(cell.tool for cell in cells))),
    }
    app = fill("[[app {app}]][[, served by {served}]]; ", values) if values["app"] else ""
    return fill("A: {a}; B: {b}; {app}load by {tools}", {**values, "app": app})


def tables(groups: Sequence[GroupChanges], *, paired: bool) -> Iterator[Table]:
    rows = [
        (group, MetricChange.of(change), change) for group in groups for change in group.changes
    ]
    columns = (
        (Column("group", "text", heading="class and load", value="name"),),
        (
            Column("metric", "text"),
            Column("a", "text", value="a_text"),
            Column("b", "text", value="b_text"),
            *(
                Column(name, "text", rank, value=partial(change_text, name=name))
                for name, rank in (("change", 0), ("low", 1), ("high", 1))
            ),
        ),
        (
            Column("pairs" if paired else "launches", "count", 2, value="n"),
            Column("word", "text", heading="verdict"),
        ),
    )
    if rows:
        note = PAIRS_NOTE if paired else SAVED_RUNS_NOTE
        yield joined_table("A and B", columns, rows, note=note)


def change_text(change: MetricChange, name: str) -> str | None:
    """A ratio as a factor, other changes in percent."""
    value = getattr(change, name)
    if value is None:
        return None
    return change.change_text(value) if change.kind == "ratio" else signed_percent(value)
