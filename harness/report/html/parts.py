"""The page's building blocks as HTML. All text that comes in is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from harness.model import CellResult, Report
from harness.numbers.units import MISSING
from harness.report import loops
from harness.report.columns import Column, columns, legend
from harness.report.html.colours import var
from harness.report.html.figures import DASHES, Figure, Key

VERDICTS = ("below capacity", "at capacity", "saturated", "generator-bound", "invalid")

# Signs of a legend, in a box of 20 x 12
SIGNS = {
    "box": "M1 1H19V11H1Z",
    "circle": "M5 6A5 5 0 1 1 15 6A5 5 0 1 1 5 6Z",
    "square": "M5 1H15V11H5Z",
    "triangle-up": "M4.500 11L10 1L15.500 11Z",
    "diamond": "M10 0L15 6L10 12L5 6Z",
    "cross": "M8 1H12V4H15V8H12V11H8V8H5V4H8Z",
    "triangle-down": "M4.500 1L10 11L15.500 1Z",
    "triangle-right": "M5 .5L15 6L5 11.500Z",
}


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def bullets(lines: Iterable[str], *, named: bool = False) -> str:
    """`named`: what stands before a line's first colon is its subject."""
    items = []
    for line in lines:
        name, colon, rest = line.partition(": ") if named else ("", "", line)
        subject = f"<strong>{escape(name)}</strong>{colon}" if colon else escape(name)
        items.append(f"<li>{subject}{escape(rest)}</li>")
    return f"<ul>{''.join(items)}</ul>"


def table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Sequence[bool] | None = None,
) -> str:
    """A table that scrolls by itself where it is too wide, by touch and by keyboard."""
    right = right or [False] + [True] * (len(heads) - 1)
    sides = ["right" if one else "left" for one in right]
    top = "".join(
        f'<th scope="col" class="{side}">{escape(head)}</th>'
        for head, side in zip(heads, sides, strict=True)
    )
    lines = "".join(f"<tr>{_cells(row, sides)}</tr>" for row in rows)
    name = escape(title)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{name}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _cells(row: Sequence[str], sides: Sequence[str]) -> str:
    found = []
    for place, (value, side) in enumerate(zip(row, sides, strict=True)):
        kind = f"{side} {value.replace(' ', '-')}" if value in VERDICTS else side
        tag = ("th scope='row'", "th") if place == 0 else ("td", "td")
        found.append(f'<{tag[0]} class="{kind}">{escape(value)}</{tag[1]}>')
    return "".join(found)


def figure(one: Figure) -> str:
    """The place of a chart; the page's script draws into its panes."""
    panes = "".join(f'<div data-pane="{i}"></div>' for i in range(len(one.panes)))
    said = paragraph(one.alternative)
    if one.rows:
        said += table(one.title, one.heads, one.rows)
    name = f'<p class="name">{escape(one.heading)}</p>' if one.heading else ""
    return (
        f'<figure id="{one.name}">{name}<div class="chart" role="img" tabindex="0"'
        f' data-chart="{one.name}" aria-label="{escape(one.alternative)}">{panes}</div>'
        f"<figcaption>{_legend(one.legend)}{paragraph(one.caption)}"
        f"<details class='words'><summary>In words{' and numbers' if one.rows else ''}</summary>"
        f"{said}</details></figcaption></figure>"
    )


def _legend(keys: Sequence[Key]) -> str:
    items = "".join(f"<li>{_sign(key)}{escape(key.label)}</li>" for key in keys)
    return f'<ul class="legend">{items}</ul>' if items else ""


def _sign(key: Key) -> str:
    colour = var(key.colour)
    if key.shape in DASHES:
        dash = " ".join(map(str, DASHES[key.shape]))
        inner = f'<path d="M0 6H20" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
    else:
        inner = f'<path d="{SIGNS[key.shape]}" fill="{colour}"/>'
    return f'<svg viewBox="0 0 20 12" width="20" height="12" aria-hidden="true">{inner}</svg>'


def all_numbers(report: Report) -> str:
    """Every cell, with the columns of the tables in the terminal."""
    shut, opened = loops.closed(report), loops.opened(report)
    said = _numbers("All cells", columns(shut), shut.cells) if shut.cells else ""
    return said + (_numbers("All cells at a rate", loops.columns(report), opened) if opened else "")


def _numbers(title: str, chosen: Sequence[Column], cells: Sequence[CellResult]) -> str:
    heads = [f"{column.heading} {column.unit}".strip() for column in chosen]
    rows = [[column.value(cell) for column in chosen] for cell in cells]
    right = [column.right for column in chosen]
    return table(title, heads, rows, right) + paragraph(legend(chosen, cells), "soft")


def environment(facts: Mapping[str, object]) -> str:
    """What was measured on, one fact per row."""
    rows = list(_facts("", facts))
    return table("Environment", ("fact", "value"), rows, (False, False)) if rows else ""


def _facts(name: str, value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _facts(f"{name}, {key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        yield name.replace("_", " "), ", ".join(map(str, value))
    else:
        yield name.replace("_", " "), MISSING if value is None else str(value)
