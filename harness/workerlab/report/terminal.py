"""Drawing for a terminal, a pipe, a log or a mail: tables in plain ASCII, sentences that wrap."""

import io
import re
import textwrap
from collections.abc import Iterable

from rich.box import Box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDEST = 100  # of a sentence
UNBOUNDED = 10_000
RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
FIGURE = re.compile(r"(?<=\d) (?=(?:ms|s)\b|%)")  # the space between it and its unit
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
    """One that writes to nowhere; what it draws is captured."""
    return Console(
        file=io.StringIO(),
        width=UNBOUNDED,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
    )


def bare_table(gap: int) -> Table:
    """With nothing but a rule below its headings, and `gap` blanks between columns."""
    return Table(box=RULE, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))


def natural(table: Table) -> int:
    """How wide it is where nothing is cut."""
    on = console(colour=False)
    return Measurement.get(on, on.options, table).maximum


def drawn(table: Table, colour: bool) -> str:
    on = console(colour)
    with on.capture() as captured:
        on.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def wrapped(lines: Iterable[str], width: int | None, indent: str = "") -> str:
    wrapper = textwrap.TextWrapper(
        width=max(20, min(width or WIDEST, WIDEST)),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    # textwrap does not break at a no-break space: a figure keeps its unit.
    glued = (FIGURE.sub("\N{NO-BREAK SPACE}", clean(line)) for line in lines)
    return "\n".join(wrapper.fill(line) for line in glued).replace("\N{NO-BREAK SPACE}", " ")


def clean(text: str) -> str:
    """Without control characters: a server's last words may hold some."""
    return "".join(char if char.isprintable() else " " for char in text)


def to_ascii(text: str) -> str:
    return text.translate(PLAIN).encode("ascii", "backslashreplace").decode("ascii")
