"""The parts that all figures are built from: data as CSV, colours by name, one style.

A figure is one or more panes that share their horizontal axis. Its legend is data: on the page it
becomes HTML, which wraps and works with screen readers, and in an image another pane.

Each meaning has one colour per theme, light or dark, on the page, in charts and in images.
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
from msgspec.structs import replace

# name: (light, dark)
COLOURS: Mapping[str, tuple[str, str]] = {
    # the page
    "paper": ("#ffffff", "#14171c"),
    "panel": ("#f6f7f9", "#1c2027"),
    "ink": ("#1b1f24", "#e6e9ee"),
    "soft": ("#545d68", "#a9b2bf"),
    "line": ("#d5dae1", "#363d48"),
    "link": ("#0b5cad", "#7fb8f0"),
    # places of a request
    "connect": ("#d55e00", "#f0813a"),
    "accept-queue": ("#e69f00", "#f2b632"),
    "in-worker": ("#cc79a7", "#e19bc2"),
    "service": ("#0072b2", "#3d9bd9"),
    "transfer": ("#009e73", "#2cc199"),
    "unattributed": ("#8d949e", "#78818d"),
    "waiting": ("#f6d38a", "#7d5f1c"),  # at any place before the app
    # reference lines and measurements
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
    """The CSS variable of a colour, for a chart. Raises AssertionError for an unknown name."""
    assert name in COLOURS, name
    return f"var(--{name})"


def css(theme: int) -> str:
    """The CSS declarations of a theme's variables. 0: light, 1: dark."""
    return "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items())


def in_light_colours(text: str) -> str:
    """`text` with the variables replaced by the colours of the light theme."""
    return _VARIABLE.sub(lambda match: COLOURS[match[1]][0], text)


AXIS_WIDTH = 58  # pixels left of every pane, to align their horizontal axes
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
# For counts. Even with a minimum tick step, Vega has ticks at 0.5, which "d" would print as 1
COUNT_AXIS = alt.Axis(labelExpr="datum.value % 1 ? '' : format(datum.value, 'd')")
POINT_STYLE: dict[str, Any] = {
    "filled": True,
    "size": 90,
    "opacity": 1,
    "stroke": var("paper"),
    "strokeWidth": 1,
}

DASHES = {"solid": [1, 0], "dashed": [6, 4], "dotted": [2, 3]}
SHAPES = (
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right",
)  # fmt: skip

MAX_SERIES = 6  # per figure
MAX_HEIGHT_RATIO = 10.0  # highest / lowest series of a figure: a lower one would be a sliver
OWN_AXIS_NOTE = "Each figure has its own axis."

T = TypeVar("T")
Looks = Mapping[str, tuple[str, str]]  # colour and shape of a series, by its name


class Key(Struct, frozen=True):
    """A legend entry. `colour`: a name in COLOURS; `shape`: "box", or a name in DASHES or MARKS."""

    label: str
    colour: str
    shape: str = "box"


