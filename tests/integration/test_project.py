"""A project with settings in `[tool.workerlab]` of its pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Lab

pytestmark = pytest.mark.once

APP = """
import time

def app(environ, start_response):
    time.sleep(0.1)
    path = environ["PATH_INFO"]
    start_response("200 OK" if path in ("/", "/cart") else "404 Not Found", [])
    return [path.encode()]
"""
TABLE = """
[tool.workerlab]
app = "shop:app"
python = "env/python"
slo = "p95<60s"
mix = "load/shop.mix"
"""


@pytest.fixture
def shop(lab: Lab) -> Path:
    """The project, with an interpreter that records its use."""
    place = lab.place
    for name in ("env", "load", "inner"):
        (place / name).mkdir()
    (place / "shop.py").write_text(APP)
    (place / "env" / "python").write_text(
        f'#!/bin/sh\necho >> "{place}/env/used"\nexec "{sys.executable}" "$@"\n'
    )
    (place / "env" / "python").chmod(0o755)
    (place / "load" / "shop.mix").write_text("2 GET /\n1 GET /cart name=cart\n")
    (place / "pyproject.toml").write_text(TABLE)
    return place


def test_its_settings_apply_in_subdirectories(lab: Lab, shop: Path) -> None:
    inner = Lab(shop / "inner")
    report = inner.report("sweep", "sync", "2", "--workers", "1", "--tool", "fast", "--rounds", "3")
    (cell,) = report["cells"]
    assert (cell["app"], cell["failed"], set(cell["routes"])) == ("shop:app", 0, {"GET /", "cart"})
    assert [outcome["values"]["term"] for outcome in cell["target"]] == ["p95<60s"]
    assert report["title"].endswith("(app, python, slo, mix from pyproject.toml)")
    assert f"app, python, slo, mix from {shop}/pyproject.toml\n" in inner.last.err
    assert (shop / "env" / "used").exists()
    (shop / "pyproject.toml").write_text("[tool.workerlab\n")  # does not affect saved runs
    saved = inner.report("report", "results")
    assert (saved["title"], saved["cells"]) == (report["title"], report["cells"])
