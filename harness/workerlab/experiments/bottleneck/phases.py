"""The phases of a load whose connections the server closes, with the TCP states of each."""

from __future__ import annotations

from collections.abc import Iterable

from workerlab.analysis.facts import Facts
from workerlab.analysis.phases import PhaseOfLoad, phase_finding, phases_of
from workerlab.analysis.samples import NS
from workerlab.finding import Answer

MID_LOAD = 0.9  # of a load: connections that start to close later do so because it ends


class PhasesAnswer(Answer):
    """Of the load whose connections are closed."""

    question = "Which phases does a load go through, if the server closes connections?"

    phases: tuple[PhaseOfLoad, ...]


class ClosedInMidLoad(PhasesAnswer):
    """{phases: } The server closes a connection after {requests} requests, in mid-load from
    {at_s:duration} on[[: {users:# user} opened {opened:# connection}]]."""

    requests: int | None
    at_s: float
    users: int
    opened: int | None  # None: the server counted nothing


class NotClosedInMidLoad(PhasesAnswer):
    """Inconclusive: no connections were seen to close in mid-load.[[ {phases: }]]"""


def phases_answer(loads: Iterable[Facts]) -> PhasesAnswer | None:
    """Of the first load on a null server whose connections were seen to close, else of the first
    one; None if there is none."""
    answers = [_answer(facts) for facts in loads]
    closed = (answer for answer in answers if isinstance(answer, ClosedInMidLoad))
    return next(closed, answers[0] if answers else None)


def _answer(facts: Facts) -> PhasesAnswer:
    phases, measurement, counts = phases_of(facts), facts.measurement, facts.data.null
    begins_s = ((measurement.origin_ns or facts.started_ns) - facts.started_ns) / NS
    ends_s = begins_s + MID_LOAD * measurement.duration_s
    churn = [phase for phase in phases if phase.name == "churn" and phase.start_s < ends_s]
    phase_findings = tuple(map(phase_finding, phases))
    if not churn:
        return NotClosedInMidLoad(phase_findings)
    null = facts.cell.server.null
    return ClosedInMidLoad(
        phases=phase_findings,
        requests=null.requests_per_connection if null else None,
        at_s=churn[0].start_s,
        users=facts.cell.concurrency,
        opened=counts.connections if counts else None,
    )
