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
    OWN_AXIS_NOTE,
    POINT_STYLE,
    Figure,
    Key,
    Looks,
    by_name,
    data,
    grouped,
    look_of,
    not_none,
    omitted_note,
    part_title,
    slug,
    tip,
    var,
)
from workerlab.report.values import text

LEVEL_LOOK = ("connect", "dashed")
POINT_SIZES = {"circle": 60, "square": 90, "diamond": 220}
MAX_NAMED_POINTS = 8  # per series, listed in the text; for more, only the range
MAX_TICKS = 7  # on a logarithmic axis
SCATTER_HEIGHT = 320  # pixels


class MarkedPoint(Struct, frozen=True):
    """A point that the axes can show, with its mark."""

    x: float
    y: float
    mark: Mark

    @property
    def range(self) -> str:
        """The ends of the point's whisker as text; "-" unless both are known."""
        ends = not_none(self.mark.low, self.mark.high)
        return " to ".join(map(amount, ends)) if len(ends) == 2 else MISSING


MarkedSeries = Mapping[str, Sequence[MarkedPoint]]  # points by name of the series


def scatter_figure(chart: Chart, name: str, looks: Looks) -> Figure | None:
    """None if there are fewer than two points to show."""
    drawn = {
        text(series.name): points for series in chart.series if (points := _points(chart, series))
    }
    if sum(map(len, drawn.values())) < 2:
        return None
    looks = {series: looks[series] for series in drawn}
    legend = [Key(series, *look) for series, look in looks.items()]
    level = [] if chart.level is None else [Key(chart.level.name, *LEVEL_LOOK)]
    listed = [(series, point) for series in reversed(drawn) for point in drawn[series]]
    return Figure(
        name=name,
        title=chart.title,
        caption=not_none(chart.note, omitted_note(chart, sum(map(len, drawn.values())))),
        alternative=tuple(_scatter_sentences(chart, drawn)),
        panes=(_scatter_pane(chart, drawn, looks),),
        legend=(*legend, *level),
        header=("name", "series", chart.x_title, chart.y_title, "from, to"),
        rows=tuple(
            (text(point.mark.name), series, _x_text(chart, point), amount(point.y), point.range)
            for series, point in listed
        ),
        links=tuple(point.mark.link for _, point in listed),
        heading=chart.title,
    )  # fmt: skip


def _points(chart: Chart, series: ChartSeries) -> list[MarkedPoint]:
    """The points that the axes can show: finite, and above 0 on a logarithmic axis."""
    marked = zip(series.points, series.marks, strict=True)
    return [
        MarkedPoint(x, y, mark)
        for (x, y), mark in marked
        if all(map(math.isfinite, (x, y)))
        and (x > 0 or not chart.log[0])
        and (y > 0 or not chart.log[1])
    ]


def _x_text(chart: Chart, point: MarkedPoint) -> str:
    """The point's x as text, or the name at x if the chart has names."""
    return text(chart.names[round(point.x)]) if chart.names else amount(point.x)


# --- text alternative -----------------------------------------------------------------------------


def _scatter_sentences(chart: Chart, drawn: MarkedSeries) -> Iterator[str]:
    yield f"{text(chart.y_title)} by {text(chart.x_title)}."
    if chart.level is not None:
        yield f"Line across, {text(chart.level.name)}: {amount(chart.level.y)}."
    for series, points in drawn.items():
        if len(points) > MAX_NAMED_POINTS:
            low, high = (amount(limit(point.y for point in points)) for limit in (min, max))
            yield f"{series}: {counted(len(points), 'point')} between {low} and {high}."
            continue
        values = [f"{text(point.mark.name)} {amount(point.y)}" for point in points]
        if not chart.names:
            values = [f"{v} at {amount(point.x)}" for v, point in zip(values, points, strict=True)]
        yield f"{series}: {', '.join(values)}."


# --- drawing --------------------------------------------------------------------------------------


def _scatter_pane(chart: Chart, drawn: MarkedSeries, looks: Looks) -> Any:
    colours = {series: var(colour) for series, (colour, _) in looks.items()}
    shapes = {series: shape for series, (_, shape) in looks.items()}
    sizes = {name: POINT_SIZES.get(shape, POINT_STYLE["size"]) for name, shape in shapes.items()}
    placed = [(series, point) for series, points in drawn.items() for point in points]
    x_axis, y_axis = _scatter_axes(chart, drawn)
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
    dots = dots.mark_point(**POINT_STYLE).encode(
        x_axis,
        y_axis,
        alt.Href("link:N"),
        by_name(alt.Color, "series", colours),
        by_name(alt.Shape, "series", shapes),
        by_name(alt.Size, "series", sizes).sort(list(sizes)),
        tooltip=tips,
    )
    layers = [*_level_line(chart, y_axis), *_whiskers(placed, colours, x_axis, y_axis), dots]
    return alt.layer(*layers).properties(height=SCATTER_HEIGHT)


