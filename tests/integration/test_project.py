"""A project with `[tool.workerlab]` in its pyproject.toml: its app is measured, as that says."""

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
QUICK = ("--workers", "1", "--tool", "fast", "--rounds", "3")


@pytest.fixture
def shop(lab: Lab) -> Path:
    """The project, with an interpreter that leaves a trace of each use."""
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


def test_its_app_is_served_from_a_directory_below_too(lab: Lab, shop: Path) -> None:
    inner = Lab(shop / "inner")
    report = inner.report("sweep", "sync", "2", *QUICK)
    (cell,) = report["cells"]
    assert (cell["app"], cell["failed"], set(cell["routes"])) == ("shop:app", 0, {"GET /", "cart"})
    assert [outcome["values"]["term"] for outcome in cell["target"]] == ["p95<60s"]
    assert report["title"].endswith("(app, python, slo, mix from pyproject.toml)")
    assert f"app, python, slo, mix from {shop}/pyproject.toml\n" in inner.last.err
    assert (shop / "env" / "used").exists()
    (shop / "pyproject.toml").write_text("[tool.workerlab\n")  # of no matter to a saved run
    again = inner.report("report", "results")
    assert (again["title"], again["cells"]) == (report["title"], report["cells"])
