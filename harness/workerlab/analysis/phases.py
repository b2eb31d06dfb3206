"""The phases of a load on kept connections: ramp-up, drain, steady, churn. Any may be absent.

They are found in what was seen, the client's sockets by TCP state and the response times, and not
in what was planned. Every threshold is relative to what this very load showed:

    ramp-up   ESTABLISHED rises until it first reaches 95 % of its most, and never falls by more
              than 5 % of that meanwhile; at least three samples saw it rising. It lasts until the
              response times, which rise after it, are within a tenth of the steady level
    churn     connections close: sockets that are closing (TIME_WAIT, FIN_WAIT, CLOSE_WAIT, ...) are
              more by 5 % of the most ESTABLISHED than at their fewest before, or ESTABLISHED falls
              below 95 %. It begins with the last sample that saw nothing of it
    drain     from the end of the ramp-up on, response times still fall: the median of each of 20
              even parts is above the steady level by a tenth and three times its scatter
    steady    what is left between: nobody comes, nobody goes, and times stay. Absent where the
              median of its last quarter is above that of the one before by 15 %: a load that
              ended too early was never steady

The steady level is the median of the later half of those parts, its scatter their median absolute
deviation. What warmed the server up has left its own TIME_WAIT behind, which only becomes fewer:
hence "than at their fewest".

Fitting change points to the series was rejected: it finds as many as it is told to look for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.handshakes import DONE
from workerlab.analysis.samples import NS
from workerlab.finding import Finding
from workerlab.model import Phase
from workerlab.numbers.samples import quantile

CLOSING = ("TIME_WAIT", "FIN_WAIT1", "FIN_WAIT2", "CLOSE_WAIT", "LAST_ACK", "CLOSING")
FULL = 0.95  # of the most ESTABLISHED
CHANGE = 0.05  # of the same
RISING = 3  # samples
PARTS = 20
ABOVE, SCATTER = 1.10, 3.0
GROWS = 1.15
POINTS = 100  # of the response times over time

Response = tuple[float, float]  # when it ended and how long it took, seconds


class Sockets(NamedTuple):
    """The load's connections at one moment: at both ends established, at both ends closing."""

    at_s: float
    client: int
    server: int
    closing: int
    states: Mapping[str, int] = {}  # those that are closing, by state


def phases(
    sockets: Sequence[Sockets], responses: Sequence[Response], *, in_app: bool = False
) -> tuple[Phase, ...]:
    """In order of time, seconds since the load began; empty where too little was seen. sockets: by
    time, the first before the load; responses: in any order; in_app: as long as the app took."""
    most = max((one.client for one in sockets), default=0)
    if most < 1 or len(sockets) < RISING:
        return ()
    full = next(i for i, one in enumerate(sockets) if one.client >= FULL * most)
    rises = _rises(sockets[: full + 1], most)
    closes = _closes(sockets, full, most)
    begin_s = sockets[full].at_s
    end_s = sockets[-1].at_s if closes is None else sockets[closes].at_s
    inside = [one for one in responses if begin_s < one[0] <= end_s]
    drained_s, risen_s = _settled_s(inside, begin_s, end_s) if rises else (None, begin_s)
    found = [_ramp(sockets[: full + 1], risen_s, end_s)] if rises else []
    if drained_s is not None:
        found.append(_drain(inside, begin_s, drained_s))
        begin_s = drained_s
    else:
        begin_s = end_s if risen_s is None else risen_s  # None: never steady
    if end_s > begin_s:
        still = [one for one in sockets if begin_s <= one.at_s <= end_s]
        found.append(_steady(still, inside, (begin_s, end_s), in_app=in_app))
    if closes is not None:
        later = [] if in_app else [took_s for at_s, took_s in responses if at_s > end_s]
        found.append(_churn(sockets[closes:], most, later))
    return tuple(found)


def _rises(until: Sequence[Sockets], most: int) -> bool:
    """Whether these samples saw the connections come, and none go."""
    highest = 0
    for one in until:
        if one.client < highest - CHANGE * most:
            return False
        highest = max(highest, one.client)
    return len([one for one in until if one.client]) >= RISING


def _closes(sockets: Sequence[Sockets], first: int, most: int) -> int | None:
    """The last sample before connections are seen to close, from number `first` on."""
    least = sockets[0].closing
    for i, one in enumerate(sockets):
        least = min(least, one.closing)
        grown = one.closing - least >= max(1.0, CHANGE * most)
        if i > first and (grown or one.client < FULL * most):
            return i - 1
    return None


