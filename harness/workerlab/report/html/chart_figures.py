"""Draws the charts of a document as figures: lines with points, grouped or stacked bars, and
scatter plots of named points.

A series has one colour and one shape in all charts of a page; a part of a response time has the
same ones in every report. A logarithmic axis can show only values above 0: other points are
omitted, and the caption counts them. A chart with a single point is omitted, since the tables have
it; a single stacked bar is drawn.

The scatter plot of `advise` has candidates as points, by cost and performance. A click on a point
leads to its table row on the same page. The figure's table of numbers has the same links, for use
without a mouse or scripts. Points have no labels: of dozens close together, none would be legible.

Bars are horizontal, because names are long. The levels of a sweep have short names and vertical
bars.
"""

import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import altair as alt
from msgspec import Struct
from msgspec.structs import replace

from workerlab.model.result import Chart, ChartSeries, Document, Mark
from workerlab.numbers.units import MISSING, amount, counted, three_digits
from workerlab.report.html.figure import (
    CLASSES,
    DASHES,
    POINT_STYLE,
    Figure,
    Key,
    Looks,
    by_name,
    colour_of,
    layer,
    look_of,
    not_none,
    shape_of,
    slug,
    span,
    split_figures,
    tips,
    var,
)

LEVEL_LOOK = ("connect", "dashed")
POINT_SIZES = {"circle": 60, "square": 90, "diamond": 220}
MAX_NAMED_POINTS = 8  # per series; of more points, the text gives only the range
MAX_TICKS = 7  # on a logarithmic axis
SCATTER_HEIGHT = 320  # pixels
LINE_DASHES = ("solid", "dashed", "dotted")
MAX_LABELLED_VALUES = 12  # chosen values on an axis; if there are more, only some are labelled
NAME_WIDTH = 18  # characters per line of a name
BAR_HEIGHTS = {"bars": 22, "stacked": 30}  # pixels per horizontal bar
MAX_BAR_WIDTH = 90.0  # pixels per vertical bar
ALL_BARS_WIDTH = 190  # pixels for all vertical bars on a phone
VERTICAL_HEIGHT = 230  # pixels
GAP = 16  # pixels between the bars of two names
LINE_HEIGHT = 14  # pixels per line of a name


class Point(Struct, frozen=True):
    """A point that the axes can show. Only points of a scatter plot have a named mark."""

    x: float
    y: float
    mark: Mark

    @property
    def ends(self) -> tuple[float, ...]:
        """The known ends of the point's whisker."""
        return not_none(self.mark.low, self.mark.high)

    def range(self, number: Callable[[float], str] = amount) -> str:
        return " to ".join(map(number, self.ends)) if len(self.ends) == 2 else MISSING


Points = dict[str, list[Point]]  # points by the name of their series


class VerticalBars(Struct, frozen=True):
    """`top`: the upper end of the axis; None: automatic; `labels`: the texts above the stacks."""

    top: float | None = None
    labels: Sequence[str] = ()


def chart_figures(document: Document) -> list[Figure]:
    """The figures of all charts that are not empty, in document order, with unique names."""
    looks = looks_of(document.charts)
    return [
        figure
        for number, chart in enumerate(document.charts, 1)
        for name in [slug(chart.title)[:40].rstrip("-") or "untitled"]
        for figure in _figures(chart, f"chart-{number}-{name}", looks)
    ]


def looks_of(charts: Iterable[Chart]) -> Looks:
    """The colour and shape of every series of these charts, by its name."""
    all_series = [series for chart in charts for series in chart.series]
    looks = {series.name: series.look for series in all_series if series.look}
    others = dict.fromkeys(name for series in all_series if (name := series.name) not in looks)
    return looks | {name: look_of(index) for index, name in enumerate(others)}


def _figures(chart: Chart, name: str, looks: Looks) -> Sequence[Figure]:
    """One figure; several for many series, or for heights that differ tenfold on a linear axis.
    Stacked bars and scatter plots are never split; parts with a logarithmic axis share a range."""
    if chart.form in ("scatter", "stacked"):
        return not_none(chart_figure(chart, name, looks))
    points_of, log = visible_points(chart), chart.log[1]
    y_values = [point.y for points in points_of.values() for point in points] if log else []

    def height(series: ChartSeries) -> float:
        return max(abs(point.y) for point in points_of[series.name])

    def draw(group: Sequence[ChartSeries], name: str, title: str) -> Figure | None:
        part = replace(chart, series=tuple(group), title=title)
        return chart_figure(part, name, looks, y_values=y_values)

    drawn_series = [series for series in chart.series if series.name in points_of]
    return split_figures(drawn_series, None if log else height, name, chart.title, draw)


