"""The lesson's texts about a step, and the pictures of a running step, without a server."""

import struct
from functools import cache, partial
from operator import ne
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import SYNC, cell_of, derived, evidence, result_of
from tests.builders.noise import noisy
from tests.builders.recursion import allen_cunneen
from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.analysis.facts import Facts
from workerlab.analysis.stall import requests_in_flight, whole_load
from workerlab.experiments.lesson import texts
from workerlab.experiments.lesson.steps import LOAD_TOOL, LessonStep, read_lesson
from workerlab.experiments.lesson.texts import Figures, StepOutcome, trial_outcome
from workerlab.experiments.live import terminal
from workerlab.experiments.live.terminal import CHART_COLUMNS, IN_WORKER, MAX_WIDTH, NO_ROOM
from workerlab.experiments.reading import report_of, trial_data
from workerlab.model.evidence import Summary
from workerlab.model.plan import Trial
from workerlab.model.result import Breakdown, Invalid, Result
from workerlab.numbers.units import format_duration
from workerlab.observe.spans import LiveCounts
from workerlab.server.inside.maps import HEADER_BYTES, SPANS, create_map
from workerlab.server.worker_classes import configured_slots

STEPS = read_lesson().steps


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.title)
def test_the_law_follows_from_the_settings(step: LessonStep) -> None:
    """Only the blocked event loop has fewer slots than its class."""
    slots = configured_slots(step.cell.server)
    assert step.at_once == (slots if slots is not None else step.cell.server.workers)
    law = step.law
    assert (law.response_s is None) == law.clients_give_up == (law.rps == 0)
    if law.rps and law.response_s is not None and not step.load.is_open:
        assert law.rps * law.response_s == pytest.approx(step.cell.concurrency)
    assert 0 <= step.right < len(step.choices)


def test_each_step_changes_one_thing() -> None:
    """Each step differs from the step it is compared with in class, connections or backlog."""
    for later, earlier in {1: 0, 2: 1, 3: 1, 4: 3}.items():
        earlier_values, later_values = (
            (step.cell.concurrency, step.cell.server.worker_class, step.cell.server.backlog)
            for step in (STEPS[earlier], STEPS[later])
        )
        assert sum(map(ne, earlier_values, later_values)) == 1, STEPS[later].title
    assert {step.cell.tool for step in STEPS} == {LOAD_TOOL}


def test_the_outcome_compares_figures_with_the_law_and_omits_missing_parts() -> None:
    step = STEPS[1]
    breakdown = Breakdown(response_s=2.0, connect_s=0.0, accept_queue_s=1.0, service_s=1.001)
    cell = result_of(Trial(step.cell, 1), throughput_rps=3.98, breakdown=breakdown)
    comparison, parts = trial_outcome(step, cell)
    assert comparison == (
        "Measured: 3.98 requests/s (the law: 4 in the long run), a mean of 2.00 s each"
        " (in flight / throughput; the law: 2.00 s)."
    )
    assert parts == (
        "Where a request spent its time: connecting under 1 ms, accept queue 1.00 s,"
        " in the app 1.00 s."
    )
    invalid = Invalid(Trial(step.cell, 1), "app", 1.0, "the server died")
    assert trial_outcome(step, invalid) == ["No result: the server died."]


LITTLE = "at best. By Little's law, each then takes"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (STEPS[1], f"The law: min(8 connections, 4 slots) / 1 s = 4 requests/s {LITTLE} 8"
         " connections / 4 requests/s = 2.00 s on average."),
        (replace(STEPS[1], at_once=None, load=replace(STEPS[1].load, delay_s=0.5)),
         f"The law: min(8 connections, unlimited slots) / 0.5 s = 16 requests/s {LITTLE} 8"
         " connections / 16 requests/s = 500 ms on average."),
        (replace(STEPS[7], cores=4.0),
         "The law: the slots allow min(4 connections, 4 slots) / 0.25 s = 16 requests/s, and the"
         " CPU min(1 worker, 4 cores) / 0.25 s = 4. The lower of the two is 4 requests/s"
         f" {LITTLE} 4 connections / 4 requests/s = 1.00 s on average."),
        (STEPS[8], "The law: 16 requests/s arrive at random. The slots can serve 20, so they are"
         " busy 80 % of the time. By queueing theory, a request then waits about 88.9 ms on"
         " average, and takes 189 ms."),
        (replace(STEPS[8], at_once=None), "The law: 16 requests/s arrive at random. By queueing"
         " theory, a request then waits about 0.00 s on average, and takes 100 ms."),
        (STEPS[9], "The law: if no client gave up, each request would take 4.00 s. These clients"
         " give up after 2.50 s, but the workers serve abandoned requests too. The queue grows,"
         " and once the wait is too long, no request is answered in time."),
        (replace(STEPS[9], load=replace(STEPS[9].load, patience_s=4.5)),
         f"The law: min(16 connections, 4 slots) / 1 s = 4 requests/s {LITTLE} 16 connections / 4"
         " requests/s = 4.00 s on average."),
    ],
)  # fmt: skip
def test_the_law_with_its_numbers(step: LessonStep, text: str) -> None:
    assert texts.law_text(step) == text


