"""Trials made by an ideal server, for the tests of analysis and report.

A small discrete-event simulation: a closed loop of N connections, the first request alone if
wanted, `slots` requests served at once, each for exactly `delay_s`. What waits does so in one
queue for all (sync, eventlet), or in the queue of the worker it was dealt to (gthread, tornado):
the former is the kernel's accept queue, the latter accepted and inside the worker. All that a real
trial could have observed of it is there: `bare` takes it away.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from msgspec.structs import replace as changed

from workerlab.analysis import TrialData, analyse
from workerlab.analysis.facts import Facts, facts_of
from workerlab.finding import Finding, Note
from workerlab.model import (
    AbReport,
    AbTimes,
    Cell,
    CellResult,
    ConnectionSample,
    Counters,
    Measurement,
    Observations,
    ProcessSample,
    QueueSample,
    Record,
    Server,
    Span,
    Spans,
    Summary,
    Timing,
    Trial,
)
from workerlab.numbers.samples import summarise
from workerlab.report.values import AB_TIMES
from workerlab.server.worker_classes import class_named

by_worker = attrgetter("worker")

ORIGIN_NS = 1_000_000_000
NS = 1_000_000_000


class Served(Struct, frozen=True):
    """One request of the simulation, seconds since the load began."""

    worker: int
    sent_s: float
    start_s: float
    end_s: float
    accepted_s: float = 0.0


def serve(
    requests: int,
    connections: int,
    slots: Sequence[int],
    delay_s: Callable[[int], float],
    *,
    lone_first: bool = True,
    deal: Callable[[int], int] = lambda number: 0,
) -> list[Served]:
    """All requests, in order of completion. slots: per worker; `deal(number)`: to whose queue."""
    queues: list[deque[float]] = [deque() for _ in slots]
    free, events, done = list(slots), list[tuple[float, int, int, float, float]](), list[Served]()
    numbers, served = itertools.count(), itertools.count()
    left = requests

    def start(worker: int, now: float) -> None:
        while free[worker] and queues[worker]:
            free[worker] -= 1
            number = next(served)
            sent = queues[worker].popleft()
            heapq.heappush(events, (now + delay_s(number), number, worker, sent, now))

    def send(count: int, now: float) -> None:
        nonlocal left
        for _ in range(min(count, left)):
            left -= 1
            worker = deal(next(numbers))
            queues[worker].append(now)
            start(worker, now)

    send(1 if lone_first else connections, 0.0)
    while events:
        now, _, worker, sent, began = heapq.heappop(events)
        done.append(Served(worker, sent, began, now))
        free[worker] += 1
        start(worker, now)
        send(connections if lone_first and len(done) == 1 else 1, now)
    return done


def ns(seconds: float) -> int:
    return ORIGIN_NS + round(seconds * NS)


def spans_of(done: Sequence[Served], *, named: bool = False) -> tuple[Span, ...]:
    return tuple(
        Span(
            100 + one.worker,
            ns(one.start_s),
            ns(one.end_s),
            ns(one.accepted_s),
            str(number) if named else None,
        )
        for number, one in enumerate(done)
    )


def timings_of(done: Sequence[Served]) -> tuple[Timing, ...]:
    return tuple(
        Timing(d.sent_s, 0.0, None, d.end_s - d.sent_s, 200, None, request_id=str(number))
        for number, d in enumerate(done)
    )


def open_at(moments: Sequence[float], intervals: Iterable[tuple[float, float]]) -> list[int]:
    """How many of these are open at each moment: from their first one on, until their last."""
    changes = [0] * (len(moments) + 1)
    for since, until in intervals:
        changes[bisect_left(moments, since)] += 1
        changes[bisect_left(moments, until)] -= 1
    return list(itertools.accumulate(changes[:-1]))


@cache
def established(count: int) -> dict[str, int]:
    return {"ESTABLISHED": count}


def observations_of(done: Sequence[Served], every_s: float) -> Observations:
    """Samplers that see all and cost nothing: an accept queue and nothing else waits in the
    kernel, each open request is a connection of its worker."""
    most = max(one.end_s for one in done)
    moments = [every_s * number for number in range(math.floor(most / every_s) + 1)]
    unaccepted = open_at(moments, ((one.sent_s, one.accepted_s) for one in done))
    unserved = open_at(moments, ((one.accepted_s, one.start_s) for one in done))
    connected = open_at(moments, ((one.sent_s, one.end_s) for one in done))
    pids, held = zip(
        *(
            (100 + worker, open_at(moments, ((one.accepted_s, one.end_s) for one in served)))
            for worker, served in groupby(sorted(done, key=by_worker), by_worker)
        ),
        strict=True,
    )

    @cache
    def by_pid(counts: tuple[int, ...]) -> dict[int, int]:
        return {pid: count for pid, count in zip(pids, counts, strict=True) if count}

    at_ns = [ns(at_s) for at_s in moments]
    return Observations(
        queue=tuple(QueueSample(*sample, 2048) for sample in zip(at_ns, unaccepted, strict=True)),
        processes=tuple(
            ProcessSample(at, at_s / 10, at_s / 20, at_s / 4, 50 << 20, 10 << 20)
            for at, at_s in zip(at_ns, moments, strict=True)
        ),
        connections=tuple(
            ConnectionSample(
                at, established(count), established(count), by_pid(tuple(per_pid)), waiting
            )
            for at, count, waiting, *per_pid in zip(at_ns, connected, unserved, *held, strict=True)
        ),
        counters=Counters(0, 0, 0, 0),
        cores=2,
        syn_steps_s=(1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0),
    )


def bare(trial: TrialData) -> TrialData:
    """The same trial on a machine where nothing can be observed but spans and the tool."""
    names = ("queue", "processes", "connections", "counters")
    unseen = Observations(missing=dict.fromkeys(names, "not Linux"))
    untimed = with_spans(trial, (changed(span, accept_ns=None) for span in trial.spans.spans))
    return replace(untimed, observations=unseen)


SYNC = Server("sync", 4, 1, 2048, 1000)


def server(worker_class: str = "sync", workers: int = 4, threads: int = 1) -> Server:
    return Server(worker_class, workers, threads, 2048, 1000)


def measurement(done: Sequence[Served], *, lone_first: bool = True) -> Measurement:
    """What a tool that errs in nothing says of the load."""
    total_s = max(one.end_s for one in done)
    return Measurement(
        requests=len(done),
        failed=0,
        errors={},
        duration_s=total_s,
        rps=len(done) / total_s,
        response=Summary(*summarise([one.end_s - one.sent_s for one in done])),
        connect=Summary(*summarise([0.0] * len(done))),
        first_byte=Summary(*summarise([one.end_s - one.sent_s for one in done])),
        connects_s=(0.0,) * len(done),
        lone_s=done[0].end_s - done[0].sent_s if lone_first else None,
    )


def printed(said: Measurement, connections: int) -> AbReport:
    """What ab prints of such a load, each answer 150 bytes long."""
    times = AbTimes(*(said.response.mean,) * 5)
    return AbReport(
        connections,
        said.requests,
        said.duration_s,
        said.duration_s * connections / said.requests,
        said.duration_s / said.requests,
        150 * said.requests / said.duration_s,
        150 * said.requests,
        10 * said.requests,
        {"connect": AbTimes(0.0, 0.0, 0.0, 0.0, 0.0), **dict.fromkeys(AB_TIMES[1:], times)},
    )


def evidence(
    asked: Server = SYNC,
    connections: int = 8,
    *,
    trial: int = 1,
    tool: str = "ab",
    rounds: int = 5,
    delay_s: float = 1.0,
    delays: Callable[[int], float] | None = None,
    slots: Sequence[int] | None = None,
    deal: Callable[[int], int] | None = None,
    timed: bool = False,
) -> TrialData:
    """A trial on an ideal server. slots: what each worker really serves, one queue for all
    unless `deal` says otherwise; by default what the class's settings say."""
    row = class_named(asked.worker_class)
    configured = row.slots_of(asked)
    if slots is None:
        slots = [configured if configured is not None else 10**6]
    done = serve(
        1 + rounds * connections,
        connections,
        slots,
        delays or (lambda number: delay_s),
        deal=deal or (lambda number: 0),
    )
    if deal is None:  # one queue: say that the workers took turns
        done = [
            replace(one, worker=i % asked.workers, accepted_s=one.start_s)
            for i, one in enumerate(done)
        ]
    else:
        done = [replace(one, accepted_s=one.sent_s) for one in done]
    said = measurement(done)
    if tool == "fast":
        said = replace(said, timings=timings_of(done), origin_ns=ORIGIN_NS)
    if tool == "ab":
        said = replace(said, ab=printed(said, connections))
    key = Trial(Cell(asked, tool, connections), trial)
    record = Record(
        key=key.key,
        fault=None,
        lone_s=(delay_s, delay_s, delay_s),
        load_start_ns=ORIGIN_NS,
        load_end_ns=ns(said.duration_s + 0.01),
        start_s=0.4,
        warmup_s=1.1,
        stop_s=0.1,
        planned_requests=len(done),
        worker_pids=tuple(range(100, 100 + asked.workers)),
    )
    return TrialData(
        trial=key,
        record=record,
        measurement=said,
        parse_error=None,
        spans=Spans(spans_of(done, named=tool == "fast")),
        app="@sleep_wsgi",
        sleep_s=delay_s,
        lone_first=True,
        fixed_count=not timed,
        worker_class=row,
        observations=observations_of(done, delay_s / 20),
    )


