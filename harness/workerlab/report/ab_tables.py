"""What ApacheBench itself prints of each cell."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import astuple

from workerlab.model import AbTimes, CellResult, Column, Table
from workerlab.report.shapes import JsonAb, column

TOTALS = tuple(column(name, of=JsonAb) for name in JsonAb.__struct_fields__)
TIMES = (
    Column(
        "time_of",
        "text",
        heading="time",
        meaning="connect: until connected; processing: from then until the server closed; waiting:"
        " until the first byte; in whole ms, over all requests, the lone first one included",
    ),
    *(Column(f"{name}_s", "seconds") for name in AbTimes.__struct_fields__),
)


def ab_tables(cells: Iterable[CellResult], leading: Sequence[Column]) -> Iterator[Table]:
    """`leading`: the columns that name a cell."""
    totals, times = [], []
    for cell in cells:
        if cell.ab is not None:
            key = tuple(column.of(cell) for column in leading)
            totals.append((*key, *(total.of(cell.ab) for total in TOTALS)))
            times += [(*key, name, *astuple(row)) for name, row in cell.ab.times.items()]
    yield Table(
        title="What ab printed",
        columns=(*leading, *TOTALS),
        rows=tuple(totals),
        keys=len(leading),
        detailed=True,
    )
    yield Table(
        title="Connection times as ab printed them",
        columns=(*leading, *TIMES),
        rows=tuple(times),
        keys=len(leading),
        unit="ms",
        detailed=True,
    )
