"""The lesson, given in a terminal: predict, guess, watch, explain; at the end, the report page.

A sweep of the lesson's cells, whose progress is the lesson itself.
"""

import argparse
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live as Screen
from rich.text import Text

from harness import run_store
from harness.experiments.lesson import ROUNDS, SLEEP_S, STEPS, law, outcome
from harness.experiments.planning import gunicorn_plan, interpreters
from harness.experiments.reading import report_of
from harness.experiments.results import document_of, print_location
from harness.experiments.runner import Setup, run
from harness.model import EnvironmentProblem, Plan, Record, Trial
from harness.numbers.units import format_wait
from harness.observe.observer import Observer
from harness.observe.spans import Live
from harness.plan import load_for
from harness.report import publish
from harness.report.messages import text
from harness.server.running import Running
from harness.server.worker_classes import class_named, configured_slots
from harness.terminal.console import interactive, one_key, short, tell
from harness.terminal.picture import WIDTH, draw

REDRAW_S = 0.1


@contextmanager
def setup(options: argparse.Namespace, _plan: Plan | None) -> Iterator[Setup]:
    """The steps' cells in their order, on the lab's own apps."""
    ask = not options.yes and interactive()
    if not options.yes and not ask:
        tell("no terminal to ask, so it runs through as with --yes")
    found = interpreters(options)
    plan = gunicorn_plan("sweep", (step.cell for step in STEPS), found, rounds=ROUNDS)
    yield Setup(plan, found, label="lesson", display=partial(Lesson, ask))


def command(options: argparse.Namespace) -> int:
    """Give the lesson and make its page. Returns the exit code."""
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


def say(paragraph: str = "", indent: str = "") -> None:
    """In 80 columns."""
    lines = textwrap.wrap(paragraph, WIDTH - 2, initial_indent=indent, subsequent_indent=indent)
    print("\n".join(lines), flush=True)


class Lesson:
    """Takes the place of the progress: `ask` for guesses, and for a key after each step."""

    def __init__(
        self,
        ask: bool,
        directory: Path,
        plan: Plan,
        todo: Sequence[Trial],
        predict: Callable[[Trial], float | None],
    ) -> None:
        self._ask, self._directory, self._plan = ask, directory, plan
        self._steps = dict(zip(todo, STEPS, strict=True))
        self._seconds = sum(predict(one) or 0.0 for one in todo)
        self._picture: Picture | None = None

    def __enter__(self) -> Self:
        say(
            "What happens when more requests come in than a server can serve?"
            f" {len(STEPS)} steps, each changes one thing; about {format_wait(self._seconds)}."
        )
        print()
        return self

    def __exit__(self, *error: object) -> None:
        self._show_no_more()

    def begin(self, one: Trial) -> None:
        """Put the question, wait for a key, and leave the answer to the run."""
        step = self._steps[one]
        say(f"{STEPS.index(step) + 1} of {len(STEPS)}: {step.title}")
        say("-" * (WIDTH - 2))
        say(step.changed)
        say(law(step))
        if one.cell.server.variant in self._plan.unavailable:
            return
        print()
        say(step.question)
        letters = "abcdefgh"[: len(step.choices)]
        for letter, choice in zip(letters, step.choices, strict=True):
            say(f"{letter}) {choice}", "  ")
        if self._ask:
            print("Your guess (a key, any other to go on): ", end="", flush=True)
            key = one_key()
            print(key if key and key in letters else "no guess")
        print()
        self._picture = Picture(self._plan, one)

    def watch(self, server: Running, observer: Observer) -> None:
        if self._picture is not None:
            self._picture.look(server, observer)

    def end(self, one: Trial, record: Record) -> None:
        self._show_no_more()
        if record.fault and record.fault.kind == "unavailable":
            say(f"This step is left out: {record.fault.reason}")
            return
        print()
        step = self._steps[one]
        report = report_of(run_store.load(self._directory))
        (cell,) = (cell for cell in report.cells if cell.trial == one)
        for line in outcome(step, cell):
            say(line)
        print()
        say(f"Answer: {step.choices[step.right]}. {step.why}")
        if cell.diagnosis:
            say(f"The report says: {text(cell.diagnosis)}")
        print()
        if self._ask and step is not STEPS[-1]:
            print("Any key for the next step: ", end="", flush=True)
            one_key()
            print("\n")

    def _show_no_more(self) -> None:
        if self._picture is not None:
            self._picture.close()
        self._picture = None


class Picture:
    """Slots and queue while a step runs: redrawn in place on a terminal, else drawn once at the
    end of the step, as it was in the middle of its load."""

    def __init__(self, plan: Plan, one: Trial) -> None:
        self._cell = one.cell
        self._requests = load_for(plan, one.cell, SLEEP_S).requests
        self._live: Live | None = None
        self._began = self._drawn = 0.0
        self._middle: list[str] = []
        console = Console(color_system=None, highlight=False, width=WIDTH)
        self._screen: Screen | None = None
        if console.is_terminal:
            self._screen = Screen(console=console, auto_refresh=False, transient=False)
            self._screen.__enter__()
            self._show([f"{'':10}starting {self._cell.server.worker_class} ..."])

    def close(self) -> None:
        if self._screen is not None:
            self._screen.stop()
        elif self._middle:
            print("\n".join(self._middle), flush=True)

    def look(self, server: Running, observer: Observer) -> None:
        """Called again and again while the load runs."""
        at = time.monotonic()
        if self._live is None:
            self._live, self._began = Live(server.launch.trial), at
        if at - self._drawn < REDRAW_S:
            return
        self._drawn = at
        busy, answered = self._live.look()
        lines = draw(
            at - self._began,
            busy=tuple(busy.values()),
            slots=configured_slots(self._cell.server),
            queue=observer.latest_queue,
            connections=self._cell.concurrency,
            answered=answered,
            requests=self._requests,
            accepts_first=class_named(self._cell.server.worker_class).accepts_first,
        )
        if answered <= self._requests / 2:
            self._middle = lines
        self._show(lines)

    def _show(self, lines: list[str]) -> None:
        if self._screen is not None:
            self._screen.update(Text("\n".join(lines)), refresh=True)
