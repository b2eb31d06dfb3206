"""Records the steps of a lesson and writes a page that replays them: one file that needs neither a
server nor a network."""

import json
import re
import time
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from workerlab import codec
from workerlab.errors import EnvironmentProblem
from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.law import side_view
from workerlab.experiments.lesson.settings import Message
from workerlab.experiments.lesson.steps import Lesson, LessonStep
from workerlab.experiments.lesson.texts import LiveFigures
from workerlab.experiments.live.side import LiveServer, LiveUpdate, Side
from workerlab.report import player
from workerlab.report.player.places import Move, as_ms, as_rows
from workerlab.server.limits import cores
from workerlab.server.preflight import Interpreter
from workerlab.terminal.console import tell

PAGE_DIR = Path(__file__).with_name("page")
LESSON_SCRIPT = "lesson.js"
TICK_S, TICKS_PER_SAMPLE = 0.05, 5
CHARTED_FIELDS = ("rps", "mean", "p95", "queue", "under_way")
START_TIMEOUT_S = 60.0
OnUpdate = Callable[[LiveUpdate, LiveServer], None]


class Recorder:
    """Records the trace of one side, with times relative to the first move."""

    def __init__(self) -> None:
        self._moves: list[Move] = []
        self._samples: list[tuple[int, Mapping[str, Any]]] = []
        self._last_ns = 0

    def add(self, update: LiveUpdate, sample: Mapping[str, Any] | None) -> None:
        self._moves += update.moves
        self._last_ns = time.monotonic_ns()
        if sample is not None:
            self._samples.append((self._last_ns, {**sample, "queue": update.queue}))

    def measure(self, course: Course, side: Side) -> bool:
        """Measure and record the current step; False if its server has stopped."""
        figures = side.read(lambda live: live.figures(course.measurement_s))
        if figures is not None:
            course.finish_live(figures)
            course.record(self.trace(course.step))
        return figures is not None

    def trace(self, step: LessonStep) -> Message:
        origin_ns = self._moves[0].at_ns if self._moves else self._last_ns
        samples = [
            (as_ms(at_ns, origin_ns), *(sample[name] for name in CHARTED_FIELDS))
            for at_ns, sample in self._samples
        ]
        side = {
            **side_view(step.server, step.load, cores()),
            "load": step.load,
            "workers": step.server.workers,
            "moves": as_rows(self._moves, origin_ns),
            "samples": samples,
        }
        return {"length_ms": as_ms(self._last_ns, origin_ns), "sides": [side]}


def record(path: Path, lesson: Lesson, interpreter: Interpreter) -> None:
    """Run every step once and write the page. Raises EnvironmentProblem if a step cannot be run,
    OSError if the page cannot be written."""
    course = Course(lesson)
    for index, step in enumerate(lesson.steps):
        tell(f"step {index + 1} of {len(lesson.steps)}: {step.title}")
        course.go(index)
        course.guess(None)
        run_step(course, interpreter)
    path.write_text(recorded_page(course.recording), encoding="utf-8")


def run_step(
    course: Course, interpreter: Interpreter, on_update: OnUpdate = lambda _update, _server: None
) -> None:
    """Run the current step once, measure it and record its trace. Raises EnvironmentProblem if it
    cannot be run."""
    side = Side(course.step.server, interpreter)
    side.start(course.step.load)
    try:
        _measure(side, course, on_update)
    finally:
        side.stop()
        side.join(START_TIMEOUT_S)


def _measure(side: Side, course: Course, on_update: OnUpdate) -> None:
    recorder, step, ticks = Recorder(), course.step, 0
    until_s = time.monotonic() + START_TIMEOUT_S
    while (current := side.poll()) is None:
        if side.phase == "failed" or time.monotonic() > until_s:
            raise EnvironmentProblem(f"{step.title}: {side.why or 'the server did not start'}")
        time.sleep(TICK_S)
    until_s = time.monotonic() + course.settling_s + course.measurement_s
    while current is not None:
        ticks += 1
        update, server = current
        has_ended = time.monotonic() >= until_s  # the figures include this update
        is_sampled = has_ended or ticks % TICKS_PER_SAMPLE == 0
        recorder.add(update, server.sample() if is_sampled else None)
        if has_ended:
            break
        on_update(update, server)
        time.sleep(TICK_S)
        current = side.poll()
    if not recorder.measure(course, side):
        raise EnvironmentProblem(f"{step.title}: {side.why}")


# --- the page ---------------------------------------------------------------------------------


def recorded_page(recording: Mapping[str, Any]) -> str:
    """The HTML of the page. `recording`: as in `Course.recording`."""
    scripts = [*player.scripts(), (PAGE_DIR / LESSON_SCRIPT).read_text(encoding="utf-8")]
    data = json.dumps(recording, separators=(",", ":"), default=codec.plain).replace("<", "\\u003c")
    template = (PAGE_DIR / "recorded.html").read_text(encoding="utf-8")
    parts = {
        "POLICY": player.content_policy(scripts),
        "TITLE": escape(recording["title"], quote=False),
        "STYLE": player.style(),
        "DATA": data,
        "SCRIPTS": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    for name, value in parts.items():
        template = template.replace(f"<!--{name}-->", value)
    return template


def rebuild_page(page: str, lesson: Lesson) -> str:
    """The recorded page of this lesson with the current code and texts."""
    data = re.findall(r'id="lab-recorded-data">(.*?)</script>', page, re.DOTALL)[0]
    recorded_steps = json.loads(data)["steps"]
    pairs = zip(lesson.steps, recorded_steps, strict=True)
    steps = tuple(replace(step, cores=recorded_step["cores"]) for step, recorded_step in pairs)
    course = Course(replace(lesson, steps=steps))
    for index, recorded_step in enumerate(recorded_steps):
        course.go(index)
        course.guess(None)
        course.finish_live(codec.convert(recorded_step["seen"], LiveFigures))
        (side,) = recorded_step["trace"]["sides"]
        side |= side_view(course.step.server, course.step.load, course.step.cores)
        course.record(recorded_step["trace"])
    return recorded_page(course.recording)
