"""The series of a sweep with their names, cells and timelines, for what shows them one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.model import CellResult, ClassResult, Document, Timeline
from harness.report.html.figures import slug
from harness.report.messages import text
from harness.report.naming import Names, by_series
from harness.report.values import finite

LEGIBLE = 64  # connections whose bars can be told apart in one picture


@dataclass(frozen=True)
class SweepSeries:
    """All cells that differ in load alone. `number` counts from 0."""

    number: int
    name: str
    result: ClassResult
    closed: tuple[CellResult, ...]
    open: tuple[CellResult, ...] = ()  # at a rate

    @property
    def slug(self) -> str:
        """The name as a part of file names."""
        return slug(self.name)

    @property
    def valid(self) -> tuple[CellResult, ...]:
        """Of the closed loop."""
        return tuple(cell for cell in self.closed if cell.verdict != "invalid")

    @property
    def levels(self) -> dict[int, tuple[CellResult, ...]]:
        """The valid cells by connections, ascending."""
        levels: dict[int, tuple[CellResult, ...]] = {}
        for cell in sorted(self.valid, key=lambda one: one.trial.cell.concurrency):
            at = cell.trial.cell.concurrency
            levels[at] = (*levels.get(at, ()), cell)
        return levels


def all_series(document: Document) -> tuple[SweepSeries, ...]:
    """In the order of the document. Names are different for different series."""
    names, cells_of = Names(document.cells), by_series(document.cells)
    series = []
    for number, one in enumerate(document.classes):
        name = text(names.series(one))
        cells = cells_of.get(one.series, [])
        closed = tuple(cell for cell in cells if cell.trial.cell.rate is None)
        at_rate = tuple(cell for cell in cells if cell.trial.cell.rate is not None)
        series.append(SweepSeries(number, name, one, closed, at_rate))
    return tuple(series)


def mean(cells: Sequence[CellResult], value: Callable[[CellResult], float | None]) -> float | None:
    """The mean over the trials of one level; missing where one of them does not know."""
    values = [finite(value(cell)) for cell in cells]
    known = [one for one in values if one is not None]
    return fmean(known) if known and len(known) == len(values) else None


def over_time(series: SweepSeries, document: Document) -> list[tuple[CellResult, Timeline]]:
    """Its cells that were observed over time, by connections; those at a rate last."""
    timelines = {one.key: one for one in document.timelines}
    cells = [*(cell for level in series.levels.values() for cell in level), *series.open]
    return [(cell, timelines[cell.trial.key]) for cell in cells if cell.trial.key in timelines]


def most_telling(
    pairs: list[tuple[CellResult, Timeline]],
) -> tuple[CellResult, Timeline] | None:
    """The most loaded cell in which something waits and that can still be read; where nothing
    waits, the most loaded one."""
    if not pairs:
        return None
    full = [pair for pair in pairs if pair[0].verdict == "saturated"] or pairs
    legible = [pair for pair in full if pair[0].trial.cell.concurrency <= LEGIBLE]
    return legible[-1] if legible else full[0]