# --- the same trial, but ----------------------------------------------------------------------


def saying(trial: TrialData, **changes: Any) -> TrialData:
    """Its load tool says something else."""
    assert trial.measurement is not None
    return replace(trial, measurement=replace(trial.measurement, **changes))


def recording(trial: TrialData, **changes: Any) -> TrialData:
    assert trial.record is not None
    return replace(trial, record=replace(trial.record, **changes))


def seeing(trial: TrialData, **changes: Any) -> TrialData:
    """Other observations."""
    return replace(trial, observations=replace(trial.observations, **changes))


def asking(trial: TrialData, **changes: Any) -> TrialData:
    """Of another cell."""
    return replace(trial, trial=replace(trial.trial, cell=replace(trial.cell, **changes)))


def with_spans(trial: TrialData, spans: Iterable[Span]) -> TrialData:
    return replace(trial, spans=replace(trial.spans, spans=tuple(spans)))


def gthread(connections: int, *, workers: int = 4, threads: int = 2, trial: int = 1) -> TrialData:
    """Connections dealt by a fixed pattern that is not even, queued inside each worker."""
    pattern = (0, 1, 0, 2, 3, 0, 1, 0, 2, 1)
    return evidence(
        server("gthread", workers, threads),
        connections,
        trial=trial,
        slots=[threads] * workers,
        deal=lambda number: pattern[number % len(pattern)] % workers,
    )


