"""The bars of a chart, beside or on each other. They lie on their sides, as names are long; those
of a sweep's levels, whose names are numbers, stand."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
from msgspec import Struct

from workerlab.model import Chart
from workerlab.numbers.units import three_digits
from workerlab.report.html.colours import var
from workerlab.report.html.figure import by_name, data, tip
from workerlab.report.values import text

NAME_LETTERS = 18  # in a line of a name
BAND = {"bars": 22, "stacked": 30}  # pixels of a bar that lies
WIDEST, SHARED = 90.0, 190  # pixels of one that stands, and of all of them on a phone
TALL = 230
ROOM = 16  # between the bars of one name and those of the next
LINE = 14  # pixels of a name's line

Points = Sequence[tuple[float, float]]
Drawn = Mapping[str, Points]  # by the words of the series


class Upright(Struct, frozen=True):
    """`top`: what the axis reaches; `labels`: what stands above each stack."""

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
    tall = TALL if upright else (deep + ROOM) * len(names)
    return alt.layer(bars, ends.encode(*where, text="label:N")).properties(height=tall)


def _values(chart: Chart, upright: Upright | None) -> Any:
    title, stack = text(chart.y_title), chart.form == "stacked"
    if upright is None:
        axis = alt.Axis(tickCount=5, labelOverlap=True)
        return alt.X("value:Q", title=title, stack=stack, axis=axis)
    scale = alt.Scale() if upright.top is None else alt.Scale(domainMax=upright.top, nice=False)
    return alt.Y("value:Q", title=title, stack=stack, scale=scale)


def _names(title: str | None, names: Sequence[str | list[str]], upright: bool) -> Any:
    """The names of the places; the lines of one are drawn below each other."""
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
    """How much it is, at the end of each bar that has room, or of the stack above zero."""
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
