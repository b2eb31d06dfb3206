"""What serves an app where nobody says so: real environments, and a Gunicorn in some of them."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.builders.gunicorns import KNOWN, install
from workerlab.cli import parse
from workerlab.experiments import environment
from workerlab.experiments.compare.command import first_plan
from workerlab.experiments.environment import interpreters, python_of
from workerlab.experiments.planning import plan_of
from workerlab.model import EnvironmentProblem, Plan
from workerlab.paths import BUNDLED_GUNICORN
from workerlab.report.values import text
from workerlab.server import versions
from workerlab.server.preflight import Interpreter

LAB = pytest.mark.skipif(
    versions.of_the_lab() != BUNDLED_GUNICORN, reason=f"the lab has no Gunicorn {BUNDLED_GUNICORN}"
)


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be fetched; what the lab has can be copied."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("UV_OFFLINE", "UV_NO_CACHE", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)


def make(place: Path, gunicorn: str = "") -> str:
    """The interpreter of a new environment, with that version of Gunicorn or none."""
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    words = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-c", words], capture_output=True, text=True, check=True)
    if gunicorn:
        install(Path(done.stdout.strip()), gunicorn)
    return str(python)


def serving(*words: str, config: str | None = None) -> Interpreter:
    (found,) = interpreters(parse(["sweep", "sync", "2", *words]), (), config).values()
    return found


# --- the interpreter ------------------------------------------------------------------------------


@LAB
def test_that_an_app_runs_in_the_labs_own_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless somebody named it, or activated it."""
    app = ("--app", "shop:app")
    note = serving(*app).note
    assert note is not None
    assert text(note).startswith(f"Gunicorn runs in the lab's own environment ({sys.executable})")
    assert f"there is no .venv in {Path.cwd()}" in text(note)
    assert serving(*app, "--python", sys.executable).note is None
    assert serving().note is None  # a bundled app
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert serving(*app).note is None


def test_the_activated_one_then_the_one_beside_the_app_then_the_labs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert python_of(tmp_path) == sys.executable
    (tmp_path / ".venv").mkdir()  # of another system, or half-made: no interpreter in it
    assert python_of(tmp_path) == sys.executable
    beside = make(tmp_path / ".venv")
    assert python_of(tmp_path) == beside
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert python_of(tmp_path) == beside
    activated = make(tmp_path / "activated")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "activated"))
    assert python_of(tmp_path) == activated


def test_the_labs_own_beside_the_app_is_the_labs(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    assert python_of(tmp_path) == sys.executable


def test_a_flag_wins_and_bundled_apps_do_not_look(tmp_path: Path) -> None:
    beside = make(tmp_path / ".venv", "99.1")
    assert serving("--app", "shop:app").python == beside
    assert serving("--app", "shop:app", "--python", sys.executable).python == sys.executable
    assert serving().python == sys.executable
    assert serving("--app", "@sleep_wsgi").python == sys.executable


@pytest.mark.parametrize("flag", [(), ("--chdir", "other")], ids=["file", "flag"])
def test_it_is_beside_the_app_that_the_gunicorn_file_names(
    tmp_path: Path, flag: tuple[str, ...]
) -> None:
    found = {name: make(tmp_path / name / ".venv", "99.1") for name in ("shop", "other")}
    config = tmp_path / "conf.py"
    config.write_text("wsgi_app = 'shop:app'\nchdir = 'shop'\n")
    assert serving(*flag, config=str(config)).python == found["other" if flag else "shop"]
    config.write_text("workers = 3\n")  # no app: a bundled one
    assert serving(config=str(config)).python == sys.executable


# --- Gunicorn -------------------------------------------------------------------------------------


def test_that_of_the_apps_environment_serves_the_app(tmp_path: Path) -> None:
    make(tmp_path / ".venv", "99.1")
    found = serving("--app", "shop:app")
    assert (found.gunicorn, found.requested, found.note) == ("99.1", "", None)


@LAB
def test_where_it_has_none_one_with_every_class_serves_and_that_is_said(tmp_path: Path) -> None:
    beside = make(tmp_path / ".venv")
    found = serving("--app", "shop:app")
    assert (found.gunicorn, found.requested) == (BUNDLED_GUNICORN, BUNDLED_GUNICORN)
    assert text(found.note) == f"{beside} has no Gunicorn: using {BUNDLED_GUNICORN}"


def test_where_that_cannot_be_had_the_labs_own_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone: nothing else of the lab's environment gets on the path of the app."""
    monkeypatch.setattr(environment, "BUNDLED_GUNICORN", "99.9")
    beside = make(tmp_path / ".venv")
    found = serving("--app", "shop:app")
    own = versions.of_the_lab()
    assert (found.gunicorn, found.requested) == (own, own)
    said = text(found.note)
    assert said.startswith(f"{beside} has no Gunicorn; Gunicorn 99.9 cannot be installed: ")
    assert said.endswith(f"; using the lab's own, {own}")
    (path,) = versions.with_version(own, {}).values()
    assert all(one.name.startswith("gunicorn") for one in Path(path).iterdir())
    code = "import gunicorn, msgspec"
    done = subprocess.run([beside, "-c", code], env={"PYTHONPATH": path}, capture_output=True)
    assert b"No module named 'msgspec'" in done.stderr


@LAB
def test_bundled_apps_get_one_with_every_class(tmp_path: Path) -> None:
    own = serving()
    assert (own.gunicorn, own.requested, own.note) == (BUNDLED_GUNICORN, "", None)
    other = make(tmp_path / "other", "99.1")
    found = serving("--python", other)
    assert (found.gunicorn, found.requested) == (BUNDLED_GUNICORN, BUNDLED_GUNICORN)
    assert (
        text(found.note) == f"Gunicorn {BUNDLED_GUNICORN} serves the bundled apps; {other} has 99.1"
    )


def test_where_that_cannot_be_had_they_do_without_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "BUNDLED_GUNICORN", "99.9")
    found = serving("--python", make(tmp_path / "other", "99.1"))
    assert (found.gunicorn, found.requested, found.worker_classes) == ("99.1", "", list(KNOWN))
    said = text(found.note)
    assert "; 99.1 serves the bundled apps, without the worker class gthread, eventlet, " in said