def _level_line(chart: Chart, y_axis: Any) -> Iterable[Any]:
    if chart.level is not None:
        source = alt.Chart(data("y", [(chart.level.y,)]), name="level")
        dashed = source.mark_rule(strokeDash=[6, 4], strokeWidth=2, color=var(LEVEL_LOOK[0]))
        yield dashed.encode(y_axis)


def _whiskers(
    placed: Sequence[tuple[str, MarkedPoint]], colours: Mapping[str, str], x_axis: Any, y_axis: Any
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
        yield rules.encode(x_axis, y_axis, alt.Y2("high:Q"), colour)


def _scatter_axes(chart: Chart, drawn: MarkedSeries) -> tuple[Any, Any]:
    points = [point for placed in drawn.values() for point in placed]
    level = [] if chart.level is None else [chart.level.y]
    ends = [
        v for point in points for v in not_none(point.mark.low, point.mark.high) if math.isfinite(v)
    ]
    heights = [*level, *(point.y for point in points), *ends]
    xs = [point.x for point in points]
    x_axis = _named_x_axis(chart) if chart.names else _number_axis(xs, chart.log[0])
    y_axis = _number_axis([y for y in heights if y > 0 or not chart.log[1]], chart.log[1])
    x_title, y_title = text(chart.x_title), text(chart.y_title)
    return alt.X("x:Q", title=x_title, **x_axis), alt.Y("y:Q", title=y_title, **y_axis)


def _named_x_axis(chart: Chart) -> dict[str, Any]:
    """Scale and axis of the chart's names, at the whole numbers from 0."""
    names = json.dumps([text(name) for name in chart.names])
    positions = list(range(len(chart.names)))
    axis = alt.Axis(
        values=positions, labelExpr=f"{names}[datum.value]", labelOverlap=False, labelAngle=-30
    )
    return {"scale": alt.Scale(domain=[-0.5, len(positions) - 0.5], nice=False), "axis": axis}


def _number_axis(values: Sequence[float], log: bool) -> dict[str, Any]:
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
    """1, 2, 5, 10, and so on; if that is more than MAX_TICKS, 1, 3, 10 or only powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 5), (1, 3), (1,)):
        ticks = [multiple * 10.0**power for power in powers for multiple in multiples]
        within = [tick for tick in ticks if low <= tick <= high]
        if len(within) <= MAX_TICKS:
            break
    return within


NAME_WIDTH = 18  # characters per line of a name
BAR_HEIGHTS = {"bars": 22, "stacked": 30}  # pixels, of a horizontal bar
MAX_BAR_WIDTH = 90.0  # pixels, of a vertical bar
ALL_BARS_WIDTH = 190  # pixels, of all vertical bars on a phone
VERTICAL_HEIGHT = 230  # pixels
GAP = 16  # pixels between the bars of two names
LINE_HEIGHT = 14  # pixels, of a name

Points = Sequence[tuple[float, float]]
DrawnSeries = Mapping[str, Points]  # points by name of the series


class VerticalBars(Struct, frozen=True):
    """`top`: where the axis ends, None: automatic; `labels`: the text above each stack."""

    top: float | None = None
    labels: Sequence[str] = ()


def bars_pane(
    chart: Chart, drawn: DrawnSeries, colours: Mapping[str, str], vertical: VerticalBars | None
) -> Any:
    names, stacked = [text(name) for name in chart.names], chart.form == "stacked"
    lines = [textwrap.wrap(name, NAME_WIDTH) or [name] for name in names]
    rows = [
        (name, order, place, value)
        for order, (name, points) in enumerate(drawn.items())
        for place, value in points
    ]
    x_title = text(chart.x_title) or None
    name_axes = [_name_axis(x_title, names if vertical else lines, vertical is not None)]
    if not stacked:
        name_axes.append((alt.XOffset if vertical else alt.YOffset)("series:N", sort=list(drawn)))
    bar_width = min(MAX_BAR_WIDTH, ALL_BARS_WIDTH / max(1, len(names)))
    size: Any = {"size": bar_width} if vertical and stacked else {}
    bars = alt.Chart(data("series order place value", rows), name="bars")
    ends = alt.Chart(data("series place value label", _end_labels(drawn, stacked, vertical)))
    if vertical:
        ends = ends.mark_text(baseline="bottom", dy=-3).encode(y="value:Q")
    else:
        ends = ends.mark_text(align="left", dx=4).encode(x="value:Q")
    bars = bars.mark_bar(stroke=var("paper"), strokeWidth=0.5, **size).encode(
        *name_axes,
        _value_axis(chart, vertical),
        color=by_name(alt.Color, "series", dict(colours)),
        order=alt.Order("order:Q"),
        tooltip=[tip("series", form=""), tip("value", chart.y_title)],
    )
    bars_height = BAR_HEIGHTS[chart.form] * (1 if stacked else len(drawn))
    band_height = max(bars_height, LINE_HEIGHT * max(map(len, lines)))
    height = VERTICAL_HEIGHT if vertical else (band_height + GAP) * len(names)
    return alt.layer(bars, ends.encode(*name_axes, text="label:N")).properties(height=height)


def _value_axis(chart: Chart, vertical: VerticalBars | None) -> Any:
    title, stack = text(chart.y_title), chart.form == "stacked"
    if vertical is None:
        axis = alt.Axis(tickCount=5, labelOverlap=True)
        return alt.X("value:Q", title=title, stack=stack, axis=axis)
    scale = alt.Scale() if vertical.top is None else alt.Scale(domainMax=vertical.top, nice=False)
    return alt.Y("value:Q", title=title, stack=stack, scale=scale)


def _name_axis(title: str | None, names: Sequence[str | list[str]], vertical: bool) -> Any:
    """The axis of the names; a name given as a list is drawn on several lines."""
    labels = f"{json.dumps(names)}[datum.value]"
    if vertical:
        return alt.X("place:O", title=title, axis=alt.Axis(labelAngle=0, labelExpr=labels))
    axis = alt.Axis(
        labelExpr=labels, labelLimit=0, labelLineHeight=LINE_HEIGHT, minExtent=0, maxExtent=1000,
        titleAngle=0, titleAlign="right", titleAnchor="start", titleX=-4, titleY=-6, grid=False,
    )  # fmt: skip
    return alt.Y("place:O", title=title, axis=axis, scale=alt.Scale(paddingInner=0.3))


def _end_labels(
    drawn: DrawnSeries, stacked: bool, vertical: VerticalBars | None
) -> list[tuple[str, float, float, str]]:
    """(series, place, value, label) at the end of a horizontal bar, or of a stack's positive part.
    Empty for vertical grouped bars, which have no room for labels."""
    if not stacked:
        return [
            (name, place, value, three_digits(value))
            for name, points in drawn.items()
            for place, value in points
            if not vertical
        ]
    stacks: dict[float, list[float]] = {}
    for points in drawn.values():
        for place, value in points:
            stacks.setdefault(place, []).append(value)
    return [
        (
            *("", place, sum(value for value in values if value > 0)),
            vertical.labels[round(place)] if vertical else three_digits(sum(values)),
        )
        for place, values in stacks.items()
    ]


LINE_DASHES = ("solid", "dashed", "dotted")
MAX_LABELLED_VALUES = 12  # chosen values on an axis; of more, only some are labelled


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
    return fixed | {name: look_of(index) for index, name in enumerate(others)}


def _figures(chart: Chart, name: str, looks: Looks) -> Sequence[Figure]:
    """One figure; several for many series, or for heights that differ tenfold on a linear axis.
    Stacked bars are never split; figures with a logarithmic axis share its range."""
    if chart.form == "scatter":
        return not_none(scatter_figure(chart, name, looks))
    drawn = [series for series in chart.series if _drawable(series.points, chart.log)]
    if chart.form == "stacked":
        return not_none(chart_figure(chart, name, looks))
    groups = grouped(drawn, None if chart.log[1] else partial(_highest, chart))
    charts = [
        replace(chart, series=tuple(group), title=part_title(chart.title, number, len(groups)))
        for number, group in enumerate(groups, 1)
    ]
    y_values = (
        [y for series in drawn for _, y in _drawable(series.points, chart.log)]
        if chart.log[1]
        else ()
    )
    figures = not_none(
        *(chart_figure(part, f"{name}-{number}" if number > 1 else name, looks, y_values=y_values)
          for number, part in enumerate(charts, 1))
    )  # fmt: skip
    if len(figures) < 2 or chart.log[1]:
        return figures
    return [replace(figure, caption=(*figure.caption, OWN_AXIS_NOTE)) for figure in figures]


def _highest(chart: Chart, series: ChartSeries) -> float:
    return max(abs(y) for _, y in _drawable(series.points, chart.log))


def chart_figure(
    chart: Chart,
    name: str,
    looks: Looks,
    vertical: VerticalBars | None = None,
    y_values: Sequence[float] = (),
) -> Figure | None:
    """None if it has fewer than two points to show; one is enough for stacked bars. `vertical`: if
    the bars are; `y_values`: further values that the vertical axis of lines must include."""
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
    pane = (
        _lines_pane(chart, drawn, looks, y_values)
        if lines
        else bars_pane(chart, drawn, colours, vertical)
    )
    return Figure(
        name=name,
        title=chart.title,
        caption=not_none(chart.note, omitted_note(chart, sum(map(len, drawn.values())))),
        alternative=(
            f"{text(chart.y_title)} by {text(chart.x_title)}.",
            *(_series_sentence(chart, label, points) for label, points in drawn.items()),
        ),
        panes=(pane,),
        legend=tuple(legend),
        header=(chart.x_title or "name", *drawn),
        rows=_number_rows(chart, drawn),
        heading=chart.title,
    )


def _drawable(points: Points, log: tuple[bool, bool]) -> Points:
    def fits(value: float, logarithmic: bool) -> bool:
        return math.isfinite(value) and (value > 0 or not logarithmic)

    return [(x, y) for x, y in points if fits(x, log[0]) and fits(y, log[1])]


# --- text alternative ---------------------------------------------------------------------


def _x_name(chart: Chart, x: float) -> str:
    return amount(x) if chart.form == "lines" else text(chart.names[round(x)])


def _series_sentence(chart: Chart, name: str, points: Points) -> str:
    """All bars of a series; for a line, its first and last point."""
    named = points if chart.form != "lines" else [*points[:1], *points[1:][-1:]]
    return f"{name}: {', '.join(f'{amount(y)} at {_x_name(chart, x)}' for x, y in named)}."


def _number_rows(chart: Chart, drawn: DrawnSeries) -> tuple[tuple[str, ...], ...]:
    """A row per x, a column per series."""
    columns = [dict(points) for points in drawn.values()]
    return tuple(
        (_x_name(chart, x), *(amount(column[x]) if x in column else "" for column in columns))
        for x in sorted({x for column in columns for x in column})
    )


# --- lines --------------------------------------------------------------------------------


def _lines_pane(chart: Chart, drawn: DrawnSeries, looks: Looks, y_values: Sequence[float]) -> Any:
    rows = [
        (name, order, x, y) for name, points in drawn.items() for order, (x, y) in enumerate(points)
    ]
    source = data("series order x y", rows)
    marks = [looks[name] for name in drawn]
    repeats = [index // len(CLASSES) for index in range(len(drawn))]  # of the colours
    dashes = [DASHES[LINE_DASHES[min(repeat, len(LINE_DASHES) - 1)]] for repeat in repeats]

    def by_series(channel: Any, values: Sequence[Any]) -> Any:
        return by_name(channel, "series", dict(zip(drawn, values, strict=True)))

    line = alt.Chart(source, name="lines").mark_line(strokeWidth=2)
    dots = alt.Chart(source, name="points").mark_point(**{**POINT_STYLE, "size": 70})
    tips = [tip("series", form=""), tip("x", chart.x_title), tip("y", chart.y_title)]
    return (
        alt.layer(
            line.encode(order="order:Q", strokeDash=by_series(alt.StrokeDash, dashes)),
            dots.encode(shape=by_series(alt.Shape, [shape for _, shape in marks]), tooltip=tips),
        )
        .encode(
            _x_axis(chart, sorted({x for _, _, x, _ in rows})),
            _y_axis(chart, [*y_values, *(y for *_, y in rows)]),
            by_series(alt.Color, [var(colour) for colour, _ in marks]),
        )
        .properties(height=300)
    )


def _x_axis(chart: Chart, values: Sequence[float]) -> Any:
    """Chosen values (at most three digits) get a tick each; measured ones get side padding."""
    axis = alt.Axis(format="~g", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False) if chart.log[0] else alt.Scale(zero=False)
    if any(float(f"{value:.3g}") != value for value in values):
        scale.padding = 12
    elif len(values) <= MAX_LABELLED_VALUES:
        axis.values = list(values)
    return alt.X("x:Q", title=text(chart.x_title), scale=scale, axis=axis)


def _y_axis(chart: Chart, values: Sequence[float]) -> Any:
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
