"""Closed loop and open model side by side: a server's response times under both.

    closed   N clients, each of which asks again as soon as it is answered
    open     requests that arrive at a rate, evenly spaced, timed from the moment each was due

Cells of the open model stand in no table of the closed loop: their connections are not kept busy,
and neither knee nor bound speaks of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.model import CellResult
from harness.numbers.units import MISSING, format_duration
from harness.report.columns import Column, leading, three, time_unit
from harness.report.document import SweepResult
from harness.report.messages import text
from harness.report.sentences import amount, label, varying
from harness.report.values import finite

TITLE = "Closed and open: the same server under N clients, and under arrivals at a rate:"
BELOW = (
    "Closed: each client waits for its answer before it asks again, so a slow server slows its own"
    " load. Open: requests arrive evenly spaced, whether others were answered or not, and are timed"
    " from the moment each was due."
)
LAG = "sent later than due, 95 % of the requests by no more"
FINE_S = 0.010  # shorter times are not told in seconds, however long the longest are
LIKE = 0.10  # rates and times that differ by less are the same
LATE = 0.25  # of the mean response
SAME = 0.02  # of rates: they are one level, of which the least loaded cell speaks


def closed(report: SweepResult) -> SweepResult:
    """The report without its cells of the open model."""
    return replace(report, cells=tuple(c for c in report.cells if c.trial.cell.rate is None))


def opened(report: SweepResult) -> list[CellResult]:
    return [cell for cell in report.cells if cell.trial.cell.rate is not None]


def _load(cell: CellResult) -> object:
    """All but how much is asked, and when."""
    asked = cell.trial.cell
    return asked.server, asked.tool, asked.keepalive, asked.processes


def counterpart(cell: CellResult, cells: Iterable[CellResult]) -> CellResult | None:
    """The believed closed cell of the same server whose throughput is nearest; of several that are
    one level, the one with the fewest connections."""
    rate = finite(cell.throughput_rps)
    alike = [
        one
        for one in cells
        if one.trial.cell.rate is None
        and one.verdict != "invalid"
        and _load(one) == _load(cell)
        and finite(one.throughput_rps)
    ]
    if not rate or not alike:
        return None

    def far(one: CellResult) -> float:
        return abs(math.log((one.throughput_rps or rate) / rate))

    least = min(map(far, alike))
    near = [one for one in alike if far(one) <= least + SAME]
    return min(near, key=lambda one: (one.trial.cell.concurrency, one.trial.number))


def pairs(report: SweepResult) -> list[tuple[CellResult, CellResult | None]]:
    """Every believed cell of the open model, and its counterpart in the closed loop."""
    believed = [cell for cell in opened(report) if cell.verdict != "invalid"]
    return [(cell, counterpart(cell, report.cells)) for cell in believed]


def side_by_side(report: SweepResult) -> list[CellResult]:
    """The open cells by group, each after its counterpart."""
    rows: dict[str, CellResult] = {}
    found = pairs(report)
    for load in dict.fromkeys(_load(cell) for cell, _ in found):
        mine = [pair for pair in found if _load(pair[0]) == load]
        rows |= {one.trial.key: one for cell, other in mine for one in (other, cell) if one}
    return list(rows.values())


def how(cell: CellResult) -> str:
    """'closed, 4 conn.', 'open, 80%', 'open, 200/s'."""
    rate = cell.trial.cell.rate
    if rate is None:
        return f"closed, {cell.trial.cell.concurrency} conn."
    return f"open, {rate.label}" + ("" if rate.share is not None else "/s")


def load(cell: CellResult) -> str:
    """'16 connections', '80% of the capacity', '200 requests/s'."""
    asked = cell.trial.cell
    if asked.rate is None:
        return f"{asked.concurrency} connection{'s' * (asked.concurrency != 1)}"
    return f"{asked.rate.label} {'requests/s' if asked.rate.share is None else 'of the capacity'}"


def columns(report: SweepResult) -> list[Column]:
    """Which load, what was asked, sent and answered, and how long that took."""
    unit, factor = time_unit(report)
    if any((finite(cell.response.p50) or FINE_S) < FINE_S for cell in report.cells):
        unit, factor = "ms", 1e3
    which = [
        Column("load", "", how, right=False) if one.heading == "conn." else replace(one, meaning="")
        for one in leading(report)
    ]
    due = "response time, open: since the request was due"
    return [
        *which,
        Column("asked", "req/s", lambda c: three(c.asked_rps), expendable=4),
        Column("sent", "req/s", lambda c: three(c.sent_rps), meaning="of what was due"),
        Column("req/s", "", lambda c: three(c.throughput_rps)),
        Column("p50", unit, lambda c: three(c.response.p50, factor), meaning=due),
        Column("p95", unit, lambda c: three(c.response.p95, factor), meaning=due),
        Column("p99", unit, lambda c: three(c.response.p99, factor), True, 3, due),
        Column("max", unit, lambda c: three(c.response.max, factor), True, 2, due),
        Column("lag", unit, lambda c: three(c.lag.p95, factor), True, 1, LAG),
        Column("verdict", "", lambda c: c.verdict, right=False),
    ]


# --- why they differ ----------------------------------------------------------------------


def loop_lines(report: SweepResult) -> list[str]:
    """A sentence per open cell: how its responses compare, and why."""
    return [_compared(report, cell, other) for cell, other in pairs(report)]


def _compared(report: SweepResult, cell: CellResult, other: CellResult | None) -> str:
    head = f"{named(report, cell)}: {_asked(cell)}"
    p95 = finite(cell.response.p95)
    theirs = None if other is None else finite(other.response.p95)
    if cell.verdict == "generator-bound" or p95 is None:
        return f"{head}: {text(cell.reason)}."
    open_said = f"95 % of the open requests were answered within {format_duration(p95)}"
    if other is None or theirs is None:
        return f"{head}: {open_said}; no closed cell is there to compare with."
    n = other.trial.cell.concurrency
    at = f"of {n} closed client{'s' * (n != 1)} ({amount(other.throughput_rps or 0.0)} req/s)"
    return f"{head}: {open_said}, {at} within {format_duration(theirs)}. {_why(cell, other)}"


def _why(cell: CellResult, other: CellResult) -> str:
    """What makes the difference, from both cells' own numbers."""
    n = other.trial.cell.concurrency
    p95, theirs = cell.response.p95 or 0.0, other.response.p95 or 0.0
    if cell.verdict == "saturated":
        longest = format_duration(cell.response.max)
        return (
            f"Arrivals do not wait for answers: more came than went, the backlog grew as long as"
            f" the load lasted (up to {longest}) and would go on; {n} clients never wait for more"
            f" than each other."
        )
    lag, mean = finite(cell.lag.mean) or 0.0, finite(cell.response.mean) or 0.0
    if lag >= LATE * mean > 0:
        return (
            f"Much of that is lag: {cell.trial.cell.tool} itself was late, by"
            f" {format_duration(lag)} on average, so this says little of the server."
        )
    if abs(p95 - theirs) <= LIKE * theirs:
        served = finite(cell.service.p95) or 0.0
        if p95 <= (1 + LIKE) * served:
            return "They agree: a request finds a free slot in both, so nobody has to wait."
        some = f"some requests wait about {format_duration(p95 - served)}"
        return f"They agree: in both, {some}, for a slot or for the CPU."
    ratio = p95 / theirs if theirs else math.inf
    if p95 > theirs:
        return (
            f"Open they take {ratio:.3g} times as long: a request that is due does not wait for"
            " those before it to be answered, so what comes while the slots are busy queues;"
            " clients would have asked later."
        )
    waits = max(0.0, theirs - p95)
    return (
        f"Closed they take {format_duration(waits)} longer: {n} clients ask again at once and so"
        " always find each other there, while arrivals that are evenly spaced find a free slot."
    )


def _asked(cell: CellResult) -> str:
    rate = cell.trial.cell.rate
    asked = MISSING if cell.asked_rps is None else f"{amount(cell.asked_rps)} req/s"
    sent = finite(cell.sent_rps)
    said = f"at {rate.label} ({asked})" if rate and rate.share is not None else f"at {asked}"
    if cell.unsent:
        said += f", of which {amount(sent or 0.0)} were sent ({cell.unsent} never)"
    return said


def named(report: SweepResult, cell: CellResult) -> str:
    """The cell's group, with what sets it apart."""
    cells: Sequence[CellResult] = report.cells
    asked = cell.trial.cell
    mixed = len({one.trial.cell.keepalive for one in cells}) > 1
    return label(
        asked.server,
        asked.tool,
        varying(one.trial.cell.server for one in cells),
        len({one.trial.cell.tool for one in cells}),
        asked.keepalive and mixed,
        asked.processes,
    )
