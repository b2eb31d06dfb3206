"""A table as text: each value in the format of its column, missing ones as "-"."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from workerlab.finding import Finding
from workerlab.model import Column, Table, Value
from workerlab.numbers.units import DURATION, FORMATS, MISSING, count_text, three_digits
from workerlab.report.values import counts_text, finite, heading, text


class GridColumn(Struct, frozen=True):
    """One column as text. `unit` is shown below the heading; "" if the values have their own."""

    heading: str
    unit: str
    meaning: str
    values: tuple[str, ...]
    right: bool  # right-aligned, as numbers are
    expendable: int = 0
    width: int = 0  # as in Column


class Grid(Struct, frozen=True):
    """`blank`: headings of the columns that were left out because all their values are missing. The
    first `keys` columns identify a row."""

    columns: tuple[GridColumn, ...]
    blank: tuple[str, ...]
    keys: int

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return list(zip(*(column.values for column in self.columns), strict=True))

    @property
    def header(self) -> list[str]:
        return [f"{column.heading} {column.unit}".strip() for column in self.columns]

    @property
    def right(self) -> list[bool]:
        return [column.right for column in self.columns]

    def without(self, index: int) -> Grid:
        columns = (*self.columns[:index], *self.columns[index + 1 :])
        return replace(self, columns=columns, keys=self.keys - (index < self.keys))


def to_grid(table: Table) -> Grid:
    """The table as text; `blank` lists the columns without values. IndexError for a short row."""
    blank, columns, keys = [], [], 0
    for index, column in enumerate(table.columns):
        values = [row[index] for row in table.rows]
        if all(finite(value) is None for value in values):
            blank.append(heading(column))
            continue
        keys += index < table.keys
        columns.append(
            GridColumn(
                heading=heading(column),
                unit=table.unit if column.form == "seconds" else "",
                meaning=column.meaning,
                values=tuple(value_text(column, value, table.unit) for value in values),
                right=column.form not in ("text", "counts"),
                expendable=column.expendable,
                width=column.width,
            )
        )
    return Grid(tuple(columns), tuple(blank), keys)


def join_tables(left: Table, right: Table) -> Table:
    """`left`, with the columns of `right` that it lacks; None where `right` has no matching row."""
    pairs = zip(left.columns, right.columns, strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    rows = {row[:shared]: row[shared:] for row in right.rows}
    missing = (None,) * (len(right.columns) - shared)
    return replace(
        left,
        columns=left.columns + right.columns[shared:],
        rows=tuple(row + rows.get(row[:shared], missing) for row in left.rows),
    )


def value_text(column: Column, value: Value, unit: str = "") -> str:
    """`value` in a readable unit; durations in `unit` if given."""
    finite_value = finite(value)
    if finite_value is None:
        return MISSING
    if isinstance(finite_value, bool):
        return "yes" if finite_value else "no"
    if isinstance(finite_value, str | Finding):
        return text(finite_value) or MISSING
    if isinstance(finite_value, Mapping):
        return counts_text(finite_value) or MISSING
    if unit and column.form == "seconds":
        return _unsigned(three_digits(finite_value / DURATION[unit]))
    return VALUE_FORMATS[column.form](float(finite_value))


def _number(value: float) -> str:
    return count_text(value) if abs(value) >= 10_000 else _unsigned(three_digits(value))


def _percent(value: float) -> str:
    percent = 100 * value
    return f"{_unsigned(f'{percent:.{0 if abs(percent) >= 10 else 1}f}')} %"


def _unsigned(text: str) -> str:
    """Removes the sign of a value that was rounded to zero."""
    return text.removeprefix("-") if float(text) == 0 else text


# As in sentences, except that the digits of numbers align within a column
VALUE_FORMATS = {**FORMATS, "text": "{:g}".format, "number": _number, "percent": _percent}


def table_notes(table: Table, grid: Grid, explained: set[tuple[str, str]]) -> list[str]:
    """The sentences below a table: column meanings, its note, the columns missing in all rows.
    `explained` as in `legend`."""
    return [*legend(grid.columns, explained), text(table.note), blank_columns_note(grid)]


def blank_columns_note(grid: Grid) -> str:
    """The columns left out as blank; "" if there are none."""
    return f"Missing in all rows: {', '.join(grid.blank)}." if grid.blank else ""


def legend(columns: Sequence[GridColumn], explained: set[tuple[str, str]]) -> list[str]:
    """Column meanings, grouped by meaning: "p50, p95: response time.". `explained`: the
    (heading, meaning) pairs already explained; they are skipped, and new ones are added."""
    headings: dict[str, list[str]] = {}
    for column in columns:
        if column.meaning and (column.heading, column.meaning) not in explained:
            headings.setdefault(column.meaning, []).append(column.heading)
            explained.add((column.heading, column.meaning))
    return [f"{', '.join(names)}: {meaning}." for meaning, names in headings.items()]
