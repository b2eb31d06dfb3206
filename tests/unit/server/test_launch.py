"""The settings given to Gunicorn: here the timeout of a worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.launch import launch
from workerlab.model.plan import App, Server
from workerlab.server import serve
from workerlab.server.running import TrialFailed
from workerlab.server.worker_classes import SERVERS, class_named


@pytest.mark.parametrize(
    ("worker_class", "sleep_s", "timeout_s"),
    [("sync", 1.0, 30), ("sync", 40.0, 120), ("uvicorn", 1.0, 600), ("gevent", 300.0, 900)],
)
def test_the_default_timeout_lets_bundled_apps_block_their_loop(
    tmp_path: Path, worker_class: str, sleep_s: float, timeout_s: int
) -> None:
    default = launch(tmp_path, Server(worker_class, 1, 1, 64, 10), App("x:app", sleep_s=sleep_s))
    for case, expected in ((default, timeout_s), (replace(default, config="own.py"), None)):
        serve._write_launch(case, serve.backend_of(case))
        settings = json.loads((case.trial / "launch.json").read_text())
        assert settings["settings"].get("timeout") == expected


@pytest.mark.parametrize(
    ("target", "source", "why", "advice"),
    [
        ("shop:app", "application = make()", "Failed to find attribute 'app' in 'shop'",
         "; shop.py defines application: use shop:application"),
        ("shop:app", "def main(): ...", "Failed to find attribute 'app' in 'shop'", ""),
        ("shop:app", "not Python", "Failed to find attribute 'app' in 'shop'", ""),
        ("gone:app", "", "Failed to find application object: 'app'", ""),
        ("shop", "application = {}", "Application object must be callable",
         "; shop:application is of type dict"),
        ("shop:app", "from web import app, wsgi", "Application object must be callable",
         "; shop:app is not callable; shop.py defines wsgi: use shop:wsgi"),
    ],
)  # fmt: skip
def test_another_callable_is_suggested(
    tmp_path: Path, target: str, source: str, why: str, advice: str
) -> None:
    (tmp_path / "shop.py").write_text(source)
    case = launch(tmp_path, Server("sync", 1, 1, 64, 10), App(target, chdir=str(tmp_path)))
    assert serve._next_step(case, f"it did not boot: {why}") == advice


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("conf.tset", "; --env DJANGO_SETTINGS_MODULE=conf.tset names it: correct that name"),
        ("conf", "; --env DJANGO_SETTINGS_MODULE=conf.tset names it: correct that name"),
        ("shop.tset", "; the app's own package has no such module: correct its name in /srv"),
        ("shop", "; python3 looked for it in /srv: name another directory with --chdir, or another"
         " interpreter with --python"),
        ("flask", "; install it for python3, or name the app's interpreter with --python"),
    ],
)  # fmt: skip
def test_the_next_step_depends_on_who_names_the_missing_module(
    tmp_path: Path, missing: str, advice: str
) -> None:
    app = App("shop.wsgi:app", chdir="/srv", env=(("DJANGO_SETTINGS_MODULE", "conf.tset"),))
    case = replace(launch(tmp_path, Server("sync", 1, 1, 64, 10), app), python="python3")
    assert serve._next_step(case, f"it ended: No module named '{missing}'") == advice


@pytest.mark.parametrize("preload", [False, True])
def test_a_server_whose_app_hangs_during_import_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preload: bool
) -> None:
    (tmp_path / "stuck.py").write_text("import threading\nthreading.Event().wait(99)\n")
    monkeypatch.setattr(serve, "BOOT_S", 5.0)
    server = Server("sync", 1, 1, 64, 10, preload=preload)
    stuck = launch(tmp_path, server, App("stuck:app", str(tmp_path)))
    with pytest.raises(TrialFailed) as failure, serve.serve(stuck):
        pass
    expected = "stuck:app was not imported within 5 s; it was at stuck.py line 2: threading.Event"
    assert str(failure.value).startswith(expected)


RESPAWNING = ("sync", "uvicorn-alone", "hypercorn")  # the others end with their workers


@pytest.mark.parametrize("name", ["sync", *SERVERS])
def test_a_server_whose_workers_only_exit_says_why(tmp_path: Path, name: str) -> None:
    for package in class_named(name).packages:
        pytest.importorskip(package)
    (tmp_path / "exits.py").write_text("import sys\nprint('SECRET is not set')\nsys.exit()\n")
    exits = launch(tmp_path, Server(name, 2, 1, 128, 10), App("exits:app", str(tmp_path)))
    with pytest.raises(TrialFailed) as failure, serve.serve(exits):
        pass
    ended = "the workers exited 3 times before loading the app"
    expected = ended if name in RESPAWNING else "the server did not boot"
    # True of one class, and of several with the same reason
    assert str(failure.value) == f"{expected}: SECRET is not set"


@pytest.mark.parametrize("name", ["sync", *SERVERS])
def test_a_missing_module_is_named_under_any_server(tmp_path: Path, name: str) -> None:
    for package in class_named(name).packages:
        pytest.importorskip(package)
    (tmp_path / "shop.py").write_text("import nowhere\n")
    shop = launch(tmp_path, Server(name, 2, 1, 128, 10), App("shop:app", str(tmp_path)))
    with pytest.raises(TrialFailed) as failure, serve.serve(shop):
        pass
    why, _, advice = str(failure.value).partition("; ")
    ended = "the workers exited 3 times before loading the app"  # uvicorn starts others forever
    expected = ended if name == "uvicorn-alone" else "the server did not boot"
    raised = "ModuleNotFoundError: No module named 'nowhere' (shop.py line 1)"
    assert why == f"{expected}: {raised}"
    assert advice.startswith("install it for ")
