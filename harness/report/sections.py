"""The tables of a report that a person reads: the cells, where the time goes, the kept-alive split,
closed loop and open model side by side.

The first one has no column for waiting, although the JSON has the figure: it is a mean over all
requests, the ramp-up included (0.88 s where each request waits 1.00 s once the load is steady), and
would contradict the second, whose parts are means of the steady part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.model import CellResult
from harness.numbers.units import MISSING
from harness.report import loops
from harness.report.columns import Column, columns, leading, three, time_unit
from harness.report.document import SweepResult
from harness.report.loops import closed, side_by_side
from harness.report.messages import text
from harness.report.values import PARTS

EXACT = "Exact: every request was followed from the client into the app."
MEANINGS = {
    "connect": "until the client was connected",
    "accept_queue": "until a worker accepted the connection",
    "in_worker": "accepted, not yet in the app",
    "service": "in the app",
    "transfer": "until the client had the last byte",
    "unattributed": "what the parts leave unexplained, never spread over them",
}


@dataclass(frozen=True)
class Section:
    """One table: its cells in rows, and what is said below beside its legend."""

    title: str
    columns: Sequence[Column]
    cells: Sequence[CellResult]
    below: str = ""


def sections(report: SweepResult) -> list[Section]:
    """Those that have something to show, the cells first."""
    whole, report = report, closed(report)
    if not whole.cells:
        return []
    found = [Section("", columns(report), report.cells)] if report.cells else []
    split = [cell for cell in report.cells if cell.breakdown.response_s is not None]
    if split:
        title = "Where the time goes, mean of the steady part:"
        found.append(Section(title, _parts(report, split), split, _how(split)))
    kept = [
        cell for cell in report.cells if cell.trial.cell.keepalive and cell.verdict != "invalid"
    ]
    if kept:
        title = "Kept-alive connections stay with the worker that accepted them:"
        found.append(Section(title, _kept(report), kept))
    if rows := side_by_side(whole):
        found.append(Section(loops.TITLE, loops.columns(whole), rows, loops.BELOW))
    return found


def _parts(report: SweepResult, cells: Sequence[CellResult]) -> list[Column]:
    unit, factor = time_unit(report)
    found = _which(report)
    found.append(
        Column("response", unit, lambda c: three(c.breakdown.response_s, factor), expendable=2)
    )
    found += [_part(name, unit, factor) for name in PARTS]
    if len({cell.breakdown.exact for cell in cells}) > 1:
        found.append(Column("how", "", _exactness, right=False))
    return found


def _exactness(cell: CellResult) -> str:
    return "exact" if cell.breakdown.exact else "estimate"


def _part(name: str, unit: str, factor: float) -> Column:
    heading = {"unattributed": "rest"}.get(name, name.replace("_", " "))
    expendable = {"transfer": 1}.get(name, 0)

    def value(cell: CellResult) -> str:
        seconds: float | None = getattr(cell.breakdown, f"{name}_s")
        return three(seconds, factor)

    return Column(heading, unit, value, expendable=expendable, meaning=MEANINGS[name])


def _how(cells: Sequence[CellResult]) -> str:
    """Exact, or estimated and from which witnesses."""
    estimates = [cell for cell in cells if not cell.breakdown.exact]
    if not estimates:
        return EXACT
    witnesses: dict[str, list[str]] = {}
    for cell in estimates:
        for part, source in cell.breakdown.sources.items():
            witness = text(source)
            found = witnesses.setdefault(part, [])
            if witness not in found:
                found.append(witness)
    each = [f"{part.replace('_', ' ')} ({' or '.join(by)})" for part, by in witnesses.items()]
    parts = ", ".join(each)
    exact = f"{EXACT} " if len(estimates) < len(cells) else ""
    return f"{exact}Estimate, each part by its own witness: {parts}."


def _which(report: SweepResult) -> list[Column]:
    """As in the first table, which says what they mean."""
    return [replace(column, meaning="") for column in leading(report)]


def _kept(report: SweepResult) -> list[Column]:
    bound = "what connections or slots allow at best"
    allows = "what the connections per worker allow: each works on no more than it has slots"
    return [
        *_which(report),
        Column("connections per worker", "", _dealt),
        Column("bound", "req/s", lambda c: three(c.bound_rps), meaning=bound),
        Column("split", "req/s", lambda c: three(c.split_prediction_rps), meaning=allows),
        Column("measured", "req/s", lambda c: three(c.throughput_rps)),
    ]


def _dealt(cell: CellResult) -> str:
    counts = (cell.connections_per_worker or {}).values()
    return ", ".join(str(count) for count in sorted(counts, reverse=True)) or MISSING
