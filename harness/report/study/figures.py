"""A study's charts as figures: lines with points, a colour and a shape per series; or bars.

Where there are more series than colours, a colour comes again with another shape and a dashed line.
On a logarithmic axis nothing that is not above 0 can stand: such points are left out, and the
caption says how many.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from harness.model import Chart, Document, Series
from harness.report.html.colours import CLASSES, var
from harness.report.html.figures import DASHES, Figure, Key, Shape, data, y_axis
from harness.report.messages import text
from harness.report.sentences import amount
from harness.report.study.bars import colours
from harness.report.study.bars import pane as bars_pane

SHAPES: tuple[Shape, ...] = (
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right",
)  # fmt: skip
LINES: tuple[Shape, ...] = ("solid", "dashed", "dotted")
FEW = 12  # places on an axis that are all named

Points = Sequence[tuple[float, float]]


def figures(study: Document) -> list[Figure]:
    """Those that have anything to show, in the study's order; their names are different."""
    found = []
    for number, chart in enumerate(map(_worded, study.charts), 1):
        shown = [(series, _drawable(series, chart.log)) for series in chart.series]
        shown = [(series, points) for series, points in shown if points]
        if shown:
            found.append(_figure(chart, f"chart-{number}-{_slug(chart.title)}", shown))
    return found


def _worded(chart: Chart) -> Chart:
    """The chart with every finding said."""
    return replace(
        chart,
        title=text(chart.title),
        x_title=text(chart.x_title),
        y_title=text(chart.y_title),
        note=text(chart.note),
        names=tuple(map(text, chart.names)),
        series=tuple(replace(one, name=text(one.name)) for one in chart.series),
    )


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40].rstrip("-") or "untitled"


def _drawable(series: Series, log: tuple[bool, bool]) -> Points:
    def stands(value: float, logarithmic: bool) -> bool:
        return math.isfinite(value) and (value > 0 or not logarithmic)

    return [(x, y) for x, y in series.points if stands(x, log[0]) and stands(y, log[1])]


def _figure(chart: Chart, name: str, shown: Sequence[tuple[Series, Points]]) -> Figure:
    lost = sum(len(series.points) for series in chart.series) - sum(len(p) for _, p in shown)
    left_out = f" Not shown, as they are 0 or missing: {lost}." if lost else ""
    bars = chart.form != "lines"
    keys = _boxes if bars else _signs
    said = " ".join(
        f"{series.name}: {_all(chart, points) if bars else _ends(points)}."
        for series, points in shown
    )
    return Figure(
        name=name,
        title=chart.title,
        caption=f"{chart.note}{left_out}".strip(),
        alternative=f"{chart.y_title} by {chart.x_title}. {said}",
        panes=(bars_pane(chart, shown) if bars else _pane(chart, shown),),
        legend=keys([series.name for series, _ in shown]),
        heads=("series", chart.x_title, chart.y_title),
        rows=tuple(
            (series.name, _across_said(chart, x), amount(y))
            for series, points in shown
            for x, y in points
        ),
        heading=chart.title,
    )


def _signs(names: Sequence[str]) -> tuple[Key, ...]:
    return tuple(Key(name, _colour(at), _shape(at)) for at, name in enumerate(names))


def _boxes(names: Sequence[str]) -> tuple[Key, ...]:
    pairs = zip(names, colours(names), strict=True)
    return tuple(Key(name, colour, "box") for name, colour in pairs)


def _across_said(chart: Chart, x: float) -> str:
    return amount(x) if chart.form == "lines" else chart.names[round(x)]


def _all(chart: Chart, points: Points) -> str:
    return ", ".join(f"{amount(y)} at {_across_said(chart, x)}" for x, y in points)


def _ends(points: Points) -> str:
    first, last = points[0], points[-1]
    said = f"{amount(first[1])} at {amount(first[0])}"
    return said if len(points) == 1 else f"{said}, {amount(last[1])} at {amount(last[0])}"


def _colour(place: int) -> str:
    return CLASSES[place % len(CLASSES)]


def _shape(place: int) -> Shape:
    return SHAPES[(place + place // len(CLASSES)) % len(SHAPES)]


def _dash(place: int) -> list[int]:
    return DASHES[LINES[min(place // len(CLASSES), len(LINES) - 1)]]


def _pane(chart: Chart, shown: Sequence[tuple[Series, Points]]) -> Any:
    names = [series.name for series, _ in shown]
    rows = [
        (series.name, place, x, y)
        for series, points in shown
        for place, (x, y) in enumerate(points)
    ]
    source = data(("series", "order", "x", "y"), rows, words=("series",))
    places = range(len(names))
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=names, range=[var(_colour(place)) for place in places]),
        legend=None,
    )
    across = _across(chart, sorted({x for _, points in shown for x, _ in points}))
    down = _down(chart, [y for _, points in shown for _, y in points])
    line = alt.Chart(source, name="lines").mark_line(strokeWidth=2).encode(
        x=across,
        y=down,
        color=colour,
        order="order:Q",
        strokeDash=alt.StrokeDash(
            "series:N",
            scale=alt.Scale(domain=names, range=[_dash(place) for place in places]),
            legend=None,
        ),
    )  # fmt: skip
    shapes = alt.Scale(domain=names, range=[_shape(place) for place in places])
    dots = (
        alt.Chart(source, name="points")
        .mark_point(filled=True, size=70, opacity=1, stroke=var("paper"), strokeWidth=1)
        .encode(
            x=across,
            y=down,
            color=colour,
            shape=alt.Shape("series:N", scale=shapes, legend=None),
            tooltip=list(_tips(chart)),
        )
    )
    return alt.layer(line, dots).properties(height=300)


def _tips(chart: Chart) -> Iterator[Any]:
    yield alt.Tooltip("series:N")
    yield alt.Tooltip("x:Q", title=chart.x_title, format=".4~g")
    yield alt.Tooltip("y:Q", title=chart.y_title, format=".4~g")


def _across(chart: Chart, values: Sequence[float]) -> Any:
    axis = alt.Axis(format="~g", labelOverlap=True)
    if len(values) <= FEW:
        axis = alt.Axis(values=list(values), format="~g", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False) if chart.log[0] else alt.Scale(zero=False)
    return alt.X("x:Q", title=chart.x_title, scale=scale, axis=axis)


def _down(chart: Chart, values: Sequence[float]) -> Any:
    if not chart.log[1]:
        top = 1.06 * max(values) or 1.0
        scale = alt.Scale(domain=[min(0.0, *values), top], nice=False)
        return alt.Y("y:Q", title=chart.y_title, axis=y_axis(), scale=scale)
    low = 10.0 ** math.floor(math.log10(min(values)))
    high = 10.0 ** math.ceil(math.log10(max(values) * 1.000001))
    powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
    step = max(1, -(-len(powers) // 6))
    axis = y_axis(values=[10.0**power for power in powers][::step], format="~g")
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.Y("y:Q", title=chart.y_title, axis=axis, scale=scale)
