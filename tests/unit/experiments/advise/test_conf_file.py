"""The gunicorn.conf.py that `advise` writes, as Gunicorn reads it."""

import ast
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from gunicorn.app.wsgiapp import WSGIApplication
from gunicorn.config import Config
from msgspec.structs import replace

from tests.builders.conditions import until
from tests.builders.processes import started
from workerlab.experiments.advise import conf_file as conf_file_module
from workerlab.experiments.advise.conf_file import (
    ANNOTATED,
    OVERRIDING,
    OwnFile,
    conf_file,
    start_script,
)
from workerlab.model.plan import App, Server
from workerlab.server.worker_classes import CLASSES, SERVERS, class_named

WSGI_APP = """
import os

def app(environ, start_response):
    start_response("200 OK", [])
    return [os.environ["B"].encode()]
"""
ASGI_APP = """
import os

async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": os.environ["B"].encode()})
"""


def server(name: str, **more: int) -> Server:
    settings = {"workers": 3, "threads": 4, "backlog": 2048, "worker_connections": 77, **more}
    return Server(name, **settings, app=App("shop.wsgi:app", "/srv/shop", env=(("B", "2"),)))


def with_own_file(
    name: str, own: str, *setting_names: str, remarks: Mapping[str, str] = {}, **more: int
) -> str:
    """The file for an app whose own Gunicorn file sets these settings."""
    own_file = OwnFile(own, setting_names=setting_names, remarks=remarks)
    return conf_file(server(name, **more), [], own_file)


def settings_of(text: str, tmp_path: Path) -> Config:
    """The settings of a Gunicorn started with this file."""
    path = tmp_path / "gunicorn.conf.py"
    path.write_text(text)
    config = Config()
    for name, value in runpy.run_path(str(path)).items():
        if name in config.settings and name != "chdir":
            config.set(name, value)
    return config


@pytest.mark.parametrize("name", CLASSES)
def test_gunicorn_reads_the_settings(name: str, tmp_path: Path) -> None:
    text = conf_file(server(name), ["p95<300ms: met."])
    config = settings_of(text, tmp_path)
    assert config.settings["worker_class"].get() == (class_named(name).path or name)
    assert config.workers == 3
    assert config.wsgi_app == "shop.wsgi:app"
    assert config.env["B"] == "2"
    assert text.startswith("# p95<300ms: met.")


def test_settings_that_a_class_ignores_are_not_written() -> None:
    assert "threads" not in conf_file(server("gevent"), [])
    assert "worker_connections" not in conf_file(server("sync"), [])


def test_measured_settings_override_those_of_the_apps_own_file(tmp_path: Path) -> None:
    hook = "\n\ndef post_fork(server, worker):\n    pass\n"
    own = f"# ours\nworkers = 9\nraw_env = ['A=1']{hook}"
    text = with_own_file("gthread", own, "workers", "raw_env")
    assert text.startswith("# ours\n# Was: workers = 9\nworkers = 3  # processes\n")
    assert hook in text
    config = settings_of(text, tmp_path)
    assert config.workers == 3
    assert config.env == {"A": "1", "B": "2"}
    assert config.post_fork.__module__ != WSGIApplication.__module__


def test_an_import_is_removed_with_the_only_line_that_used_it(tmp_path: Path) -> None:
    own = "import multiprocessing\nimport os\nworkers = multiprocessing.cpu_count() * 2\n"
    text = with_own_file("sync", own + "pidfile = os.devnull\n", "workers")
    assert text.startswith("# Was: import multiprocessing\nimport os\n# Was: workers = ")
    assert settings_of(text, tmp_path).workers == 3
    import_on_shared_line = "timeout = (\n    9); import os\nworkers = os.cpu_count()\n"
    text = with_own_file("sync", import_on_shared_line, "workers")
    assert settings_of(text, tmp_path).settings["timeout"].get() == 9


