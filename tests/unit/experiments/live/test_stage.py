"""What those who watch are told, without a server that runs."""

from __future__ import annotations

import json
from typing import Any

from workerlab.experiments.lesson.steps import read
from workerlab.experiments.live.classroom import Classroom
from workerlab.experiments.live.stage import LAW, Stage


def test_nobody_is_sent_the_law_before_the_guess() -> None:
    room, sent = Classroom(), list[bytes]()
    stage = Stage("python", "gunicorn", {"sync": "not installed"}, read(), room, begin=True)

    def state() -> dict[str, Any]:
        (message,) = (words for words in map(json.loads, sent) if words["kind"] == "state")
        sent.clear()
        (side,) = message["sides"]
        return dict(side)

    try:
        token = stage.admit(room.code, "127.0.0.1")
        stage.join_as_pupil(token, sent.append)
        assert state().keys().isdisjoint(LAW)
        tab = stage.join(lambda _: None)
        sent.clear()
        stage.act({"tab": tab, "do": "guess", "choice": 0})  # which is told that it cannot run
        assert state()["law"]["rps"] == 4
    finally:
        stage.close()
