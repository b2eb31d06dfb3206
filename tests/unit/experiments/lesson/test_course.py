"""What the lesson shows on the live page, and in which phase."""

from typing import Any

import pytest
from msgspec.structs import replace

from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.settings import LoadSettings, Refused, ServerSettings
from workerlab.experiments.lesson.steps import read_lesson
from workerlab.experiments.lesson.texts import LiveFigures, no_result
from workerlab.model.result import Breakdown
from workerlab.report.player.places import PlacesSample

LESSON = read_lesson()
SAMPLE = PlacesSample(rps=3.99, mean=2.01, p50=2.0, p95=2.1, failed=0, answered=40, under_way=8)
HIDDEN_FIELDS = ("right", "law", "reaction", "why")


def course_at(step_index: int = 1) -> Course:
    course = Course(LESSON)
    course.go(step_index)
    return course


def test_what_each_phase_reveals() -> None:
    course, step = course_at(), LESSON.steps[1]
    message: Any = course.message()
    assert message["phase"] == "ask"
    assert [message[name] for name in HIDDEN_FIELDS] == [None] * len(HIDDEN_FIELDS)
    assert (message["outcome"], message["table"]) == ([], [])
    course.guess(0)
    message = course.message()
    assert message["phase"] == "run"
    assert message["law"].startswith("The law: min(8 connections, 4 slots)")
    assert message["reaction"] == step.reactions[0]
    assert (message["right"], message["why"], message["outcome"]) == (None, None, [])
    course.finish_live(LiveFigures(SAMPLE, 2.2, 1.0))
    message = course.message()
    assert message["phase"] == "told"
    assert (message["right"], message["why"]) == (step.right, step.why)
    assert message["answer"].startswith("You guessed a)")
    unguessed = course_at()
    unguessed.guess(None)
    assert unguessed.message()["reaction"] is None
    assert unguessed.message()["law"] is not None


MEASURED = (
    "Measured in the last 6.00 s: 3.99 requests/s (the law: 4 in the long run), a mean of 2.01 s"
    " each (in flight / throughput; the law: 2.00 s)."
)
PARTS = Breakdown(connect_s=0.0001, accept_queue_s=1.004, in_worker_s=0.0, service_s=1.0)
FAILURES = replace(SAMPLE, rps=None, mean=None, p50=None, p95=None, failed=3, answered=0)


@pytest.mark.parametrize(
    ("figures", "outcome"),
    [
        # No request took much longer than the law says
        (LiveFigures(SAMPLE, 2.2, 1.0), (MEASURED,)),
        # The mean of the parts is not that of all requests in flight
        (LiveFigures(SAMPLE, 2.2, 1.0, PARTS), (
            MEASURED, "Of the requests answered in that time, the mean is 2.00 s: connecting under"
            " 1 ms, accept queue 1.00 s, inside a worker under 1 ms, in the app 1.00 s.")),
        # The parts do not add up to the mean, since some requests have waited long
        (LiveFigures(SAMPLE, 9.0, 1.0, Breakdown(accept_queue_s=0.1, service_s=1.0)), (
            MEASURED, "In that time, the fastest response took 1.00 s, the slowest 9.00 s.")),
        # One has waited longer than the measurement
        (LiveFigures(SAMPLE, 16.0, 1.0, slowest_waits=True), (
            MEASURED, "In that time, the fastest response took 1.00 s; one request has waited for"
            " 16.0 s without a response.")),
        (LiveFigures(FAILURES, None, None), ("3 requests failed.",)),
        (LiveFigures(replace(SAMPLE, mean=None), 2.2, 1.0), (
            "Measured in the last 6.00 s: 3.99 requests/s (the law: 4 in the long run).",)),
    ],
)  # fmt: skip
def test_the_outcome_of_a_live_load(figures: LiveFigures, outcome: tuple[str, ...]) -> None:
    course = course_at()
    course.guess(2)
    course.finish_live(figures)
    assert course.message()["outcome"] == outcome


