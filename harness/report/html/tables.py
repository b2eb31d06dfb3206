"""The tables of a document as the page shows them: every value as a person says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.model import CellResult, Document, Finding, Table, Text
from harness.numbers.units import MISSING
from harness.report import loops
from harness.report.columns import Column, columns, legend
from harness.report.messages import heading, text
from harness.report.study.values import blank_columns, said, titles, to_right


@dataclass(frozen=True)
class ShownTable:
    """`right`: the columns that stand on the right. `title`: for who does not see it."""

    title: Text
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    notes: tuple[Text, ...] = ()


def tables(document: Document) -> list[ShownTable]:
    """Those that have rows."""
    return _cells(document) + [_shown(table) for table in document.tables if table.rows]


def _shown(table: Table) -> ShownTable:
    blank = blank_columns(table)
    shown = [(at, column) for at, column in enumerate(table.columns) if at not in blank]
    missing = [Finding("page.table.blank", {"columns": titles(table, blank)})] if blank else []
    return ShownTable(
        title=table.title,
        heads=[heading(column) for _, column in shown],
        rows=[[said(column, row[at]) for at, column in shown] for row in table.rows],
        right=[to_right(column) for _, column in shown],
        notes=(table.note, *missing),
    )


def _cells(document: Document) -> list[ShownTable]:
    """Every cell, with the columns of the tables in the terminal."""
    closed, at_rate = loops.closed(document), loops.opened(document)
    tables = []
    if closed.cells:
        tables.append(_numbers("page.table.cells", columns(closed), closed.cells))
    if at_rate:
        tables.append(_numbers("page.table.cells_at_rate", loops.columns(document), at_rate))
    return tables


def _numbers(code: str, chosen: Sequence[Column], cells: Sequence[CellResult]) -> ShownTable:
    return ShownTable(
        title=Finding(code),
        heads=[f"{column.heading} {column.unit}".strip() for column in chosen],
        rows=[[column.value(cell) for column in chosen] for cell in cells],
        right=[column.right for column in chosen],
        notes=(legend(chosen, cells),),
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
