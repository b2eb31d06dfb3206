"""A document as one self-contained page that loads nothing from the network.

The page contains the drawing library once, its charts as specifications with their numbers, and all
text as HTML, which can be read without scripts. Charts in closed sections are drawn when a section
is opened. The content policy allows no address at all, and only the page's own scripts, by hash:
even text that slipped through escaping could neither run nor send anything.

The library is half of the page. Drawing SVG here instead was rejected: 40 cells of charts are
larger as SVG, do not adapt to a phone, and have no tooltips.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import jinja2
import vl_convert
from altair.utils.schemapi import debug_mode
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape
from msgspec.structs import replace

from workerlab.analysis.overview import headline
from workerlab.finding import Finding
from workerlab.model import Column, Document, Table, Verdict
from workerlab.numbers.units import MISSING, counted, fill, format_duration
from workerlab.report import player
from workerlab.report.grid import explained, grid
from workerlab.report.html.chart_figures import chart_figures
from workerlab.report.html.figure import DASHES, Figure, config, css, some, spec, var
from workerlab.report.html.levels import breakdown, keepalive, longest_s, open_and_closed
from workerlab.report.html.series import all_series, cells_over_time
from workerlab.report.html.throughput import throughput
from workerlab.report.sweep_document import SWEEP, AffectedCells, Overhead
from workerlab.report.values import text

SIZE = 1_950_000  # bytes of the whole page
FRAME = 80_000  # of these, reserved for the player, series headings and the note on omitted cells
FILTERED = 12  # tables with at least this many rows get a filter
MANY = 6  # omitted cells that are named; if there are more, they are only counted

SUBJECTS = ("name", "cells")  # fields of a finding that name its subject
MARK = "\0"


@debug_mode(False)  # no schema validation: the tests of the images do that
def render(document: Document) -> str:
    """The whole page as HTML. Cells are added, most informative first, while they fit in SIZE."""
    sections = run_figures(document)
    charts = _charts(figure for figures in sections.values() for figure in figures)
    legends: set[tuple[str, str]] = set()
    columns = (Column("fact", form="text"), Column("value", form="text"))
    facts = tuple(_facts("", document.environment))
    measured_on = Table("Environment", columns, facts)
    values = {
        "document": document,
        "headline": headline_of(document) if document.kind == SWEEP else document.title,
        "about": document.title if document.kind == SWEEP else "",
        **_by_place(document.findings),
        "sections": sections,
        "tables": [
            (table, whole, explained(table, whole, legends))
            for table in document.tables
            if table.rows
            for whole in [grid(table)]
        ],
        "facts": grid(measured_on) if facts else None,
    }
    template = _environment().get_template("page.html")
    macros: Any = _environment().get_template("macros.html").module
    room = SIZE - FRAME - size(template.render(**values, cells=[], left_out="", charts=charts))
    cells: list[tuple[tuple[int, int], str, str]] = []
    left_out: list[str] = []
    for cell in cells_over_time(document):
        if room >= 0:
            markup, drawn = macros.cell(cell), _charts(cell.figures)
            room -= size(markup) + size(compact(drawn))
        if room < 0:
            left_out.append(cell.where)
        else:
            cells.append((cell.place, cell.series.name, markup))
            charts |= drawn
    return template.render(
        **values, cells=sorted(cells), left_out=left_out_text(left_out), charts=charts
    )


def headline_of(document: Document) -> Finding:
    inconclusive = any(cell.verdict == "inconclusive" for cell in document.cells)
    series = {each.name: each.levels for each in all_series(document)}
    return headline(series, inconclusive=inconclusive)


def left_out_text(cells: Sequence[str]) -> str:
    """A note on the cells that do not fit; "" if all do."""
    values = {
        "cells": counted(len(cells), "cell is/cells are"),
        "names": cells if len(cells) <= MANY else (),
    }
    template = (
        "To keep this page small, {cells} not shown over time[[: {names:list}]]. As pictures:"
        " --png DIR."
    )
    return fill(template, values) if cells else ""


def _by_place(conclusions: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Findings by place: others on top, answers, overhead below the tables, invalid cells last."""
    places: dict[str, list[Finding]] = {
        place: [] for place in ("answers", "others", "costs", "invalid")
    }
    for finding in conclusions:
        match finding:
            case AffectedCells(state="Invalid"):
                place = "invalid"
            case Overhead():
                place = "costs"
            case _:
                place = "answers" if finding.question else "others"
        places[place].append(finding)
    return places


def figures(document: Document) -> list[Figure]:
    """All figures, including those of cells that do not fit on the page."""
    run = [figure for section in run_figures(document).values() for figure in section]
    cells = sorted(cells_over_time(document), key=lambda cell: cell.place)
    return run + [figure for cell in cells for figure in cell.figures]


def run_figures(document: Document) -> dict[str, Sequence[Figure]]:
    """The figures of the whole run that have something to show, by section heading."""
    series = all_series(document)
    longest = longest_s(series)
    sections = {
        "Charts": chart_figures(document),
        "Throughput against concurrency": throughput(document),
        "Where the time went": some(*(breakdown(each, longest) for each in series)),
        "What kept-alive connections allow": some(*map(keepalive, series)),
        "Closed loop and open model": some(*map(open_and_closed, series)),
    }
    return {heading: drawn for heading, drawn in sections.items() if drawn}


def size(page: str) -> int:
    """In bytes. What cannot be encoded, such as a lone surrogate from a log, becomes '?'."""
    return len(page.encode(errors="replace"))


def _facts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The environment, flattened to one (name, value) per row."""
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
    """Escapes everything except the Markup made here."""
    place = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(place),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (place / "page.js").read_text(encoding="utf-8")
    environment.filters.update(
        text=text,
        compact=compact,
        emphasised=emphasised,
        duration=format_duration,
    )
    environment.globals.update(
        var=var,
        dashes=DASHES,
        filtered=FILTERED,
        verdicts=get_args(Verdict),
        config=config(),
        light=Markup(css(0)),
        dark=Markup(css(1)),
        style=Markup((place / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        library=Markup(library()),
        player=[Markup(script) for script in player.scripts()],
        player_style=Markup(player.style()),
        policy="default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        f" script-src 'unsafe-eval' {' '.join(map(_hash, (library(), script, *player.scripts())))}",
    )
    return environment


def emphasised(finding: Finding) -> Markup:
    """The finding's sentence as HTML, with its subject in bold unless that is a number."""
    values = ((name, finding.values.get(name)) for name in SUBJECTS)
    subject = next((name for name, value in values if value and not isinstance(value, int)), None)
    if subject is None:
        return escape(text(finding))
    bold = Markup("<strong>{}</strong>").format(text(finding.values[subject]))
    marked = replace(finding, **{subject: MARK})
    return escape(text(marked)).replace(MARK, bold)


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script. It exports only the last: the bundle of
    vl-convert 1.9 exports the others as null."""
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script


def compact(value: object) -> Markup:
    """JSON that cannot close the HTML element that contains it."""
    return htmlsafe_json_dumps(value, separators=(",", ":"), allow_nan=False)


def _charts(figures: Iterable[Figure]) -> dict[str, list[dict[str, Any]]]:
    """The specifications of the panes of each figure, by its name."""
    return {figure.name: [spec(pane) for pane in figure.panes] for figure in figures}


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
