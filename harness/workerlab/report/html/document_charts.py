"""The charts of a document as figures: lines with points, or bars beside or on each other; points
that have names are drawn in `scatter`.

A series has one colour and one shape in all charts of a page; a part of a response time, or what
takes it, has them in every report. On a logarithmic axis nothing that is not above 0 can stand:
such points are left out, and the caption counts them. A chart of a single point is left out, too:
the tables have it.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import altair as alt
from msgspec.structs import replace

from workerlab.model import Chart, ChartSeries, Document
from workerlab.numbers.formats import amount
from workerlab.report.html.bars import Drawn, Points, Upright, bars_pane
from workerlab.report.html.colours import CLASSES, var
from workerlab.report.html.figure import (
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
)
from workerlab.report.html.scatter import scatter_figure
from workerlab.report.values import text

LINES = ("solid", "dashed", "dotted")
FEW = 12  # places on an axis that are all named


def chart_figures(document: Document) -> list[Figure]:
    """Those that have anything to show, in the document's order; their names are different."""
    looks = looks_of(document.charts)
    return [
        figure
        for number, chart in enumerate(document.charts, 1)
        for name in [slug(text(chart.title))[:40].rstrip("-") or "untitled"]
        for figure in _figures(chart, f"chart-{number}-{name}", looks)
    ]


def looks_of(charts: Iterable[Chart]) -> Looks:
    """The colour and the shape of every series of these charts, by its words."""
    drawn = [series for chart in charts for series in chart.series]
    fixed = {text(series.name): series.look for series in drawn if series.look}
    others = dict.fromkeys(words for series in drawn if (words := text(series.name)) not in fixed)
    return fixed | {words: mark_of(place) for place, words in enumerate(others)}


def _figures(chart: Chart, name: str, looks: Looks) -> Sequence[Figure]:
    """One, or several where it has many series or some reach ten times what others do. Parts that
    stand on each other stay together; a logarithmic axis shows all, and is the same in each."""
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
    """None where it has nothing, or a single point, to show. `upright`: its bars stand instead of
    lying; `axis`: further values that the vertical axis of lines reaches."""
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


# --- in words -----------------------------------------------------------------------------


def _place(chart: Chart, x: float) -> str:
    return amount(x) if chart.form == "lines" else text(chart.names[round(x)])


def _words(chart: Chart, name: str, points: Points) -> str:
    """All of its bars; of a line, its ends."""
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
    """Amounts that somebody chose are named, measured ones have room at the sides."""
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
        top = 1.06 * max(values) or 1.0
        scale = alt.Scale(domain=[min(0.0, *values), top], nice=False)
        return alt.Y("y:Q", title=title, scale=scale)
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.000001))
    step = max(1, -(-(high + 1 - low) // 6))
    axis = alt.Axis(values=[10.0**power for power in range(low, high + 1, step)], format="~g")
    scale = alt.Scale(type="log", domain=[10.0**low, 10.0**high], nice=False)
    return alt.Y("y:Q", title=title, axis=axis, scale=scale)
