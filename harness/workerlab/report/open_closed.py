"""Closed loop and open model side by side: a server's response times under both.

closed   N clients, each of which asks again as soon as it is answered
open     requests that arrive at a rate, timed from the moment each was due

Two loads are compared over their trials, or not at all: identical trials differ by half and more
where the kernel deals connections by chance. They differ where Welch's interval of the ratio lies
beyond 10 %; why is said only where the time spent before the app shows it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean, geometric_mean

from workerlab.model import Cell, CellResult, Finding
from workerlab.numbers.intervals import TRIALS, Ratio, ratio
from workerlab.report.naming import by_series
from workerlab.report.values import finite

LIKE = 1.10  # times: response times that differ by less are the same
LATE = 0.25  # of the mean response
SAME = 0.02  # of rates: they are one level, of which the least loaded cell speaks
HALF = 0.5  # of a difference: what makes up so much of it explains it
UNTOLD = ("invalid", "inconclusive")
SHEDS = "open.sheds"  # a server that refuses has no backlog, and answers few of its requests

Trials = Sequence[CellResult]  # of one cell, at least one


def by_cell(cells: Iterable[CellResult]) -> Mapping[Cell, Trials]:
    """The trials that tell something, by what they are trials of."""
    found: dict[Cell, list[CellResult]] = {}
    for cell in cells:
        if cell.verdict not in UNTOLD:
            found.setdefault(cell.trial.cell, []).append(cell)
    return found


def known(trials: Trials, name: str) -> list[float]:
    """A field of theirs ("response.p95"), where it is above 0."""
    values = map(attrgetter(name), trials)
    return [value for one in values if (value := finite(one)) and value > 0]


def counterpart(trials: Trials, cells: Iterable[CellResult]) -> Trials:
    """The trials of the closed level of the same series whose throughput is nearest; of several
    that are one level, of the one with the fewest connections. () where there is none."""
    series, rates = trials[0].trial.cell.series, known(trials, "throughput_rps")
    levels = {
        asked: math.log(geometric_mean(closed))
        for asked, mine in by_cell(cells).items()
        if asked.rate is None and asked.series == series
        if (closed := known(mine, "throughput_rps"))
    }
    if not rates or not levels:
        return ()
    here = math.log(geometric_mean(rates))
    least = min(abs(one - here) for one in levels.values())
    near = [asked for asked, one in levels.items() if abs(one - here) <= least + SAME]
    return by_cell(cells)[min(near, key=lambda asked: asked.concurrency)]


def pairs(cells: Sequence[CellResult]) -> list[tuple[Trials, Trials]]:
    """The trials of each cell of the open model, and their counterpart in the closed loop."""
    opened = [mine for asked, mine in by_cell(cells).items() if asked.rate is not None]
    return [(mine, counterpart(mine, cells)) for mine in opened]


def side_by_side(cells: Sequence[CellResult]) -> list[CellResult]:
    """The open cells by series, each after its counterpart; those that are inconclusive last."""
    rows: dict[str, CellResult] = {}
    for own in by_series(cells).values():
        untold = [one for one in own if one.trial.cell.rate and one.verdict == "inconclusive"]
        told = [one for mine, other in pairs(own) for one in (*other, *mine)]
        rows |= {one.trial.key: one for one in (*told, *untold)}
    return list(rows.values())


def arrivals(cells: Iterable[CellResult]) -> Finding | None:
    """How they came; None where cells differ."""
    kinds = {cell.arrivals for cell in cells if cell.arrivals is not None}
    return Finding(f"arrivals.{kinds.pop()}") if len(kinds) == 1 else None


def one_trial(cells: Iterable[CellResult]) -> Finding | None:
    """What to do where nothing can be compared."""
    repeated = any(cell.trial.number > 1 for cell in cells)
    return None if repeated else Finding("open_closed.one_trial", {"trials": TRIALS})


# --- in words -------------------------------------------------------------------------------


def comparisons(cells: Sequence[CellResult]) -> Iterable[Finding]:
    """Per rate of one series: how its responses compare with the closed loop's, and why."""
    for mine, other in pairs(cells):
        keys = tuple(one.trial.key for one in (*mine, *other))
        yield Finding("open_closed.open", _asked(mine) | {"outcome": _outcome(mine, other)}, keys)


