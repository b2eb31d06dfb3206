"""A study in the terminal: what was found first, then the tables it stands on.

Plain ASCII without colour. Where the terminal is too narrow for a table, its columns move together,
then those on the right, which say the least, are left out, and a line says so. Rows are grouped by
their first column where its values come in runs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.table import Table as Drawing
from rich.text import Text

from harness.model import Answer, Column, Document, Finding, Table
from harness.numbers.units import MISSING
from harness.report.messages import answer_of, heading, question_of, text
from harness.report.study.values import blank_columns, said, titles, to_right
from harness.report.terminal import bare_table, clean, drawn, natural, section, to_ascii, wrapped

HEADING_LEAST = 6  # letters a heading may take in a line, however short its values
QUESTION, INVALID = "bold", "red"


def render(study: Document, *, colour: bool = False, width: int | None = None) -> str:
    """The study for a person. `width`: columns of the terminal; None: as wide as it needs."""
    blocks = [wrapped([text(study.title)], width)]
    blocks += [_finding(one, colour, width) for one in study.findings]
    for table in study.tables:
        blocks += _table(table, colour, width)
    blocks.append(section("Note:", [text(note) for note in study.notes], width))
    whole = "\n\n".join(block for block in blocks if block) + "\n"
    return whole if colour else to_ascii(whole)


def _finding(finding: Answer | Finding, colour: bool, width: int | None) -> str:
    question = wrapped([question_of(finding)], width)
    if colour:
        question = f"\x1b[1m{question}\x1b[0m"
    lines = [question, wrapped([answer_of(finding)], width, "  ")]
    lines.append(wrapped([f"- {text(one)}" for one in finding.evidence], width, "    "))
    return "\n".join(line for line in lines if line)


def _table(table: Table, colour: bool, width: int | None) -> list[str]:
    """Its title, the drawing and what is said below it; nothing for a table without rows."""
    if not table.rows:
        return []
    blank = blank_columns(table)
    shown = [place for place in range(len(table.columns)) if place not in blank]
    left_out: list[str] = []
    drawing = _drawing(table, shown, gap=2)
    if width is not None and natural(drawing) > width:
        drawing = _drawing(table, shown, gap=1)
        while natural(drawing) > width and len(shown) > 1:
            left_out.insert(0, heading(table.columns[shown.pop()]))
            drawing = _drawing(table, shown, gap=1)
    below = [text(table.note), _missing(table, shown)]
    if blank:
        below.append(f"Missing in all rows: {titles(table, blank)}.")
    if left_out:
        below.append(f"Left out for want of room: {', '.join(left_out)}.")
    title = wrapped([f"{text(table.title)}:"], width)
    return [f"{title}\n\n{drawn(drawing, colour)}", wrapped([" ".join(filter(None, below))], width)]


def _missing(table: Table, shown: Sequence[int]) -> str:
    missing = any(
        said(table.columns[place], row[place]) == MISSING for row in table.rows for place in shown
    )
    return f"{MISSING}: missing." if missing else ""


def _drawing(table: Table, shown: Sequence[int], gap: int) -> Drawing:
    found = bare_table(gap)
    rows = [[said(table.columns[place], row[place]) for place in shown] for row in table.rows]
    for at, place in enumerate(shown):
        column = table.columns[place]
        widest = max(len(row[at]) for row in rows)
        found.add_column(
            Text(_heading(column, widest)),
            justify="right" if to_right(column) else "left",
            no_wrap=True,
        )
    grouped = len(shown) > 1 and _in_runs([row[0] for row in rows])
    for before, row in zip([None, *rows], rows, strict=False):
        if grouped and before is not None and before[0] != row[0]:
            found.add_section()
        found.add_row(*[Text(clean(value)) for value in row])
    return found


def _in_runs(values: Sequence[str]) -> bool:
    """Whether some value stands in several rows that follow each other, and nowhere else."""
    runs = [one for before, one in zip([None, *values], values, strict=False) if one != before]
    return len(set(runs)) == len(runs) < len(values)


def _heading(column: Column, widest: int) -> str:
    """In as many lines as keep it about as narrow as its values."""
    longest = max(map(len, heading(column).split()), default=0)
    width = max(widest, longest, HEADING_LEAST)
    return "\n".join(textwrap.wrap(clean(heading(column)), width, break_on_hyphens=False))