def test_the_summary_of_a_live_load() -> None:
    course = course_at()
    course.guess(None)
    course.finish_live(LiveFigures(replace(SAMPLE, mean=None), 2.2, 1.0))
    assert course.results[course.step_index].measured_summary == "3.99/s"
    course.finish_live(LiveFigures(SAMPLE, 7.1, 1.0))
    course.go(len(LESSON.steps))
    message: Any = course.message()
    assert [row[-1] for row in message["table"]] == ["3.99/s, up to 7.10 s"]
    assert message["end"] == LESSON.end


def test_a_step_that_cannot_be_run_here_says_why() -> None:
    course = course_at(2)
    course.guess(0)
    course.finish(None, no_result("needs eventlet"), skipped=True)
    assert "needs eventlet" in str(course.message()["outcome"])
    course.go(len(LESSON.steps))
    assert course.message()["table"] == [
        (LESSON.steps[2].title, *LESSON.steps[2].choices[:2], "8/s, 1.00 s", "skipped")
    ]


def test_the_guesses_are_in_a_table_at_the_end() -> None:
    course = Course(LESSON)
    for index, step in enumerate(LESSON.steps):
        course.go(index)
        course.guess(0)
        course.finish_live(LiveFigures(SAMPLE, None, None))
        course.record({"length_ms": 1})
        assert course.message()["step"] == index
        assert course.step.server.worker_class == step.cell.server.worker_class
        assert course.results[course.step_index].guess == 0
    course.go(len(LESSON.steps))
    message: Any = course.message()
    assert [row[0] for row in message["table"]] == [step.title for step in LESSON.steps]
    correct = sum(step.right == 0 for step in LESSON.steps)
    assert message["score"] == f"Correct guesses: {correct} of 10."
    assert message["page"] == "lesson.html"
    recording: Any = course.recording
    assert [step["trace"] for step in recording["steps"]] == [{"length_ms": 1}] * 10


def test_server_and_load_of_each_step() -> None:
    courses = list(map(course_at, range(len(LESSON.steps))))
    steps = [course.step for course in courses]
    assert steps[1].server == ServerSettings()
    assert steps[4].server.backlog == 4
    assert (steps[5].server.worker_class, steps[5].server.app) == ("uvicorn", "blocking")
    assert steps[1].load == LoadSettings(clients=8)
    assert steps[7].load == LoadSettings(clients=4, delay_s=0, cpu_ms=250)
    assert steps[8].load == LoadSettings(model="open", rate=16, delay_s=0.1)
    assert steps[9].load == LoadSettings(clients=16, patience_s=2.5)
    assert courses[3].settling_s == 4  # the law of 16 clients and 4 slots
    assert courses[8].measurement_s == 15
    assert (courses[9].settling_s, courses[9].measurement_s) == (2.5, 10)


def test_requests_served_after_their_clients_gave_up() -> None:
    course = course_at(9)
    course.guess(2)
    sample = replace(
        FAILURES, rps=0.0, failed=67, answered=8, under_way=16, causes={"gave_up": 66, "reset": 1}
    )
    course.finish_live(LiveFigures(sample, None, None, None, answered=0, wasted=40))
    message: Any = course.message()
    assert message["outcome"] == (
        "Measured in the last 10.0 s: 0 requests/s answered in time (the law: 0). Meanwhile the"
        " workers served 40 requests of clients that had given up.",
        "In all, 8 requests were answered in time, and clients gave up 66 times.",
        "1 request failed.",
    )
    result = course.results[course.step_index]
    assert result.row(course.step.letters)[-2:] == ("0/s", "0/s")  # law, measured


def test_unknown_steps_and_choices_and_second_guesses_are_refused() -> None:
    course = course_at()
    for step_index in (-1, 11, "1", None, True, 1.0):
        with pytest.raises(Refused, match="the lesson has 10 steps"):
            course.go(step_index)
    for choice in (-1, 9, "a", True):
        with pytest.raises(Refused, match="no such choice"):
            course.guess(choice)
    course.guess(0)
    with pytest.raises(Refused, match="the step has started"):
        course.guess(1)
