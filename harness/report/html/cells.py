"""The cells of a run over time: which are shown, in which order, and what there was no room for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from harness.model import CellResult, Report, Timeline
from harness.report.html import parts
from harness.report.html.charts import of_cell, where
from harness.report.html.figures import spec
from harness.report.html.frame import Charts, compact
from harness.report.html.members import Group, groups, most_telling, seen
from harness.report.html.series import unseen
from harness.report.loops import load
from harness.report.messages import text
from harness.report.sentences import amount, listed
from harness.report.values import finite


def size(page: str) -> int:
    """In bytes; what no encoding can say, such as half a character of a log, becomes '?'."""
    return len(page.encode(errors="replace"))


@dataclass(frozen=True)
class Part:
    """One cell over time as HTML, and its charts."""

    html: str
    charts: Charts

    @property
    def size(self) -> int:
        return size(self.html) + len(compact(self.charts))


def cells(report: Report, room: int) -> tuple[str, Charts]:
    """All cells seen over time that fit into `room` bytes, the most telling of each group first."""
    chosen: dict[str, Part] = {}
    left_out: list[str] = []
    for group, cell, view, telling in _ordered(report):
        part = None if left_out else _part(group, cell, view, opened=telling)
        if part is None or part.size > room:
            left_out.append(where(group, cell))
            continue
        room -= part.size
        chosen[cell.trial.key] = part
    html = []
    for group in groups(report):
        mine = [c.trial.key for c, _ in seen(group, report) if c.trial.key in chosen]
        if mine:
            inner = "".join(chosen[key].html for key in mine)
            html.append(f"<h3>{escape(group.name)}</h3>{inner}")
    if left_out:
        html.append(parts.paragraph(_left_out(left_out), "soft"))
    charts = {name: panes for part in chosen.values() for name, panes in part.charts.items()}
    return "".join(html), charts


def _ordered(report: Report) -> Iterator[tuple[Group, CellResult, Timeline, bool]]:
    """The most telling cell of every group, then the others."""
    every = [(group, seen(group, report)) for group in groups(report)]
    best = {group.number: most_telling(pairs) for group, pairs in every}
    for telling in (True, False):
        for group, pairs in every:
            for pair in pairs:
                if (pair == best[group.number]) is telling:
                    yield group, *pair, telling


def _part(group: Group, cell: CellResult, view: Timeline, *, opened: bool) -> Part:
    found = of_cell(group, cell, view)
    said = [f"{load(cell)}: {cell.verdict}"]
    if (rate := finite(cell.throughput_rps)) is not None:
        said.append(f"{amount(rate)} requests/s")
    inner = []
    if cell.diagnosis or cell.reason:
        inner.append(parts.paragraph(text(cell.diagnosis or cell.reason)))
    if view.note:
        inner.append(parts.paragraph(" ".join(map(text, view.note)), "soft"))
    if missing := unseen(view):
        inner.append(parts.paragraph(f"Missing: {listed(missing)}.", "soft"))
    inner += [parts.figure(figure) for figure in found[:1]]
    inner.append(f'<div class="grid">{"".join(map(parts.figure, found[1:]))}</div>')
    html = (
        f'<details class="cell"{" open" if opened else ""}>'
        f"<summary>{escape(', '.join(said))}</summary>{''.join(inner)}</details>"
    )
    return Part(html, {figure.name: [spec(pane) for pane in figure.panes] for figure in found})


def _left_out(names: list[str]) -> str:
    which = f"{len(names)} cells" if len(names) > 6 else listed(names)
    return f"Left out over time, to keep this page small: {which}. As pictures: --png DIR."
