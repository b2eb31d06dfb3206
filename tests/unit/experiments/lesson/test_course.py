"""The lesson on the live page: what is told, and when."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.settings import LoadSettings, Refused, ServerSettings
from workerlab.experiments.lesson.steps import read
from workerlab.experiments.lesson.words import LiveFigures, no_outcome
from workerlab.model import Breakdown
from workerlab.report.player.places import PlacesSample

LESSON = read()
SEEN = PlacesSample(3.99, 2.01, 2.0, 2.1, 0, 40, 8)
SECRETS = ("right", "law", "reaction", "why")


def course(step: int = 1) -> Course:
    found = Course(LESSON)
    found.go(step)
    return found


def test_before_the_guess_nothing_is_given_away() -> None:
    message = course().message()
    assert message["phase"] == "ask"
    assert [message[name] for name in SECRETS] == [None] * len(SECRETS)
    assert message["outcome"] == []
    assert message["table"] == []


def test_after_the_guess_the_law_and_a_reaction_to_it() -> None:
    one = course()
    one.guess(0)
    message = one.message()
    assert message["phase"] == "run"
    assert str(message["law"]).startswith("The law: min(8 connections, 4 slots)")
    assert message["reaction"] == LESSON.steps[1].reactions[0]
    assert (message["right"], message["why"], message["outcome"]) == (None, None, [])


def test_who_guesses_nothing_gets_no_reaction() -> None:
    one = course()
    one.guess(None)
    assert one.message()["reaction"] is None
    assert one.message()["law"] is not None


def test_once_it_is_measured_all_is_told() -> None:
    one = course()
    one.guess(2)
    one.measure(LiveFigures(SEEN, 2.2, 1.0))
    message: Any = one.message()
    assert message["phase"] == "told"
    assert message["right"] == LESSON.steps[1].right
    assert message["why"] == LESSON.steps[1].why
    assert message["answer"].startswith("You guessed c)")
    assert message["outcome"][0] == (
        "Measured in the last 6.00 s: 3.99 requests/s (the law: 4 in the long run), a mean"
        " of 2.01 s each (in flight / throughput; the law: 2.00 s)."
    )
    assert len(message["outcome"]) == 1  # none took much longer than the law says


def test_where_the_time_went_is_told_where_it_is_known() -> None:
    one = course()
    one.guess(2)
    split = Breakdown(connect_s=0.0001, accept_queue_s=1.004, in_worker_s=0.0, service_s=1.0)
    one.measure(LiveFigures(SEEN, 2.2, 1.0, split))
    message: Any = one.message()
    assert message["outcome"][1] == (  # which is not the mean of all under way
        "Of the requests answered in that time, the mean is 2.00 s: connecting under 1 ms, accept"
        " queue 1.00 s, inside a worker under 1 ms, in the app 1.00 s."
    )


def test_where_the_time_of_the_answered_went_does_not_explain_a_mean_of_all() -> None:
    """Some have waited for long, and have no answer yet."""
    one = course()
    one.guess(2)
    one.measure(LiveFigures(SEEN, 9.0, 1.0, Breakdown(accept_queue_s=0.1, service_s=1.0)))
    assert "accept queue" not in str(one.message()["outcome"])


def test_who_waited_for_long_is_told() -> None:
    one = course()
    one.guess(2)
    one.measure(LiveFigures(SEEN, 7.1, 1.0))
    assert "the slowest 7.10 s" in str(one.message()["outcome"])
    one.measure(LiveFigures(SEEN, 16.0, 1.0, slowest_waits=True))  # longer than it was measured
    assert "one request has waited for 16.0 s, and is not answered" in str(one.message()["outcome"])
    one.measure(LiveFigures(SEEN, 7.1, 1.0))
    one.go(len(LESSON.steps))
    message: Any = one.message()
    assert [row[-1] for row in message["table"]] == ["3.99/s, up to 7.10 s"]
    assert message["end"] == LESSON.end


def test_a_load_without_an_answer_is_told() -> None:
    one = course()
    one.guess(None)
    one.measure(LiveFigures(PlacesSample(None, None, None, None, 3, 0, 8), None, None))
    assert "3 requests failed" in str(one.message()["outcome"])


def test_answers_without_a_mean_are_told() -> None:
    one = course()
    one.guess(None)
    one.measure(LiveFigures(replace(SEEN, mean=None), 2.2, 1.0))
    assert one.message()["outcome"] == (
        "Measured in the last 6.00 s: 3.99 requests/s (the law: 4 in the long run).",
    )
    assert one.results[one.place].numbers[-1] == "3.99/s"


def test_a_step_that_cannot_be_run_here_says_why() -> None:
    one = course(2)
    one.guess(0)
    one.tell(None, no_outcome("needs eventlet"), left_out=True)
    assert "needs eventlet" in str(one.message()["outcome"])
    one.go(len(LESSON.steps))
    assert one.message()["table"] == [
        (LESSON.steps[2].title, *LESSON.steps[2].choices[:2], "8/s, 1.00 s", "left out")
    ]


def test_at_the_end_there_is_a_table_of_what_was_guessed() -> None:
    one = Course(LESSON)
    for place, step in enumerate(LESSON.steps):
        one.go(place)
        one.guess(0)
        one.measure(LiveFigures(SEEN, None, None))
        one.record({"length_ms": 1})
        assert one.message()["step"] == place
        assert one.step.server.worker_class == step.cell.server.worker_class
        assert one.results[one.place].guess == 0
    one.go(len(LESSON.steps))
    message: Any = one.message()
    assert [row[0] for row in message["table"]] == [step.title for step in LESSON.steps]
    assert message["score"].startswith(f"{sum(step.right == 0 for step in LESSON.steps)} of 10")
    assert message["page"] == "lesson.html"
    recorded: Any = one.recorded
    assert [step["trace"] for step in recorded["steps"]] == [{"length_ms": 1}] * 10


def test_a_step_is_loaded_as_the_lesson_says() -> None:
    assert course(1).step.server == ServerSettings()
    assert course(1).step.load == LoadSettings(clients=8)
    assert course(4).step.server.backlog == 4
    blocked = course(5).step.server
    assert (blocked.worker_class, blocked.app) == ("uvicorn", "blocking")
    assert course(3).settles_s == 4  # the law of 16 clients and 4 slots
    computing, random, impatient = course(7), course(8), course(9)
    assert computing.step.load == LoadSettings(clients=4, delay_s=0, cpu_ms=250)
    assert random.step.load == LoadSettings(model="open", rate=16, delay_s=0.1)
    assert random.measured_s == 15
    assert impatient.step.load == LoadSettings(clients=16, patience_s=2.5)
    assert (impatient.settles_s, impatient.measured_s) == (2.5, 10)


def test_what_was_served_in_vain_is_told() -> None:
    one = course(9)
    one.guess(2)
    sample = PlacesSample(0.0, None, None, None, 67, 8, 16, {"gave_up": 66, "reset": 1})
    one.measure(LiveFigures(sample, None, None, None, answered=0, wasted=40))
    message: Any = one.message()
    assert message["outcome"] == (
        "Measured in the last 10.0 s: 0 requests/s answered in time (the law: 0). Meanwhile the"
        " workers served 40 requests of clients that had given up.",
        "In all, 8 requests were answered in time, and clients gave up 66 times.",
        "1 request failed.",
    )
    assert one.results[one.place].numbers == ("0/s", "0/s")


@pytest.mark.parametrize("place", [-1, 11, "1", None, True, 1.0])
def test_there_is_no_such_step(place: object) -> None:
    with pytest.raises(Refused, match="the lesson has 10 steps"):
        course().go(place)


@pytest.mark.parametrize("choice", [-1, 9, "a", True])
def test_there_is_no_such_choice(choice: object) -> None:
    with pytest.raises(Refused, match="no such choice"):
        course().guess(choice)


def test_nobody_guesses_twice() -> None:
    one = course()
    one.guess(0)
    with pytest.raises(Refused, match="before the load"):
        one.guess(1)
