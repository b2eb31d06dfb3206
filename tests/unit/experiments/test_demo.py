"""The lesson in a terminal: the order of its output, and its keys. Without a server."""

from __future__ import annotations

import os
import pty
import select
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import derived
from tests.builders.conditions import LONG_S
from tests.builders.plan import with_classes
from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.cli import parse
from workerlab.durations import predicted_s
from workerlab.errors import UsageError
from workerlab.experiments.lesson.steps import read_lesson
from workerlab.experiments.lesson.texts import Figures, StepOutcome, law_text
from workerlab.experiments.live import demo, terminal
from workerlab.experiments.live.demo import Presenter
from workerlab.experiments.live.options import LiveOptions
from workerlab.experiments.live.terminal import MAX_WIDTH, requests_chart, table
from workerlab.experiments.reading import trial_data
from workerlab.experiments.scheduler import TrialSource
from workerlab.model.evidence import Fault, Record
from workerlab.model.plan import Plan, Trial
from workerlab.plan import grid, load_for, trials
from workerlab.terminal import console

# The steps recorded in the run "demo"; none of them needs the live load
LESSON = replace(read_lesson(), steps=read_lesson().steps[:6])
Output = pytest.CaptureFixture[str]
TypeKeys = Callable[[str], list[str]]
TypeAtPrompt = Callable[[bytes], None]


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The controlling end of the terminal that is standard input."""
    controller, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield controller
    os.close(controller)


@pytest.fixture
def type_keys(monkeypatch: pytest.MonkeyPatch) -> TypeKeys:
    """Answers each prompt with the next key, then with Enter. Returns the keys not yet read."""

    def set_keys(keys: str) -> list[str]:
        unread = list(keys)

        def one_key(prompt: str) -> str:
            print(prompt, end="")
            return unread.pop(0) if unread else "\n"

        for module in (demo, terminal):
            monkeypatch.setattr(module, "one_key", one_key)
        monkeypatch.setattr(demo, "without_echo", nullcontext)
        return unread

    return set_keys


class FixedDuration(TrialSource):
    def __init__(self, directory: Path, plan: Plan, trial_s: float) -> None:
        self.directory, self.plan, self._trial_s = directory, plan, trial_s

    def predict(self, _: Trial) -> float:
        return self._trial_s


def presenter(directory: Path, plan: Plan, *, prompts: bool, trial_s: float = 0.0) -> Presenter:
    source = FixedDuration(directory, plan, trial_s)
    return Presenter(LESSON, prompts, run_live=pytest.fail, source=source, todo=grid(plan))


def lesson_output(capsys: Output, *, prompts: bool) -> str:
    """The output of the lesson on a recorded run, without pictures."""
    run = run_store.load(recorded("demo"))
    with presenter(run.directory, run.plan, prompts=prompts, trial_s=20.0) as display:
        for trial in grid(run.plan):
            display.begin(trial)
            display.end(trial, run.records[trial.key])
    return capsys.readouterr().out


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_the_lesson_is_given_step_by_step(capsys: Output) -> None:
    output = lesson_output(capsys, prompts=False)
    assert output.startswith(LESSON.title)
    assert "about 2m 00s." in output
    assert [output.count(f"{number} of 6: ") for number in range(1, 7)] == [1] * 6
    assert output.count("Measured") == output.count("The answer: ") == 6
    assert output.count("Where a request spent its time") == 5  # not where the queue was full
    assert "Your guess" not in output
    assert "You guessed" not in output
    reactions = [reaction for step in LESSON.steps for reaction in step.reactions]
    assert not any(reaction in unwrapped(output) for reaction in reactions)
    assert all(len(line) <= MAX_WIDTH for line in output.splitlines())


def test_requests_over_time_are_shown_for_a_full_queue(capsys: Output) -> None:
    """A table of means would hide that some clients never find room in the queue, and that slots
    are idle while they wait."""
    output = lesson_output(capsys, prompts=False)
    assert output.count("no room  ") == 1
    part = output[output.index("5 of 6: ") : output.index("6 of 6: ")]
    lines = {line[2:18].strip(): line[18:].rstrip() for line in part.splitlines()}
    assert lines["in the app"].startswith("4444444444444444")
    assert max(lines["accept queue"]) == "5"
    assert "The accept queue was full: the kernel dropped 68 packets" in unwrapped(part)
    assert "inside a worker" not in part


@pytest.mark.parametrize("columns", [30, 40, 60, 79])
def test_the_lesson_fits_a_narrow_terminal(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """No text is lost: the table at the end becomes a paragraph for each step."""
    wide = unwrapped(lesson_output(capsys, prompts=False)).replace("-", "")
    monkeypatch.setenv("COLUMNS", str(columns))
    output = lesson_output(capsys, prompts=False)
    assert max(map(len, output.splitlines())) <= columns
    assert "1 sync, 4 connections, right a, law 4/s, 1.00 s, measured " in unwrapped(output)
    assert len(unwrapped(output)) > 0.9 * len(wide)


def test_accepted_requests_that_wait_in_a_worker_are_shown() -> None:
    """The worker waits for a request that was dropped after the handshake."""
    data = trial_data(run_store.load(recorded("demo")))
    facts = next(derived(trial) for trial in data if trial.cell.server.backlog == 4)
    early = tuple(replace(span, accept_ns=span.start_ns - 2 * 10**9) for span in facts.spans[-2:])
    spans = replace(facts.data.spans, spans=facts.data.spans.spans[:-2] + early)
    lines = requests_chart(replace(facts, data=replace(facts.data, spans=spans), derived={}))
    assert "because the request itself was dropped and must be sent again):" in " ".join(lines)
    assert sum(line.startswith("  inside a worker ") for line in lines) == 1


def test_each_step_asks_before_it_explains(capsys: Output, type_keys: TypeKeys) -> None:
    """Question, guess, law, reaction, answer, measurement, explanation."""
    type_keys("a c \n b c a")
    output = unwrapped(lesson_output(capsys, prompts=True))
    for number, guess in enumerate((0, 2, None, 1, 2, 0), 1):
        step = LESSON.steps[number - 1]
        part = output[output.index(f"{number} of 6: ") :].partition(f"{number + 1} of 6: ")[0]
        reaction = [] if guess is None else [step.reactions[guess]]
        answer = "The answer: " if guess is None else f"You guessed {step.letters[guess]}) "
        parts = [step.changed, step.question, "Your guess", law_text(step), *reaction]
        parts += [answer, "Measured", step.why]
        positions = [part.index(unwrapped(text)) for text in parts]
        assert positions == sorted(positions), step.title
        others = set(step.reactions) - set(reaction)
        assert not any(unwrapped(reaction) in part for reaction in others)
        before = part[: part.index("Your guess")]
        assert "law" not in before
        assert "requests/s" not in before


def test_all_guesses_are_in_one_table_at_the_end(capsys: Output, type_keys: TypeKeys) -> None:
    type_keys("a c \n \n \n \n \n \n")
    end = lesson_output(capsys, prompts=True).rpartition("step ")[2].splitlines()
    assert end[0].split() == ["guess", "right", "law", "measured"]
    first, second, third, *_ = end[2:]
    assert first.startswith("1 sync, 4 connections ")
    assert first.split()[4:6] == ["a", "a"]
    assert second.split()[4:6] == ["c", "b"]
    assert third.split()[4:6] == ["-", "b"]
    assert "4/s, 2.00 s" in second
    rest = "\n".join(end[2 + len(LESSON.steps) :]).strip()
    assert rest.startswith("Correct guesses: 1 of 2.\n")
    assert unwrapped(rest).endswith(LESSON.end)
    assert "4/s, 4.00 s" in end[5]
    assert "up to 15.3 s" in end[6]  # the mean would hide it


def test_the_table_fits_and_has_no_column_for_guesses_if_there_are_none() -> None:
    long_title = replace(LESSON.steps[0], title="a" * 60)
    measured = StepOutcome(long_title, 0, Figures(12.5, 0.8461))
    lines = table([measured, StepOutcome(LESSON.steps[1], skipped=True)])
    assert all(len(line) <= MAX_WIDTH for line in lines)
    assert "..." in lines[2]
    assert lines[2].endswith("12.5/s, 846 ms")
    assert lines[3].endswith("skipped")
    without_guesses = table([StepOutcome(LESSON.steps[1], figures=Figures(3.98, 2.0))])
    assert without_guesses[0].split() == ["step", "right", "law", "measured"]
    assert not any("guess" in line for line in without_guesses)


def test_a_step_that_cannot_be_run_is_skipped(capsys: Output, type_keys: TypeKeys) -> None:
    type_keys("")
    run = run_store.load(recorded("demo"))
    plan = replace(run.plan, unavailable={"sync": "no Gunicorn"})
    trial = grid(plan)[0]
    with presenter(run.directory, plan, prompts=True) as display:
        display.begin(trial)
        display.end(trial, Record(trial.key, Fault("unavailable", "no Gunicorn")))
    output = capsys.readouterr().out
    assert "This step cannot be measured here: no Gunicorn." in output
    assert "The answer: a)" in output
    assert unwrapped(output).count("a slot for each of the four connections") == 1  # explained
    table_text = output.removesuffix("\n").rpartition("\n\n")[0]
    assert table_text.rstrip().endswith("skipped")


def test_an_interrupted_lesson_has_no_table(capsys: Output, type_keys: TypeKeys) -> None:
    type_keys("")
    run = run_store.load(recorded("demo"))
    with pytest.raises(KeyboardInterrupt), presenter(run.directory, run.plan, prompts=True):
        raise KeyboardInterrupt
    assert "measured" not in capsys.readouterr().out


# --- keys, on a real terminal ---------------------------------------------------------------------


def type_ahead(keyboard: int, keys: bytes) -> None:
    """Returns once the keys are in the terminal's input buffer: it has echoed them."""
    os.write(keyboard, keys)
    echoed = b""
    while echoed.replace(b"\r\n", b"\n") != keys:
        assert select.select([keyboard], [], [], LONG_S)[0], echoed
        echoed += os.read(keyboard, 100)


