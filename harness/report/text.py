"""A document in the terminal: the answer on one screen; what explains it where it is asked for.

Answers to questions come first, then the tables, then what else was found. With `explain` follow
the evidence of each finding, what the columns mean, and all notes.

Plain ASCII without colour, so that it survives a pipe, a log and a mail. Where the terminal is too
narrow for a table, its columns move together first, then the least needed are left out, and a line
names them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.table import Table as Drawing
from rich.text import Text as Styled

from harness.model import Document, Finding, Table
from harness.report.grid import Grid, grid, join, legend
from harness.report.messages import question_of, say, text
from harness.report.terminal import (
    WIDEST,
    bare_table,
    clean,
    drawn,
    natural,
    section,
    to_ascii,
    wrapped,
)

HEADING_LEAST = 6  # letters a heading may take in a line, however short its values
EXPLAINED = frozenset({"table.keepalive", "table.classes"})  # only with `explain`
VISIBLE = frozenset(  # notes that are never only counted
    {
        "note.unfinished",
        "note.not_measured",
        "note.left_out",
        "generators.doubt",
        "ladder.invalid",
        "bottleneck.invalid",
    }
)
COLOURS = {
    "below capacity": "green",
    "at capacity": "cyan",
    "saturated": "yellow",
    "generator-bound": "magenta",
    "invalid": "red",
}


def render(
    document: Document, *, colour: bool = False, width: int | None = None, explain: bool = False
) -> str:
    """The document for a person. `width`: columns of the terminal; None: as wide as it needs."""
    answers = [one for one in document.findings if question_of(one)]
    others = [one for one in document.findings if not question_of(one)]
    blocks = [wrapped([text(document.title)], width)]
    blocks += [_answer(one, colour, width, explain) for one in answers]
    legends: set[tuple[str, str]] = set()
    for table in _shown(document.tables, width, explain):
        blocks += _table(table, colour, width, legends if explain else None)
    blocks += ["\n".join(_finding(one, width, explain) for one in others)]
    blocks += _notes(document, width, explain)
    whole = "\n\n".join(block for block in blocks if block) + "\n"
    return whole if colour else to_ascii(whole)


def _answer(finding: Finding, colour: bool, width: int | None, explain: bool) -> str:
    question = wrapped([question_of(finding)], width)
    lines = [f"\x1b[1m{question}\x1b[0m" if colour else question]
    lines.append(wrapped([text(finding)], width, "  "))
    if explain:
        lines.append(_evidence(finding, width))
    return "\n".join(line for line in lines if line)


def _finding(finding: Finding, width: int | None, explain: bool) -> str:
    lines = [wrapped([text(finding)], width)]
    if explain and finding.evidence:
        lines.append(_evidence(finding, width))
    return "\n".join(lines)


def _evidence(finding: Finding, width: int | None) -> str:
    return wrapped([f"- {text(one)}" for one in finding.evidence], width, "    ")


def _notes(document: Document, width: int | None, explain: bool) -> Iterable[str]:
    """All of them, or those that must be seen and what else there is."""
    if explain:
        yield section(say("text.notes"), [text(note) for note in document.notes], width)
        return
    seen = [one for one in document.notes if isinstance(one, Finding) and one.code in VISIBLE]
    yield wrapped([text(note) for note in seen], width)
    parts = []
    if notes := len(document.notes) - len(seen):
        parts.append(Finding("text.explain.notes", {"notes": notes}))
    if any(finding.evidence for finding in document.findings):
        parts.append(Finding("text.explain.evidence"))
    if any(table.rows for table in document.tables):
        parts.append(Finding("text.explain.columns"))
    yield wrapped([say("text.explain", parts=parts)], width) if parts else ""


# --- tables -----------------------------------------------------------------------------------


def _code(table: Table) -> str:
    return table.title.code if isinstance(table.title, Finding) else ""


def _shown(tables: Iterable[Table], width: int | None, explain: bool) -> list[Table]:
    """Those with rows; where the time goes beside the cells it is about, if there is room."""
    shown = [one for one in tables if one.rows and (explain or _code(one) not in EXPLAINED)]
    if [_code(one) for one in shown[:2]] == ["table.cells", "table.breakdown"] and not explain:
        joined = join(*shown[:2])
        if natural(_drawing(grid(joined), gap=1)) <= (WIDEST if width is None else width):
            return [joined, *shown[2:]]
    return shown


def _table(
    table: Table, colour: bool, width: int | None, known: set[tuple[str, str]] | None
) -> list[str]:
    """Its title, the drawing, and what is to be told below it. `known`: legends that need not be
    told again; None: nothing is explained."""
    whole = grid(table)
    fitting, gap, hidden = _fitted(whole, width)
    title = "" if _code(table) == "table.cells" else text(table.title)
    below = []
    if known is not None:
        below += [f"{names}: {meaning}." for names, meaning in legend(fitting.columns, known)]
        below += [text(table.note), say("text.missing") if fitting.missing else ""]
    if whole.blank:
        below.append(say("text.blank", columns=whole.blank))
    if hidden:
        below.append(say("text.hidden", columns=hidden))
    picture = drawn(_drawing(fitting, gap, colour), colour)
    return [
        f"{wrapped([f'{title}:'], width)}\n\n{picture}" if title else picture,
        wrapped([" ".join(filter(None, below))], width),
    ]


def _fitted(whole: Grid, width: int | None) -> tuple[Grid, int, list[str]]:
    """What fits, with how many blanks between columns, and the headings of what does not."""
    if width is None or natural(_drawing(whole, gap=2)) <= width:
        return whole, 2, []
    ranked = any(column.expendable for column in whole.columns)
    hidden: list[str] = []
    while natural(_drawing(whole, gap=1)) > width and len(whole.columns) > 1:
        ranks = [column.expendable for column in whole.columns]
        place = ranks.index(max(ranks)) if ranked else len(ranks) - 1
        if ranked and not ranks[place]:
            break
        hidden.append(whole.columns[place].heading)
        whole = whole.without(place)
    return whole, 1, hidden


def _drawing(whole: Grid, gap: int, colour: bool = False) -> Drawing:
    drawing = bare_table(gap)
    for column in whole.columns:
        drawing.add_column(
            Styled(_heading(column.heading, column.unit, max(map(len, column.values), default=0))),
            justify="right" if column.right else "left",
            no_wrap=True,
        )
    rows = whole.rows
    keys = [row[: whole.keys] for row in rows]
    grouped = len(whole.columns) > whole.keys and _in_runs(keys)
    for before, key, row in zip([None, *keys], keys, rows, strict=False):
        if grouped and before is not None and before != key:
            drawing.add_section()
        styles = [COLOURS.get(one, "") if colour else "" for one in row]
        drawing.add_row(*map(Styled, map(clean, row), styles))
    return drawing


def _in_runs(values: Sequence[tuple[str, ...]]) -> bool:
    """Whether some value stands in several rows that follow each other, and nowhere else."""
    runs = [one for before, one in zip([None, *values], values, strict=False) if one != before]
    return len(set(runs)) == len(runs) < len(values)


def _heading(heading: str, unit: str, widest: int) -> str:
    """In as many lines as keep it about as narrow as its values."""
    longest = max(map(len, heading.split()), default=0)
    width = max(widest, longest, HEADING_LEAST)
    lines = textwrap.wrap(clean(heading), width, break_on_hyphens=False)
    return "\n".join([*lines, unit] if unit else lines)
