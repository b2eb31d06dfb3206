"""The API is what its own description says, by both faces: Schemathesis asks whatever the
description allows, and what it does not, the same every time."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apps.blog.openapi import DESCRIPTION
from tests.integration.conftest import ROOT
from tests.ladder.conftest import Blog, Blogs

pytest.importorskip("schemathesis", reason="schemathesis is not installed")
pytest.importorskip("uvicorn_worker", reason="uvicorn-worker is not installed")
EXAMPLES = 8  # of each operation
LEAST = 50  # requests that it makes of them, at least
LONG_S = 500.0  # a bound for hanging
CLASSES = ("gthread", "uvicorn")
# Hypothesis keeps its table of all characters there: computing one takes half of such a run
ENV = {"PYTHONIOENCODING": "utf-8", "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis")}


def hold(
    blog: Blog, place: Path, description: Any, *words: str
) -> subprocess.CompletedProcess[str]:
    """Let Schemathesis hold the blog to that description."""
    (place / "openapi.json").write_text(json.dumps(description))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json"),
        *("--url", f"http://{blog.server.host}:{blog.server.port}", "--no-color"),
        *("--generation-deterministic", "--max-examples", str(EXAMPLES)),
        *("--suppress-health-check", "all", "--request-timeout", "120", *words),
    ]
    return subprocess.run(
        command,
        cwd=place,
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LONG_S,
        check=False,
    )


@pytest.mark.parametrize("worker_class", CLASSES)
def test_the_api_is_as_it_is_described(blog: Blogs, tmp_path: Path, worker_class: str) -> None:
    with blog(worker_class, 1, posts=3) as site:
        served = site.ask("GET", "/api/openapi.json").json
        assert served == DESCRIPTION
        done = hold(site, tmp_path, served)
        assert done.returncode == 0, done.stdout + done.stderr
        generated = re.search(r"([0-9]+) generated, \1 passed", done.stdout)
        assert generated, done.stdout
        assert int(generated[1]) > LEAST
        log = site.server.log.read_text()
        assert "Traceback" not in log


def test_a_description_that_says_less_is_found_out(blog: Blogs, tmp_path: Path) -> None:
    less = copy.deepcopy(DESCRIPTION)
    del less["paths"]["/api/posts/{number}"]["get"]["responses"]["404"]
    with blog("gthread", 1, posts=3) as site:
        done = hold(site, tmp_path, less, "--include-operation-id", "show")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Undocumented" in done.stdout