@pytest.fixture
def type_at_prompt(keyboard: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[TypeAtPrompt]:
    """Types a key as soon as the prompt is printed."""

    def type_at(key: bytes) -> None:
        def print_and_type(text: str, **options: Any) -> None:
            real_print(text, **options)
            if options.get("end") == "":
                os.write(keyboard, key)

        real_print = print
        monkeypatch.setattr("builtins.print", print_and_type)

    # Otherwise a dropped key would block the test forever
    unblock = threading.Timer(LONG_S, os.write, (keyboard, b"x"))
    unblock.start()
    yield type_at
    unblock.cancel()
    unblock.join()


def test_one_key_is_read_without_enter(type_at_prompt: TypeAtPrompt) -> None:
    type_at_prompt(b"B")
    assert console.one_key("?") == "b"


# Without Enter, an incomplete line is in the terminal's buffer
@pytest.mark.parametrize("typed_ahead", [b"aaa\n", b"\n", b"a\na\nc\n", b"ccc"])
def test_keys_typed_ahead_are_dropped(
    keyboard: int, type_at_prompt: TypeAtPrompt, capsys: Output, typed_ahead: bytes
) -> None:
    """They were typed while a step was running, so they do not answer the next question."""
    type_ahead(keyboard, typed_ahead)
    type_at_prompt(b"b")
    assert terminal.read_guess(LESSON.steps[1]) == 1
    assert capsys.readouterr().out.endswith("(a, b, c; Enter for none): b\n\n")


@pytest.mark.parametrize(("keys", "guess"), [("\x1bxb", 1), ("x\n", None), ("b", 1)])
def test_keys_that_are_no_choice_are_ignored(
    capsys: Output, type_keys: TypeKeys, keys: str, guess: int | None
) -> None:
    unread = type_keys(keys)
    assert terminal.read_guess(LESSON.steps[1]) == guess
    assert not unread
    assert capsys.readouterr().out.endswith("b\n\n" if guess else "none\n\n")


def test_keys_are_not_echoed_while_the_lesson_runs(keyboard: int) -> None:
    terminal = sys.stdin.fileno()

    def echoes() -> bool:
        return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)

    assert echoes()
    with console.without_echo():
        assert not echoes()
        os.write(keyboard, b"typed\n")
        assert select.select([terminal], [], [], LONG_S)[0]
        assert not select.select([keyboard], [], [], 0.1)[0]
    assert echoes()
    assert not select.select([terminal], [], [], 0.05)[0]  # nothing is left for the shell


