"""The parts that all figures are built from: data as CSV, colours by name, one style.

A figure is one or more panes that share their horizontal axis. Its legend is data. On the page it
is HTML, which wraps and works with screen readers; in an image it is one more pane.

Each meaning has one colour, in the light and the dark theme, on the page, in charts and in images.
Waiting is warm and service is blue, in the hues of Okabe & Ito, "Color Universal Design" (2008),
which are distinct with any kind of colour blindness. Classes have hues of their own (after P. Tol,
"Colour Schemes", 2021) and a shape each: no chart relies on colour alone.

A chart refers to colours as CSS variables and follows the page's theme. Images do not support
variables, so they get the values.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt
from msgspec import Struct

from workerlab.model import Chart, Label
from workerlab.report.values import text

# name: (light, dark)
COLOURS: Mapping[str, tuple[str, str]] = {
    # the page
    "paper": ("#ffffff", "#14171c"),
    "panel": ("#f6f7f9", "#1c2027"),
    "ink": ("#1b1f24", "#e6e9ee"),
    "soft": ("#545d68", "#a9b2bf"),
    "line": ("#d5dae1", "#363d48"),
    "link": ("#0b5cad", "#7fb8f0"),
    # where a request is
    "connect": ("#d55e00", "#f0813a"),
    "accept-queue": ("#e69f00", "#f2b632"),
    "in-worker": ("#cc79a7", "#e19bc2"),
    "service": ("#0072b2", "#3d9bd9"),
    "transfer": ("#009e73", "#2cc199"),
    "unattributed": ("#8d949e", "#78818d"),
    "waiting": ("#f6d38a", "#7d5f1c"),  # somewhere before the app
    # reference lines and what was measured
    "bound": ("#c3cad4", "#474f5c"),
    "prediction": ("#8a96a6", "#7d8899"),
    "measured": ("#2c3a4d", "#d3dae4"),
    "sockets": ("#5b7089", "#8fa6c0"),
    # worker classes
    "class-1": ("#332288", "#a99bf5"),
    "class-2": ("#117733", "#62c47f"),
    "class-3": ("#aa4499", "#e08fd3"),
    "class-4": ("#2a8f82", "#6fd6c4"),
    "class-5": ("#882255", "#ea7fae"),
    "class-6": ("#7d7d1a", "#cfcf66"),
    "class-7": ("#3f75b0", "#96c0ee"),
}
CLASSES = tuple(name for name in COLOURS if name.startswith("class-"))

_VARIABLE = re.compile(r"var\(--([a-z0-9-]+)\)")


def var(name: str) -> str:
    """The CSS variable of a colour, for a chart. AssertionError for an unknown name."""
    assert name in COLOURS, name
    return f"var(--{name})"


def css(theme: int) -> str:
    """The CSS declarations of a theme's variables. 0: light, 1: dark."""
    return "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items())


def in_light(text: str) -> str:
    """`text` with the variables replaced by the colours of the light theme."""
    return _VARIABLE.sub(lambda match: COLOURS[match[1]][0], text)


AXIS = 58  # pixels left of every pane, to align their horizontal axes
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
# For counts. A minimum tick step does not keep Vega from 0.5, which "d" would print as 1
WHOLE = alt.Axis(labelExpr="datum.value % 1 ? '' : format(datum.value, 'd')")
POINT: dict[str, Any] = {
    "filled": True,
    "size": 90,
    "opacity": 1,
    "stroke": var("paper"),
    "strokeWidth": 1,
}

DASHES = {"solid": [1, 0], "dashed": [6, 4], "dotted": [2, 3]}
MARKS = (
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right",
)  # fmt: skip

PICTURE_SERIES = 6  # per figure at most
TENFOLD = 10.0  # a series lower by more than this factor is a sliver
OWN_AXIS = "Each picture has an axis of its own."

T = TypeVar("T")
Looks = Mapping[str, tuple[str, str]]  # colour and shape of a series, by its name


class Key(Struct, frozen=True):
    """A legend entry. `colour`: a name in COLOURS; `shape`: "box", or a name in DASHES or MARKS."""

    label: Label
    colour: str
    shape: str = "box"


