"""The lesson on the live page: a step asks, then runs, then tells; at the end there is a table. The
steps are those of the terminal (`lesson/steps.py`), and so is what is said of them."""

from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from workerlab.analysis.places import GAVE_UP
from workerlab.experiments.lesson.settings import LoadAsked, Refused, ServerAsked
from workerlab.experiments.lesson.steps import Lesson, Step
from workerlab.experiments.lesson.words import (
    Measured,
    Told,
    answer,
    law,
    law_in_short,
    score,
    where,
)
from workerlab.experiments.live.side import Seen
from workerlab.model import Breakdown
from workerlab.report.messages import say

Phase = Literal["ask", "run", "told", "end"]

# A step is measured for so long, or so many times what the law says that a request takes
LEAST_S, TIMES = 4.0, 3
APART = 0.1  # of the mean
TAKE_HOME = "lesson.html"  # the address of what was recorded, beside the page


class Course:
    """Raises Refused for what cannot be done now."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._place = 0
        self._told: dict[int, Told] = {}
        self._kept: dict[int, dict[str, object]] = {}
        self._guess: int | None = None
        self._outcome: tuple[str, ...] = ()
        self._seen: Seen | None = None
        self.phase: Phase = "ask"

    @property
    def place(self) -> int:
        """Of the step that is given, or was given last."""
        return self._place

    @property
    def step(self) -> Step:
        return self._lesson.steps[self._place]

    @property
    def server(self) -> ServerAsked:
        server = self.step.cell.server
        return ServerAsked(
            server.worker_class, server.workers, server.threads, server.worker_connections,
            server.backlog, self.step.app,
        )  # fmt: skip

    @property
    def load(self) -> LoadAsked:
        step = self.step
        load = LoadAsked(delay_s=step.delay_s, cpu_ms=1000 * step.cpu_s)
        if step.rate_rps is not None:
            return replace(load, model="open", rate=step.rate_rps)
        return replace(load, clients=step.cell.concurrency, patience_s=step.patience_s or 0.0)

    @property
    def settles_s(self) -> float:
        """Of a load, before it is measured: until each client has had an answer, by the law, or
        has given up."""
        step = self.step
        return step.patient_s if step.patience_s is None else min(step.patient_s, step.patience_s)

    @property
    def measured_s(self) -> float:
        step = self.step
        if step.rate_rps is not None or step.patience_s is not None:
            return step.lasts_s
        return max(LEAST_S, TIMES * step.patient_s)

    @property
    def told(self) -> Told:
        """What came of the present step, once it is measured."""
        return self._told[self._place]

    @property
    def outcome(self) -> tuple[str, ...]:
        """The same in words."""
        return self._outcome

    def go(self, place: object) -> None:
        """To the question of a step; beyond the last one, to the end."""
        if type(place) is not int or not 0 <= place <= len(self._lesson.steps):
            raise Refused(f"the lesson has {len(self._lesson.steps)} steps", "step")
        self.phase = "end" if place == len(self._lesson.steps) else "ask"
        if self.phase == "ask":
            self._place = place
        self._guess, self._outcome = None, ()

    def guess(self, choice: object) -> None:
        """None: no guess."""
        if self.phase != "ask":
            raise Refused("the guess comes before the load", "choice")
        if choice is None:
            self._guess = None
        elif type(choice) is int and choice in range(len(self.step.choices)):
            self._guess = choice
        else:
            raise Refused("there is no such choice", "choice")
        self.phase = "run"

    def left_out(self, why: str) -> None:
        """The step cannot be run here."""
        self._outcome = (say("lesson.nothing", reason=why),)
        self._told[self._place] = Told(self.step, self._guess, left_out=True)
        self.phase = "told"

    def measure(self, came: Seen) -> None:
        """What came of it."""
        self._seen = came
        step, found, lines = self.step, None, list[str]()
        seen, slowest_s, fastest_s = came.sample, came.slowest_s, came.fastest_s
        if step.in_vain:
            self._measure_in_vain(came)
            return
        if seen.rps:
            far = slowest_s is not None and slowest_s > 2 * step.patient_s and not step.rate_rps
            found = Measured(seen.rps, seen.mean, slowest_s=slowest_s if far else None)
            values = {"rps": found.rps, "response_s": found.response_s, "last_s": self.measured_s}
            law_of = {"law_rps": step.rps, "law_s": step.response_s}
            lines.append(say("lesson.measured", **values, **law_of))
        if found is not None and found.slowest_s is not None and fastest_s is not None:
            code = "lesson.apart.waits" if came.slowest_waits else "lesson.apart.last"
            lines.append(say(code, fastest_s=fastest_s, slowest_s=found.slowest_s))
        if found is not None and came.where is not None and _explains(came.where, seen.mean):
            lines += where(came.where, answered=True)
        if seen.failed:
            lines.append(say("lesson.failed", failed=seen.failed))
        self._outcome = tuple(lines) or (say("lesson.nothing", reason=say("live.no_answer")),)
        self._told[self._place] = Told(step, self._guess, found)
        self.phase = "told"

    def _measure_in_vain(self, came: Seen) -> None:
        rps = came.answered / self.measured_s
        values = {"rps": rps, "law_rps": self.step.rps, "wasted": came.wasted}
        gave_up = came.sample.causes.get(GAVE_UP, 0)
        others = came.sample.failed - gave_up
        self._outcome = (
            say("lesson.measured.gives_up", last_s=self.measured_s, **values),
            say("lesson.gave_up", answered=came.sample.answered, failed=gave_up),
            *([say("lesson.failed", failed=others)] if others else []),
        )
        self._told[self._place] = Told(self.step, self._guess, Measured(rps, None))
        self.phase = "told"

    def keep(self, trace: Mapping[str, object]) -> None:
        """What was seen of the step that was measured last."""
        step = self.step
        self._kept[self._place] = {
            "title": step.title,
            "changed": step.changed,
            "question": step.question,
            "choices": step.choices,
            "right": step.right,
            "law": law(step),
            "law_in_short": law_in_short(step),
            "reactions": step.reactions,
            "answer": answer(step, None),
            "why": step.why,
            "outcome": self._outcome,
            "measured": self.told.found,
            "seen": self._seen,
            "cores": step.cores,
            "trace": trace,
        }

    @property
    def recorded(self) -> dict[str, object]:
        """The steps that were seen, to be played again."""
        steps = [self._kept[place] for place in sorted(self._kept)]
        return {"title": self._lesson.title, "steps": steps, "end": self._lesson.end}

    def message(self, guesses: Mapping[int, int] | None = None) -> dict[str, object]:
        """What the page is told: nothing before its time. `guesses`: a pupil's choice of each step,
        in place of the teacher's."""
        step, told, phase = self.step, [self._told[n] for n in sorted(self._told)], self.phase
        after, guess = phase in ("run", "told"), self._guess
        if guesses is not None:
            told = [replace(self._told[n], guess=guesses.get(n)) for n in sorted(self._told)]
            guess = guesses.get(self._place)
        return {
            "kind": "lesson",
            "step": self._place,
            "of": len(self._lesson.steps),
            "phase": phase,
            "title": step.title,
            "changed": step.changed,
            "question": step.question,
            "choices": step.choices,
            "guess": guess,
            "right": step.right if phase == "told" else None,
            "law": law(step) if after else None,
            "reaction": step.reactions[guess] if after and guess is not None else None,
            "answer": answer(step, guess) if phase == "told" else None,
            "outcome": self._outcome if phase == "told" else [],
            "why": step.why if phase == "told" else None,
            "table": [one.in_words for one in told] if phase == "end" else [],
            "score": score(told) if phase == "end" else "",
            "end": self._lesson.end if phase == "end" else "",
            "page": TAKE_HOME if phase == "end" and self._kept and guesses is None else None,
        }


def _explains(split: Breakdown, mean_s: float | None) -> bool:
    """Not where some have waited for long and are not answered: the mean is of them, too."""
    parts = (split.connect_s, split.accept_queue_s, split.in_worker_s, split.service_s)
    return mean_s is not None and abs(sum(part or 0.0 for part in parts) - mean_s) < APART * mean_s
