"""Pupils of a shared lab: admission, the guesses that count, and the messages that they receive."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.settings import Refused
from workerlab.experiments.lesson.steps import read_lesson
from workerlab.experiments.lesson.texts import LiveFigures
from workerlab.experiments.live.classroom import (
    MAX_PUPILS,
    MAX_WRONG_CODES_PER_ADDRESS,
    TICKS_PER_BATCH,
    Classroom,
)
from workerlab.experiments.live.stage import LAW_FIELDS, Stage
from workerlab.report.player.places import PlacesSample
from workerlab.server.preflight import Interpreter

LESSON = read_lesson()


def course_at_question(room: Classroom) -> Course:
    course = Course(LESSON)
    ask(room, course)
    return course


def ask(room: Classroom, course: Course) -> None:
    course.go(1)
    room.open_question(1)


def start(room: Classroom, course: Course) -> None:
    course.guess(None)
    room.start_step(course.step_index)


def add_pupil(room: Classroom) -> tuple[str, list[bytes]]:
    token, messages = room.admit(room.code, "192.0.2.1", 0.0), list[bytes]()
    room.pupil(token).streams.append(messages.append)
    return token, messages


@given(st.lists(st.one_of(st.none(), st.integers(0, 2)), max_size=MAX_PUPILS))
def test_the_tally_counts_each_pupil_once(choices: list[int | None]) -> None:
    room = Classroom("http://192.0.2.9:8471/")
    course = course_at_question(room)
    for choice in choices:
        token, _ = add_pupil(room)
        if choice is not None:
            room.guess(token, course, {"step": 1, "choice": 0})
            room.guess(token, course, {"step": 1, "choice": choice})
    guesses = [choice for choice in choices if choice is not None]
    assert json.loads(room.message(course))["tally"] == []
    start(room, course)
    message = json.loads(room.message(course))
    choice_count = len(LESSON.steps[1].choices)
    assert message["tally"] == [guesses.count(choice) for choice in range(choice_count)]
    assert (message["pupils"], message["guessed"]) == (len(choices), len(guesses))


def test_a_guess_must_be_for_the_open_question() -> None:
    room = Classroom("here")
    token, messages = add_pupil(room)
    course = course_at_question(room)
    invalid_choices: list[dict[str, object]] = [
        {"step": 0, "choice": 0}, {"step": 1, "choice": 99}, {"step": 1, "choice": True},
        {"step": 1, "choice": None}, {"choice": 0},
    ]  # fmt: skip
    for action in invalid_choices:
        with pytest.raises(Refused):
            room.guess(token, course, action)
    with pytest.raises(Refused, match="room code"):
        room.guess("guessed", course, {"step": 1, "choice": 0})
    assert messages == []
    room.guess(token, course, {"step": 1, "choice": 0})
    message = json.loads(messages[-1])
    assert (message["guess"], message["law"]) == (0, None)
    start(room, course)
    with pytest.raises(Refused, match="closed"):
        room.guess(token, course, {"step": 1, "choice": 1})


def test_guesses_are_kept_until_the_law_is_shown() -> None:
    room = Classroom("here")
    token, messages = add_pupil(room)
    course = course_at_question(room)
    room.guess(token, course, {"step": 1, "choice": 2})
    ask(room, course)
    room.send_lesson(course)
    assert json.loads(messages[-1])["guess"] == 2
    start(room, course)
    ask(room, course)
    room.send_lesson(course)
    assert json.loads(messages[-1])["guess"] is None


def test_each_pupil_sees_their_own_score() -> None:
    room = Classroom("here")
    right, wrong = add_pupil(room), add_pupil(room)
    course, step = course_at_question(room), LESSON.steps[1]
    room.guess(right[0], course, {"step": 1, "choice": step.right})
    room.guess(wrong[0], course, {"step": 1, "choice": (step.right + 1) % 3})
    start(room, course)
    sample = PlacesSample(rps=3.99, mean=2.01, p50=2.0, p95=2.1, failed=0, answered=40, under_way=8)
    course.finish_live(LiveFigures(sample, slowest_s=2.2, fastest_s=1.0))
    course.go(len(LESSON.steps))
    room.send_lesson(course)
    scores = [json.loads(messages[-1])["score"] for _, messages in (right, wrong)]
    assert scores == ["Correct guesses: 1 of 1.", "Correct guesses: 0 of 1."]


def test_a_full_room_admits_a_pupil_once_another_has_left() -> None:
    room = Classroom("here")
    tokens = [add_pupil(room)[0] for _ in range(MAX_PUPILS)]
    with pytest.raises(Refused, match="the room is full"):
        room.admit(room.code, "192.0.2.1", 0.0)
    room.pupil(tokens[5]).streams.clear()
    room.admit(room.code, "192.0.2.1", 0.0)
    with pytest.raises(Refused, match="join"):
        room.pupil(tokens[5])


def test_wrong_codes_block_their_address_for_a_minute() -> None:
    room = Classroom("here")
    for code in ["", None, *["WRONG2"] * MAX_WRONG_CODES_PER_ADDRESS]:
        with pytest.raises(Refused, match="wrong room code"):
            room.admit(code, "192.0.2.1", 1000.0)
    with pytest.raises(Refused, match="too many"):
        room.admit(room.code, "192.0.2.1", 1059.0)
    assert room.admit(f" {room.code.lower()} ", "192.0.2.2", 1059.0)
    assert room.admit(room.code, "192.0.2.1", 1061.0)


def test_ticks_are_sent_to_all_pupils_in_order_in_one_message() -> None:
    room = Classroom("here")
    streams = [add_pupil(room)[1] for _ in range(3)]
    for n in range(TICKS_PER_BATCH + 2):
        room.publish(b"%d" % n, tick=True)
    assert [len(stream) for stream in streams] == [1, 1, 1]
    room.publish(b"state")
    first, rest = streams[0]
    assert first.split(b"\n\ndata: ") == [b"%d" % n for n in range(TICKS_PER_BATCH)]
    assert rest.split(b"\n\ndata: ") == [b"5", b"6", b"state"]
    assert all(stream[0] is first and stream[1] is rest for stream in streams)  # encoded once


def test_the_law_is_not_sent_before_the_guess() -> None:
    room, messages = Classroom(), list[bytes]()
    without_sync = Interpreter("python3", "25.3.0", (), (), {}, {})
    stage = Stage(without_sync, read_lesson(), room, begin=True)

    def side_state() -> dict[str, Any]:
        (state,) = (state for state in map(json.loads, messages) if state["kind"] == "state")
        messages.clear()
        (side,) = state["sides"]
        return dict(side)

    try:
        token = stage.admit(room.code, "127.0.0.1")
        stage.join_as_pupil(token, messages.append)
        assert side_state().keys().isdisjoint(LAW_FIELDS)
        tab = stage.join(lambda _: None)
        messages.clear()
        stage.act({"tab": tab, "do": "guess", "choice": 0})  # the step cannot run
        assert side_state()["law"]["rps"] == 4
    finally:
        stage.close()
