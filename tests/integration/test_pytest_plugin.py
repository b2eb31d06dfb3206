"""The fixture and the marker of the pytest plugin in a test file of a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.processes import running
from tests.integration.conftest import LONG_S, ROOT

pytestmark = pytest.mark.once

APP = """
import os
import time

def app(environ, start_response):
    time.sleep(0.05)
    body = os.environ.get("WORD", "ok").encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""
TESTS = """
from urllib.request import urlopen

import pytest

SERVED = dict(app="slow:app", chdir={place!r}, workers=2, concurrency=2, seconds=3)


@pytest.mark.gunicorn("sync", slo="p50<5s,errors<50%", **SERVED)
def test_kept() -> None:
    pass


@pytest.mark.gunicorn("sync", slo="p50<1ms", **SERVED)
def test_broken() -> None:
    pass


@pytest.mark.gunicorn("gthread", threads=2, env={{"WORD": "two", "OTHER": 3}}, **SERVED)
def test_server(gunicorn_server) -> None:
    assert urlopen(gunicorn_server.url).read() == b"two"
    result = gunicorn_server.load(concurrency=2, seconds=3)
    assert result.valid
    assert result.cell.response.p50 >= 0.049  # a timer may fire 1 ms early
    assert not result.keeps("p50<1ms")
    assert result.words("p50<1ms")["p50<1ms"] in ("broken", "not_shown")


@pytest.mark.gunicorn("gthread", threads=[1, 2], slo="p50<5s", app="slow:app", chdir={place!r})
def test_two_servers() -> None:
    pass


@pytest.mark.gunicorn("sync", app="missing:app")
def test_no_app(gunicorn_server) -> None:
    pass


def test_without_a_marker(gunicorn_server) -> None:
    pass


@pytest.mark.gunicorn("sync", app="slow:app")
def test_nothing_is_checked() -> None:
    pass


@pytest.mark.gunicorn("sync", slo="p50<5", **SERVED)
def test_no_unit() -> None:
    pass
"""


def test_markers_serve_apps_and_check_limits(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(APP)
    (tmp_path / "test_slow.py").write_text(TESTS.format(place=str(tmp_path)))
    env = {**os.environ, "PYTHONPATH": str(ROOT / "harness"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    args = ["-p", "workerlab.pytest_plugin", "--basetemp", str(tmp_path / "kept"), "-rA"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--strict-markers", *args, "-p", "no:cacheprovider"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=4 * LONG_S,
    )  # fmt: skip
    assert "2 passed" in result.stdout, result.stdout + result.stderr
    for passed in ("kept", "server"):
        assert f"PASSED test_slow.py::test_{passed}" in result.stdout
    # Inconclusive, neither failed nor passed, if other programs used the cores
    assert "PASSED test_slow.py::test_broken" not in result.stdout
    assert "p50<1ms" in result.stdout
    failed = "FAILED test_slow.py::test_broken" in result.stdout
    assert failed is ("inconclusive" not in result.stdout)
    assert "a load is a single cell" in result.stdout
    assert "No module named 'missing'" in result.stdout
    assert "needs a marker" in result.stdout
    assert "the marker gunicorn checks nothing" in result.stdout
    assert "5 needs a unit" in result.stdout
    assert "Traceback" not in result.stdout
    assert not running(str(tmp_path))
