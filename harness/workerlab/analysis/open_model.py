"""Cells of the open model: requests arrive at a rate, whether others were answered or not.

The laws of the closed loop say nothing of them: there N clients wait for their answers, so that a
slow server slows its own load down, and R = N/X. Here the rate is given, and the verdict is
`workerlab.analysis.offered`.

Response times run from the moment a request was due, so that what a full server or a slow load tool
held back is in them; `lag` is the part before it was sent.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from workerlab.analysis import pauses
from workerlab.analysis.breakdown import breakdown
from workerlab.analysis.cells import measured
from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.diagnosis import findings_at_rate
from workerlab.analysis.facts import Facts
from workerlab.analysis.failures import shed_share, success_response
from workerlab.analysis.growth import growth
from workerlab.analysis.offered import Offered, of_offered
from workerlab.analysis.samples import missing_notes
from workerlab.analysis.verdict import REFUSED, Reason
from workerlab.finding import Finding
from workerlab.model import Breakdown, Cell, CellResult, Report, Verdict

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


def open_result(facts: Facts, capacity_rps: float | None, *, reached: bool) -> CellResult:
    """A valid cell of the open model. `reached`: the closed cells found where throughput stops
    growing, so that `capacity_rps` is a capacity."""
    said = facts.measurement
    offered = Offered(
        *(facts.tool, facts.connections, facts.asked_rps, facts.rps, said),
        capacity_rps=capacity_rps if reached else None,
        generator_cores=facts.usage.generator_cores,
        growth=growth(facts),
        lasts_s=facts.record.planned_duration_s or facts.load_s,
        core_wait=core_wait(facts),
        typical=success_response(facts),
        pauses_s=pauses.lengths_s(facts),
    )
    word, reason = _refused(facts, offered) or of_offered(offered)
    parts, left_out = _breakdown(facts)
    cell = measured(facts, word, reason)
    cell = replace(
        cell,
        breakdown=parts,
        generator_bound=word == "generator-bound",
        bound_reasons=(cell.reason,) if word == "generator-bound" else (),
        achieved_concurrency=offered.busy,
        asked_rps=facts.asked_rps,
        arrivals=facts.record.arrivals,
        schedule=facts.record.schedule,
        due_rps=offered.due_rps,
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
    return replace(cell, findings=findings_at_rate(facts, cell))


class ArrivalsRefused(Reason):
    """{due_rps:number} requests/s arrived, of which the server refused {share:percent};
    {rps:number} a second succeeded"""

    asked_rps: float
    due_rps: float
    share: float
    rps: float


def _refused(facts: Facts, offered: Offered) -> tuple[Verdict, ArrivalsRefused] | None:
    """A server that refuses a part of what arrives does not keep up, by its own word."""
    if (share := shed_share(facts)) < REFUSED:
        return None
    return "saturated", ArrivalsRefused(
        asked_rps=facts.asked_rps,
        due_rps=offered.due_rps,
        share=share,
        rps=facts.throughput_rps,
    )


def _breakdown(facts: Facts) -> tuple[Breakdown, tuple[Finding, ...]]:
    """Only where each request was followed: the estimates rest on the closed loop's N = X * R."""
    lag_s = facts.measurement.lag.mean or 0.0
    if lag_s > TOLD * (facts.measurement.response.mean or 0.0):
        return Breakdown(), (NoBreakdownAsSentLate(lag_s),)
    parts, left_out = breakdown(facts)
    return (parts, left_out) if parts.exact else (Breakdown(), ())


EVENLY = "evenly spaced"


class NoBreakdownAsSentLate(Finding):
    """no breakdown: requests were sent {lag_s:duration} late on average, as they found no free
    connection or the load tool was busy"""

    lag_s: float


class SharesOfHighest(Finding):
    """shares are of the highest throughput that the closed loop reached ({rps:number} requests/s);
    its capacity may be higher: add higher levels"""

    rps: float


class SentLate(Finding):
    """{lag_s:duration} of the mean response of {response_s:duration} is lag: {tool} sent late while
    connections were free, so these times say little about the server"""

    tool: str
    lag_s: float | None
    response_s: float | None


class RequestsDue(Finding):
    """{due:# request was/requests were} due, {how}[[; 95 % were sent no later than
    {lag_p95_s:duration} after they were due, all within {lag_max_s:duration}]]"""

    due: int
    how: str
    lag_p95_s: float | None
    lag_max_s: float | None


def _notes(facts: Facts, offered: Offered, highest_rps: float | None) -> Iterable[Finding]:
    """`highest_rps`: what its rate is a share of, where that is no capacity."""
    rate, said = facts.cell.rate, offered.said
    if rate and rate.share is not None and highest_rps is not None:
        yield SharesOfHighest(highest_rps)
    if offered.due is not None:
        yield _schedule(facts, offered.due)
    if offered.keeps_up and offered.late and offered.idle:
        yield SentLate(offered.tool, lag_s=said.lag.mean, response_s=said.response.mean)


def _schedule(facts: Facts, due: int) -> Finding:
    """What was due, and how late it was sent."""
    record, lag = facts.record, facts.measurement.lag
    poisson = record.arrivals == "poisson"
    seed = f"(Poisson, seed {record.schedule})"
    return RequestsDue(
        due=due,
        how=f"at random moments that were fixed before the load {seed}" if poisson else EVENLY,
        lag_p95_s=lag.p95,
        lag_max_s=lag.max,
    )
