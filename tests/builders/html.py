"""Documents built by hand for the tests of the page: an ideal server, its numbers known."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tests.builders.analysis import ServedRequest, open_at, sentence, serve
from workerlab.finding import Finding
from workerlab.model import (
    Breakdown,
    Cell,
    CellResult,
    ClassResult,
    Document,
    Report,
    Server,
    Summary,
    Trial,
)
from workerlab.report.html.timeline_data import Bar, Moment, Timeline, row_numbers
from workerlab.report.sweep_document import sweep_document
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
    done: Sequence[ServedRequest], workers: Sequence[int], *, known: bool
) -> tuple[Bar, ...]:
    served = sorted(done, key=lambda one: (one.start_s, one.sent_s))
    places: dict[int, list[int]] = {pid: [] for pid in workers}
    for i in range(len(served)):
        places[workers[i % len(workers)]].append(i)
    row = {
        i: place
        for mine in places.values()
        for i, place in zip(
            mine, row_numbers((served[i].start_s, served[i].end_s) for i in mine), strict=True
        )
    }
    return tuple(
        Bar(
            workers[i % len(workers)],
            row[i],
            one.start_s,
            one.end_s,
            one.sent_s if known else None,
        )
        for i, one in enumerate(served)
    )


def over_time(
    asked: Trial,
    rounds: int = 5,
    *,
    known: bool = True,
    observed: bool = True,
    notes: tuple[Finding, ...] = (),
) -> Timeline:
    """A cell over time; `known`: arrivals; `observed`: queue, states and usage."""
    at, room = asked.cell.concurrency, slots(asked.cell.server.worker_class)
    done = serve(1 + rounds * at, at, [room], lambda number: SLEEP_S)
    workers = (101, 102, 103, 104)
    end_s = max(one.end_s for one in done)
    moments = [0.1 * i for i in range(int(10 * end_s) + 1)]
    waiting = open_at(moments, ((one.sent_s, one.start_s) for one in done))
    serving = open_at(moments, ((one.start_s, one.end_s) for one in done))
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
        key=asked.key,
        bars=bars_of(done, workers, known=known),
        shown=(0.0, end_s),
        spans=len(done),
        workers=workers,
        queue=tuple(zip(moments, waiting, strict=True)) if observed else (),
        queue_limit=LIMIT if observed else None,
        states=tuple(states) if observed else (),
        usage=tuple(usage) if observed else (),
        steady=(2.0, end_s - 1.0),
        notes=notes,
    )


def cell(asked: Trial) -> CellResult:
    at, room = asked.cell.concurrency, slots(asked.cell.server.worker_class)
    busy, response_s = min(at, room), SLEEP_S * max(1.0, at / room)
    wait_s = response_s - SLEEP_S
    return CellResult(
        trial=asked,
        app="@sleep_wsgi",
        sleep_s=SLEEP_S,
        verdict="saturated" if at > room else "at capacity" if at == room else "below capacity",
        reason=sentence(f"{at} connections share {room} slots"),
        worker_class=class_named(asked.cell.server.worker_class),
        requests=1 + 5 * at,
        failed=0,
        slots_configured=room,
        slots_measured=busy,
        throughput_rps=busy / SLEEP_S,
        bound_rps=busy / SLEEP_S,
        response=Summary(response_s, response_s, response_s, response_s, response_s),
        connect=Summary(0.0001, 0.0001, 0.0001, 0.0001, 0.0001),
        service=Summary(SLEEP_S, SLEEP_S, SLEEP_S, SLEEP_S, SLEEP_S),
        waiting=Summary(mean=wait_s),
        breakdown=Breakdown(
            response_s, 0.0001, wait_s, 0.0004, SLEEP_S, 0.0003, -0.0008, exact=True
        ),
    )


def invalid(asked: Trial, reason: str) -> CellResult:
    return CellResult(asked, "@sleep_wsgi", SLEEP_S, "invalid", sentence(reason))


def group(worker_class: str, tool: str = "fast", knee: float | None = None) -> ClassResult:
    room = slots(worker_class)
    return ClassResult(
        *(server(worker_class), tool, room, min(room, 16), None, None, knee),
        sentence("" if knee else "> 16"),
    )


def sweep(
    classes: Sequence[str] = ("sync", "eventlet", "gthread"),
    levels: Sequence[int] = (4, 8, 16),
    tool: str = "fast",
    *,
    known: bool = True,
    observed: bool = True,
) -> Document:
    trials = [trial(name, at, tool) for name in classes for at in levels]
    knees = {"sync": 4.0, "gthread": 8.0}
    report = Report(
        run="by-hand",
        environment={"cpu": "a CPU", "cores": 2, "sysctl": {"net.core.somaxconn": "4096"}},
        overhead=1.01,
        cells=tuple(cell(one) for one in trials),
        classes=tuple(group(name, tool, knees.get(name)) for name in classes),
        setup_s={"start": 0.4, "warmup": 1.1, "stop": 0.1},
    )
    timelines = tuple(over_time(asked, known=known, observed=observed) for asked in trials)
    return replace(sweep_document(report), timelines=timelines)


def with_cells(one: Document, cells: Sequence[CellResult]) -> Document:
    """The same with other cells, of which nothing was seen over time."""
    report = Report(one.run, one.environment, None, tuple(cells), one.classes, one.setup_s)
    return sweep_document(report)


def no_cells() -> Document:
    """A sweep of which nothing was finished."""
    return sweep_document(Report("empty", {}, None, (), (), {}))
