"""The pictures of a comparison: ratios with their intervals, how the response times of A and B are
distributed, and the parts they are made of."""

from collections.abc import Iterable, Sequence
from statistics import fmean

from workerlab.analysis.comparison import METRICS, PARTS
from workerlab.experiments.compare.pairs import SIDES, Compared
from workerlab.experiments.compare.times import curve, mean_curve
from workerlab.model import CellResult, Chart, Finding, Level, Mark, Series
from workerlab.run_store import Run

APART, WIDE = 0.12, 0.8  # two groups, and all of them, where metrics are 1 apart


def charts(groups: Sequence[Compared], runs: tuple[Run, Run]) -> Iterable[Chart]:
    """`runs`: of A and of B; both the same where their launches are pairs."""
    yield from _ratios(groups)
    for one in groups:
        if one.pairs:
            yield from _distributions(one, runs)
            yield from _breakdown(one)


def _ratios(groups: Sequence[Compared]) -> Iterable[Chart]:
    """1 is no difference. Groups stand beside each other at each metric."""
    series = []
    seen = {each.metric for one in groups for each in one.changes if each.metric.kind == "ratio"}
    metrics = [metric for metric in METRICS if metric in seen]
    for number, one in enumerate(groups):
        known = [each for each in one.changes if each.metric in seen and each.low]
        beside = min(APART, WIDE / len(groups)) * (number - (len(groups) - 1) / 2)
        points = tuple((metrics.index(each.metric) + beside, each.value) for each in known)
        marks = tuple(
            Mark(Finding(f"compare.metric.{each.metric.name}"), each.low, each.high)
            for each in known
        )
        if points:
            series.append(Series(one.name, points, marks))
    if series:
        title, x, y = (Finding(f"compare.chart{part}") for part in ("", ".metric", ".ratio"))
        note = Finding("compare.chart.note")
        names = tuple(Finding(f"compare.metric.{metric.name}") for metric in metrics)
        level = Level(Finding("compare.chart.nothing"), 1.0)
        yield Chart(
            *(title, x, y, tuple(series), (False, True), note),
            form="scatter", names=names, level=level,
        )  # fmt: skip


def _sides(one: Compared) -> Iterable[tuple[str, Sequence[CellResult]]]:
    for at, which in enumerate(SIDES):
        yield which.upper(), [pair[at] for pair in one.pairs]


def _distributions(one: Compared, runs: tuple[Run, Run]) -> Iterable[Chart]:
    """Both sides over each other: how many of the responses took no longer."""
    series = []
    for run, (which, cells) in zip(runs, _sides(one), strict=True):
        known = mean_curve([curve(run, cell) for cell in cells])
        series.append(Series(which, tuple((time_s, percent) for percent, time_s in known.items())))
    title = Finding("compare.chart.distribution", {"group": one.name})
    x, y = Finding("compare.chart.response"), Finding("compare.chart.percent")
    if any(its.points for its in series):
        note = Finding("compare.chart.means")
        yield Chart(title, x, y, tuple(series), (True, False), note)


def _breakdown(one: Compared) -> Iterable[Chart]:
    """What a response is made of, of A and of B."""
    series = []
    for part in PARTS:
        points = []
        for at, (_, cells) in enumerate(_sides(one)):
            known = [
                value for cell in cells
                if (value := getattr(cell.breakdown, part.name)) is not None
            ]  # fmt: skip
            if known:
                points.append((float(at), fmean(known)))
        if points:
            name = Finding(f"part.{part.name.removesuffix('_s')}")
            series.append(Series(name, tuple(points)))
    title = Finding("compare.chart.breakdown", {"group": one.name})
    x, y = Finding("compare.chart.side"), Finding("compare.chart.response")
    if series:
        note, names = Finding("compare.chart.means"), tuple(which.upper() for which in SIDES)
        yield Chart(title, x, y, tuple(series), note=note, form="stacked", names=names)
