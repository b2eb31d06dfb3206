"""A worker class is a row and a config file; any other works by its dotted path."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.analysis import evidence
from tests.builders.launch import launch
from workerlab.analysis import TrialData, analyse
from workerlab.cli import parse
from workerlab.errors import EnvironmentProblem, UsageError
from workerlab.experiments.planning import plan_of, unavailable_variants
from workerlab.experiments.sweep.document import sweep_document
from workerlab.finding import stored
from workerlab.model.plan import App, Plan, Server, WorkerClass
from workerlab.notes import FlagIgnored, SettingIgnored
from workerlab.options import classes, servers
from workerlab.report import FORMATS
from workerlab.server import preflight
from workerlab.server.backends import BACKENDS
from workerlab.server.preflight import Interpreter, interpreter
from workerlab.server.worker_classes import (
    CLASSES,
    SERVERS,
    WORKER_CLASSES,
    class_named,
    configured_slots,
)

ROOT = Path(__file__).parents[3]
OWN = "mypackage.workers.MyWorker"


@pytest.mark.parametrize("row", WORKER_CLASSES.values(), ids=CLASSES)
def test_a_row_has_all_that_the_recipe_names(row: WorkerClass) -> None:
    assert (ROOT / "configs" / f"{row.name}.py").is_file()
    assert row.advice
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    for needed in (project["dependency-groups"][row.name], [*own, *extras["classes"]]):
        names = {re.match(r"[\w-]+", name)[0].replace("-", "_") for name in needed}
        assert names.issuperset(row.packages)
    assert f" {row.name}" in (ROOT / "tox.ini").read_text().partition("env_list")[2].split("\n")[0]


@pytest.mark.parametrize(
    ("name", "slots", "options"),
    [("uvicorn-alone", None, ["--workers", "3"]), ("hypercorn", None, ["--workers", "3"]),
     ("granian", 6, ["--workers", "3", "--blocking-threads", "2", "--backlog", "128"]),
     ("waitress", 2, ["--threads=2", "--connection-limit=10", "--backlog=64"])],
)  # fmt: skip
def test_another_server_is_started_with_the_settings_of_its_row(
    tmp_path: Path, name: str, slots: int | None, options: list[str]
) -> None:
    server = Server(name, 1 if "workers" in class_named(name).ignores else 3, 2, 64, 10)
    assert BACKENDS.keys() == {*SERVERS}
    assert configured_slots(server) == slots
    command = " ".join(BACKENDS[name].command(launch(tmp_path, server, App("x:app")), 0))
    assert [option for option in options if option not in command] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    names = {re.match(r"[\w-]+", needed)[0] for needed in (*own, *extras["servers"])}
    assert names.issuperset(class_named(name).packages)
    with pytest.raises(ArgumentTypeError):  # only where Gunicorn is not needed
        classes(name)
    assert servers(f"sync,{name}") == ("sync", name)


def test_slots_of_a_class_without_a_row_are_unknown_and_not_unlimited() -> None:
    server = Server(OWN, 4, 2, 64, 10)
    assert configured_slots(server) is configured_slots(Server("asgi", 4, 2, 64, 10)) is None
    assert (class_named(OWN).slots_known, class_named("asgi").slots_known) == (False, True)


# --- in the server's interpreter ----------------------------------------------------------------

WORKERS = """
from gunicorn.workers.gthread import ThreadWorker
from gunicorn.workers.base import Worker

