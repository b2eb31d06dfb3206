"""Cells of the open model: requests arrive at a rate, whether others were answered or not.

The laws of the closed loop say nothing of them: there N clients wait for their answers, so that a
slow server slows its own load down, and R = N/X. Here the rate is given. What is asked of a cell:

    came out   completions in the steady window, from the spans, against the rate asked for
    sent       what the load tool sent of what was due; less than 99 % is always said
    busy       connections under way on average, (R - lag) * sent/s by Little's law (Little 1961)

    all sent, came out >= 97 % of the rate         the server keeps up
    all sent, less came out                        saturated: the backlog grows with every second
    not all sent, connections busy                 saturated: the backlog reached the load tool
    not all sent, or late, and connections idle    generator-bound: the load tool is too slow

Late: a quarter of the mean response or more is lag. Connections count as busy from 45 % of them on
average on: where a backlog grows evenly until all are taken, half of them are taken on average,
whenever that moment comes; later, more.

Response times run from the moment a request was due, so that what a full server or a slow load tool
held back is in them; `lag` is the part before it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from harness.analysis.breakdown import breakdown
from harness.analysis.cells import measured
from harness.analysis.facts import Facts
from harness.analysis.samples import missing_notes
from harness.model import Breakdown, Cell, CellResult, Finding, Measurement, Report, Verdict

KEEPS_UP = 0.97  # of the rate comes out: a backlog of 3 % of all arrivals cannot be missed
ALL_SENT = 0.99
CONNECTIONS_BUSY = 0.45
NEAR = 0.95  # of the capacity
LATE = 0.25  # of the mean response
TOLD = 0.05  # of the same, from which on lag is a part that a breakdown would need


def capacity_of(report: Report, cell: Cell) -> float | None:
    """Requests/s that the closed cells of the same series found: its capacity, where levels and
    trials allow one, else the best of a valid cell whose load tool was not the limit."""
    for group in report.classes:
        if group.series == cell.series and group.capacity_rps:
            return group.capacity_rps
    return best_rps(one for one in report.cells if one.trial.cell.series == cell.series)


def best_rps(cells: Iterable[CellResult]) -> float | None:
    found = [
        cell.throughput_rps
        for cell in cells
        if cell.trial.cell.rate is None
        and cell.verdict not in ("invalid", "generator-bound")
        and cell.throughput_rps
    ]
    return max(found, default=None)


class Offered(Struct, frozen=True):
    """What was offered to a server by a load tool of at most so many `connections`, and what became
    of it: requests/s that were asked for and that were done, and what the tool says of them."""

    tool: str
    connections: int
    asked_rps: float
    done_rps: float
    said: Measurement
    capacity_rps: float | None = None
    generator_cores: float | None = None

    @property
    def sent_rps(self) -> float | None:
        """Of what was due; None where the load tool does not tell."""
        sent, unsent = self.said.sent, self.said.unsent
        if sent is None or unsent is None or sent + unsent <= 0:
            return None
        return self.asked_rps * sent / (sent + unsent)

    @property
    def busy(self) -> float | None:
        """Connections under way on average."""
        said = self.said
        if said.response.mean is None or said.duration_s <= 0:
            return None
        under_way_s = max(0.0, said.response.mean - (said.lag.mean or 0.0))
        return under_way_s * said.requests / said.duration_s

    @property
    def all_sent(self) -> bool:
        return self.sent_rps is None or self.sent_rps >= ALL_SENT * self.asked_rps

    @property
    def idle(self) -> bool:
        """Connections were free all the time: whatever was not sent, or late, is the tool's."""
        return self.busy is not None and self.busy < CONNECTIONS_BUSY * self.connections

    @property
    def late(self) -> bool:
        lag, mean = self.said.lag.mean, self.said.response.mean
        return lag is not None and mean is not None and lag >= LATE * mean > 0

    @property
    def keeps_up(self) -> bool:
        return self.all_sent and self.done_rps >= KEEPS_UP * self.asked_rps


