"""The charts of a document as figures: lines with points, grouped or stacked bars, and scatters of
named points (`scatter_figure`).

A series has one colour and one shape in all charts of a page; a part of a response time has the
same ones in every report. A logarithmic axis can only show values above 0: other points are left
out, and the caption counts them. A chart with a single point is left out, as the tables have it; a
single stacked bar is drawn.

The scatter of `advise` has candidates as points, by cost and performance. A click on a point leads
to its table row on the same page. The figure's table of numbers has the same links, for use without
a mouse or scripts. Points are not labelled: with dozens close together, labels would be illegible.

Bars are horizontal, as names are long. For the levels of a sweep, whose names are numbers, they are
vertical.
"""

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt
from msgspec import Struct
from msgspec.structs import replace

from workerlab.model import Chart, ChartSeries, Document, Mark
from workerlab.numbers.units import MISSING, amount, counted, three_digits
from workerlab.report.html.figure import (
    CLASSES,
    DASHES,
    OWN_AXIS,
    POINT,
    Figure,
    Key,
    Looks,
    by_name,
    data,
    grouped,
    mark_of,
    not_shown,
    part_of,
    slug,
    some,
    tip,
    var,
)
from workerlab.report.values import text

LEVEL = ("connect", "dashed")
SIZES = {"circle": 60, "square": 90, "diamond": 220}
NAMED_POINTS = 8  # per series, listed in the text; for more, only the range
TICKS = 7  # at most, on a logarithmic axis
SCATTER_HEIGHT = 320


class Point(Struct, frozen=True):
    x: float
    y: float
    mark: Mark

    @property
    def range(self) -> str:
        """The ends of the point's whisker as text."""
        ends = some(self.mark.low, self.mark.high)
        return " to ".join(map(amount, ends)) if len(ends) == 2 else MISSING


Clouds = Mapping[str, Sequence[Point]]  # by name of the series


def scatter_figure(chart: Chart, name: str, looks: Looks) -> Figure | None:
    """None if there are fewer than two points to show."""
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
        alternative=tuple(_cloud_words(chart, drawn)),
        panes=(_scatter_pane(chart, drawn, looks),),
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
    """The points that the axes can show: finite, and above 0 on a logarithmic axis."""
    marked = zip(series.points, series.marks, strict=True)
    return [
        Point(x, y, mark)
        for (x, y), mark in marked
        if all(map(math.isfinite, (x, y)))
        and (x > 0 or not chart.log[0])
        and (y > 0 or not chart.log[1])
    ]


def _where(chart: Chart, point: Point) -> str:
    """The point's x as text, or the name at x if the chart has names."""
    return text(chart.names[round(point.x)]) if chart.names else amount(point.x)


# --- text alternative -----------------------------------------------------------------------------


def _cloud_words(chart: Chart, drawn: Clouds) -> Iterator[str]:
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


# --- drawing --------------------------------------------------------------------------------------


def _scatter_pane(chart: Chart, drawn: Clouds, looks: Looks) -> Any:
    colours = {series: var(colour) for series, (colour, _) in looks.items()}
    shapes = {series: shape for series, (_, shape) in looks.items()}
    sizes = {series: SIZES.get(shape, POINT["size"]) for series, shape in shapes.items()}
    placed = [(series, point) for series, points in drawn.items() for point in points]
    across, down = _scatter_axes(chart, drawn)
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
        across,
        down,
        alt.Href("link:N"),
        by_name(alt.Color, "series", colours),
        by_name(alt.Shape, "series", shapes),
        by_name(alt.Size, "series", sizes).sort(list(sizes)),
        tooltip=tips,
    )
    layers = [*_level(chart, down), *_whiskers(placed, colours, across, down), dots]
    return alt.layer(*layers).properties(height=SCATTER_HEIGHT)


def _level(chart: Chart, down: Any) -> Iterable[Any]:
    if chart.level is not None:
        source = alt.Chart(data("y", [(chart.level.y,)]), name="level")
        dashed = source.mark_rule(strokeDash=[6, 4], strokeWidth=2, color=var(LEVEL[0]))
        yield dashed.encode(down)


def _whiskers(
    placed: Sequence[tuple[str, Point]], colours: Mapping[str, str], across: Any, down: Any
) -> Iterable[Any]:
    """The whiskers that have a length: low below high."""
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


