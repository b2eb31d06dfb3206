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

Late: a quarter of the mean response or more is lag.

Connections count as busy from 45 % of them on average on: where a backlog grows evenly until all
are taken, half of them are taken on average, whenever that moment comes; later, more.

Response times run from the moment a request was due, so that what a full server or a slow load tool
held back is in them; `lag` is the part before it was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.analysis.breakdown import split
from harness.analysis.facts import Facts
from harness.analysis.samples import missing_notes, usage
from harness.analysis.shown import shown
from harness.model import Breakdown, Cell, CellResult, Report, Summary, Verdict
from harness.numbers.words import number, plural, seconds

KEEPS_UP = 0.97  # of the rate comes out: a backlog of 3 % of all arrivals cannot be missed
ALL_SENT = 0.99
BUSY = 0.45
NEAR = 0.95  # of the capacity
LATE = 0.25  # of the mean response
TOLD = 0.05  # of the same, from which on lag is a part that a split would need


def same_server(one: Cell, other: Cell) -> bool:
    """Whether what one shows of the server holds for the other: all but the load's amount."""
    return replace(one, concurrency=1, rate=None) == replace(other, concurrency=1, rate=None)


def capacity_of(report: Report, cell: Cell) -> float | None:
    """Requests/s that the closed cells of the same server found: its capacity, where levels and
    trials allow one, else the best of a believed cell whose load tool was not the limit."""
    for group in report.classes:
        alike = Cell(group.server, group.tool, 1, group.keepalive, group.processes)
        if same_server(alike, cell) and group.capacity_rps:
            return group.capacity_rps
    return best_rps(one for one in report.cells if same_server(one.trial.cell, cell))


def best_rps(cells: Iterable[CellResult]) -> float | None:
    found = [
        cell.throughput_rps
        for cell in cells
        if cell.trial.cell.rate is None
        and cell.verdict not in ("invalid", "generator-bound")
        and cell.throughput_rps
    ]
    return max(found, default=None)


@dataclass(frozen=True)
class Offered:
    """What was offered to a server and what became of it. Rates in requests/s, times in seconds.

    `busy`: connections under way on average, of at most `connections`.
    """

    tool: str
    connections: int
    asked_rps: float
    sent_rps: float | None
    unsent: int
    done_rps: float
    busy: float | None
    response: Summary
    lag: Summary
    capacity_rps: float | None = None
    generator_cores: float | None = None

    @property
    def all_sent(self) -> bool:
        return self.sent_rps is None or self.sent_rps >= ALL_SENT * self.asked_rps

    @property
    def idle(self) -> bool:
        """Connections were free all the time: whatever was not sent, or late, is the tool's."""
        return self.busy is not None and self.busy < BUSY * self.connections

    @property
    def late(self) -> bool:
        lag, mean = self.lag.mean, self.response.mean
        return lag is not None and mean is not None and lag >= LATE * mean > 0

    @property
    def keeps_up(self) -> bool:
        return self.all_sent and self.done_rps >= KEEPS_UP * self.asked_rps


def verdict(seen: Offered) -> tuple[Verdict, str]:
    """The verdict and why, with numbers."""
    asked = f"{number(seen.asked_rps)} requests/s"
    if seen.keeps_up:
        full = seen.capacity_rps is not None and seen.asked_rps >= NEAR * seen.capacity_rps
        word: Verdict = "at capacity" if full else "below capacity"
        return word, f"all {asked} that arrived came out{_typical(seen)}"
    if seen.idle and (seen.late or not seen.all_sent):
        return "generator-bound", _too_slow(seen, asked)
    out = f"{asked} arrived and {number(seen.done_rps)} came out"
    if seen.all_sent:
        grows = number(max(0.0, seen.asked_rps - seen.done_rps))
        return "saturated", f"{out}: the backlog grew by {grows} a second{_longest(seen)}"
    return "saturated", (
        f"{out}: the backlog filled all {seen.connections} connections, and {_unsent(seen)} never"
        f" sent{_longest(seen)}"
    )


def _unsent(seen: Offered) -> str:
    were = "was" if seen.unsent == 1 else "were"
    return f"{plural(seen.unsent, 'request')} that {were} due {were}"


