"""The lesson on real servers: short steps on the page and in a terminal, and the bundled step with
an overflowing accept queue."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Lab, processes
from workerlab import run_store
from workerlab.analysis.facts import Facts
from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.steps import BUNDLED_LESSON, read_lesson
from workerlab.experiments.lesson.texts import queue_overflowed, trial_figures
from workerlab.experiments.live.recording import run_step
from workerlab.experiments.live.side import LiveServer, LiveUpdate
from workerlab.experiments.reading import report_of, trial_data
from workerlab.server.preflight import Interpreter

pytestmark = pytest.mark.once

STEP = """
[[step]]
title = "{name}"
changed = "Nothing."
question = "What now?"
why = "One. Two. Three."
{settings}
[[step.choice]]
text = "this"
reaction = "Then this."
right = true
[[step.choice]]
text = "that"
reaction = "Then that."
"""
SETTINGS = {
    "threads": ('worker_class = "gthread"\nworkers = 1\nthreads = 2\ndelay = 0.2\nconnections = 6'),
    "cpu": 'worker_class = "gthread"\nworkers = 1\nthreads = 4\ncpu = 0.05\nconnections = 4',
    "random": 'worker_class = "sync"\nworkers = 2\ndelay = 0.1\nrate = 12\nseconds = 3',
    # 8 clients and 2 slots: a response would take 0.8 s
    "retry": (
        'worker_class = "sync"\nworkers = 2\ndelay = 0.2\nconnections = 8\npatience = 0.5\n'
        "seconds = 3"
    ),
}


def lesson_file(directory: Path, *names: str) -> Path:
    path = directory / "steps.toml"
    steps = [STEP.format(name=name, settings=SETTINGS[name]) for name in names]
    path.write_text('title = "Short"\n' + "".join(steps), encoding="utf-8")
    return path


def run_recorded(directory: Path, name: str) -> tuple[dict[str, Any], LiveUpdate, LiveServer]:
    """The recorded step, the last update and the server."""
    course = Course(read_lesson(lesson_file(directory, name)))
    updates: list[tuple[LiveUpdate, LiveServer]] = []
    course.guess(None)
    interpreter = Interpreter(sys.executable, "", (), (), {}, {})
    run_step(course, interpreter, on_update=lambda update, server: updates.append((update, server)))
    (step,) = course.recording["steps"]
    return step, *updates[-1]


def test_a_threaded_worker_accepts_more_requests_than_it_serves(tmp_path: Path) -> None:
    step, update, _ = run_recorded(tmp_path, "threads")
    assert "(the law: 10 in the long run)" in step["outcome"][0]
    assert "inside a worker" in " ".join(step["outcome"])
    (side,) = step["trace"]["sides"]
    assert max(update.counts) <= 6
    assert {move[1] for move in side["moves"]} >= {2, 3, 4}  # in a worker, in the app, answered


def test_threads_that_use_cpu_share_one_core(tmp_path: Path) -> None:
    step, _, live = run_recorded(tmp_path, "cpu")
    assert "= 20. The lower of the two is 20 requests/s at best." in step["law"]
    assert live.places.answered > 0
    rps = float(step["measured"].partition("/s")[0])
    assert 0 < rps < 25  # the slots alone would allow 80; a busy machine only lowers it


def test_requests_of_a_rate_arrive_at_random(tmp_path: Path) -> None:
    step, _, live = run_recorded(tmp_path, "random")
    assert step["law"].startswith("The law: 12 requests/s arrive at random.")
    assert "(the law: 12 in the long run)" in step["outcome"][0]
    assert live.places.answered > 0
    assert step["trace"]["sides"][0]["load"].model == "open"


def test_abandoned_requests_are_served(tmp_path: Path) -> None:
    """Gunicorn runs the app even for connections closed before it accepts them."""
    step, update, live = run_recorded(tmp_path, "retry")
    assert live.places.failed > 8
    assert live.places.sample(0).causes.keys() == {"gave_up"}
    assert live.places.in_flight <= 8  # the others are abandoned; some are about to retry
    assert sum(update.counts) > 8
    measured, gave_up = step["outcome"]
    wasted = int(measured.rpartition("served ")[2].split()[0])
    assert wasted > 0
    assert re.match(r"In all, .*clients gave up \d+ times\.", gave_up)
    assert step["measured"].endswith("/s")  # without a mean of the responses


def test_trials_and_live_steps_run_in_order_in_a_terminal(lab: Lab, tmp_path: Path) -> None:
    path = lesson_file(tmp_path, "random", "threads", "retry")
    result = lab("demo", "--yes", "--lesson", str(path))
    assert result.code == 0, result.err
    titles = [line for line in result.out.splitlines() if " of 3: " in line]
    assert titles == ["1 of 3: random", "2 of 3: threads", "3 of 3: retry"]
    assert result.out.count("Measured") == result.out.count("The answer: ") == 3
    assert result.out.count("of clients that had") == 1
    assert processes(str(lab.place)) == []


def only_step_with(setting: str, directory: Path) -> Path:
    title, *steps = BUNDLED_LESSON.read_text().split("[[step]]\n")
    (step,) = (step for step in steps if f"\n{setting}\n" in step)
    path = directory / "lesson.toml"
    path.write_text(f"{title}[[step]]\n{step}")
    return path


@pytest.mark.counters
def test_figures_of_an_overflowing_queue_satisfy_littles_law(lab: Lab, tmp_path: Path) -> None:
    """Throughput times mean response time is the number of clients, even if some wait long: both
    cover the time in which all clients have a request in flight."""
    lab.env["COLUMNS"] = "60"
    result = lab("demo", "--yes", "--lesson", str(only_step_with("backlog = 4", tmp_path)))
    assert result.code == 0, result.err + result.out
    assert max(map(len, result.out.splitlines())) <= 60
    run = run_store.load(lab.run)
    ((cell, data),) = zip(report_of(run).cells, trial_data(run), strict=True)
    facts = data.facts
    assert isinstance(facts, Facts)
    assert queue_overflowed(facts)
    figures = trial_figures(cell, facts)
    assert "each of 16 clients had a request in flight" in figures.period
    assert figures.rps * figures.response_s == pytest.approx(16, rel=0.05)
    output = " ".join(result.out.split())
    assert "in which each of 16 clients had a request in flight" in output
    assert "marks hidden" in output