def test_figures_of_the_explanations() -> None:
    computing = replace(STEPS[7], cores=4.0)
    computing = replace(computing, server=replace(computing.server, workers=4))
    assert computing.law.rps == 16
    assert replace(computing, cores=2.0).law.rps == 8  # until the cores are full
    wait = partial(allen_cunneen, service_s=0.1, service_square_s2=0.01)
    assert wait(16, slots=2, arrivals_cv2=0) == 0
    assert "evenly spaced, none would wait" in STEPS[8].why
    for rate, workers in ((16, 3), (32, 4)):
        assert f"to {1000 * wait(rate, slots=workers):.0f} ms" in STEPS[8].why
    law = STEPS[9].law
    assert law.clients_give_up
    assert (law.rps, law.response_s, law.patient_s) == (0, None, 4)


def test_random_arrivals_are_measured_from_their_scheduled_times() -> None:
    step = STEPS[8]
    response = Summary(0.1, 0.183, 0.15, 0.4, 0.6)
    cell = result_of(Trial(step.cell, 1), throughput_rps=15.9, response=response)
    assert trial_outcome(step, cell)[0] == (
        "Measured: 15.9 requests/s (the law: 16 in the long run), a mean of"
        f" {format_duration(response.mean)} each (from the scheduled time of each; the law:"
        " 189 ms)."
    )


def test_the_answer_repeats_the_guess() -> None:
    step = STEPS[1]
    right, wrong = "in the kernel's accept queue", "inside a worker, behind another request"
    assert texts.answer(step, 1) == f"You guessed b) {right}. That is right."
    assert texts.answer(step, 2) == f"You guessed c) {wrong}. The answer is b) {right}."
    assert texts.answer(step, None) == f"The answer: b) {right}."


def picture(**changes: Any) -> list[str]:
    values: dict[str, Any] = {
        "at_s": 3.2, "connections": 8, "busy": (1, 1, 1, 0), "slots": 4, "queue": 4,
        "answered": 9, "requests": 32, "accepts_first": False,
    }  # fmt: skip
    return terminal.draw(**{**values, **changes})


@cache
def recorded_cells(name: str) -> list[tuple[Result, Facts]]:
    run = run_store.load(recorded(name))
    return list(zip(report_of(run).cells, map(derived, trial_data(run)), strict=True))


def overflow_run(backlog: int = 2) -> tuple[Result, Facts]:
    """Recorded: 16 connections, 4 slots, and an accept queue that holds 3, or many."""
    (match,) = (
        (result, facts)
        for result, facts in recorded_cells("overflow")
        if (facts.connections, result.trial.cell.server.backlog) == (16, backlog)
    )
    return match


def test_the_outcome_of_a_stalled_load_covers_the_whole_load() -> None:
    cell, _ = overflow_run()
    comparison, idle, parts = trial_outcome(STEPS[4], cell)
    assert comparison.startswith("Measured over the whole load: 10.1 requests/s")
    assert "846 ms each" in comparison  # 8.5 requests in flight / 10.1, by Little's law
    assert idle == "For 4.04 s of 7.93 s, slots were idle while clients waited."
    assert "connecting" in parts


def test_the_outcome_of_a_full_queue_includes_drops_idle_slots_and_extremes() -> None:
    cell, facts = overflow_run()
    assert texts.queue_overflowed(facts)
    comparison, overflow, idle, extremes = trial_outcome(STEPS[4], cell, facts)
    assert comparison.startswith(
        "Measured over 3.25 s, in which each of 16 clients had a request in flight: 19.1 requests/s"
    )
    drops, retransmits = cell.counters.listen_overflows, cell.counters.syn_retransmits
    assert min(drops, retransmits) > 0
    assert overflow.startswith(
        f"The accept queue was full: the kernel dropped {drops} packets (SYNs, and last"
        f" ACKs of handshakes), and clients sent a SYN again {retransmits} times; "
    )
    assert overflow.endswith("the times at which this kernel repeats a dropped SYN.")
    assert idle.startswith("In the last ")
    assert ": for 3.78 s of that time, slots were idle while other clients still" in idle
    assert extremes.endswith(f"the slowest {cell.response.max:.2f} s.")