def chart_figure(
    chart: Chart,
    name: str,
    looks: Looks | None = None,
    vertical: VerticalBars | None = None,
    y_values: Sequence[float] = (),
) -> Figure | None:
    """The figure of a chart; None if it has fewer than two points (stacked bars: none). `looks`:
    those of the page's series; None: chosen for this chart alone; `vertical`: draws vertical bars;
    `y_values`: further values that the vertical axis of lines must include."""
    looks, points_of = looks or looks_of([chart]), visible_points(chart)
    count = sum(map(len, points_of.values()))
    if count < (1 if chart.form == "stacked" else 2):
        return None
    looks = {series: looks[series] for series in points_of}
    bars = chart.form in BAR_HEIGHTS
    if bars:
        pane = _bars_pane(chart, points_of, looks, vertical)
    elif chart.form == "lines":
        pane = _lines_pane(chart, points_of, looks, y_values)
    else:
        pane = _scatter_pane(chart, points_of, looks)
    level = [] if chart.level is None else [Key(chart.level.name, *LEVEL_LOOK)]
    omitted = sum(len(series.points) for series in chart.series) - count
    return Figure(
        name=name,
        title=chart.title,
        caption=not_none(
            chart.note or None,
            f"Points not shown because they are 0 or missing: {omitted}." if omitted else None,
        ),
        alternative=tuple(_sentences(chart, points_of)),
        panes=(pane,),
        legend=(
            *(Key(series, colour, "box" if bars else shape)
              for series, (colour, shape) in looks.items()),
            *level,
        ),
        heading=chart.title,
        **_numbers(chart, points_of),
    )  # fmt: skip


def visible_points(chart: Chart) -> Points:
    """The points that the axes can show: finite, and above 0 on a logarithmic axis. Series without
    such points are omitted."""
    points_of = {
        series.name: [
            Point(x, y, mark)
            for (x, y), mark in zip(series.points, series.marks or repeat(Mark("")), strict=False)
            if all(
                math.isfinite(value) and (value > 0 or not log)
                for value, log in zip((x, y), chart.log, strict=True)
            )
        ]
        for series in chart.series
    }
    return {name: points for name, points in points_of.items() if points}


# --- text and numbers -----------------------------------------------------------------------------


def _x_text(chart: Chart, x: float) -> str:
    """x as text; if the chart has names, the name at x."""
    return amount(x) if chart.form == "lines" or not chart.names else str(chart.names[round(x)])


def _sentences(chart: Chart, points_of: Points) -> Iterator[str]:
    """Sentences on the axes, the horizontal line and each series: all points, but only the ends of
    a line, and only the range of a scatter plot's points if there are many."""
    yield f"{chart.y_title} by {chart.x_title}."
    if chart.level is not None:
        yield f"Horizontal line, {chart.level.name}: {amount(chart.level.y)}."
    scatter = chart.form == "scatter"
    for series, points in points_of.items():
        if scatter and len(points) > MAX_NAMED_POINTS:
            low, high = (amount(limit(point.y for point in points)) for limit in (min, max))
            yield f"{series}: {counted(len(points), 'point')} between {low} and {high}."
            continue
        listed = [*points[:1], *points[1:][-1:]] if chart.form == "lines" else points
        parts = [
            (
                str(point.mark.name),
                amount(point.y),
                "" if scatter and chart.names else f"at {_x_text(chart, point.x)}",
            )
            for point in listed
        ]
        yield f"{series}: {', '.join(' '.join(filter(None, part)) for part in parts)}."


def _numbers(chart: Chart, points_of: Points) -> dict[str, Any]:
    """The table of a figure. A scatter plot has a row per point, the last series first; any other
    chart a row per x and a column per series."""
    if chart.form == "scatter":
        points = [(series, point) for series in reversed(points_of) for point in points_of[series]]
        return {
            "header": ("name", "series", chart.x_title, chart.y_title, "from, to"),
            "rows": tuple(
                (str(p.mark.name), series, _x_text(chart, p.x), amount(p.y), p.range())
                for series, p in points
            ),
            "links": tuple(point.mark.link for _, point in points),
        }
    columns = [{point.x: amount(point.y) for point in points} for points in points_of.values()]
    return {
        "header": (chart.x_title or "name", *points_of),
        "rows": tuple(
            (_x_text(chart, x), *(column.get(x, "") for column in columns))
            for x in sorted({x for column in columns for x in column})
        ),
    }


# --- axes -----------------------------------------------------------------------------------------


