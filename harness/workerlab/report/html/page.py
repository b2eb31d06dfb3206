"""Renders a document as one self-contained page that loads nothing from the network, and its
figures as images in the light theme for use elsewhere.

The page contains the drawing library once, its charts as specifications with their numbers, and all
text as HTML, which is readable without scripts. Charts in a closed section are drawn when it is
opened. The content security policy allows no address at all and only the page's own scripts, by
hash: even text that escaping missed could neither run nor send anything.

The library is half of the page's size. Rejected: drawing SVG here instead. 40 cells of charts are
larger as SVG, do not adapt to a phone, and have no tooltips.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import altair as alt
import jinja2
import vl_convert
from altair.utils.schemapi import debug_mode
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape
from msgspec.structs import replace

from workerlab.analysis.class_findings import conclusions_of
from workerlab.analysis.overview import headline
from workerlab.finding import Finding
from workerlab.model.result import SWEEP, Column, Document, Table, Verdict
from workerlab.numbers.units import MISSING, counted, fill, format_duration
from workerlab.report import player
from workerlab.report.html.chart_figures import chart_figures
from workerlab.report.html.figure import (
    DASHES,
    Figure,
    Key,
    config,
    css,
    in_light_colours,
    layer,
    not_none,
    spec,
    var,
)
from workerlab.report.html.levels import (
    breakdown,
    keepalive,
    open_and_closed,
    shared_top_s,
    throughput,
)
from workerlab.report.html.series import all_series, cells_over_time
from workerlab.report.tables import table_notes, to_grid

MAX_PAGE_BYTES = 1_950_000
RESERVED_BYTES = 80_000  # part of these: for the player, headings and the note on omitted cells
MIN_FILTERED_ROWS = 12  # tables with at least this many rows get a filter
MAX_NAMED_CELLS = 6  # if more cells are omitted, they are only counted

SUBJECT_FIELDS = ("name", "cells")  # fields of a finding that can name its subject
SUBJECT_MARK = "\0"


@debug_mode(False)  # no schema validation: the tests validate the images
def render(document: Document) -> str:
    """The page as HTML. Cells are added up to MAX_PAGE_BYTES, the most informative first."""
    sections = run_figures(document)
    charts = _charts(figure for figures in sections.values() for figure in figures)
    explained: set[tuple[str, str]] = set()
    columns = (Column("fact", form="text"), Column("value", form="text"))
    facts = tuple(_facts("", document.environment))
    environment_table = Table("Environment", columns, facts)
    values = {
        "document": document,
        "headline": headline_of(document) if document.kind == SWEEP else document.title,
        "about": document.title if document.kind == SWEEP else "",
        "sections": sections,
        "tables": [
            (table, table_grid, table_notes(table, table_grid, explained))
            for table in document.tables
            if table.rows
            for table_grid in [to_grid(table)]
        ],
        "facts": to_grid(environment_table) if facts else None,
    }
    template = _environment().get_template("page.html")
    macros: Any = _environment().get_template("macros.html").module
    without_cells = template.render(**values, cells=[], left_out="", charts=charts)
    bytes_left = MAX_PAGE_BYTES - RESERVED_BYTES - size_bytes(without_cells)
    cells: list[tuple[tuple[int, int], str, str]] = []
    omitted: list[str] = []
    for cell in cells_over_time(document):
        if bytes_left >= 0:
            markup, specs = macros.cell(cell), _charts(cell.figures)
            bytes_left -= size_bytes(markup) + size_bytes(compact(specs))
        if bytes_left < 0:
            omitted.append(cell.where)
        else:
            cells.append((cell.position, cell.series.name, markup))
            charts |= specs
    return template.render(
        **values, cells=sorted(cells), left_out=omitted_cells_note(omitted), charts=charts
    )


def headline_of(document: Document) -> Finding:
    """The page's heading: a comparison of the series."""
    levels = {series.name: series.levels for series in all_series(document)}
    return headline(levels, document.cells)


def omitted_cells_note(names: Sequence[str]) -> str:
    """A note on the cells that do not fit on the page; "" if all do."""
    values = {
        "cells": counted(len(names), "cell is/cells are"),
        "names": names if len(names) <= MAX_NAMED_CELLS else (),
    }
    template = (
        "To keep this page small, {cells} not shown over time[[: {names:list}]]. To draw all cells:"
        " --png DIR."
    )
    return fill(template, values) if names else ""


def figures(document: Document) -> list[Figure]:
    """All figures, including those of cells that do not fit on the page."""
    run = [figure for section in run_figures(document).values() for figure in section]
    cells = sorted(cells_over_time(document), key=lambda cell: cell.position)
    return run + [figure for cell in cells for figure in cell.figures]


def run_figures(document: Document) -> dict[str, Sequence[Figure]]:
    """The figures of the whole run by section heading, without empty ones."""
    series = all_series(document)
    top_s = shared_top_s(series)
    sections = {
        "Charts": chart_figures(document),
        "Throughput against concurrency": throughput(series),
        "Where the time went": not_none(*(breakdown(entry, top_s) for entry in series)),
        "What kept-alive connections allow": not_none(*map(keepalive, series)),
        "Closed loop and open model": not_none(*map(open_and_closed, series)),
    }
    return {heading: group for heading, group in sections.items() if group}


