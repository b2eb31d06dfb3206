"""The installed `workerlab advise` on Django and FastAPI apps in their own environments: report,
written Gunicorn file, and errors of apps that do not start."""

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

# The apps mostly wait: the faster an app, the longer the search
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


TARGET = ("--rate", "10", "--slo", "p50<1s")


@dataclass(frozen=True)
class Project:
    """An app in its own directory, with its own environment. `program`: the installed workerlab."""

    directory: Path
    program: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        names = ("PATH", "TMPDIR", "XDG_CACHE_HOME")  # the cache holds calibrations of load tools
        env = {name: os.environ[name] for name in names if name in os.environ}
        env |= {"HOME": str(self.directory), "NO_COLOR": "1"}
        return run(self.program, *arguments, cwd=self.directory, env=env)

    def advise(self, *arguments: str, budget_s: int = 30) -> dict[str, Any]:
        """The report. On a busy machine, the three required launches need a larger budget."""
        load, out = (*TARGET, "--max-workers", "2"), ("--format", "json")
        done = self("advise", *load, *arguments, "--budget", str(budget_s), *out)
        for budget in range(30, 301, 30):
            if done.returncode == 1:
                (run_directory,) = self.directory.glob("results/*")
                done = self("advise", "--resume", str(run_directory), "--budget", str(budget), *out)
        assert done.returncode == 0, done.stderr + done.stdout
        return dict(json.loads(done.stdout))

    def discard_runs(self, name: str) -> None:
        for run_directory in self.directory.glob("results/*"):
            run_directory.rename(self.directory / name)

    def written_file(self) -> str:
        (path,) = self.directory.glob("results/*/gunicorn.conf.py")
        return path.read_text()


@pytest.fixture
def project(request: pytest.FixtureRequest, installed: Path, tmp_path: Path) -> Project:
    """`request.param`: packages and files."""
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
    """CPU used so far by all programs except this process and children that have ended."""
    machine, own = psutil.cpu_times(), os.times()
    busy_s = machine.user + machine.nice + machine.system
    return busy_s - own.user - own.system - own.children_user - own.children_system


def assignments(text: str) -> Counter[str]:
    """The number of assignments to each name."""
    names = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
    return Counter(node.id for node in names if isinstance(node.ctx, ast.Store))


def answers(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Values by code."""
    findings = (finding["answer"] for finding in report["findings"])
    return {answer["code"]: answer["values"] for answer in findings}


@pytest.mark.parametrize(
    "project", [(("fastapi", "gunicorn==25.3.0"), {"stock.py": FASTAPI})], indirect=True
)
def test_a_blocking_call_in_fastapi_is_located(project: Project) -> None:
    # Each launch stops slowly, and an extra load locates the line. With other programs at work both
    # take longer, so the second attempt has a larger budget
    for budget_s in (75, 150):
        others_s, start_s = used_by_others_s(), time.monotonic()
        report = project.advise("--app", "stock:app", "--classes", "asgi", budget_s=budget_s)
        others_cores = (used_by_others_s() - others_s) / (time.monotonic() - start_s)
        if answers(report).get("LoopBlocked", {}).get("lines") or others_cores < 0.1:
            break
        print(f"repeated: other programs used {others_cores:.2f} cores")
        project.discard_runs(f"disturbed-{budget_s}")
    else:
        pytest.skip("other programs used the cores each time, so that no line can be located")
    blocking = json.dumps(answers(report)["LoopBlocked"])
    assert "stock.py" in blocking
    assert "time.sleep" in blocking
    # Gunicorn 25.3.0 uses all of graceful_timeout to stop this class
    stop = answers(report)["RunningCost"]["slow_stop"]
    assert stop["code"] == "SlowStop"
    # At least 2 s, depending on the longest response
    assert f"\ngraceful_timeout = {stop['values']['grace_s']}  # " in project.written_file()
    assert 2 <= stop["values"]["grace_s"] < 30


@pytest.mark.parametrize("project", [(("django", "gunicorn"), DJANGO)], indirect=True)
def test_the_gunicorn_file_of_a_django_project_is_rewritten(project: Project) -> None:
    options = ("--config", "gunicorn.conf.py", "--classes")
    done = project("advise", *TARGET, *options, "sync")
    assert done.returncode == 3
    assert done.stdout.count("ImproperlyConfigured") == 1
    assert "; set it with --env DJANGO_SETTINGS_MODULE=VALUE" in done.stdout
    assert "ImproperlyConfigured" not in done.stderr
    assert "Candidates" not in done.stdout

    project.discard_runs("before")
    env = ("--env", "DJANGO_SETTINGS_MODULE=apps.settings")
    report = project.advise(*options, "sync,asgi", *env)
    assert "served by .venv/bin/python" in report["title"]
    assert answers(report)["LeftOut"]["classes"] == ["asgi"]  # cannot serve a WSGI app
    text = project.written_file()
    assert "# Was: import multiprocessing\n" in text
    assert "# Was: workers = multiprocessing.cpu_count() * 2 + 1\nworkers = " in text
    remark = "# max_requests was overridden while measuring: it may lower the rates."
    assert f"\n{remark}\nmax_requests = 1000\n" in text
    assert set(assignments(text).values()) == {1}


BOOT_ERRORS = {
    "import flask_login\n": ("No module named 'flask_login'", "shop.py", "line 1"),
    "import sys\nsys.exit('DATABASE_URL is not set')\n": ("DATABASE_URL is not set",),
    "app = None\n": ("shop:app",),
}


@pytest.mark.parametrize("project", [(("gunicorn",), {"shop.py": ""})], indirect=True)
def test_the_error_of_an_app_that_does_not_start_is_reported_once(project: Project) -> None:
    for text, messages in BOOT_ERRORS.items():
        (project.directory / "shop.py").write_text(text)
        done = project("advise", "--app", "shop:app", *TARGET, "--classes", "sync")
        assert done.returncode == 3, done.stderr
        assert done.stdout.count(messages[0]) == 1
        assert all(message in done.stdout for message in messages)
        assert messages[0] not in done.stderr