def _scatter_axes(chart: Chart, drawn: Clouds) -> tuple[Any, Any]:
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
    """Scale and axis of named places, the whole numbers from 0."""
    names = json.dumps([text(name) for name in chart.names])
    whole = list(range(len(chart.names)))
    axis = alt.Axis(
        values=whole, labelExpr=f"{names}[datum.value]", labelOverlap=False, labelAngle=-30
    )
    return {"scale": alt.Scale(domain=[-0.5, len(whole) - 0.5], nice=False), "axis": axis}


def _scale(values: Sequence[float], log: bool) -> dict[str, Any]:
    """Scale and axis, to a little above the highest value. Linear: includes 0; logarithmic: from a
    little below the lowest value."""
    low, high = min(values), max(values)
    if not log:
        scale = alt.Scale(domain=[min(0.0, low), max(0.0, 1.08 * high) or 1.0], nice=False)
        return {"scale": scale, "axis": alt.Axis(tickCount=6, labelOverlap=True)}
    low, high = low / 1.25, high * 1.25
    axis = alt.Axis(values=_ticks(low, high), format="~g", labelOverlap=True)
    return {"scale": alt.Scale(type="log", domain=[low, high], nice=False), "axis": axis}


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, and so on; if that is more than TICKS, 1, 3, 10 or only powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps]
        within = [tick for tick in ticks if low <= tick <= high]
        if len(within) <= TICKS:
            break
    return within


NAME_LETTERS = 18  # per line of a name
BAND = {"bars": 22, "stacked": 30}  # pixels: height of a horizontal bar
WIDEST, SHARED = 90.0, 190  # pixels: maximum width of a vertical bar, and of all on a phone
UPRIGHT_HEIGHT = 230
ROOM = 16  # pixels between the bars of two names
LINE = 14  # pixels: height of a line of a name

Points = Sequence[tuple[float, float]]
Drawn = Mapping[str, Points]  # by name of the series


class Upright(Struct, frozen=True):
    """For vertical bars. `top`: where the axis ends; `labels`: the text above each stack."""

    top: float | None = None
    labels: Sequence[str] = ()


def bars_pane(
    chart: Chart, drawn: Drawn, colours: Mapping[str, str], upright: Upright | None
) -> Any:
    names, stacked = [text(name) for name in chart.names], chart.form == "stacked"
    lines = [textwrap.wrap(name, NAME_LETTERS) or [name] for name in names]
    rows = [
        (name, order, place, value)
        for order, (name, points) in enumerate(drawn.items())
        for place, value in points
    ]
    where = [_names(text(chart.x_title) or None, names if upright else lines, upright is not None)]
    if not stacked:
        where.append((alt.XOffset if upright else alt.YOffset)("series:N", sort=list(drawn)))
    size: Any = {"size": min(WIDEST, SHARED / len(names))} if upright and stacked else {}
    bars = alt.Chart(data("series order place value", rows), name="bars")
    ends = alt.Chart(data("series place value label", _ends(drawn, stacked, upright)))
    if upright:
        ends = ends.mark_text(baseline="bottom", dy=-3).encode(y="value:Q")
    else:
        ends = ends.mark_text(align="left", dx=4).encode(x="value:Q")
    bars = bars.mark_bar(stroke=var("paper"), strokeWidth=0.5, **size).encode(
        *where,
        _values(chart, upright),
        color=by_name(alt.Color, "series", dict(colours)),
        order=alt.Order("order:Q"),
        tooltip=[tip("series", form=""), tip("value", chart.y_title)],
    )
    deep = max(BAND[chart.form] * (1 if stacked else len(drawn)), LINE * max(map(len, lines)))
    tall = UPRIGHT_HEIGHT if upright else (deep + ROOM) * len(names)
    return alt.layer(bars, ends.encode(*where, text="label:N")).properties(height=tall)


def _values(chart: Chart, upright: Upright | None) -> Any:
    title, stack = text(chart.y_title), chart.form == "stacked"
    if upright is None:
        axis = alt.Axis(tickCount=5, labelOverlap=True)
        return alt.X("value:Q", title=title, stack=stack, axis=axis)
    scale = alt.Scale() if upright.top is None else alt.Scale(domainMax=upright.top, nice=False)
    return alt.Y("value:Q", title=title, stack=stack, scale=scale)


