"""What ApacheBench itself prints of each cell, and whether its times per request are what they are
defined by: the product or quotient of others of its figures, as far as it rounds them."""

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import astuple

from workerlab.model import AbTimes, CellResult, Column, Finding, Table, Value
from workerlab.report.naming import level
from workerlab.report.shapes import JsonAb

TOTALS = tuple(
    Column(name, "count" if name == "requests" else "bytes" if "bytes" in name else "seconds")
    for name in JsonAb.__struct_fields__
)
TIMES = tuple(Column(f"{name}_s", "seconds") for name in AbTimes.__struct_fields__)
# What ab's rounding can make of them: it prints times in ms with three decimals, or in s with three
TIME_S, TIME_PER_REQUEST_S = 0.0006, 6e-7
IDENTITIES = ("requests", "time_taken_s", "time_per_request_s", "time_per_request_across_s")
HOLDS = {True: "ab.holds", False: "ab.broken"}


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


def identities(cells: Iterable[CellResult]) -> Iterable[Finding]:
    """Of each cell that took any time; and how close its connection times come to keeping all
    connections busy."""
    for cell in cells:
        if (ab := cell.ab) is None or not (ab.time_taken_s and ab.time_per_request_s):
            continue
        busy_s, requests_s = ab.time_taken_s * ab.concurrency, ab.time_per_request_s * ab.requests
        each_s, across_s = ab.time_taken_s / ab.requests, ab.time_per_request_across_s or 0.0
        rounding_s = TIME_S * ab.concurrency + TIME_PER_REQUEST_S * ab.requests
        across_rounding_s = TIME_S / ab.requests + TIME_PER_REQUEST_S
        products = {"busy_s": busy_s, "requests_s": requests_s, "each_s": each_s}
        values = products | {
            **{name: getattr(ab, name) for name in IDENTITIES},
            "concurrency": ab.concurrency,
            "load": level(cell.trial.cell, "load"),
            "mean": Finding(HOLDS[abs(busy_s - requests_s) <= rounding_s]),
            "across": Finding(HOLDS[abs(each_s - across_s) <= across_rounding_s]),
            "share": (ab.times["total"].mean or 0.0) * ab.requests / busy_s,
        }
        yield Finding("ab.identities", values, (cell.trial.key,))
