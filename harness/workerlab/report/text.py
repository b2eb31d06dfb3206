"""Prints a document in the terminal: the answer on one screen, explanations on request.

Answers to questions come first, then the tables, then other findings. `explain` adds the evidence
of each finding, the meanings of columns, and all notes.

Output without colour is plain ASCII, which survives pipes, logs and mail. If the terminal is too
narrow for a table, the gaps between columns shrink first; then the least important columns are
hidden, and a line names them.
"""

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain, groupby

from msgspec.structs import replace
from rich.box import Box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Drawing
from rich.text import Text as Styled

from workerlab.analysis.class_findings import NoValidCell
from workerlab.finding import Finding
from workerlab.model.result import Column, Document, Invalid, Table
from workerlab.numbers.units import MISSING, counted, listed
from workerlab.report.tables import Grid, blank_columns_note, join_tables, legend, to_grid
from workerlab.report.values import heading, printable

MAX_TEXT_WIDTH = 100  # characters per line of a sentence
UNLIMITED_WIDTH = 10_000
HEADING_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:ms|s)\b|%)")  # the space between a number and its unit
ASCII_OF = str.maketrans(
    {
        "→": "->",
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{MULTIPLICATION SIGN}": "x",
        "µ": "u",
        "±": "+-",
        "…": "...",
    }
)


def capturing_console(colour: bool) -> Console:
    """A console whose output can be captured; it writes nothing itself."""
    return Console(
        file=io.StringIO(),
        width=UNLIMITED_WIDTH,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
    )


def natural_width(table: Drawing) -> int:
    """The width of the table in characters if nothing is cut off."""
    screen = capturing_console(colour=False)
    return Measurement.get(screen, screen.options, table).maximum