@pytest.mark.parametrize("name", ["demo", "lesson", "overflow"])
def test_figures_of_a_full_queue_satisfy_littles_law(name: str) -> None:
    """Throughput times mean response time is the number of clients in the steady window. It is less
    in the whole load, since fewer clients are left at its end."""
    products = []
    for cell, facts in recorded_cells(name):
        if not texts.queue_overflowed(facts) or facts.connections != 16:
            continue
        figures, whole = texts.trial_figures(cell, facts), whole_load(facts)
        products.append(figures.rps * figures.response_s)
        assert requests_in_flight(facts).inside_s(whole) / whole.length_s < 15
    assert products == [pytest.approx(16, rel=0.03)]


def test_the_outcome_of_a_queue_that_is_long_enough() -> None:
    cell, facts = overflow_run(backlog=2048)
    assert not texts.queue_overflowed(facts)
    comparison, parts = trial_outcome(STEPS[3], cell, facts)
    assert comparison.startswith("Measured over ")
    assert ", in which each of 16 clients had a request in flight: " in comparison
    assert "accept queue" in parts


def test_requests_over_time_count_every_client_in_every_column() -> None:
    """In a closed loop, each of the 16 clients has a request until none is left to send."""
    _, facts = overflow_run()
    requests = terminal.requests_over_time(facts, CHART_COLUMNS)
    in_app, _, queued, no_room = rows = tuple(requests.rows.values())
    assert list(requests.rows) == ["in the app", IN_WORKER, "accept queue", NO_ROOM]
    assert {len(row) for row in rows} == {len(in_app)}
    assert len(in_app) <= CHART_COLUMNS
    assert len(in_app) * requests.column_s == pytest.approx(facts.load_s, abs=requests.column_s)
    totals = [sum(column) for column in zip(*rows, strict=True)]
    lone_columns = round(0.4 / requests.column_s)  # the first request of this recording
    assert totals[lone_columns : lone_columns + 10] == [16] * 10
    assert max(in_app) == 4
    assert max(queued) == 3  # one more than its limit
    assert {9} <= set(no_room) <= set(range(14))  # 16 less 4 in the app and 3 in the queue
    idle = [n for n, count in enumerate(in_app) if count == 0 and totals[n]]
    assert len(idle) * requests.column_s == pytest.approx(4.0, abs=1.5)  # the length of the stall


def test_requests_over_time_in_few_columns_and_of_missing_data() -> None:
    _, facts = overflow_run()
    requests = terminal.requests_over_time(facts, 10)
    assert len(requests.rows["in the app"]) <= 10
    untimed = replace(facts, measurement=replace(facts.measurement, timings=()), derived={})
    assert terminal.requests_over_time(untimed, 10) is None
    unsampled = replace(facts.data, observations=replace(facts.data.observations, queue=()))
    assert terminal.requests_over_time(replace(facts, data=unsampled, derived={}), 10) is None


def test_a_chart_has_a_digit_per_column() -> None:
    rows = {"in the app": (4, 4, 0, 4, 4, 4, 4, 4, 4, 4, 4), "accept queue": (12, *[3] * 10)}
    assert terminal.chart_lines(rows, 0.5) == [
        "  in the app      44.44444444",
        "  accept queue    +3333333333",
        "  second          0         5",
    ]
    longest = terminal.chart_lines({"x": [1] * CHART_COLUMNS}, 0.25)
    assert all(len(line) <= MAX_WIDTH for line in longest)


def test_cpu_use_of_other_programs_is_reported() -> None:
    quiet = evidence(SYNC, 8, delay_s=0.1, rounds=20, tool="fast")
    busy = noisy(quiet, server_wait=2.0, others=1.8)
    *figures, others = trial_outcome(STEPS[1], cell_of(busy), derived(busy))
    assert others.startswith("Other programs used 1.80 of 2 cores")
    assert len(trial_outcome(STEPS[1], cell_of(quiet), derived(quiet))) == len(figures)


def test_a_row_of_the_table_and_the_score() -> None:
    step = STEPS[1]
    result = StepOutcome(step, guess=0, figures=Figures(3.98, 2.01))
    assert result.row(step.letters) == (step.title, "a", "b", "4/s, 2.00 s", "3.98/s, 2.01 s")
    skipped_row = StepOutcome(step, skipped=True).row(step.letters)
    assert skipped_row[1:] == (None, "b", "4/s, 2.00 s", "skipped")
    assert StepOutcome(step).row(step.letters)[-1] == "-"  # nothing could be measured
    outcomes = [result, StepOutcome(step, 1), StepOutcome(step)]
    assert texts.score(outcomes) == "Correct guesses: 1 of 2."
    outcomes = [StepOutcome(step, 1), StepOutcome(step, 0, skipped=True)]
    assert texts.score(outcomes) == "Correct guesses: 1 of 1."
    assert texts.score([StepOutcome(step)]) == ""