def test_a_setting_that_the_class_ignores_stays_with_a_remark() -> None:
    own = "worker_connections = 500\n"
    remark = "worker_connections has no effect with sync."
    text = with_own_file("sync", own, "worker_connections", remarks={"worker_connections": remark})
    assert text.startswith(f"# {remark}\n{own}")
    own, remark = "backlog = 64\nthreads = 4\n", "backlog has no effect with asgi."
    text = with_own_file("asgi", own, "backlog", "threads", remarks={"backlog": remark})
    assert text.startswith(f"# {remark}\n{own}")
    assert "requests at once" not in text


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("threads: 4\nworkers: int = 3\nbacklog: 64; timeout = 9\n",
         "# Was: threads: 4\nthreads = 2  # of each worker: 6 requests at once\n"
         f"workers: int = 3\n# {ANNOTATED}\nbacklog: 64; timeout = 9"),
        ("keepalive: 4\n", f"# {ANNOTATED}\nkeepalive: 4\n"),
        ("if 1:\n    threads: 4\n", f"if 1:\n    # {ANNOTATED}\n    threads: 4\n"),
        ("threads: int\nthreads = 4\n", "threads: int\n# Was: threads = 4\nthreads = 2  # of"),
    ],
)  # fmt: skip
def test_an_annotation_that_sets_nothing_is_replaced_or_has_a_remark(
    own: str, expected: str, tmp_path: Path
) -> None:
    text = with_own_file("gthread", own, "workers", "timeout", threads=2)
    assert text.startswith(expected)
    assert OVERRIDING not in text  # an annotation assigns nothing
    config = settings_of(text, tmp_path)
    assert (config.threads, config.workers) == (2, 3)


@pytest.mark.parametrize("own", ["", "workers = 2\n", "worker_class = 'sync'\n"])
def test_the_evidence_is_above_the_worker_class(own: str) -> None:
    text = conf_file(server("sync"), ["p95<300ms: met."], OwnFile(own, setting_names=("workers",)))
    assert "# p95<300ms: met.\nworker_class = 'sync'" in text
    assert text.count("met.") == 1


@pytest.mark.parametrize(
    ("own", "starts_in", "chdir"),
    [
        ("", None, True),
        ("", "app", False),
        ("from limits import TIMEOUT\ntimeout = TIMEOUT\n", None, True),
        ("from limits import TIMEOUT\ntimeout = TIMEOUT\n", "app", False),
        ("chdir = 'app'\nfrom limits import TIMEOUT\n", ".", True),
        ("import os\nchdir = os.path.dirname(__file__)\n", "", True),
    ],
)
def test_gunicorn_finds_the_app_wherever_it_is_started(
    own: str, starts_in: str | None, chdir: bool, tmp_path: Path
) -> None:
    """The file has an absolute chdir only if Gunicorn may be started anywhere."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "limits.py").write_text("TIMEOUT = 77\n")
    (app / "shop.py").write_text("import limits\n\ndef app(environ, start_response): ...\n")
    own_file = OwnFile(own, str(app / "own.py"), ("chdir",) if "chdir" in own else ())
    directory = None if starts_in is None else starts_in and str((tmp_path / starts_in).resolve())
    configured = replace(server("sync"), app=App("shop:app", str(app)))
    text = conf_file(configured, [], own_file, starts_in=directory)
    assert ("\nchdir = " in f"\n{text}") == chdir
    assert (str(tmp_path) in text) == (starts_in != "app")
    path = tmp_path / "gunicorn.conf.py"
    path.write_text(text)
    command = [sys.executable, "-m", "gunicorn", "-c", str(path), "--check-config"]
    subprocess.run(command, cwd=directory or "/", check=True)


@pytest.mark.parametrize("name", SERVERS)
def test_a_script_starts_another_server_as_measured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = class_named(name)
    pytest.importorskip(row.packages[0])
    directory = tmp_path / "it's an app"
    directory.mkdir()
    (directory / "shop.py").write_text(ASGI_APP if row.asgi else WSGI_APP)
    with socket.socket() as free_socket:
        free_socket.bind((conf_file_module.HOST, 0))
        port = free_socket.getsockname()[1]
    monkeypatch.setattr(conf_file_module, "PORT", port)
    app = App("shop:app", str(directory), env=(("B", "it's 2"),))
    script = tmp_path / "start.sh"
    script.write_text(start_script(replace(server(name), app=app), ["met."], sys.executable))
    assert script.read_text().startswith("#!/bin/sh\n# met.\n")
    with started(["sh", str(script)], cwd="/", start_new_session=True) as process:

        def answer() -> bytes:
            assert process.poll() is None
            with suppress(OSError), urlopen(f"http://{conf_file_module.HOST}:{port}") as response:
                return bytes(response.read())
            return b""

        try:
            assert until(answer, "it serves") == b"it's 2"
        finally:  # Granian waits forever for a worker that it stops during startup
            os.killpg(process.pid, signal.SIGKILL)


def test_any_directory_name_is_quoted(tmp_path: Path) -> None:
    odd = Server("sync", 1, 1, 1, 1, app=App("a:app", '/srv/it\'s "here"\\\n'))
    path = tmp_path / "conf.py"
    path.write_text(conf_file(odd, []))
    assert runpy.run_path(str(path))["chdir"] == odd.app.chdir


def test_an_own_file_finds_its_modules_path_and_environment(tmp_path: Path) -> None:
    """Modules next to the app, its path, the environment, and a raw_env that is a string."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "next_to_the_app.py").write_text("TIMEOUT = 77\n")
    text = (
        '"""Ours."""\nfrom __future__ import annotations\n'
        "import os\nfrom next_to_the_app import TIMEOUT\n"
        "timeout = TIMEOUT\npidfile = os.path.dirname(__file__) + '/x.pid'\n"
        "proc_name = os.environ['B']\nraw_env = 'A=1'\nbacklog = 64\nwsgi_app = 'a:old'\n"
    )
    configured = replace(server("sync"), app=App("shop.wsgi:app", str(app), env=(("B", "2"),)))
    own = OwnFile(text, str(app / "own.py"), ("backlog", "wsgi_app", "raw_env"))
    config = settings_of(conf_file(configured, ["met"], own), tmp_path)
    assert (config.settings["timeout"].get(), config.proc_name) == (77, "2")
    assert config.settings["pidfile"].get() == str(app / "x.pid")
    assert config.env == {"A": "1", "B": "2"}
    assert config.settings["backlog"].get() == 2048
    assert config.wsgi_app == "shop.wsgi:app"


