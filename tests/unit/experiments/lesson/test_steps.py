"""The lesson file: the bundled one, and the errors of invalid ones."""

import re
import tomllib
from pathlib import Path

import pytest

from workerlab.cli import main
from workerlab.errors import UsageError
from workerlab.experiments.lesson import steps
from workerlab.experiments.lesson.settings import BUNDLED_APPS
from workerlab.experiments.lesson.steps import LessonStep, read_lesson
from workerlab.experiments.lesson.texts import law_text
from workerlab.server.worker_classes import CLASSES

STEP = """
title = "T"
[[step]]
title = "one"
changed = "nothing yet"
worker_class = "sync"
connections = 8
question = "Who waits?"
why = "So it is."
[[step.choice]]
text = "nobody"
reaction = "See."
[[step.choice]]
text = "four"
right = true
reaction = "See?"
"""


SECOND_CHOICE = STEP[STEP.rindex("[[step.choice]]") :]


def lesson_file(directory: Path, text: str = STEP) -> Path:
    path = directory / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def step_of(directory: Path, old: str, new: str) -> LessonStep:
    """The step of STEP, with this replacement."""
    (step,) = read_lesson(lesson_file(directory, STEP.replace(old, new))).steps
    return step


def test_a_step_with_required_fields_only(tmp_path: Path) -> None:
    lesson = read_lesson(lesson_file(tmp_path))
    (step,) = lesson.steps
    server = step.cell.server
    assert lesson.title == "T"
    assert (server.workers, server.threads, server.backlog) == (4, 1, 2048)
    assert (step.cell.tool, step.cell.concurrency, step.cell.requests) == (steps.LOAD_TOOL, 8, 32)
    assert (step.load.delay_s, step.at_once, step.right) == (1.0, 4, 1)
    assert step.choices == ("nobody", "four")
    assert step.reactions == ("See.", "See?")
    assert (step.law.rps, step.law.response_s) == (4.0, 2.0)


@pytest.mark.parametrize(
    ("worker_class", "more_fields", "target", "at_once"),
    [
        ("gthread", "threads = 3", "apps.sleep_wsgi:app", 12),
        ("asgi", "", "apps.sleep_asgi:app", None),
        ("asgi", 'app = "blocking"', "apps.blocking_asgi:app", 4),
        ("gevent", "", "apps.sleep_wsgi:app", 4000),
        ("gevent", 'app = "imported"', "apps.imported_sleep:app", 4),
        ("sync", "delay = 0.5\nat_once = 2", "apps.sleep_wsgi:app", 2),
    ],
)
def test_the_app_and_the_law_follow_from_the_settings(
    tmp_path: Path, worker_class: str, more_fields: str, target: str, at_once: int | None
) -> None:
    step = step_of(tmp_path, '"sync"', f'"{worker_class}"\n{more_fields}')
    server = step.cell.server
    assert (server.app.target, step.at_once) == (target, at_once)
    assert server.app.sleep_s == step.load.delay_s
    assert dict(server.app.env)["WORKERLAB_SLEEP"] == f"{step.load.delay_s:g}"
    # Otherwise the sleep would be patched
    assert server.preload == (target == "apps.imported_sleep:app")
    assert step.law.rps == min(8, at_once or 8) / step.load.delay_s


def test_a_step_that_computes(tmp_path: Path) -> None:
    step = step_of(tmp_path, "= 8", "= 8\ncpu = 0.2\nworkers = 1")
    app = step.cell.server.app
    assert dict(app.env) == {"WORKERLAB_SLEEP": "0", "WORKERLAB_CPU": "200"}
    assert (app.sleep_s, step.load.delay_s, step.load.service_s) == (None, 0, 0.2)
    law = step.law
    assert (law.cpu_rps, law.rps, law.response_s) == (5, 5, pytest.approx(1.6))


def test_a_step_with_random_arrivals(tmp_path: Path) -> None:
    step = step_of(tmp_path, "connections = 8", "rate = 3.5")
    assert step.load.is_open
    assert (step.load.rate, step.law.rps, step.cell.duration_s) == (3.5, 3.5, 15)
    assert step.law.response_s > step.load.service_s


def test_a_step_whose_clients_give_up(tmp_path: Path) -> None:
    for patience_s, give_up, rps, response_s in ((1.5, True, 0, None), (2.5, False, 4, 2)):
        step = step_of(tmp_path, "= 8", f"= 8\npatience = {patience_s}")
        law = step.law
        assert (step.load.patience_s, law.patient_s) == (patience_s, 2)
        assert (law.clients_give_up, law.rps, law.response_s) == (give_up, rps, response_s)


def test_threads_of_a_class_without_threads_are_kept_and_ignored(tmp_path: Path) -> None:
    step = step_of(tmp_path, "= 8", "= 8\nthreads = 3")
    assert (step.server.threads, "threads" in step.server.effective_settings) == (3, False)
    assert (step.cell.server.worker_class, step.cell.server.threads) == ("sync", 1)


