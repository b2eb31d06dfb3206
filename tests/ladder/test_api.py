"""The API conforms to its OpenAPI description under WSGI and ASGI: Schemathesis sends valid and
invalid requests, the same in each run."""

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
EXAMPLES = 8  # per operation
MIN_REQUESTS = 50
TIMEOUT_S = 500.0  # for hangs
# Hypothesis caches its table of all characters there; computing it takes half of such a run
ENV = {"PYTHONIOENCODING": "utf-8", "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".hypothesis")}


def run_schemathesis(
    blog: Blog, directory: Path, description: Any, *options: str
) -> subprocess.CompletedProcess[str]:
    (directory / "openapi.json").write_text(json.dumps(description))
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json"),
        *("--url", f"http://{blog.server.host}:{blog.server.port}", "--no-color"),
        *("--generation-deterministic", "--max-examples", str(EXAMPLES)),
        *("--suppress-health-check", "all", "--request-timeout", "120", *options),
    ]
    return subprocess.run(
        command, cwd=directory, env={**os.environ, **ENV}, capture_output=True, text=True,
        encoding="utf-8", timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("worker_class", ["gthread", "uvicorn"])
def test_the_api_conforms_to_its_description(
    blog: Blogs, tmp_path: Path, worker_class: str
) -> None:
    with blog(worker_class, 1, posts=3) as site:
        served = site.ask("GET", "/api/openapi.json").json
        assert served == DESCRIPTION
        done = run_schemathesis(site, tmp_path, served)
        assert done.returncode == 0, done.stdout + done.stderr
        generated = re.search(r"([0-9]+) generated, \1 passed", done.stdout)
        assert generated, done.stdout
        assert int(generated[1]) > MIN_REQUESTS
        assert "Traceback" not in site.server.log.read_text()


def test_an_incomplete_description_is_detected(blog: Blogs, tmp_path: Path) -> None:
    incomplete = copy.deepcopy(DESCRIPTION)
    del incomplete["paths"]["/api/posts/{number}"]["get"]["responses"]["404"]
    with blog("gthread", 1, posts=3) as site:
        done = run_schemathesis(site, tmp_path, incomplete, "--include-operation-id", "show")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Undocumented" in done.stdout