def _asked(mine: Trials) -> dict[str, object]:
    rate, unsent = mine[0].trial.cell.rate, sum(one.unsent or 0 for one in mine) or None
    sent = [rps for one in mine if (rps := finite(one.sent_rps)) is not None]
    return {
        "share": rate and rate.share,
        "asked_rps": mine[0].asked_rps,
        "sent_rps": fmean(sent) if sent and unsent else None,
        "unsent": unsent,
    }


def _outcome(mine: Trials, other: Trials) -> Finding:
    mine = [one for one in mine if one.verdict != "generator-bound"] or mine
    p95, closed_p95 = known(mine, "response.p95"), known(other, "response.p95")
    if mine[0].verdict == "generator-bound" or mine[0].reason.code == SHEDS or not p95:
        return Finding("open_closed.reason", {"reason": mine[0].reason})
    times = {"p95_s": geometric_mean(p95), "trials": len(mine) if len(mine) > 1 else None}
    if not closed_p95:
        return Finding("open_closed.alone", times)
    values = {
        **times,
        "clients": other[0].trial.cell.concurrency,
        "closed_rps": geometric_mean(known(other, "throughput_rps")),
        "closed_p95_s": geometric_mean(closed_p95),
        "why": _why(mine, other, ratio(p95, closed_p95)),
    }
    return Finding("open_closed.closed", values)


def _why(mine: Trials, other: Trials, times: Ratio) -> Finding:
    """Whether they differ, and what makes the difference, from the cells' own numbers."""
    clients = other[0].trial.cell.concurrency
    lag_s, mean_s = (_mean(mine, of) or 0.0 for of in ("lag", "response"))
    if all(one.verdict == "saturated" for one in mine):
        longest_s = max((finite(one.response.max) or 0.0 for one in mine), default=0.0)
        return Finding("open_closed.backlog", {"longest_s": longest_s or None, "clients": clients})
    if lag_s >= LATE * mean_s > 0:
        return Finding("open_closed.lag", {"tool": mine[0].trial.cell.tool, "lag_s": lag_s})
    if times.low is None or times.high is None:
        if one_trial((*mine, *other)):
            return Finding("open_closed.one_trial", {"trials": TRIALS})
        return Finding("open_closed.few", {"mine": len(mine), "others": len(other)})
    values = {"ratio": times.value, "low": times.low, "high": times.high}
    if not times.beyond(LIKE):
        alike = times.low > 1 / LIKE and times.high < LIKE
        return Finding(f"open_closed.{'agree' if alike else 'chance'}", values)
    waits = _waits(mine, other) if times.value > 1 else _waits(other, mine)
    longer = "longer" if times.value > 1 else "shorter"
    return Finding(f"open_closed.{longer}", {**values, **waits})


def _waits(longer: Trials, shorter: Trials) -> Mapping[str, float | None]:
    """How long requests wait before the app in both, where that makes up the difference."""
    waits, responses = (
        [_mean(of, what) for of in (longer, shorter)] for what in ("before_app", "response")
    )
    if None not in (*waits, *responses):
        (wait_s, least_s), (response_s, short_s) = waits, responses
        if wait_s - least_s >= HALF * (response_s - short_s) > 0:  # type: ignore[operator]
            return {"wait_s": wait_s, "other_wait_s": least_s}
    return {"wait_s": None, "other_wait_s": None}


def _mean(trials: Trials, what: str) -> float | None:
    """Seconds, over the trials that know it."""
    of = {
        "lag": lambda one: one.lag.mean,
        "response": lambda one: one.response.mean,
        "before_app": _before_app,
    }[what]
    values = [value for one in trials if (value := finite(of(one))) is not None]
    return fmean(values) if values else None


def _before_app(cell: CellResult) -> float | None:
    parts = (cell.breakdown.accept_queue_s, cell.breakdown.in_worker_s)
    known_s = [part for part in parts if part is not None]
    return sum(known_s) if len(known_s) == len(parts) else None
