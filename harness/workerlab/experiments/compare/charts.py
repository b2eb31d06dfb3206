"""The charts of a comparison: ratios with their intervals, distributions of the response times of A
and B, and the parts of a response."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from workerlab.analysis.comparison import METRICS, PARTS
from workerlab.experiments.compare.pairs import SIDES, GroupChanges
from workerlab.experiments.compare.times import curve, mean_curve
from workerlab.model import CellResult, Chart, ChartSeries, Level, Mark
from workerlab.report import naming
from workerlab.run_store import Run

MEANS = "Means over the launches."
GROUP_GAP, MAX_GROUPS_WIDTH = 0.12, 0.8  # of the distance of two metrics


def charts(groups: Sequence[GroupChanges], runs: tuple[Run, Run]) -> Iterable[Chart]:
    """`runs`: of A and of B; the same run twice if its launches are pairs."""
    yield from _ratios(groups)
    for group in groups:
        if group.pairs:
            yield from _distributions(group, runs)
            yield from _breakdown(group)


def _ratios(groups: Sequence[GroupChanges]) -> Iterable[Chart]:
    """Ratios of all groups, side by side at each metric; 1 is no difference."""
    series = []
    changes = [change for group in groups for change in group.changes]
    ratios = {change.metric for change in changes if change.metric.kind == "ratio"}
    metrics = [metric for metric in METRICS if metric in ratios]
    for number, group in enumerate(groups):
        measured = [change for change in group.changes if change.metric in ratios and change.low]
        offset = min(GROUP_GAP, MAX_GROUPS_WIDTH / len(groups)) * (number - (len(groups) - 1) / 2)
        points = tuple((metrics.index(change.metric) + offset, change.value) for change in measured)
        marks = tuple(Mark(change.metric.label, change.low, change.high) for change in measured)
        if points:
            series.append(ChartSeries(group.name, points, marks))
    if series:
        yield Chart(
            title="B as times A",
            x_title="metric",
            y_title="B / A",
            series=tuple(series),
            log=(False, True),
            note="With the intervals of the table; 1 is no difference.",
            form="scatter",
            names=tuple(metric.label for metric in metrics),
            level=Level("nothing changed", 1.0),
        )


def _sides(group: GroupChanges) -> Iterable[tuple[str, Sequence[CellResult]]]:
    for place, side in enumerate(SIDES):
        yield side.upper(), [pair[place] for pair in group.pairs]


def _distributions(group: GroupChanges, runs: tuple[Run, Run]) -> Iterable[Chart]:
    """Both sides in one chart: the share of responses that took no longer."""
    series = []
    for run, (side, cells) in zip(runs, _sides(group), strict=True):
        mean = mean_curve([curve(run, cell) for cell in cells])
        series.append(
            ChartSeries(side, tuple((time_s, percent) for percent, time_s in mean.items()))
        )
    if any(side.points for side in series):
        yield Chart(
            title=f"How long responses take, {group.name}",
            x_title="seconds",
            y_title="% of the responses took no longer",
            series=tuple(series),
            log=(True, False),
            note=MEANS,
        )


def _breakdown(group: GroupChanges) -> Iterable[Chart]:
    """The parts of a response, of A and of B."""
    series = []
    for part in PARTS:
        points = []
        for at, (_, cells) in enumerate(_sides(group)):
            values = [
                value for cell in cells
                if (value := getattr(cell.breakdown, part.name)) is not None
            ]  # fmt: skip
            if values:
                points.append((float(at), fmean(values)))
        if points:
            name = part.name.removesuffix("_s")
            look = naming.PART_LOOKS[name]
            series.append(ChartSeries(naming.PARTS[name], tuple(points), look=look))
    if series:
        yield Chart(
            title=f"What they are made of, {group.name}",
            x_title="side",
            y_title="seconds",
            series=tuple(series),
            note=MEANS,
            form="stacked",
            names=tuple(side.upper() for side in SIDES),
        )