def _too_slow(seen: Offered, asked: str) -> str:
    """What the load tool did not do, and what shows that nobody kept it from that."""
    how = f"sent its requests {seconds(seen.lag.mean or 0.0)} late on average"
    if not seen.all_sent:
        how = f"sent {number(seen.sent_rps or 0.0)} of the {asked} it was asked for"
        how += f" ({_unsent(seen)} never sent)"
    cores = seen.generator_cores
    cpu = "" if cores is None else f"; it used {cores:.2f} cores"
    return (
        f"{seen.tool} {how}, while {number(seen.busy or 0.0)} of {seen.connections} connections"
        f" were busy on average{cpu}: the load tool was the limit, not the server; ask for less"
    )


def _typical(seen: Offered) -> str:
    p50, p95 = seen.response.p50, seen.response.p95
    if p50 is None or p95 is None:
        return ""
    return f"; half within {seconds(p50)}, 95 % within {seconds(p95)} of the moment they were due"


def _longest(seen: Offered) -> str:
    longest = seen.response.max
    return "" if longest is None else f", and requests waited up to {seconds(longest)}"


def offered(facts: Facts, capacity_rps: float | None) -> Offered:
    """From a believed trial of the open model. capacity_rps: of the closed cells, None unknown."""
    said, asked = facts.said, facts.asked_rps
    return Offered(
        tool=facts.tool,
        connections=facts.concurrency,
        asked_rps=asked,
        sent_rps=sent_rps(facts),
        unsent=said.unsent or 0,
        done_rps=facts.steady.rps or 0.0,
        busy=_busy(facts),
        response=said.response,
        lag=said.lag,
        capacity_rps=capacity_rps,
        generator_cores=usage(facts.evidence.observations, facts.record, facts.load_s)
        .generator_cores,
    )  # fmt: skip


def sent_rps(facts: Facts) -> float | None:
    """Of what was due; None where the load tool does not tell."""
    sent, unsent = facts.said.sent, facts.said.unsent
    if sent is None or unsent is None or sent + unsent <= 0:
        return None
    return facts.asked_rps * sent / (sent + unsent)


def _busy(facts: Facts) -> float | None:
    said = facts.said
    if said.response.mean is None or said.duration_s <= 0:
        return None
    under_way_s = max(0.0, said.response.mean - (said.lag.mean or 0.0))
    return under_way_s * said.requests / said.duration_s


def open_result(
    facts: Facts, capacity_rps: float | None, *, reached: bool, notes: Sequence[str] = ()
) -> CellResult:
    """A cell of the open model that is believed. `reached`: the closed cells found where throughput
    stops growing, so that `capacity_rps` is a capacity."""
    said, seen = facts.said, facts.evidence.observations
    about = offered(facts, capacity_rps if reached else None)
    word, reason = verdict(about)
    parts, left_out = _split(facts)
    simple = shown(facts, word, reason)
    return replace(
        simple,
        breakdown=parts,
        generator_bound=word == "generator-bound",
        bound_reasons=(reason,) if word == "generator-bound" else (),
        achieved_concurrency=about.busy,
        asked_rps=facts.asked_rps,
        sent_rps=about.sent_rps,
        unsent=said.unsent,
        lag=said.lag,
        notes=(
            *simple.notes,
            *_of_what(facts, capacity_rps, reached),
            *_lateness(about),
            *left_out,
            *missing_notes(seen),
            *notes,
        ),
    )


def _split(facts: Facts) -> tuple[Breakdown, tuple[str, ...]]:
    """Only where each request was followed: the estimates rest on the closed loop's N = X * R."""
    lag, mean = facts.said.lag.mean or 0.0, facts.said.response.mean or 0.0
    if lag > TOLD * mean:
        note = f"no split: requests were sent {seconds(lag)} late on average, as they found no"
        return Breakdown(), (f"{note} free connection or the load tool was busy",)
    parts, left_out = split(facts)
    return (parts, left_out) if parts.exact else (Breakdown(), ())


def _lateness(seen: Offered) -> Sequence[str]:
    if not (seen.keeps_up and seen.late and seen.idle):
        return ()
    lag, mean = seen.lag.mean or 0.0, seen.response.mean or 0.0
    late = f"{seconds(lag)} of the mean response of {seconds(mean)} is lag: {seen.tool} sent late"
    return (f"{late} while connections were free, so these times say little of the server",)


def _of_what(facts: Facts, capacity_rps: float | None, reached: bool) -> Sequence[str]:
    rate = facts.evidence.trial.cell.rate
    if rate is None or rate.share is None or reached or capacity_rps is None:
        return ()
    most = f"the highest throughput that the closed loop was seen to reach ({number(capacity_rps)}"
    return (f"shares are of {most} requests/s): its capacity may be more, add higher levels",)
