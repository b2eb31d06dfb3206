"""Formats the values of a table as text, missing ones as "-"; and makes the table of the routes of
a mix, for every command that can request one."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from workerlab.finding import Finding
from workerlab.model.evidence import RouteResult
from workerlab.model.result import Column, Result, Table, Value
from workerlab.numbers.units import DURATION, FORMATS, MISSING, count_text, three_digits
from workerlab.report.values import counts_text, finite, heading, joined_table


class Grid(Struct, frozen=True):
    """A table as text. The first `keys` columns identify a row. `unit`: that of all durations,
    shown below the headings; "" if each has its own. `blank`: headings of the columns omitted
    because all their values are missing."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: int
    unit: str
    blank: tuple[str, ...]

    @property
    def header(self) -> list[str]:
        return [f"{heading(column)} {self.unit_of(column)}".strip() for column in self.columns]

    @property
    def right_aligned(self) -> list[bool]:
        """Whether each column is right-aligned, as numbers are."""
        return [column.form not in ("text", "counts") for column in self.columns]

    def unit_of(self, column: Column) -> str:
        return self.unit if column.form == "seconds" else ""

    def without(self, omitted: Collection[int]) -> Grid:
        """The grid without the columns at these indices."""
        indices = [index for index in range(len(self.columns)) if index not in omitted]
        return replace(
            self,
            columns=tuple(self.columns[index] for index in indices),
            rows=tuple(tuple(row[index] for index in indices) for row in self.rows),
            keys=sum(index < self.keys for index in indices),
        )


def to_grid(table: Table) -> Grid:
    """The table as text, without blank columns. Raises ValueError for a row of the wrong length."""
    columns, rows = table.columns, table.rows
    texts = tuple(
        tuple(
            value_text(column, value, table.unit)
            for column, value in zip(columns, row, strict=True)
        )
        for row in rows
    )
    blank = {
        index: heading(column)
        for index, column in enumerate(columns)
        if all(finite(row[index]) is None for row in rows)
    }
    return Grid(columns, texts, table.keys, table.unit, tuple(blank.values())).without(blank)


def join_tables(left: Table, right: Table) -> Table:
    """`left` with the columns of `right` that it lacks, None where `right` has no matching row."""
    pairs = zip(left.columns, right.columns, strict=False)
    shared_count = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    rows = {row[:shared_count]: row[shared_count:] for row in right.rows}
    missing = (None,) * (len(right.columns) - shared_count)
    return replace(
        left,
        columns=left.columns + right.columns[shared_count:],
        rows=tuple(row + rows.get(row[:shared_count], missing) for row in left.rows),
    )


def value_text(column: Column, value: Value, unit: str = "") -> str:
    """`value` in a readable unit, or a duration in `unit` if that is given."""
    finite_value = finite(value)
    if finite_value is None:
        return MISSING
    if isinstance(finite_value, bool):
        return "yes" if finite_value else "no"
    if isinstance(finite_value, str | Finding):
        return str(finite_value) or MISSING
    if isinstance(finite_value, Mapping):
        return counts_text(finite_value) or MISSING
    if unit and column.form == "seconds":
        return three_digits(finite_value / DURATION[unit])
    return VALUE_FORMATS[column.form](float(finite_value))


def _number(value: float) -> str:
    return count_text(value) if abs(value) >= 10_000 else three_digits(value)


def _percent(value: float) -> str:
    percent = 100 * value
    return f"{percent:z.{0 if abs(percent) >= 10 else 1}f} %"


# As in sentences, except that the digits of numbers align within a column
VALUE_FORMATS = {**FORMATS, "text": "{:g}".format, "number": _number, "percent": _percent}


def table_notes(table: Table, grid: Grid, explained: set[tuple[str, str]]) -> list[str]:
    """The sentences below a table: the meanings of its columns, its note, and its blank columns.
    `explained`: as in `legend`."""
    return [*legend(grid.columns, explained), table.note, blank_columns_note(grid)]


