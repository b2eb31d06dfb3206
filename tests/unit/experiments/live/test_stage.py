"""The messages that pupils receive, without a running server."""

from __future__ import annotations

import json
from typing import Any

from workerlab.experiments.lesson.steps import read_lesson
from workerlab.experiments.live.classroom import Classroom
from workerlab.experiments.live.stage import LAW_FIELDS, Stage
from workerlab.server.preflight import Interpreter


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
