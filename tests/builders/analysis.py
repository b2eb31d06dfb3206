"""Trials of an ideal server, for the tests of analysis and report.

A small discrete-event simulation: a closed loop of N connections, optionally with a lone first
request, and `slots` requests served at once, each for exactly `delay_s`. Requests wait in one queue
for all workers (sync, eventlet), the kernel's accept queue, or in the queue of the worker that
accepted them (gthread, tornado). A trial has all observations that a real one could have; `bare`
removes them.
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

from workerlab.analysis import TrialData, analyse
from workerlab.analysis.facts import Facts
from workerlab.finding import Finding, Note
from workerlab.load.registry import faster_tools
from workerlab.model.evidence import (
    AbReport,
    AbTimes,
    ConnectionSample,
    Counters,
    Measurement,
    Observations,
    ProcessSample,
    QueueSample,
    Record,
    Span,
    Spans,
    Summary,
    Timing,
)
from workerlab.model.plan import Cell, Server, Trial
from workerlab.model.result import Invalid, Report, Result, TrialResult
from workerlab.numbers.samples import summarise
from workerlab.report.json import AB_TIMES
from workerlab.server.worker_classes import class_named

T = TypeVar("T")

ORIGIN_NS = 1_000_000_000
NS = 1_000_000_000


class ServedRequest(Struct, frozen=True):
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
) -> list[ServedRequest]:
    """All requests, in order of completion. `slots`: of each worker; `deal(number)`: the worker
    that gets the request of that number."""
    queues: list[deque[float]] = [deque() for _ in slots]
    free, events = list(slots), list[tuple[float, int, int, float, float]]()
    completed = list[ServedRequest]()
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
        completed.append(ServedRequest(worker, sent, began, now))
        free[worker] += 1
        start(worker, now)
        send(connections if lone_first and len(completed) == 1 else 1, now)
    return completed


def ns(seconds: float) -> int:
    return ORIGIN_NS + round(seconds * NS)


def spans_of(requests: Sequence[ServedRequest], *, named: bool = False) -> tuple[Span, ...]:
    return tuple(
        Span(
            100 + request.worker,
            ns(request.start_s),
            ns(request.end_s),
            ns(request.accepted_s),
            str(number) if named else None,
        )
        for number, request in enumerate(requests)
    )


def timings_of(requests: Sequence[ServedRequest]) -> tuple[Timing, ...]:
    return tuple(
        Timing(r.sent_s, 0.0, None, r.end_s - r.sent_s, 200, None, request_id=str(number))
        for number, r in enumerate(requests)
    )


def open_at(moments: Sequence[float], intervals: Iterable[tuple[float, float]]) -> list[int]:
    """The number of open intervals at each moment; an interval does not include its end."""
    changes = [0] * (len(moments) + 1)
    for since, until in intervals:
        changes[bisect_left(moments, since)] += 1
        changes[bisect_left(moments, until)] -= 1
    return list(itertools.accumulate(changes[:-1]))


@cache
def established(count: int) -> dict[str, int]:
    return {"ESTABLISHED": count}


def observations_of(requests: Sequence[ServedRequest], every_s: float) -> Observations:
    """Samples without gaps or errors: requests wait in the kernel only to be accepted, and each
    open request is a connection of its worker."""
    total_s = max(request.end_s for request in requests)
    moments = [every_s * number for number in range(math.floor(total_s / every_s) + 1)]
    unaccepted = open_at(moments, ((request.sent_s, request.accepted_s) for request in requests))
    unserved = open_at(moments, ((request.accepted_s, request.start_s) for request in requests))
    connected = open_at(moments, ((request.sent_s, request.end_s) for request in requests))
    by_worker = attrgetter("worker")
    per_worker = {
        100 + worker: open_at(moments, ((request.accepted_s, request.end_s) for request in served))
        for worker, served in groupby(sorted(requests, key=by_worker), by_worker)
    }

    @cache
    def by_pid(counts: tuple[int, ...]) -> dict[int, int]:
        return {pid: count for pid, count in zip(per_worker, counts, strict=True) if count}

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
            for at, count, waiting, *per_pid in zip(
                at_ns, connected, unserved, *per_worker.values(), strict=True
            )
        ),
        counters=Counters(0, 0, 0, 0),
        cores=2,
        syn_steps_s=(1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0),
    )


def bare(trial: TrialData) -> TrialData:
    """The same trial on a machine where only spans and the load tool can be observed."""
    samplers = ("queue", "processes", "connections", "counters")
    unobserved = Observations(missing=dict.fromkeys(samplers, "not Linux"))
    untimed = with_spans(trial, (replace(span, accept_ns=None) for span in trial.spans.spans))
    return replace(untimed, observations=unobserved)


SYNC = Server("sync", 4, 1, 2048, 1000)


def server(worker_class: str = "sync", workers: int = 4, threads: int = 1) -> Server:
    return Server(worker_class, workers, threads, 2048, 1000)


def measurement(requests: Sequence[ServedRequest]) -> Measurement:
    """The result of an exact load tool that sends its first request alone."""
    total_s = max(request.end_s for request in requests)
    response = Summary(*summarise([request.end_s - request.sent_s for request in requests]))
    return Measurement(
        requests=len(requests),
        failed=0,
        errors={},
        duration_s=total_s,
        rps=len(requests) / total_s,
        response=response,
        connect=Summary(*summarise([0.0] * len(requests))),
        first_byte=response,
        connects_s=(0.0,) * len(requests),
        lone_s=requests[0].end_s - requests[0].sent_s,
    )


def ab_report_of(result: Measurement, connections: int) -> AbReport:
    """What ab prints about such a load, with responses of 150 bytes."""
    times = AbTimes(*(result.response.mean,) * 5)
    return AbReport(
        connections,
        result.requests,
        result.duration_s,
        result.duration_s * connections / result.requests,
        result.duration_s / result.requests,
        150 * result.requests / result.duration_s,
        150 * result.requests,
        10 * result.requests,
        {"connect": AbTimes(0.0, 0.0, 0.0, 0.0, 0.0), **dict.fromkeys(AB_TIMES[1:], times)},
    )


def evidence(
    settings: Server = SYNC,
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
    """A trial on an ideal server. `slots`: the requests that each worker really serves at once, by
    default as many as its settings allow; one queue for all workers unless `deal` is given."""
    worker_class, delays = class_named(settings.worker_class), delays or (lambda number: delay_s)
    if slots is None:
        configured = worker_class.slots_of(settings)
        slots = [10**6 if configured is None else configured]
    count = 1 + rounds * connections
    if deal is None:  # one queue: as if the workers took turns
        requests = [
            replace(request, worker=i % settings.workers, accepted_s=request.start_s)
            for i, request in enumerate(serve(count, connections, slots, delays))
        ]
    else:
        dealt = serve(count, connections, slots, delays, deal=deal)
        requests = [replace(request, accepted_s=request.sent_s) for request in dealt]
    result = measurement(requests)
    if tool == "fast":
        result = replace(result, timings=timings_of(requests), origin_ns=ORIGIN_NS)
    if tool == "ab":
        result = replace(result, ab=ab_report_of(result, connections))
    key = Trial(Cell(settings, tool, connections), trial)
    record = Record(
        key=key.key,
        fault=None,
        lone_s=(delay_s, delay_s, delay_s),
        load_start_ns=ORIGIN_NS,
        load_end_ns=ns(result.duration_s + 0.01),
        start_s=0.4,
        warmup_s=1.1,
        stop_s=0.1,
        planned_requests=len(requests),
        worker_pids=tuple(range(100, 100 + settings.workers)),
    )
    return TrialData(
        trial=key,
        record=record,
        measurement=result,
        parse_error=None,
        spans=Spans(spans_of(requests, named=tool == "fast")),
        app="@sleep_wsgi",
        sleep_s=delay_s,
        lone_first=True,
        fixed_count=not timed,
        worker_class=worker_class,
        observations=observations_of(requests, delay_s / 20),
        faster_tools=faster_tools(tool),
    )


# --- variants of a trial ----------------------------------------------------------------------


def with_measurement(trial: TrialData, **changes: Any) -> TrialData:
    return replace(trial, measurement=replace(trial.measurement, **changes))


def with_failures(
    trial: TrialData, fails: Callable[[int], bool], *, status: int = 503, end_s: float | None = None
) -> TrialData:
    """The requests with these numbers failed with this status, `end_s` after they were sent."""
    timings = tuple(
        replace(timing, status=status, cause="non_2xx", end_s=end_s or timing.end_s)
        if fails(number)
        else timing
        for number, timing in enumerate(trial.measurement.timings)
    )
    failed = sum(map(fails, range(trial.measurement.requests)))
    return with_measurement(trial, timings=timings, failed=failed, errors={"non_2xx": failed})


def with_record(trial: TrialData, **changes: Any) -> TrialData:
    return replace(trial, record=replace(trial.record, **changes))


def with_lone(trial: TrialData, lone_s: tuple[float, ...]) -> TrialData:
    """The same trial with these lone responses before the load, and none by the load tool."""
    return with_record(with_measurement(trial, lone_s=None), lone_s=lone_s)


def with_observations(trial: TrialData, **changes: Any) -> TrialData:
    return replace(trial, observations=replace(trial.observations, **changes))


def with_cell(trial: TrialData, **changes: Any) -> TrialData:
    return replace(trial, trial=replace(trial.trial, cell=replace(trial.cell, **changes)))


def with_spans(trial: TrialData, spans: Iterable[Span]) -> TrialData:
    return replace(trial, spans=replace(trial.spans, spans=tuple(spans)))


def launched(items: Iterable[T]) -> list[T]:
    """These trials or results of one cell, numbered as its launches."""
    return [
        replace(item, trial=replace(item.trial, number=number))
        for number, item in enumerate(items, 1)
    ]


def gthread(connections: int, *, trial: int = 1) -> TrialData:
    """Four workers with two threads each. Connections are dealt by a fixed, uneven pattern, and
    queue inside the workers."""
    return evidence(
        server("gthread", 4, 2),
        connections,
        trial=trial,
        slots=[2] * 4,
        deal=lambda number: (0, 1, 0, 2, 3, 0, 1, 0, 2, 1)[number % 10],
    )


def with_keepalive(trial: TrialData) -> TrialData:
    """The same trial on keep-alive connections, accepted before the load began."""
    spans = (replace(span, accept_ns=ns(0)) for span in trial.spans.spans)
    return with_spans(with_cell(trial, keepalive=True), spans)


def keepalive_trial(*counts: int, connections: int = 8, tool: str = "ab") -> TrialData:
    """Two gthread workers with four threads and these numbers of keep-alive connections."""
    first, second = (min(count, 4) for count in counts)
    settings = server("gthread", 2, 4)
    trial = with_keepalive(evidence(settings, connections, slots=[first + second], tool=tool))
    pids = [100] * first + [101] * second  # of the slots, which take turns
    spans = (replace(span, pid=pids[i % len(pids)]) for i, span in enumerate(trial.spans.spans, -1))
    trial = with_spans(trial, spans)
    samples = tuple(
        replace(sample, per_worker=dict(zip((100, 101), counts, strict=True)))
        for sample in trial.observations.connections
    )
    return with_observations(trial, connections=samples)


DROPS = Counters(40, 41, 15, 2)
SMALL = Server("sync", 2, 1, 2, 1000)


def overflow_trial(
    tool: str = "ab",
    *,
    connects_s: tuple[float, ...] = (1.02,) * 12 + (2.03,) * 3,
    counters: Counters | None = DROPS,
    queue_length: int = 3,
) -> TrialData:
    """16 connections on 2 slots with an accept queue of 2."""
    trial = evidence(SMALL, 16, tool=tool, delay_s=0.3)
    connect = replace(trial.measurement.connect, max=max(connects_s, default=0.0))
    queue = tuple(QueueSample(s.at_ns, queue_length, 2) for s in trial.observations.queue)
    return with_observations(
        with_measurement(trial, connects_s=connects_s, connect=connect),
        counters=counters,
        queue=queue,
    )


# --- results of the analysis ----------------------------------------------------------------------


def derived(trial: TrialData) -> Facts:
    facts = trial.facts
    assert isinstance(facts, Facts), facts
    return facts


def report_of(*trials: TrialData, **environment: object) -> Report:
    """The report on a run of these trials."""
    return analyse("run", environment, trials)


def verdicts(report: Report) -> list[str]:
    return [cell.verdict for cell in report.cells]


def cell_of(trial: TrialData) -> TrialResult:
    """The only cell of a run of this trial."""
    return report_of(trial).cells[0]


def result_of(trial: Trial, **values: Any) -> Result:
    """A valid result with these values; by default, of one request in one second."""
    defaults = {
        "app": "app",
        "sleep_s": None,
        "verdict": "saturated",
        "reason": sentence("saturated"),
        "requests": 1,
        "failed": 0,
        "slots_measured": 1,
        "throughput_rps": 1.0,
        "load_s": 1.0,
    }
    return Result(trial=trial, **{**defaults, **values})


def invalid_of(result: TrialResult, reason: Finding) -> Invalid:
    """The trial of this result, invalid for this reason."""
    return Invalid(result.trial, result.app, result.sleep_s, reason)


def sentence(text: str) -> Finding:
    """A finding whose sentence is this text."""
    return Note(text)


def findings_by_code(finding: Finding | None) -> dict[str, Any]:
    """A finding and all findings inside it, by code."""
    if finding is None:
        return {}
    findings = {finding.code: finding}
    for value in finding.values.values():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Finding):
                findings |= findings_by_code(item)
    return findings


def notes_by_code(cell: TrialResult) -> dict[str, Finding]:
    """The notes of a cell, by code."""
    return {note.code: note for note in cell.notes}


def diagnosis_types(trial: TrialData) -> list[type]:
    """The types of the diagnoses of this trial's cell, which must be valid."""
    cell = cell_of(trial)
    assert isinstance(cell, Result), cell.reason
    return [type(diagnosis) for diagnosis in cell.findings]


K = TypeVar("K")


def diagnosis_of(kind: type[K], trial: TrialData) -> K:
    """The diagnosis of this trial's cell, which must be of this type."""
    diagnosis = cell_of(trial).diagnosis
    assert isinstance(diagnosis, kind), diagnosis
    return diagnosis
