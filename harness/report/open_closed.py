"""Closed loop and open model side by side: a server's response times under both.

closed   N clients, each of which asks again as soon as it is answered
open     requests that arrive at a rate, evenly spaced, timed from the moment each was due
"""

import math
from collections.abc import Iterable, Sequence

from harness.model import CellResult, Finding
from harness.report.naming import by_series
from harness.report.values import finite

LIKE = 0.10  # rates and times that differ by less are the same
LATE = 0.25  # of the mean response
SAME = 0.02  # of rates: they are one level, of which the least loaded cell speaks


def counterpart(cell: CellResult, cells: Iterable[CellResult]) -> CellResult | None:
    """The valid closed cell of the same series whose throughput is nearest; of several that are one
    level, the one with the fewest connections."""
    rate = finite(cell.throughput_rps)
    alike = [
        one
        for one in cells
        if one.trial.cell.rate is None
        and one.verdict != "invalid"
        and one.trial.cell.series == cell.trial.cell.series
        and finite(one.throughput_rps)
    ]
    if not rate or not alike:
        return None

    def distance(one: CellResult) -> float:
        return abs(math.log((one.throughput_rps or rate) / rate))

    least = min(map(distance, alike))
    near = [one for one in alike if distance(one) <= least + SAME]
    return min(near, key=lambda one: (one.trial.cell.concurrency, one.trial.number))


def pairs(cells: Sequence[CellResult]) -> list[tuple[CellResult, CellResult | None]]:
    """Every valid cell of the open model, and its counterpart in the closed loop."""
    valid = [c for c in cells if c.trial.cell.rate is not None and c.verdict != "invalid"]
    return [(cell, counterpart(cell, cells)) for cell in valid]


def side_by_side(cells: Sequence[CellResult]) -> list[CellResult]:
    """The open cells by series, each after its counterpart."""
    rows: dict[str, CellResult] = {}
    for own in by_series(cells).values():
        rows |= {one.trial.key: one for cell, other in pairs(own) for one in (other, cell) if one}
    return list(rows.values())


def comparisons(cells: Sequence[CellResult]) -> Iterable[Finding]:
    """Per open cell of one series: how its responses compare with the closed loop's, and why."""
    for cell, other in pairs(cells):
        keys = tuple(one.trial.key for one in (cell, other) if one)
        yield Finding("compare.open", _asked(cell) | {"outcome": _outcome(cell, other)}, keys)


def _asked(cell: CellResult) -> dict[str, object]:
    rate, unsent = cell.trial.cell.rate, cell.unsent or None
    return {
        "share": rate and rate.share,
        "asked_rps": cell.asked_rps,
        "sent_rps": finite(cell.sent_rps) or 0.0 if unsent else None,
        "unsent": unsent,
    }


def _outcome(cell: CellResult, other: CellResult | None) -> Finding:
    p95_s = finite(cell.response.p95)
    if cell.verdict == "generator-bound" or p95_s is None:
        return Finding("compare.reason", {"reason": cell.reason})
    closed_p95_s = None if other is None else finite(other.response.p95)
    if other is None or closed_p95_s is None:
        return Finding("compare.alone", {"p95_s": p95_s})
    values = {
        "p95_s": p95_s,
        "clients": other.trial.cell.concurrency,
        "closed_rps": other.throughput_rps,
        "closed_p95_s": closed_p95_s,
        "why": _why(cell, other, p95_s, closed_p95_s),
    }
    return Finding("compare.closed", values)


def _why(cell: CellResult, other: CellResult, p95_s: float, closed_p95_s: float) -> Finding:
    """What makes the difference, from both cells' own numbers."""
    clients = other.trial.cell.concurrency
    lag_s, mean_s = finite(cell.lag.mean) or 0.0, finite(cell.response.mean) or 0.0
    if cell.verdict == "saturated":
        return Finding("compare.backlog", {"longest_s": cell.response.max, "clients": clients})
    if lag_s >= LATE * mean_s > 0:
        return Finding("compare.lag", {"tool": cell.trial.cell.tool, "lag_s": lag_s})
    if abs(p95_s - closed_p95_s) <= LIKE * closed_p95_s:
        served_s = finite(cell.service.p95) or 0.0
        if p95_s <= (1 + LIKE) * served_s:
            return Finding("compare.agree")
        return Finding("compare.wait", {"wait_s": p95_s - served_s})
    if p95_s > closed_p95_s:
        ratio = p95_s / closed_p95_s if closed_p95_s else math.inf
        return Finding("compare.longer", {"ratio": ratio})
    return Finding("compare.shorter", {"wait_s": closed_p95_s - p95_s, "clients": clients})
