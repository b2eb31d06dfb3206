"""The charts of a document as figures: lines with points, or bars beside or on each other.

Each series has a colour and a shape of its own; a part of a response time has the colour that it
has in every chart of the lab. On a logarithmic axis nothing that is not above 0 can stand: such
points are left out, and the caption counts them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from harness.model import Chart, Document, Finding, Label
from harness.report.html.bars import Drawn, Points, Upright, bars_pane
from harness.report.html.colours import CLASSES, var
from harness.report.html.figures import (
    DASHES,
    Figure,
    Key,
    Shape,
    by_name,
    data,
    mark_of,
    slug,
    tip,
    y_axis,
)
from harness.report.messages import amount, text

LINES: tuple[Shape, ...] = ("solid", "dashed", "dotted")
FEW = 12  # places on an axis that are all named
PART_COLOURS: Mapping[str, str] = {
    "part.connect": "connect",
    "part.accept_queue": "accept-queue",
    "part.in_worker": "in-worker",
    "part.service": "service",
    "part.other": "service",
    "part.transfer": "transfer",
    "part.unattributed": "unattributed",
    "chart.bound": "bound",
    "chart.split_prediction": "prediction",
    "chart.measured": "measured",
}


def chart_figures(document: Document) -> list[Figure]:
    """Those that have anything to show, in the document's order; their names are different."""
    every = [
        chart_figure(chart, f"chart-{number}-{_named(chart)}")
        for number, chart in enumerate(document.charts, 1)
    ]
    return [figure for figure in every if figure is not None]


def _named(chart: Chart) -> str:
    return slug(text(chart.title))[:40].rstrip("-") or "untitled"


def chart_figure(chart: Chart, name: str, upright: Upright | None = None) -> Figure | None:
    """None where it has no point to show. `upright`: its bars stand instead of lying."""
    series = [(one.name, _drawable(one.points, chart.log)) for one in chart.series]
    series = [(label, points) for label, points in series if points]
    if not series:
        return None
    drawn = {text(label): points for label, points in series}
    lost = sum(len(one.points) for one in chart.series) - sum(map(len, drawn.values()))
    left_out = Finding("chart.left_out", {"points": lost})
    bars = chart.form != "lines"
    legend = _boxes([label for label, _ in series]) if bars else _marks(list(drawn))
    looks = {text(one.label): var(one.colour) for one in legend}
    pane = bars_pane(chart, drawn, looks, upright) if bars else _lines(chart, drawn)
    return Figure(
        name=name,
        title=chart.title,
        caption=tuple(filter(None, (chart.note, left_out if lost else None))),
        alternative=_alternative(chart, drawn),
        panes=(pane,),
        legend=legend,
        heads=(chart.x_title or Finding("chart.place"), *drawn),
        rows=_rows(chart, drawn),
        heading=chart.title,
    )


def _drawable(points: Points, log: tuple[bool, bool]) -> Points:
    def stands(value: float, logarithmic: bool) -> bool:
        return math.isfinite(value) and (value > 0 or not logarithmic)

    return [(x, y) for x, y in points if stands(x, log[0]) and stands(y, log[1])]


def _marks(names: Sequence[str]) -> tuple[Key, ...]:
    return tuple(Key(name, *mark_of(place)) for place, name in enumerate(names))


def _boxes(names: Sequence[Label]) -> tuple[Key, ...]:
    """A part of a response time, or what has a colour of its own, else the next of the series'."""
    codes = [name.code if isinstance(name, Finding) else "" for name in names]
    others = [place for place, code in enumerate(codes) if code not in PART_COLOURS]
    colours = {place: CLASSES[at % len(CLASSES)] for at, place in enumerate(others)}
    return tuple(
        Key(name, colours.get(place) or PART_COLOURS[codes[place]], "box")
        for place, name in enumerate(names)
    )


# --- in words -----------------------------------------------------------------------------