def draw(table: Drawing, colour: bool) -> str:
    """The table as text."""
    screen = capturing_console(colour)
    with screen.capture() as captured:
        screen.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def wrap(lines: Iterable[str], width: int | None, indent: str = "") -> str:
    """The lines, each wrapped to `width` or MAX_TEXT_WIDTH, whichever is less."""
    wrapper = textwrap.TextWrapper(
        width=max(20, min(width or MAX_TEXT_WIDTH, MAX_TEXT_WIDTH)),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    # textwrap does not break at a no-break space, so a number stays with its unit
    unbreakable = (UNIT_SPACE.sub("\N{NO-BREAK SPACE}", printable(line)) for line in lines)
    return "\n".join(wrapper.fill(line) for line in unbreakable).replace("\N{NO-BREAK SPACE}", " ")


MIN_HEADING_WIDTH = 6  # characters per line of a heading, even if its values are shorter
VERDICT_COLOURS = {
    "below capacity": "green",
    "at capacity": "cyan",
    "saturated": "yellow",
    "generator-bound": "magenta",
    "inconclusive": "blue",
    "invalid": "red",
}
TARGET_COLOURS = {
    "met": "green",
    "missed": "red",
    "broken": "red",
    "not shown": "yellow",
    "undecidable": "yellow",
}


def render(
    document: Document, *, colour: bool = False, width: int | None = None, explain: bool = False
) -> str:
    """The document as text. `width`: columns of the terminal; None: unlimited. If all cells are
    invalid and `explain` is False, only the reasons are shown."""
    if document.cells and all(isinstance(cell, Invalid) for cell in document.cells) and not explain:
        reasons = [reason for reason in document.findings if not isinstance(reason, NoValidCell)]
        document = replace(document, findings=tuple(reasons), tables=())
    answers, other_findings = (
        [_finding(finding, colour, width, explain) for finding in document.findings
         if bool(finding.question) is answer]
        for answer in (True, False)
    )  # fmt: skip
    blocks = [_head(document, width), *answers]
    explained: set[tuple[str, str]] = set()
    for table in _shown_tables(document.tables, width, explain):
        blocks += _table(table, colour, width, explained if explain else None)
    blocks += ["\n".join(other_findings), *_notes(document, width, explain)]
    output = "\n\n".join(block for block in blocks if block) + "\n"
    if colour:
        return output
    return output.translate(ASCII_OF).encode("ascii", "backslashreplace").decode("ascii")


def _head(document: Document, width: int | None) -> str:
    """The title, followed by notes on options and settings that had no effect."""
    notes = [str(note) for note in document.notes if note.prominence == "title"]
    return "\n".join(
        [wrap([str(document.title)], width), *(wrap([note], width, "  ") for note in notes)]
    )


def _finding(finding: Finding, colour: bool, width: int | None, explain: bool) -> str:
    """The question of a finding, if any, its sentence and, with `explain`, its evidence."""
    question = wrap([finding.question], width)
    lines = [f"\x1b[1m{question}\x1b[0m" if colour and question else question]
    lines.append(wrap([str(finding)], width, "  " if question else ""))
    if explain:
        lines.append(wrap([f"- {evidence}" for evidence in finding.evidence], width, "    "))
    return "\n".join(filter(None, lines))


def _notes(document: Document, width: int | None, explain: bool) -> Iterable[str]:
    """With `explain`, all notes; else the prominent ones, and a list of what --explain adds."""
    if explain:
        lines = wrap([str(note) for note in document.notes], width, "  ")
        yield f"Notes:\n{lines}" if lines else ""
        return
    printed = [note for note in document.notes if note.prominence == "notes"]
    yield wrap([str(note) for note in printed], width)
    extras = []
    if note_count := sum(note.prominence == "counted" for note in document.notes):
        extras.append(counted(note_count, "note"))
    if any(conclusion.evidence for conclusion in document.findings):
        extras.append("evidence")
    if any(table.rows for table in document.tables):
        extras.append("what the columns mean")
    yield wrap([f"With --explain: {listed(extras)}."], width) if extras else ""


# --- tables -----------------------------------------------------------------------------------


def _shown_tables(tables: Iterable[Table], width: int | None, explain: bool) -> list[Table]:
    """The tables that have rows. Without `explain`, detailed ones are omitted, and the first two
    are joined if the second is marked "beside" and there is room."""
    with_rows = [table for table in tables if table.rows]
    if explain:
        return with_rows
    brief = [table for table in with_rows if not table.detailed]
    if len(brief) > 1 and brief[1].terminal == "beside":
        joined = join_tables(*brief[:2])
        max_width = MAX_TEXT_WIDTH if width is None else width
        if natural_width(_drawing(to_grid(joined), gap=1)) <= max_width:
            return [replace(joined, note=brief[1].note, short_note=brief[1].short_note), *brief[2:]]
    return brief


def _table(
    table: Table, colour: bool, width: int | None, explained: set[tuple[str, str]] | None
) -> list[str]:
    """A table's title and drawing, then the text below. `explained`: as in `legend`; None: no
    explanations."""
    grid = to_grid(table)
    visible_grid, gap, hidden = _fit(grid, width)
    title = "" if table.terminal == "untitled" else table.title
    below = []
    if explained is not None:
        below += [*legend(visible_grid.columns, explained), table.note]
        below += ["-: missing."] if MISSING in chain(*visible_grid.rows) else []
    elif table.short_note:
        below.append(table.short_note)
    below.append(blank_columns_note(grid))
    if hidden:
        below.append(f"Columns hidden (terminal too narrow): {', '.join(hidden)}.")
    picture = draw(_drawing(visible_grid, gap, colour), colour)
    return [
        f"{wrap([f'{title}:'], width)}\n\n{picture}" if title else picture,
        wrap([" ".join(filter(None, below))], width),
    ]


def _fit(grid: Grid, width: int | None) -> tuple[Grid, int, list[str]]:
    """The columns that fit, the gap between them, and the headings of the hidden ones."""
    widths = [] if width is None else _column_widths(grid)
    if width is None or _total_width(widths, gap=2) <= width:
        return grid, 2, []
    hidden: list[str] = []
    while _total_width(widths, gap=1) > width and len(grid.columns) > max(1, grid.keys):
        ranks = [column.expendable for column in grid.columns]
        index = ranks.index(max(ranks)) if max(ranks) else len(ranks) - 1
        hidden.append(heading(grid.columns[index]))
        del widths[index]
        grid = grid.without([index])
    return grid, 1, hidden


def _column_widths(grid: Grid) -> list[int]:
    """The width of each column, measured alone: the widths are independent."""
    indices = range(len(grid.columns))
    single_columns = (grid.without({*indices} - {index}) for index in indices)
    return [natural_width(_drawing(column, gap=1)) for column in single_columns]


def _total_width(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _wrapped(cell: str, column: Column) -> str:
    width = column.width or UNLIMITED_WIDTH
    return cell if len(cell) <= width else "\n".join(textwrap.wrap(cell, width))


def _drawing(grid: Grid, gap: int, colour: bool = False) -> Drawing:
    # A rule below the headings only, and `gap` spaces between columns
    drawing = Drawing(box=HEADING_RULE, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    for column, right, *values in zip(grid.columns, grid.right_aligned, *grid.rows, strict=True):
        title = heading(column)
        # Wrap the heading to about the width of the values
        widest = max(map(len, (*values, *title.split())), default=0)
        lines = textwrap.wrap(
            printable(title), max(widest, MIN_HEADING_WIDTH), break_on_hyphens=False
        )
        head = "\n".join(filter(None, [*lines, grid.unit_of(column)]))
        drawing.add_column(Styled(head), justify="right" if right else "left", no_wrap=True)
    keys = [row[: grid.keys] for row in grid.rows]
    runs = [key for key, _ in groupby(keys)]
    # Rules between keys only if a key has several rows, and the rows of each key are adjacent
    grouped = len(grid.columns) > grid.keys and len(set(runs)) == len(runs) < len(keys)
    style_of = {**VERDICT_COLOURS, **TARGET_COLOURS} if colour else {}
    for key, next_key, row in zip(keys, [*keys[1:], ()], grid.rows, strict=False):
        styles = [style_of.get(value.partition(":")[0], "") for value in row]
        texts = map(_wrapped, map(printable, row), grid.columns)
        cells = map(Styled, texts, styles)
        drawing.add_row(*cells, end_section=grouped and key != next_key)
    return drawing