def _number_axis(values: Iterable[float], log: bool) -> dict[str, Any]:
    """Scale and axis that end a little above the highest value. A linear axis includes 0; a
    logarithmic one begins a little below the lowest value above 0."""
    values = [value for value in values if value > 0 or not log]
    low, high = min(values), max(values)
    if not log:
        top = max(0.0, 1.08 * high) or 1.0
        return {"scale": span(min(0.0, low), top), "axis": alt.Axis(tickCount=6, labelOverlap=True)}
    low, high = low / 1.25, high * 1.25
    axis = alt.Axis(values=_ticks(low, high), format="~g", labelOverlap=True)
    return {"scale": span(low, high, type="log"), "axis": axis}


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 and so on; if those are more than MAX_TICKS, 1, 3, 10 or only powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 5), (1, 3), (1,)):
        ticks = [multiple * 10.0**power for power in powers for multiple in multiples]
        visible = [tick for tick in ticks if low <= tick <= high]
        if len(visible) <= MAX_TICKS:
            break
    return visible


# --- scatter plots --------------------------------------------------------------------------------


def _scatter_pane(chart: Chart, points_of: Points, looks: Looks) -> Any:
    sizes = {name: POINT_SIZES.get(mark, POINT_STYLE["size"]) for name, (_, mark) in looks.items()}
    series_points = [(series, point) for series, points in points_of.items() for point in points]
    rows = [
        (series, p.x, p.y, str(p.mark.name), p.range(_four_digits),
         p.mark.link and f"#{p.mark.link}")
        for series, p in series_points
    ]  # fmt: skip
    whiskers = [
        (series, point.x, *point.ends)
        for series, point in series_points
        if len(point.ends) == 2 and point.ends[0] < point.ends[1]
    ]
    levels = [] if chart.level is None else [chart.level.y]
    x_axis, y_axis = _scatter_axes(chart, [point for _, point in series_points], levels)
    x_tip = [] if chart.names else [("x", chart.x_title)]
    tooltip = tips("name:N", "series:N", *x_tip, ("y", chart.y_title), ("range:N", "from, to"))
    level = {"strokeDash": DASHES["dashed"], "strokeWidth": 2, "color": var(LEVEL_LOOK[0])}
    layers = not_none(
        layer("level", "y", [levels]).mark_rule(**level).encode(y_axis) if levels else None,
        layer("whiskers", "series x y high", whiskers)
        .mark_rule(strokeWidth=2)
        .encode(x_axis, y_axis, alt.Y2("high:Q"), colour_of("series", looks))
        if whiskers
        else None,
        layer("points", "series x y name range link", rows)
        .mark_point(**POINT_STYLE)
        .encode(
            x_axis,
            y_axis,
            alt.Href("link:N"),
            colour_of("series", looks),
            shape_of("series", looks),
            by_name(alt.Size, "series", sizes).sort(list(sizes)),
            tooltip=tooltip,
        ),
    )
    return alt.layer(*layers).properties(height=SCATTER_HEIGHT)


def _four_digits(value: float) -> str:
    """The number as a tooltip shows it (`tips`): short times in the unit of a long one do not
    become 0."""
    return f"{float(f'{value:.4g}'):.12g}"


def _scatter_axes(chart: Chart, points: Sequence[Point], levels: Sequence[float]) -> Any:
    """The axes x and y. The names of the chart, if any, label x = 0, 1, 2 …"""
    ends = [end for point in points for end in point.ends if math.isfinite(end)]
    y_scale = _number_axis([*levels, *(point.y for point in points), *ends], chart.log[1])
    if chart.names:
        names = json.dumps([str(name) for name in chart.names])
        positions = list(range(len(chart.names)))
        axis = alt.Axis(
            values=positions, labelExpr=f"{names}[datum.value]", labelOverlap=False, labelAngle=-30
        )
        x_scale = {"scale": span(-0.5, len(positions) - 0.5), "axis": axis}
    else:
        x_scale = _number_axis((point.x for point in points), chart.log[0])
    x_title, y_title = chart.x_title, chart.y_title
    return alt.X("x:Q", title=x_title, **x_scale), alt.Y("y:Q", title=y_title, **y_scale)


# --- bars -----------------------------------------------------------------------------------------


def _bars_pane(chart: Chart, points_of: Points, looks: Looks, vertical: VerticalBars | None) -> Any:
    stacked = chart.form == "stacked"
    names = [str(name) for name in chart.names]
    lines = [textwrap.wrap(name, NAME_WIDTH) or [name] for name in names]
    rows = [
        (name, order, point.x, point.y)
        for order, (name, points) in enumerate(points_of.items())
        for point in points
    ]
    name_axes = [_name_axis(chart.x_title or None, names if vertical else lines, vertical)]
    if not stacked:
        name_axes.append(
            (alt.XOffset if vertical else alt.YOffset)("series:N", sort=list(points_of))
        )
    bar_width = min(MAX_BAR_WIDTH, ALL_BARS_WIDTH / max(1, len(names)))
    bars = layer("bars", "series order place value", rows).mark_bar(
        stroke=var("paper"),
        strokeWidth=0.5,
        **({"size": bar_width} if vertical and stacked else {}),
    )
    ends = layer("", "series place value label", _end_labels(points_of, stacked, vertical))
    if vertical:
        ends = ends.mark_text(baseline="bottom", dy=-3).encode(alt.Y("value:Q"))
    else:
        ends = ends.mark_text(align="left", dx=4).encode(alt.X("value:Q"))
    band_height = max(
        BAR_HEIGHTS[chart.form] * (1 if stacked else len(points_of)),
        LINE_HEIGHT * max(map(len, lines)),
    )
    return alt.layer(
        bars.encode(
            *name_axes,
            _value_axis(chart, vertical),
            color=colour_of("series", looks),
            order=alt.Order("order:Q"),
            tooltip=tips("series:N", ("value", chart.y_title)),
        ),
        ends.encode(*name_axes, alt.Text("label:N")),
    ).properties(height=VERTICAL_HEIGHT if vertical else (band_height + GAP) * len(names))


