"""A document in the terminal: the answer on one screen, explanations on request.

Answers to questions come first, then the tables, then other findings. `explain` adds the evidence
of each finding, the meaning of columns, and all notes.

Output without colour is plain ASCII, which survives pipes, logs and mail. If the terminal is too
narrow for a table, the gaps between columns shrink first; then the least important columns are
hidden, and a line names them.
"""

import io
import re
import textwrap
from collections.abc import Iterable
from itertools import chain, groupby

from msgspec.structs import replace
from rich.box import Box
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table as Drawing
from rich.text import Text as Styled

from workerlab.analysis.class_findings import NoValidCell
from workerlab.finding import Finding
from workerlab.model import Document, Table
from workerlab.numbers.units import MISSING, counted, listed
from workerlab.report.grid import Grid, blank_columns, grid, join, legend
from workerlab.report.values import text

WIDEST = 100  # columns of a sentence
UNBOUNDED = 10_000
RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
FIGURE = re.compile(r"(?<=\d) (?=(?:ms|s)\b|%)")  # the space between a number and its unit
PLAIN = str.maketrans(
    {
        "→": "->",
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{MULTIPLICATION SIGN}": "x",
        "µ": "u",
        "±": "+-",
    }
)


def console(colour: bool) -> Console:
    """A console without output; what it prints is captured."""
    return Console(
        file=io.StringIO(),
        width=UNBOUNDED,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
    )


def bare_table(gap: int) -> Drawing:
    """A table with only a rule below its headings, and `gap` spaces between columns."""
    return Drawing(box=RULE, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))


def natural(table: Drawing) -> int:
    """The table's width in characters if nothing is cut."""
    screen = console(colour=False)
    return Measurement.get(screen, screen.options, table).maximum


