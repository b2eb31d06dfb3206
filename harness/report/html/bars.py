"""The bars of a chart, beside or on each other. They lie on their sides, as names are long; those
of a sweep's levels, whose names are numbers, stand."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from harness.model import Chart
from harness.numbers.units import three_digits
from harness.report.html.colours import var
from harness.report.html.figures import by_name, data, tip, y_axis
from harness.report.messages import text

NAME_LETTERS = 18  # in a line of a name
BAND = {"bars": 22, "stacked": 30}  # pixels of a bar that lies
WIDEST, SHARED = 90.0, 240  # pixels of one that stands, and of all of them on a phone
TALL = 230
ROOM = 16  # between the bars of one name and those of the next
LINE = 14  # pixels of a name's line

Points = Sequence[tuple[float, float]]
Drawn = Mapping[str, Points]  # by the words of the series


@dataclass(frozen=True)
class Upright:
    """`top`: what the axis reaches; `labels`: what stands above each stack."""

    top: float | None = None
    labels: Sequence[str] = ()


def bars_pane(
    chart: Chart, drawn: Drawn, colours: Mapping[str, str], upright: Upright | None
) -> Any:
    names, stacked = [text(name) for name in chart.names], chart.form == "stacked"
    rows = [
        (name, order, place, value)
        for order, (name, points) in enumerate(drawn.items())
        for place, value in points
    ]
    source = data(("series", "order", "place", "value"), rows, words=("series",))
    size: Any = {"size": min(WIDEST, SHARED / len(names))} if upright and stacked else {}
    bars = alt.Chart(source, name="bars").mark_bar(stroke=var("paper"), strokeWidth=0.5, **size)
    where = {("x" if upright else "y"): _names(chart, names, upright is not None)}
    if not stacked:
        offset = alt.XOffset if upright else alt.YOffset
        where["xOffset" if upright else "yOffset"] = offset("series:N", sort=list(drawn))
    bars = bars.encode(
        **where,
        **{("y" if upright else "x"): _values(chart, upright)},
        color=by_name(alt.Color, "series", dict(colours)),
        order=alt.Order("order:Q"),
        tooltip=[tip("series"), tip("value", ".4~g", chart.y_title)],
    )
    ends = _ends(drawn, stacked, upright, where)
    tall = TALL if upright else _height(names, 1 if stacked else len(drawn))
    return alt.layer(bars, *ends).properties(height=tall)


def _values(chart: Chart, upright: Upright | None) -> Any:
    title, stack = text(chart.y_title), chart.form == "stacked"
    if upright is None:
        axis = alt.Axis(tickCount=5, labelOverlap=True)
        return alt.X("value:Q", title=title, stack=stack, axis=axis)
    scale = alt.Scale() if upright.top is None else alt.Scale(domainMax=upright.top, nice=False)
    return alt.Y("value:Q", title=title, stack=stack, axis=y_axis(), scale=scale)


def _names(chart: Chart, names: Sequence[str], upright: bool) -> Any:
    """The names of the places, the longer ones in lines: a list is drawn as such."""
    title = text(chart.x_title) or None
    if upright:
        axis = alt.Axis(labelAngle=0, labelExpr=f"{json.dumps(names)}[datum.value]")
        return alt.X("place:O", title=title, axis=axis)
    lines = [textwrap.wrap(name, NAME_LETTERS) or [name] for name in names]
    axis = alt.Axis(
        labelExpr=f"{json.dumps(lines)}[datum.value]",
        labelLimit=0,
        labelLineHeight=LINE,
        titleAngle=0,
        titleAlign="right",
        titleAnchor="start",
        titleX=-4,
        titleY=-6,
        ticks=False,
        domain=False,
        grid=False,
    )
    return alt.Y("place:O", title=title, axis=axis, scale=alt.Scale(paddingInner=0.3))


def _height(names: Sequence[str], beside: int) -> int:
    """Room for every name's bars, `beside` of them, and for its lines."""
    bars = BAND["stacked"] if beside == 1 else BAND["bars"] * beside
    lines = max(len(textwrap.wrap(name, NAME_LETTERS)) for name in names)
    return (max(bars, LINE * lines) + ROOM) * len(names)


def _ends(drawn: Drawn, stacked: bool, upright: Upright | None, where: dict[str, Any]) -> list[Any]:
    """How much it is, at the end of each bar, or of all that stand on each other."""
    if not stacked:
        if upright:  # there is no room beside each other
            return []
        rows = [
            (name, place, value, three_digits(value))
            for name, points in drawn.items()
            for place, value in points
        ]
        ends = data(("series", "place", "value", "label"), rows, words=("series", "label"))
    else:
        ends = data(("place", "value", "label"), _sums(drawn, upright), words=("label",))
    marks = alt.Chart(ends)
    if upright:
        return [
            marks.mark_text(baseline="bottom", dy=-3).encode(**where, y="value:Q", text="label:N")
        ]
    return [marks.mark_text(align="left", dx=4).encode(**where, x="value:Q", text="label:N")]


def _sums(drawn: Drawn, upright: Upright | None) -> list[tuple[float, float, str]]:
    """(place, height of the stack, its label); what is below zero does not raise it."""
    stacks: dict[float, list[float]] = {}
    for points in drawn.values():
        for place, value in points:
            stacks.setdefault(place, []).append(value)
    return [
        (
            place,
            sum(value for value in values if value > 0),
            upright.labels[round(place)] if upright else three_digits(sum(values)),
        )
        for place, values in stacks.items()
    ]
