"""The interpreter and Gunicorn that serve an app by default, in real environments."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.builders.gunicorns import CLASSES, install
from workerlab.cli import parse
from workerlab.errors import EnvironmentProblem
from workerlab.experiments import environment
from workerlab.experiments.compare.command import first_plan
from workerlab.experiments.environment import interpreters, python_of
from workerlab.experiments.planning import plan_of
from workerlab.paths import BUNDLED_GUNICORN
from workerlab.report.values import text
from workerlab.server import versions
from workerlab.server.preflight import Interpreter

needs_bundled_gunicorn = pytest.mark.skipif(
    versions.lab_version() != BUNDLED_GUNICORN, reason=f"the lab has no Gunicorn {BUNDLED_GUNICORN}"
)


@pytest.fixture
def no_bundled_gunicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundled version cannot be installed, since neither uv nor pip is available."""
    monkeypatch.setattr(environment, "BUNDLED_GUNICORN", "99.9")
    monkeypatch.setattr(versions, "_installers", tuple)


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be downloaded; the lab's own packages can be copied."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("UV_OFFLINE", "UV_NO_CACHE", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    for name in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)


def make(directory: Path, gunicorn: str = "") -> str:
    """The interpreter of a new environment, with that version of Gunicorn or none."""
    venv.create(directory, symlinks=True)
    if gunicorn:
        paths = {"base": str(directory), "platbase": str(directory)}
        install(Path(sysconfig.get_path("purelib", "venv", paths)), gunicorn)
    return str(directory / "bin" / "python")


def serving(*arguments: str) -> Interpreter:
    (interpreter,) = interpreters(parse(["sweep", "sync", "2", *arguments])).values()
    return interpreter


# --- the interpreter ------------------------------------------------------------------------------


@needs_bundled_gunicorn
def test_using_the_labs_own_environment_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is requested or activated."""
    app = ("--app", "shop:app")
    note = serving(*app).note
    assert text(note).startswith(f"Gunicorn runs in the lab's own environment ({sys.executable})")
    assert f"there is no .venv in {Path.cwd()}" in text(note)
    assert serving(*app, "--python", sys.executable).note is None
    assert serving().note is None  # of a bundled app
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert serving(*app).note is None


def test_an_activated_environment_precedes_the_apps_and_the_labs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert python_of([tmp_path]) == sys.executable
    (tmp_path / ".venv").mkdir()  # without an interpreter that can run here
    assert python_of([tmp_path]) == sys.executable
    app_python = make(tmp_path / ".venv")
    assert python_of([tmp_path]) == app_python
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert python_of([tmp_path]) == app_python
    activated = make(tmp_path / "activated")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "activated"))
    assert python_of([tmp_path]) == activated


def test_links_to_environments_are_not_resolved_except_to_the_labs_own(tmp_path: Path) -> None:
    link = tmp_path / ".venv"
    link.symlink_to(sys.prefix)
    assert python_of([tmp_path]) == sys.executable
    make(tmp_path / "real", "99.1")
    link.unlink()
    link.symlink_to(tmp_path / "real")
    assert python_of([tmp_path]) == str(link / "bin" / "python")


def test_a_flag_wins_and_bundled_apps_use_the_labs_environment(tmp_path: Path) -> None:
    app_python = make(tmp_path / ".venv", "99.1")
    assert serving("--app", "shop:app").python == app_python
    assert serving("--app", "shop:app", "--python", sys.executable).python == sys.executable
    assert serving().python == sys.executable
    assert serving("--app", "@sleep_wsgi").python == sys.executable


@pytest.mark.parametrize("flag", [(), ("--chdir", "other")], ids=["file", "flag"])
def test_the_environment_is_that_of_the_app_in_the_gunicorn_file(
    tmp_path: Path, flag: tuple[str, ...]
) -> None:
    """It is next to the app, or next to the file."""
    pythons = {name: make(tmp_path / name / ".venv", "99.1") for name in ("shop", "other", "conf")}
    for directory, chdir, name in (("", "chdir = 'shop'\n", "shop"), ("conf", "", "conf")):
        config = tmp_path / directory / "conf.py"
        config.write_text(f"wsgi_app = 'shop:app'\n{chdir}")
        interpreter = serving("--config", str(config), *flag)
        assert interpreter.python == pythons["other" if flag else name]
    config.write_text("workers = 3\n")  # no app, so a bundled one runs
    assert serving("--config", str(config)).python == sys.executable


# --- Gunicorn -------------------------------------------------------------------------------------


def test_the_gunicorn_of_the_apps_environment_serves_the_app(tmp_path: Path) -> None:
    make(tmp_path / ".venv", "99.1")
    interpreter = serving("--app", "shop:app")
    assert (interpreter.gunicorn, interpreter.requested, interpreter.note) == ("99.1", "", None)


@needs_bundled_gunicorn
def test_the_bundled_gunicorn_serves_an_environment_without_one(tmp_path: Path) -> None:
    app_python = make(tmp_path / ".venv")
    interpreter = serving("--app", "shop:app")
    assert (interpreter.gunicorn, interpreter.requested) == (BUNDLED_GUNICORN, BUNDLED_GUNICORN)
    assert text(interpreter.note) == f"{app_python} has no Gunicorn: using {BUNDLED_GUNICORN}"


@pytest.mark.usefixtures("no_bundled_gunicorn")
def test_the_labs_own_gunicorn_serves_if_the_bundled_one_cannot_be_installed(
    tmp_path: Path,
) -> None:
    """Nothing else of the lab's environment is on the path of the app."""
    app_python = make(tmp_path / ".venv")
    interpreter = serving("--app", "shop:app")
    own = versions.lab_version()
    assert (interpreter.gunicorn, interpreter.requested) == (own, own)
    note = text(interpreter.note)
    assert note.startswith(f"{app_python} has no Gunicorn; Gunicorn 99.9 cannot be installed: ")
    assert note.endswith(f"; using the lab's own, {own}")
    (path,) = versions.with_version(own, {}).values()
    assert all(entry.name.startswith("gunicorn") for entry in Path(path).iterdir())
    code = "import gunicorn, msgspec"
    result = subprocess.run([app_python, "-c", code], env={"PYTHONPATH": path}, capture_output=True)
    assert b"No module named 'msgspec'" in result.stderr


