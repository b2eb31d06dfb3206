"""The pictures of a comparison: ratios with their intervals, how the response times of A and B are
distributed, and the parts they are made of."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from workerlab.analysis.comparison import METRICS, PARTS
from workerlab.experiments.compare.pairs import SIDES, Compared
from workerlab.experiments.compare.times import curve, mean_curve
from workerlab.model import CellResult, Chart, Level, Mark, Series
from workerlab.report import naming
from workerlab.run_store import Run

MEANS = "Means over the launches."
APART, WIDE = 0.12, 0.8  # two groups, and all of them, where metrics are 1 apart


def charts(groups: Sequence[Compared], runs: tuple[Run, Run]) -> Iterable[Chart]:
    """`runs`: of A and of B; both the same where their launches are pairs."""
    yield from _ratios(groups)
    for group in groups:
        if group.pairs:
            yield from _distributions(group, runs)
            yield from _breakdown(group)


def _ratios(groups: Sequence[Compared]) -> Iterable[Chart]:
    """1 is no difference. Groups stand beside each other at each metric."""
    series = []
    changes = [change for group in groups for change in group.changes]
    ratios = {change.metric for change in changes if change.metric.kind == "ratio"}
    metrics = [metric for metric in METRICS if metric in ratios]
    for number, group in enumerate(groups):
        known = [each for each in group.changes if each.metric in ratios and each.low]
        beside = min(APART, WIDE / len(groups)) * (number - (len(groups) - 1) / 2)
        points = tuple((metrics.index(each.metric) + beside, each.value) for each in known)
        marks = tuple(Mark(each.metric.label, each.low, each.high) for each in known)
        if points:
            series.append(Series(group.name, points, marks))
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


def _sides(group: Compared) -> Iterable[tuple[str, Sequence[CellResult]]]:
    for at, which in enumerate(SIDES):
        yield which.upper(), [pair[at] for pair in group.pairs]


def _distributions(group: Compared, runs: tuple[Run, Run]) -> Iterable[Chart]:
    """Both sides over each other: how many of the responses took no longer."""
    series = []
    for run, (which, cells) in zip(runs, _sides(group), strict=True):
        known = mean_curve([curve(run, cell) for cell in cells])
        series.append(Series(which, tuple((time_s, percent) for percent, time_s in known.items())))
    if any(side.points for side in series):
        yield Chart(
            title=f"How long responses take, {group.name}",
            x_title="seconds",
            y_title="% of the responses took no longer",
            series=tuple(series),
            log=(True, False),
            note=MEANS,
        )


def _breakdown(group: Compared) -> Iterable[Chart]:
    """What a response is made of, of A and of B."""
    series = []
    for part in PARTS:
        points = []
        for at, (_, cells) in enumerate(_sides(group)):
            known = [
                value for cell in cells
                if (value := getattr(cell.breakdown, part.name)) is not None
            ]  # fmt: skip
            if known:
                points.append((float(at), fmean(known)))
        if points:
            name = part.name.removesuffix("_s")
            look = naming.PART_LOOKS[name]
            series.append(Series(naming.PARTS[name], tuple(points), look=look))
    if series:
        yield Chart(
            title=f"What they are made of, {group.name}",
            x_title="side",
            y_title="seconds",
            series=tuple(series),
            note=MEANS,
            form="stacked",
            names=tuple(which.upper() for which in SIDES),
        )
