"""What Gunicorn is told: here for how long a worker may keep silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.launch import launch
from workerlab.model import App, Server
from workerlab.server import gunicorn


@pytest.mark.parametrize(
    ("worker_class", "sleep_s", "timeout_s"),
    [("sync", 1.0, 30), ("sync", 40.0, 120), ("uvicorn", 1.0, 600), ("gevent", 300.0, 900)],
)
def test_an_app_of_ours_may_block_its_loop_without_being_killed(
    tmp_path: Path, worker_class: str, sleep_s: float, timeout_s: int
) -> None:
    ours = launch(tmp_path, Server(worker_class, 1, 1, 64, 10), App("x:app", sleep_s=sleep_s))
    for own, expected in ((ours, timeout_s), (replace(ours, config="own.conf.py"), None)):
        gunicorn._write_launch(own)
        written = json.loads((own.trial / "launch.json").read_text())
        assert written["settings"].get("timeout") == expected