class MyWorker(ThreadWorker): pass
class Bare(Worker): pass
class UvicornWorker(Worker): pass
class Own(UvicornWorker): pass
no_class = 3
"""


@pytest.fixture
def mypackage(tmp_path: Path) -> Path:
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "__init__.py").touch()
    (tmp_path / "mypackage" / "workers.py").write_text(WORKERS)
    (tmp_path / "mypackage" / "ends.py").write_text("import sys\nsys.exit(3)\n")
    return tmp_path


def test_the_ancestors_of_a_class_show_what_it_serves(mypackage: Path) -> None:
    names = [f"mypackage.workers.{name}" for name in ("MyWorker", "Bare", "Own")]
    python = interpreter(sys.executable, mypackage, None, ["sync", *names])
    assert [python.serves_asgi(name) for name in names] == [False, None, True]
    assert [python.why_unavailable(name) for name in ("sync", *names)] == [None] * 4
    assert (python.serves_asgi("sync"), python.serves_asgi("uvicorn")) == (False, True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nopackage.workers.MyWorker", "No module named 'nopackage'"),
        ("mypackage.workers.Absent", "has no attribute 'Absent'"),
        ("mypackage.workers.no_class", "not a Gunicorn worker class"),
        ("json.JSONEncoder", "not a Gunicorn worker class"),
        ("mypackage.ends.Worker", "SystemExit: 3"),
    ],
)
def test_a_path_that_cannot_be_imported_is_unavailable(
    mypackage: Path, name: str, why: str
) -> None:
    reason = interpreter(sys.executable, mypackage, None, [name]).why_unavailable(name)
    assert name in reason
    assert why in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("script", "why"),
    [("exit 0", "exit code 0"), (r"printf '\377\n'; exit 5", "exit code 5"),
     (r"printf '\377 is no document' >&2", "is no document")],
)  # fmt: skip
def test_a_program_that_is_no_interpreter(tmp_path: Path, script: str, why: str) -> None:
    """Whatever bytes it prints."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(EnvironmentProblem, match=why):
        interpreter(str(program), Path(), None)


def test_the_environment_is_no_part_of_a_gunicorn_file(tmp_path: Path) -> None:
    """Gunicorn would bind to $PORT; the lab removes it and takes a port of its own."""
    config = tmp_path / "gunicorn.conf.py"
    config.write_text("threads = 3\n")
    port = {"PORT": "tcp://10.0.0.1:80"}
    assert interpreter(sys.executable, tmp_path, str(config), env=port).settings == {"threads": 3}
    config.write_text("bind = '127.0.0.1:http'\n")
    with pytest.raises(UsageError, match=r"rejects bind = '127\.0\.0\.1:http': 'http' is"):
        interpreter(sys.executable, tmp_path, str(config), env=port)


# --- from arguments to a plan -------------------------------------------------------------------

MakePlan = Callable[..., Plan]


@pytest.fixture
def plan_for(monkeypatch: pytest.MonkeyPatch) -> MakePlan:
    """`plan_of` where OWN serves ASGI as `asgi` says, or fails to import with `error`."""

    def make(
        *arguments: str, asgi: bool | None = False, error: str = "", **settings: object
    ) -> Plan:
        classes = {OWN: {"asgi": asgi, "error": error}}
        python = Interpreter("python3", "25.3.0", CLASSES, ("tornado",), classes, settings)
        monkeypatch.setattr(preflight, "interpreter", lambda *_: python)
        options = parse(["sweep", arguments[0], "4,8", "--tool", "fast", *arguments[1:]])
        return plan_of(options)[0]

    return make


@pytest.mark.parametrize("name", ["asgi", "uvicorn", "uvicorn-alone", "hypercorn"])
def test_http_1_0_keeps_no_connections_alive(plan_for: MakePlan, name: str) -> None:
    with pytest.raises(UsageError, match=rf"connections to {name} alive: it sends HTTP/1.0, and"):
        plan_for(name, "--tool", "ab", "--keepalive", "on")
    for pair in ((name, "wrk"), ("gthread", "ab"), ("waitress", "ab")):
        assert plan_for(pair[0], "--tool", pair[1], "--keepalive", "on").cells


def test_a_dotted_path_is_planned_like_any_class(plan_for: MakePlan) -> None:
    own, sync = plan_for(f"{OWN},sync").servers
    assert (own.worker_class, own.threads) == (OWN, 1)
    assert dict(own.app.env)["PYTHONPATH"].split(os.pathsep)[0] == os.getcwd()
    assert "PYTHONPATH" not in dict(sync.app.env)
    assert [server.threads for server in plan_for(OWN, "--threads", "2,3").servers] == [2, 3]


@pytest.mark.parametrize(("asgi", "kind"), [(False, "wsgi"), (True, "asgi"), (None, "wsgi")])
def test_an_own_class_gets_the_app_of_its_kind(
    plan_for: MakePlan, asgi: bool | None, kind: str
) -> None:
    """A class of unknown kind is treated as WSGI, with a note."""
    sweep = plan_for(OWN, asgi=asgi)
    assert sweep.servers[0].app.target == f"apps.sleep_{kind}:app"
    treated = [f"{OWN} is treated as a WSGI class" in note.text for note in sweep.notes]
    assert treated == [True] * (asgi is None)
    assert not plan_for(OWN, "--app", "own:app", asgi=asgi).notes


