"""Points that have names, with whiskers, and a line across: candidates between what they cost and
what they do.

A point leads to the row of a table on the same page by a click. Whoever has no pointer, or no
scripts, finds the same links in the figure's table of numbers. Names are not written beside the
points: of dozens that lie close to each other none could be read.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
from msgspec import Struct

from workerlab.model import Chart, Finding, Mark, Series
from workerlab.numbers.formats import amount
from workerlab.numbers.units import MISSING
from workerlab.report.html.colours import var
from workerlab.report.html.figure import POINT, Figure, Key, Looks, by_name, data, some, tip
from workerlab.report.messages import text

SCATTER_LOOKS: Looks = {  # by the code of the name
    "advise.chart.expected": ("prediction", "circle"),
    "advise.chart.measured": ("measured", "square"),
    "advise.chart.recommended": ("service", "diamond"),
}
LEVEL = ("connect", "dashed")
SIZES = {"circle": 60, "square": 90, "diamond": 220}
FEW = 8  # points of a series that are all told in words
TICKS = 7  # on a logarithmic axis
TALL = 320


class Point(Struct, frozen=True):
    x: float
    y: float
    mark: Mark

    @property
    def range(self) -> str:
        """Its whisker in words."""
        known = some(self.mark.low, self.mark.high)
        return " to ".join(map(amount, known)) if len(known) == 2 else MISSING


Drawn = Mapping[str, Sequence[Point]]  # by the words of the series


def scatter_figure(chart: Chart, name: str, looks: Looks) -> Figure | None:
    """None where it has nothing, or a single point, to show."""
    drawn = {text(one.name): found for one in chart.series if (found := _points(chart, one))}
    if sum(map(len, drawn.values())) < 2:
        return None
    looks = {series: looks[series] for series in drawn}
    legend = [Key(series, *look) for series, look in looks.items()]
    level = [] if chart.level is None else [Key(chart.level.name, *LEVEL)]
    lost = sum(len(one.points) for one in chart.series) - sum(map(len, drawn.values()))
    last_first = [(series, point) for series in reversed(drawn) for point in drawn[series]]
    return Figure(
        name=name,
        title=chart.title,
        caption=some(chart.note, Finding("chart.left_out", {"points": lost}) if lost else None),
        alternative=tuple(_words(chart, drawn)),
        panes=(_pane(chart, drawn, looks),),
        legend=(*legend, *level),
        heads=(*(Finding(f"chart.{one}") for one in ("place", "series")),
               chart.x_title, chart.y_title, Finding("chart.range")),
        rows=tuple((text(one.mark.name), series, _where(chart, one), amount(one.y), one.range)
                   for series, one in last_first),
        links=tuple(one.mark.link for _, one in last_first),
        heading=chart.title,
    )  # fmt: skip


def _points(chart: Chart, series: Series) -> list[Point]:
    """Those that the axes can show."""
    every = zip(series.points, series.marks, strict=True)
    return [
        Point(x, y, mark)
        for (x, y), mark in every
        if all(map(math.isfinite, (x, y)))
        and (x > 0 or not chart.log[0])
        and (y > 0 or not chart.log[1])
    ]


def _where(chart: Chart, one: Point) -> str:
    """Its place across; of places that have names the name."""
    return text(chart.names[round(one.x)]) if chart.names else amount(one.x)


# --- in words -------------------------------------------------------------------------------------


def _words(chart: Chart, drawn: Drawn) -> Iterable[Finding]:
    yield Finding("chart.axes", {"y": chart.y_title, "x": chart.x_title})
    if chart.level is not None:
        yield Finding("chart.level", {"name": chart.level.name, "y": chart.level.y})
    for series, points in drawn.items():
        if len(points) > FEW:
            heights = [one.y for one in points]
            values = {"low": min(heights), "high": max(heights), "points": len(points)}
            yield Finding("chart.cloud", {"name": series, **values})
            continue
        code = "chart.value" if chart.names else "chart.named_point"
        told = [Finding(code, {"name": one.mark.name, "x": one.x, "y": one.y}) for one in points]
        yield Finding("chart.points", {"name": series, "points": told})


# --- the drawing ----------------------------------------------------------------------------------


def _pane(chart: Chart, drawn: Drawn, looks: Looks) -> Any:
    colours = {series: var(colour) for series, (colour, _) in looks.items()}
    shapes = {series: shape for series, (_, shape) in looks.items()}
    sizes = {series: SIZES.get(shape, POINT["size"]) for series, shape in shapes.items()}
    every = [(series, one) for series, points in drawn.items() for one in points]
    across, down = _axes(chart, drawn)
    tips = [
        *(tip("name", Finding("chart.place"), ""), tip("series", form="")),
        *([] if chart.names else [tip("x", chart.x_title)]),
        *(tip("y", chart.y_title), tip("range", form="")),
    ]
    rows = [
        (series, one.x, one.y, text(one.mark.name), one.range, f"#{one.mark.link}")
        for series, one in every
    ]
    dots = alt.Chart(data("series x y name range link", rows), name="points")
    dots = dots.mark_point(**POINT).encode(
        *(across, down, alt.Href("link:N")),
        by_name(alt.Color, "series", colours),
        by_name(alt.Shape, "series", shapes),
        by_name(alt.Size, "series", sizes).sort(list(sizes)),
        tooltip=tips,
    )
    layers = [*_level(chart, down), *_whiskers(every, colours, across, down), dots]
    return alt.layer(*layers).properties(height=TALL)


def _level(chart: Chart, down: Any) -> Iterable[Any]:
    if chart.level is not None:
        source = alt.Chart(data("y", [(chart.level.y,)]), name="level")
        dashed = source.mark_rule(strokeDash=[6, 4], strokeWidth=2, color=var(LEVEL[0]))
        yield dashed.encode(down)


def _whiskers(
    every: Sequence[tuple[str, Point]], colours: Mapping[str, str], across: Any, down: Any
) -> Iterable[Any]:
    """Those that are longer than their point."""
    rows = [
        (series, one.x, one.mark.low, one.mark.high)
        for series, one in every
        if one.mark.low is not None and one.mark.high is not None and one.mark.low < one.mark.high
    ]
    if rows:
        rules = alt.Chart(data("series x y high", rows), name="whiskers").mark_rule(strokeWidth=2)
        colour = by_name(alt.Color, "series", dict(colours))
        yield rules.encode(across, down, alt.Y2("high:Q"), colour)


def _axes(chart: Chart, drawn: Drawn) -> tuple[Any, Any]:
    every = [one for points in drawn.values() for one in points]
    level = [] if chart.level is None else [chart.level.y]
    ends = [v for one in every for v in some(one.mark.low, one.mark.high) if math.isfinite(v)]
    heights = [*level, *(one.y for one in every), *ends]
    across = _places(chart) if chart.names else _scale([one.x for one in every], chart.log[0])
    down = _scale([y for y in heights if y > 0 or not chart.log[1]], chart.log[1])
    x_title, y_title = text(chart.x_title), text(chart.y_title)
    return alt.X("x:Q", title=x_title, **across), alt.Y("y:Q", title=y_title, **down)


def _places(chart: Chart) -> dict[str, Any]:
    """Those that have names, the whole numbers from 0."""
    names = json.dumps([text(one) for one in chart.names])
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
        within = [one for one in ticks if low <= one <= high]
        if len(within) <= TICKS:
            break
    return within
