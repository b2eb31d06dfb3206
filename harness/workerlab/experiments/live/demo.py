"""`workerlab demo`: the lesson in a terminal.

Each step has a guess, the law, the run, a comparison and an explanation. All guesses and the report
page follow at the end. The command is a sweep of the lesson's cells, with the lesson as its
progress display. Neither the law nor the run is shown before the guess.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Self

from workerlab import run_store
from workerlab.analysis.facts import Facts
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.environment import interpreters
from workerlab.experiments.lesson.course import Course
from workerlab.experiments.lesson.steps import BUNDLED_LESSON, Lesson, read_lesson
from workerlab.experiments.lesson.texts import (
    answer,
    law_text,
    queue_overflowed,
    trial_figures,
    trial_outcome,
)
from workerlab.experiments.live.options import DemoOptions, LiveOptions
from workerlab.experiments.live.recording import OnUpdate, run_step
from workerlab.experiments.live.side import LiveServer, LiveUpdate
from workerlab.experiments.live.terminal import (
    Picture,
    fitting_width,
    print_paragraph,
    read_guess,
    requests_chart,
    table,
)
from workerlab.experiments.planning import gunicorn_plan
from workerlab.experiments.reading import document_of, print_location, report_of, trial_data
from workerlab.experiments.runner import Setup, run
from workerlab.experiments.scheduler import TrialSource
from workerlab.model.evidence import Record
from workerlab.model.plan import Plan, Trial
from workerlab.model.result import Result
from workerlab.numbers.units import fill, format_wait
from workerlab.observe.observer import Observer
from workerlab.report.html import write_page
from workerlab.report.player.places import IN_APP
from workerlab.server.running import Running
from workerlab.terminal.console import interactive, one_key, short, tell, without_echo

PROGRESS_INTERVAL_S = 2.5
PROGRESS_LINE = (
    "{at_s:duration}: {in_app:count} in the app[[, {queued:count} in the accept queue]];"
    " {answered:count} answered, {gave_up:count} given up"
)


def setup(options: DemoOptions, _plan: Plan | None) -> Setup:
    """The cells of the steps, in order, on the bundled apps."""
    lesson = read_lesson(options.lesson or BUNDLED_LESSON)
    prompts = not options.yes and interactive()
    if not options.yes and not prompts:
        tell("no terminal for prompts: running without them, as with --yes")
    interpreters_by_name = interpreters(options)
    cells = tuple(step.cell for step in lesson.steps if step.is_trial)
    if not cells:
        raise UsageError(
            "clients give up in every step (patience), so this lesson needs a browser: add --web"
        )
    plan = gunicorn_plan("sweep", cells, interpreters_by_name, together=True, arrivals="poisson")
    (interpreter,) = interpreters_by_name.values()
    run_live = partial(run_step, interpreter=interpreter)
    display = partial(Presenter, lesson, prompts, run_live)
    return Setup(plan, interpreters_by_name, label="lesson", display=display)


def command(options: DemoOptions) -> int:
    """Give the lesson, here or in a browser, and write the report. Returns the exit code."""
    if options.web:
        if options.yes:
            raise UsageError("--yes works only in a terminal: in a browser, you start each step")
        from workerlab.experiments.live.command import command as live_command

        return live_command(LiveOptions(**options.values_for(LiveOptions), begin=True))
    if options.given_options(DemoOptions.share, DemoOptions.share_port):
        raise UsageError("--share works only in a browser: add --web")
    directory, stop_code = run("sweep", setup, options)
    if stop_code is None:
        path = directory / "report.html"
        try:
            write_page(document_of(directory), path)
            tell(f"the report page of this lesson: {short(path)}")
        except EnvironmentProblem as problem:
            tell(f"no report page: {problem}")
    print_location(directory)
    return stop_code or 0


def progress_printer() -> OnUpdate:
    """Prints a line every PROGRESS_INTERVAL_S seconds during a step that is not a trial."""
    began_s = next_s = 0.0

    def show(update: LiveUpdate, server: LiveServer) -> None:
        nonlocal began_s, next_s
        now_s, places = time.monotonic(), server.places
        began_s = began_s or now_s
        if now_s >= next_s:
            next_s = now_s + PROGRESS_INTERVAL_S
            values = {
                "at_s": now_s - began_s,
                "in_app": update.counts[IN_APP],
                "queued": update.queue,
                "answered": places.answered,
                "gave_up": places.failed,
            }
            print_paragraph(fill(PROGRESS_LINE, values), "  ")

    return show


class Presenter:
    """The progress display, which gives the lesson. `prompts`: wait for guesses, and for a key
    after each step. `run_live`: runs the steps whose clients give up, which need the live page's
    load and are not trials."""

    def __init__(
        self,
        lesson: Lesson,
        prompts: bool,
        run_live: Callable[..., None],
        source: TrialSource,
        todo: Sequence[Trial],
    ) -> None:
        self._lesson, self._prompts = lesson, prompts
        self._directory, self._plan = source.directory, source.plan
        self._course, self._run_live = Course(lesson), run_live
        trial_steps = [index for index, step in enumerate(lesson.steps) if step.is_trial]
        self._step_indices = dict(zip(todo, trial_steps, strict=True))
        predicted_s = {index: source.predict(trial) for trial, index in self._step_indices.items()}
        self._total_s = sum(
            predicted_s.get(index) or step.load_s for index, step in enumerate(lesson.steps)
        )
        self._picture: Picture | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._prompts:
            self._stack.enter_context(without_echo())
        count = len(self._lesson.steps)
        print_paragraph(f"{self._lesson.title} {count} steps; about {format_wait(self._total_s)}.")
        print()
        return self

    def __exit__(self, *error: object) -> None:
        self._close_picture()
        self._stack.close()
        if error == (None, None, None):
            print("\n".join(table(list(self._course.results.values()))), flush=True)
            if self._lesson.end:
                print_paragraph(self._lesson.end)
                print(flush=True)

    def begin(self, trial: Trial) -> None:
        """Ask the question, read the guess and show the law."""
        self._run_live_steps()
        self._ask_question(self._step_indices[trial])
        if trial.cell.server.variant not in self._plan.unavailable:
            self._picture = Picture(self._plan, trial, self._course.step)

    def _ask_question(self, step_index: int) -> None:
        course = self._course
        course.go(step_index)
        step = course.step
        print_paragraph(f"{step_index + 1} of {len(self._lesson.steps)}: {step.title}")
        print_paragraph("-" * (fitting_width() - 2))
        print_paragraph(step.changed)
        print()
        print_paragraph(step.question)
        for letter, choice in zip(step.letters, step.choices, strict=True):
            print_paragraph(f"{letter}) {choice}", "  ")
        print()
        course.guess(read_guess(step) if self._prompts else None)
        print_paragraph(law_text(step))
        if course.choice is not None:
            print_paragraph(step.reactions[course.choice])
        print()

    def _run_live_steps(self) -> None:
        """Run the next steps of the lesson, up to the next trial."""
        for index in range(len(self._course.results), len(self._lesson.steps)):
            if self._lesson.steps[index].is_trial:
                return
            self._ask_question(index)
            self._run_live(self._course, on_update=progress_printer())
            print()
            self._explain()

    def watch(self, server: Running, observer: Observer) -> None:
        if self._picture is not None:
            self._picture.update(server, observer)

    def end(self, trial: Trial, record: Record) -> None:
        """Compare guess, law and measurement, and explain."""
        self._close_picture()
        if record.fault and record.fault.kind == "unavailable":
            why = fill("{reason:sentence}", {"reason": record.fault.reason})
            print_paragraph(f"This step cannot be measured here: {why}")
            self._course.finish(None, skipped=True)
            self._explain()
        else:
            print()
            self._compare(trial)
        self._run_live_steps()

    def _compare(self, trial: Trial) -> None:
        run = run_store.load(self._directory)
        trials = trial_data(run, keep=True)
        (cell,) = (cell for cell in report_of(run, trials).cells if cell.trial == trial)
        (data,) = (data.facts for data in trials if data.trial == trial)
        facts = data if isinstance(data, Facts) and isinstance(cell, Result) else None
        outcome = trial_outcome(self._course.step, cell, facts)
        self._course.finish(trial_figures(cell, facts), *outcome)
        self._explain(
            requests_chart(facts) if facts is not None and queue_overflowed(facts) else ()
        )

    def _explain(self, chart: Sequence[str] = ()) -> None:
        """Print the answer, the result of the step, and the reason."""
        course = self._course
        print_paragraph(answer(course.step, course.choice))
        for line in course.outcome:
            print_paragraph(line)
        if chart:
            print("\n".join(chart), flush=True)
        print()
        print_paragraph(course.step.why)
        print()
        if self._prompts and len(course.results) < len(self._lesson.steps):
            one_key("Press any key for the next step: ")
            print("\n")

    def _close_picture(self) -> None:
        if self._picture is not None:
            self._picture.close()
        self._picture = None