def verdict(offered: Offered) -> tuple[Verdict, Finding]:
    asked = {"asked_rps": offered.asked_rps}
    if offered.keeps_up:
        capacity_rps, times = offered.capacity_rps, offered.said.response
        full = capacity_rps is not None and offered.asked_rps >= NEAR * capacity_rps
        known = times.p50 is not None and times.p95 is not None
        typical = {"p50_s": times.p50, "p95_s": times.p95} if known else {}
        word: Verdict = "at capacity" if full else "below capacity"
        return word, Finding("open.keeps_up", {**asked, "p50_s": None, "p95_s": None, **typical})
    if offered.idle and (offered.late or not offered.all_sent):
        return "generator-bound", _too_slow(offered)
    backlog = {**asked, "done_rps": offered.done_rps, "longest_s": offered.said.response.max}
    if offered.all_sent:
        grows_rps = max(0.0, offered.asked_rps - offered.done_rps)
        return "saturated", Finding("open.backlog_grows", {**backlog, "grows_rps": grows_rps})
    full_up = {"connections": offered.connections, "unsent": offered.said.unsent or 0}
    return "saturated", Finding("open.backlog_fills_connections", {**backlog, **full_up})


def _too_slow(offered: Offered) -> Finding:
    """What the load tool did not do, and what shows that nobody kept it from that."""
    shows = {
        "tool": offered.tool,
        "busy": offered.busy or 0.0,
        "connections": offered.connections,
        "cores": offered.generator_cores,
    }
    if offered.all_sent:
        return Finding("open.tool_sends_late", {**shows, "lag_s": offered.said.lag.mean or 0.0})
    sent = {"sent_rps": offered.sent_rps or 0.0, "asked_rps": offered.asked_rps}
    return Finding("open.tool_sends_less", {**shows, **sent, "unsent": offered.said.unsent or 0})


def open_result(facts: Facts, capacity_rps: float | None, *, reached: bool) -> CellResult:
    """A valid cell of the open model. `reached`: the closed cells found where throughput stops
    growing, so that `capacity_rps` is a capacity."""
    said = facts.measurement
    offered = Offered(
        *(facts.tool, facts.connections, facts.asked_rps, facts.rps, said),
        capacity_rps=capacity_rps if reached else None,
        generator_cores=facts.usage.generator_cores,
    )
    word, reason = verdict(offered)
    parts, left_out = _breakdown(facts)
    cell = measured(facts, word, reason)
    return replace(
        cell,
        breakdown=parts,
        generator_bound=word == "generator-bound",
        bound_reasons=(cell.reason,) if word == "generator-bound" else (),
        achieved_concurrency=offered.busy,
        asked_rps=facts.asked_rps,
        sent_rps=offered.sent_rps,
        unsent=said.unsent,
        lag=said.lag,
        notes=(
            *cell.notes,
            *_notes(facts, offered, None if reached else capacity_rps),
            *left_out,
            *missing_notes(facts.seen),
        ),
    )


def _breakdown(facts: Facts) -> tuple[Breakdown, tuple[Finding, ...]]:
    """Only where each request was followed: the estimates rest on the closed loop's N = X * R."""
    lag_s = facts.measurement.lag.mean or 0.0
    if lag_s > TOLD * (facts.measurement.response.mean or 0.0):
        return Breakdown(), (Finding("breakdown.sent_late", {"lag_s": lag_s}),)
    parts, left_out = breakdown(facts)
    return (parts, left_out) if parts.exact else (Breakdown(), ())


def _notes(facts: Facts, offered: Offered, highest_rps: float | None) -> Iterable[Finding]:
    """`highest_rps`: what its rate is a share of, where that is no capacity."""
    rate, said = facts.cell.rate, offered.said
    if rate and rate.share is not None and highest_rps is not None:
        yield Finding("note.share_of_highest", {"rps": highest_rps})
    if offered.keeps_up and offered.late and offered.idle:
        times = {"lag_s": said.lag.mean, "response_s": said.response.mean}
        yield Finding("note.sent_late", {"tool": offered.tool, **times})
