"""What ApacheBench itself prints of each cell."""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import astuple

from workerlab.model import AbTimes, CellResult, Column, Finding, Table, Value
from workerlab.report.shapes import JsonAb

TOTALS = tuple(
    Column(name, "count" if name == "requests" else "bytes" if "bytes" in name else "seconds")
    for name in JsonAb.__struct_fields__
)
TIMES = tuple(Column(f"{name}_s", "seconds") for name in AbTimes.__struct_fields__)


def ab_tables(
    cells: Iterable[CellResult], leading: Sequence[tuple[Column, Callable[[CellResult], Value]]]
) -> Iterable[Table]:
    """`leading`: the columns that name a cell, with their values."""
    columns, keys, totals, times = tuple(column for column, _ in leading), len(leading), [], []
    for cell in cells:
        if cell.ab is not None:
            key = tuple(value(cell) for _, value in leading)
            totals.append((*key, *(getattr(cell.ab, column.name) for column in TOTALS)))
            times += [(*key, name, *astuple(row)) for name, row in cell.ab.times.items()]
    yield Table(Finding("table.ab"), (*columns, *TOTALS), tuple(totals), keys=keys)
    columns = (*columns, Column("time_of", "text"), *TIMES)
    yield Table(Finding("table.ab_times"), columns, tuple(times), keys=keys, unit="ms")