def size_bytes(html: str) -> int:
    """The size of the text in UTF-8. Characters that cannot be encoded, such as a lone surrogate
    from a log, count as '?'."""
    return len(html.encode(errors="replace"))


def _facts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The environment, flattened to rows (name, value)."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _facts(f"{name}, {key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        yield name.replace("_", " "), ", ".join(map(str, value))
    else:
        yield name.replace("_", " "), MISSING if value is None else str(value)


# --- template environment -----------------------------------------------------------------


@cache
def _environment() -> jinja2.Environment:
    """The template environment, which escapes everything except Markup made here."""
    directory = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(directory),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (directory / "page.js").read_text(encoding="utf-8")
    environment.filters.update(
        compact=compact,
        conclusions=conclusions_of,
        emphasised=emphasised,
        duration=format_duration,
    )
    environment.globals.update(
        var=var,
        dashes=DASHES,
        filtered=MIN_FILTERED_ROWS,
        verdicts=get_args(Verdict),
        config=config(),
        light=Markup(css(0)),
        dark=Markup(css(1)),
        style=Markup((directory / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        library=Markup(library()),
        player=[Markup(script) for script in player.scripts()],
        player_style=Markup(player.style()),
        policy=player.content_policy((library(), script, *player.scripts()), evaluates=True),
    )
    return environment


def emphasised(finding: Finding) -> Markup:
    """The finding's sentence as HTML, with its subject in bold unless the subject is a number."""
    values = ((name, finding.values.get(name)) for name in SUBJECT_FIELDS)
    subject = next((name for name, value in values if value and not isinstance(value, int)), None)
    if subject is None:
        return escape(str(finding))
    bold = Markup("<strong>{}</strong>").format(finding.values[subject])
    marked = replace(finding, **{subject: SUBJECT_MARK})
    return escape(str(marked)).replace(SUBJECT_MARK, bold)


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script. It exports only vega-embed: the bundle of
    vl-convert 1.9 exports the others as null."""
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script


def compact(value: object) -> Markup:
    """The value as JSON that cannot close the HTML element that contains it."""
    return htmlsafe_json_dumps(value, separators=(",", ":"), allow_nan=False)


def _charts(figures: Iterable[Figure]) -> dict[str, list[dict[str, Any]]]:
    """The specifications of the panes of each figure, by the figure's name."""
    return {figure.name: [spec(pane) for pane in figure.panes] for figure in figures}


# --- images -------------------------------------------------------------------------------

WIDTH = 760  # pixels
PNG_SCALE = 2.0
CHARACTER_WIDTH = 6.6  # pixels per character of a legend
LINE_HEIGHT = 22  # pixels per line of a legend


def pictures(document: Document) -> Iterator[tuple[str, bytes]]:
    """Yields (file name, content): an SVG and a PNG per figure."""
    for figure in figures(document):
        svg: str = vl_convert.vegalite_to_svg(picture(figure))
        yield f"{figure.name}.svg", svg.encode()
        png: bytes = vl_convert.svg_to_png(svg, scale=PNG_SCALE)
        yield f"{figure.name}.png", png


def picture(figure: Figure) -> dict[str, Any]:
    """The figure as one standalone Vega-Lite specification: light, fixed width, titled."""
    panes = [pane.properties(width=WIDTH) for pane in figure.panes]
    above = [_legend(figure.legend)] if figure.legend else []
    title = alt.TitleParams(text=figure.title)
    chart = alt.vconcat(*above, *panes, spacing=8, title=title).resolve_scale(
        color="independent", strokeDash="independent"
    )
    specification: dict[str, Any] = _without_links(chart.to_dict())
    specification |= {"config": {**config(), "background": var("paper")}, "padding": 14}
    return dict(json.loads(in_light_colours(json.dumps(specification))))


def _without_links(node: Any) -> Any:
    """The specification without links, whose targets exist only on the page."""
    if isinstance(node, dict):
        return {name: _without_links(inner) for name, inner in node.items() if name != "href"}
    return [_without_links(inner) for inner in node] if isinstance(node, list) else node


def _legend(keys: Sequence[Key]) -> Any:
    """A pane with symbols and labels in a row, wrapped at the width of the image."""
    x, row, layers = 0.0, 0, []
    for key in keys:
        key_width = 34 + CHARACTER_WIDTH * len(key.label)
        if x and x + key_width > WIDTH:
            x, row = 0.0, row + 1
        base = layer("", "x end y", [(x, x + 18, row)])
        colour, dash = var(key.colour), DASHES.get(key.shape)
        if dash:
            symbol = base.mark_rule(color=colour, strokeWidth=2, strokeDash=dash).encode(
                x2=alt.X2("end:Q")
            )
        else:
            shape = "square" if key.shape == "box" else key.shape
            symbol = base.mark_point(shape=shape, size=110, xOffset=9, filled=True, opacity=1)
            symbol = symbol.encode(color=alt.ColorValue(colour))
        label = base.mark_text(text=key.label, align="left", baseline="middle", dx=25)
        layers += [symbol, label]
        x += key_width
    x_scale, y_scale = alt.Scale(domain=[0, WIDTH]), alt.Scale(domain=[row + 0.5, -0.5])
    return (
        alt.layer(*layers)
        .encode(alt.X("x:Q", scale=x_scale, axis=None), alt.Y("y:Q", scale=y_scale, axis=None))
        .properties(width=WIDTH, height=LINE_HEIGHT * (row + 1))
    )
