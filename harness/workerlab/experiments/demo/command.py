"""The lesson, given in a terminal: guess, law, watch, compare, explain; at the end, all guesses and
the report page.

A sweep of the lesson's cells, whose progress is the lesson itself. Nothing is revealed before the
guess: neither the law nor what the run shows.
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
from workerlab.analysis.places import IN_APP
from workerlab.experiments.demo.picture import Picture
from workerlab.experiments.demo.terminal import course_of, guess, say, table
from workerlab.experiments.environment import interpreters
from workerlab.experiments.lesson.steps import SHIPPED, Lesson, Step, read
from workerlab.experiments.lesson.words import Told, answer, law, measured, outcome, overflowed
from workerlab.experiments.live.course import Course
from workerlab.experiments.live.recording import run_step
from workerlab.experiments.live.side import Live, Looked
from workerlab.experiments.planning import gunicorn_plan
from workerlab.experiments.reading import evidence, report_of
from workerlab.experiments.results import document_of, print_location
from workerlab.experiments.runner import Setup, run
from workerlab.model import EnvironmentProblem, Plan, Record, Trial, UsageError
from workerlab.numbers.units import format_wait
from workerlab.observe.observer import Observer
from workerlab.report import publish
from workerlab.report.messages import say as sentence
from workerlab.server.running import Running
from workerlab.terminal.console import interactive, one_key, short, tell, unechoed
from workerlab.terminal.picture import fitting_width

PROGRESS_S = 2.5


@contextmanager
def setup(options: argparse.Namespace, _plan: Plan | None) -> Iterator[Setup]:
    """The steps' cells in their order, on the lab's own apps."""
    lesson = read(Path(options.lesson) if options.lesson else SHIPPED)
    ask = not options.yes and interactive()
    if not options.yes and not ask:
        tell("no terminal to ask, so it runs through as with --yes")
    found = interpreters(options)
    cells = tuple(step.cell for step in lesson.steps if step.patience_s is None)
    if not cells:
        raise UsageError("the terminal needs a step without patience: give this lesson with --web")
    plan = gunicorn_plan("sweep", cells, found, together=True, arrivals="poisson")
    (serving,) = found.values()
    live = partial(run_step, python=serving.python, gunicorn=serving.asked)
    yield Setup(plan, found, label="lesson", display=partial(Presenter, lesson, ask, live))


def command(options: argparse.Namespace) -> int:
    """Give the lesson, here or in a browser, and make its page. Returns the exit code."""
    if options.web:
        if options.yes:
            raise UsageError("--yes is for the terminal: in a browser, each step waits for you")
        from workerlab.experiments.live.command import command as live

        unasked = {"port": None, "no_browser": None, "record": None}
        return live(argparse.Namespace(**vars(options), **unasked, begin=True))
    if options.share or options.share_port:
        raise UsageError("--share is for a lesson in a browser: add --web")
    directory, stopped = run("sweep", setup, options)
    if stopped is None:
        path = directory / "report.html"
        try:
            publish.page(document_of(directory), path)
            tell(f"the report page of this lesson: {short(path)}")
        except EnvironmentProblem as problem:
            tell(f"no report page: {problem}")
    print_location(directory)
    return stopped or 0


def _load_s(step: Step) -> float:
    """How long the load of a step lasts, by the law."""
    if step.patience_s is not None:
        return step.patience_s + step.lasts_s
    return (step.cell.requests or 0) / step.rps


class LiveStepProgress:
    """A line now and then on a step that is no trial."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._next_s = 0.0

    def show(self, looked: Looked, live: Live) -> None:
        now_s = time.monotonic()
        self._began_s = self._began_s or now_s
        if now_s < self._next_s:
            return
        self._next_s = now_s + PROGRESS_S
        in_app, places = looked.counts[IN_APP], live.places
        counts = {"answered": places.answered, "gave_up": places.failed}
        queued = {"in_app": in_app, "queued": looked.queue}
        say(sentence("lesson.progress", at_s=now_s - self._began_s, **queued, **counts), "  ")


