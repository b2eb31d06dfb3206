"""The lesson, given in a terminal: guess, law, watch, compare, explain; at the end, all guesses and
the report page.

A sweep of the lesson's cells, whose progress is the lesson itself. Nothing is revealed before the
guess: neither the law nor what the run shows.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from workerlab import run_store
from workerlab.analysis.facts import Facts, facts_of
from workerlab.experiments.demo_picture import Picture
from workerlab.experiments.demo_words import course_of, guess, say, table
from workerlab.experiments.environment import interpreters
from workerlab.experiments.lesson import SHIPPED, Lesson, Step, read
from workerlab.experiments.lesson_words import Told, answer, law, measured, outcome, overflowed
from workerlab.experiments.planning import gunicorn_plan
from workerlab.experiments.reading import evidence, report_of
from workerlab.experiments.results import document_of, print_location
from workerlab.experiments.runner import Setup, run
from workerlab.model import EnvironmentProblem, Plan, Record, Trial, UsageError
from workerlab.numbers.units import format_wait
from workerlab.observe.observer import Observer
from workerlab.report import publish
from workerlab.server.running import Running
from workerlab.terminal.console import interactive, one_key, short, tell, unechoed
from workerlab.terminal.picture import fitting_width


@contextmanager
def setup(options: argparse.Namespace, _plan: Plan | None) -> Iterator[Setup]:
    """The steps' cells in their order, on the lab's own apps."""
    lesson = read(Path(options.lesson) if options.lesson else SHIPPED)
    ask = not options.yes and interactive()
    if not options.yes and not ask:
        tell("no terminal to ask, so it runs through as with --yes")
    found = interpreters(options)
    cells = (step.cell for step in lesson.steps)
    plan = gunicorn_plan("sweep", cells, found, together=True)
    yield Setup(plan, found, label="lesson", display=partial(Presenter, lesson, ask))


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


class Presenter:
    """Takes the place of the progress: `ask` for guesses, and for a key after each step."""

    def __init__(
        self,
        lesson: Lesson,
        ask: bool,
        directory: Path,
        plan: Plan,
        todo: Sequence[Trial],
        predict: Callable[[Trial], float | None],
    ) -> None:
        self._lesson, self._ask, self._directory, self._plan = lesson, ask, directory, plan
        self._steps = dict(zip(todo, lesson.steps, strict=True))
        self._seconds = sum(predict(one) or 0.0 for one in todo)
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
        say(f"{len(self._told) + 1} of {len(self._steps)}: {step.title}")
        say("-" * (fitting_width() - 2))
        say(step.changed)
        self._guess = None
        if one.cell.server.variant in self._plan.unavailable:
            return
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
        self._picture = Picture(self._plan, one, step.delay_s, step.at_once)

    def watch(self, server: Running, observer: Observer) -> None:
        if self._picture is not None:
            self._picture.look(server, observer)

    def end(self, one: Trial, record: Record) -> None:
        """Compare guess, law and measurement, and explain."""
        self._show_no_more()
        step = self._steps[one]
        if record.fault and record.fault.kind == "unavailable":
            say(f"This step is left out: {record.fault.reason}")
            self._told.append(Told(step, self._guess, left_out=True))
            print()
            return
        print()
        self._compare(step, one, record)
        print()
        say(step.why)
        print()
        if self._ask and len(self._told) < len(self._steps):
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
