"""A document as one self-contained page: nothing is fetched from anywhere.

The page holds the drawing library once, its charts as specifications with their numbers, and all
words as HTML, so that it can be read without scripts. Charts in closed sections are drawn when
these are opened. Its content policy allows no address at all and only its own scripts, by their
hash, so that even text that slipped through escaping would neither run nor call out.

Half of the page is the library. Drawing to SVG here and leaving it out was rejected: 40 cells of
charts as SVG are larger, and fit neither a phone nor a pointer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import jinja2
import vl_convert
from altair.utils.schemapi import debug_mode
from markupsafe import Markup, escape

from harness.model import Document, Finding, Label, Verdict
from harness.report.document import SWEEP
from harness.report.html.breakdown import breakdown, longest_s
from harness.report.html.cells import CellOverTime, cells_over_time
from harness.report.html.charts import chart_figures
from harness.report.html.colours import css, var
from harness.report.html.figures import DASHES, SIGNS, Figure, config, spec
from harness.report.html.headline import headline
from harness.report.html.keepalive import keepalive
from harness.report.html.open_and_closed import open_and_closed
from harness.report.html.series import all_series
from harness.report.html.tables import environment, tables
from harness.report.html.throughput import throughput
from harness.report.messages import question_of, say, text

SIZE = 1_950_000  # bytes of the whole page
FRAME = 10_000  # of these, headings of series and what is said of the cells that found no room
MANY = 6  # cells without room: more are counted, not named

PLACES = {"sweep.overhead": "costs", "sweep.setup": "costs", "cells.invalid": "invalid"}
SUBJECTS = ("name", "cells")  # values of a finding that name what it is about
MARK = "\0"

Sections = dict[str, Sequence[Figure]]  # by their headings
Charts = dict[str, list[dict[str, Any]]]  # the panes of each figure, by its name


@debug_mode(False)  # checking specifications against the schema is for tests of the pictures
def render(document: Document) -> str:
    """The whole page as text."""
    sections = run_figures(document)
    drawn = _charts(figure for figures in sections.values() for figure in figures)
    values = {
        "document": document,
        "headline": headline(document) if document.kind == SWEEP else document.title,
        "about": document.title if document.kind == SWEEP else "",
        **_by_place(document),
        "sections": sections,
        "tables": tables(document),
        "facts": environment(document.environment),
    }
    page = _environment().get_template("page.html")
    empty = page.render(**values, cells={}, left_out=[], charts=drawn)
    cells, charts, left_out = _fitting(document, SIZE - FRAME - size(empty))
    return page.render(
        **values, cells=_by_series(cells), left_out=left_out, charts={**drawn, **charts}
    )


def figures(document: Document) -> list[Figure]:
    """Every one of them, whether the page has room for it or not."""
    run = [figure for section in run_figures(document).values() for figure in section]
    cells = sorted(cells_over_time(document), key=lambda cell: cell.place)
    return run + [figure for cell in cells for figure in cell.figures]


def run_figures(document: Document) -> Sections:
    """The figures of the whole run that have anything to show, by the codes of their headings."""
    every, longest = all_series(document), longest_s(document)
    sections: dict[str, Sequence[Figure | None]] = {
        "page.heading.charts": chart_figures(document),
        "page.heading.throughput": [throughput(document)],
        "page.heading.breakdown": [breakdown(series, longest) for series in every],
        "page.heading.keepalive": [keepalive(series) for series in every],
        "page.heading.loops": [open_and_closed(series) for series in every],
    }
    known = {code: [one for one in each if one is not None] for code, each in sections.items()}
    return {code: each for code, each in known.items() if each}


def size(page: str) -> int:
    """In bytes; what no encoding can say, such as half a character of a log, becomes '?'."""
    return len(page.encode(errors="replace"))


def _by_place(document: Document) -> dict[str, list[Finding]]:
    """Where each finding stands on the page."""
    places: dict[str, list[Finding]] = {
        name: [] for name in ("answers", "statements", "costs", "invalid")
    }
    for one in document.findings:
        places["answers" if question_of(one) else PLACES.get(one.code, "statements")].append(one)
    return places


# --- cells that fit -----------------------------------------------------------------------


def _fitting(document: Document, room: int) -> tuple[list[CellOverTime], Charts, list[Finding]]:
    """The cells for which there is room in so many bytes, the most telling ones first, with their
    charts, and where those are that found none."""
    fitting: list[CellOverTime] = []
    charts: Charts = {}
    left_out: list[Finding] = []
    macros: Any = _environment().get_template("macros.html").module
    for cell in cells_over_time(document):
        if not left_out:
            drawn = _charts(cell.figures)
            room -= size(macros.cell(cell)) + size(compact(drawn))
        if room < 0:
            left_out.append(cell.where)
        else:
            fitting.append(cell)
            charts |= drawn
    return fitting, charts, left_out


def _by_series(cells: Iterable[CellOverTime]) -> dict[str, list[CellOverTime]]:
    """In the order of the document."""
    series: dict[str, list[CellOverTime]] = {}
    for cell in sorted(cells, key=lambda one: one.place):
        series.setdefault(cell.series.name, []).append(cell)
    return series


# --- what the template is given -----------------------------------------------------------


@cache
def _environment() -> jinja2.Environment:
    """Everything is escaped unless it is made here."""
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
        text=text, compact=compact, question=question_of, emphasised=emphasised
    )
    environment.globals.update(
        say=say,
        var=var,
        dashes=DASHES,
        signs=SIGNS,
        many=MANY,
        verdicts=get_args(Verdict),
        config=config(),
        light=Markup(css(0)),
        dark=Markup(css(1)),
        style=Markup((place / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        library=Markup(library()),
        policy="default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        f" script-src 'unsafe-eval' {_hash(library())} {_hash(script)}",
    )
    return environment


def emphasised(finding: Label) -> Markup:
    """What it says, with what it is about in bold."""
    if isinstance(finding, str):
        return escape(finding)
    subject = next((name for name in SUBJECTS if finding.values.get(name)), None)
    if subject is None:
        return escape(text(finding))
    bold = Markup("<strong>{}</strong>").format(text(finding.values[subject]))
    marked = replace(finding, values={**finding.values, subject: MARK})
    return escape(text(marked)).replace(MARK, bold)


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script. It hands out only the last: the bundle of
    vl-convert 1.9 exports the others as null."""
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script


def compact(value: object) -> Markup:
    """JSON that cannot end the element it stands in."""
    dump = json.dumps(value, separators=(",", ":"), allow_nan=False)
    dump = dump.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(dump)


def _charts(figures: Iterable[Figure]) -> Charts:
    return {figure.name: [spec(pane) for pane in figure.panes] for figure in figures}


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
