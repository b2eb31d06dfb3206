"""The lesson in a terminal: what is said when, and what a key does. Without a server."""

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

from tests.builders.conditions import LONG_S
from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.analysis.facts import Facts, facts_of
from workerlab.cli import parse
from workerlab.experiments.demo import command as demo
from workerlab.experiments.demo import terminal
from workerlab.experiments.demo.command import Presenter
from workerlab.experiments.demo.terminal import WIDTH, course_of, table
from workerlab.experiments.lesson.steps import read
from workerlab.experiments.lesson.words import Measured, StepOutcome, law_in_words
from workerlab.experiments.reading import trial_data
from workerlab.model import Fault, Plan, Record, UsageError
from workerlab.plan import grid, load_for, predicted_s, trials
from workerlab.server import preflight
from workerlab.server.preflight import Interpreter
from workerlab.server.worker_classes import CLASSES
from workerlab.terminal import console

RECORDED = 6  # of the lesson's steps, by the run "demo"
LESSON = replace(read(), steps=read().steps[:RECORDED])


def never(*_: object, **__: object) -> None:
    raise AssertionError("no step of this lesson needs the live load")


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Who sits at the terminal that is standard input."""
    keyboard, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield keyboard
    os.close(keyboard)


@pytest.fixture
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Keys that are typed, one for each time that the lesson reads one; the rest is Enter."""

    def typed(keys: str) -> list[str]:
        left = list(keys)

        def one_key(prompt: str) -> str:
            print(prompt, end="")
            return left.pop(0) if left else "\n"

        for module in (demo, terminal):
            monkeypatch.setattr(module, "one_key", one_key)
        monkeypatch.setattr(demo, "unechoed", nullcontext)
        return left

    return typed


def given(capsys: pytest.CaptureFixture[str], *, ask: bool) -> str:
    """The lesson on a recorded run: nothing is drawn, all the rest is said."""
    run = run_store.load(recorded("demo"))
    plan = run.plan
    with Presenter(LESSON, ask, never, run.directory, plan, grid(plan), lambda _: 20.0) as display:
        for one in grid(plan):
            display.begin(one)
            display.end(one, run.records[one.key])
    return capsys.readouterr().out


def wrapped(text: str) -> str:
    return " ".join(text.split())


def test_the_lesson_is_given_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    said = given(capsys, ask=False)
    assert said.startswith(LESSON.title)
    assert "about 2m 00s." in said
    assert [said.count(f"{number} of 6: ") for number in range(1, 7)] == [1] * 6
    assert said.count("Measured") == said.count("The answer: ") == 6
    assert said.count("Where a request spent its time") == 5  # not where the queue was full
    assert "Your guess" not in said
    assert "You guessed" not in said
    assert not any(one in wrapped(said) for step in LESSON.steps for one in step.reactions)
    assert all(len(line) <= WIDTH for line in said.splitlines())


def test_a_full_queue_is_shown_over_time(capsys: pytest.CaptureFixture[str]) -> None:
    """What a table of means hides: clients without room all the time, and slots that stand idle
    while they wait."""
    said = given(capsys, ask=False)
    assert said.count("no room  ") == 1
    part = said[said.index("5 of 6: ") : said.index("6 of 6: ")]
    lines = {line[2:18].strip(): line[18:].rstrip() for line in part.splitlines()}
    in_app, queue, no_room = (lines[name] for name in ("in the app", "accept queue", "no room"))
    assert in_app.startswith("4444444444444444")
    assert max(queue) == "5"
    assert all(count not in ".0123" for count in no_room[:14])
    idle = [n for n, count in enumerate(in_app) if count == "."]
    assert len(idle) >= 2
    assert {no_room[n] for n in idle[:-2]} == {"3"}
    assert "The accept queue was full: the kernel dropped 68 packets" in wrapped(part)
    assert "Measured over 6." in part
    assert "in which each of 16 clients had a request under way: " in wrapped(part)
    assert "for 5.27 s of it slots were idle while others still waited." in wrapped(part)
    assert "Of all requests, the fastest took 1.00 s, the slowest 15.3 s." in wrapped(part)
    assert "inside a worker" not in part


@pytest.mark.parametrize("columns", [30, 40, 60, 79])
def test_the_lesson_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """All the words are still there: the table at the end becomes a paragraph for each step."""
    wide = wrapped(given(capsys, ask=False)).replace("-", "")
    monkeypatch.setenv("COLUMNS", str(columns))
    said = given(capsys, ask=False)
    assert max(map(len, said.splitlines())) <= columns
    assert "1 sync, 4 connections, right a, law 4/s, 1.00 s, measured " in wrapped(said)
    assert len(wrapped(said)) > 0.9 * len(wide)


