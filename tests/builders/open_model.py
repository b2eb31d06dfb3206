"""Trials of the open model: an ideal server, and a load tool with known delays."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec.structs import replace

from tests.builders.analysis import ORIGIN_NS, SYNC, evidence, ns
from workerlab.analysis import TrialData
from workerlab.model.evidence import Measurement, Span, Spans, Summary, Timing
from workerlab.model.plan import Cell, Rate, Server, Trial
from workerlab.numbers.samples import summarise


@cache
def closed_loop() -> tuple[TrialData, ...]:
    """A closed loop on 4 slots of 0.1 s: 40 requests/s at most."""
    return tuple(evidence(connections=n, tool="fast", delay_s=0.1) for n in (1, 2, 4, 8, 16))


def share(of: float, **changes: Any) -> TrialData:
    """Arrivals at this share of what the closed loop can serve."""
    return open_trial(Rate(share=of), of * 40, **changes)


def arrivals(
    rate_rps: float,
    duration_s: float,
    *,
    slots: int = 4,
    delay_s: float = 0.1,
    connections: int = 1000,
    tool_s: float = 0.0,
    seed: int | None = None,
    vary: bool = False,
    still: tuple[float, float] = (0.0, 0.0),
) -> tuple[list[tuple[float, float, float, float]], int]:
    """The times (due, sent, started, answered) of every request sent, and the number of requests
    due but never sent. First come, first served; at most `connections` in flight; the load tool
    needs `tool_s` per request. `seed`: of Poisson arrivals; None: evenly spaced ones. `vary`:
    exponential service times. `still`: the time in which nothing is sent."""
    free, under_way = [0.0] * slots, list[float]()
    requests, tool_free, unsent = [], 0.0, 0
    chance = random.Random(seed)
    for due in _due(rate_rps, duration_s, None if seed is None else chance):
        service_s = chance.expovariate(1 / delay_s) if vary else delay_s
        sent = max(due, tool_free)
        if len(under_way) == connections:
            sent = max(sent, heapq.heappop(under_way))
        if still[0] <= sent < still[1]:
            sent = still[1]
        if sent >= duration_s:
            unsent += 1
            continue
        tool_free = sent + tool_s
        start = max(sent, heapq.heappop(free))
        heapq.heappush(free, start + service_s)
        heapq.heappush(under_way, start + service_s)
        requests.append((due, sent, start, start + service_s))
    return requests, unsent


def _due(rate_rps: float, duration_s: float, chance: random.Random | None) -> Iterator[float]:
    if chance is None:
        yield from (number / rate_rps for number in range(int(rate_rps * duration_s)))
        return
    due = chance.expovariate(rate_rps)
    while due < duration_s:
        yield due
        due += chance.expovariate(rate_rps)


def measurement_of(
    sent: list[tuple[float, float, float, float]], unsent: int, rate: float
) -> Measurement:
    """The result of an exact load tool."""
    total_s = max(end for _, _, _, end in sent)
    return Measurement(
        requests=len(sent),
        failed=0,
        errors={},
        duration_s=total_s,
        rps=len(sent) / total_s,
        response=Summary(*summarise([end - due for due, _, _, end in sent])),
        timings=tuple(
            Timing(due, at - due, None, end - due, 200, None, request_id=str(number))
            for number, (due, at, _, end) in enumerate(sent)
        ),
        origin_ns=ORIGIN_NS,
        asked_rps=rate,
        sent=len(sent),
        unsent=unsent,
        lag=Summary(*summarise([at - due for due, at, _, _ in sent])),
    )


def open_trial(
    rate: Rate,
    rate_rps: float,
    *,
    settings: Server = SYNC,
    level: int = 8,
    trial: int = 1,
    delay_s: float = 0.1,
    duration_s: float = 10.0,
    connections: int = 1000,
    pool: bool = False,
    **load: Any,
) -> TrialData:
    """A trial at `rate_rps` on a server that serves each request for `delay_s`. `load`: of
    `arrivals`; `still` is a pause of the machine that was not observed. `pool`: the slots are
    inside the app, where requests start at once and queue."""
    load |= {"delay_s": delay_s, "connections": connections}
    sent, unsent = arrivals(rate_rps, duration_s, **load)
    spans = tuple(
        Span(100 + number % settings.workers, ns(start), ns(end), ns(start), str(number))
        for number, (_, sent_s, started_s, end) in enumerate(sent)
        for start in (sent_s if pool else started_s,)
    )
    closed = evidence(settings, level, trial=trial, tool="fast", delay_s=delay_s)
    measurement = measurement_of(sent, unsent, rate_rps)
    key = Trial(Cell(settings, "fast", level, rate=rate), trial)
    record = replace(
        closed.record,
        key=key.key,
        load_end_ns=ns(measurement.duration_s + 0.01),
        planned_requests=None,
        planned_duration_s=duration_s,
        planned_connections=connections,
        asked_rps=rate_rps,
    )
    return replace(
        closed,
        trial=key,
        record=record,
        measurement=measurement,
        spans=Spans(spans),
        lone_first=False,
        fixed_count=False,
    )
