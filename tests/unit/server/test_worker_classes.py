"""A worker class is a row and a config file; any other works by its dotted path."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders.analysis import evidence
from workerlab.analysis import TrialData, analyse
from workerlab.cli import parse
from workerlab.experiments.planning import plan_of
from workerlab.finding import stored
from workerlab.model import EnvironmentProblem, Plan, Server, UsageError, WorkerClass
from workerlab.notes import FlagIgnored, SettingIgnored
from workerlab.report import FORMATS
from workerlab.report.sweep_document import sweep_document
from workerlab.server import preflight
from workerlab.server.preflight import Interpreter, interpreter
from workerlab.server.worker_classes import CLASSES, WORKER_CLASSES, class_named, configured_slots

ROOT = Path(__file__).parents[3]
OWN = "mypackage.workers.MyWorker"


@pytest.mark.parametrize("row", WORKER_CLASSES.values(), ids=CLASSES)
def test_a_row_has_all_that_the_recipe_names(row: WorkerClass) -> None:
    assert (ROOT / "configs" / f"{row.name}.py").is_file()
    assert row.advice
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own, extras = project["project"]["dependencies"], project["project"]["optional-dependencies"]
    for needed in (project["dependency-groups"][row.name], [*own, *extras["classes"]]):
        names = {re.match(r"[\w-]+", one)[0].replace("-", "_") for one in needed}
        assert names.issuperset(row.packages)
    assert f" {row.name}" in (ROOT / "tox.ini").read_text().partition("env_list")[2].split("\n")[0]


def test_of_a_class_without_a_row_slots_are_not_known_which_is_not_unlimited() -> None:
    asked = Server(OWN, 4, 2, 64, 10)
    assert configured_slots(asked) is configured_slots(Server("asgi", 4, 2, 64, 10)) is None
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


def test_what_a_class_serves_is_told_by_its_ancestors(mypackage: Path) -> None:
    names = [f"mypackage.workers.{name}" for name in ("MyWorker", "Bare", "Own")]
    found = interpreter(sys.executable, mypackage, None, ["sync", *names])
    assert [found.serves_asgi(name) for name in names] == [False, None, True]
    assert [found.why_unavailable(name) for name in ("sync", *names)] == [None] * 4
    assert (found.serves_asgi("sync"), found.serves_asgi("uvicorn")) == (False, True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nopackage.workers.MyWorker", "No module named 'nopackage'"),
        ("mypackage.workers.Absent", "has no attribute 'Absent'"),
        ("mypackage.workers.no_class", "no worker class of Gunicorn"),
        ("json.JSONEncoder", "no worker class of Gunicorn"),
        ("mypackage.ends.Worker", "SystemExit: 3"),
    ],
)
def test_a_path_that_cannot_be_imported_is_one_sentence(
    mypackage: Path, name: str, why: str
) -> None:
    lacks = interpreter(sys.executable, mypackage, None, [name]).why_unavailable(name)
    assert lacks is not None
    assert name in lacks
    assert why in lacks
    assert "\n" not in lacks


def test_an_interpreter_that_is_none() -> None:
    with pytest.raises(EnvironmentProblem):
        interpreter("/bin/true", Path(), None)


# --- from words to a plan -----------------------------------------------------------------------

Planned = Callable[..., Plan]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    """`plan_of` where OWN is what `asgi` says, or cannot be imported."""

    def make(*words: str, asgi: bool | None = False, error: str = "", **settings: object) -> Plan:
        classes = {OWN: {"asgi": asgi, "error": error}}
        found = Interpreter("python3", "25.3.0", CLASSES, ("tornado",), classes, settings)
        monkeypatch.setattr(preflight, "interpreter", lambda *_: found)
        options = parse(["sweep", words[0], "4,8", "--tool", "fast", *words[1:]])
        return plan_of(options)[0]

    return make


def test_a_dotted_path_is_planned_like_any_class(planned: Planned) -> None:
    own, sync = planned(f"{OWN},sync").servers
    assert (own.worker_class, own.threads, own.app.target) == (OWN, 1, "apps.sleep_wsgi:app")
    assert dict(own.app.env)["PYTHONPATH"].split(os.pathsep)[0] == os.getcwd()
    assert "PYTHONPATH" not in dict(sync.app.env)


def test_its_threads_are_those_that_are_asked_for(planned: Planned) -> None:
    assert [one.threads for one in planned(OWN, "--threads", "2,3").servers] == [2, 3]


def test_one_that_serves_asgi_gets_the_asgi_app(planned: Planned) -> None:
    made = planned(OWN, asgi=True)
    assert made.servers[0].app.target == "apps.sleep_asgi:app"
    assert not made.notes


def test_one_that_serves_nobody_knows_what_is_taken_for_wsgi_and_says_so(planned: Planned) -> None:
    made = planned(OWN, asgi=None)
    assert made.servers[0].app.target == "apps.sleep_wsgi:app"
    assert any(f"{OWN} is treated as a WSGI class" in note.text for note in made.notes)
    assert not planned(OWN, "--app", "own:app", asgi=None).notes


def test_one_that_cannot_be_imported_starts_nothing(planned: Planned) -> None:
    with pytest.raises(UsageError, match=f"cannot import the worker class {OWN}: it is not there"):
        planned(f"sync,{OWN}", error="it is not there")


def test_an_unknown_name_is_no_dotted_path(planned: Planned) -> None:
    with pytest.raises(UsageError, match="unknown worker class"):
        planned("gunicorn")


def test_a_class_whose_package_is_missing_is_unavailable(planned: Planned) -> None:
    made = planned("sync,tornado")
    assert list(made.unavailable) == ["tornado"]
    assert "pip install tornado" in made.unavailable["tornado"]


def test_settings_that_a_class_ignores_are_named(planned: Planned, tmp_path: Path) -> None:
    own = str(tmp_path / "own.py")
    Path(own).touch()
    assert planned("sync,gthread", "--threads", "2").notes == ()
    (note,) = planned("sync,gevent", "--threads", "2").notes
    assert note == stored(FlagIgnored("--threads", ("sync", "gevent")))
    (note,) = planned("sync,gevent,asgi", "--config", own, keepalive=5).notes
    ignored = SettingIgnored(config=own, setting="keepalive", value=5, classes=("sync", "asgi"))
    assert note == stored(ignored)
    assert planned("sync,gevent", "--config", own, threads=1).notes == ()


# --- the recipe, as a class that the lab does not ship ------------------------------------------


@pytest.fixture
def gevent_pywsgi(monkeypatch: pytest.MonkeyPatch) -> WorkerClass:
    """Gunicorn's, added by a row alone: configs/ matters to real servers only."""
    row = WorkerClass(
        "gevent_pywsgi",
        "worker_connections",
        loop=True,
        ignores=("threads",),
        packages=("gevent", "packaging"),
        advice="a higher --worker-connections serves more at once",
    )
    monkeypatch.setitem(WORKER_CLASSES, row.name, row)
    return row