def test_who_is_accepted_and_not_served_is_shown_as_well() -> None:
    """The worker waits for a request that was dropped after the handshake."""
    facts = next(facts_of(one) for one in trial_data(run_store.load(recorded("demo")))
                 if one.cell.server.backlog == 4)  # fmt: skip
    assert isinstance(facts, Facts)
    early = tuple(replace(one, accept_ns=one.start_ns - 2 * 10**9) for one in facts.spans[-2:])
    spans = replace(facts.data.spans, spans=facts.data.spans.spans[:-2] + early)
    lines = course_of(replace(facts, data=replace(facts.data, spans=spans), derived={}))
    assert "as the request itself was dropped and has to come again):" in " ".join(lines)
    assert sum(line.startswith("  inside a worker ") for line in lines) == 1


def test_what_is_said_in_which_order(
    capsys: pytest.CaptureFixture[str], no_terminal: Callable[[str], list[str]]
) -> None:
    """Question, guess, law, reaction, measurement beside guess and law, explanation."""
    no_terminal("a c \n b c a")
    said = wrapped(given(capsys, ask=True))
    for number, guess in enumerate((0, 2, None, 1, 2, 0), 1):
        step = LESSON.steps[number - 1]
        part = said[said.index(f"{number} of 6: ") :].partition(f"{number + 1} of 6: ")[0]
        reaction = [] if guess is None else [step.reactions[guess]]
        answer = "The answer: " if guess is None else f"You guessed {step.letters[guess]}) "
        parts = [step.changed, step.question, "Your guess", law_in_words(step), *reaction]
        parts += [answer, "Measured", step.why]
        places = [part.index(wrapped(one)) for one in parts]
        assert places == sorted(places), step.title
        others = set(step.reactions) - set(reaction)
        assert not any(wrapped(one) in part for one in others)
        before = part[: part.index("Your guess")]
        assert "law" not in before
        assert "requests/s" not in before


def test_all_guesses_stand_in_one_table_at_the_end(
    capsys: pytest.CaptureFixture[str], no_terminal: Callable[[str], list[str]]
) -> None:
    no_terminal("a c \n \n \n \n \n \n")
    end = given(capsys, ask=True).rpartition("step ")[2].splitlines()
    assert end[0].split() == ["guess", "right", "law", "measured"]
    first, second, third, *_ = end[2:]
    assert first.startswith("1 sync, 4 connections ")
    assert first.split()[4:6] == ["a", "a"]
    assert second.split()[4:6] == ["c", "b"]
    assert third.split()[4:6] == ["-", "b"]
    assert "4/s, 2.00 s" in second
    rest = "\n".join(end[2 + len(LESSON.steps) :]).strip()
    assert rest.startswith("1 of 2 guesses was right.\n")
    assert wrapped(rest).endswith(LESSON.end)
    assert "4/s, 4.00 s" in end[5]
    assert "up to 15.3 s" in end[6]  # what the mean would hide


def test_the_table_fits_and_leaves_out_guesses_that_nobody_made() -> None:
    long = replace(LESSON.steps[0], title="a" * 60)
    outcomes = [
        StepOutcome(long, 0, Measured(12.5, 0.8461)),
        StepOutcome(LESSON.steps[1], left_out=True),
    ]
    lines = table(outcomes)
    assert all(len(line) <= WIDTH for line in lines)
    assert "..." in lines[2]
    assert lines[2].endswith("12.5/s, 846 ms")
    assert lines[3].endswith("left out")
    nobody = table([StepOutcome(LESSON.steps[1], measured=Measured(3.98, 2.0))])
    assert nobody[0].split() == ["step", "right", "law", "measured"]
    assert not any("guess" in line for line in nobody)


def test_a_step_that_cannot_be_run_is_left_out(
    capsys: pytest.CaptureFixture[str], no_terminal: Callable[[str], list[str]]
) -> None:
    no_terminal("")
    run = run_store.load(recorded("demo"))
    plan = replace(run.plan, unavailable={"sync": "no Gunicorn"})
    one = grid(plan)[0]
    with Presenter(LESSON, True, never, run.directory, plan, grid(plan), lambda _: 0.0) as display:
        display.begin(one)
        display.end(one, Record(one.key, Fault("unavailable", "no Gunicorn")))
    said = capsys.readouterr().out
    assert "This step cannot be measured here: no Gunicorn." in said
    assert "The answer: a)" in said
    assert " ".join(said.split()).count("Four connections meet four slots") == 1, "explained"
    table_of = said.removesuffix("\n").rpartition("\n\n")[0]
    assert table_of.rstrip().endswith("left out")


def test_who_stops_the_lesson_gets_no_table(
    capsys: pytest.CaptureFixture[str], no_terminal: Callable[[str], list[str]]
) -> None:
    no_terminal("")
    run = run_store.load(recorded("demo"))
    with (
        pytest.raises(KeyboardInterrupt),
        Presenter(LESSON, True, never, run.directory, run.plan, grid(run.plan), lambda _: 0.0),
    ):
        raise KeyboardInterrupt
    assert "measured" not in capsys.readouterr().out


