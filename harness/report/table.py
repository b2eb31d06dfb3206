"""The table in the terminal, and the sentences below it.

Plain ASCII without colour, so that it survives a pipe, a log and a mail. Where the terminal is
too narrow, columns move together first, then the least needed are left out, and it says so.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence

from rich.box import Box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from harness.model import CellResult, Report
from harness.report.columns import Column, legend, name
from harness.report.remarks import invalid_lines, note_lines
from harness.report.sections import Section, sections
from harness.report.sentences import class_lines, constants, cost_lines

WIDEST = 100  # of a sentence
UNBOUNDED = 10_000
RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
COLOURS = {"below capacity": "green", "at capacity": "cyan", "saturated": "yellow"}
FIGURE = re.compile(r"(?<=\d) (?=(?:ms|s)\b|%)")  # the space between it and its unit
PLAIN = str.maketrans({"\N{RIGHTWARDS ARROW}": "->", "\N{EN DASH}": "-", "\N{EM DASH}": "-"})


def render(report: Report, *, colour: bool = False, width: int | None = None) -> str:
    """The report for a person. `width`: columns of the terminal; None: as wide as it needs."""
    blocks = [_wrapped([constants(report)], width)]
    for section in sections(report):
        drawn, below = _fitted(section, colour, width)
        blocks += [
            f"{section.title}\n\n{drawn}" if section.title else drawn,
            _wrapped(below, width),
        ]
    blocks.append(_wrapped(class_lines(report), width))
    blocks.append(_wrapped(cost_lines(report), width))
    blocks.append(_section("Invalid, so its numbers are withheld:", invalid_lines(report), width))
    blocks.append(_section("Note:", note_lines(report), width))
    text = "\n\n".join(block for block in blocks if block) + "\n"
    return text if colour else _ascii(text)


def _fitted(section: Section, colour: bool, width: int | None) -> tuple[str, list[str]]:
    """The drawn table, and what its headings mean and which columns there was no room for."""
    chosen, left_out, cells = list(section.columns), list[str](), section.cells
    console = _console(colour)
    table = _table(cells, chosen, gap=2)
    while width is not None and _natural(console, table) > width:
        least = max(chosen, key=lambda column: column.expendable)
        if not _natural(console, _table(cells, chosen, gap=1)) <= width:
            if not least.expendable:
                break
            chosen = [column for column in chosen if column is not least]
            left_out.append(name(least))
        table = _table(cells, chosen, gap=1)
    below = legend(chosen, cells)
    if left_out:
        below += f" Left out for want of room: {', '.join(left_out)}."
    return _drawn(table, colour), [line for line in (below.strip(), section.below) if line]


def _table(cells: Sequence[CellResult], chosen: Sequence[Column], gap: int) -> Table:
    table = Table(box=RULE, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for column in chosen:
        heading = Text(f"{column.heading}\n{column.unit}" if column.unit else column.heading)
        justify = "right" if column.right else "left"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for before, cell in zip([None, *cells], cells, strict=False):
        if before is not None and _group(before) != _group(cell):
            table.add_section()
        style = COLOURS.get(cell.verdict, "red")
        values = [Text(_clean(column.value(cell))) for column in chosen]
        if chosen[-1].heading == "verdict":
            values[-1].stylize(style)
        table.add_row(*values)
    return table


def _group(cell: CellResult) -> object:
    asked = cell.trial.cell
    return asked.server, asked.tool, asked.keepalive


def _console(colour: bool) -> Console:
    return Console(
        file=io.StringIO(),
        width=UNBOUNDED,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
    )


def _natural(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options, table).maximum


def _drawn(table: Table, colour: bool) -> str:
    console = _console(colour)
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _section(heading: str, lines: Sequence[str], width: int | None) -> str:
    return f"{heading}\n{_wrapped(lines, width, '  ')}" if lines else ""


def _wrapped(lines: Sequence[str], width: int | None, indent: str = "") -> str:
    wrapper = textwrap.TextWrapper(
        width=max(20, min(width or WIDEST, WIDEST)),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    # textwrap does not break at a no-break space: a figure keeps its unit.
    glued = (FIGURE.sub("\N{NO-BREAK SPACE}", _clean(line)) for line in lines)
    return "\n".join(wrapper.fill(line) for line in glued).replace("\N{NO-BREAK SPACE}", " ")


def _clean(text: str) -> str:
    """Without control characters: a server's last words may hold some."""
    return "".join(char if char.isprintable() else " " for char in text)


def _ascii(text: str) -> str:
    return text.translate(PLAIN).encode("ascii", "backslashreplace").decode("ascii")
