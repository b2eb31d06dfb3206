"""The config files: their settings, and a real Gunicorn started with each."""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType

import pytest
from gunicorn.config import KNOWN_SETTINGS, Config

from tests.builders.conditions import LONG_S, until

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
PACKAGE = {
    "sync": "gunicorn",
    "gthread": "gunicorn",
    "eventlet": "eventlet",
    "gevent": "gevent",
    "tornado": "tornado",
    "asgi": "gunicorn",
    "uvicorn": "uvicorn_worker",
}
SETTINGS = {setting.name for setting in KNOWN_SETTINGS}
COMMON = runpy.run_path(str(CONFIGS / "common.py"))
choice = runpy.run_path(str(CONFIGS / "choice.py"))["choice"]


def load(name):
    pytest.importorskip(PACKAGE[name], exc_type=ImportError)
    return runpy.run_path(str(CONFIGS / f"{name}.py"))


def settings(name):
    return {key: value for key, value in load(name).items() if key in SETTINGS}


@pytest.mark.parametrize("name", [*PACKAGE, "common"])
def test_all_names_in_a_file_are_settings_with_valid_values(name):
    values = load(name) if name in PACKAGE else COMMON
    cfg = Config()
    for key, value in values.items():
        helper = key.startswith("_") or isinstance(value, ModuleType) or key in ("Path", "run_path")
        if not helper and not (isinstance(value, type) and key[0].isupper()):
            assert key in SETTINGS
            cfg.set(key, value)


@pytest.mark.parametrize("name", PACKAGE)
def test_a_class_file_shares_the_common_settings(name):
    own = settings(name)
    worker_class = own["worker_class"]
    if name == "uvicorn":
        assert worker_class.__name__ == "PinnedUvicornWorker"
    else:
        assert worker_class == name
    common = {key: value for key, value in COMMON.items() if key in SETTINGS}
    assert own | common == own
    assert ("threads" in own) is (name == "gthread")


def test_loop_and_parser_are_fixed(monkeypatch):
    for variable in ("ASGI_LOOP", "ASGI_HTTP", "UVICORN_HTTP"):
        monkeypatch.delenv(variable, raising=False)
    asgi = settings("asgi")
    assert (asgi["asgi_loop"], asgi["http_parser"]) == ("asyncio", "python")
    kwargs = settings("uvicorn")["worker_class"].CONFIG_KWARGS
    assert (kwargs["loop"], kwargs["http"], kwargs["lifespan"]) == ("asyncio", "h11", "auto")


def test_a_choice_is_the_first_package_or_that_of_the_environment(monkeypatch):
    packages = {"asyncio": "asyncio", "other": "json"}
    monkeypatch.delenv("ASGI_LOOP", raising=False)
    assert choice("ASGI_LOOP", packages) == "asyncio"
    monkeypatch.setenv("ASGI_LOOP", "other")
    assert choice("ASGI_LOOP", packages) == "other"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("rubbish", "ASGI_LOOP must be asyncio or nowhere, not 'rubbish'."),
        ("nowhere", "ASGI_LOOP=nowhere needs the package no_such_package, which is not installed."),
    ],
)
def test_an_invalid_choice_is_refused(monkeypatch, value, sentence):
    monkeypatch.setenv("ASGI_LOOP", value)
    with pytest.raises(SystemExit, match=f"^{re.escape(sentence)}$"):
        choice("ASGI_LOOP", {"asyncio": "asyncio", "nowhere": "no_such_package"})


@contextmanager
def gunicorn(config, app, cwd, log):
    """Plain Gunicorn with one worker on a free port; yields the port."""
    argv = [sys.executable, "-m", "gunicorn", "-c", str(config), "-b", "127.0.0.1:0", "-w", "1"]
    argv += ["--chdir", str(ROOT), app]
    with log.open("wb") as out:
        server = subprocess.Popen(argv, cwd=cwd, stdout=out, stderr=out, start_new_session=True)

    def port():
        assert server.poll() is None, log.read_text()
        match = re.search(r"Listening at: http://127\.0\.0\.1:(\d+)", log.read_text())
        return match and int(match[1])

    try:
        yield until(port, "the server listens")
        server.terminate()
        server.wait(LONG_S)
    finally:
        # The process group still exists only if a worker does
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def get(port, path):
    with closing(HTTPConnection("127.0.0.1", port, timeout=LONG_S)) as connection:  # uses no proxy
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read()


@pytest.mark.parametrize("name", PACKAGE)
def test_plain_gunicorn_serves_with_each_file_from_any_directory(name, tmp_path):
    pytest.importorskip(PACKAGE[name], exc_type=ImportError)
    app = "apps.sleep_asgi:app" if name in ("asgi", "uvicorn") else "apps.sleep_wsgi:app"
    with gunicorn(CONFIGS / f"{name}.py", app, tmp_path, tmp_path / "log") as port:
        assert get(port, "/?sleep=0") == (200, b"slept 0 s\n")
    # Gunicorn may log that it killed a worker which did not end within a second
    log = (tmp_path / "log").read_text().splitlines()
    assert not [line for line in log if "[ERROR]" in line and "was sent SIGKILL" not in line]


def test_plain_gunicorn_serves_with_a_relative_path_in_the_checkout(tmp_path):
    with gunicorn("configs/sync.py", "apps.sleep_wsgi:app", ROOT, tmp_path / "log") as port:
        assert get(port, "/?sleep=0")[0] == 200