# --- keys, on a real terminal ---------------------------------------------------------------------


def type_ahead(person: int, keys: bytes) -> None:
    """Returns when they are in the terminal's input buffer: it has echoed them."""
    os.write(person, keys)
    echoed = b""
    while echoed.replace(b"\r\n", b"\n") != keys:
        assert select.select([person], [], [], LONG_S)[0], echoed
        echoed += os.read(person, 100)


@pytest.fixture
def type_at_prompt(person: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Types a key as soon as the prompt is printed."""

    def type_at(key: bytes) -> None:
        def prompted(text: str, **words: Any) -> None:
            real(text, **words)
            if words.get("end") == "":
                os.write(person, key)

        real = print
        monkeypatch.setattr("builtins.print", prompted)

    later = threading.Timer(LONG_S, os.write, (person, b"x"))  # a dropped key: or it waits for ever
    later.start()
    yield type_at
    later.cancel()
    later.join()


def test_one_key_is_read_without_enter(type_at_prompt: Callable[..., None]) -> None:
    type_at_prompt(b"B")
    assert console.one_key("?") == "b"


@pytest.mark.parametrize("ahead", [b"aaa\n", b"\n", b"a\na\nc\n"])
def test_keys_typed_ahead_are_dropped(
    person: int, type_at_prompt: Callable[..., None], ahead: bytes
) -> None:
    """They were typed while a step was running: no answer to the question that follows."""
    type_ahead(person, ahead)
    type_at_prompt(b"b")
    assert console.one_key("?") == "b"


def test_keys_without_enter_typed_ahead_are_no_guess(
    person: int, type_at_prompt: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that has no end yet is in the buffer as well."""
    type_ahead(person, b"ccc")
    type_at_prompt(b"b")
    assert terminal.read_guess(LESSON.steps[1]) == 1
    assert capsys.readouterr().out.endswith("(a, b, c; Enter for none): b\n\n")


@pytest.mark.parametrize(("keys", "guess"), [("\x1bxb", 1), ("x\n", None), ("b", 1)])
def test_a_slip_costs_no_guess(
    capsys: pytest.CaptureFixture[str],
    no_terminal: Callable[[str], list[str]],
    keys: str,
    guess: int | None,
) -> None:
    left = no_terminal(keys)
    assert terminal.read_guess(LESSON.steps[1]) == guess
    assert not left
    assert capsys.readouterr().out.endswith("b\n\n" if guess else "none\n\n")


def test_keys_do_not_show_while_the_lesson_runs_and_do_afterwards(person: int) -> None:
    terminal = sys.stdin.fileno()

    def echoes() -> bool:
        return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)

    assert echoes()
    with console.unechoed():
        assert not echoes()
        os.write(person, b"typed\n")
        assert select.select([terminal], [], [], LONG_S)[0]
        assert not select.select([person], [], [], 0.1)[0]
    assert echoes()
    assert not select.select([terminal], [], [], 0.05)[0]  # nor is it left for the shell


# --- what is run ----------------------------------------------------------------------------------


def planned(monkeypatch: pytest.MonkeyPatch, *words: str) -> Plan:
    everything = Interpreter("python3", "25.3.0", CLASSES, (), {}, {})
    monkeypatch.setattr(preflight, "interpreter", lambda *_: everything)
    with demo.setup(parse(["demo", "--yes", *words]), None) as prepared:
        return prepared.plan


def test_all_connections_of_a_step_begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lone first request, and no odd number of them; and all of it in two minutes."""
    plan, steps = planned(monkeypatch), read().steps[:-1]  # the last is no trial
    loads = [load_for(plan, step.cell, step.load.service_s) for step in steps]
    assert [load.requests for load in loads[:-1]] == [16, 24, 32, 48, 64, 24, 24, 16]
    assert (loads[-1].rate_rps, loads[-1].arrivals, loads[-1].duration_s) == (16, "poisson", 15)
    assert all(load.together for load in loads)
    assert [place for place, load in enumerate(loads) if load.drops] == [4]
    assert [step.cell for step in steps] == [trial.cell for trial in trials(plan)]
    assert sum(predicted_s(plan, step.cell, step.load.service_s) for step in steps) < 120


def test_a_lesson_of_impatient_clients_alone_is_for_the_browser(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = demo.SHIPPED.read_text()
    path = tmp_path / "own.toml"
    path.write_text(text[: text.index("[[step]]")] + text[text.rindex("[[step]]\n") :])
    with pytest.raises(UsageError, match="the terminal needs a step without patience"):
        planned(monkeypatch, "--lesson", str(path))


def test_another_lesson_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    text = demo.SHIPPED.read_text()
    path.write_text(text[: text.index("[[step]]", text.index("[[step]]") + 1)])
    plan = planned(monkeypatch, "--lesson", str(path))
    assert plan.cells == (LESSON.steps[0].cell,)
