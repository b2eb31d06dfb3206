"""Cells of the open model: requests arrive at a rate, whether or not earlier ones were answered.

The laws of the closed loop do not apply: there, N clients wait for their responses, so a slow
server slows down its own load, and R = N/X. Here the rate is given. Response times run from the
moment a request was due, so they include the delay caused by a full server or a slow load tool;
`lag` is the part before it was sent.

The verdict of a valid cell, and its reason, in this order:

    saturated        the server refused REFUSED_SHARE of the requests or more
    below capacity,  all requests were sent, the backlog does not grow (`growth`) and the requests
    at capacity      due were answered: the server keeps up. At capacity if the rate is at least
                     95 % of the capacity that the closed cells show
    inconclusive     the server may not keep up because of a wait for cores (`core_wait`) or a pause
                     of the machine (`stall`)
    generator-bound  requests were sent late or not at all while connections were idle: the load
                     tool is slow
    saturated        requests were not sent because connections were busy: the backlog reached the
                     load tool; or the backlog grows, over at least MIN_GROWTH_LOAD_S
    inconclusive     growth over a shorter time or within the scatter of service times, or fewer
                     responses than requests, without a full resource that would explain it

A server that keeps up despite a disturbance would also keep up without it; a server that would be
full even without it does not keep up in either case. A pause is the reason if the late or missing
requests were due, or could have been served, during it.

    due        requests that the schedule has in the load; with Poisson arrivals their rate is not
               the requested one. Their rate decides whether throughput suffices; the requested one
               decides whether a backlog would go on growing
    sent       if less than 99 % of the requests due are, the server does not keep up
    busy       mean connections in use, (R - lag) * requests/s by Little's law (Little 1961)
    late       a quarter of the mean response or more is lag

Connections count as busy if on average 45 % of them are in use: if a backlog grows evenly until all
are in use, half of them are in use on average before that, and all of them afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from statistics import fmean
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis import stall
from workerlab.analysis.breakdown import breakdown
from workerlab.analysis.cells import measured_result
from workerlab.analysis.diagnosis import findings_at_rate
from workerlab.analysis.diagnosis.cpu import Disturbance, disturbance
from workerlab.analysis.diagnosis.failing import shed_share, success_response
from workerlab.analysis.facts import Facts
from workerlab.analysis.growth import MIN_EXCESS_SHARE, growth
from workerlab.analysis.samples import missing_notes
from workerlab.analysis.stall import MachinePause
from workerlab.analysis.trials import valid_results
from workerlab.analysis.verdict import REFUSED_SHARE, Judgement, Reason
from workerlab.finding import Finding, Findings
from workerlab.model.evidence import Measurement
from workerlab.model.plan import Cell
from workerlab.model.result import Breakdown, RateResult, Report, Result, TrialResult
from workerlab.numbers.units import fill

MIN_GROWTH_LOAD_S = 10.0  # growth over a shorter load may be chance
MIN_ANSWERED_SHARE = 0.97  # of the requests due
TRANSIENT_QUEUE_ROOTS = 2.0  # requests in a transient queue / sqrt(requests due), at most
ALL_SENT_SHARE = 0.99
BUSY_CONNECTIONS_SHARE = 0.45  # with this share in use on average, connections count as busy
NEAR_CAPACITY_SHARE = 0.95  # of the capacity
LATE_SHARE = 0.25  # lag / mean response
SLOWED_RATIO = 2.0  # mean response / lone response


class OfferedLoad(Struct, frozen=True):
    """The load that a tool offered to a server at a rate. `capacity_rps`: the server's; None:
    unknown."""

    facts: Facts
    capacity_rps: float | None = None

    @property
    def measurement(self) -> Measurement:
        return self.facts.measurement

    @property
    def duration_s(self) -> float:
        """The time over which requests arrive."""
        return self.facts.record.planned_duration_s or self.facts.load_s

    @property
    def due(self) -> int | None:
        """Requests in the schedule; None if the load tool does not report them."""
        sent, unsent = self.measurement.sent, self.measurement.unsent
        return None if sent is None or unsent is None or sent + unsent <= 0 else sent + unsent

    @property
    def due_rps(self) -> float:
        """The rate of the schedule, which may differ from the requested rate by chance; the
        requested rate if unknown."""
        has_schedule = self.due is not None and self.duration_s > 0
        return (self.due or 0) / self.duration_s if has_schedule else self.facts.asked_rps

    @property
    def sent_rps(self) -> float | None:
        """Requests sent per second; None if the load tool does not report them."""
        return None if self.due is None else self.due_rps * (self.measurement.sent or 0) / self.due

    @property
    def mean_in_use(self) -> float | None:
        """Mean number of connections in use; None if unknown."""
        measurement = self.measurement
        if measurement.response.mean is None or measurement.duration_s <= 0:
            return None
        in_use_s = max(0.0, measurement.response.mean - (measurement.lag.mean or 0.0))
        return in_use_s * measurement.requests / measurement.duration_s

    @property
    def all_sent(self) -> bool:
        return self.due is None or (self.measurement.sent or 0) >= ALL_SENT_SHARE * self.due

    @property
    def connections_free(self) -> bool:
        """Whether so many were free that the load tool caused any late or unsent requests."""
        busy = self.mean_in_use
        return busy is not None and busy < BUSY_CONNECTIONS_SHARE * self.facts.connections

    @property
    def sent_late(self) -> bool:
        lag, mean = self.measurement.lag.mean, self.measurement.response.mean
        return lag is not None and mean is not None and lag >= LATE_SHARE * mean > 0

    @property
    def slowdown(self) -> dict[str, Any]:
        """The mean response time and that of lone requests; both None unless the mean is much
        longer."""
        mean_s, alone_s = self.measurement.response.mean, self.facts.record.alone_s
        if mean_s and any(alone_s) and mean_s >= SLOWED_RATIO * fmean(alone_s):
            return {"response_s": mean_s, "lone_s": fmean(alone_s)}
        return {"response_s": None, "lone_s": None}

    @property
    def disturbance(self) -> Disturbance | None:
        """The disturbance by other programs or machines if the server might keep up without it: a
        full server would then reach up to `Growth.done_rps` / (1 - share)."""
        noise = disturbance(self.facts)
        return noise if noise and self._could_keep_up(noise.share) else None

    @property
    def pause_may_explain(self) -> bool:
        """Whether a pause of the machine may explain that the server does not keep up: late or
        unsent requests may have been due during it, or a full server might keep up without it."""
        pauses_s = stall.pause_lengths_s(self.facts)
        paused_share = stall.max_paused_share(pauses_s, self.duration_s)
        if not paused_share:
            return False
        if not self.all_sent:
            return (self.measurement.unsent or 0) / (self.due or 1) <= paused_share
        if self.connections_free and self.sent_late:
            lag_s, mean_s = self.measurement.lag.mean or 0.0, self.measurement.response.mean or 0.0
            paused_s = min(lag_s, stall.max_mean_delay_s(pauses_s, self.duration_s))
            return lag_s - paused_s < LATE_SHARE * (mean_s - paused_s)
        return self._could_keep_up(paused_share)

    def _could_keep_up(self, lost_share: float) -> bool:
        """Whether the server might keep up without this loss; always true if nothing is full."""
        backlog = growth(self.facts)
        if not backlog.full:
            return True
        least_rps = (1 - MIN_EXCESS_SHARE) * self.facts.asked_rps
        return backlog.done_rps > least_rps * (1 - lost_share)

    @property
    def all_answered(self) -> bool:
        """Whether the requests due were answered, except those still in flight by chance."""
        arrivals = self.due_rps * self.duration_s
        in_flight_share = TRANSIENT_QUEUE_ROOTS / sqrt(arrivals) if arrivals > 0 else 0.0
        return self.facts.rps >= min(MIN_ANSWERED_SHARE, 1 - in_flight_share) * self.due_rps

    @property
    def keeps_up(self) -> bool:
        return self.all_sent and growth(self.facts).grows is False and self.all_answered


class LateForPause(Reason):
    """requests that were late or not answered may have been due while {pause}; measure again"""

    pause: MachinePause


class DoesNotKeepUp(Reason):
    """{due_rps:number} requests/s arrived and {done_rps:number} were answered"""

    asked_rps: float
    due_rps: float
    done_rps: float
    longest_s: float | None


class BacklogGrew(DoesNotKeepUp):
    """{due_rps:number} requests/s arrived and {done_rps:number} were answered[[ {full}]]: the
    backlog grew by {grows_rps:number} a second
    [[, and requests waited up to {longest_s:duration}]]"""

    grows_rps: float
    full: str  # what is full; "": unknown


class BacklogFilledConnections(DoesNotKeepUp):
    """{due_rps:number} requests/s arrived and {done_rps:number} were answered: the backlog filled
    all {connections} connections, and {unsent:# request} never left the load tool
    [[; requests waited up to {longest_s:duration}]]"""

    connections: int
    unsent: int


class FewerAnswered(DoesNotKeepUp):
    """{due_rps:number} requests/s arrived and {done_rps:number} were answered{but}
    [[ {least_s:duration} or more (--duration)]]"""

    but: str  # why that is inconclusive
    least_s: float | None = None


WITHIN_SCATTER = (
    ", with the server full; the deficit is within the scatter of the service times: use a longer"
    " load (--duration)"
)
NOTHING_FULL = (
    "[[; a response took {response_s:duration} on average, a lone one {lone_s:duration}]], but"
    " the requests in flight did not rise steadily, and neither the slots nor the workers' CPU were"
    " full: use a longer load (--duration)"
)
WHAT_IS_FULL = {
    "": "",
    "slots": "with all slots taken",
    "workers": "with the workers computing all the time",
}


def verdict_of_offered(offered: OfferedLoad) -> Judgement:
    """The verdict and its reason, by the rules above, except for refusals."""
    facts = offered.facts
    if offered.keeps_up:
        return _verdict_if_keeping_up(offered)
    if (noise := offered.disturbance) is not None:
        return "inconclusive", noise
    if offered.pause_may_explain:
        pause = stall.machine_pause(stall.pause_lengths_s(facts), offered.duration_s)
        return "inconclusive", LateForPause(pause)
    if offered.connections_free and (offered.sent_late or not offered.all_sent):
        return "generator-bound", _tool_too_slow(offered)
    rates: dict[str, Any] = {
        "asked_rps": facts.asked_rps,
        "due_rps": offered.due_rps,
        "done_rps": facts.rps,
        "longest_s": offered.measurement.response.max,
    }
    if not offered.all_sent:
        return "saturated", BacklogFilledConnections(
            connections=facts.connections, unsent=offered.measurement.unsent or 0, **rates
        )
    backlog = growth(facts)
    if not backlog.grows:
        but = WITHIN_SCATTER if backlog.full else NOTHING_FULL
        return "inconclusive", FewerAnswered(but=fill(but, offered.slowdown), **rates)
    rates["done_rps"] = backlog.done_rps
    if offered.duration_s < MIN_GROWTH_LOAD_S:
        but = fill(
            ", but over {load_s:duration} such a backlog may be chance: use a load of",
            {"load_s": offered.duration_s},
        )
        return "inconclusive", FewerAnswered(but=but, least_s=MIN_GROWTH_LOAD_S, **rates)
    grows_rps = max(0.0, facts.asked_rps - backlog.done_rps)
    if not backlog.full:
        grows_rps = backlog.slope * facts.asked_rps
    return "saturated", BacklogGrew(grows_rps=grows_rps, full=WHAT_IS_FULL[backlog.full], **rates)


class KeepsUp(Reason):
    """{due_rps:number} requests/s arrived, and the server kept up[[; half were answered within
    {p50_s:duration}, 95 % within {p95_s:duration} of the moment they were due]][[; a response took
    {response_s:duration} on average, a lone one {lone_s:duration}]]"""

    asked_rps: float
    due_rps: float
    p50_s: float | None
    p95_s: float | None
    response_s: float | None  # None: hardly longer than a lone response
    lone_s: float | None


def _verdict_if_keeping_up(offered: OfferedLoad) -> Judgement:
    capacity_rps, asked_rps = offered.capacity_rps, offered.facts.asked_rps
    near = capacity_rps is not None and asked_rps >= NEAR_CAPACITY_SHARE * capacity_rps
    times = success_response(offered.facts)
    return "at capacity" if near else "below capacity", KeepsUp(
        asked_rps=asked_rps,
        due_rps=offered.due_rps,
        p50_s=times.p50,
        p95_s=times.p95,
        **offered.slowdown,
    )


class ToolTooSlow(Reason):
    """{tool} [[sent {sent_rps:number} of the {due_rps:number} requests/s that were due ({unsent:#
    request} not sent)]][[sent its requests {lag_s:duration} late on average]], while {busy:number}
    of {connections} connections were busy on average[[; it used {cores:.2f} cores]]: the load tool
    was the limit, not the server; lower the rate"""

    tool: str
    busy: float
    connections: int
    cores: float | None
    lag_s: float | None = None  # if all were sent
    sent_rps: float | None = None  # if not all were
    asked_rps: float | None = None
    due_rps: float | None = None
    unsent: int | None = None


def _tool_too_slow(offered: OfferedLoad) -> ToolTooSlow:
    """The requests that the load tool failed to send in time, and why the server was not the
    cause."""
    evidence: dict[str, Any] = {
        "tool": offered.facts.tool,
        "busy": offered.mean_in_use or 0.0,
        "connections": offered.facts.connections,
        "cores": offered.facts.usage.generator_cores,
    }
    if offered.all_sent:
        return ToolTooSlow(lag_s=offered.measurement.lag.mean or 0.0, **evidence)
    return ToolTooSlow(
        sent_rps=offered.sent_rps or 0.0,
        asked_rps=offered.facts.asked_rps,
        due_rps=offered.due_rps,
        unsent=offered.measurement.unsent or 0,
        **evidence,
    )


MAX_LAG_SHARE = 0.05  # of the mean response; above it, a breakdown would need a part for lag


def capacity_of(report: Report, cell: Cell) -> float | None:
    """Requests/s that the closed cells of the same series reached: the capacity if it is known,
    else `best_rps`; None if both are unknown."""
    for group in report.classes:
        if group.series == cell.series and group.capacity_rps:
            return group.capacity_rps
    return best_rps(result for result in report.cells if result.trial.cell.series == cell.series)


def best_rps(cells: Iterable[TrialResult]) -> float | None:
    """The highest throughput of the valid closed cells whose load tool was not the limit."""
    return max(
        (
            cell.throughput_rps
            for cell in valid_results(cells)
            if cell.trial.cell.rate is None
            and cell.verdict != "generator-bound"
            and cell.throughput_rps
        ),
        default=None,
    )


def open_result(facts: Facts, highest_rps: float | None, *, is_capacity: bool) -> Result:
    """The result of a valid cell of the open model. `highest_rps`: the highest throughput of the
    closed cells; `is_capacity`: whether it is the capacity, because they show a knee."""
    offered = OfferedLoad(facts, highest_rps if is_capacity else None)
    verdict, reason = _verdict_if_refused(offered) or verdict_of_offered(offered)
    parts, breakdown_notes = _breakdown(facts)
    cell = measured_result(facts, verdict, reason)
    cell = replace(
        cell,
        breakdown=parts,
        generator_bound=verdict == "generator-bound",
        bound_reasons=(cell.reason,) if verdict == "generator-bound" else (),
        achieved_concurrency=offered.mean_in_use,
        at_rate=RateResult(
            asked_rps=facts.asked_rps,
            arrivals=facts.record.arrivals,
            schedule=facts.record.schedule,
            due_rps=offered.due_rps,
            sent_rps=offered.sent_rps,
            unsent=facts.measurement.unsent,
            lag=facts.measurement.lag,
        ),
        notes=(
            *cell.notes,
            *_notes(offered, None if is_capacity else highest_rps),
            *breakdown_notes,
            *missing_notes(facts.observations),
        ),
    )
    return replace(cell, findings=findings_at_rate(facts, cell))


class ArrivalsRefused(Reason):
    """{due_rps:number} requests/s arrived; the server refused {share:percent} of them, and
    {rps:number} a second succeeded"""

    asked_rps: float
    due_rps: float
    share: float
    rps: float


def _verdict_if_refused(offered: OfferedLoad) -> Judgement | None:
    """Saturated if the server refused many requests: this shows that it does not keep up."""
    facts = offered.facts
    if (share := shed_share(facts)) < REFUSED_SHARE:
        return None
    return "saturated", ArrivalsRefused(
        asked_rps=facts.asked_rps,
        due_rps=offered.due_rps,
        share=share,
        rps=facts.throughput_rps,
    )


def _breakdown(facts: Facts) -> tuple[Breakdown, Findings]:
    """The breakdown and notes; empty if requests were sent late or not all were traced, because the
    estimates assume the closed loop's N = X * R."""
    lag_s = facts.measurement.lag.mean or 0.0
    if lag_s > MAX_LAG_SHARE * (facts.measurement.response.mean or 0.0):
        return Breakdown(), (NoBreakdownAsSentLate(lag_s),)
    parts, notes = breakdown(facts)
    return (parts, notes) if parts.exact else (Breakdown(), ())


class NoBreakdownAsSentLate(Finding):
    """no breakdown: requests were sent {lag_s:duration} late on average, because no connection was
    free or the load tool was busy"""

    lag_s: float


class SharesOfHighest(Finding):
    """shares are of the highest throughput that the closed loop reached ({rps:number} requests/s);
    its capacity may be higher: add higher levels"""

    rps: float


class SentLate(Finding):
    """{lag_s:duration} of the mean response of {response_s:duration} is lag: {tool} sent requests
    late while connections were free, so these times say little about the server"""

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


def _notes(offered: OfferedLoad, highest_rps: float | None) -> Iterable[Finding]:
    """The notes on a cell. `highest_rps`: the throughput that the rate is a share of, if it is not
    the capacity."""
    facts, measurement = offered.facts, offered.measurement
    rate = facts.cell.rate
    if rate and rate.share is not None and highest_rps is not None:
        yield SharesOfHighest(highest_rps)
    if offered.due is not None:
        how = "evenly spaced"
        if facts.record.arrivals == "poisson":
            seed = facts.record.schedule
            how = f"at random times fixed before the load (Poisson, seed {seed})"
        lag = measurement.lag
        yield RequestsDue(offered.due, how, lag_p95_s=lag.p95, lag_max_s=lag.max)
    if offered.keeps_up and offered.sent_late and offered.connections_free:
        yield SentLate(facts.tool, lag_s=measurement.lag.mean, response_s=measurement.response.mean)
