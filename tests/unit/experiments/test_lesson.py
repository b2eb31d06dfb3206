"""The lesson: what it says, draws and asks, without a server."""

from __future__ import annotations

import os
import pty
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from harness import run_store
from harness.experiments.demo import Lesson
from harness.experiments.lesson import STEPS, TOOL, Step, law, outcome
from harness.experiments.reading import report_of
from harness.model import Breakdown, CellResult, Fault, Record, Trial
from harness.observe.spans import Live
from harness.plan import grid
from harness.server.inside import probe
from harness.server.worker_classes import configured_slots
from harness.terminal import console
from harness.terminal.picture import WIDTH, draw
from tests.builders.runs import recorded


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.title)
def test_the_law_is_that_of_the_class(step: Step) -> None:
    """What a step predicts follows from the settings; only the blocked loop has fewer slots."""
    slots = configured_slots(step.cell.server)
    assert step.at_once == (slots if slots is not None else step.cell.server.workers)
    assert step.rps * step.response_s == pytest.approx(step.cell.concurrency)
    assert 0 <= step.right < len(step.choices)
    assert all(ord(char) < 128 for char in step.question + step.why + step.changed + law(step))


def test_each_step_changes_one_thing() -> None:
    """Against the step it is compared with: class, connections, backlog or app, one at a time."""
    compared = {1: 0, 2: 1, 3: 1, 4: 3}
    for later, earlier in compared.items():
        one, other = STEPS[later].cell, STEPS[earlier].cell
        changed = [
            one.concurrency != other.concurrency,
            one.server.worker_class != other.server.worker_class,
            one.server.backlog != other.server.backlog,
        ]
        assert sum(changed) == 1, STEPS[later].title
    assert {step.cell.tool for step in STEPS} == {TOOL}


def test_outcome_says_numbers_beside_the_law_and_leaves_out_what_is_missing() -> None:
    step = STEPS[1]
    split = Breakdown(response_s=2.0, connect_s=0.0, accept_queue_s=1.0, service_s=1.001)
    cell = CellResult(
        Trial(step.cell, 1), "app", 1.0, "saturated", "", throughput_rps=3.98, breakdown=split
    )
    came, where = outcome(step, cell)
    assert came == (
        "Came out: 3.98 requests/s (the law: 4 at best), 2.00 s each (the law: 2.00 s)."
    )
    assert where == (
        "Where a request spent its time: connecting under 1 ms, accept queue 1.00 s,"
        " in the app 1.00 s."
    )
    invalid = CellResult(Trial(step.cell, 1), "app", 1.0, "invalid", "the server died")
    assert outcome(step, invalid) == ["Nothing can be said: the server died."]


def drawn(**changes: Any) -> list[str]:
    values: dict[str, Any] = {
        "at_s": 3.2, "connections": 8, "busy": (1, 1, 1, 0), "slots": 4, "queue": 4,
        "answered": 9, "requests": 33, "accepts_first": False,
    }  # fmt: skip
    return draw(**{**values, **changes})


def test_outcome_of_a_load_that_stood_still_is_of_the_whole_load() -> None:
    step = STEPS[4]
    run = run_store.load(recorded("overflow"))
    report = report_of(run)
    (cell,) = (
        cell
        for cell in report.cells
        if (cell.trial.cell.concurrency, cell.trial.cell.server.backlog) == (16, 2)
    )
    came, still, where = outcome(step, cell)
    assert came.startswith("Came out over the whole load: 10.1 requests/s")
    assert "846 ms each" in came  # 8.5 requests under way / 10.1, by Little's law
    assert still == "For 4.04 s of 7.93 s slots stood idle while clients waited."
    assert "connecting" in where


def test_picture_of_a_saturated_server() -> None:
    assert drawn() == [
        "   3.2 s  in the app   [#] [#] [#] [ ]          3 of 4 slots",
        "          accept queue oooo                     4",
        "          elsewhere    .                        1, on the way, or not connected",
        "          idle                                  0, nothing sent",
        "          answered                              9 of 33",
    ]


@pytest.mark.parametrize(
    ("answered", "idle"),
    [(0, 7), (1, 0), (25, 0), (28, 3), (33, 8)],  # the first is sent alone, the last have no next
)
def test_connections_without_a_request_wait_nowhere(answered: int, idle: int) -> None:
    busy = (1, 0, 0, 0) if answered < 33 else (0, 0, 0, 0)
    lines = drawn(busy=busy, queue=0, answered=answered, accepts_first=True)
    waiting = 8 - idle - sum(busy)
    assert f"{waiting}, accepted, inside a worker" in lines[2]
    assert f"{idle}, nothing sent" in lines[3]


@pytest.mark.parametrize("busy", [(0,), (200, 300), (8,) * 40])
@pytest.mark.parametrize("queue", [None, 0, 4000])
def test_picture_fits_and_says_what_is_missing(busy: tuple[int, ...], queue: int | None) -> None:
    lines = drawn(busy=busy, queue=queue, slots=None, connections=5000, accepts_first=True)
    assert all(len(line) <= WIDTH and line.isascii() for line in lines)
    assert f"{sum(busy)} of unlimited slots" in lines[0]
    assert lines[1].endswith("missing" if queue is None else str(queue))


def write(cells: memoryview, number: int, start: int, end: int) -> None:
    place = probe.FIRST + number * (probe.RECORD.size // 8)
    cells[place], cells[place + 1] = start, end


def test_live_counts_what_is_open_and_served_since_it_first_looked(tmp_path: Path) -> None:
    shared = probe.create_map(str(tmp_path / "spans-7-0.map"), 1000)
    struct.pack_into("<I", shared, 8, 7)
    cells = memoryview(shared).cast("q")
    write(cells, 0, 10, 20)  # the warm-up
    live = Live(tmp_path)
    assert live.look() == ({7: 0}, 0)
    for number in range(1, 500):
        write(cells, number, 30, 0)
    assert live.look() == ({7: 499}, 0)
    write(cells, 300, 30, 40)  # out of order, beyond what is read in one go
    assert live.look() == ({7: 498}, 1)
    for number in range(1, 500):
        write(cells, number, 30, 40)
    assert live.look() == ({7: 0}, 499)
    assert live.look() == ({7: 0}, 499)


def test_one_key_is_read_without_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    person, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        typed = threading.Timer(0.05, os.write, (person, b"B"))
        typed.start()
        assert console.one_key() == "b"
        typed.join()
    os.close(person)


def test_the_lesson_is_given_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a recorded run: nothing is drawn, all the rest is said."""
    run = run_store.load(recorded("lesson"))
    plan = run.plan
    with Lesson(False, run.directory, plan, grid(plan), lambda _: 20.0) as display:
        for one in grid(plan):
            display.begin(one)
            display.end(one, run.records[one.key])
    said = capsys.readouterr().out
    assert "about 2m 00s." in said
    assert [said.count(f"{number} of 6: ") for number in range(1, 7)] == [1] * 6
    assert said.count("Came out: ") == said.count("Answer: ") == 6
    assert "Your guess" not in said


def test_a_step_that_cannot_be_run_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_store.load(recorded("lesson"))
    plan = replace(run.plan, unavailable={"sync": "no Gunicorn"})
    one = grid(plan)[0]
    with Lesson(True, run.directory, plan, grid(plan), lambda _: 0.0) as display:
        display.begin(one)
        display.end(one, Record(one.key, Fault("unavailable", "no Gunicorn")))
    said = capsys.readouterr().out
    assert "This step is left out: no Gunicorn" in said
    assert "Answer: " not in said
