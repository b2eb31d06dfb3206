"""The series of a sweep with their names, their cells over time, and the answer of the run in one
or two sentences: who serves most, who least, and who waits where."""

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from statistics import fmean
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab import finding
from workerlab.analysis.cell_targets import load_level
from workerlab.analysis.comparison import SIMILAR, tie
from workerlab.analysis.diagnosis import observed
from workerlab.analysis.open_closed import conclusive
from workerlab.model import CellResult, ClassResult, Document, Finding, Timeline
from workerlab.report.html.figure import Figure, slug, some
from workerlab.report.html.kernel import connects, queue, states
from workerlab.report.html.over_time import cpu, memory, phases
from workerlab.report.html.played import played
from workerlab.report.html.timeline import timeline
from workerlab.report.messages import text
from workerlab.report.naming import Names, by_series
from workerlab.report.values import finite

LEGIBLE = 64  # connections whose bars can be told apart in one picture
OPEN_CELLS = 2  # timelines that are open without being asked: of more, a page would be too long
ON_REQUEST = ("queue", "states", "cpu", "memory")  # figures that are folded unless they explain
LONG = 160  # letters: a longer answer leaves out who waits where
NOTABLE = 0.05  # of a response time: below, a wait is not worth a word
WAITS = ("connect", "accept_queue", "in_worker")

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
    levels: dict[int, list[CellResult]]

    @property
    def valid(self) -> list[CellResult]:
        """Of the closed loop."""
        return [cell for cells in self.levels.values() for cell in cells]


def all_series(document: Document) -> list[SweepSeries]:
    """In the order of the document. Names are different for different series."""
    names, cells_of = Names(document.cells), by_series(document.cells)
    every = []
    for number, one in enumerate(document.classes):
        name = text(names.series(one))
        cells = cells_of.get(one.series, [])
        closed = tuple(cell for cell in cells if cell.trial.cell.rate is None)
        at_rate = tuple(cell for cell in cells if cell.trial.cell.rate is not None)
        levels: dict[int, list[CellResult]] = {}
        for cell in sorted(closed, key=lambda one: one.trial.cell.concurrency):
            if cell.verdict != "invalid":
                levels.setdefault(cell.trial.cell.concurrency, []).append(cell)
        every.append(SweepSeries(number, name, slug(name), one, closed, at_rate, levels))
    return every


def mean(cells: Sequence[CellResult], value: Callable[[CellResult], float | None]) -> float | None:
    """The mean over the trials of one level; missing where one of them does not know."""
    values = [finite(value(cell)) for cell in cells]
    known = [one for one in values if one is not None]
    return fmean(known) if known and len(known) == len(values) else None


def over_time(series: SweepSeries, document: Document) -> list[Pair]:
    """Its cells that were observed over time, by connections; those at a rate last."""
    timelines = {one.key: one for one in document.timelines}
    cells = [*series.valid, *series.open]
    return [(cell, timelines[cell.trial.key]) for cell in cells if cell.trial.key in timelines]


def most_telling(pairs: list[Pair]) -> Pair | None:
    """The most loaded cell in which something waits and that can still be read; where nothing
    waits, the most loaded one."""
    full = [pair for pair in pairs if pair[0].verdict == "saturated"] or pairs
    legible = [pair for pair in full if pair[0].trial.cell.concurrency <= LEGIBLE]
    return [*full[:1], *legible][-1] if full else None


# --- cells over time ----------------------------------------------------------------------


class CellOverTime(Struct, dict=True, frozen=True):
    """One cell as the page shows it. `place`: in the order of the document; `telling`: the one that
    says most of its series; `opened`: without being asked."""

    place: tuple[int, int]
    series: SweepSeries
    cell: CellResult
    seen: Timeline
    telling: bool
    opened: bool = False

    @property
    def where(self) -> Finding:
        load = load_level(self.cell.trial.cell)
        return Finding("page.cell.where", {"name": self.series.name, "load": load})

    @property
    def says(self) -> tuple[finding.Finding, ...]:
        """Why nothing can be concluded, where that is so, and all that is so of it."""
        cell = self.cell
        known = cell.findings or some(cell.diagnosis) or (cell.reason,)
        return (
            known if cell.verdict != "inconclusive" else tuple(dict.fromkeys((cell.reason, *known)))
        )

    @property
    def notes(self) -> tuple[finding.Finding, ...]:
        missing = tuple(
            Finding(f"page.observation.{name}")
            for name in ("queue", "states", "usage")
            if not getattr(self.seen, name)
        )
        names = Finding("page.missing", {"names": missing})
        return (*self.seen.notes, *([names] if missing else []))

    @property
    def folded(self) -> list[Figure]:
        """Those that show nothing of what was found of the cell."""
        shown = observed(self.cell)
        kinds = [kind for kind in ON_REQUEST if kind not in shown]
        return [figure for figure in self.figures if figure.name.split("-")[0] in kinds]

    @property
    def trace(self) -> dict[str, Any] | None:
        """For the player; None where there is nothing to play."""
        return played(self.cell, self.seen)

    @cached_property
    def figures(self) -> list[Figure]:
        """Those that have anything to show, with different names in all cells of a run; drawn when
        they are asked for: not where the page has no room for them."""
        asked, where = self.cell.trial.cell, self.where
        at = str(asked.concurrency)
        if asked.rate is not None:
            at = f"rate-{asked.rate.label.replace('%', 'pc').replace('.', '-')}"
        others = (draw(self.seen, where) for draw in (phases, connects, queue, states, cpu, memory))
        every = some(timeline(self.cell, self.seen, where), *others)
        return [replace(one, name=f"{one.name}-{self.series.slug}-{at}") for one in every]


