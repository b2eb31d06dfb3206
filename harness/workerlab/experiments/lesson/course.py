"""The progress of a lesson, in a browser and in a terminal.

Each step asks a question, runs, and shows its result. A table follows the last step.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from workerlab.experiments.lesson.settings import Refused
from workerlab.experiments.lesson.steps import Lesson, LessonStep
from workerlab.experiments.lesson.words import (
    LiveFigures,
    Measured,
    StepOutcome,
    answer,
    law_in_short,
    law_in_words,
    live_outcome,
    score,
)

Phase = Literal["ask", "run", "told", "end"]

# A step is measured for at least this long, and for this many response times of the law
MIN_MEASURED_S, RESPONSE_TIMES = 4.0, 3
TAKE_HOME = "lesson.html"  # URL of the recorded lesson, relative to the page


class Course:
    """The state of a lesson. Methods raise Refused for what is not possible now. `place`: index of
    the current or last step; `results`: of the finished steps, by place; `outcome`: of the current
    step, as text."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self.place = 0
        self.phase: Phase = "ask"
        self.outcome: tuple[str, ...] = ()
        self.results: dict[int, StepOutcome] = {}
        self.choice: int | None = None  # the guess
        self._recorded: dict[int, dict[str, object]] = {}
        self._figures: LiveFigures | None = None

    @property
    def step(self) -> LessonStep:
        return self._lesson.steps[self.place]

    @property
    def settles_s(self) -> float:
        """Seconds of load before the measurement: until, by the law, each client has been answered
        or has given up."""
        patient_s = self.step.law.patient_s
        return min(patient_s, self.step.load.patience_s or patient_s)

    @property
    def measured_s(self) -> float:
        step = self.step
        if step.load.is_open or step.load.patience_s:
            return step.lasts_s
        return max(MIN_MEASURED_S, RESPONSE_TIMES * step.law.patient_s)

    def go(self, place: object) -> None:
        """Go to the question of a step, or past the last step to the end."""
        if type(place) is not int or not 0 <= place <= len(self._lesson.steps):
            raise Refused(f"the lesson has {len(self._lesson.steps)} steps", "step")
        self.phase = "end" if place == len(self._lesson.steps) else "ask"
        if self.phase == "ask":
            self.place = place
        self.choice, self.outcome = None, ()

    def guess(self, choice: object) -> None:
        """Take the guess and let the step run. None: no guess."""
        if self.phase != "ask":
            raise Refused("the guess comes before the load", "choice")
        choices = range(len(self.step.choices))
        if choice is None or (type(choice) is int and choice in choices):
            self.choice = choice
            self.phase = "run"
        else:
            raise Refused("there is no such choice", "choice")

    def measure(self, figures: LiveFigures) -> None:
        """Show the result of a live load."""
        self._figures = figures
        measured, outcome = live_outcome(self.step, figures, self.measured_s)
        self.tell(measured, *outcome)

    def tell(self, measured: Measured | None, *outcome: str, left_out: bool = False) -> None:
        """Show the result of the step. `left_out`: it cannot be run here."""
        result = StepOutcome(self.step, self.choice, measured, left_out)
        self.results[self.place], self.outcome, self.phase = result, outcome, "told"

    def record(self, trace: Mapping[str, object]) -> None:
        """Store the trace of the step that was measured last."""
        step = self.step
        self._recorded[self.place] = {
            "title": step.title,
            "changed": step.changed,
            "question": step.question,
            "choices": step.choices,
            "right": step.right,
            "law": law_in_words(step),
            "law_in_short": law_in_short(step),
            "reactions": step.reactions,
            "answer": answer(step, None),
            "why": step.why,
            "outcome": self.outcome,
            "measured": self.results[self.place].numbers[1],
            "seen": self._figures,
            "cores": step.cores,
            "trace": trace,
        }

    @property
    def recorded(self) -> dict[str, object]:
        """The recorded steps, for the page that replays them."""
        steps = [self._recorded[place] for place in sorted(self._recorded)]
        return {"title": self._lesson.title, "steps": steps, "end": self._lesson.end}

    def message(self, guesses: Mapping[int, int] | None = None) -> dict[str, object]:
        """The message to the page, without what must not be revealed yet. `guesses`: a pupil's
        choices by step, instead of the teacher's."""
        step, phase, guess = self.step, self.phase, self.choice
        law_shown, measured, end = phase in ("run", "told"), phase == "told", phase == "end"
        results = dict(sorted(self.results.items())) if end else {}
        if guesses is not None:
            guess = guesses.get(self.place)
            results = {n: replace(result, guess=guesses.get(n)) for n, result in results.items()}
        return {
            "kind": "lesson",
            "step": self.place,
            "of": len(self._lesson.steps),
            "phase": phase,
            "title": step.title,
            "changed": step.changed,
            "question": step.question,
            "choices": step.choices,
            "guess": guess,
            "right": step.right if measured else None,
            "law": law_in_words(step) if law_shown else None,
            "reaction": step.reactions[guess] if law_shown and guess is not None else None,
            "answer": answer(step, guess) if measured else None,
            "outcome": self.outcome if measured else [],
            "why": step.why if measured else None,
            "table": [result.row(result.step.choices) for result in results.values()],
            "score": score(results.values()),
            "end": self._lesson.end if end else "",
            "page": TAKE_HOME if end and self._recorded and guesses is None else None,
        }