def _place(chart: Chart, x: float) -> str:
    return amount(x) if chart.form == "lines" else text(chart.names[round(x)])


def _alternative(chart: Chart, drawn: Drawn) -> tuple[Label, ...]:
    axes = Finding("chart.axes", {"y": chart.y_title, "x": chart.x_title})
    return axes, *(_series_words(chart, name, points) for name, points in drawn.items())


def _series_words(chart: Chart, name: str, points: Points) -> Finding:
    """All of its bars; of a line, its ends."""
    told = points if chart.form != "lines" else [*points[:1], *points[1:][-1:]]
    values = [Finding("chart.point", {"x": _place(chart, x), "y": y}) for x, y in told]
    return Finding("chart.points", {"name": name, "points": values})


def _rows(chart: Chart, drawn: Drawn) -> tuple[tuple[str, ...], ...]:
    """A row per place, a column per series."""
    columns = [dict(points) for points in drawn.values()]
    places = dict.fromkeys(x for column in columns for x in column)
    return tuple(
        (
            _place(chart, x),
            *("" if (y := column.get(x)) is None else amount(y) for column in columns),
        )
        for x in sorted(places)
    )


# --- lines --------------------------------------------------------------------------------


def _lines(chart: Chart, drawn: Drawn) -> Any:
    rows = [
        (name, place, x, y) for name, points in drawn.items() for place, (x, y) in enumerate(points)
    ]
    source = data(("series", "order", "x", "y"), rows, words=("series",))
    marks = {name: mark_of(place) for place, name in enumerate(drawn)}
    look = {
        "x": _across(chart, sorted({x for points in drawn.values() for x, _ in points})),
        "y": _down(chart, [y for points in drawn.values() for _, y in points]),
        "color": by_name(alt.Color, "series", {name: var(one) for name, (one, _) in marks.items()}),
    }
    dashes = {name: DASHES[_dash(place)] for place, name in enumerate(drawn)}
    line = alt.Chart(source, name="lines").mark_line(strokeWidth=2)
    dots = alt.Chart(source, name="points").mark_point(
        filled=True, size=70, opacity=1, stroke=var("paper"), strokeWidth=1
    )
    tips = [tip("series"), tip("x", ".4~g", chart.x_title), tip("y", ".4~g", chart.y_title)]
    shapes = by_name(alt.Shape, "series", {name: shape for name, (_, shape) in marks.items()})
    return alt.layer(
        line.encode(**look, order="order:Q", strokeDash=by_name(alt.StrokeDash, "series", dashes)),
        dots.encode(**look, shape=shapes, tooltip=tips),
    ).properties(height=300)


def _dash(place: int) -> Shape:
    return LINES[min(place // len(CLASSES), len(LINES) - 1)]


def _across(chart: Chart, values: Sequence[float]) -> Any:
    axis = alt.Axis(format="~g", labelOverlap=True)
    if len(values) <= FEW:
        axis = alt.Axis(values=list(values), format="~g", labelOverlap=True)
    scale = alt.Scale(type="log", nice=False) if chart.log[0] else alt.Scale(zero=False)
    return alt.X("x:Q", title=text(chart.x_title), scale=scale, axis=axis)


def _down(chart: Chart, values: Sequence[float]) -> Any:
    title = text(chart.y_title)
    if not chart.log[1]:
        top = 1.06 * max(values) or 1.0
        scale = alt.Scale(domain=[min(0.0, *values), top], nice=False)
        return alt.Y("y:Q", title=title, axis=y_axis(), scale=scale)
    low = 10.0 ** math.floor(math.log10(min(values)))
    high = 10.0 ** math.ceil(math.log10(max(values) * 1.000001))
    powers = range(round(math.log10(low)), round(math.log10(high)) + 1)
    step = max(1, -(-len(powers) // 6))
    axis = y_axis(values=[10.0**power for power in powers][::step], format="~g")
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    return alt.Y("y:Q", title=title, axis=axis, scale=scale)