def cells_over_time(document: Document) -> list[CellOverTime]:
    """The most telling cell of every series, saturated ones first, then the others."""
    cells = []
    for series in all_series(document):
        pairs = over_time(series, document)
        best = most_telling(pairs)
        cells += [
            CellOverTime((series.number, place), series, *pair, telling=pair == best)
            for place, pair in enumerate(pairs)
        ]
    cells.sort(key=lambda one: (not one.telling, one.cell.verdict != "saturated", one.place))
    return [
        replace(one, opened=one.telling and place < OPEN_CELLS) for place, one in enumerate(cells)
    ]


# --- the answer of a run ------------------------------------------------------------------


def headline(document: Document) -> Finding:
    """At the highest level that all series with a valid cell share, most against least; those of
    which no difference from the most is shown tie with it."""
    every = [
        (one.name, {at: told for at, cells in one.levels.items() if (told := _told(cells))})
        for one in all_series(document)
    ]
    levels = [set(cells) for _, cells in every if cells]
    if not levels:
        untold = any(cell.verdict == "inconclusive" for cell in document.cells)
        return Finding(f"page.headline.{'inconclusive' if untold else 'nothing'}")
    level = max(set.intersection(*levels) or set.union(*levels))
    there = [(name, cells[level]) for name, cells in every if level in cells]
    there.sort(key=lambda pair: -_rps(pair[1]))
    most, least = there[0][1], there[-1][1]
    first = tuple(name for name, cells in there if cells is most or tie(most, cells))
    least_rps = min(_rps(cells) for name, cells in there if name in first)
    single = len(there) > 1 and min(len(most), len(least)) == 1

    def compared(waits: bool) -> Finding:
        values: dict[str, object] = {"connections": level, "one": 1 if single else None}
        values |= {"worst": None, "best_rate": _rate(most, waits)}
        if there[-1][0] not in first:
            values |= {"worst": there[-1][0], "worst_rate": _rate(least, waits)}
        if len(first) > 1:
            values |= {"names": first, "least_rps": least_rps, "most_rps": _rps(most)}
            alike = _rps(most) < SIMILAR * least_rps
            return Finding(f"page.headline.{'tie' if alike else 'chance'}", values)
        return Finding("page.headline", {**values, "best": first[0]})

    answer = compared(waits=True)
    return answer if len(there) == 1 or len(text(answer)) <= LONG else compared(waits=False)


def _told(cells: Sequence[CellResult]) -> list[CellResult]:
    """The trials of a level that say how much it answers."""
    return [cell for cell in cells if conclusive(cell) and finite(cell.throughput_rps)]


def _rps(trials: Sequence[CellResult]) -> float:
    return fmean(cell.throughput_rps or 0.0 for cell in trials)


def _rate(trials: Sequence[CellResult], waits: bool = True) -> Finding:
    """How many they answer, each in how long, and with `waits` where a notable part of that goes:
    means of the trials."""
    response = mean(trials, _response_s)
    parts = {one: mean(trials, attrgetter(f"breakdown.{one}_s")) or 0.0 for one in WAITS}
    longest, where = max((time_s, one) for one, time_s in parts.items())
    notable = waits and response is not None and longest >= NOTABLE * response
    return Finding(
        "page.headline.rate",
        {
            "rate_rps": _rps(trials),
            "response_s": response,
            "wait_s": longest if notable else None,
            "where": Finding(f"page.headline.{where}"),
        },
    )


def _response_s(cell: CellResult) -> float | None:
    return finite(cell.breakdown.response_s) or finite(cell.response.mean)
