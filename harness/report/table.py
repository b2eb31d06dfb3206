"""The table in the terminal, and the sentences below it.

Plain ASCII without colour, so that it survives a pipe, a log and a mail. Where the terminal is
too narrow, columns move together first, then the least needed are left out, and it says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from harness.model import CellResult
from harness.report.columns import Column, legend, name
from harness.report.document import SweepResult
from harness.report.loops import loop_lines
from harness.report.phases import phase_lines
from harness.report.remarks import invalid_lines, note_lines
from harness.report.sections import Section, sections
from harness.report.sentences import class_lines, constants, cost_lines
from harness.report.terminal import bare_table, clean, drawn, natural, section, to_ascii, wrapped

COLOURS = {
    "below capacity": "green",
    "at capacity": "cyan",
    "saturated": "yellow",
    "generator-bound": "magenta",
}


def render(report: SweepResult, *, colour: bool = False, width: int | None = None) -> str:
    """The report for a person. `width`: columns of the terminal; None: as wide as it needs."""
    blocks = [wrapped([constants(report)], width)]
    for one in sections(report):
        picture, below = _fitted(one, colour, width)
        blocks += [
            f"{one.title}\n\n{picture}" if one.title else picture,
            wrapped(below, width),
        ]
    blocks.append(wrapped(loop_lines(report), width))
    blocks.append(wrapped(phase_lines(report), width))
    blocks.append(wrapped(class_lines(report), width))
    blocks.append(wrapped(cost_lines(report), width))
    blocks.append(section("Invalid, so its numbers are withheld:", invalid_lines(report), width))
    blocks.append(section("Note:", note_lines(report), width))
    text = "\n\n".join(block for block in blocks if block) + "\n"
    return text if colour else to_ascii(text)


def _fitted(section: Section, colour: bool, width: int | None) -> tuple[str, list[str]]:
    """The drawn table, and what its headings mean and which columns there was no room for."""
    chosen, left_out, cells = list(section.columns), list[str](), section.cells
    table = _table(cells, chosen, gap=2)
    while width is not None and natural(table) > width:
        least = max(chosen, key=lambda column: column.expendable)
        if not natural(_table(cells, chosen, gap=1)) <= width:
            if not least.expendable:
                break
            chosen = [column for column in chosen if column is not least]
            left_out.append(name(least))
        table = _table(cells, chosen, gap=1)
    below = legend(chosen, cells)
    if left_out:
        below += f" Left out for want of room: {', '.join(left_out)}."
    return drawn(table, colour), [line for line in (below.strip(), section.below) if line]


def _table(cells: Sequence[CellResult], chosen: Sequence[Column], gap: int) -> Table:
    table = bare_table(gap)
    for column in chosen:
        heading = Text(f"{column.heading}\n{column.unit}" if column.unit else column.heading)
        justify = "right" if column.right else "left"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for before, cell in zip([None, *cells], cells, strict=False):
        if before is not None and _group(before) != _group(cell):
            table.add_section()
        style = COLOURS.get(cell.verdict, "red")
        values = [Text(clean(column.value(cell))) for column in chosen]
        if chosen[-1].heading == "verdict":
            values[-1].stylize(style)
        table.add_row(*values)
    return table


def _group(cell: CellResult) -> object:
    asked = cell.trial.cell
    return asked.server, asked.tool, asked.processes, asked.keepalive
