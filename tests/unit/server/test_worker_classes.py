"""A worker class is a row and a config file; any other is given by its dotted path."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.analysis import evidence
from tests.builders.launch import launch
from workerlab.analysis import analyse
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
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OWN = "mypackage.workers.MyWorker"


def package_names(requirements: Iterable[str]) -> set[str]:
    return {re.match(r"[\w-]+", name)[0].replace("-", "_") for name in requirements}


def names_with_extra(extra: str) -> set[str]:
    """The packages of an installation with this extra."""
    project = PYPROJECT["project"]
    return package_names([*project["dependencies"], *project["optional-dependencies"][extra]])


@pytest.mark.parametrize("row", WORKER_CLASSES.values(), ids=CLASSES)
def test_a_worker_class_has_all_that_the_recipe_requires(row: WorkerClass) -> None:
    assert (ROOT / "configs" / f"{row.name}.py").is_file()
    assert row.advice
    assert package_names(PYPROJECT["dependency-groups"][row.name]).issuperset(row.packages)
    assert names_with_extra("classes").issuperset(row.packages)
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
    assert names_with_extra("servers").issuperset(class_named(name).packages)
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


VALID = [f"mypackage.workers.{name}" for name in ("MyWorker", "Bare", "Own")]
INVALID = {
    "nopackage.workers.MyWorker": "No module named 'nopackage'",
    "mypackage.workers.Absent": "has no attribute 'Absent'",
    "mypackage.workers.no_class": "not a Gunicorn worker class",
    "json.JSONEncoder": "not a Gunicorn worker class",
    "mypackage.exits.Worker": "SystemExit: 3",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """An interpreter that was asked for all these classes."""
    package = tmp_path_factory.mktemp("site") / "mypackage"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "workers.py").write_text(WORKERS)
    (package / "exits.py").write_text("import sys\nsys.exit(3)\n")
    return interpreter(sys.executable, package.parent, None, ["sync", *VALID, *INVALID])


def test_the_ancestors_of_a_class_show_what_it_serves(python: Interpreter) -> None:
    assert [python.serves_asgi(name) for name in VALID] == [False, None, True]
    assert [python.why_unavailable(name) for name in ("sync", *VALID)] == [None] * 4
    assert (python.serves_asgi("sync"), python.serves_asgi("uvicorn")) == (False, True)


@pytest.mark.parametrize(("name", "why"), INVALID.items())
def test_a_path_that_cannot_be_imported_is_unavailable(
    python: Interpreter, name: str, why: str
) -> None:
    reason = python.why_unavailable(name)
    assert name in reason
    assert why in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("script", "why"),
    [("exit 0", "exit code 0"), (r"printf '\377\n'; exit 5", "exit code 5"),
     (r"printf '\377 is no document' >&2", "is no document")],
)  # fmt: skip
def test_a_program_that_is_not_an_interpreter_is_refused(
    tmp_path: Path, script: str, why: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(EnvironmentProblem, match=why):
        interpreter(str(program), Path(), None)


def test_the_environment_does_not_change_the_settings_of_a_gunicorn_file(tmp_path: Path) -> None:
    """Gunicorn would bind to $PORT; the lab removes it and chooses the port itself."""
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
    """Makes a plan. `asgi`: whether OWN serves ASGI; `error`: why it cannot be imported."""

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
def test_servers_that_close_http_1_0_connections_cannot_keep_those_of_ab_alive(
    plan_for: MakePlan, name: str
) -> None:
    with pytest.raises(UsageError, match=rf"connections to {name} alive: it sends HTTP/1.0, and"):
        plan_for(name, "--tool", "ab", "--keepalive", "on")
    for server, tool in ((name, "wrk"), ("gthread", "ab"), ("waitress", "ab")):
        assert plan_for(server, "--tool", tool, "--keepalive", "on").cells


def test_a_dotted_path_is_planned_like_any_class(plan_for: MakePlan) -> None:
    own, sync = plan_for(f"{OWN},sync").servers
    assert (own.worker_class, own.threads) == (OWN, 1)
    assert dict(own.app.env)["PYTHONPATH"].split(os.pathsep)[0] == os.getcwd()
    assert "PYTHONPATH" not in dict(sync.app.env)
    assert [server.threads for server in plan_for(OWN, "--threads", "2,3").servers] == [2, 3]


@pytest.mark.parametrize(("asgi", "kind"), [(False, "wsgi"), (True, "asgi"), (None, "wsgi")])
def test_a_class_gets_the_app_of_its_kind_and_is_treated_as_wsgi_if_that_is_unknown(
    plan_for: MakePlan, asgi: bool | None, kind: str
) -> None:
    plan = plan_for(OWN, asgi=asgi)
    assert plan.servers[0].app.target == f"apps.sleep_{kind}:app"
    notes = [f"{OWN} is treated as a WSGI class" in note.text for note in plan.notes]
    assert notes == [True] * (asgi is None)
    assert not plan_for(OWN, "--app", "own:app", asgi=asgi).notes


def test_a_class_that_cannot_be_imported_is_refused(plan_for: MakePlan) -> None:
    with pytest.raises(UsageError, match=f"cannot import the worker class {OWN}: it is not there"):
        plan_for(f"sync,{OWN}", error="it is not there")


def test_a_class_whose_package_is_missing_is_unavailable(plan_for: MakePlan) -> None:
    why = "worker class tornado needs tornado; install with: python3 -m pip install tornado"
    assert plan_for("sync,tornado").unavailable == {"tornado": why}


def test_classes_that_cannot_serve_the_kind_of_the_app_are_unavailable(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("open('imported', 'a').close()\ndef app(environ, start): ...")

    def unavailable(classes: str) -> list[str]:
        argv = ["sweep", classes, "4,8", "--tool", "fast", "--app", "shop:app"]
        argv += ["--chdir", str(tmp_path), "--python", sys.executable]
        return list(plan_of(parse(argv))[0].unavailable)

    assert unavailable("sync,gthread") == []
    assert not (tmp_path / "imported").exists()  # the first launch shows the kind
    assert unavailable("sync,asgi") == ["asgi"]


def test_no_package_is_advised_for_a_class_of_another_kind() -> None:
    missing = ("gevent", "uvicorn", "uvicorn_worker")
    interpreters = {("", ""): Interpreter("python3", "25.3.0", CLASSES, missing, {}, {})}
    app = App("shop:app", chdir="/srv")
    names = ("sync", "gevent", "asgi", "uvicorn")
    servers = [Server(name, 1, 1, 64, 10, app=app) for name in names]
    reasons = unavailable_variants(servers, interpreters, app_kind="wsgi")
    assert reasons.keys() == {"gevent", "asgi", "uvicorn"}
    assert "install" in reasons["gevent"]
    assert "served as ASGI" in reasons["uvicorn"]
    assert reasons["asgi"] == reasons["uvicorn"]  # the same reason is shown once


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


# --- the recipe, for a class that the lab does not ship -----------------------------------------


@pytest.mark.parametrize(
    ("name", "slots"), [("gevent_pywsgi", 4), (OWN, None)], ids=["added row", "no row"]
)
def test_any_class_is_shown_in_every_format(
    monkeypatch: pytest.MonkeyPatch, name: str, slots: int | None
) -> None:
    row = replace(class_named("gevent"), name="gevent_pywsgi", alias="")
    monkeypatch.setitem(WORKER_CLASSES, row.name, row)
    server = Server(name, 2, 1, 2048, 2)
    trials = [evidence(server, connections, slots=[4]) for connections in (2, 4, 8, 16)]
    report = analyse("r", {}, trials)
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