def saturated(name: str, slots: int) -> list[TrialData]:
    server = Server(name, 2, 1, 2048, 2)
    return [evidence(server, connections, slots=[slots]) for connections in (2, 4, 8, 16)]


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_added_class_is_said_in_every_format(
    gevent_pywsgi: WorkerClass, format_name: str
) -> None:
    report = analyse("r", {}, saturated(gevent_pywsgi.name, 4))
    last = report.cells[-1]
    assert (last.verdict, last.slots_configured, last.slots_measured) == ("saturated", 4, 4)
    assert gevent_pywsgi.name in FORMATS[format_name](sweep_document(report))


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_class_without_a_row_is_said_in_every_format(format_name: str) -> None:
    report = analyse("r", {}, saturated(OWN, 4))
    last = report.cells[-1]
    assert (last.verdict, last.slots_configured, last.slots_measured) == ("saturated", None, 4)
    assert report.classes[0].knee == pytest.approx(4, rel=0.02)
    assert report.overhead is None  # which slots would be idle is not known
    said = FORMATS[format_name](sweep_document(report))
    assert OWN in said
    assert "unlimited" not in said


def test_that_nothing_is_known_of_the_slots_is_in_the_json() -> None:
    document = json.loads(FORMATS["json"](sweep_document(analyse("r", {}, saturated(OWN, 4)))))
    for one in (*document["cells"], *document["classes"]):
        assert (one["slots_configured"], one["slots_known"]) == (None, False)
