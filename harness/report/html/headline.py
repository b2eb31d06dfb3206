"""The answer of a run in one or two sentences: who serves most, who least, and who waits where."""

from __future__ import annotations

from harness.model import CellResult, Document, Finding
from harness.report.html.series import all_series
from harness.report.messages import text
from harness.report.values import finite

ALIKE = 1.05  # rates that differ by less are said to be alike
LONG = 160  # letters: a longer answer leaves out who waits where
NOTABLE = 0.05  # of a response time: below, a wait is not worth a word
WAITS = ("connect", "accept_queue", "in_worker")


def headline(document: Document) -> Finding:
    """At the highest level that all series with a valid cell share, best against worst."""
    every = [
        (one.name, {at: cells[0] for at, cells in one.levels.items() if _rps(cells[0])})
        for one in all_series(document)
    ]
    levels = [set(cells) for _, cells in every if cells]
    if not levels:
        return Finding("page.headline.nothing")
    level = max(set.intersection(*levels) or set.union(*levels))
    there = [(name, cells[level]) for name, cells in every if level in cells]
    there.sort(key=lambda pair: -_rps(pair[1]))
    most, least = there[0][1], there[-1][1]
    if len(there) > 1 and _rps(most) < ALIKE * _rps(least):
        names = tuple(name for name, _ in there)
        values = {"connections": level, "names": names, "rate": _rate(most)}
        return Finding("page.headline.both" if len(there) == 2 else "page.headline.all", values)

    def compared(waits: bool) -> Finding:
        values: dict[str, object] = {"connections": level, "worst": None}
        for end, (name, cell) in zip(("best", "worst"), there[:1] + there[1:][-1:], strict=False):
            values |= {end: name, f"{end}_rate": _rate(cell, waits)}
        return Finding("page.headline", values)

    answer = compared(waits=True)
    return answer if len(there) == 1 or len(text(answer)) <= LONG else compared(waits=False)


def _rps(cell: CellResult) -> float:
    return finite(cell.throughput_rps) or 0.0


def _rate(cell: CellResult, waits: bool = True) -> Finding:
    """How many it answers, each in how long, and (`waits`) where a notable part of that is spent
    waiting."""
    parts = cell.breakdown
    response = finite(parts.response_s) or finite(cell.response.mean)
    longest, where = max((finite(getattr(parts, f"{one}_s")) or 0.0, one) for one in WAITS)
    notable = waits and response is not None and longest >= NOTABLE * response
    return Finding(
        "page.headline.rate",
        {
            "rate_rps": _rps(cell),
            "response_s": response,
            "wait_s": longest if notable else None,
            "where": Finding(f"page.headline.{where}"),
        },
    )