def kept(trial: TrialData) -> TrialData:
    """The same trial on kept connections, which were accepted before the load began."""
    spans = (changed(span, accept_ns=ns(0)) for span in trial.spans.spans)
    return with_spans(asking(trial, keepalive=True), spans)


def dealt(*counts: int, connections: int = 8, threads: int = 4, tool: str = "ab") -> TrialData:
    """Kept connections, so many on each of two workers, each of which serves `threads` at once."""
    working = [min(count, threads) for count in counts]
    asked = server("gthread", 2, threads)
    trial = kept(evidence(asked, connections, slots=[sum(working)], tool=tool))
    owners = [100] * working[0] + [101] * working[1]  # of the slots, which take turns
    spans = trial.spans.spans
    trial = with_spans(
        trial, (changed(one, pid=owners[i % len(owners)]) for i, one in enumerate(spans, -1))
    )
    samples = tuple(
        replace(one, per_worker=dict(zip((100, 101), counts, strict=True)))
        for one in trial.observations.connections
    )
    return seeing(trial, connections=samples)


DROPS = Counters(40, 41, 15, 2)
SMALL = Server("sync", 2, 1, 2, 1000)


def dropping(
    tool: str = "ab",
    *,
    connects_s: tuple[float, ...] = (1.02,) * 12 + (2.03,) * 3,
    counters: Counters | None = DROPS,
    longest: int = 3,
) -> TrialData:
    """16 connections on 2 slots with an accept queue of 2."""
    trial = evidence(SMALL, 16, tool=tool, delay_s=0.3)
    assert trial.measurement is not None
    connect = replace(trial.measurement.connect, max=max(connects_s, default=0.0))
    queue = tuple(QueueSample(s.at_ns, longest, 2) for s in trial.observations.queue)
    return seeing(
        saying(trial, connects_s=connects_s, connect=connect), counters=counters, queue=queue
    )


# --- what is made of a trial ----------------------------------------------------------------------


def derived(trial: TrialData) -> Facts:
    found = facts_of(trial)
    assert isinstance(found, Facts), found
    return found


def judged(trial: TrialData) -> CellResult:
    """The one cell of a run of this trial."""
    return analyse("run", {}, [trial]).cells[0]


def sentence(text: str) -> Finding:
    """A finding whose sentence is this text."""
    return Note(text)


def every(whole: Finding | None) -> dict[str, Any]:
    """A finding and all that are in it, by code."""
    if whole is None:
        return {}
    findings = {whole.code: whole}
    for value in whole.values.values():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Finding):
                findings |= every(one)
    return findings


def noted(cell: CellResult) -> dict[str, Finding]:
    """The notes of a cell, by code."""
    return {note.code: note for note in cell.notes}


def kinds(trial: TrialData) -> list[type]:
    """The diagnoses of the one cell of a run of this trial."""
    return [type(diagnosis) for diagnosis in judged(trial).findings]


K = TypeVar("K")


def diagnosed(kind: type[K], trial: TrialData) -> K:
    """The diagnosis of its cell, which is of this kind."""
    findings = judged(trial).diagnosis
    assert isinstance(findings, kind), findings
    return findings