def drawn(table: Drawing, colour: bool) -> str:
    screen = console(colour)
    with screen.capture() as captured:
        screen.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def wrapped(lines: Iterable[str], width: int | None, indent: str = "") -> str:
    wrapper = textwrap.TextWrapper(
        width=max(20, min(width or WIDEST, WIDEST)),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    # textwrap does not break at a no-break space: a number stays with its unit.
    glued = (FIGURE.sub("\N{NO-BREAK SPACE}", clean(line)) for line in lines)
    return "\n".join(wrapper.fill(line) for line in glued).replace("\N{NO-BREAK SPACE}", " ")


def clean(text: str) -> str:
    """Replaces control characters, which server output may contain, by spaces."""
    return "".join(char if char.isprintable() else " " for char in text)


def to_ascii(text: str) -> str:
    return text.translate(PLAIN).encode("ascii", "backslashreplace").decode("ascii")


HEADING_LEAST = 6  # characters per line of a heading, even if its values are shorter
COLOURS = {
    "below capacity": "green",
    "at capacity": "cyan",
    "saturated": "yellow",
    "generator-bound": "magenta",
    "inconclusive": "blue",
    "invalid": "red",
}
OF_TARGETS = {
    "met": "green",
    "broken": "red",
    "not shown": "yellow",
    "undecidable": "yellow",
}


def render(
    document: Document, *, colour: bool = False, width: int | None = None, explain: bool = False
) -> str:
    """The document as text. `width`: columns of the terminal; None: unlimited. If all cells are
    invalid, only the reasons are shown, unless `explain`."""
    if document.cells and all(cell.verdict == "invalid" for cell in document.cells) and not explain:
        reasons = [reason for reason in document.findings if not isinstance(reason, NoValidCell)]
        document = replace(document, findings=tuple(reasons), tables=())
    answers, others = (
        [_finding(conclusion, colour, width, explain) for conclusion in document.findings
         if bool(conclusion.question) is answer]
        for answer in (True, False)
    )  # fmt: skip
    blocks = [_head(document, width), *answers]
    legends: set[tuple[str, str]] = set()
    for table in _shown(document.tables, width, explain):
        blocks += _table(table, colour, width, legends if explain else None)
    blocks += ["\n".join(others), *_notes(document, width, explain)]
    whole = "\n\n".join(block for block in blocks if block) + "\n"
    return whole if colour else to_ascii(whole)


def _head(document: Document, width: int | None) -> str:
    """The title, followed by notes on options and settings that had no effect."""
    notes = [text(note) for note in document.notes if note.prominence == "title"]
    return "\n".join(
        [wrapped([text(document.title)], width), *(wrapped([note], width, "  ") for note in notes)]
    )


def _finding(conclusion: Finding, colour: bool, width: int | None, explain: bool) -> str:
    """A finding's question, if any, its sentence and, with `explain`, its evidence."""
    question = wrapped([conclusion.question], width)
    lines = [f"\x1b[1m{question}\x1b[0m" if colour and question else question]
    lines.append(wrapped([text(conclusion)], width, "  " if question else ""))
    if explain:
        lines.append(wrapped([f"- {text(each)}" for each in conclusion.evidence], width, "    "))
    return "\n".join(filter(None, lines))


def _notes(document: Document, width: int | None, explain: bool) -> Iterable[str]:
    """All notes with `explain`; else the prominent ones, and what --explain would add."""
    if explain:
        lines = wrapped([text(note) for note in document.notes], width, "  ")
        yield f"Notes:\n{lines}" if lines else ""
        return
    printed = [note for note in document.notes if note.prominence == "notes"]
    yield wrapped([text(note) for note in printed], width)
    parts = []
    if notes := sum(note.prominence == "counted" for note in document.notes):
        parts.append(counted(notes, "note"))
    if any(conclusion.evidence for conclusion in document.findings):
        parts.append("evidence")
    if any(table.rows for table in document.tables):
        parts.append("what the columns mean")
    yield wrapped([f"With --explain: {listed(parts)}."], width) if parts else ""


# --- tables -----------------------------------------------------------------------------------


def _shown(tables: Iterable[Table], width: int | None, explain: bool) -> list[Table]:
    """Tables with rows. Without `explain`, no detailed ones, and the first two are joined if the
    second is marked "beside" and there is room."""
    with_rows = [table for table in tables if table.rows]
    if explain:
        return with_rows
    shown = [table for table in with_rows if not table.detailed]
    if len(shown) > 1 and shown[1].terminal == "beside":
        joined = join(*shown[:2])
        if natural(_drawing(grid(joined), gap=1)) <= (WIDEST if width is None else width):
            return [replace(joined, note=shown[1].note, short_note=shown[1].short_note), *shown[2:]]
    return shown


def _table(
    table: Table, colour: bool, width: int | None, legends: set[tuple[str, str]] | None
) -> list[str]:
    """A table's title and drawing, then the text below. `legends` as in `legend`; None: without
    explanations."""
    whole = grid(table)
    fitting, gap, hidden = _fitted(whole, width)
    title = "" if table.terminal == "untitled" else text(table.title)
    below = []
    if legends is not None:
        below += [*legend(fitting.columns, legends), text(table.note)]
        below += ["-: missing."] if MISSING in chain(*fitting.rows) else []
    elif table.short_note:
        below.append(table.short_note)
    below.append(blank_columns(whole))
    if hidden:
        below.append(f"Columns hidden (terminal too narrow): {', '.join(hidden)}.")
    picture = drawn(_drawing(fitting, gap, colour), colour)
    return [
        f"{wrapped([f'{title}:'], width)}\n\n{picture}" if title else picture,
        wrapped([" ".join(filter(None, below))], width),
    ]


def _fitted(whole: Grid, width: int | None) -> tuple[Grid, int, list[str]]:
    """The columns that fit, the gap between them, and the headings of those that do not fit."""
    if width is None or natural(_drawing(whole, gap=2)) <= width:
        return whole, 2, []
    hidden: list[str] = []
    while natural(_drawing(whole, gap=1)) > width and len(whole.columns) > max(1, whole.keys):
        ranks = [column.expendable for column in whole.columns]
        place = ranks.index(max(ranks)) if max(ranks) else len(ranks) - 1
        hidden.append(whole.columns[place].heading)
        whole = whole.without(place)
    return whole, 1, hidden


def _drawing(whole: Grid, gap: int, colour: bool = False) -> Drawing:
    drawing = bare_table(gap)
    for column in whole.columns:
        # Wrap the heading to about the width of the values
        widest = max(map(len, (*column.values, *column.heading.split())), default=0)
        lines = textwrap.wrap(
            clean(column.heading), max(widest, HEADING_LEAST), break_on_hyphens=False
        )
        heading = "\n".join([*lines, column.unit] if column.unit else lines)
        justify: JustifyMethod = "right" if column.right else "left"
        drawing.add_column(Styled(heading), justify=justify, no_wrap=True)
    keys = [row[: whole.keys] for row in whole.rows]
    runs = [key for key, _ in groupby(keys)]
    # Rules between keys only if some key has several rows and all of them are adjacent
    grouped = len(whole.columns) > whole.keys and len(set(runs)) == len(runs) < len(keys)
    styles_of = {**COLOURS, **OF_TARGETS} if colour else {}
    for key, after, row in zip(keys, [*keys[1:], ()], whole.rows, strict=False):
        styles = [styles_of.get(value.partition(":")[0], "") for value in row]
        cells = map(Styled, map(clean, row), styles)
        drawing.add_row(*cells, end_section=grouped and key != after)
    return drawing
