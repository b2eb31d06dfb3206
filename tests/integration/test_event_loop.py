"""Event loops in real workers, blocked some of the time or never. `test_blocking.py` and the corpus
of `tests/diagnosis` test the other kinds of loops."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import ROOT, Lab, Serve, app_text, fetch, retry_if_disturbed, until
from workerlab.observe.spans import read_beats

CODE = "BlockedLoop"


def findings(lab: Lab, worker_class: str, query: str, app: str) -> dict[str, dict[str, Any]]:
    """The findings of a load with 8 connections on 2 workers for 3 seconds, by code."""
    args = (
        "sweep", worker_class, "8", "--workers", "2", "--tool", "fast", "--duration", "3",
        "--app", f"{app}:app", "--chdir", str(ROOT / "tests" / "diagnosis" / "apps"),
        "--path", f"/?{query}", "--format", "json",
    )  # fmt: skip
    # A long pause leaves nothing of a load
    result = retry_if_disturbed(lab, lambda: lab(*args), lambda result: result.code == 0)
    assert result.code == 0, result.err + result.out
    (cell,) = result.report["cells"]
    return {finding["code"]: finding["values"] for finding in cell["findings"]}


@pytest.mark.classes("gevent", "tornado")
def test_a_loop_that_blocks_some_of_the_time_is_reported(lab: Lab, worker_class: str) -> None:
    """Each request yields for 50 ms, then blocks for 30: with four connections the loop of a worker
    is blocked longer than it waits."""
    app = {"gevent": "held_wsgi", "tornado": "held_tornado"}[worker_class]
    finding = retry_if_disturbed(
        lab,
        lambda: findings(lab, worker_class, "wait=50&what=usleeps&ms=30", app),
        lambda by_code: CODE in by_code,
    )[CODE]
    assert 0.25 <= finding["blocked"] <= 1
    assert finding["longest_s"] >= 0.03 - 0.02  # a call begins up to 20 ms before a beat is due
    assert 3 <= finding["late"] <= finding["beats"]


@pytest.mark.classes("tornado")
@pytest.mark.parametrize(
    ("query", "app"),
    [
        pytest.param("wait=50", "held_tornado", id="requests that yield"),
        # Blocks by design, which its slots already show: they are the workers
        pytest.param("what=usleeps&ms=50", "held_wsgi", id="a WSGI app"),
    ],
)
def test_loops_are_not_reported_wrongly(lab: Lab, worker_class: str, query: str, app: str) -> None:
    assert CODE not in findings(lab, worker_class, query, app)


# --- beats ----------------------------------------------------------------------------------------

FORKS = """
import os, time
def work():
    child = os.fork()
    if not child:
        time.sleep(0.2)  # with gevent and eventlet, the child continues the loop
        os._exit(0)
    os.waitpid(child, 0)
"""


def pids(trial: Path) -> set[int]:
    return {beat.pid for beat in read_beats(trial).beats}


def test_only_workers_beat_even_while_idle(serve: Serve, worker_class: str) -> None:
    """Not their forked children. Threads and sync workers have no loop."""
    with serve(app_text(worker_class, setup=FORKS, work="work()")) as server:
        trial = server.launch.trial
        for _ in range(4):
            assert fetch(server) == (200, b"ok")
        if worker_class in ("sync", "gthread"):
            assert list(trial.glob("beats-*")) == []
            return
        before = len(until(lambda: read_beats(trial).beats, "a beat"))
        assert pids(trial) <= set(server.proofs)
        until(lambda: len(read_beats(trial).beats) > before + 20, "more beats")
        assert pids(trial) <= set(server.proofs)
        per_map = [path.name.split("-")[1] for path in trial.glob("beats-*")]
        assert len(per_map) == len(set(per_map))
        beats = read_beats(trial).beats
        assert all(beat.cpu_ns <= beat.length_ns + 1_000_000 for beat in beats)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in server.proofs)