class Presenter:
    """Takes the place of the progress: `ask` for guesses, and for a key after each step. `live`
    runs the steps whose clients give up, with the load of the live page: they are no trials."""

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
        steps = [step for step in lesson.steps if step.patience_s is None]
        self._steps = dict(zip(todo, steps, strict=True))
        self._course, self._run_live = Course(lesson), live
        self._seconds = sum(predict(trial) or _load_s(step) for trial, step in self._steps.items())
        self._seconds += sum(_load_s(step) for step in lesson.steps if step.patience_s is not None)
        self._guess: int | None = None
        self._told: list[Told] = []
        self._picture: Picture | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._ask:
            self._stack.enter_context(unechoed())
        count = len(self._lesson.steps)
        say(f"{self._lesson.title} {count} steps; about"
            f" {format_wait(self._seconds)}.")  # fmt: skip
        print()
        return self

    def __exit__(self, *error: object) -> None:
        self._show_no_more()
        self._stack.close()
        if error == (None, None, None):
            print("\n".join(table(self._told)), flush=True)
            if self._lesson.end:
                say(self._lesson.end)
                print(flush=True)

    def begin(self, one: Trial) -> None:
        """Put the question, wait for a key, tell the law, and leave the answer to the run."""
        step = self._steps[one]
        self._give_live_steps()
        self._introduce(step)
        self._put_question(step)
        if one.cell.server.variant in self._plan.unavailable:
            return
        self._picture = Picture(self._plan, one, step.delay_s, step.at_once)

    def _introduce(self, step: Step) -> None:
        say(f"{len(self._told) + 1} of {len(self._lesson.steps)}: {step.title}")
        say("-" * (fitting_width() - 2))
        say(step.changed)
        self._guess = None

    def _put_question(self, step: Step) -> None:
        print()
        say(step.question)
        for letter, choice in zip(step.letters, step.choices, strict=True):
            say(f"{letter}) {choice}", "  ")
        print()
        if self._ask:
            self._guess = guess(step)
        say(law(step))
        if self._guess is not None:
            say(step.reactions[self._guess])
        print()

    def _give_live_steps(self) -> None:
        """Those that come next in the lesson."""
        while (place := len(self._told)) < len(self._lesson.steps):
            step = self._lesson.steps[place]
            if step.patience_s is None:
                return
            self._introduce(step)
            self._put_question(step)
            self._course.go(place)
            self._course.guess(self._guess)
            self._run_live(self._course, watch=LiveStepProgress().show)
            print()
            say(answer(step, self._guess))
            for line in self._course.outcome:
                say(line)
            self._told.append(self._course.told)
            self._explain(step)

    def watch(self, server: Running, observer: Observer) -> None:
        if self._picture is not None:
            self._picture.look(server, observer)

    def end(self, one: Trial, record: Record) -> None:
        """Compare guess, law and measurement, and explain."""
        self._show_no_more()
        step = self._steps[one]
        if record.fault and record.fault.kind == "unavailable":
            say(sentence("lesson.not_run", why=record.fault.reason))
            say(answer(step, self._guess))
            self._told.append(Told(step, self._guess, left_out=True))
        else:
            print()
            self._compare(step, one, record)
        self._explain(step)
        self._give_live_steps()

    def _explain(self, step: Step) -> None:
        print()
        say(step.why)
        print()
        if self._ask and len(self._told) < len(self._lesson.steps):
            one_key("Any key for the next step: ")
            print("\n")

    def _compare(self, step: Step, one: Trial, record: Record) -> None:
        report = report_of(run_store.load(self._directory))
        (cell,) = (cell for cell in report.cells if cell.trial == one)
        data = facts_of(evidence(one, record, self._plan, self._directory))
        facts = data if isinstance(data, Facts) and cell.verdict != "invalid" else None
        say(answer(step, self._guess))
        for line in outcome(step, cell, facts):
            say(line)
        if facts is not None and overflowed(facts):
            print("\n".join(course_of(facts)), flush=True)
        self._told.append(Told(step, self._guess, measured(cell, facts)))

    def _show_no_more(self) -> None:
        if self._picture is not None:
            self._picture.close()
        self._picture = None
