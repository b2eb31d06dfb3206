"""`advise` as it is installed, on apps of the usual frameworks in environments of their own: what
it answers, the file it writes, and what it says of an app that does not start."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.packaging.conftest import run, uv

# They mostly wait, as the search computes for as long as an app can do more
FASTAPI = """
import time
from fastapi import FastAPI

app = FastAPI()

@app.get("/")
async def stock():
    time.sleep(0.02)
    return {"left": 3}
"""

DJANGO = {
    "apps/__init__.py": "",
    "apps/settings.py": "SECRET_KEY = 'x'\nROOT_URLCONF = 'apps.urls'\nALLOWED_HOSTS = ['*']\n",
    "apps/urls.py": (
        "import time\nfrom django.http import HttpResponse\nfrom django.urls import path\n"
        "urlpatterns = [path('', lambda request: time.sleep(0.03) or HttpResponse('ok'))]\n"
    ),
    "apps/wsgi.py": (
        "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n"
    ),
    "gunicorn.conf.py": (
        "import multiprocessing\nwsgi_app = 'apps.wsgi:application'\n"
        "workers = multiprocessing.cpu_count() * 2 + 1\nmax_requests = 1000\n"
    ),
}


@dataclass(frozen=True)
class Project:
    """An app in a directory of its own, with its environment beside it."""

    place: Path
    program: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        names = ("PATH", "TMPDIR", "XDG_CACHE_HOME")  # what a load tool can do is measured once
        kept = {name: os.environ[name] for name in names if name in os.environ}
        env = {**kept, "HOME": str(self.place), "NO_COLOR": "1"}
        return run(self.program, *words, cwd=self.place, env=env)

    def advise(self, *words: str, budget_s: int = 30) -> dict[str, Any]:
        """What it answers. A busy machine takes longer until there are three launches."""
        load, out = ("--rate", "10", "--slo", "p50<1s", "--max-workers", "2"), ("--format", "json")
        done = self("advise", *load, *words, "--budget", str(budget_s), *out)
        for budget in range(30, 301, 30):
            if done.returncode == 1:
                (resumed,) = self.place.glob("results/*")
                done = self("advise", "--resume", str(resumed), "--budget", str(budget), *out)
        assert done.returncode == 0, done.stderr + done.stdout
        return dict(json.loads(done.stdout))

    def written(self) -> str:
        (path,) = self.place.glob("results/*/gunicorn.conf.py")
        return path.read_text()


@pytest.fixture
def project(request: pytest.FixtureRequest, installed: Path, tmp_path: Path) -> Project:
    """With these packages installed, and these files."""
    packages, files = request.param
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    venv = tmp_path / ".venv"
    uv("venv", "--quiet", "--python", sys.executable, venv)
    uv("pip", "install", "--quiet", "--python", venv / "bin" / "python", *packages)
    return Project(tmp_path, installed / "bin" / "workerlab")


def used_by_others_s() -> float:
    """CPU that all programs but this one and those it has waited for have used so far."""
    machine, own = psutil.cpu_times(), os.times()
    busy_s = machine.user + machine.nice + machine.system
    return busy_s - own.user - own.system - own.children_user - own.children_system


def set_in(text: str) -> Counter[str]:
    """How often a file gives each name a value."""
    names = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
    return Counter(node.id for node in names if isinstance(node.ctx, ast.Store))


def codes(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        finding["answer"]["code"]: finding["answer"]["values"] for finding in report["findings"]
    }


@pytest.mark.parametrize(
    "project", [(("fastapi", "gunicorn==25.3.0"), {"stock.py": FASTAPI})], indirect=True
)
def test_fastapi_with_a_call_that_blocks(project: Project) -> None:
    # Each launch takes long to stop, and there is a load more, which names the line. Beside other
    # programs both take longer: with the same budget, it would be left out again
    for budget_s in (75, 150):
        others_s = used_by_others_s()
        began_s = time.monotonic()
        words = ("--app", "stock:app", "--classes", "asgi")
        report = project.advise(*words, budget_s=budget_s)
        others_cores = (used_by_others_s() - others_s) / (time.monotonic() - began_s)
        if codes(report).get("LoopBlocked", {}).get("lines") or others_cores < 0.1:
            break
        print(f"again: other programs used {others_cores:.2f} cores")
        for run_directory in project.place.glob("results/*"):
            run_directory.rename(project.place / f"disturbed-{budget_s}")
    else:
        pytest.skip("other programs used the cores each time: no line can be named beside them")
    blocking = json.dumps(codes(report)["LoopBlocked"])
    assert "stock.py" in blocking
    assert "time.sleep" in blocking
    # This class of 25.3.0 takes all of graceful_timeout for each stop
    stop = codes(report)["RunningCost"]["slow_stop"]
    assert stop["code"] == "SlowStop"
    # From 2 s on, by how long the longest response took
    assert f"\ngraceful_timeout = {stop['values']['grace_s']}  # " in project.written()
    assert 2 <= stop["values"]["grace_s"] < 30


@pytest.mark.parametrize("project", [(("django", "gunicorn"), DJANGO)], indirect=True)
def test_django_with_a_gunicorn_file(project: Project) -> None:
    words = ("--config", "gunicorn.conf.py", "--classes")
    advice = project("advise", "--rate", "10", "--slo", "p50<1s", *words, "sync")
    assert advice.returncode == 3
    assert advice.stdout.count("ImproperlyConfigured") == 1  # told once
    assert "; set it with --env DJANGO_SETTINGS_MODULE=VALUE" in advice.stdout
    assert "ImproperlyConfigured" not in advice.stderr
    assert "Candidates" not in advice.stdout

    for run_directory in project.place.glob("results/*"):
        run_directory.rename(project.place / "before")
    settings = ("--env", "DJANGO_SETTINGS_MODULE=apps.settings")
    report = project.advise(*words, "sync,asgi", *settings)
    assert "served by .venv/bin/python" in report["title"]
    assert codes(report)["LeftOut"]["classes"] == ["asgi"]  # which would answer nothing
    text = project.written()
    assert "# Was: import multiprocessing\n" in text
    assert "# Was: workers = multiprocessing.cpu_count() * 2 + 1\nworkers = " in text
    remark = "# max_requests was overridden while measuring: it may lower the rates."
    assert f"\n{remark}\nmax_requests = 1000\n" in text
    assert set(set_in(text).values()) == {1}


BOOT = {
    "import flask_login\n": ("No module named 'flask_login'", "shop.py", "line 1"),
    "import sys\nsys.exit('DATABASE_URL is not set')\n": ("DATABASE_URL is not set",),
    "app = None\n": ("shop:app",),
}


@pytest.mark.parametrize("project", [(("gunicorn",), {"shop.py": ""})], indirect=True)
def test_what_keeps_an_app_from_starting_is_told_once(project: Project) -> None:
    for text, expected in BOOT.items():
        (project.place / "shop.py").write_text(text)
        words = ("--app", "shop:app", "--rate", "10", "--slo", "p50<1s", "--classes", "sync")
        done = project("advise", *words)
        assert done.returncode == 3, done.stderr
        assert done.stdout.count(expected[0]) == 1
        assert all(part in done.stdout for part in expected)
        assert expected[0] not in done.stderr
