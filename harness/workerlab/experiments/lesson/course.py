"""The progress of a lesson, in a browser and in a terminal.

Each step asks a question, runs, and shows its result. A table follows the last step.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from workerlab.experiments.lesson.settings import Message, Refused
from workerlab.experiments.lesson.steps import Lesson, LessonStep
from workerlab.experiments.lesson.texts import (
    Figures,
    LiveFigures,
    StepOutcome,
    answer,
    law_summary,
    law_text,
    live_result,
    score,
)

Phase = Literal["ask", "run", "told", "end"]

# A step is measured for at least this long, and for this many predicted mean response times
MIN_MEASUREMENT_S = 4.0
MIN_RESPONSE_TIMES = 3
RECORDING_URL = "lesson.html"  # of the recorded lesson, relative to the page
QUESTION_FIELDS = ("title", "changed", "question", "choices")


class Course:
    """The state of a lesson. Methods raise Refused if their action is not possible now.
    `step_index`: of the current or last step; `choice`: index of the guessed choice; `results`: of
    the finished steps, by index; `outcome`: of the current step, as text."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self.step_index = 0
        self.phase: Phase = "ask"
        self.outcome: tuple[str, ...] = ()
        self.results: dict[int, StepOutcome] = {}
        self.choice: int | None = None
        self._recorded_steps: dict[int, Message] = {}
        self._live_figures: LiveFigures | None = None

    @property
    def step(self) -> LessonStep:
        return self._lesson.steps[self.step_index]

    @property
    def settling_s(self) -> float:
        """Seconds of load before the measurement: until, by the law, each client has received a
        response or given up."""
        patient_s = self.step.law.patient_s
        return min(patient_s, self.step.load.patience_s or patient_s)

    @property
    def measurement_s(self) -> float:
        step = self.step
        if step.load.is_open or step.load.patience_s:
            return step.duration_s
        return max(MIN_MEASUREMENT_S, MIN_RESPONSE_TIMES * step.law.patient_s)

    def go(self, step_index: object) -> None:
        """Go to the question of a step, or past the last step to the end."""
        count = len(self._lesson.steps)
        if type(step_index) is not int or not 0 <= step_index <= count:
            raise Refused(f"the lesson has {count} steps", "step")
        self.phase = "end" if step_index == count else "ask"
        if self.phase == "ask":
            self.step_index = step_index
        self.choice, self.outcome = None, ()

    def guess(self, choice: object) -> None:
        """Take the guess and let the step run. None: no guess."""
        if self.phase != "ask":
            raise Refused("too late: the step has started", "choice")
        choices = range(len(self.step.choices))
        if choice is None or (type(choice) is int and choice in choices):
            self.choice = choice
            self.phase = "run"
        else:
            raise Refused("no such choice", "choice")

    def finish_live(self, live_figures: LiveFigures) -> None:
        """Show the result of a live load."""
        self._live_figures = live_figures
        figures, outcome = live_result(self.step, live_figures, self.measurement_s)
        self.finish(figures, *outcome)

    def finish(self, figures: Figures | None, *outcome: str, skipped: bool = False) -> None:
        """Show the result of the step. `skipped`: it cannot be run here."""
        self.results[self.step_index] = StepOutcome(
            step=self.step, guess=self.choice, figures=figures, skipped=skipped
        )
        self.outcome, self.phase = outcome, "told"

    def record(self, trace: Mapping[str, object]) -> None:
        """Add the current step to the recording, once it has a result."""
        step = self.step
        self._recorded_steps[self.step_index] = {
            **_fields(step, *QUESTION_FIELDS, "right", "reactions", "why", "cores"),
            "law": law_text(step),
            "law_in_short": law_summary(step),
            "answer": answer(step, None),
            "outcome": self.outcome,
            "measured": self.results[self.step_index].measured_summary,
            "seen": self._live_figures,
            "trace": trace,
        }

    @property
    def recording(self) -> Message:
        """The recorded steps, for the page that replays them."""
        steps = [self._recorded_steps[index] for index in sorted(self._recorded_steps)]
        return {"title": self._lesson.title, "steps": steps, "end": self._lesson.end}

    def message(self, guesses: Mapping[int, int] | None = None) -> Message:
        """The message to the page, without anything that must not be revealed yet. `guesses`: a
        pupil's choices by step, instead of the teacher's."""
        step, phase, guess = self.step, self.phase, self.choice
        shows_law, shows_result, at_end = phase in ("run", "told"), phase == "told", phase == "end"
        results = dict(sorted(self.results.items())) if at_end else {}
        if guesses is not None:
            guess = guesses.get(self.step_index)
            results = {n: replace(result, guess=guesses.get(n)) for n, result in results.items()}
        has_recording = at_end and self._recorded_steps and guesses is None
        return {
            "kind": "lesson",
            "step": self.step_index,
            "of": len(self._lesson.steps),
            "phase": phase,
            **_fields(step, *QUESTION_FIELDS),
            "guess": guess,
            "right": step.right if shows_result else None,
            "law": law_text(step) if shows_law else None,
            "reaction": step.reactions[guess] if shows_law and guess is not None else None,
            "answer": answer(step, guess) if shows_result else None,
            "outcome": self.outcome if shows_result else [],
            "why": step.why if shows_result else None,
            "table": [result.row(result.step.choices) for result in results.values()],
            "score": score(results.values()),
            "end": self._lesson.end if at_end else "",
            "page": RECORDING_URL if has_recording else None,
        }


def _fields(step: LessonStep, *names: str) -> Message:
    return {name: getattr(step, name) for name in names}