@pytest.mark.parametrize(
    "own",
    [
        "workers = 9\nmax_requests = 100\n",
        "import os\nworkers = (\n    os.cpu_count()\n    or 2\n)\nthreads = 2 * workers\n",
        "worker_class = 'gthread'; workers = 2\n",
        "workers = 2\nif workers > 1:\n    workers = 1\n",
        "workers = 3\n",
    ],
)
def test_nothing_is_set_twice_and_each_line_is_explained(own: str, tmp_path: Path) -> None:
    """Unless the app's own file sets it more than once or within a statement."""
    remarks = {"max_requests": "Kept, but measured without.", "reload": "Kept, too."}
    own_file = OwnFile(own, setting_names=("workers",), remarks=remarks)
    text = conf_file(server("gthread"), [], own_file, grace_s=2)
    assert settings_of(text, tmp_path).workers == 3
    stores = Counter(
        node.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    own_count = own.count("workers =") if ";" in own or "if" in own else 0
    assert stores["workers"] == 1 + own_count
    assert all(stores[name] == 1 for name in ("threads", "graceful_timeout", "wsgi_app"))
    assert text.count("Kept, but measured without.\nmax_requests = ") == ("max_requests" in own)
    added = text.partition("# Kept, too.")[2]
    assert all("  # " in line for line in added.splitlines() if " = " in line)
    assert (OVERRIDING in text) == (own_count > 0)


@pytest.mark.parametrize(
    ("imports", "needed"),
    [("import os", False), ("import shop.settings", True), ("from shop import x", True)],
)
def test_the_import_path_is_set_for_modules_of_the_app_only(
    imports: str, needed: bool, tmp_path: Path
) -> None:
    (tmp_path / "shop").mkdir()
    configured = replace(server("sync"), app=App("shop:app", str(tmp_path)))
    text = conf_file(configured, [], OwnFile(f'"""Ours."""\n{imports}\n'))
    assert text.startswith('"""Ours."""\n')
    assert ("sys" in text) == needed


def test_a_line_with_the_measured_value_is_unchanged() -> None:
    own = "workers = 3  # ours\n"
    assert with_own_file("sync", own, "workers").startswith(own)
