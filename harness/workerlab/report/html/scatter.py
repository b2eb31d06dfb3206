"""Points that have names, with whiskers, and a line across: candidates between what they cost and
what they do.

A point leads to the row of a table on the same page by a click. Whoever has no pointer, or no
scripts, finds the same links in the figure's table of numbers. Names are not written beside the
points: of dozens that lie close to each other none could be read.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import altair as alt
from msgspec import Struct

from workerlab.model import Chart, ChartSeries, Mark
from workerlab.numbers.formats import amount, counted
from workerlab.numbers.units import MISSING
from workerlab.report.html.colours import var
from workerlab.report.html.figure import (
    POINT,
    Figure,
    Key,
    Looks,
    by_name,
    data,
    not_shown,
    some,
    tip,
)
from workerlab.report.values import text

LEVEL = ("connect", "dashed")
SIZES = {"circle": 60, "square": 90, "diamond": 220}
NAMED_POINTS = 8  # of a series that are all told in words
TICKS = 7  # on a logarithmic axis
TALL = 320


class Point(Struct, frozen=True):
    x: float
    y: float
    mark: Mark

    @property
    def range(self) -> str:
        """Its whisker in words."""
        ends = some(self.mark.low, self.mark.high)
        return " to ".join(map(amount, ends)) if len(ends) == 2 else MISSING


Drawn = Mapping[str, Sequence[Point]]  # by the words of the series


def scatter_figure(chart: Chart, name: str, looks: Looks) -> Figure | None:
    """None where it has nothing, or a single point, to show."""
    drawn = {
        text(series.name): points for series in chart.series if (points := _points(chart, series))
    }
    if sum(map(len, drawn.values())) < 2:
        return None
    looks = {series: looks[series] for series in drawn}
    legend = [Key(series, *look) for series, look in looks.items()]
    level = [] if chart.level is None else [Key(chart.level.name, *LEVEL)]
    last_first = [(series, point) for series in reversed(drawn) for point in drawn[series]]
    return Figure(
        name=name,
        title=chart.title,
        caption=some(chart.note, not_shown(chart, sum(map(len, drawn.values())))),
        alternative=tuple(_words(chart, drawn)),
        panes=(_pane(chart, drawn, looks),),
        legend=(*legend, *level),
        heads=("name", "series", chart.x_title, chart.y_title, "from, to"),
        rows=tuple(
            (text(point.mark.name), series, _where(chart, point), amount(point.y), point.range)
            for series, point in last_first
        ),
        links=tuple(point.mark.link for _, point in last_first),
        heading=chart.title,
    )  # fmt: skip


def _points(chart: Chart, series: ChartSeries) -> list[Point]:
    """Those that the axes can show."""
    marked = zip(series.points, series.marks, strict=True)
    return [
        Point(x, y, mark)
        for (x, y), mark in marked
        if all(map(math.isfinite, (x, y)))
        and (x > 0 or not chart.log[0])
        and (y > 0 or not chart.log[1])
    ]


def _where(chart: Chart, point: Point) -> str:
    """Its place across; of places that have names the name."""
    return text(chart.names[round(point.x)]) if chart.names else amount(point.x)


# --- in words -------------------------------------------------------------------------------------


def _words(chart: Chart, drawn: Drawn) -> Iterator[str]:
    yield f"{text(chart.y_title)} by {text(chart.x_title)}."
    if chart.level is not None:
        yield f"Line across, {text(chart.level.name)}: {amount(chart.level.y)}."
    for series, points in drawn.items():
        if len(points) > NAMED_POINTS:
            low, high = (amount(end(point.y for point in points)) for end in (min, max))
            yield f"{series}: {counted(len(points), 'point')} between {low} and {high}."
            continue
        values = [f"{text(point.mark.name)} {amount(point.y)}" for point in points]
        if not chart.names:
            values = [f"{v} at {amount(point.x)}" for v, point in zip(values, points, strict=True)]
        yield f"{series}: {', '.join(values)}."


# --- the drawing ----------------------------------------------------------------------------------


def _pane(chart: Chart, drawn: Drawn, looks: Looks) -> Any:
    colours = {series: var(colour) for series, (colour, _) in looks.items()}
    shapes = {series: shape for series, (_, shape) in looks.items()}
    sizes = {series: SIZES.get(shape, POINT["size"]) for series, shape in shapes.items()}
    placed = [(series, point) for series, points in drawn.items() for point in points]
    across, down = _axes(chart, drawn)
    tips = [
        *(tip("name", form=""), tip("series", form="")),
        *([] if chart.names else [tip("x", chart.x_title)]),
        *(tip("y", chart.y_title), tip("range", "from, to", "")),
    ]
    rows = [
        (series, point.x, point.y, text(point.mark.name), point.range, f"#{point.mark.link}")
        for series, point in placed
    ]
    dots = alt.Chart(data("series x y name range link", rows), name="points")
    dots = dots.mark_point(**POINT).encode(
        *(across, down, alt.Href("link:N")),
        by_name(alt.Color, "series", colours),
        by_name(alt.Shape, "series", shapes),
        by_name(alt.Size, "series", sizes).sort(list(sizes)),
        tooltip=tips,
    )
    layers = [*_level(chart, down), *_whiskers(placed, colours, across, down), dots]
    return alt.layer(*layers).properties(height=TALL)


def _level(chart: Chart, down: Any) -> Iterable[Any]:
    if chart.level is not None:
        source = alt.Chart(data("y", [(chart.level.y,)]), name="level")
        dashed = source.mark_rule(strokeDash=[6, 4], strokeWidth=2, color=var(LEVEL[0]))
        yield dashed.encode(down)


def _whiskers(
    placed: Sequence[tuple[str, Point]], colours: Mapping[str, str], across: Any, down: Any
) -> Iterable[Any]:
    """Those that are longer than their point."""
    rows = [
        (series, point.x, point.mark.low, point.mark.high)
        for series, point in placed
        if point.mark.low is not None
        and point.mark.high is not None
        and point.mark.low < point.mark.high
    ]
    if rows:
        rules = alt.Chart(data("series x y high", rows), name="whiskers").mark_rule(strokeWidth=2)
        colour = by_name(alt.Color, "series", dict(colours))
        yield rules.encode(across, down, alt.Y2("high:Q"), colour)


def _axes(chart: Chart, drawn: Drawn) -> tuple[Any, Any]:
    points = [point for placed in drawn.values() for point in placed]
    level = [] if chart.level is None else [chart.level.y]
    ends = [
        v for point in points for v in some(point.mark.low, point.mark.high) if math.isfinite(v)
    ]
    heights = [*level, *(point.y for point in points), *ends]
    across = _places(chart) if chart.names else _scale([point.x for point in points], chart.log[0])
    down = _scale([y for y in heights if y > 0 or not chart.log[1]], chart.log[1])
    x_title, y_title = text(chart.x_title), text(chart.y_title)
    return alt.X("x:Q", title=x_title, **across), alt.Y("y:Q", title=y_title, **down)


def _places(chart: Chart) -> dict[str, Any]:
    """Those that have names, the whole numbers from 0."""
    names = json.dumps([text(name) for name in chart.names])
    whole = list(range(len(chart.names)))
    axis = alt.Axis(
        values=whole, labelExpr=f"{names}[datum.value]", labelOverlap=False, labelAngle=-30
    )
    return {"scale": alt.Scale(domain=[-0.5, len(whole) - 0.5], nice=False), "axis": axis}


def _scale(values: Sequence[float], log: bool) -> dict[str, Any]:
    """From 0, or from a little below the lowest value of a logarithmic one, to a little above the
    highest."""
    low, high = min(values), max(values)
    if not log:
        scale = alt.Scale(domain=[min(0.0, low), 1.08 * high or 1.0], nice=False)
        return {"scale": scale, "axis": alt.Axis(tickCount=6, labelOverlap=True)}
    low, high = low / 1.25, high * 1.25
    axis = alt.Axis(values=_ticks(low, high), format="~g", labelOverlap=True)
    return {"scale": alt.Scale(type="log", domain=[low, high], nice=False), "axis": axis}


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20 and so on, or powers of ten alone where that would be many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps]
        within = [tick for tick in ticks if low <= tick <= high]
        if len(within) <= TICKS:
            break
    return within
