"""The cells of a run over time: their figures, which are shown, and what there was no room for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from harness.model import CellResult, Document, Finding, Timeline
from harness.report.html.figures import Figure, some
from harness.report.html.kernel import connects, queue, states
from harness.report.html.over_time import cpu, memory, phases
from harness.report.html.series import SweepSeries, all_series, most_telling, over_time
from harness.report.html.timeline import timeline
from harness.report.naming import level


@dataclass(frozen=True)
class CellOverTime:
    """One cell as the page shows it. `place`: in the order of the document; `telling`: it is open
    without being asked."""

    place: tuple[int, int]
    series: SweepSeries
    cell: CellResult
    seen: Timeline
    telling: bool

    @property
    def where(self) -> Finding:
        return _where(self.series, self.cell)

    @property
    def notes(self) -> tuple[Finding, ...]:
        missing = tuple(
            Finding(f"page.observation.{name}")
            for name in ("queue", "states", "usage")
            if not getattr(self.seen, name)
        )
        names = Finding("page.missing", {"names": missing})
        return (*self.seen.notes, *([names] if missing else []))

    @cached_property
    def figures(self) -> list[Figure]:
        """Drawn when they are asked for: not where the page has no room for them."""
        return cell_figures(self.series, self.cell, self.seen)


def cells_over_time(document: Document) -> list[CellOverTime]:
    """The most telling cell of every series, then the others."""
    cells = []
    for series in all_series(document):
        pairs = over_time(series, document)
        best = most_telling(pairs)
        cells += [
            CellOverTime((series.number, place), series, *pair, telling=pair == best)
            for place, pair in enumerate(pairs)
        ]
    return sorted(cells, key=lambda one: (not one.telling, one.place))


def _where(series: SweepSeries, cell: CellResult) -> Finding:
    return Finding("page.cell.where", {"name": series.name, "load": level(cell.trial.cell, "load")})


def cell_figures(series: SweepSeries, cell: CellResult, seen: Timeline) -> list[Figure]:
    """Those that have anything to show; names are different in all cells of a run."""
    asked, where = cell.trial.cell, _where(series, cell)
    at = str(asked.concurrency)
    if asked.rate is not None:
        at = f"rate-{asked.rate.label.replace('%', 'pc').replace('.', '-')}"
    others = (draw(seen, where) for draw in (phases, connects, queue, states, cpu, memory))
    every = some(timeline(cell, seen, where), *others)
    return [replace(one, name=f"{one.name}-{series.slug}-{at}") for one in every]
