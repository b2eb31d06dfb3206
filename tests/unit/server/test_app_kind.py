"""Which interface an app has, by real interpreters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workerlab.model import App
from workerlab.server.preflight import app_kind, interpreter

WSGI = "def app(environ, start_response): ...\n"
ASGI = "async def app(scope, receive, send): ...\n"


@pytest.mark.parametrize(
    ("source", "config", "kind"),
    [
        (WSGI, "", "wsgi"),
        (ASGI, "", "asgi"),
        (f"print('hello')\n{WSGI}", "", "wsgi"),
        ("import sys; sys.exit('no settings')\n", "", "unknown"),
        (f"import os; os.environ['STAGE']\n{ASGI}", "", "unknown"),
        (f"import os; os.environ['STAGE']\n{ASGI}", "raw_env = ['STAGE=test']", "asgi"),
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
