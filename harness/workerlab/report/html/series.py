"""The series of a sweep by name, their cells over time, and trials as data for the player
(`report/player`)."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.cell_targets import load_level
from workerlab.analysis.diagnosis import observed
from workerlab.analysis.overview import LevelTrials
from workerlab.analysis.trials import Replicates
from workerlab.finding import Finding
from workerlab.model import CellResult, ClassResult, Document, Label
from workerlab.numbers.units import fill, listed
from workerlab.report.html.figure import Figure, slug, some
from workerlab.report.html.kernel import connects, queue, states
from workerlab.report.html.over_time import cpu, memory, phases
from workerlab.report.html.timeline import request_by_request
from workerlab.report.html.timeline_data import Timeline, timelines
from workerlab.report.values import Names, by_series, finite


def played(cell: CellResult, timeline: Timeline) -> dict[str, Any] | None:
    """The trial as data for the player; None if no request was seen."""
    trace, plan = timeline.trace, cell.trial.cell
    if trace is None:
        return None
    server = trace.server
    settings = ("worker_class", "workers", "threads", "worker_connections", "backlog")
    closed = plan.rate is None
    load = {
        "model": "closed" if closed else "open",
        "clients": plan.concurrency if closed else None,
        "rate": None if closed else cell.asked_rps,
        "keepalive": plan.keepalive,
    }
    side = {
        "server": {name: getattr(server, name) for name in settings},
        "load": load,
        "slots": trace.slots,
        "accepts_first": trace.accepts_first,
        "workers": server.workers * server.instances,
        "sentence": "",
        "law": None,
        "moves": trace.moves,
        "samples": trace.samples,
    }
    return {"length_ms": trace.length_ms, "named": trace.named, "sides": [side]}


LEGIBLE = 64  # connections; the bars of more are not distinguishable in a figure
OPEN_CELLS = 2  # timelines that are initially open: with more, the page would be too long
ON_REQUEST = ("queue", "states", "cpu", "memory")  # folded unless they show a diagnosis
OBSERVATIONS = {"queue": "the accept queue", "states": "TCP states", "usage": "CPU and memory"}

Pair = tuple[CellResult, Timeline]


class SweepSeries(Struct, frozen=True):
    """All cells that differ in load alone. `number` counts from 0; `slug`: the name as a part of
    file names; `levels`: the valid cells of the closed loop by connections, ascending."""

    number: int
    name: str
    slug: str
    result: ClassResult
    closed: tuple[CellResult, ...]
    open: tuple[CellResult, ...]  # at a rate
    levels: dict[int, LevelTrials]

    @property
    def valid(self) -> list[CellResult]:
        """The valid cells of the closed loop."""
        return [cell for trials in self.levels.values() for cell in trials.valid]


def all_series(document: Document) -> list[SweepSeries]:
    """In document order, with unique names."""
    names, cells_of = Names(document.cells), by_series(document.cells)
    series = []
    for number, group in enumerate(document.classes):
        name = names.series(group)
        cells = cells_of.get(group.series, [])
        closed = tuple(cell for cell in cells if cell.trial.cell.rate is None)
        at_rate = tuple(cell for cell in cells if cell.trial.cell.rate is not None)
        levels: dict[int, list[CellResult]] = {}
        for cell in sorted(closed, key=lambda cell: cell.trial.cell.concurrency):
            if cell.verdict != "invalid":
                levels.setdefault(cell.trial.cell.concurrency, []).append(cell)
        series.append(
            SweepSeries(
                number=number,
                name=name,
                slug=slug(name),
                result=group,
                closed=closed,
                open=at_rate,
                levels={at: Replicates(tuple(trials)) for at, trials in levels.items()},
            )
        )
    return series


def timelines_of(document: Document) -> dict[str, Timeline]:
    """Timelines by key of the trial."""
    return {timeline.key: timeline for timeline in document.timelines or timelines(document.facts)}


def over_time(series: SweepSeries, by_trial: Mapping[str, Timeline]) -> list[Pair]:
    """The cells of a series that have a timeline, by connections; those at a rate last."""
    cells = [*series.valid, *series.open]
    return [(cell, by_trial[cell.trial.key]) for cell in cells if cell.trial.key in by_trial]


def most_telling(pairs: list[Pair]) -> Pair | None:
    """The saturated cell (or any, if none is saturated) with the highest load that is legible. If
    none of them is legible, the first. `pairs` are in order of load."""
    candidates = [pair for pair in pairs if pair[0].verdict == "saturated"] or pairs
    legible = [pair for pair in candidates if pair[0].trial.cell.concurrency <= LEGIBLE]
    return [*candidates[:1], *legible][-1] if candidates else None


# --- cells over time ----------------------------------------------------------------------


class CellOverTime(Struct, dict=True, frozen=True):
    """One cell as the page shows it. `place`: its position in the document; `telling`: the most
    informative cell of its series; `opened`: initially open."""

    place: tuple[int, int]
    series: SweepSeries
    cell: CellResult
    timeline: Timeline
    telling: bool
    opened: bool = False

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
    def says(self) -> tuple[Finding, ...]:
        """Its findings, or else the reason for its verdict; if inconclusive, the reason first."""
        cell = self.cell
        findings = cell.findings or some(cell.diagnosis) or (cell.reason,)
        return (
            findings
            if cell.verdict != "inconclusive"
            else tuple(dict.fromkeys((cell.reason, *findings)))
        )

    @property
    def notes(self) -> tuple[Label, ...]:
        missing = [
            words for name, words in OBSERVATIONS.items() if not getattr(self.timeline, name)
        ]
        return (*self.timeline.notes, *([f"Missing: {listed(missing)}."] if missing else []))

    @property
    def folded(self) -> list[Figure]:
        """The figures of ON_REQUEST that show none of its diagnoses."""
        shown = observed(self.cell)
        kinds = [kind for kind in ON_REQUEST if kind not in shown]
        return [figure for figure in self.figures if figure.name.split("-")[0] in kinds]

    @property
    def trace(self) -> dict[str, Any] | None:
        """Data for the player; None if there is nothing to play."""
        return played(self.cell, self.timeline)

    @cached_property
    def figures(self) -> list[Figure]:
        """The figures that have something to show, with names that are unique in a run. Drawn on
        first use, as the page draws no cell once it is full."""
        cell, where = self.cell.trial.cell, self.where
        at = str(cell.concurrency)
        if cell.rate is not None:
            at = f"rate-{cell.rate.label.replace('%', 'pc').replace('.', '-')}"
        others = (
            draw(self.timeline, where) for draw in (phases, connects, queue, states, cpu, memory)
        )
        figures = some(request_by_request(self.cell, self.timeline, where), *others)
        return [
            replace(figure, name=f"{figure.name}-{self.series.slug}-{at}") for figure in figures
        ]


def cells_over_time(document: Document) -> list[CellOverTime]:
    """Cells with a timeline: most informative of each series, then others; saturated ones first."""
    cells, by_trial = list[CellOverTime](), timelines_of(document)
    for series in all_series(document):
        pairs = over_time(series, by_trial)
        best = most_telling(pairs)
        cells += [
            CellOverTime((series.number, place), series, *pair, telling=pair == best)
            for place, pair in enumerate(pairs)
        ]
    cells.sort(key=lambda cell: (not cell.telling, cell.cell.verdict != "saturated", cell.place))
    return [
        replace(cell, opened=cell.telling and place < OPEN_CELLS)
        for place, cell in enumerate(cells)
    ]
