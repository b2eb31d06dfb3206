"""The report as one self-contained page: nothing is fetched from anywhere.

The page holds the drawing library once, its charts as specifications with their numbers, and all
words as HTML, so that it can be read without scripts. Charts in closed sections are drawn when
these are opened. Its content policy allows no address at all and only the scripts of this file, by
their hash, so that even text that slipped through escaping would neither run nor call out.

Half of the page is the library. Drawing to SVG here and leaving it out was rejected: 40 cells of
charts as SVG are larger, and fit neither a phone nor a pointer.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from pathlib import Path
from string import Template

import vl_convert

from harness.model import Report
from harness.report.page import parts
from harness.report.page.cells import Charts, cells, compact, size
from harness.report.page.charts import of_run
from harness.report.page.colours import css
from harness.report.page.figures import Figure, config, spec
from harness.report.page.headline import headline
from harness.report.remarks import invalid_lines, note_lines
from harness.report.sentences import class_lines, constants, cost_lines

SIZE = 1_950_000  # bytes of the whole page
FRAME = 10_000  # of these, what `render` puts around its parts
HERE = Path(__file__).parent
SECTIONS = (  # heading, how the names of its figures begin
    ("Throughput against concurrency", "throughput"),
    ("Where the time went", "waiting-"),
    ("What kept-alive connections allow", "keepalive-"),
)


@cache
def library() -> str:
    """Vega, Vega-Lite and vega-embed as one script. It hands out only the last: the bundle of
    vl-convert 1.9 exports the others as null."""
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return script


def render(report: Report) -> str:
    """The whole page as text."""
    style, script = _asset("style.css"), _asset("page.js")
    run = of_run(report)
    charts: Charts = {figure.name: [spec(pane) for pane in figure.panes] for figure in run}
    before, after = _before(report, run), _after(report)
    fixed = (library(), style, script, before, after, compact(charts))
    room = SIZE - FRAME - sum(map(size, fixed))
    over_time, more = cells(report, room)
    if over_time:
        before += f"<section><h2>Request by request</h2>{over_time}</section>"
    return Template(_asset("template.html")).substitute(
        title=escape(f"workerlab: {report.run}"),
        policy="default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        f" script-src 'unsafe-eval' {_hash(library())} {_hash(script)}",
        light=css(0),
        dark=css(1),
        style=style,
        run=escape(report.run),
        body=before + after,
        charts=compact(charts | more),
        config=compact(config()),
        library=library(),
        script=script,
    )


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _before(report: Report, run: list[Figure]) -> str:
    """Everything above the cells over time."""
    said = [f"<h1>{escape(headline(report))}</h1>", parts.paragraph(constants(report), "soft")]
    if report.classes:
        said.append(parts.bullets(class_lines(report), named=True))
    for heading, prefix in SECTIONS:
        chosen = [parts.figure(figure) for figure in run if figure.name.startswith(prefix)]
        if chosen:
            kind = "grid" if len(chosen) > 1 else "alone"
            inner = f'<div class="{kind}">{"".join(chosen)}</div>'
            said.append(f"<section><h2>{heading}</h2>{inner}</section>")
    return "".join(said)


def _after(report: Report) -> str:
    said = ["<section><h2>All numbers</h2>", parts.all_numbers(report)]
    said += [parts.paragraph(line) for line in cost_lines(report)]
    said.append("</section>")
    for heading, lines in (
        ("Invalid, so their numbers are withheld", invalid_lines(report)),
        ("Notes", note_lines(report)),
    ):
        if lines:
            said.append(f"<section><h2>{heading}</h2>{parts.bullets(lines, named=True)}</section>")
    if found := parts.environment(report):
        inner = (
            f"<details class='words'><summary>What it was measured on</summary>{found}</details>"
        )
        said.append(f"<section><h2>Environment</h2>{inner}</section>")
    return "".join(said)
