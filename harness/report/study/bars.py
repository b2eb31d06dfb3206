"""Bars of a chart, beside each other or stacked, lying on their sides: names are long.

A part of a response has the colour that it has in every chart of the lab; whatever else is stacked,
or stands beside each other, takes the series' colours in order.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from harness.model import Chart, Series
from harness.numbers.units import three_digits
from harness.report.html.colours import CLASSES, var
from harness.report.html.figures import data

NAME_LETTERS = 18  # in a line of a name
BAND = {"bars": 22, "stacked": 30}  # pixels of a bar
ROOM = 16  # between the bars of one name and those of the next
LINE = 14  # pixels of a name's line
OWN: Mapping[str, str] = {
    "connect": "connect",
    "accept queue": "accept-queue",
    "in worker": "in-worker",
    "other code": "service",
    "transfer": "transfer",
    "unattributed": "unattributed",
}

Shown = Sequence[tuple[Series, Sequence[tuple[float, float]]]]


def colours(names: Sequence[str]) -> list[str]:
    """A colour by its name, per series."""
    others = [name for name in names if name not in OWN]
    return [
        OWN[name] if name in OWN else CLASSES[others.index(name) % len(CLASSES)] for name in names
    ]


def pane(chart: Chart, shown: Shown) -> Any:
    names = [series.name for series, _ in shown]
    stacked = chart.form == "stacked"
    source = _source(shown)
    scale = alt.Scale(domain=names, range=[var(name) for name in colours(names)])
    lines = [textwrap.wrap(name, NAME_LETTERS) or [name] for name in chart.names]
    down = alt.Y(
        "place:O",
        title=chart.x_title or None,
        axis=_names(lines),
        scale=alt.Scale(paddingInner=0.3),
    )
    bars = (
        alt.Chart(source, name="bars")
        .mark_bar(stroke=var("paper"), strokeWidth=0.5)
        .encode(
            x=alt.X(
                "value:Q",
                title=chart.y_title,
                stack="zero" if stacked else None,
                axis=alt.Axis(tickCount=5, labelOverlap=True),
            ),
            y=down,
            color=alt.Color("series:N", scale=scale, legend=None),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("series:N"),
                alt.Tooltip("value:Q", title=chart.y_title, format=".4~g"),
            ],
        )
    )
    sums = alt.Chart(_ends(shown, stacked=stacked)).mark_text(align="left", dx=4)
    said = sums.encode(x="value:Q", y=down, text="label:N")
    if not stacked:
        beside = alt.YOffset("series:N", sort=names)
        bars, said = bars.encode(yOffset=beside), said.encode(yOffset=beside)
    return alt.layer(bars, said).properties(height=_height(lines, 1 if stacked else len(names)))


def _height(lines: Sequence[Sequence[str]], beside: int) -> int:
    """Room for every name's bars, `beside` of them, and for its lines."""
    bars = BAND["stacked"] if beside == 1 else BAND["bars"] * beside
    return (max(bars, LINE * max(map(len, lines), default=1)) + ROOM) * len(lines)


def _source(shown: Shown) -> Any:
    rows = [
        (series.name, order, place, value)
        for order, (series, points) in enumerate(shown)
        for place, value in points
    ]
    return data(("series", "order", "place", "value"), rows, words=("series",))


def _names(wrapped: Sequence[Sequence[str]]) -> Any:
    """The names in lines: a label that is a list is drawn as such."""
    return alt.Axis(
        labelExpr=f"{json.dumps(wrapped)}[datum.value]",
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


def _ends(shown: Shown, *, stacked: bool) -> Any:
    """How much it is, right of each bar, or of all that stand on each other."""
    if not stacked:
        rows = [
            (series.name, place, value, three_digits(value))
            for series, points in shown
            for place, value in points
        ]
        return data(("series", "place", "value", "label"), rows, words=("series", "label"))
    sums: dict[float, float] = {}
    for _, points in shown:
        for place, value in points:
            sums[place] = sums.get(place, 0.0) + value
    ends = [(place, value, three_digits(value)) for place, value in sums.items()]
    return data(("place", "value", "label"), ends, words=("label",))