def test_the_picture_of_a_saturated_server() -> None:
    assert picture() == [
        "   3.2 s  in the app   [#] [#] [#] [ ]          3 of 4 slots",
        "          accept queue oooo                     4",
        "          elsewhere    .                        1, on the way, or not connected",
        "          idle                                  0, with nothing to send",
        "          answered                              9 of 32",
    ]


def test_the_picture_of_random_arrivals_has_no_number_of_requests() -> None:
    lines = picture(busy=(1, 1), slots=2, queue=3, requests=None, connections=500)
    assert [line.split()[-1] for line in lines[1:]] == ["3", "9"]
    assert not any("elsewhere" in line or "idle" in line for line in lines)


def test_the_picture_of_a_full_queue_shows_unconnected_clients() -> None:
    lines = picture(busy=(1, 1, 1, 1), connections=16, queue=5, no_room=6, syn_retransmits=12)
    assert lines[1:4] == [
        "          accept queue ooooo                    5",
        "          no room      ~~~~~~                   6, SYN retransmits: 12",
        "          elsewhere    .                        1, on the way",
    ]
    assert len(lines) == 6
    assert all(len(line) <= MAX_WIDTH for line in lines)
    assert picture(no_room=0)[2].endswith("0, SYN retransmits: missing")


@pytest.mark.parametrize(
    ("answered", "idle"),
    [(0, 0), (1, 0), (24, 0), (27, 3), (32, 8)],  # all start together and stop one by one
)
def test_connections_with_nothing_to_send_are_idle(answered: int, idle: int) -> None:
    busy = (1, 0, 0, 0) if answered < 32 else (0, 0, 0, 0)
    lines = picture(busy=busy, queue=0, answered=answered, accepts_first=True)
    waiting = 8 - idle - sum(busy)
    assert f"{waiting}, accepted, not yet in the app" in lines[2]
    assert f"{idle}, with nothing to send" in lines[3]


@pytest.mark.parametrize("busy", [(0,), (200, 300), (8,) * 40])
@pytest.mark.parametrize("queue", [None, 0, 4000])
def test_the_picture_fits_and_names_missing_values(
    busy: tuple[int, ...], queue: int | None
) -> None:
    lines = picture(busy=busy, queue=queue, slots=None, connections=5000, accepts_first=True)
    assert all(len(line) <= MAX_WIDTH and line.isascii() for line in lines)
    assert f"{sum(busy)} of unlimited slots" in lines[0]
    assert lines[1].endswith("missing" if queue is None else str(queue))


@pytest.mark.parametrize("width", [*range(30, 100, 7), 79])
def test_a_narrow_picture_has_all_numbers_and_a_note_that_marks_are_hidden(width: int) -> None:
    lines = picture(width=width, no_room=3, syn_retransmits=12, queue=0)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "3, SYN retransmits: 12" in text
    assert "9 of 32" in text
    assert ("[#]" in text) == (width >= MAX_WIDTH)
    assert ("marks hidden" in text) == (width < MAX_WIDTH)
    assert max(map(len, picture(width=width, requests=None))) <= width


def write_span(cells: memoryview, number: int, start: int, end: int) -> None:
    offset = (HEADER_BYTES + number * SPANS.record.size) // 8
    cells[offset], cells[offset + 1] = start, end


def test_live_counts_cover_requests_since_the_first_poll(tmp_path: Path) -> None:
    shared = create_map(str(tmp_path / "spans-7-0.map"), SPANS, 1000)
    struct.pack_into("<I", shared, 8, 7)
    cells = memoryview(shared).cast("q")
    write_span(cells, 0, 10, 20)  # the warm-up
    live = LiveCounts(tmp_path)
    assert live.poll() == ({7: 0}, 0)
    for number in range(1, 500):
        write_span(cells, number, 30, 0)
    assert live.poll() == ({7: 499}, 0)
    write_span(cells, 300, 30, 40)  # out of order, beyond what one poll reads
    assert live.poll() == ({7: 498}, 1)
    for number in range(1, 500):
        write_span(cells, number, 30, 40)
    assert live.poll() == ({7: 0}, 499)
    assert live.poll() == ({7: 0}, 499)