class Figure(Struct, frozen=True):
    """One picture and its text. `name` is safe as a file name. `heading`: the title where the page
    has named the cell already.

    `alternative`: a description for screen readers. `heads`, `rows`: its numbers as a table;
    `links`: for each row, the anchor of a row in another table.
    """

    name: str
    title: Label
    caption: tuple[Label, ...]
    alternative: tuple[str, ...]
    panes: tuple[Any, ...]  # Altair charts, top to bottom
    legend: tuple[Key, ...] = ()
    heads: tuple[Label, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    links: tuple[str, ...] = ()
    heading: Label = ""


def some(*optional: T | None) -> tuple[T, ...]:
    """The arguments that are not None."""
    return tuple(value for value in optional if value is not None)


def grouped(
    items: Sequence[T], top: Callable[[T], float] | None = None, most: int = PICTURE_SERIES
) -> list[list[T]]:
    """The items in groups, one per figure, in order: at most `most` in each, to keep colours and
    shapes unique. `top`: returns the height of an item; then none is a sliver in its group."""
    tops = {place: top(item) if top else 1.0 for place, item in enumerate(items)}
    groups: list[list[int]] = []
    lowest = 0.0
    for place in sorted(tops, key=tops.__getitem__):
        if not groups or tops[place] > TENFOLD * lowest:
            groups.append([])
            lowest = tops[place]
        groups[-1].append(place)
    split = [
        sorted(group)[n * len(group) // parts : (n + 1) * len(group) // parts]
        for group in groups
        for parts in [-(-len(group) // most)]
        for n in range(parts)
    ]
    return [[items[place] for place in group] for group in sorted(split)]


def part_of(title: Label, number: int, parts: int) -> Label:
    """The title of one of `parts` figures; `number` counts from 1."""
    return f"{text(title)} ({number} of {parts})" if parts > 1 else title


def not_shown(chart: Chart, drawn: int) -> str | None:
    """A note on the points that are missing. `drawn`: how many points are drawn."""
    lost = sum(len(series.points) for series in chart.series) - drawn
    return f"Not shown, as they are 0 or missing: {lost}." if lost else None


def slug(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def of_cell(name: str, heading: str, where: str, **more: Any) -> Figure:
    """A figure of the cell at `where`; the name of the cell is added to `name` later."""
    return Figure(name=name, **{"title": f"{heading}, {where}", "heading": heading, **more})


def mark_of(place: int) -> tuple[str, str]:
    """Colour and shape of a series; when colours run out, they repeat with other shapes."""
    return CLASSES[place % len(CLASSES)], MARKS[(place + place // len(CLASSES)) % len(MARKS)]


def by_name(channel: Any, field: str, look: dict[str, Any]) -> Any:
    """A channel (colour, shape, dash) that distinguishes names; the page draws the legend."""
    # Ordinal: otherwise Vega interpolates sizes between two ends, and has none for a single name
    scale = alt.Scale(type="ordinal", domain=list(look), range=list(look.values()))
    return channel(f"{field}:N", scale=scale, legend=None)


def data(heads: str, rows: Iterable[Sequence[object]]) -> Any:
    """Rows as inline CSV, a third of the size of JSON. None stays missing. A column with any string
    is read as strings, all others as numbers."""
    names, rows, table = heads.split(), list(rows), io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(names)
    # Six digits resolve a microsecond in a second; no chart shows more
    writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in rows)
    texts = {name for row in rows for name, v in zip(names, row, strict=True) if isinstance(v, str)}
    parse = {name: "number" for name in names if name not in texts}
    return alt.InlineData(
        values=table.getvalue(), format=alt.CsvDataFormat(type="csv", parse=parse)
    )


def tip(field: str, title: Label | None = None, form: str = ".4~r") -> Any:
    """A line of a tooltip. `form`: the format of a number, "" for a name; `title` defaults to the
    field."""
    words = field if title is None else text(title)
    if not form:
        return alt.Tooltip(f"{field}:N", title=words)
    return alt.Tooltip(f"{field}:Q", title=words, format=form)


def unit(longest_s: float) -> tuple[str, float]:
    """('s', 1) or ('ms', 1000): unit and factor for a chart of times up to `longest_s`."""
    return ("s", 1.0) if longest_s >= 1 else ("ms", 1e3)


def config() -> dict[str, Any]:
    """The look of all charts, which the page contains once."""
    size = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    ink = {"labelColor": var("soft"), "titleColor": var("soft"), "tickColor": var("line")}
    return {
        "aria": False,  # each figure has a text alternative of its own
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": {**size, **ink, "domainColor": var("line"), "gridColor": var("line"),
                 "gridOpacity": 0.6, "labelLimit": 90},
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "minExtent": AXIS, "maxExtent": AXIS,
                  "tickCount": 4},
        "text": {"fontSize": 12, "color": var("ink")},
        "title": {"fontSize": 15, "color": var("ink"), "anchor": "start", "frame": "group",
                  "offset": 10},
    }  # fmt: skip


def spec(pane: Any) -> dict[str, Any]:
    """A pane for the page: as wide as its container, without the config that the page has."""
    drawn: dict[str, Any] = pane.properties(width="container").to_dict(validate=False)
    drawn.pop("config", None)
    drawn.pop("$schema", None)
    return drawn