def test_an_own_class_that_cannot_be_imported_is_refused(plan_for: MakePlan) -> None:
    with pytest.raises(UsageError, match=f"cannot import the worker class {OWN}: it is not there"):
        plan_for(f"sync,{OWN}", error="it is not there")


def test_a_class_whose_package_is_missing_is_unavailable(plan_for: MakePlan) -> None:
    sweep = plan_for("sync,tornado")
    assert list(sweep.unavailable) == ["tornado"]
    assert sweep.unavailable["tornado"] == (
        "worker class tornado needs tornado; install with: python3 -m pip install tornado"
    )


def test_classes_that_cannot_serve_the_kind_of_the_app_are_unavailable(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("open('imported', 'a').close()\ndef app(environ, start): ...")

    def unavailable(classes: str) -> list[str]:
        words = ["sweep", classes, "4,8", "--tool", "fast", "--app", "shop:app"]
        place = ["--chdir", str(tmp_path), "--python", sys.executable]
        return list(plan_of(parse([*words, *place]))[0].unavailable)

    assert unavailable("sync,gthread") == []
    assert not (tmp_path / "imported").exists()  # the first launch shows it
    assert unavailable("sync,asgi") == ["asgi"]


def test_no_package_is_advised_for_a_class_of_another_kind() -> None:
    missing = ("gevent", "uvicorn", "uvicorn_worker")
    python = Interpreter("python3", "25.3.0", CLASSES, missing, {}, {})
    app = App("shop:app", chdir="/srv")
    names = ("sync", "gevent", "asgi", "uvicorn")
    servers = [Server(name, 1, 1, 64, 10, app=app) for name in names]
    reasons = unavailable_variants(servers, {("", ""): python}, app_kind="wsgi")
    assert reasons.keys() == {"gevent", "asgi", "uvicorn"}
    assert "install" in reasons["gevent"]
    assert "served as ASGI" in reasons["uvicorn"]
    assert reasons["asgi"] == reasons["uvicorn"]  # so that it is told once


def test_settings_that_a_class_ignores_are_named(plan_for: MakePlan, tmp_path: Path) -> None:
    own = str(tmp_path / "own.py")
    Path(own).touch()
    assert plan_for("sync,gthread", "--threads", "2").notes == ()
    (note,) = plan_for("sync,gevent", "--threads", "2").notes
    assert note == stored(FlagIgnored("--threads", ("sync", "gevent")))
    (note,) = plan_for("sync,gevent,asgi", "--config", own, keepalive=5).notes
    ignored = SettingIgnored(config=own, setting="keepalive", value=5, classes=("sync", "asgi"))
    assert note == stored(ignored)
    assert plan_for("sync,gevent", "--config", own, threads=1).notes == ()


# --- the recipe, as a class that the lab does not ship ------------------------------------------


ADDED = "gevent_pywsgi"


@pytest.fixture
def gevent_pywsgi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gunicorn's class, added by a row alone: configs/ is only for real servers."""
    row = WorkerClass(
        ADDED,
        "worker_connections",
        loop=True,
        ignores=("threads",),
        packages=("gevent", "packaging"),
        advice="a higher --worker-connections serves more at once",
    )
    monkeypatch.setitem(WORKER_CLASSES, row.name, row)


def saturated(name: str, slots: int) -> list[TrialData]:
    server = Server(name, 2, 1, 2048, 2)
    return [evidence(server, connections, slots=[slots]) for connections in (2, 4, 8, 16)]


@pytest.mark.parametrize(("name", "slots"), [(ADDED, 4), (OWN, None)], ids=["added", "no row"])
def test_any_class_is_shown_in_every_format(gevent_pywsgi: None, name: str, slots: object) -> None:
    report = analyse("r", {}, saturated(name, 4))
    last = report.cells[-1]
    assert (last.verdict, last.slots_configured, last.slots_measured) == ("saturated", slots, 4)
    assert report.classes[0].knee == pytest.approx(4, rel=0.02)
    assert (report.overhead is None) == (slots is None)  # idle slots are unknown
    texts = {kind: render(sweep_document(report)) for kind, render in FORMATS.items()}
    assert [kind for kind, text in texts.items() if name not in text] == []
    assert [kind for kind, text in texts.items() if "unlimited" in text] == []
    document = json.loads(texts["json"])
    for entry in (*document["cells"], *document["classes"]):
        assert (entry["slots_configured"], entry["slots_known"]) == (slots, slots is not None)
