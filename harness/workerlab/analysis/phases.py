"""The phases of a load on kept-alive connections: ramp-up, drain, steady, churn. Any may be absent.

They are derived from observations (the client's sockets by TCP state, and the response times), not
from the plan. Every threshold is relative to the load's own values:

    ramp-up   ESTABLISHED rises until it first reaches 95 % of its maximum (the highest value of two
              samples in a row), without a fall of more than 5 % of the maximum; at least three
              samples. If response times rise after that, it lasts until they are within 10 % and
              three times the scatter of the steady level
    churn     connections close: the closing sockets (TIME_WAIT, FIN_WAIT, CLOSE_WAIT, ...) exceed
              their minimum so far by 5 % of the maximum of ESTABLISHED, or ESTABLISHED falls below
              95 % of it. It begins with the last sample before that
    drain     after the ramp-up, response times still fall: the median of each of 20 equal parts is
              above the steady level by 10 % and three times its scatter
    steady    the rest in between: no connection opens or closes, and response times stay level.
              Absent if the median of its last quarter is 15 % above that of the quarter before:
              a load that ended too early was never steady

The steady level is the median of the later half of those parts; its scatter is their median
absolute deviation. Closing sockets are compared with their minimum because the warm-up leaves
sockets in TIME_WAIT, whose number only falls.

Rejected: fitting change points to the time series, which finds as many as are requested.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.handshakes import ESTABLISHED
from workerlab.analysis.samples import NS
from workerlab.finding import Finding
from workerlab.model.result import Phase
from workerlab.numbers.samples import quantile

CLOSING = ("TIME_WAIT", "FIN_WAIT1", "FIN_WAIT2", "CLOSE_WAIT", "LAST_ACK", "CLOSING")
FULL_SHARE = 0.95  # of the maximum of ESTABLISHED
MIN_CHANGE_SHARE = 0.05  # of the maximum of ESTABLISHED
MIN_RISING_SAMPLES = 3
RESPONSE_PARTS = 20  # equal parts of a load
ABOVE_LEVEL_RATIO = 1.10
SCATTER_DEVIATIONS = 3.0
GROWTH_RATIO = 1.15  # of the last quarter to the one before
CURVE_POINTS = 100  # parts of a load in a curve of response times

Response = tuple[float, float]  # end and duration, in seconds


class Sockets(NamedTuple):
    """The load's connections at one moment: those ESTABLISHED at the client and at the server, and
    those closing at either end."""

    at_s: float
    client: int
    server: int
    closing: int
    states: Mapping[str, int] = {}  # closing sockets by state


def phases(
    sockets: Sequence[Sockets], responses: Sequence[Response], *, in_app: bool = False
) -> tuple[Phase, ...]:
    """The phases in order of time, in seconds since the load began; empty if there are too few
    samples. `sockets`: by time, the first before the load. `responses`: in any order. `in_app`:
    whether these are times in the app instead of response times."""
    # Twice in a row: a connection may open just before the one that it replaces is closed
    counts = (min(before.client, after.client) for before, after in pairwise(sockets))
    max_open = max(counts, default=0)
    if max_open < 1 or len(sockets) < MIN_RISING_SAMPLES:
        return ()
    full = next(i for i, sample in enumerate(sockets) if sample.client >= FULL_SHARE * max_open)
    rises = _rises(sockets[: full + 1], max_open)
    closes = _last_before_close(sockets, full, max_open)
    begin_s = sockets[full].at_s
    end_s = sockets[-1].at_s if closes is None else sockets[closes].at_s
    inside = [response for response in responses if begin_s < response[0] <= end_s]
    drained_s, risen_s = _settled_s(inside, begin_s, end_s) if rises else (None, begin_s)
    in_order = [_ramp(sockets[: full + 1], risen_s, end_s)] if rises else []
    if drained_s is not None:
        before_s = median(took_s for at_s, took_s in inside if at_s <= drained_s)
        after_s = median(took_s for at_s, took_s in inside if at_s > drained_s)
        in_order.append(Phase("drain", begin_s, drained_s, ResponsesFall(before_s, after_s)))
        begin_s = drained_s
    else:
        begin_s = end_s if risen_s is None else risen_s  # None: never steady
    if end_s > begin_s:
        in_steady = [sample for sample in sockets if begin_s <= sample.at_s <= end_s]
        in_order.append(_steady(in_steady, inside, begin_s, end_s, in_app=in_app))
    if closes is not None:
        churn_times_s = [] if in_app else [took_s for at_s, took_s in responses if at_s > end_s]
        in_order.append(_churn(sockets[closes:], max_open, churn_times_s))
    return tuple(in_order)


def _rises(sockets: Sequence[Sockets], max_open: int) -> bool:
    """Whether connections only open in these samples."""
    highest = 0
    for sample in sockets:
        if sample.client < highest - MIN_CHANGE_SHARE * max_open:
            return False
        highest = max(highest, sample.client)
    return len([sample for sample in sockets if sample.client]) >= MIN_RISING_SAMPLES


def _last_before_close(sockets: Sequence[Sockets], first: int, max_open: int) -> int | None:
    """Index of the last sample, from `first` on, before connections close; None if none closes."""
    min_closing = sockets[0].closing
    for i, sample in enumerate(sockets):
        min_closing = min(min_closing, sample.closing)
        grown = sample.closing - min_closing >= max(1.0, MIN_CHANGE_SHARE * max_open)
        if i > first and (grown or sample.client < FULL_SHARE * max_open):
            return i - 1
    return None


def _settled_s(
    responses: Sequence[Response], begin_s: float, end_s: float
) -> tuple[float | None, float | None]:
    """The times when response times have fallen to the steady level (None: they were never above),
    and when they have risen to it (`begin_s`: they were never below; None: they rose to the
    end)."""
    part_s = (end_s - begin_s) / RESPONSE_PARTS
    parts = [
        (i, median(took_s)) for i, took_s in _parts(responses, begin_s, part_s, RESPONSE_PARTS)
    ]
    if len(parts) < MIN_RISING_SAMPLES:
        return None, begin_s
    times_s = [took_s for _, took_s in parts]
    later_s = times_s[len(times_s) // 2 :]
    level_s = median(later_s)
    slack_s = SCATTER_DEVIATIONS * median(abs(took_s - level_s) for took_s in later_s)
    fall_end = next(i for i, took_s in parts if took_s <= ABOVE_LEVEL_RATIO * level_s + slack_s)
    rise_end = next(i for i, took_s in parts if took_s >= level_s / ABOVE_LEVEL_RATIO - slack_s)
    first, quarter = parts[0][0], max(1, len(times_s) // 4)
    grows = median(times_s[-quarter:]) > GROWTH_RATIO * median(times_s[-2 * quarter : -quarter])
    risen_s = begin_s + part_s * rise_end if rise_end > first else begin_s
    return begin_s + part_s * fall_end if fall_end > first else None, None if grows else risen_s


def _parts(
    responses: Iterable[Response], begin_s: float, part_s: float, count: int
) -> list[tuple[int, list[float]]]:
    """Response times by the part of the load, of `count` equal ones, in which the request ended;
    no empty parts."""
    by_part: dict[int, list[float]] = defaultdict(list)
    for at_s, took_s in responses if part_s > 0 else ():
        by_part[min(count - 1, max(0, int((at_s - begin_s) / part_s)))].append(took_s)
    return sorted(by_part.items())


# --- evidence of a phase -------------------------------------------------------------------


class ConnectionsRise(Finding):
    """ESTABLISHED only rises, from {first} to {last} of the load's connections
    [[ until {until_s:duration}; then response times rise to their steady level]]"""

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


def _ramp(sockets: Sequence[Sockets], risen_s: float | None, end_s: float) -> Phase:
    """The ramp-up. `risen_s` None: response times never stopped rising, so it lasts to the end."""
    first, last = sockets[0], sockets[-1]
    if risen_s is None:
        return Phase("ramp-up", first.at_s, end_s, NeverSteady(first.client, last.client))
    until_s = last.at_s if risen_s > last.at_s else None
    why = ConnectionsRise(first.client, last.client, until_s)
    return Phase("ramp-up", first.at_s, max(risen_s, last.at_s), why)


def _steady(
    sockets: Sequence[Sockets],
    responses: Sequence[Response],
    begin_s: float,
    end_s: float,
    *,
    in_app: bool,
) -> Phase:
    both_ends = [sample.client + sample.server for sample in sockets]
    established = round(median(both_ends)) if sockets else 0
    connections = round(median(sample.client for sample in sockets)) if sockets else 0
    times_s = [took_s for at_s, took_s in responses if at_s > begin_s]
    why = ConnectionsStay(
        established=established,
        connections=connections,
        timed="inside the app requests spend" if in_app else "responses take",
        **_middle(times_s),
    )
    return Phase("steady", begin_s, end_s, why)


def _middle(times_s: Sequence[float]) -> dict[str, float]:
    """The median and the bounds of the middle 90 %; empty without times."""
    ordered = sorted(times_s)
    quantiles = {"p5_s": 0.05, "p95_s": 0.95, "p50_s": 0.5} if ordered else {}
    return {name: quantile(ordered, part) for name, part in quantiles.items()}


def _churn(sockets: Sequence[Sockets], max_open: int, times_s: Sequence[float]) -> Phase:
    before, closing = sockets[0], max(sample.closing for sample in sockets)
    left = min(sample.client for sample in sockets)
    states = {name: max(sample.states.get(name, 0) for sample in sockets) for name in CLOSING}
    why = ConnectionsClose(
        closing=closing - before.closing,
        left=left,
        most=max_open,
        states={name: count for name, count in states.items() if count} or None,
        **_middle(times_s),
    )
    return Phase("churn", before.at_s, sockets[-1].at_s, why)


# --- of a trial ---------------------------------------------------------------------------


@once
def phases_of(facts: Facts) -> tuple[Phase, ...]:
    """The phases of a closed loop on kept-alive connections; () for other loads, whose connections
    open and close all the time."""
    if not facts.cell.keepalive or facts.open_model:
        return ()
    sockets = [
        Sockets(
            at_s=max(0.0, (sample.at_ns - facts.started_ns) / NS),
            client=sample.client.get(ESTABLISHED, 0),
            server=sample.server.get(ESTABLISHED, 0),
            closing=sum(states.values()),
            states=states,
        )
        for sample in facts.data.observations.connections
        for states in [{n: sample.client.get(n, 0) + sample.server.get(n, 0) for n in CLOSING}]
    ]
    return phases(sockets, responses_of(facts), in_app=not client_timed(facts))


def client_timed(facts: Facts) -> bool:
    """Whether the client timed each request."""
    measurement = facts.measurement
    timed_each = measurement.timings and measurement.origin_ns is not None
    return bool(measurement.answers_ns or timed_each)


@once
def responses_of(facts: Facts) -> list[Response]:
    """The responses as timed by the client, else the times in the app."""
    measurement = facts.measurement
    if measurement.answers_ns:
        responses_ns = measurement.answers_ns
        return [((end - facts.started_ns) / NS, took / NS) for end, took in responses_ns]
    if measurement.origin_ns is not None and client_timed(facts):
        origin_s = (measurement.origin_ns - facts.started_ns) / NS
        return [
            (origin_s + timing.start_s + timing.end_s, timing.end_s)
            for timing in measurement.timings
            if timing.end_s is not None
        ]
    return [
        ((span.end_ns - facts.started_ns) / NS, (span.end_ns - span.start_ns) / NS)
        for span in facts.finished
        if span.end_ns is not None
    ]


def over_time(
    responses: Sequence[Response], end_s: float
) -> tuple[tuple[float, float, float], ...]:
    """(time, median, p95) in seconds for equal parts of the load; no empty parts."""
    part_s = end_s / CURVE_POINTS
    parts = _parts(responses, 0.0, part_s, CURVE_POINTS)
    ordered = [((i + 0.5) * part_s, sorted(took_s)) for i, took_s in parts]
    return tuple((at_s, quantile(times, 0.5), quantile(times, 0.95)) for at_s, times in ordered)


# --- as findings --------------------------------------------------------------------------------


class PhaseOfLoad(Finding):
    """{title} until {end_s:duration}[[ ({why})]]."""

    title: str
    end_s: float
    why: Finding | None


def phase_finding(phase: Phase) -> PhaseOfLoad:
    return PhaseOfLoad(phase.name.capitalize(), phase.end_s, phase.why)


def has_ramp_or_drain(phases: Iterable[Phase]) -> bool:
    """Whether the load has a ramp-up or a drain."""
    return not {phase.name for phase in phases}.isdisjoint({"ramp-up", "drain"})