def _names(title: str | None, names: Sequence[str | list[str]], upright: bool) -> Any:
    """The axis of named places; a name given as a list is drawn on several lines."""
    labels = f"{json.dumps(names)}[datum.value]"
    if upright:
        return alt.X("place:O", title=title, axis=alt.Axis(labelAngle=0, labelExpr=labels))
    axis = alt.Axis(
        labelExpr=labels, labelLimit=0, labelLineHeight=LINE, minExtent=0, maxExtent=1000,
        titleAngle=0, titleAlign="right", titleAnchor="start", titleX=-4, titleY=-6, grid=False,
    )  # fmt: skip
    return alt.Y("place:O", title=title, axis=axis, scale=alt.Scale(paddingInner=0.3))


def _ends(
    drawn: Drawn, stacked: bool, upright: Upright | None
) -> list[tuple[str, float, float, str]]:
    """(series, place, value, label): at the end of a horizontal bar, or of a stack's positive part.
    Vertical grouped bars have no room for labels."""
    if not stacked:
        return [
            (name, place, value, three_digits(value))
            for name, points in drawn.items()
            for place, value in points
            if not upright
        ]
    stacks: dict[float, list[float]] = {}
    for points in drawn.values():
        for place, value in points:
            stacks.setdefault(place, []).append(value)
    return [
        (
            *("", place, sum(value for value in values if value > 0)),
            upright.labels[round(place)] if upright else three_digits(sum(values)),
        )
        for place, values in stacks.items()
    ]


LINES = ("solid", "dashed", "dotted")
FEW = 12  # chosen values: up to this many are all labelled


def chart_figures(document: Document) -> list[Figure]:
    """The figures that have something to show, in document order, with unique names."""
    looks = looks_of(document.charts)
    return [
        figure
        for number, chart in enumerate(document.charts, 1)
        for name in [slug(text(chart.title))[:40].rstrip("-") or "untitled"]
        for figure in _figures(chart, f"chart-{number}-{name}", looks)
    ]


def looks_of(charts: Iterable[Chart]) -> Looks:
    """Colour and shape of every series of these charts, by its name."""
    drawn = [series for chart in charts for series in chart.series]
    fixed = {text(series.name): series.look for series in drawn if series.look}
    others = dict.fromkeys(name for series in drawn if (name := text(series.name)) not in fixed)
    return fixed | {name: mark_of(place) for place, name in enumerate(others)}


def _figures(chart: Chart, name: str, looks: Looks) -> Sequence[Figure]:
    """One figure; several for many series, or for heights that differ tenfold on a linear axis.
    Stacked bars are never split; figures with a logarithmic axis share its range."""
    if chart.form == "scatter":
        return some(scatter_figure(chart, name, looks))
    drawn = [series for series in chart.series if _drawable(series.points, chart.log)]
    if chart.form == "stacked":
        return some(chart_figure(chart, name, looks))
    groups = grouped(drawn, None if chart.log[1] else partial(_top, chart))
    charts = [
        replace(chart, series=tuple(group), title=part_of(chart.title, number, len(groups)))
        for number, group in enumerate(groups, 1)
    ]
    values = (
        [y for series in drawn for _, y in _drawable(series.points, chart.log)]
        if chart.log[1]
        else ()
    )
    figures = some(
        *(chart_figure(part, f"{name}-{number}" if number > 1 else name, looks, axis=values)
          for number, part in enumerate(charts, 1))
    )  # fmt: skip
    if len(figures) < 2 or chart.log[1]:
        return figures
    return [replace(figure, caption=(*figure.caption, OWN_AXIS)) for figure in figures]


def _top(chart: Chart, series: ChartSeries) -> float:
    return max(abs(y) for _, y in _drawable(series.points, chart.log))


def chart_figure(
    chart: Chart,
    name: str,
    looks: Looks,
    upright: Upright | None = None,
    axis: Sequence[float] = (),
) -> Figure | None:
    """None if it has fewer than two points to show; one is enough for stacked bars. `upright`: for
    vertical bars; `axis`: further values that the vertical axis of lines must include."""
    series = [(each.name, _drawable(each.points, chart.log)) for each in chart.series]
    series = [(label, points) for label, points in series if points]
    if sum(len(points) for _, points in series) < (1 if chart.form == "stacked" else 2):
        return None
    drawn = {text(label): points for label, points in series}
    lines = chart.form == "lines"
    legend = [
        Key(text(label), *looks[text(label)]) if lines else Key(label, looks[text(label)][0], "box")
        for label, _ in series
    ]
    colours = {name: var(looks[name][0]) for name in drawn}
    pane = _lines(chart, drawn, looks, axis) if lines else bars_pane(chart, drawn, colours, upright)
    return Figure(
        name=name,
        title=chart.title,
        caption=some(chart.note, not_shown(chart, sum(map(len, drawn.values())))),
        alternative=(
            f"{text(chart.y_title)} by {text(chart.x_title)}.",
            *(_words(chart, label, points) for label, points in drawn.items()),
        ),
        panes=(pane,),
        legend=tuple(legend),
        heads=(chart.x_title or "name", *drawn),
        rows=_rows(chart, drawn),
        heading=chart.title,
    )


