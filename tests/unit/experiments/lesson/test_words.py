"""The lesson: what is said of a step, and drawn while it runs, without a server."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import SYNC, derived, evidence, judged
from tests.builders.noise import noisy
from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.analysis.facts import Facts, facts_of
from workerlab.analysis.stall import in_flight_integral_s, whole_load
from workerlab.experiments.demo.terminal import (
    COLUMNS,
    IN_WORKER,
    NO_ROOM,
    WIDTH,
    draw,
    over_time,
    requests_over_time,
)
from workerlab.experiments.lesson.law import allen_cunneen
from workerlab.experiments.lesson.steps import TOOL, LessonStep, read
from workerlab.experiments.lesson.words import (
    Measured,
    StepOutcome,
    answer,
    law_in_words,
    measured,
    outcome,
    overflowed,
    score,
)
from workerlab.experiments.reading import report_of, trial_data
from workerlab.model import Breakdown, CellResult, Summary, Trial
from workerlab.numbers.units import format_duration
from workerlab.observe.spans import Live
from workerlab.server.inside.maps import HEADER_BYTES, SPANS, create_map
from workerlab.server.worker_classes import configured_slots

STEPS = read().steps


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.title)
def test_the_law_is_that_of_the_class(step: LessonStep) -> None:
    """What a step predicts follows from the settings; only the blocked loop has fewer slots."""
    slots = configured_slots(step.cell.server)
    assert step.at_once == (slots if slots is not None else step.cell.server.workers)
    law = step.law
    assert (law.response_s is None) == law.in_vain == (law.rps == 0)
    if law.rps and law.response_s is not None and not step.load.is_open:
        assert law.rps * law.response_s == pytest.approx(step.cell.concurrency)
    assert 0 <= step.right < len(step.choices)
    words = step.question + step.why + step.changed + law_in_words(step)
    assert words.isascii()


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
        "Measured: 3.98 requests/s (the law: 4 in the long run), a mean of 2.00 s each"
        " (in flight / throughput; the law: 2.00 s)."
    )
    assert where == (
        "Where a request spent its time: connecting under 1 ms, accept queue 1.00 s,"
        " in the app 1.00 s."
    )
    invalid = CellResult(Trial(step.cell, 1), "app", 1.0, "invalid", "the server died")
    assert outcome(step, invalid) == ["No result: the server died."]


def test_the_law_says_its_numbers() -> None:
    assert law_in_words(STEPS[1]) == (
        "The law: min(8 connections, 4 slots) / 1 s = 4 requests/s at best."
        " By Little's law, each then takes 8 connections / 4 requests/s = 2.00 s on average."
    )
    unlimited = replace(STEPS[1], at_once=None, load=replace(STEPS[1].load, delay_s=0.5))
    assert law_in_words(unlimited) == (
        "The law: min(8 connections, unlimited slots) / 0.5 s = 16 requests/s at best."
        " By Little's law, each then takes 8 connections / 16 requests/s = 500 ms on average."
    )


def test_the_law_of_what_computes_names_both_bounds() -> None:
    step = replace(STEPS[7], cores=4.0)
    assert law_in_words(step) == (
        "The law: the slots allow min(4 connections, 4 slots) / 0.25 s = 16 requests/s, and the CPU"
        " min(1 worker, 4 cores) / 0.25 s = 4. The lower of the two is 4 requests/s at best. By"
        " Little's law, each then takes 4 connections / 4 requests/s = 1.00 s on average."
    )
    four = replace(step, server=replace(step.server, workers=4))
    assert four.law.rps == 16
    assert replace(four, cores=2.0).law.rps == 8  # until the cores are full


def test_the_law_of_random_arrivals() -> None:
    assert law_in_words(STEPS[8]) == (
        "The law: 16 requests/s come at random. The slots can serve 20, so that they are busy 80 %"
        " of the time. By queueing theory, a request then waits about 88.9 ms on average, and takes"
        " 189 ms."
    )
    wait = partial(allen_cunneen, mean_s=0.1, square_s2=0.01)  # what the explanation says of others
    assert wait(16, slots=2, arrivals_cv2=0) == 0
    assert "evenly spaced, none would wait" in STEPS[8].why
    for rate, workers in ((16, 3), (32, 4)):
        assert f"to {1000 * wait(rate, slots=workers):.0f} ms" in STEPS[8].why
    unlimited = replace(STEPS[8], at_once=None)
    assert unlimited.law.response_s == 0.1
    assert "The slots can serve" not in law_in_words(unlimited)


def test_the_law_of_clients_that_give_up() -> None:
    impatient, law = STEPS[9], STEPS[9].law
    assert law.in_vain
    assert (law.rps, law.response_s, law.patient_s) == (0, None, 4)
    words = law_in_words(impatient)
    assert "each request would take 4.00 s. These give up after 2.50 s" in words
    patient = replace(impatient, load=replace(impatient.load, patience_s=4.5))
    assert (patient.law.rps, patient.law.response_s) == (4, 4)
    assert law_in_words(patient).startswith("The law: min(16 connections, 4 slots)")


def test_arrivals_at_random_are_measured_from_when_they_were_due() -> None:
    step = STEPS[8]
    response = Summary(0.1, 0.183, 0.15, 0.4, 0.6)
    cell = CellResult(
        Trial(step.cell, 1), "app", 1.0, "below capacity", "", throughput_rps=15.9,
        response=response,
    )  # fmt: skip
    assert outcome(step, cell)[0] == (
        "Measured: 15.9 requests/s (the law: 16 in the long run), a mean of"
        f" {format_duration(response.mean)} each (from the scheduled time of each; the law:"
        " 189 ms)."
    )


def test_the_answer_takes_up_the_guess() -> None:
    step = STEPS[1]
    right = "in the kernel's accept queue"
    assert answer(step, 1) == f"You guessed b) {right}. That is right."
    other = "inside a worker, behind another request"
    assert answer(step, 2) == f"You guessed c) {other}. The answer is b) {right}."
    assert answer(step, None) == f"The answer: b) {right}."


def drawn(**changes: Any) -> list[str]:
    values: dict[str, Any] = {
        "at_s": 3.2, "connections": 8, "busy": (1, 1, 1, 0), "slots": 4, "queue": 4,
        "answered": 9, "requests": 32, "accepts_first": False,
    }  # fmt: skip
    return draw(**{**values, **changes})


def overflow(backlog: int = 2) -> tuple[CellResult, Facts]:
    """Recorded: 16 connections, 4 slots, and an accept queue that holds 3, or many."""
    run = run_store.load(recorded("overflow"))
    cells = zip(report_of(run).cells, trial_data(run), strict=True)
    for cell, data in cells:
        if (cell.trial.cell.concurrency, cell.trial.cell.server.backlog) == (16, backlog):
            facts = facts_of(data)
            assert isinstance(facts, Facts)
            return cell, facts
    raise AssertionError


def test_outcome_of_a_load_that_stood_still_is_of_the_whole_load() -> None:
    cell, _ = overflow()
    came, still, where = outcome(STEPS[4], cell)
    assert came.startswith("Measured over the whole load: 10.1 requests/s")
    assert "846 ms each" in came  # 8.5 requests under way / 10.1, by Little's law
    assert still == "For 4.04 s of 7.93 s slots were idle while clients waited."
    assert "connecting" in where


def test_outcome_of_a_full_queue_says_what_means_hide() -> None:
    cell, facts = overflow()
    assert overflowed(facts)
    came, full, still, apart = outcome(STEPS[4], cell, facts)
    assert came.startswith(
        "Measured over 3.25 s, in which each of 16 clients had a request under way: 19.1 requests/s"
    )
    drops, repeats = cell.counters.listen_overflows, cell.counters.syn_retransmits
    assert drops
    assert repeats
    assert full.startswith(
        f"The accept queue was full: the kernel dropped {drops} packets (SYNs, and last"
        f" ACKs of handshakes), and clients sent a SYN again {repeats} times; "
    )
    assert full.endswith("the times at which this kernel repeats a dropped SYN.")
    assert still.startswith("At the end, in the last ")
    assert still.endswith(": for 3.78 s of it slots were idle while others still waited.")
    slowest = cell.response.max
    assert slowest is not None
    assert apart.endswith(f"the slowest {slowest:.2f} s.")


@pytest.mark.parametrize("name", ["demo", "lesson", "overflow"])
def test_figures_of_a_full_queue_make_as_many_requests_as_there_are_clients(name: str) -> None:
    """Little's law: throughput times mean response time, while the load is kept up. That nothing
    else was measured shows in the whole load, whose end has fewer clients."""
    run = run_store.load(recorded(name))
    products = []
    for cell, data in zip(report_of(run).cells, trial_data(run), strict=True):
        facts = facts_of(data)
        assert isinstance(facts, Facts)
        if not overflowed(facts) or facts.connections != 16:
            continue
        figures, whole = measured(cell, facts), whole_load(facts)
        assert figures is not None
        assert whole is not None
        products.append(figures.rps * figures.response_s)
        assert in_flight_integral_s(facts, whole) / whole.length_s < 15
    assert products == [pytest.approx(16, rel=0.03)]


def test_a_queue_that_is_long_enough_is_told_as_ever() -> None:
    cell, facts = overflow(backlog=2048)
    assert not overflowed(facts)
    came, where = outcome(STEPS[3], cell, facts)
    assert came.startswith("Measured over ")
    assert ", in which each of 16 clients had a request under way: " in came
    assert "accept queue" in where


def test_the_course_of_a_load_counts_every_client_in_every_column() -> None:
    """A closed loop: as long as there is more to send, each of the 16 is somewhere."""
    _, facts = overflow()
    course = requests_over_time(facts, COLUMNS)
    assert course is not None
    in_app, _, queued, no_room = rows = tuple(course.rows.values())
    assert list(course.rows) == ["in the app", IN_WORKER, "accept queue", NO_ROOM]
    assert {len(row) for row in rows} == {len(in_app)}
    assert len(in_app) <= COLUMNS
    assert len(in_app) * course.column_s == pytest.approx(facts.load_s, abs=course.column_s)
    totals = [sum(column) for column in zip(*rows, strict=True)]
    lone = round(0.4 / course.column_s)  # the first request of this recording
    assert totals[lone : lone + 10] == [16] * 10
    assert max(in_app) == 4
    assert max(queued) == 3  # one more than its limit
    assert {9} <= set(no_room) <= set(range(14))  # 16 less 4 in the app and 3 in the queue
    idle = [n for n, count in enumerate(in_app) if count == 0 and totals[n]]
    assert len(idle) * course.column_s == pytest.approx(4.0, abs=1.5)  # it stood still for so long


def test_course_in_few_columns_and_of_what_nobody_saw() -> None:
    _, facts = overflow()
    course = requests_over_time(facts, 10)
    assert course is not None
    assert len(course.rows["in the app"]) <= 10
    untimed = replace(facts, measurement=replace(facts.measurement, timings=()))
    assert requests_over_time(untimed, 10) is None
    unseen = replace(facts.data, observations=replace(facts.data.observations, queue=()))
    assert requests_over_time(replace(facts, data=unseen, derived={}), 10) is None


def test_over_time_is_a_digit_a_column() -> None:
    rows = {"in the app": (4, 4, 0, 4, 4, 4, 4, 4, 4, 4, 4), "accept queue": (12, *[3] * 10)}
    assert over_time(rows, 0.5) == [
        "  in the app      44.44444444",
        "  accept queue    +3333333333",
        "  second          0         5",
    ]
    full = over_time({"x": [1] * COLUMNS}, 0.25)
    assert all(len(line) <= WIDTH for line in full)


def test_other_programs_are_named_beside_the_figures() -> None:
    quiet = evidence(SYNC, 8, delay_s=0.1, rounds=20, tool="fast")
    busy = noisy(quiet, server_wait=2.0, others=1.8)
    *figures, others = outcome(STEPS[1], judged(busy), derived(busy))
    assert others.startswith("Other programs used 1.80 of 2 cores")
    assert len(outcome(STEPS[1], judged(quiet), derived(quiet))) == len(figures)


def test_a_row_of_the_table_and_the_score() -> None:
    step = STEPS[1]
    outcome = StepOutcome(step, guess=0, measured=Measured(3.98, 2.01))
    assert outcome.row(step.letters) == (step.title, "a", "b", "4/s, 2.00 s", "3.98/s, 2.01 s")
    assert StepOutcome(step, left_out=True).row(step.letters)[1:] == (
        None,
        "b",
        "4/s, 2.00 s",
        "left out",
    )
    assert StepOutcome(step).row(step.letters)[-1] == "-"  # nothing could be measured
    assert score([outcome, StepOutcome(step, 1), StepOutcome(step)]) == "1 of 2 guesses was right."
    assert (
        score([StepOutcome(step, 1), StepOutcome(step, 0, left_out=True)])
        == "1 of 1 guess was right."
    )
    assert score([StepOutcome(step)]) == ""


def test_picture_of_a_saturated_server() -> None:
    assert drawn() == [
        "   3.2 s  in the app   [#] [#] [#] [ ]          3 of 4 slots",
        "          accept queue oooo                     4",
        "          elsewhere    .                        1, on the way, or not connected",
        "          idle                                  0, with nothing to send",
        "          answered                              9 of 32",
    ]


def test_picture_of_arrivals_at_random_counts_on_nobody() -> None:
    lines = drawn(busy=(1, 1), slots=2, queue=3, requests=None, connections=500)
    assert [line.split()[-1] for line in lines[1:]] == ["3", "9"]
    assert not any("elsewhere" in line or "idle" in line for line in lines)


def test_picture_of_a_full_queue_shows_who_is_not_connected() -> None:
    lines = drawn(busy=(1, 1, 1, 1), connections=16, queue=5, no_room=6, repeated=12)
    assert lines[1:4] == [
        "          accept queue ooooo                    5",
        "          no room      ~~~~~~                   6, SYNs repeated: 12",
        "          elsewhere    .                        1, on the way",
    ]
    assert len(lines) == 6
    assert all(len(line) <= WIDTH for line in lines)
    assert drawn(no_room=0)[2].endswith("0, SYNs repeated: missing")


@pytest.mark.parametrize(
    ("answered", "idle"),
    [(0, 0), (1, 0), (24, 0), (27, 3), (32, 8)],  # all begin together, the last have no next
)
def test_connections_without_a_request_wait_nowhere(answered: int, idle: int) -> None:
    busy = (1, 0, 0, 0) if answered < 32 else (0, 0, 0, 0)
    lines = drawn(busy=busy, queue=0, answered=answered, accepts_first=True)
    waiting = 8 - idle - sum(busy)
    assert f"{waiting}, accepted, not yet in the app" in lines[2]
    assert f"{idle}, with nothing to send" in lines[3]


@pytest.mark.parametrize("busy", [(0,), (200, 300), (8,) * 40])
@pytest.mark.parametrize("queue", [None, 0, 4000])
def test_picture_fits_and_says_what_is_missing(busy: tuple[int, ...], queue: int | None) -> None:
    lines = drawn(busy=busy, queue=queue, slots=None, connections=5000, accepts_first=True)
    assert all(len(line) <= WIDTH and line.isascii() for line in lines)
    assert f"{sum(busy)} of unlimited slots" in lines[0]
    assert lines[1].endswith("missing" if queue is None else str(queue))


@pytest.mark.parametrize("width", range(30, 100, 7))
def test_a_narrow_picture_says_all_numbers_and_that_marks_are_hidden(width: int) -> None:
    lines = drawn(width=width, no_room=3, repeated=12, queue=0)
    assert max(map(len, lines)) <= width
    words = " ".join(" ".join(lines).split())
    assert "3, SYNs repeated: 12" in words
    assert "9 of 32" in words
    assert ("[#]" in words) == (width >= WIDTH)
    assert ("marks hidden" in words) == (width < WIDTH)


def write(cells: memoryview, number: int, start: int, end: int) -> None:
    place = (HEADER_BYTES + number * SPANS.record.size) // 8
    cells[place], cells[place + 1] = start, end


def test_live_counts_what_is_open_and_served_since_it_first_looked(tmp_path: Path) -> None:
    shared = create_map(str(tmp_path / "spans-7-0.map"), SPANS, 1000)
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
