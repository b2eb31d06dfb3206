"""`workerlab demo`: the lesson in a terminal.

Each step has a guess, the law, the run, a comparison and an explanation; at the end there are all
guesses and the report page. The command is a sweep of the lesson's cells, with the lesson as its
progress display. Neither the law nor the run is shown before the guess.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from workerlab import run_store
from workerlab.analysis.facts import Facts, facts_of
from workerlab.experiments.demo.terminal import (
    Picture,
    course_of,
    fitting_width,
    read_guess,
    say,
    table,
)
from workerlab.experiments.environment import interpreters
from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.steps import SHIPPED, Lesson, read
from workerlab.experiments.lesson.words import (
    answer,
    law_in_words,
    measured,
    outcome,
    overflowed,
)
from workerlab.experiments.live.recording import run_step
from workerlab.experiments.live.side import LiveServer, Look
from workerlab.experiments.planning import gunicorn_plan
from workerlab.experiments.reading import read_trial, report_of
from workerlab.experiments.results import document_of, print_location
from workerlab.experiments.runner import Setup, run
from workerlab.model import EnvironmentProblem, Plan, Record, Trial, UsageError
from workerlab.numbers.units import fill, format_wait
from workerlab.observe.observer import Observer
from workerlab.report import publish
from workerlab.report.player.places import IN_APP
from workerlab.server.running import Running
from workerlab.terminal.console import interactive, one_key, short, tell, unechoed

PROGRESS_S = 2.5
PROGRESS = (
    "{at_s:duration}: {in_app:count} in the app[[, {queued:count} in the accept queue]];"
    " {answered:count} answered, {gave_up:count} given up"
)


@contextmanager
def setup(options: argparse.Namespace, _plan: Plan | None) -> Iterator[Setup]:
    """The cells of the steps, in order, on the bundled apps."""
    lesson = read(Path(options.lesson) if options.lesson else SHIPPED)
    ask = not options.yes and interactive()
    if not options.yes and not ask:
        tell("no terminal to ask, so it runs through as with --yes")
    interpreters_by_name = interpreters(options)
    cells = tuple(step.cell for step in lesson.steps if step.is_trial)
    if not cells:
        raise UsageError("the terminal needs a step without patience: give this lesson with --web")
    plan = gunicorn_plan("sweep", cells, interpreters_by_name, together=True, arrivals="poisson")
    (serving,) = interpreters_by_name.values()
    live = partial(run_step, python=serving.python, gunicorn=serving.requested)
    display = partial(Presenter, lesson, ask, live)
    yield Setup(plan, interpreters_by_name, label="lesson", display=display)


def command(options: argparse.Namespace) -> int:
    """Give the lesson, here or in a browser, and write the report. Returns the exit code."""
    if options.web:
        if options.yes:
            raise UsageError("--yes is for the terminal: in a browser, each step waits for you")
        from workerlab.experiments.live.command import command as live

        defaults = {"port": None, "no_browser": None, "record": None}
        return live(argparse.Namespace(**vars(options), **defaults, begin=True))
    if options.share or options.share_port:
        raise UsageError("--share is for a lesson in a browser: add --web")
    directory, stopped = run("sweep", setup, options)
    if stopped is None:
        path = directory / "report.html"
        try:
            publish.write_page(document_of(directory), path)
            tell(f"the report page of this lesson: {short(path)}")
        except EnvironmentProblem as problem:
            tell(f"no report page: {problem}")
    print_location(directory)
    return stopped or 0


class LiveStepProgress:
    """Prints a line every PROGRESS_S seconds during a step that is not a trial."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._next_s = 0.0

    def show(self, look: Look, server: LiveServer) -> None:
        now_s, places = time.monotonic(), server.places
        self._began_s = self._began_s or now_s
        if now_s < self._next_s:
            return
        self._next_s = now_s + PROGRESS_S
        values = {
            "at_s": now_s - self._began_s,
            "in_app": look.counts[IN_APP],
            "queued": look.queue,
            "answered": places.answered,
            "gave_up": places.failed,
        }
        say(fill(PROGRESS, values), "  ")


