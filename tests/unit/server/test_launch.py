"""What a server is started with, and why one does not start."""

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
    with_config = replace(default, config="own.py")
    for launched, expected in ((default, timeout_s), (with_config, None)):
        serve._write_launch(launched, serve.backend_of(launched))
        settings = json.loads((launched.trial / "launch.json").read_text())
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
    launched = launch(tmp_path, Server("sync", 1, 1, 64, 10), App(target, chdir=str(tmp_path)))
    assert serve._next_step(launched, f"it did not boot: {why}") == advice


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
def test_the_advice_depends_on_where_a_missing_module_is_named(
    tmp_path: Path, missing: str, advice: str
) -> None:
    app = App("shop.wsgi:app", chdir="/srv", env=(("DJANGO_SETTINGS_MODULE", "conf.tset"),))
    launched = replace(launch(tmp_path, Server("sync", 1, 1, 64, 10), app), python="python3")
    assert serve._next_step(launched, f"it ended: No module named '{missing}'") == advice


def why_not_started(directory: Path, server: Server, target: str, source: str) -> str:
    """The reason why this server does not start with an app of this source."""
    for package in class_named(server.worker_class).packages:
        pytest.importorskip(package)
    (directory / f"{target.partition(':')[0]}.py").write_text(source)
    launched = launch(directory, server, App(target, str(directory)))
    with pytest.raises(TrialFailed) as failure, serve.serve(launched):
        pass
    return str(failure.value)


@pytest.mark.parametrize("preload", [False, True])
def test_a_server_whose_app_hangs_during_import_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preload: bool
) -> None:
    monkeypatch.setattr(serve, "BOOT_S", 5.0)
    server = Server("sync", 1, 1, 64, 10, preload=preload)
    source = "import threading\nthreading.Event().wait(99)\n"
    expected = "stuck:app was not imported within 5 s; it was at stuck.py line 2: threading.Event"
    assert why_not_started(tmp_path, server, "stuck:app", source).startswith(expected)


@pytest.mark.parametrize("name", ["sync", *SERVERS])
@pytest.mark.parametrize(
    ("source", "respawning", "reason", "advice"),  # `respawning` servers do not end
    [
        ("import sys\nprint('SECRET is not set')\nsys.exit()\n",
         ("sync", "uvicorn-alone", "hypercorn"), "SECRET is not set", ""),
        ("import nowhere\n", ("uvicorn-alone",),
         "ModuleNotFoundError: No module named 'nowhere' (shop.py line 1)", "install it for "),
    ],
    ids=["exits", "missing module"],
)  # fmt: skip
def test_any_server_says_why_its_workers_do_not_import_the_app(
    tmp_path: Path, name: str, source: str, respawning: tuple[str, ...], reason: str, advice: str
) -> None:
    respawned = "the workers exited 3 times before loading the app"
    failure = why_not_started(tmp_path, Server(name, 2, 1, 128, 10), "shop:app", source)
    why, _, rest = failure.partition("; ")
    assert why == f"{respawned if name in respawning else 'the server did not boot'}: {reason}"
    assert rest.startswith(advice)
    assert bool(rest) is bool(advice)
