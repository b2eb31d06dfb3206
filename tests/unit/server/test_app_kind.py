"""Which interface an app has, by real interpreters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from workerlab.errors import EnvironmentProblem
from workerlab.finding import Note
from workerlab.model.plan import App
from workerlab.server.preflight import app_kind, interpreter

WSGI = "def app(environ, start_response): ...\n"
ASGI = "async def app(scope, receive, send): ...\n"


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
        (f"import beside\n{WSGI}", "pythonpath = 'lib'", "wsgi"),
        # A thread that the app starts does not delay the result
        (f"import threading, time; threading.Thread(target=time.sleep, args=(99,)).start()\n{WSGI}",
         "", "wsgi"),
    ],
)  # fmt: skip
def test_app_kind_by_import(tmp_path: Path, source: str, config: str, kind: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "beside.py").touch()
    (tmp_path / "probe.py").write_text(source)  # like a module of the lab
    (tmp_path / "gunicorn.conf.py").write_text(config)
    python = interpreter(sys.executable, tmp_path, None)
    path = str(tmp_path / "gunicorn.conf.py") if config else None
    assert app_kind(python, App("probe:app", chdir=str(tmp_path)), path) == kind


def test_an_import_that_hangs_is_located_in_the_app(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("import queue\n\nqueue.Queue().get(timeout=99)\n")
    python = interpreter(sys.executable, tmp_path, None)
    why = "probe:app was not imported within 1 s; it was at probe.py line 3: queue.Queue"
    lab_python = replace(python, note=Note("It runs in the lab's own environment"))
    with pytest.raises(EnvironmentProblem, match=why) as problem:
        app_kind(lab_python, App("probe:app", chdir=str(tmp_path)), None, limit_s=1.0)
    assert str(problem.value).endswith(". It runs in the lab's own environment")
