"""What a figure is, and how all of them are built: data as CSV, colours by name, one look.

A figure is one or more panes that share their horizontal axis. Its legend is data, drawn as HTML in
the page, where it wraps and can be read aloud, and as one more pane in a picture.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from harness.model import Finding, Label
from harness.report.html.colours import CLASSES, var
from harness.report.messages import say, text

AXIS = 58  # room left of every pane, so that their horizontal axes agree
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"

Shape = Literal[
    "box", "solid", "dashed", "dotted",
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right",
]  # fmt: skip
DASHES: dict[str, list[int]] = {"solid": [1, 0], "dashed": [6, 4], "dotted": [2, 3]}
MARKS: tuple[Shape, ...] = (
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right",
)  # fmt: skip

SIGNS = {  # of a legend, in a box of 20 x 12
    "box": "M1 1H19V11H1Z",
    "circle": "M5 6A5 5 0 1 1 15 6A5 5 0 1 1 5 6Z",
    "square": "M5 1H15V11H5Z",
    "triangle-up": "M4.500 11L10 1L15.500 11Z",
    "diamond": "M10 0L15 6L10 12L5 6Z",
    "cross": "M8 1H12V4H15V8H12V11H8V8H5V4H8Z",
    "triangle-down": "M4.500 1L10 11L15.500 1Z",
    "triangle-right": "M5 .5L15 6L5 11.500Z",
}


@dataclass(frozen=True)
class Key:
    """One entry of a legend; `colour` by its name."""

    label: Label
    colour: str
    shape: Shape


@dataclass(frozen=True)
class Figure:
    """One picture and its words. `name` is safe as a file name. `heading`: the title where the page
    has named the cell already.

    `alternative`: what it shows, for who does not see it. `heads`, `rows`: its numbers as a table.
    """

    name: str
    title: Label
    caption: tuple[Label, ...]
    alternative: tuple[Label, ...]
    panes: tuple[Any, ...]  # Altair charts
    legend: tuple[Key, ...] = ()
    heads: tuple[Label, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    heading: Label = ""


def slug(name: str) -> str:
    """A name as a part of file names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def key(code: str, colour: str, shape: Shape = "box") -> Key:
    """An entry of a legend whose label is a sentence of the charts."""
    return Key(Finding(f"chart.{code}"), colour, shape)


def mark_of(place: int) -> tuple[str, Shape]:
    """Colour and shape of the line at this place; where the colours end, each comes again with
    another shape."""
    return CLASSES[place % len(CLASSES)], MARKS[(place + place // len(CLASSES)) % len(MARKS)]


def by_name(channel: Any, field: str, look: dict[str, Any]) -> Any:
    """A channel (colour, shape, dash) that tells names apart; the page draws the legend."""
    scale = alt.Scale(domain=list(look), range=list(look.values()))
    return channel(f"{field}:N", scale=scale, legend=None)


def data(heads: Sequence[str], rows: Iterable[Sequence[object]], words: Sequence[str] = ()) -> Any:
    """Rows as inline CSV, a third of the size of JSON. None stays missing; `words`: not numbers."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_short(value) for value in row] for row in rows)
    parse = {head: "number" for head in heads if head not in words}
    return alt.InlineData(
        values=table.getvalue(), format=alt.CsvDataFormat(type="csv", parse=parse)
    )


def _short(value: object) -> object:
    """Six digits tell a microsecond in a second; no picture shows more."""
    return f"{value:.6g}" if isinstance(value, float) else value


def tip(field: str, form: str = "", title: Label | None = None) -> Any:
    """A line of what a pointer shows. `form`: of a number, "" for a name; its title is the sentence
    `chart.FIELD` unless given."""
    words = say(f"chart.{field}") if title is None else text(title)
    if not form:
        return alt.Tooltip(f"{field}:N", title=words)
    return alt.Tooltip(f"{field}:Q", title=words, format=form)


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
    size = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    ink = {"labelColor": var("soft"), "titleColor": var("soft"), "tickColor": var("line")}
    return {
        "aria": False,  # a figure says itself what it shows
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": {**size, **ink, "domainColor": var("line"), "gridColor": var("line"),
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
    drawn: dict[str, Any] = pane.properties(width="container").to_dict(validate=False)
    drawn.pop("config", None)
    drawn.pop("$schema", None)
    return drawn
