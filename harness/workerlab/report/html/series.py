"""The named series of a sweep, their cells over time, and trials as data for the player
(`report/player`)."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.cell_targets import load_level
from workerlab.analysis.diagnosis import supporting_observations
from workerlab.analysis.trials import Trials, by_cell, valid_results
from workerlab.model.result import ClassResult, Document, Label, Result, TrialResult
from workerlab.numbers.units import fill, listed
from workerlab.report.html.figure import Figure, not_none, slug
from workerlab.report.html.over_time import (
    USAGE_FIGURES,
    connects,
    phases,
    queue,
    states,
    usage,
)
from workerlab.report.html.timeline import request_by_request
from workerlab.report.html.timeline_data import Timeline, timelines
from workerlab.report.values import Names, by_series, finite

PLAYER_SETTINGS = ("worker_class", "workers", "threads", "worker_connections", "backlog")
MAX_LEGIBLE = 64  # connections; with more, the bars of a figure cannot be told apart
MAX_OPEN_CELLS = 2  # initially open timelines: with more, the page would be too long
FOLDED_KINDS = ("queue", "states", "cpu", "memory")  # folded unless they support a diagnosis
OBSERVATION_NAMES = {"queue": "the accept queue", "states": "TCP states", "usage": "CPU and memory"}


class SweepSeries(Struct, frozen=True):
    """All cells that differ only in load. `number` counts from 0; `levels`: the valid trials of the
    closed loop by connections, ascending."""

    number: int
    name: str
    result: ClassResult
    closed: tuple[TrialResult, ...]
    open: tuple[Result, ...]  # valid cells at a rate
    levels: dict[int, Trials]

    @property
    def slug(self) -> str:
        """The name as a part of file names."""
        return slug(self.name)

    @property
    def valid(self) -> list[Result]:
        """The valid cells of the closed loop."""
        return [cell for trials in self.levels.values() for cell in trials.valid]


def all_series(document: Document) -> list[SweepSeries]:
    """The series in document order, with unique names."""
    names, cells_of = Names(document.cells), by_series(document.cells)
    series = []
    for number, group in enumerate(document.classes):
        cells = cells_of.get(group.series, [])
        closed = tuple(cell for cell in cells if cell.trial.cell.rate is None)
        by_load = by_cell(
            sorted(closed, key=lambda cell: cell.trial.cell.concurrency),
            keep=lambda _: True,
        )
        series.append(
            SweepSeries(
                number=number,
                name=names.series(group),
                result=group,
                closed=closed,
                open=tuple(
                    cell for cell in valid_results(cells) if cell.trial.cell.rate is not None
                ),
                levels={at.concurrency: trials for at, trials in by_load.items() if trials.valid},
            )
        )
    return series


# --- cells over time ----------------------------------------------------------------------


class CellOverTime(Struct, dict=True, frozen=True):
    """One cell as the page shows it. `position`: (series, cell in the series); `most_informative`:
    whether it is the most informative cell of its series; `initially_open`: unfolded at first."""

    position: tuple[int, int]
    series: SweepSeries
    cell: Result
    timeline: Timeline
    most_informative: bool = False
    initially_open: bool = False

    @property
    def load(self) -> str:
        return str(load_level(self.cell.trial.cell))

    @property
    def where(self) -> str:
        return f"{self.series.name} at {self.load}"

    @property
    def summary(self) -> str:
        rate_rps = finite(self.cell.throughput_rps)
        values = {"load": self.load, "verdict": self.cell.verdict, "rate_rps": rate_rps}
        return fill("{load}: {verdict}[[, {rate_rps:number} requests/s]]", values)

    @property
    def notes(self) -> tuple[Label, ...]:
        labels = [
            label for name, label in OBSERVATION_NAMES.items() if not getattr(self.timeline, name)
        ]
        return (*self.timeline.notes, *([f"Missing: {listed(labels)}."] if labels else []))

    @property
    def folded(self) -> list[Figure]:
        """The figures of FOLDED_KINDS that support none of its diagnoses."""
        supporting = supporting_observations(self.cell)
        kinds = [kind for kind in FOLDED_KINDS if kind not in supporting]
        return [figure for figure in self.figures if figure.name.split("-")[0] in kinds]

    @property
    def trace(self) -> dict[str, Any] | None:
        """The trial as data for the player; None if no request was recorded."""
        trace, cell, plan = self.timeline.trace, self.cell, self.cell.trial.cell
        if trace is None:
            return None
        closed, server = plan.rate is None, plan.server
        side = {
            "server": {name: getattr(server, name) for name in PLAYER_SETTINGS},
            "load": {
                "model": "closed" if closed else "open",
                "clients": plan.concurrency if closed else None,
                "rate": cell.asked_rps,
                "keepalive": plan.keepalive,
            },
            "slots": cell.slots_configured,
            "accepts_first": cell.worker_class.accepts_first,
            "workers": server.workers * server.instances,
            "sentence": "",
            "law": None,
            "moves": trace.moves,
            "samples": trace.samples,
        }
        return {"length_ms": trace.length_ms, "named": trace.named, "sides": [side]}

    @cached_property
    def figures(self) -> list[Figure]:
        """The figures that are not empty, with names that are unique in a run. They are drawn on
        first use, because cells that no longer fit on the page are never drawn."""
        cell, where = self.cell.trial.cell, self.where
        load_slug = str(cell.concurrency)
        if cell.rate is not None:
            load_slug = f"rate-{cell.rate.label.replace('%', 'pc').replace('.', '-')}"
        figures = not_none(
            request_by_request(self.cell, self.timeline, where),
            *(draw(self.timeline, where) for draw in (phases, connects, queue, states)),
            *(usage(self.timeline, where, heading=heading) for heading in USAGE_FIGURES),
        )
        names = [f"{figure.name}-{self.series.slug}-{load_slug}" for figure in figures]
        return [replace(figure, name=name) for figure, name in zip(figures, names, strict=True)]


def most_informative(cells: Sequence[CellOverTime]) -> CellOverTime:
    """The saturated cell (or any, if none is saturated) with the highest legible load; if none is
    legible, the first. `cells` are those of a series, in order of load."""
    candidates = [cell for cell in cells if cell.cell.verdict == "saturated"] or cells
    legible = [cell for cell in candidates if cell.cell.trial.cell.concurrency <= MAX_LEGIBLE]
    return [candidates[0], *legible][-1]


def cells_over_time(document: Document) -> list[CellOverTime]:
    """The cells with a timeline, the most informative of each series first, then saturated ones."""
    all_timelines = document.timelines or timelines(document.facts)
    timeline_of = {timeline.key: timeline for timeline in all_timelines}
    cells = list[CellOverTime]()
    for series in all_series(document):
        in_order = enumerate([*series.valid, *series.open])  # by load; those at a rate last
        with_timeline = [
            CellOverTime((series.number, position), series, cell, timeline_of[cell.trial.key])
            for position, cell in in_order
            if cell.trial.key in timeline_of
        ]
        for cell in with_timeline:
            cells.append(replace(cell, most_informative=cell is most_informative(with_timeline)))
    cells.sort(key=lambda cell: (not cell.most_informative, cell.cell.verdict != "saturated"))
    return [
        replace(cell, initially_open=cell.most_informative and rank < MAX_OPEN_CELLS)
        for rank, cell in enumerate(cells)
    ]