def _drawable(points: Points, log: tuple[bool, bool]) -> Points:
    def stands(value: float, logarithmic: bool) -> bool:
        return math.isfinite(value) and (value > 0 or not logarithmic)

    return [(x, y) for x, y in points if stands(x, log[0]) and stands(y, log[1])]


# --- text alternative ---------------------------------------------------------------------


def _place(chart: Chart, x: float) -> str:
    return amount(x) if chart.form == "lines" else text(chart.names[round(x)])


def _words(chart: Chart, name: str, points: Points) -> str:
    """All bars of a series; for a line, its first and last point."""
    named = points if chart.form != "lines" else [*points[:1], *points[1:][-1:]]
    return f"{name}: {', '.join(f'{amount(y)} at {_place(chart, x)}' for x, y in named)}."


def _rows(chart: Chart, drawn: Drawn) -> tuple[tuple[str, ...], ...]:
    """A row per place, a column per series."""
    columns = [dict(points) for points in drawn.values()]
    return tuple(
        (_place(chart, x), *(amount(column[x]) if x in column else "" for column in columns))
        for x in sorted({x for column in columns for x in column})
    )


# --- lines --------------------------------------------------------------------------------


def _lines(chart: Chart, drawn: Drawn, looks: Looks, axis: Sequence[float]) -> Any:
    rows = [
        (name, place, x, y) for name, points in drawn.items() for place, (x, y) in enumerate(points)
    ]
    source = data("series order x y", rows)
    marks = [looks[name] for name in drawn]
    dashes = [LINES[min(place // len(CLASSES), len(LINES) - 1)] for place in range(len(drawn))]

    def look(channel: Any, looks: Sequence[Any]) -> Any:
        return by_name(channel, "series", dict(zip(drawn, looks, strict=True)))

    line = alt.Chart(source, name="lines").mark_line(strokeWidth=2)
    dots = alt.Chart(source, name="points").mark_point(**{**POINT, "size": 70})
    tips = [tip("series", form=""), tip("x", chart.x_title), tip("y", chart.y_title)]
    return (
        alt.layer(
            line.encode(
                order="order:Q", strokeDash=look(alt.StrokeDash, [DASHES[dash] for dash in dashes])
            ),
            dots.encode(shape=look(alt.Shape, [shape for _, shape in marks]), tooltip=tips),
        )
        .encode(
            _across(chart, sorted({x for _, _, x, _ in rows})),
            _down(chart, [*axis, *(y for *_, y in rows)]),
            look(alt.Color, [var(colour) for colour, _ in marks]),
        )
        .properties(height=300)
    )


def _across(chart: Chart, values: Sequence[float]) -> Any:
    """Chosen values (at most three digits) get a tick each; measured ones get side padding."""
    axis = alt.Axis(format="~g", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False) if chart.log[0] else alt.Scale(zero=False)
    if any(float(f"{value:.3g}") != value for value in values):
        scale.padding = 12
    elif len(values) <= FEW:
        axis.values = list(values)
    return alt.X("x:Q", title=text(chart.x_title), scale=scale, axis=axis)


def _down(chart: Chart, values: Sequence[float]) -> Any:
    title = text(chart.y_title)
    if not chart.log[1]:
        top = max(0.0, 1.06 * max(values)) or 1.0
        scale = alt.Scale(domain=[min(0.0, *values), top], nice=False)
        return alt.Y("y:Q", title=title, scale=scale)
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.000001))
    step = max(1, -(-(high + 1 - low) // 6))
    axis = alt.Axis(values=[10.0**power for power in range(low, high + 1, step)], format="~g")
    scale = alt.Scale(type="log", domain=[10.0**low, 10.0**high], nice=False)
    return alt.Y("y:Q", title=title, axis=axis, scale=scale)
