"""Records the steps of a lesson, and writes a page that replays them: one file, which needs neither
a server nor a network."""

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from workerlab import codec
from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.law import side_view
from workerlab.experiments.lesson.steps import Lesson, LessonStep
from workerlab.experiments.lesson.words import LiveFigures
from workerlab.experiments.live.side import LiveServer, Look, Side
from workerlab.model import EnvironmentProblem
from workerlab.report import player
from workerlab.report.player.places import Move, as_rows
from workerlab.server.limits import cores
from workerlab.terminal.console import tell

PAGE = Path(__file__).with_name("page")
LESSON = "lesson.js"
TICK_S, TICKS_PER_SAMPLE = 0.05, 5
CHARTED = ("rps", "mean", "p95", "queue", "under_way")
START_S = 60.0
Watch = Callable[[Look, LiveServer], None]  # called with each look


class Recorder:
    """Records the trace of one side, from its first move."""

    def __init__(self) -> None:
        self._moves: list[Move] = []
        self._samples: list[tuple[int, Mapping[str, Any]]] = []
        self._last_ns = 0

    def add(self, look: Look, sample: Mapping[str, Any] | None) -> None:
        self._moves += look.moves
        self._last_ns = time.monotonic_ns()
        if sample is not None:
            self._samples.append((self._last_ns, {**sample, "queue": look.queue}))

    def measure(self, course: Course, side: Side) -> bool:
        """Measure and record the current step; False if its server has stopped."""
        figures = side.measured(course.measured_s)
        if figures is not None:
            course.measure(figures)
            course.record(self.trace(course.step))
        return figures is not None

    def trace(self, step: LessonStep) -> dict[str, object]:
        origin_ns = self._moves[0].at_ns if self._moves else self._last_ns
        samples = [
            (round((at_ns - origin_ns) / 1e6, 1), *(sample[name] for name in CHARTED))
            for at_ns, sample in self._samples
        ]
        side = {
            **side_view(step.server, step.load, cores()),
            "load": step.load,
            "workers": step.server.workers,
            "moves": as_rows(self._moves, origin_ns),
            "samples": samples,
        }
        return {"length_ms": round((self._last_ns - origin_ns) / 1e6, 1), "sides": [side]}


def record(path: Path, python: str, gunicorn: str, lesson: Lesson) -> None:
    """Run every step once, and write the page. Raises EnvironmentProblem if a step cannot be run,
    OSError if the page cannot be written."""
    course = Course(lesson)
    for place, step in enumerate(lesson.steps):
        tell(f"step {place + 1} of {len(lesson.steps)}: {step.title}")
        course.go(place)
        course.guess(None)
        run_step(course, python, gunicorn)
    path.write_text(page(course.recorded), encoding="utf-8")


def run_step(course: Course, python: str, gunicorn: str, watch: Watch | None = None) -> None:
    """Run the current step once, measure it and record its trace. Raises EnvironmentProblem if it
    cannot be run."""
    side = Side(course.step.server, python, gunicorn, lambda: None)
    side.start(course.step.load)
    try:
        _follow(side, course, watch)
    finally:
        side.stop()
        side.join(START_S)


def _follow(side: Side, course: Course, watch: Watch | None) -> None:
    recorder, step, number = Recorder(), course.step, 0
    until_s = time.monotonic() + START_S
    while (current := side.look()) is None:
        if side.phase == "failed" or time.monotonic() > until_s:
            raise EnvironmentProblem(f"{step.title}: {side.why or 'it did not start'}")
        time.sleep(TICK_S)
    until_s = time.monotonic() + course.settles_s + course.measured_s
    while time.monotonic() < until_s and current is not None:
        number += 1
        look, server = current
        recorder.add(look, None if number % TICKS_PER_SAMPLE else server.sample())
        if watch is not None:
            watch(look, server)
        time.sleep(TICK_S)
        current = side.look()
    if current is not None:  # the figures cover this look, too
        look, server = current
        recorder.add(look, server.sample())
    if not recorder.measure(course, side):
        raise EnvironmentProblem(f"{step.title}: {side.why}")


# --- the page ---------------------------------------------------------------------------------


def page(steps: Mapping[str, Any]) -> str:
    """The HTML of the page. `steps`: as `Course.recorded` returns them."""
    scripts = [*player.scripts(), (PAGE / LESSON).read_text(encoding="utf-8")]
    data = json.dumps(steps, separators=(",", ":"), default=codec.plain).replace("<", "\\u003c")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:;"
        f" script-src {_hashes(scripts)}"
    )
    template = (PAGE / "recorded.html").read_text(encoding="utf-8")
    parts = {
        "POLICY": policy,
        "TITLE": _escaped(steps["title"]),
        "STYLE": player.style(),
        "DATA": data,
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    for name, value in parts.items():
        template = template.replace(f"<!--{name}-->", value)
    return template


def renewed(recorded: str, lesson: Lesson) -> str:
    """A recorded page of this lesson, with the current code and texts."""
    data = re.findall(r'id="lab-recorded-data">(.*?)</script>', recorded, re.DOTALL)[0]
    recordings = json.loads(data)["steps"]
    pairs = zip(lesson.steps, recordings, strict=True)
    steps = tuple(replace(step, cores=recording["cores"]) for step, recording in pairs)
    course = Course(replace(lesson, steps=steps))
    for place, recording in enumerate(recordings):
        course.go(place)
        course.guess(None)
        course.measure(codec.convert(recording["seen"], LiveFigures))
        (side,) = recording["trace"]["sides"]
        side |= side_view(course.step.server, course.step.load, course.step.cores)
        course.record(recording["trace"])
    return page(course.recorded)


def _hashes(scripts: Sequence[str]) -> str:
    """Hashes for the Content-Security-Policy, which blocks any other script."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _escaped(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;")