@needs_bundled_gunicorn
def test_bundled_apps_get_the_bundled_gunicorn(tmp_path: Path) -> None:
    own = serving()
    assert (own.gunicorn, own.requested, own.note) == (BUNDLED_GUNICORN, "", None)
    other = make(tmp_path / "other", "99.1")
    interpreter = serving("--python", other)
    assert (interpreter.gunicorn, interpreter.requested) == (BUNDLED_GUNICORN, BUNDLED_GUNICORN)
    note = f"Gunicorn {BUNDLED_GUNICORN} serves the bundled apps; {other} has 99.1"
    assert text(interpreter.note) == note


@pytest.mark.usefixtures("no_bundled_gunicorn")
def test_bundled_apps_use_another_gunicorn_with_fewer_classes(tmp_path: Path) -> None:
    interpreter = serving("--python", make(tmp_path / "other", "99.1"))
    assert (interpreter.gunicorn, interpreter.requested) == ("99.1", "")
    assert interpreter.worker_classes == list(CLASSES)
    note = text(interpreter.note)
    assert "; 99.1 serves the bundled apps, without the worker class gthread, eventlet, " in note


def test_a_requested_version_is_used_or_fails(tmp_path: Path) -> None:
    make(tmp_path / ".venv", "99.1")
    own = versions.lab_version()
    for app in ("shop:app", "@sleep_wsgi"):
        interpreter = serving("--app", app, "--gunicorn", own)
        assert (interpreter.gunicorn, interpreter.requested, interpreter.note) == (own, own, None)
    with pytest.raises(EnvironmentProblem, match=r"Gunicorn 99\.9 cannot be installed"):
        serving("--app", "shop:app", "--gunicorn", "99.9")


@needs_bundled_gunicorn
def test_a_plan_requests_gunicorn_only_for_interpreters_without_it(tmp_path: Path) -> None:
    pythons = [make(tmp_path / "with", "99.1"), make(tmp_path / "without")]
    for order in (pythons, pythons[::-1]):
        arguments = ("--app", "shop:app", "--python", ",".join(order), "--tool", "fast")
        plan, _ = plan_of(parse(["sweep", "sync", "2", *arguments]))
        assert plan.gunicorn == ""
        requested = {server.python: server.gunicorn for server in plan.servers}
        assert requested == {pythons[0]: "", pythons[1]: BUNDLED_GUNICORN}


# --- two sides of a comparison --------------------------------------------------------------------


def compared_pythons(*arguments: str) -> list[str]:
    sides = ("--a", "chdir=branch", "--b", "chdir=main")
    plan, _ = first_plan(parse(["compare", "sync", "2", "--app", "shop:app", *sides, *arguments]))
    return sorted(server.python or plan.python for server in plan.servers)


def test_a_side_without_an_environment_uses_that_of_the_other(tmp_path: Path) -> None:
    main = make(tmp_path / "main/.venv", "99.1")
    (tmp_path / "branch").mkdir()
    assert compared_pythons() == [main, main]
    branch = make(tmp_path / "branch/.venv", "99.1")
    assert compared_pythons() == [branch, main]
    assert compared_pythons("--python", sys.executable) == [sys.executable] * 2


@needs_bundled_gunicorn
def test_lines_of_the_gunicorn_file_without_effect_are_noted_once(tmp_path: Path) -> None:
    config = tmp_path / "conf.py"
    config.write_text("x: int\nthreads: 4\ntimeout: int = 30\nbind = ('[::1]:80', ':81')\n")
    arguments = ["gthread", "2", "--config", str(config), "--app", "@sleep_wsgi"]
    sweep, _ = plan_of(parse(["sweep", *arguments]))
    compared, _ = first_plan(parse(["compare", *arguments, "--a", "workers=1", "--b", "workers=2"]))
    for plan in (sweep, compared):
        notes = [str(note) for note in plan.notes if note.code == "AnnotatedOnly"]
        advice = "threads: 4 sets nothing, since it is an annotation: write threads = 4"
        assert notes == [f"{config}, line 2: {advice}"]
        (overridden,) = (str(note) for note in plan.notes if note.code == "SettingOverridden")
        assert overridden.startswith(f"{config}: bind = ['[::1]:80', ':81'] is overridden: ")
    assert {server.threads for server in sweep.servers} == {2}
