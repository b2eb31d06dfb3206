"""The tables of a document as the page shows them: every value as a person says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.model import Document, Finding, Label, Table
from harness.numbers.units import MISSING
from harness.report.grid import grid, legend
from harness.report.messages import text


@dataclass(frozen=True)
class ShownTable:
    """`right`: the columns that stand on the right. `title`: for who does not see it."""

    title: Label
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    notes: tuple[Label, ...] = ()


def tables(document: Document) -> list[ShownTable]:
    """Those that have rows."""
    known: set[tuple[str, str]] = set()
    return [_shown(table, known) for table in document.tables if table.rows]


def _shown(table: Table, known: set[tuple[str, str]]) -> ShownTable:
    """`known`: what the legends of other tables tell."""
    whole = grid(table)
    meanings = [
        Finding("page.table.meaning", {"columns": columns, "meaning": meaning})
        for columns, meaning in legend(whole.columns, known)
    ]
    missing = [Finding("text.blank", {"columns": whole.blank})] if whole.blank else []
    return ShownTable(
        title=table.title,
        heads=[f"{column.heading} {column.unit}".strip() for column in whole.columns],
        rows=whole.rows,
        right=[column.right for column in whole.columns],
        notes=(*meanings, *filter(None, [table.note]), *missing),
    )


def environment(facts: Mapping[str, object]) -> ShownTable | None:
    """What was measured on, one fact per row; None where nothing is known."""
    rows = list(_facts("", facts))
    heads = [text(Finding("page.fact")), text(Finding("page.value"))]
    title = Finding("page.heading.environment")
    return ShownTable(title, heads, rows, (False, False)) if rows else None


def _facts(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _facts(f"{name}, {key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        yield name.replace("_", " "), ", ".join(map(str, value))
    else:
        yield name.replace("_", " "), MISSING if value is None else str(value)