class Figure(Struct, frozen=True):
    """One picture and its text. `name` is a valid file name. `heading`: a title for places where
    the page already names the cell.

    `alternative`: a description for screen readers. `header`, `rows`: its numbers as a table;
    `links`: for each row, the anchor of a row in another table.
    """

    name: str
    title: str
    caption: tuple[str, ...]
    alternative: tuple[str, ...]
    panes: tuple[Any, ...]  # Altair charts, top to bottom
    legend: tuple[Key, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    links: tuple[str, ...] = ()
    heading: str = ""


def not_none(*optional: T | None) -> tuple[T, ...]:
    """The arguments that are not None."""
    return tuple(value for value in optional if value is not None)


def grouped(
    items: Sequence[T], height: Callable[[T], float] | None = None, max_items: int = MAX_SERIES
) -> list[list[T]]:
    """The items in groups, one per figure, in order: at most `max_items` in each, to keep colours
    and shapes unique. With `height(item)`, no item is a sliver in its group."""
    heights = {index: height(item) if height else 1.0 for index, item in enumerate(items)}
    groups: list[list[int]] = []
    lowest = 0.0
    for index in sorted(heights, key=heights.__getitem__):
        if not groups or heights[index] > MAX_HEIGHT_RATIO * lowest:
            groups.append([])
            lowest = heights[index]
        groups[-1].append(index)
    split = [
        sorted(group)[n * len(group) // parts : (n + 1) * len(group) // parts]
        for group in groups
        for parts in [-(-len(group) // max_items)]
        for n in range(parts)
    ]
    return [[items[index] for index in group] for group in sorted(split)]


def split_figures(
    items: Sequence[T],
    height: Callable[[T], float] | None,
    name: str,
    title: str,
    draw: Callable[[Sequence[T], str, str], Figure | None],
) -> list[Figure]:
    """One figure per group of items (`grouped`), made by `draw(group, name, title)`. With `height`,
    each figure has its own axis."""
    groups = grouped(items, height)
    figures = not_none(
        *(
            draw(
                group,
                f"{name}-{number}" if number > 1 else name,
                f"{title} ({number} of {len(groups)})" if len(groups) > 1 else title,
            )
            for number, group in enumerate(groups, 1)
        )
    )
    own_axis = (OWN_AXIS_NOTE,) if height and len(figures) > 1 else ()
    return [replace(figure, caption=(*figure.caption, *own_axis)) for figure in figures]


def slug(name: str) -> str:
    """`name` as part of a file name, in lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def cell_figure(name: str, heading: str, where: str, **more: Any) -> Figure:
    """A figure of the cell called `where`; `CellOverTime.figures` makes its `name` unique."""
    return Figure(name=name, **{"title": f"{heading}, {where}", "heading": heading, **more})


def look_of(index: int) -> tuple[str, str]:
    """The colour and shape of a series. When the colours run out, they repeat with other shapes."""
    return CLASSES[index % len(CLASSES)], SHAPES[(index + index // len(CLASSES)) % len(SHAPES)]


def by_name(channel: Any, field: str, value_of: dict[str, Any]) -> Any:
    """A channel (colour, shape, dash) that distinguishes names. The page draws its legend."""
    # Ordinal: otherwise Vega interpolates sizes between two ends, and a single name has no size
    scale = alt.Scale(type="ordinal", domain=list(value_of), range=list(value_of.values()))
    return channel(f"{field}:N", scale=scale, legend=None)


def colour_of(field: str, looks: Looks) -> Any:
    return by_name(alt.Color, field, {name: var(colour) for name, (colour, _) in looks.items()})


def shape_of(field: str, looks: Looks) -> Any:
    return by_name(alt.Shape, field, {name: shape for name, (_, shape) in looks.items()})


def span(low: float, high: float, **more: Any) -> Any:
    """A scale from `low` to `high`."""
    return alt.Scale(domain=[low, high], nice=False, **more)


def layer(name: str, columns: str, rows: Iterable[Sequence[object]]) -> Any:
    """A layer of a pane. `columns`, `rows`: as in `data`."""
    return alt.Chart(data(columns, rows), name=name or alt.Undefined)


def data(columns: str, rows: Iterable[Sequence[object]]) -> Any:
    """The rows as inline CSV, a third of the size of JSON. None stays missing. A column with any
    string is read as strings, any other as numbers. `columns`: names separated by spaces."""
    names, rows, output = columns.split(), list(rows), io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(names)
    # Six digits resolve a microsecond in a second; no chart shows more detail
    writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in rows)
    texts = {name for row in rows for name, v in zip(names, row, strict=True) if isinstance(v, str)}
    parse = {name: "number" for name in names if name not in texts}
    return alt.InlineData(
        values=output.getvalue(), format=alt.CsvDataFormat(type="csv", parse=parse)
    )


def tips(*fields: str | tuple[str, str]) -> list[Any]:
    """The lines of a tooltip: a field, or a field and its title. "NAME:N": a name, "NAME:d": a
    count, "NAME": any other number."""
    lines = []
    for field in fields:
        column, title = field if isinstance(field, tuple) else (field, field.partition(":")[0])
        name, _, form = column.partition(":")
        if form == "N":
            lines.append(alt.Tooltip(column, title=title))
        else:
            lines.append(alt.Tooltip(f"{name}:Q", title=title, format=form or ".4~r"))
    return lines


def unit(longest_s: float) -> tuple[str, float]:
    """('s', 1) or ('ms', 1000): unit and factor for a chart of times up to `longest_s`."""
    return ("s", 1.0) if longest_s >= 1 else ("ms", 1e3)


def config() -> dict[str, Any]:
    """The Vega configuration of all charts, which the page contains once."""
    font = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
    colours = {"labelColor": var("soft"), "titleColor": var("soft"), "tickColor": var("line")}
    return {
        "aria": False,  # each figure has a text alternative of its own
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": {**font, **colours, "domainColor": var("line"), "gridColor": var("line"),
                 "gridOpacity": 0.6, "labelLimit": 90},
        "axisX": {"grid": False},
        "axisY": {"domain": False, "ticks": False, "minExtent": AXIS_WIDTH, "maxExtent": AXIS_WIDTH,
                  "tickCount": 4},
        "text": {"fontSize": 12, "color": var("ink")},
        "title": {"fontSize": 15, "color": var("ink"), "anchor": "start", "frame": "group",
                  "offset": 10},
    }  # fmt: skip


def spec(pane: Any) -> dict[str, Any]:
    """The specification of a pane for the page: as wide as its container, without the config."""
    specification: dict[str, Any] = pane.to_dict(validate=False)
    specification.pop("config", None)
    specification.pop("$schema", None)
    specification["width"] = "container"  # `properties` would copy the whole pane
    return specification
