"""Diagnoses of slots (too few, idle, or behind a full accept queue) and of cells without a limit.

More slots are advised only if all were taken (an occupancy of 0.95, `analysis/slots.py`). The
sentences name only measured places where requests wait. Half-open connections (established only on
the client's side) count as queued if the kernel counted overflows and both ends were sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from workerlab.analysis.breakdown import slot_use
from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.diagnosis.base import Advised, Diagnosis
from workerlab.analysis.facts import Facts
from workerlab.analysis.handshakes import drops_finding, handshakes
from workerlab.analysis.series import REACHED_SHARE
from workerlab.analysis.slots import (
    FULL_OCCUPANCY,
    Distribution,
    all_slots_taken,
    uneven_distribution,
)
from workerlab.analysis.stall import Stall, stalled, whole_rps
from workerlab.finding import Finding
from workerlab.model.result import Result
from workerlab.numbers.units import fill, format_duration, listed

MIN_PLACE_SHARE = 0.1  # of the waiting time; a place with less is not named
MIN_WAIT_S = 0.005  # shorter waits and connect times count as 0
LONGER_SERVICE_RATIO = 1.5  # service time / lone response

UNMEASURED_PLACE = "in a place that was not measured"
# By the part of a Breakdown
WAITING_PLACES = {
    "connect_s": "to connect",
    "accept_queue_s": "in the accept queue",
    "in_worker_s": "inside the workers, accepted but not started",
    "transfer_s": "after the app, until the response has arrived",
    "unattributed_s": UNMEASURED_PLACE,
}
WITH_HALF_OPEN = "in the accept queue or as half-open connections"

BACKLOG_MOVES_WAIT = "a longer --backlog only moves the wait into a longer queue"
USE_EVEN_CLASS = "a class that accepts only what it can serve (sync, gevent) spreads them evenly"
DISABLES_KEEPALIVE = "it also disables keep-alive"


def longer_backlog(facts: Facts) -> str:
    return f"a --backlog of {facts.connections} or more would prevent the drops"


# --- whether requests wait, and where -------------------------------------------------------------


def slower_than_alone(facts: Facts, cell: Result) -> bool:
    """Whether requests take longer than a lone one; never with a single connection."""
    n = facts.connections
    return n > 1 and facts.rps * (cell.lone_s or 0.0) / n < REACHED_SHARE


def mean_service_s(cell: Result) -> float:
    return cell.breakdown.service_s or cell.service.mean or 0.0


def _response_s(facts: Facts, cell: Result) -> float:
    """The mean response time from the breakdown, else by the response time law, N/X."""
    return cell.breakdown.response_s or facts.connections / facts.rps


def _mean_wait_s(facts: Facts, cell: Result) -> float:
    return max(0.0, _response_s(facts, cell) - mean_service_s(cell))


def _sharing_clause(facts: Facts) -> str:
    """A clause on how many connections share how many slots, and how many were used if fewer."""
    used, slots = facts.max_in_app, facts.slots
    if slots is None:
        sentence = "{n:# connection} had at most {used:# request} in the app at once ({limit})"
    elif facts.connections <= slots:
        sentence = "{n:# connection} have {slots:# slot}"
    else:
        sentence = "{n:# connection} share {slots:# slot}[[, with at most {few} in use]]"
    few = used if used < REACHED_SHARE * facts.max_parallel else None
    values = {"n": facts.connections, "used": used, "slots": slots, "few": few}
    return fill(sentence, {**values, "limit": facts.limit_note})


def _waiting_clause(facts: Facts, cell: Result) -> str:
    """A clause on how many requests wait, how long and where: longest first."""
    mean_wait_s, observed = _mean_wait_s(facts, cell), handshakes(facts)
    places = dict(WAITING_PLACES)
    if observed.max_half_open and observed.dropped:
        places["accept_queue_s"] = WITH_HALF_OPEN
    waits_s = ((getattr(cell.breakdown, part) or 0.0, part) for part in places)
    waits = [
        f"{format_duration(wait_s)} {places[part]}"
        for wait_s, part in sorted(waits_s, reverse=True)
        if wait_s >= MIN_PLACE_SHARE * mean_wait_s
    ] or [f"{format_duration(mean_wait_s)} {UNMEASURED_PLACE}"]
    excess, subject = facts.connections - (facts.slots or facts.connections), "requests wait"
    if excess > 0:
        subject = f"the other {excess} wait" if excess > 1 else "the other one waits"
    return f"{subject} {listed(waits)}"


def _overtaking_hint(facts: Facts, cell: Result) -> str | None:
    """A hint if the median is far below the mean. By the median, a short queue would seem faster
    than a long queue, in which no request overtakes another."""
    p50_s, mean_s = facts.measurement.response.p50, cell.breakdown.response_s
    if p50_s is None or mean_s is None or p50_s > REACHED_SHARE * mean_s:
        return None
    mean, median = format_duration(mean_s), format_duration(p50_s)
    return (
        "requests that entered the queue overtook those that were dropped: compare the mean"
        f" response ({mean}), not the median ({median})"
    )


# --- more requests than slots ---------------------------------------------------------------------


class Queueing(Advised):
    """More requests than the server serves at once."""

    sharing: str  # how many connections share how many slots
    waiting: str  # how many wait, and where


class WaitingForSlots(Queueing):
    """{sharing}; {waiting}[[, connect stays at {connect_s:milliseconds}]]"""

    rank = 100

    connect_s: float | None  # set if it stays short while requests wait in the accept queue

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> WaitingForSlots | None:
        """Without advice if requests hold slots much longer than a lone one, for lack of a core or
        an unmeasured reason: more slots might not help."""
        if not all_slots_taken(facts) or facts.slots is None or facts.connections <= facts.slots:
            return None
        if _mean_wait_s(facts, cell) < (1 - REACHED_SHARE) * _response_s(facts, cell):
            return None
        connect_s, lone_s = cell.breakdown.connect_s, cell.lone_s or 0.0
        in_queue = cell.breakdown.accept_queue_s and (connect_s or 0.0) < MIN_WAIT_S
        held_longer = lone_s and mean_service_s(cell) >= LONGER_SERVICE_RATIO * lone_s
        return cls(
            sharing=_sharing_clause(facts),
            waiting=_waiting_clause(facts, cell),
            connect_s=connect_s if in_queue else None,
            advice=() if held_longer else (facts.worker_class.advice,),
        )


# --- a full accept queue --------------------------------------------------------------------------


class QueueOverflow(Queueing):
    """The accept queue was full, or probably was."""

    rank = 20
    explains = (WaitingForSlots,)  # its sentence says the same
    seen_in = "queue"

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> QueueOverflow | None:
        """Only a likely cause if the kernel's counters are missing. A longer queue absorbs a burst,
        but does not replace missing slots."""
        observed, all_taken = handshakes(facts), all_slots_taken(facts)
        suspected = observed.drops_suspected and slower_than_alone(facts, cell)
        if not observed.dropped and not suspected:
            return None
        # In a stall slots idled, so the queue was too short
        moves_wait = facts.slots is None or (all_taken and not stalled(facts))
        more_slots = (facts.worker_class.advice,) if all_taken else ()
        queueing: dict[str, Any] = {
            "sharing": _sharing_clause(facts),
            "waiting": _waiting_clause(facts, cell),
            "advice": (BACKLOG_MOVES_WAIT if moves_wait else longer_backlog(facts), *more_slots),
        }
        if not observed.dropped:
            return LikelyFullAcceptQueue(**queueing, drops=drops_finding(facts))
        return FullAcceptQueue(
            **queueing,
            longest=cell.accept_queue_max if observed.queue_full else None,
            limit=cell.accept_queue_limit if observed.queue_full else None,
            counters=observed.counters,
            where=observed.where,
            half_open=observed.max_half_open or None,
            steps=observed.steps,
            never_accepted=facts.outcome.never_accepted or None,
            response_s=facts.measurement.response.max,
            overtaken=_overtaking_hint(facts, cell),
        )


class FullAcceptQueue(QueueOverflow):
    """{sharing}; {waiting}; the accept queue was full
    [[ (length up to {longest}, limit {limit})]] and the kernel dropped handshakes:
    {counters:values} ({where})[[; up to {half_open:# connection} existed only on the client's side,
    because the last packet of the handshake was dropped]][[; {steps}]]
    [[; {never_accepted:# request} never reached a worker]]
    [[; a response took up to {response_s:duration}]][[; {overtaken}]]"""

    longest: int | None
    limit: int | None
    counters: Mapping[str, int]
    where: str
    half_open: int | None
    steps: Finding | None
    never_accepted: int | None
    response_s: float | None
    overtaken: str | None

    @property
    def brief(self) -> str:
        return fill(
            "{sharing}; the accept queue was full and the kernel dropped handshakes[[; a response"
            " took up to {response_s:duration}]][[; {overtaken}]][[; {advice:; }]].",
            self.values,
        )


class LikelyFullAcceptQueue(QueueOverflow):
    """{sharing}; {waiting}; {drops}"""

    drops: Finding | None


class IdleWhileClientsWait(Advised):
    """Slots were idle for {stall.idle_s:duration} of {stall.load_s:duration} while clients waited
    [[, up to {stall.longest_s:duration} at a stretch with no request in the server]]:
    {whole_rps:number} requests/s over the whole load, {steady_rps:number} in its steady part[[; a
    response took up to {response_s:duration}]][[; the kernel dropped handshakes
    ({counters:values}), which clients retry at ever longer intervals]][[; {overtaken}]]"""

    rank = 10
    seen_in = "states"

    stall: Stall
    whole_rps: float | None
    steady_rps: float
    response_s: float | None
    counters: Mapping[str, int] | None
    overtaken: str | None

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> IdleWhileClientsWait | None:
        """Reports how long slots idled while clients waited, with evidence of the cause."""
        if (stall := stalled(facts)) is None:
            return None
        observed, backlog_fits = handshakes(facts), facts.cell.server.backlog >= facts.connections
        return cls(
            stall=stall,
            whole_rps=whole_rps(facts),
            steady_rps=facts.throughput_rps,
            response_s=facts.measurement.response.max,
            counters=observed.counters if observed.dropped else None,
            overtaken=_overtaking_hint(facts, cell) if observed.dropped else None,
            advice=() if backlog_fits else (longer_backlog(facts),),
        )


def part_of_load(cells: Iterable[Result]) -> str:
    """The part of the loads that throughput, occupancy and breakdown cover: the steady part, or the
    whole load if it stalled."""
    stalled = {
        any(isinstance(finding, IdleWhileClientsWait) for finding in cell.findings)
        for cell in cells
    }
    if len(stalled) > 1:
        return "the steady part (the whole load where it stalled)"
    return "the whole load" if True in stalled else "the steady part"


# --- idle slots while requests wait for busy ones -------------------------------------------------


class UnevenDealing(Advised):
    """{connections:# connection} are unevenly distributed: [[on average {dealing.idle:number} of
    {dealing.slots:# usable slot} idled while requests waited]]
    [[one worker has {dealing.times:number} times as many as another, and requests wait]]
    [[ {wait_s:duration}]] inside busier workers ({dealt} per worker: {per_worker:, }
    [[; about {predicted_rps:number} requests/s with this distribution]])"""

    rank = 70
    below_slots = "connections are unevenly distributed"

    connections: int
    dealing: Distribution
    wait_s: float | None
    dealt: Literal["connections", "requests"]
    per_worker: tuple[int, ...]
    predicted_rps: float | None

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> UnevenDealing | None:
        """Reports the cost of an uneven distribution of connections by the kernel."""
        if (dealing := uneven_distribution(facts)) is None:
            return None
        connections = cell.connections_per_worker
        counts = cell.requests_per_worker if connections is None else connections
        per_worker = sorted((counts.get(pid, 0) for pid in dealing.taken), reverse=True)
        wait_s = cell.breakdown.in_worker_s or 0.0  # not always known with keep-alive
        return cls(
            connections=facts.connections,
            dealing=dealing,
            wait_s=wait_s if wait_s >= MIN_WAIT_S else None,
            dealt="requests" if connections is None else "connections",
            per_worker=tuple(per_worker),
            predicted_rps=cell.split_prediction_rps,
            advice=_distribution_advice(facts),
        )


def _distribution_advice(facts: Facts) -> tuple[str, ...]:
    server = facts.cell.server
    if facts.worker_class.asgi:
        return ()  # no class that distributes evenly runs ASGI apps
    if facts.worker_class.slots != "threads":
        return (USE_EVEN_CLASS,)
    if server.worker_connections <= server.threads:
        return ()
    limit_accepts = (
        f"--worker-connections {server.threads}, as many as threads, leaves requests in the"
        " accept queue until a worker has a free thread"
    )
    return (limit_accepts, DISABLES_KEEPALIVE) if facts.cell.keepalive else (limit_accepts,)


# --- no waiting, or no measured cause -------------------------------------------------------------


class NothingWaits(Diagnosis):
    """{connections:# connection} used [[{used} of {slots:# slot}]][[{used:# slot} ({limit})]] and
    {waited}"""

    rank, advice = 100, ()
    shows_loss = False

    connections: int
    used: int
    slots: int | None
    limit: str | None
    waited: Finding


class AllSlotsBusy(NothingWaits):
    """{connections:# connection} used {used:# slot}[[ ({busy:percent} busy)]] and {waited}; more
    connections will wait"""

    busy: float | None  # None: busy all the time


UNKNOWN_CAUSE = "the cause is unknown"
NO_CORE = (
    "the workers computed or waited for a core for {share:percent} of the time, and without a core"
    " a worker accepts no request"
)


class Unexplained(Diagnosis):
    """With {connections:# connection} a response takes {response_s:duration}
    [[, {service_s:duration} of it inside the app]], a lone one {lone_s:duration}
    [[: {waiting}]][[, although slots were only {busy:percent} busy]]; {cause}"""

    rank, advice = 100, ()

    connections: int
    response_s: float
    lone_s: float | None
    service_s: float | None  # None: hardly longer than a lone response
    waiting: str | None
    busy: float | None  # occupancy, if requests wait although slots are free
    cause: str = UNKNOWN_CAUSE


def no_limit(facts: Facts, cell: Result, *, slower: bool) -> Diagnosis:
    """The diagnosis of a cell for which no rule finds a limit. `slower`: whether requests take
    significantly longer than a lone one."""
    if slower:
        return _unexplained(facts, cell)
    n, slots = facts.connections, facts.slots
    if cell.verdict == "at capacity" and slots is not None and n >= REACHED_SHARE * slots:
        busy = None if all_slots_taken(facts) else cell.occupancy
        return AllSlotsBusy(**slot_use(facts), busy=busy)
    return NothingWaits(**slot_use(facts))


def _unexplained(facts: Facts, cell: Result) -> Unexplained:
    """The diagnosis without a cause; it omits the time inside or outside the app if negligible."""
    response_s, inside_s = _response_s(facts, cell), mean_service_s(cell)
    lone_s = cell.lone_s or 0.0
    min_s = MIN_PLACE_SHARE * (response_s - lone_s)
    wait, used, cause = core_wait(facts), facts.usage.server_cores, UNKNOWN_CAUSE
    if wait is not None and used is not None:
        share = min(1.0, (used + wait.worker_s * facts.rps) / facts.workers)
        cause = fill(NO_CORE, {"share": share}) if share >= FULL_OCCUPANCY else cause
    return Unexplained(
        connections=facts.connections,
        response_s=response_s,
        lone_s=cell.lone_s,
        service_s=inside_s if lone_s + min_s <= inside_s <= response_s else None,
        waiting=_waiting_clause(facts, cell) if _mean_wait_s(facts, cell) >= min_s else None,
        busy=None if all_slots_taken(facts) else cell.occupancy,
        cause=cause,
    )
