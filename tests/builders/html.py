"""Documents built by hand for the tests of the page: an ideal server with known numbers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tests.builders.analysis import ServedRequest, open_at, sentence, serve
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model.evidence import Summary
from workerlab.model.plan import Cell, Server, Trial
from workerlab.model.result import (
    Breakdown,
    ClassResult,
    Document,
    Invalid,
    Report,
    Result,
    TrialResult,
)
from workerlab.report.html.timeline_data import Bar, Moment, Rows, Timeline
from workerlab.server.worker_classes import class_named

SLEEP_S = 1.0
LIMIT = 2048


def server(worker_class: str) -> Server:
    return Server(worker_class, 4, 2 if worker_class == "gthread" else 1, LIMIT, 1000)


def slots(worker_class: str) -> int:
    return {"sync": 4, "gthread": 8}.get(worker_class, 4000)


def trial(worker_class: str, connections: int, tool: str = "fast", number: int = 1) -> Trial:
    return Trial(Cell(server(worker_class), tool, connections), number)


def bars_of(
    requests: Sequence[ServedRequest], workers: Sequence[int], *, arrivals_known: bool
) -> tuple[Bar, ...]:
    """The requests as bars of `workers` that take turns, optionally with their arrivals."""
    served = sorted(requests, key=lambda request: (request.start_s, request.sent_s))
    rows = [Rows() for _ in workers]
    return tuple(
        Bar(
            workers[i % len(workers)],
            rows[i % len(workers)].take(request.start_s, request.end_s),
            request.start_s,
            request.end_s,
            request.sent_s if arrivals_known else None,
        )
        for i, request in enumerate(served)
    )


def over_time(
    trial: Trial, rounds: int = 5, *, arrivals_known: bool = True, observed: bool = True
) -> Timeline:
    """A cell over time; `observed`: with queue, states and usage."""
    at, slot_count = trial.cell.concurrency, slots(trial.cell.server.worker_class)
    requests = serve(1 + rounds * at, at, [slot_count], lambda number: SLEEP_S)
    workers = (101, 102, 103, 104)
    end_s = max(request.end_s for request in requests)
    moments = [0.1 * i for i in range(int(10 * end_s) + 1)]
    waiting = open_at(moments, ((request.sent_s, request.start_s) for request in requests))
    serving = open_at(moments, ((request.start_s, request.end_s) for request in requests))
    states = [
        state
        for m, s, w in zip(moments, serving, waiting, strict=True)
        for state in (
            (m, "client ESTABLISHED", s + w),
            (m, "server ESTABLISHED", s + w),
            (m, "server TIME_WAIT", int(m)),
        )
    ]
    mega = 1 << 20
    usage = [
        Moment(0.02 + 0.001 * i, 0.01, 0.1, (90 + i) * mega, 12 * mega, at_s=m)
        for i, m in enumerate(moments)
    ]
    return Timeline(
        key=trial.key,
        bars=bars_of(requests, workers, arrivals_known=arrivals_known),
        shown=(0.0, end_s),
        workers=workers,
        queue=tuple(zip(moments, waiting, strict=True)) if observed else (),
        queue_limit=LIMIT if observed else None,
        states=tuple(states) if observed else (),
        usage=tuple(usage) if observed else (),
        steady=(2.0, end_s - 1.0),
    )


def cell(trial: Trial) -> Result:
    at, slot_count = trial.cell.concurrency, slots(trial.cell.server.worker_class)
    busy, response_s = min(at, slot_count), SLEEP_S * max(1.0, at / slot_count)
    wait_s, free = response_s - SLEEP_S, slot_count - at
    return Result(
        trial=trial,
        app="@sleep_wsgi",
        sleep_s=SLEEP_S,
        verdict="saturated" if free < 0 else "below capacity" if free else "at capacity",
        reason=sentence(f"{at} connections share {slot_count} slots"),
        worker_class=class_named(trial.cell.server.worker_class),
        requests=1 + 5 * at,
        failed=0,
        slots_configured=slot_count,
        slots_measured=busy,
        throughput_rps=busy / SLEEP_S,
        load_s=6 * response_s,
        bound_rps=busy / SLEEP_S,
        response=Summary(response_s, response_s, response_s, response_s, response_s),
        connect=Summary(0.0001, 0.0001, 0.0001, 0.0001, 0.0001),
        service=Summary(SLEEP_S, SLEEP_S, SLEEP_S, SLEEP_S, SLEEP_S),
        waiting=Summary(mean=wait_s),
        breakdown=Breakdown(
            response_s, 0.0001, wait_s, 0.0004, SLEEP_S, 0.0003, -0.0008, exact=True
        ),
    )


def invalid(trial: Trial, reason: str) -> Invalid:
    return Invalid(trial, "@sleep_wsgi", SLEEP_S, sentence(reason))


def group(worker_class: str, tool: str = "fast", knee: float | None = None) -> ClassResult:
    slot_count = slots(worker_class)
    return ClassResult(
        *(server(worker_class), tool, slot_count, min(slot_count, 16), None, None, knee),
        sentence("" if knee else "> 16"),
    )


def sweep(
    classes: Sequence[str] = ("sync", "eventlet", "gthread"),
    levels: Sequence[int] = (4, 8, 16),
    tool: str = "fast",
    *,
    arrivals_known: bool = True,
    observed: bool = True,
) -> Document:
    trials = [trial(name, at, tool) for name in classes for at in levels]
    knees = {"sync": 4.0, "gthread": 8.0}
    report = Report(
        run="by-hand",
        environment={"cpu": "a CPU", "cores": 2, "sysctl": {"net.core.somaxconn": "4096"}},
        overhead=1.01,
        cells=tuple(map(cell, trials)),
        classes=tuple(group(name, tool, knees.get(name)) for name in classes),
        setup_s={"start": 0.4, "warmup": 1.1, "stop": 0.1},
    )
    timelines = tuple(
        over_time(item, arrivals_known=arrivals_known, observed=observed) for item in trials
    )
    return replace(sweep_document(report), timelines=timelines)


def with_cells(document: Document, cells: Sequence[TrialResult]) -> Document:
    """The same sweep with other cells, which have no timelines."""
    run, environment = document.run, document.environment
    report = Report(run, environment, None, tuple(cells), document.classes, document.setup_s)
    return sweep_document(report)


def no_cells() -> Document:
    """A sweep without a finished trial."""
    return sweep_document(Report("empty", {}, None, (), (), {}))


EVIL = "</script><script>alert(1)</script><img src=https://example.org onerror=alert(2)>"


def hostile() -> Document:
    """A sweep with markup in every text that comes from the server, the app or the machine."""
    good, bad = cell(trial("sync", 8)), invalid(trial("sync", 16), f"worker 7 said {EVIL}")
    evil = sentence(EVIL)
    report = Report(
        run=EVIL,
        environment={EVIL: [EVIL], "versions": {"x": EVIL}},
        cells=(replace(good, app=EVIL, reason=evil, diagnosis=evil, notes=(evil,)), bad),
        classes=(group("sync"),),
        notes=(evil,),
    )
    states = ((0.0, EVIL, 1), (1.0, EVIL, 2))
    timeline = replace(over_time(good.trial), notes=(evil,), states=states)
    return replace(sweep_document(report), timelines=(timeline,))