def test_a_version_that_is_named_wins_and_is_not_replaced(tmp_path: Path) -> None:
    make(tmp_path / ".venv", "99.1")
    own = versions.of_the_lab()
    for app in ("shop:app", "@sleep_wsgi"):
        found = serving("--app", app, "--gunicorn", own)
        assert (found.gunicorn, found.requested, found.note) == (own, own, None)
    with pytest.raises(EnvironmentProblem, match=r"Gunicorn 99\.9 cannot be installed"):
        serving("--app", "shop:app", "--gunicorn", "99.9")


@LAB
def test_interpreters_with_and_without_one_are_told_apart_in_the_plan(tmp_path: Path) -> None:
    pythons = [make(tmp_path / "with", "99.1"), make(tmp_path / "without")]
    for several in (pythons, pythons[::-1]):
        words = ("--app", "shop:app", "--python", ",".join(several), "--tool", "fast")
        plan, _ = plan_of(parse(["sweep", "sync", "2", *words]))
        assert plan.gunicorn == ""
        found = {one.python: one.gunicorn for one in plan.servers}
        assert found == {pythons[0]: "", pythons[1]: BUNDLED_GUNICORN}


# --- two sides of a comparison --------------------------------------------------------------------


def pythons_of(plan: Plan) -> list[str]:
    return [one.python or plan.python for one in plan.servers]


def compared(*words: str) -> Plan:
    return first_plan(parse(["compare", "sync", "2", "--app", "shop:app", *words]))[0]


def test_a_checkout_without_an_environment_gets_that_of_the_other(tmp_path: Path) -> None:
    main = make(tmp_path / "main/.venv", "99.1")
    (tmp_path / "branch").mkdir()
    sides = ("--a", "chdir=branch", "--b", "chdir=main")
    assert pythons_of(compared(*sides)) == [main, main]
    branch = make(tmp_path / "branch/.venv", "99.1")
    assert sorted(pythons_of(compared(*sides))) == sorted([main, branch])
    assert set(pythons_of(compared(*sides, "--python", sys.executable))) == {sys.executable}


def test_the_path_of_what_serves_is_the_one_that_was_found(tmp_path: Path) -> None:
    """A link to an environment stays one."""
    make(tmp_path / "real", "99.1")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/.venv").symlink_to(tmp_path / "real")
    assert python_of(tmp_path / "shop") == os.path.join(tmp_path, "shop/.venv/bin/python")
