"""The answer of a run in one or two sentences: who serves most, who least, and who waits where."""

from __future__ import annotations

from harness.model import CellResult, Document, Finding
from harness.report.html.series import SweepSeries, all_series
from harness.report.messages import text
from harness.report.values import finite

ALIKE = 1.05  # rates that differ by less are said to be alike
LONG = 160  # letters: a longer answer leaves out who waits where
NOTABLE = 0.05  # of a response time: below, a wait is not worth a word
WAITS = ("connect", "accept_queue", "in_worker")


def headline(document: Document) -> Finding:
    """At the highest level that all series with a valid cell share, best against worst."""
    every = [series for series in all_series(document) if _levels(series)]
    if not every:
        return Finding("page.headline.nothing")
    shared = set.intersection(*map(_levels, every)) or set.union(*map(_levels, every))
    level = max(shared)
    there = [(one.name, one.levels[level][0]) for one in every if level in _levels(one)]
    there.sort(key=lambda pair: -(pair[1].throughput_rps or 0.0))
    (_, most), (_, least) = there[0], there[-1]
    if len(there) > 1 and (most.throughput_rps or 0) < ALIKE * (least.throughput_rps or 0):
        names = tuple(name for name, _ in there)
        values = {"connections": level, "names": names, "rate": _rate(most)}
        return Finding("page.headline.both" if len(there) == 2 else "page.headline.all", values)
    ends = [there[0], there[-1]][: len(there)]
    answer = _compared(level, ends)
    return answer if len(ends) == 1 or len(text(answer)) <= LONG else _compared(level, ends, False)


def _compared(level: int, ends: list[tuple[str, CellResult]], waits: bool = True) -> Finding:
    """`waits`: whether to say where its requests wait."""
    names = ("best", "worst")
    values: dict[str, object] = {"connections": level, "worst": None}
    for end, (name, cell) in zip(names, ends, strict=False):
        values |= {end: name, f"{end}_rate": _rate(cell, waits=waits)}
    return Finding("page.headline", values)


def _levels(series: SweepSeries) -> set[int]:
    return {at for at, cells in series.levels.items() if finite(cells[0].throughput_rps)}


def _rate(cell: CellResult, *, waits: bool = True) -> Finding:
    """How many it answers, each in how long, and where a notable part of that is spent waiting."""
    parts = cell.breakdown
    response = finite(parts.response_s) or finite(cell.response.mean)
    longest, where = max((finite(getattr(parts, f"{one}_s")) or 0.0, one) for one in WAITS)
    notable = waits and response is not None and longest >= NOTABLE * response
    return Finding(
        "page.headline.rate",
        {
            "rate_rps": cell.throughput_rps or 0.0,
            "response_s": response,
            "wait_s": longest if notable else None,
            "where": Finding(f"page.headline.{where}"),
        },
    )
