"""The interface of an app, found by importing it in a real interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from workerlab.errors import EnvironmentProblem
from workerlab.finding import Note
from workerlab.model.plan import App
from workerlab.server.preflight import Interpreter, app_kind, interpreter

WSGI = "def app(environ, start_response): ...\n"
ASGI = "async def app(scope, receive, send): ...\n"


@pytest.fixture(scope="module")
def python() -> Interpreter:
    return interpreter(sys.executable, Path(), None)


@pytest.mark.parametrize(
    ("source", "config", "kind"),
    [
        (WSGI, "", "wsgi"),
        (ASGI, "", "asgi"),
        (f"print('hello')\n{WSGI}", "", "wsgi"),
        ("def app(*arguments): ...\n", "", "unknown"),
        ("import sys; sys.exit('no settings')\n", "", "unimportable"),
        (f"import os; os.environ['STAGE']\n{ASGI}", "", "unimportable"),
        (f"import os; os.environ['STAGE']\n{ASGI}", "raw_env = ['STAGE=test']", "asgi"),
        ("import os; os._exit(7)\n", "", "unimportable"),
        (f"import helper\n{WSGI}", "pythonpath = 'lib'", "wsgi"),
        # The app's own threads do not delay the result
        (f"import threading, time; threading.Thread(target=time.sleep, args=(99,)).start()\n{WSGI}",
         "", "wsgi"),
    ],
)  # fmt: skip
def test_importing_an_app_shows_its_kind(
    tmp_path: Path, python: Interpreter, source: str, config: str, kind: str
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helper.py").touch()
    (tmp_path / "probe.py").write_text(source)  # also the name of a module of the lab
    (tmp_path / "gunicorn.conf.py").write_text(config)
    path = str(tmp_path / "gunicorn.conf.py") if config else None
    assert app_kind(python, App("probe:app", chdir=str(tmp_path)), path) == kind


def test_an_import_that_hangs_is_located_in_the_app(tmp_path: Path, python: Interpreter) -> None:
    (tmp_path / "probe.py").write_text("import queue\n\nqueue.Queue().get(timeout=99)\n")
    python = replace(python, note=Note("It runs in the lab's own environment"))
    why = "probe:app was not imported within 1 s; it was at probe.py line 3: queue.Queue"
    with pytest.raises(EnvironmentProblem, match=why) as problem:
        app_kind(python, App("probe:app", chdir=str(tmp_path)), None, limit_s=1.0)
    assert str(problem.value).endswith(". It runs in the lab's own environment")
