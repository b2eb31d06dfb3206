"""What a figure is, and how all of them are built: data as CSV, colours by name, one look.

A figure is one or more panes that share their horizontal axis. Its legend is data, drawn as HTML in
the page, where it wraps and can be read aloud, and as one more pane in a picture.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from harness.report.html.colours import in_light, var

PICTURE_WIDTH = 760
AXIS = 58  # room left of every pane, so that their horizontal axes agree
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"

Shape = Literal[
    "box", "solid", "dashed", "dotted",
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right",
]  # fmt: skip
DASHES: dict[str, list[int]] = {"solid": [1, 0], "dashed": [6, 4], "dotted": [2, 3]}


@dataclass(frozen=True)
class Key:
    """One entry of a legend; `colour` by its name."""

    label: str
    colour: str
    shape: Shape


@dataclass(frozen=True)
class Figure:
    """One picture with all that is said of it. `name` is safe as a file name. `heading`: the title
    where the page has said already which cell it is about.

    `alternative`: what it shows, for who does not see it. `heads`, `rows`: its numbers as a table.
    """

    name: str
    title: str
    caption: str
    alternative: str
    panes: tuple[Any, ...]  # Altair charts
    legend: tuple[Key, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    heading: str = ""


def data(heads: Sequence[str], rows: Iterable[Sequence[object]], words: Sequence[str] = ()) -> Any:
    """Rows as inline CSV, a third of the size of JSON. None stays missing; `words`: not numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_short(value) for value in row] for row in rows)
    parse = {head: "number" for head in heads if head not in words}
    return alt.InlineData(values=text.getvalue(), format=alt.CsvDataFormat(type="csv", parse=parse))


def _short(value: object) -> object:
    """Six digits tell a microsecond in a second; no picture shows more."""
    return f"{value:.6g}" if isinstance(value, float) else value


def unit(longest_s: float) -> tuple[str, float]:
    """('s', 1) or ('ms', 1000): what a chart up to `longest_s` is drawn in."""
    return ("s", 1.0) if longest_s >= 1 else ("ms", 1e3)


def y_axis(**more: Any) -> Any:
    """A vertical axis that takes the same room in every pane."""
    return alt.Axis(minExtent=AXIS, maxExtent=AXIS, tickCount=4, **more)


def count_axis(most: int) -> Any:
    """The same for whole numbers up to `most`: no tick stands between two of them."""
    return y_axis(values=list(range(0, most + 1, max(1, -(-most // 4)))), format="d")


def config() -> dict[str, Any]:
    """The look of all charts; the page holds it once."""
    text = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    ink = {"labelColor": var("soft"), "titleColor": var("soft"), "tickColor": var("line")}
    return {
        "aria": False,  # a figure says itself what it shows
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": {**text, **ink, "domainColor": var("line"), "gridColor": var("line"),
                 "gridOpacity": 0.6, "labelLimit": 90},
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False},
        "text": {"fontSize": 12, "color": var("ink")},
        "title": {"fontSize": 15, "subtitleFontSize": 12, "color": var("ink"), "anchor": "start",
                  "subtitleColor": var("soft"), "frame": "group", "subtitlePadding": 6,
                  "offset": 10},
    }  # fmt: skip


def spec(pane: Any) -> dict[str, Any]:
    """A pane for the page: as wide as there is room, its look left to the page."""
    found: dict[str, Any] = pane.properties(width="container").to_dict()
    found.pop("config", None)
    found.pop("$schema", None)
    return found


def picture(figure: Figure) -> dict[str, Any]:
    """The figure as one Vega-Lite specification that stands alone: light, fixed, with words."""
    panes = [pane.properties(width=PICTURE_WIDTH) for pane in figure.panes]
    above = [_legend(figure.legend)] if figure.legend else []
    title = alt.TitleParams(text=figure.title)
    whole = alt.vconcat(*above, *panes, spacing=8, title=title).resolve_scale(
        color="independent", strokeDash="independent"
    )
    found: dict[str, Any] = whole.to_dict()
    found |= {"config": {**config(), "background": var("paper")}, "padding": 14}
    return dict(json.loads(in_light(json.dumps(found))))


def _legend(keys: Sequence[Key]) -> Any:
    """A row of signs and words, wrapped where the picture ends."""
    rows, x, line = [], 0.0, 0
    for key in keys:
        wide = 34 + 6.6 * len(key.label)
        if x and x + wide > PICTURE_WIDTH:
            x, line = 0.0, line + 1
        rows.append((key, x, line))
        x += wide
    across = alt.Scale(domain=[0, PICTURE_WIDTH], nice=False, zero=False)
    down = alt.Scale(domain=[line + 0.5, -0.5], nice=False)
    marks = []
    for key, at, row in rows:
        here = alt.Chart(data(("x", "end", "y"), [(at, at + 18, row)])).encode(
            x=alt.X("x:Q", scale=across, axis=None), y=alt.Y("y:Q", scale=down, axis=None)
        )
        colour = var(key.colour)
        if key.shape in DASHES:
            sign = here.mark_rule(color=colour, strokeWidth=2, strokeDash=DASHES[key.shape])
            marks.append(sign.encode(x2="end:Q"))
        else:
            shape = "square" if key.shape == "box" else key.shape
            sign = here.mark_point(shape=shape, size=110, xOffset=9, filled=True, opacity=1)
            marks.append(sign.encode(color=alt.value(colour)))
        marks.append(here.mark_text(text=key.label, align="left", baseline="middle", dx=25))
    return alt.layer(*marks).properties(width=PICTURE_WIDTH, height=22 * (line + 1))