def test_two_equal_steps_are_two_trials(tmp_path: Path) -> None:
    same_step = STEP[STEP.index("[[step]]") :]
    first, second = read_lesson(lesson_file(tmp_path, STEP + same_step)).steps
    assert first.cell.server == second.cell.server
    assert first.cell.name != second.cell.name
    assert first.cell.series == second.cell.series


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "T"\n', "", "own.toml, title: is missing"),
        ('title = "T"\n', "title = 3\n", "own.toml, title: must be text, not 3"),
        ('title = "one"\n', "", "own.toml, step 1, title: is missing"),
        ('"sync"', '"snyc"', f"class: must be one of {', '.join(CLASSES)}, not 'snyc'"),
        ("= 8", "= 0", "step 1, connections: must be a whole number from 1 to 500, not 0"),
        ("= 8", "= true", "step 1, connections: must be a whole number from 1 to 500, not True"),
        ("= 8", "= 8.5", "step 1, connections: must be a whole number from 1 to 500, not 8.5"),
        ("= 8", "= 8\ndelay = 'long'", "step 1, delay: must be a number of seconds from 0.01"),
        ("= 8", "= 8\ndelay = nan", "step 1, delay: must be a number of seconds"),
        ("= 8", "= 8\nrequests = 15", "step 1, requests: must be at least 2 for each connection"),
        ("= 8", "= 8\nwokers = 2", "step 1: unknown field 'wokers': did you mean workers?"),
        ("= 8", '= 8\napp = "blocking"', "1, app: 'blocking' is for worker_class asgi or uvicorn"),
        ("= 8", '= 8\napp = "imported"', "step 1, app: 'imported' is for worker_class gevent"),
        ("= 8", '= 8\napp = "mine"', "step 1, app: must be one of sleep, blocking, imported"),
        ("connections = 8\n", "", "step 1: needs either connections or a rate"),
        ("= 8", "= 8\nrate = 2", "step 1: needs either connections or a rate"),
        ("connections = 8", "rate = 4", "1, rate: must be less than the 4 requests/s that can be"),
        ("connections = 8", "rate = 2\ncpu = 0.1", "step 1, rate: cannot be combined with cpu"),
        ("connections = 8", "rate = 2\npatience = 1", "rate: cannot be combined with patience"),
        ("connections = 8", "rate = 0", "rate: must be a number from 0.1 to 500, not 0"),
        ('"sync"\nconnections = 8', '"gthread"\nrate = 2', "rate: needs workers = 1 with gthread"),
        ('"sync"', '"gevent"\npatience = 1', "patience: needs worker_class sync, not gevent"),
        ("= 8", "= 8\npatience = 1.5\nbacklog = 5", "step 1, patience: needs a longer backlog"),
        ("= 8", "= 8\ncpu = 2", "step 1, cpu: must be a number from 0.01 to 1, not 2"),
        ("right = true\n", "", "step 1: exactly one choice must be right, not 0"),
        ('"See."', '"See."\nright = true', "step 1: exactly one choice must be right, not 2"),
        ('"See."', '"See."\nright = 1', "step 1, choice 1, right: must be true or false, not 1"),
        ('reaction = "See?"', "", "step 1, choice 2, reaction: is missing"),
        ('"See?"', '" "', "step 1, choice 2, reaction: must be text, not ' '"),
        ("[[step.choice]]", "[[step.choices]]", "unknown field 'choices': did you mean choice?"),
        (SECOND_CHOICE, "", "step 1, choice: there must be 2 to 8 of them, not 1"),
        ('why = "So it is."', "why = ", "is not a TOML file: Invalid value (at line"),
        (STEP, "", "own.toml, title: is missing"),
        (STEP, 'title = "T"\nstep = 1', "own.toml, step: there must be 1 to 30 of them, not 1"),
        (STEP, 'title = "T"\nstep = [1]', "own.toml, step 1: must be a table of title, changed"),
        (STEP, 'title = "T"\nstep = []', "own.toml, step: there must be 1 to 30 of them, not 0"),
    ],
)  # fmt: skip
def test_an_error_names_file_step_and_field(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in STEP
    with pytest.raises(UsageError) as error:
        read_lesson(lesson_file(tmp_path, STEP.replace(old, new)))
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_text_or_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_bytes(b"title = '\xff'")
    with pytest.raises(UsageError, match="is not a TOML file: 'utf-8' codec"):
        read_lesson(path)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_lesson(tmp_path)


def test_an_invalid_file_ends_the_command_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    path = lesson_file(tmp_path, STEP.replace("= 8", "= 'eight'"))
    out = tmp_path / "results"
    assert main(["demo", "--yes", "--lesson", str(path), "--out", str(out)]) == 2
    error = "connections: must be a whole number from 1 to 500, not 'eight'"
    assert capsys.readouterr().err == f"workerlab: {path}, step 1, {error}\n"
    assert not out.exists()
    assert main(["demo", "--lesson", str(tmp_path / "other.toml")]) == 2
    assert "other.toml is not a file" in capsys.readouterr().err


@pytest.mark.parametrize("step", read_lesson().steps, ids=lambda step: step.title)
def test_the_texts_of_the_bundled_lesson(step: LessonStep) -> None:
    """ASCII only; three sentences of explanation, and one sentence for each reaction."""
    texts = (step.title, step.changed, step.question, step.why, *step.choices, *step.reactions)
    assert all(text.isascii() for text in (*texts, law_text(step)))
    assert len(re.findall(r"[.?](?= |$)", step.why)) == 3
    assert all(len(re.findall(r"[.?](?= |$)", reaction)) == 1 for reaction in step.reactions)
    assert step.question.endswith("?")
    reactions = " ".join(step.reactions).lower()
    assert not any(word in reactions for word in ("right", "wrong"))


def test_the_laws_numbers_are_not_named_before_the_guess() -> None:
    """Neither in the question nor in the change."""
    for step in read_lesson().steps:
        text = f"{step.changed} {step.question}"
        assert "requests/s" not in text
        assert f"{step.law.patient_s:g} s" not in text.replace("sleeps for 1 s", "")


def test_every_field_is_documented_in_the_bundled_lesson() -> None:
    text = steps.BUNDLED_LESSON.read_text(encoding="utf-8")
    header = text.partition("\ntitle = ")[0]
    for name in {*steps.STEP_FIELDS, *steps.CHOICE_FIELDS, *BUNDLED_APPS}:
        assert re.search(rf"\b{name}s?\b", header), name
    assert tomllib.loads(text).keys() == steps.LESSON_FIELDS.keys()
