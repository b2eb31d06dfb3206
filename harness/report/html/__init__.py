"""The report as one self-contained page: nothing is fetched from anywhere.

The page holds the drawing library once, its charts as specifications with their numbers, and all
words as HTML, so that it can be read without scripts. Charts in closed sections are drawn when
these are opened.

Half of the page is the library. Drawing to SVG here and leaving it out was rejected: 40 cells of
charts as SVG are larger, and fit neither a phone nor a pointer.
"""

from __future__ import annotations

from html import escape

from harness.model import Report
from harness.report.html import parts
from harness.report.html.cells import cells, size
from harness.report.html.charts import of_run
from harness.report.html.figures import Figure, spec
from harness.report.html.frame import Charts, asset, compact, frame, library
from harness.report.html.headline import headline
from harness.report.loops import loop_lines
from harness.report.remarks import invalid_lines, note_lines
from harness.report.sentences import class_lines, constants, cost_lines

SIZE = 1_950_000  # bytes of the whole page
FRAME = 10_000  # of these, what `render` puts around its parts
OPENED = "Closed loop and open model"
SECTIONS = (  # heading, how the names of its figures begin
    ("Throughput against concurrency", "throughput"),
    ("Where the time went", "waiting-"),
    ("What kept-alive connections allow", "keepalive-"),
    (OPENED, "loops-"),
)


def render(report: Report) -> str:
    """The whole page as text."""
    style, script = asset("style.css"), asset("page.js")
    run = of_run(report)
    charts: Charts = {figure.name: [spec(pane) for pane in figure.panes] for figure in run}
    before, after = _before(report, run), _after(report)
    fixed = (library(), style, script, before, after, compact(charts))
    room = SIZE - FRAME - sum(map(size, fixed))
    over_time, more = cells(report, room)
    if over_time:
        before += f"<section><h2>Request by request</h2>{over_time}</section>"
    return frame(report.run, before + after, charts | more)


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
            words = parts.bullets(loop_lines(report), named=True) if heading == OPENED else ""
            said.append(f"<section><h2>{heading}</h2>{inner}{words}</section>")
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
    if found := parts.environment(report.environment):
        inner = (
            f"<details class='words'><summary>What it was measured on</summary>{found}</details>"
        )
        said.append(f"<section><h2>Environment</h2>{inner}</section>")
    return "".join(said)