def blank_columns_note(grid: Grid) -> str:
    """A sentence that names the omitted blank columns; "" if there are none."""
    return f"Missing in all rows: {', '.join(grid.blank)}." if grid.blank else ""


def legend(columns: Sequence[Column], explained: set[tuple[str, str]]) -> list[str]:
    """The meanings of columns, one sentence per meaning: "p50, p95: response time.". `explained`:
    the pairs (heading, meaning) explained so far; they are skipped, and new ones are added."""
    headings: dict[str, list[str]] = {}
    for column in columns:
        pair = (heading(column), column.meaning)
        if column.meaning and pair not in explained:
            headings.setdefault(column.meaning, []).append(pair[0])
            explained.add(pair)
    return [f"{', '.join(names)}: {meaning}." for meaning, names in headings.items()]


# --- the routes of a mix ------------------------------------------------------------------------

MAX_SHOWN_ROUTES = 20  # per cell: most failures first, then most requests
MAX_SCREEN_ROWS = 24  # longer tables are shown only with --explain
MIN_EXACT_S = 0.2  # rounding a shorter time to two decimals can change it by more than 2.5 %
NEGLIGIBLE_SHARE = 0.01  # of a row's longest time; the digits of times below this do not matter


def response_column(name: str, meaning: str, expendable: int = 0) -> Column:
    """The column of a percentile or the maximum of response times. `expendable`: as in `Column`."""
    return Column(
        f"response_{name}_s",
        "seconds",
        expendable,
        heading=name,
        meaning=meaning,
        value=f"response.{name}",
    )


SUCCESS_RESPONSE = "response time of successes"
ROUTE_COLUMNS = (
    Column("requests", "count", meaning="complete responses"),
    Column("failed", "count"),
    response_column("p50", SUCCESS_RESPONSE),
    response_column("p95", SUCCESS_RESPONSE, 1),
    response_column("max", SUCCESS_RESPONSE, 2),
)


def route_table(cells: Sequence[Result], leading: Sequence[Column]) -> Iterator[Table]:
    """Yields the table of all routes, if a cell has any. `leading`: the columns that identify a
    cell."""
    routes = [(cell, name, route) for cell in cells for name, route in _shown_routes(cell)]
    if not routes:
        return
    responses = [route.response for _, _, route in routes]
    times = [
        [time for time in (response.p50, response.p95, response.max) if time]
        for response in responses
    ]
    is_cut = any(len(cell.routes) > MAX_SHOWN_ROUTES for cell in cells)
    note = (
        f"Only {MAX_SHOWN_ROUTES} routes per cell: the most failures first, then the most requests."
        " The JSON output has all of them."
    )
    yield joined_table(
        "The routes of the mix",
        [leading, [Column("route", "text", value=str)], ROUTE_COLUMNS],
        routes,
        note=note if is_cut else "",
        keys=len(leading),
        unit=unit_of(times),
        detailed=len(routes) > MAX_SCREEN_ROWS,
    )


def _shown_routes(cell: Result) -> Iterator[tuple[str, RouteResult]]:
    """The cell's routes to show (see MAX_SHOWN_ROUTES), in the order of the mix."""
    names = sorted(cell.routes, key=lambda n: (-cell.routes[n].failed, -cell.routes[n].requests))
    shown_names = {*names[:MAX_SHOWN_ROUTES]}
    return ((name, route) for name, route in cell.routes.items() if name in shown_names)


def unit_of(rows: list[list[float]]) -> str:
    """The unit for all rows: "s" if a time is at least 1 s and no time that matters loses digits,
    else "ms"."""
    longest_s = max((time_s for times in rows for time_s in times), default=0.0)
    inexact = any(
        NEGLIGIBLE_SHARE * max(times) <= time_s < MIN_EXACT_S for times in rows for time_s in times
    )
    return "s" if longest_s >= 1 and not inexact else "ms"
