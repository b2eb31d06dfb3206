"""Event loops in real workers that are blocked in a part of their time or never. The other kinds of
loop are looked at by `test_blocking.py` and the corpus of `tests/diagnosis`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import (
    ROOT,
    Lab,
    Serve,
    app_text,
    fetch,
    retry_if_disturbed,
    until,
)
from workerlab.observe.spans import read_beats

APPS = ROOT / "tests" / "diagnosis" / "apps"
LOOPS = {"gevent": "held_wsgi", "tornado": "held_tornado"}
CODE = "BlockedLoop"


def findings(lab: Lab, worker_class: str, query: str, app: str = "") -> dict[str, dict[str, Any]]:
    """All that is found of 8 connections on 2 workers in 3 seconds, by code."""
    args = (
        "sweep", worker_class, "8", "--workers", "2", "--tool", "fast", "--duration", "3",
        "--app", f"{app or LOOPS[worker_class]}:app", "--chdir", str(APPS),
        "--path", f"/?{query}", "--format", "json",
    )  # fmt: skip
    # Of a load that was mostly a pause nothing is left
    result = retry_if_disturbed(lab, lambda: lab(*args), lambda result: result.code == 0)
    assert result.code == 0, result.err + result.out
    (cell,) = result.report["cells"]
    return {finding["code"]: finding["values"] for finding in cell["findings"]}


@pytest.mark.classes("gevent", "tornado")
def test_a_loop_that_is_blocked_in_a_part_of_its_time(lab: Lab, worker_class: str) -> None:
    """Each request gives way for 50 ms, then blocks for 30: with four connections a worker's loop
    is blocked longer than it waits."""
    query = "wait=50&what=usleeps&ms=30"
    finding = retry_if_disturbed(
        lab, lambda: findings(lab, worker_class, query), lambda finding: CODE in finding
    )[CODE]
    assert 0.25 <= finding["blocked"] <= 1
    assert finding["longest_s"] >= 0.03 - 0.02  # a call begins up to 20 ms before a beat is due
    assert 3 <= finding["late"] <= finding["beats"]


@pytest.mark.classes("tornado")
def test_a_loop_whose_requests_give_way_is_not_blocked(lab: Lab, worker_class: str) -> None:
    assert CODE not in findings(lab, worker_class, "wait=50")


@pytest.mark.classes("tornado")
def test_a_wsgi_app_blocks_tornado_by_design(lab: Lab, worker_class: str) -> None:
    """Its slots are the workers: that says it."""
    assert CODE not in findings(lab, worker_class, "what=usleeps&ms=50", app="held_wsgi")


# --- where there is nothing to observe, and what must not be in the way ---------------------------

FORKS = """
import os, time
def work():
    child = os.fork()
    if not child:
        time.sleep(0.2)  # of gevent and eventlet: a child that goes on with the loop
        os._exit(0)
    os.waitpid(child, 0)
"""


def pids(trial: Path) -> set[int]:
    return {beat.pid for beat in read_beats(trial).beats}


def test_beats_are_of_workers_alone_and_go_on_while_nobody_asks(
    serve: Serve, worker_class: str
) -> None:
    """Of each that served, and of no child it forked; threads and sync workers have no loop."""
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