def _settled_s(
    responses: Sequence[Response], begin_s: float, end_s: float
) -> tuple[float | None, float | None]:
    """When the response times have come down to their steady level (None: they were there), and
    when they have come up to it (`begin_s`: they were there; None: they rose until the end)."""
    wide_s = (end_s - begin_s) / PARTS
    parts = [(i, median(took_s)) for i, took_s in _parts(responses, begin_s, wide_s, PARTS)]
    if len(parts) < RISING:
        return None, begin_s
    times = [took_s for _, took_s in parts]
    later = times[len(times) // 2 :]
    level = median(later)
    scatter = SCATTER * median(abs(took_s - level) for took_s in later)
    down = next(i for i, took_s in parts if took_s <= ABOVE * level + scatter)
    up = next(i for i, took_s in parts if took_s >= level / ABOVE - scatter)
    first, quarter = parts[0][0], max(1, len(times) // 4)
    grows = median(times[-quarter:]) > GROWS * median(times[-2 * quarter : -quarter])
    risen_s = begin_s + wide_s * up if up > first else begin_s
    return begin_s + wide_s * down if down > first else None, None if grows else risen_s


def _parts(
    responses: Iterable[Response], begin_s: float, wide_s: float, count: int
) -> list[tuple[int, list[float]]]:
    """The response times that ended in each of so many even parts, by number; those with any."""
    found: dict[int, list[float]] = defaultdict(list)
    for at_s, took_s in responses if wide_s > 0 else ():
        found[min(count - 1, max(0, int((at_s - begin_s) / wide_s)))].append(took_s)
    return sorted(found.items())


# --- what marks them ----------------------------------------------------------------------


class ConnectionsRise(Finding):
    """ESTABLISHED only rises, from {first} to {last} of the load's connections
    [[ until {until_s:duration}; then response times rise to their level]]"""

    first: int
    last: int
    until_s: float | None


class NeverSteady(Finding):
    """ESTABLISHED only rises, from {first} to {last} of the load's connections; response times rose
    until the load ended, so no part of it is steady: raise --duration"""

    first: int
    last: int


class ResponsesFall(Finding):
    """no new connections, and response times fall from {before_s:duration} to {after_s:duration}"""

    before_s: float
    after_s: float


class ConnectionsStay(Finding):
    """1 LISTEN and {established} ESTABLISHED, both ends of {connections} connections
    [[; {timed} {p50_s:duration}, 90 % of them {p5_s:duration} to {p95_s:duration}]]"""

    established: int
    connections: int
    timed: Literal["responses take", "inside the app requests spend"]
    p5_s: float | None = None
    p95_s: float | None = None
    p50_s: float | None = None


class ConnectionsClose(Finding):
    """connections close: {closing} more sockets in TIME_WAIT, FIN_WAIT or CLOSE_WAIT
    [[ (at most {states:counts})]], {left} of {most} still ESTABLISHED
    [[; responses take {p50_s:duration}, 90 % of them {p5_s:duration} to {p95_s:duration}]]"""

    closing: int
    left: int
    most: int
    states: Mapping[str, int] | None
    p5_s: float | None = None
    p95_s: float | None = None
    p50_s: float | None = None


def _ramp(until: Sequence[Sockets], risen_s: float | None, end_s: float) -> Phase:
    """`end_s`: of the load, where the response times never stopped rising (`risen_s` None)."""
    first, last = until[0], until[-1]
    if risen_s is None:
        never = NeverSteady(first.client, last.client)
        return Phase("ramp-up", first.at_s, end_s, never)
    until_s = last.at_s if risen_s > last.at_s else None
    why = ConnectionsRise(first.client, last.client, until_s)
    return Phase("ramp-up", first.at_s, max(risen_s, last.at_s), why)


def _drain(responses: Sequence[Response], begin_s: float, end_s: float) -> Phase:
    before_s = median(took_s for at_s, took_s in responses if at_s <= end_s)
    after_s = median(took_s for at_s, took_s in responses if at_s > end_s)
    return Phase("drain", begin_s, end_s, ResponsesFall(before_s, after_s))


def _steady(
    still: Sequence[Sockets],
    responses: Sequence[Response],
    stretch_s: tuple[float, float],
    *,
    in_app: bool,
) -> Phase:
    both = round(median(one.client + one.server for one in still)) if still else 0
    users = round(median(one.client for one in still)) if still else 0
    inside = [took_s for at_s, took_s in responses if at_s > stretch_s[0]]
    begin_s, end_s = stretch_s
    why = ConnectionsStay(
        established=both,
        connections=users,
        timed="inside the app requests spend" if in_app else "responses take",
        **_middle(inside),
    )
    return Phase("steady", begin_s, end_s, why)


def _middle(times_s: Sequence[float]) -> dict[str, float]:
    """The median, and the bounds of 90 %; empty where there are none."""
    ordered = sorted(times_s)
    quantiles = {"p5_s": 0.05, "p95_s": 0.95, "p50_s": 0.5} if ordered else {}
    return {name: quantile(ordered, part) for name, part in quantiles.items()}


def _churn(after: Sequence[Sockets], most: int, times_s: Sequence[float]) -> Phase:
    before, closing = after[0], max(one.closing for one in after)
    left = min(one.client for one in after)
    states = {name: max(sample.states.get(name, 0) for sample in after) for name in CLOSING}
    why = ConnectionsClose(
        closing=closing - before.closing,
        left=left,
        most=most,
        states={name: count for name, count in states.items() if count} or None,
        **_middle(times_s),
    )
    return Phase("churn", before.at_s, after[-1].at_s, why)


# --- of a trial ---------------------------------------------------------------------------


def phases_of(facts: Facts) -> tuple[Phase, ...]:
    """Of a closed loop on kept connections; elsewhere they come and go all the time."""
    if not facts.cell.keepalive or facts.open_model:
        return ()
    sockets = [
        Sockets(
            at_s=max(0.0, (one.at_ns - facts.started_ns) / NS),
            client=one.client.get(DONE, 0),
            server=one.server.get(DONE, 0),
            closing=sum(states.values()),
            states=states,
        )
        for one in facts.data.observations.connections
        for states in [{n: one.client.get(n, 0) + one.server.get(n, 0) for n in CLOSING}]
    ]
    return phases(sockets, responses_of(facts), in_app=not timed(facts))


def timed(facts: Facts) -> bool:
    """By the client, each request."""
    measurement = facts.measurement
    timed_each = measurement.timings and measurement.origin_ns is not None
    return bool(measurement.answers_ns or timed_each)


@once
def responses_of(facts: Facts) -> list[Response]:
    """Each as the client timed it; where it did not, as long as the app held it."""
    measurement = facts.measurement
    if measurement.answers_ns:
        answers = measurement.answers_ns
        return [((ended_ns - facts.started_ns) / NS, took_ns / NS) for ended_ns, took_ns in answers]
    if measurement.origin_ns is not None and timed(facts):
        origin_s = (measurement.origin_ns - facts.started_ns) / NS
        return [
            (origin_s + one.start_s + one.end_s, one.end_s)
            for one in measurement.timings
            if one.end_s is not None
        ]
    return [
        ((span.end_ns - facts.started_ns) / NS, (span.end_ns - span.start_ns) / NS)
        for span in facts.finished
        if span.end_ns is not None
    ]


def over_time(
    responses: Sequence[Response], end_s: float
) -> tuple[tuple[float, float, float], ...]:
    """(moment, median, 95 %) of even stretches of the load, those in which any ended."""
    wide_s = end_s / POINTS
    parts = _parts(responses, 0.0, wide_s, POINTS)
    ordered = [((i + 0.5) * wide_s, sorted(took_s)) for i, took_s in parts]
    return tuple((at_s, quantile(each, 0.5), quantile(each, 0.95)) for at_s, each in ordered)


# --- what is said of them ---------------------------------------------------------------------


class PhaseOfLoad(Finding):
    """{title} until {end_s:duration}[[ ({why})]]."""

    title: str
    end_s: float
    why: Finding | None


def phase_finding(phase: Phase) -> PhaseOfLoad:
    return PhaseOfLoad(phase.name.capitalize(), phase.end_s, phase.why)


def changing(phases: Iterable[Phase]) -> bool:
    """Whether there is more to see than that nothing changes."""
    return not {phase.name for phase in phases}.isdisjoint({"ramp-up", "drain"})