class Presenter:
    """The progress display: it gives the lesson. `ask`: wait for guesses, and for a key after each
    step. `live`: runs the steps whose clients give up, which need the live page's load and are not
    trials."""

    def __init__(
        self,
        lesson: Lesson,
        ask: bool,
        live: Callable[..., None],
        directory: Path,
        plan: Plan,
        todo: Sequence[Trial],
        predict: Callable[[Trial], float | None],
    ) -> None:
        self._lesson, self._ask, self._directory, self._plan = lesson, ask, directory, plan
        self._course, self._run_live = Course(lesson), live
        places = [place for place, step in enumerate(lesson.steps) if step.is_trial]
        self._places = dict(zip(todo, places, strict=True))
        predicted_s = {place: predict(trial) for trial, place in self._places.items()}
        self._total_s = sum(
            predicted_s.get(place) or step.load_s for place, step in enumerate(lesson.steps)
        )
        self._picture: Picture | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._ask:
            self._stack.enter_context(unechoed())
        count = len(self._lesson.steps)
        say(f"{self._lesson.title} {count} steps; about {format_wait(self._total_s)}.")
        print()
        return self

    def __exit__(self, *error: object) -> None:
        self._close_picture()
        self._stack.close()
        if error == (None, None, None):
            print("\n".join(table(list(self._course.results.values()))), flush=True)
            if self._lesson.end:
                say(self._lesson.end)
                print(flush=True)

    def begin(self, trial: Trial) -> None:
        """Ask the question, read the guess and show the law; the run gives the answer."""
        self._give_live_steps()
        self._put_question(self._places[trial])
        if trial.cell.server.variant not in self._plan.unavailable:
            self._picture = Picture(self._plan, trial, self._course.step)

    def _put_question(self, place: int) -> None:
        course = self._course
        course.go(place)
        step = course.step
        say(f"{place + 1} of {len(self._lesson.steps)}: {step.title}")
        say("-" * (fitting_width() - 2))
        say(step.changed)
        print()
        say(step.question)
        for letter, choice in zip(step.letters, step.choices, strict=True):
            say(f"{letter}) {choice}", "  ")
        print()
        course.guess(read_guess(step) if self._ask else None)
        say(law_in_words(step))
        if course.choice is not None:
            say(step.reactions[course.choice])
        print()

    def _give_live_steps(self) -> None:
        """Run the steps that come next in the lesson and are not trials."""
        for place in range(len(self._course.results), len(self._lesson.steps)):
            if self._lesson.steps[place].is_trial:
                return
            self._put_question(place)
            self._run_live(self._course, watch=LiveStepProgress().show)
            print()
            self._explain()

    def watch(self, server: Running, observer: Observer) -> None:
        if self._picture is not None:
            self._picture.look(server, observer)

    def end(self, trial: Trial, record: Record) -> None:
        """Compare guess, law and measurement, and explain."""
        self._close_picture()
        if record.fault and record.fault.kind == "unavailable":
            why = fill("{reason:sentence}", {"reason": record.fault.reason})
            say(f"This step cannot be measured here: {why}")
            self._course.tell(None, left_out=True)
            self._explain()
        else:
            print()
            self._compare(trial, record)
        self._give_live_steps()

    def _compare(self, trial: Trial, record: Record) -> None:
        report = report_of(run_store.load(self._directory))
        (cell,) = (cell for cell in report.cells if cell.trial == trial)
        data = facts_of(read_trial(trial, record, self._plan, self._directory))
        facts = data if isinstance(data, Facts) and cell.verdict != "invalid" else None
        self._course.tell(measured(cell, facts), *outcome(self._course.step, cell, facts))
        self._explain(course_of(facts) if facts is not None and overflowed(facts) else ())

    def _explain(self, drawing: Sequence[str] = ()) -> None:
        """Print the answer, the result of the step, and the reason."""
        course = self._course
        say(answer(course.step, course.choice))
        for line in course.outcome:
            say(line)
        if drawing:
            print("\n".join(drawing), flush=True)
        print()
        say(course.step.why)
        print()
        if self._ask and len(course.results) < len(self._lesson.steps):
            one_key("Any key for the next step: ")
            print("\n")

    def _close_picture(self) -> None:
        if self._picture is not None:
            self._picture.close()
        self._picture = None
