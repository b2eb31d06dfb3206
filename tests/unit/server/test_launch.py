"""The settings given to Gunicorn: here the timeout of a worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.launch import launch
from workerlab.model import App, Server
from workerlab.server import gunicorn
from workerlab.server.running import TrialFailed


@pytest.mark.parametrize(
    ("worker_class", "sleep_s", "timeout_s"),
    [("sync", 1.0, 30), ("sync", 40.0, 120), ("uvicorn", 1.0, 600), ("gevent", 300.0, 900)],
)
def test_the_default_timeout_lets_bundled_apps_block_their_loop(
    tmp_path: Path, worker_class: str, sleep_s: float, timeout_s: int
) -> None:
    default = launch(tmp_path, Server(worker_class, 1, 1, 64, 10), App("x:app", sleep_s=sleep_s))
    for case, expected in ((default, timeout_s), (replace(default, config="own.py"), None)):
        gunicorn._write_launch(case)
        settings = json.loads((case.trial / "launch.json").read_text())
        assert settings["settings"].get("timeout") == expected


@pytest.mark.parametrize(
    ("source", "next_step"),
    [
        ("def application(environ, start_response): ...\n", "; did you mean own:application?"),
        ("app = {}\n", "; own:app names something else"),
        ("import other\n", ""),
    ],
)
def test_a_name_that_is_no_app_is_told_with_the_one_that_may_be(
    tmp_path: Path, source: str, next_step: str
) -> None:
    (tmp_path / "own.py").write_text(source)
    (tmp_path / "other.py").touch()
    server = Server("sync", 1, 1, 64, 10)
    own = launch(tmp_path, server, App("own:app", str(tmp_path)))
    with pytest.raises(TrialFailed) as failure, gunicorn.running(own):
        pass
    reason = str(failure.value)
    assert reason.startswith("the server did not boot: ")
    assert reason.endswith(next_step)
    assert next_step or ";" not in reason


@pytest.mark.parametrize("preload", [False, True])
def test_a_server_whose_app_hangs_during_import_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preload: bool
) -> None:
    (tmp_path / "stuck.py").write_text("import threading\nthreading.Event().wait(99)\n")
    monkeypatch.setattr(gunicorn, "BOOT_S", 5.0)
    server = Server("sync", 1, 1, 64, 10, preload=preload)
    stuck = launch(tmp_path, server, App("stuck:app", str(tmp_path)))
    with pytest.raises(TrialFailed) as failure, gunicorn.running(stuck):
        pass
    expected = "stuck:app was not imported within 5 s; it was at stuck.py line 2: threading.Event"
    assert str(failure.value).startswith(expected)