def _value_axis(chart: Chart, vertical: VerticalBars | None) -> Any:
    title, stack = chart.y_title, chart.form == "stacked"
    if vertical is None:
        axis = alt.Axis(tickCount=5, labelOverlap=True)
        return alt.X("value:Q", title=title, stack=stack, axis=axis)
    scale = alt.Scale() if vertical.top is None else alt.Scale(domainMax=vertical.top, nice=False)
    return alt.Y("value:Q", title=title, stack=stack, scale=scale)


def _name_axis(
    title: str | None, names: Sequence[str | list[str]], vertical: VerticalBars | None
) -> Any:
    """The axis of the names. A name given as a list takes several lines."""
    labels = f"{json.dumps(names)}[datum.value]"
    if vertical:
        return alt.X("place:O", title=title, axis=alt.Axis(labelAngle=0, labelExpr=labels))
    axis = alt.Axis(
        labelExpr=labels, labelLimit=0, labelLineHeight=LINE_HEIGHT, minExtent=0, maxExtent=1000,
        titleAngle=0, titleAlign="right", titleAnchor="start", titleX=-4, titleY=-6, grid=False,
    )  # fmt: skip
    return alt.Y("place:O", title=title, axis=axis, scale=alt.Scale(paddingInner=0.3))


def _end_labels(
    points_of: Points, stacked: bool, vertical: VerticalBars | None
) -> list[tuple[str, float, float, str]]:
    """(series, place, value, label) at the end of each horizontal bar, or of each stack's positive
    part. Empty for vertical grouped bars, which have no room for labels."""
    if vertical and not stacked:
        return []
    stacks: dict[tuple[str, float], list[float]] = {}
    for name, points in points_of.items():
        for point in points:
            stacks.setdefault(("" if stacked else name, point.x), []).append(point.y)
    return [
        (
            *key,
            sum(value for value in values if value > 0 or not stacked),
            vertical.labels[round(key[1])] if vertical else three_digits(sum(values)),
        )
        for key, values in stacks.items()
    ]


# --- lines ----------------------------------------------------------------------------------------


def _lines_pane(chart: Chart, points_of: Points, looks: Looks, y_values: Sequence[float]) -> Any:
    rows = [
        (name, order, point.x, point.y)
        for name, points in points_of.items()
        for order, point in enumerate(points)
    ]
    dashes = {  # distinguish lines whose colours repeat
        name: DASHES[LINE_DASHES[min(index // len(CLASSES), len(LINE_DASHES) - 1)]]
        for index, name in enumerate(points_of)
    }
    line, dots = (layer(name, "series order x y", rows) for name in ("lines", "points"))
    tooltip = tips("series:N", ("x", chart.x_title), ("y", chart.y_title))
    y_scale = _number_axis([*y_values, *(y for *_, y in rows)], chart.log[1])
    return (
        alt.layer(
            line.mark_line(strokeWidth=2).encode(
                order=alt.Order("order:Q"), strokeDash=by_name(alt.StrokeDash, "series", dashes)
            ),
            dots.mark_point(**{**POINT_STYLE, "size": 70}).encode(
                shape=shape_of("series", looks), tooltip=tooltip
            ),
        )
        .encode(
            _x_axis(chart, sorted({x for _, _, x, _ in rows})),
            alt.Y("y:Q", title=chart.y_title, **y_scale),
            colour_of("series", looks),
        )
        .properties(height=300)
    )


def _x_axis(chart: Chart, values: Sequence[float]) -> Any:
    """The x axis. Chosen values (at most three digits) get a tick each, measured ones padding."""
    axis = alt.Axis(format="~g", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False) if chart.log[0] else alt.Scale(zero=False)
    if any(float(f"{value:.3g}") != value for value in values):
        scale.padding = 12
    elif len(values) <= MAX_LABELLED_VALUES:
        axis.values = list(values)
    return alt.X("x:Q", title=chart.x_title, scale=scale, axis=axis)