# --- the plan -------------------------------------------------------------------------------------


def demo_plan(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Plan:
    with_classes(monkeypatch)
    with demo.setup(parse(["demo", "--yes", *arguments]), None) as prepared:
        return prepared.plan


def test_all_connections_of_a_step_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lone first request, a multiple of the connections, and two minutes in all."""
    plan, steps = demo_plan(monkeypatch), read_lesson().steps[:-1]  # the last is not a trial
    loads = [load_for(plan, step.cell, step.load.service_s) for step in steps]
    assert [load.requests for load in loads[:-1]] == [16, 24, 32, 48, 64, 24, 24, 16]
    assert (loads[-1].rate_rps, loads[-1].arrivals, loads[-1].duration_s) == (16, "poisson", 15)
    assert all(load.together for load in loads)
    assert [index for index, load in enumerate(loads) if load.drops] == [4]
    assert [step.cell for step in steps] == [trial.cell for trial in trials(plan)]
    assert sum(predicted_s(plan, step.cell, step.load.service_s) for step in steps) < 120


def test_another_lesson_needs_a_step_whose_clients_do_not_give_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    introduction, first_step, *_, last_step = demo.BUNDLED_LESSON.read_text().split("[[step]]\n")
    path = tmp_path / "own.toml"
    path.write_text(f"{introduction}[[step]]\n{first_step}")
    assert demo_plan(monkeypatch, "--lesson", str(path)).cells == (LESSON.steps[0].cell,)
    path.write_text(f"{introduction}[[step]]\n{last_step}")
    with pytest.raises(UsageError, match="clients give up in every step"):
        demo_plan(monkeypatch, "--lesson", str(path))


@pytest.mark.parametrize("share", [(), ("--share", "192.168.1.7")])
def test_in_a_browser_the_lesson_begins_at_once(
    share: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lesson, lives = str(demo.BUNDLED_LESSON), list[LiveOptions]()
    monkeypatch.setattr("workerlab.experiments.live.command.command", lives.append)
    demo.command(parse(["demo", "--web", "--lesson", lesson, *share]))
    assert lives == [LiveOptions(begin=True, lesson=lesson, share=share[1] if share else None)]
