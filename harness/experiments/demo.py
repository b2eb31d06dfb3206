"""The lesson, given in a terminal: predict, guess, watch, explain; at the end, the report page."""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.live import Live as Screen
from rich.text import Text

from harness import run_store as store
from harness.experiments import lesson, trial
from harness.experiments.execution import task_for
from harness.experiments.lesson import ROUNDS, SLEEP_S, STEPS, Step
from harness.experiments.planning import lacking, new_seed
from harness.experiments.reading import report_of
from harness.experiments.results import document_of, kept
from harness.model import CellResult, EnvironmentProblem, Fault, Plan, Record, Trial
from harness.observe.live import Live
from harness.observe.observer import Observer
from harness.plan import grid, load_for, predicted_s
from harness.report import publish
from harness.report.messages import text
from harness.report.picture import WIDTH, Now, draw
from harness.server import preflight
from harness.server.running import Running
from harness.server.worker_classes import class_named, configured_slots
from harness.terminal.console import program, short, tell
from harness.terminal.interrupt import Stopped
from harness.terminal.keys import interactive, one_key
from harness.terminal.progress import duration

REDRAW_S = 0.1


def say(text: str = "", indent: str = "") -> None:
    """A paragraph, in 80 columns."""
    lines = textwrap.wrap(text, WIDTH - 2, initial_indent=indent, subsequent_indent=indent)
    print("\n".join(lines), flush=True)


def lesson_plan() -> tuple[Plan, preflight.Interpreter]:
    """The steps' cells in their order, on the lab's own apps."""
    found = preflight.interpreter(sys.executable, Path(), None)
    plan = Plan(
        kind="sweep",
        cells=tuple(step.cell for step in STEPS),
        trials=1,
        rounds=ROUNDS,
        seed=new_seed(),
        python=sys.executable,
        config=None,
        unavailable=lacking([step.cell.server for step in STEPS], found),
        notes=(),
    )
    return plan, found


class Picture:
    """Slots and queue while a step runs: redrawn in place on a terminal, else drawn once at the
    end of the step, as it was in the middle of its load."""

    def __init__(self, plan: Plan, one: Trial) -> None:
        self._cell = one.cell
        self._requests = load_for(plan, one.cell, SLEEP_S).requests
        self._console = Console(color_system=None, highlight=False, width=WIDTH)
        self._screen: Screen | None = None
        self._live: Live | None = None
        self._began = self._drawn = 0.0
        self._middle: list[str] = []

    def __enter__(self) -> Picture:
        if self._console.is_terminal:
            self._screen = Screen(console=self._console, auto_refresh=False, transient=False)
            self._screen.__enter__()
            self._show([f"{'':10}starting {self._cell.server.worker_class} ..."])
        return self

    def __exit__(self, *error: object) -> None:
        if self._screen is not None:
            self._screen.stop()
        elif self._middle:
            print("\n".join(self._middle), flush=True)

    def __call__(self, server: Running, observer: Observer) -> None:
        """Called again and again by the trial."""
        at = time.monotonic()
        if self._live is None:
            self._live, self._began = Live(server.launch.trial), at
        if at - self._drawn < REDRAW_S:
            return
        self._drawn = at
        busy, answered = self._live.look()
        lines = draw(
            Now(
                at_s=at - self._began,
                connections=self._cell.concurrency,
                busy=tuple(busy.values()),
                slots=configured_slots(self._cell.server),
                queue=observer.latest_queue,
                answered=answered,
                requests=self._requests,
                accepts_first=class_named(self._cell.server.worker_class).accepts_first,
            )
        )
        if answered <= self._requests / 2:
            self._middle = lines
        self._show(lines)

    def _show(self, lines: list[str]) -> None:
        if self._screen is not None:
            self._screen.update(Text("\n".join(lines)), refresh=True)


def guess(step: Step, ask: bool) -> None:
    """Put the question, wait for a key, and leave the answer to the run."""
    print()
    say(step.question)
    letters = "abcdefgh"[: len(step.choices)]
    for letter, choice in zip(letters, step.choices, strict=True):
        say(f"{letter}) {choice}", "  ")
    if not ask:
        return
    print("Your guess (a key, any other to go on): ", end="", flush=True)
    key = one_key()
    print(key if key and key in letters else "no guess")


def explain(step: Step, cell: CellResult) -> None:
    for line in lesson.outcome(step, cell):
        say(line)
    print()
    say(f"Answer: {step.choices[step.right]}. {step.why}")
    if cell.diagnosis:
        say(f"The report says: {text(cell.diagnosis)}")
    print()


def give(directory: Path, plan: Plan, ask: bool) -> None:
    """All steps, each trial kept before the next begins."""
    with store.appending(directory) as writer:
        for number, (step, one) in enumerate(zip(STEPS, grid(plan), strict=True), 1):
            say(f"{number} of {len(STEPS)}: {step.title}")
            say("-" * (WIDTH - 2))
            say(step.changed)
            say(lesson.law(step))
            name = one.cell.server.worker_class
            if name in plan.unavailable:
                say(f"This step is left out: {plan.unavailable[name]}")
                writer.ended(Record(one.key, Fault("unavailable", plan.unavailable[name])))
                continue
            guess(step, ask)
            print()
            with Picture(plan, one) as picture:
                writer.began(one.key)
                task = replace(task_for(plan, one, directory), watch=picture)
                trial.run(task, writer.ended)
            print()
            explain(step, _result(directory, one))
            if ask and number < len(STEPS):
                print("Any key for the next step: ", end="", flush=True)
                one_key()
                print("\n")


def _result(directory: Path, one: Trial) -> CellResult:
    (cell,) = (cell for cell in report_of(store.load(directory)).cells if cell.trial == one)
    return cell


def predicted(plan: Plan) -> float:
    """Seconds the steps will take, guesses aside."""
    return sum(predicted_s(plan, one.cell, SLEEP_S, counted=True) for one in grid(plan))


def command(options: argparse.Namespace) -> int:
    """Give the lesson and make its page. Returns the exit code."""
    directory = demo(options)
    path = directory / "report.html"
    try:
        publish.page(document_of(directory), path)
        tell(f"the report page of this lesson: {short(path)}")
    except EnvironmentProblem as problem:
        tell(f"no report page: {problem}")
    kept(directory)
    return 0


def demo(options: argparse.Namespace) -> Path:
    """Give the lesson. Returns its run."""
    ask = not options.yes
    if ask and not interactive():
        tell("no terminal to ask, so it runs through as with --yes")
        ask = False
    plan, found = lesson_plan()
    directory = store.fresh(options.out, "lesson")
    store.create(directory, plan, preflight.fingerprint(found, {}))
    say(
        f"What happens when more requests come in than a server can serve? {len(STEPS)} steps,"
        f" each changes one thing; about {duration(predicted(plan))}."
    )
    print()
    try:
        give(directory, plan, ask)
    except Stopped:
        tell(f"stopped; what was measured: {program()} report {directory}")
        raise
    return directory
