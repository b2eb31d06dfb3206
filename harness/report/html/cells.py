"""The cells of a run over time: their figures, which are shown, and what there was no room for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.model import CellResult, Document, Finding, Label, Timeline
from harness.report.html.figures import Figure
from harness.report.html.kernel import connects, queue, states
from harness.report.html.phases import phases
from harness.report.html.series import SweepSeries, all_series, most_telling, over_time
from harness.report.html.timeline import timeline
from harness.report.html.usage import cpu, memory
from harness.report.naming import level
from harness.report.values import finite


@dataclass(frozen=True)
class CellOverTime:
    """One cell as the page shows it. `place`: in the order of the document; `open`: without being
    asked."""

    place: tuple[int, int]
    series: SweepSeries
    where: Finding
    summary: Finding
    answer: Label
    notes: tuple[Label, ...]
    open: bool
    cell: CellResult
    timeline: Timeline

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Drawn when they are asked for: not where the page has no room for them."""
        return tuple(cell_figures(self.series, self.cell, self.timeline))


def cells_over_time(document: Document) -> Iterator[CellOverTime]:
    """The most telling cell of every series, then the others."""
    every = [(series, over_time(series, document)) for series in all_series(document)]
    best = {series.number: most_telling(pairs) for series, pairs in every}
    for telling in (True, False):
        for series, pairs in every:
            for number, pair in enumerate(pairs):
                if (pair == best[series.number]) is telling:
                    yield _shown((series.number, number), series, *pair, opened=telling)


def _shown(
    place: tuple[int, int], series: SweepSeries, cell: CellResult, seen: Timeline, *, opened: bool
) -> CellOverTime:
    missing = tuple(
        Finding(f"page.observation.{name}")
        for name, samples in (("queue", seen.queue), ("states", seen.states), ("usage", seen.usage))
        if not samples
    )
    rate = finite(cell.throughput_rps)
    values = {"load": level(cell.trial.cell, "load"), "verdict": cell.verdict, "rate_rps": rate}
    return CellOverTime(
        place=place,
        series=series,
        where=where(series, cell),
        summary=Finding("page.cell", values),
        answer=cell.diagnosis or cell.reason,
        notes=(*seen.notes, *([Finding("page.missing", {"names": missing})] if missing else [])),
        open=opened,
        cell=cell,
        timeline=seen,
    )


def where(series: SweepSeries, cell: CellResult) -> Finding:
    return Finding("page.cell.where", {"name": series.name, "load": level(cell.trial.cell, "load")})


def cell_figures(series: SweepSeries, cell: CellResult, seen: Timeline) -> list[Figure]:
    """Those that have anything to show; names are different in all cells of a run."""
    suffix, place = f"{series.slug}-{_level(cell)}", where(series, cell)
    every = [
        timeline(cell, seen, f"timeline-{suffix}", place),
        phases(seen, f"phases-{suffix}", place),
        connects(seen, f"connects-{suffix}", place),
        queue(seen, f"queue-{suffix}", place),
        states(seen, f"states-{suffix}", place),
        cpu(seen, f"cpu-{suffix}", place),
        memory(seen, f"memory-{suffix}", place),
    ]
    return [figure for figure in every if figure is not None]


def _level(cell: CellResult) -> str:
    """As a part of file names."""
    asked = cell.trial.cell
    if asked.rate is None:
        return str(asked.concurrency)
    return f"rate-{asked.rate.label.replace('%', 'pc').replace('.', '-')}"
