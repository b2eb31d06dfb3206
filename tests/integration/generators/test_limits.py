"""How far a client goes: the limits, provoked, recognised and avoided; the mistakes, shown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import run_store as store
from harness.experiments.limits import command as limits
from harness.experiments.limits.steps import Machine, Step, steps
from harness.experiments.points import Shot, point_from_json, point_to_json, read_point
from harness.experiments.shot import shot
from harness.model import Target
from harness.server import preflight
from harness.server.null_server import target
from tests.integration.conftest import LONG_S, ROOT, Lab, until


def step(name: str, **load: Any) -> Step:
    """One of the real steps, on this machine, its load changed."""
    here = replace(limits.machine(), core=None)
    chosen, _ = steps(here, quick=False)
    (found,) = (one for one in chosen if one.point.key.startswith(name))
    return replace(found, point=replace(found.point, load=replace(found.point.load, **load)))


def executed(one: Step, place: Path) -> Shot:
    words = limits.limited(one.open_files)
    record = shot(one.point, place, lambda _: None, words)
    found = read_point(one.point, record, place / "raw")
    assert found.measurement is not None, found.why_not
    return found


@pytest.mark.parametrize("tool", ["fast", "coroutines"])
def test_too_many_open_files(tmp_path: Path, tool: str) -> None:
    provoked = step("unbounded-1", concurrency=200, requests=200)
    provoked = replace(provoked, open_files=100, point=replace(provoked.point, tool=tool))
    found = executed(provoked, tmp_path).measurement
    assert found is not None
    assert set(found.errors) == {"no_files"}
    # Each connection takes one; a process has some other files open
    assert 100 < found.failed < 200
    assert found.requests == 200 - found.failed


def test_a_bound_avoids_it(tmp_path: Path) -> None:
    bounded = replace(step("bounded-", concurrency=50, requests=200), open_files=100)
    found = executed(bounded, tmp_path).measurement
    assert found is not None
    assert (found.requests, found.failed) == (200, 0)


def test_no_port_left_and_two_ways_out(tmp_path: Path) -> None:
    if not preflight.narrows_ports():
        pytest.skip("this kernel cannot tell a socket which ports to use")
    used_up = executed(step("ports-used-up"), tmp_path)
    assert used_up.measurement is not None
    assert set(used_up.measurement.errors) == {"no_address"}
    assert used_up.server is not None
    assert used_up.server.connections <= 200
    for name in ("ports-sources", "ports-reuse"):
        found = executed(step(name), tmp_path).measurement
        assert found is not None
        assert (found.requests, found.failed) == (800, 0), name


def planned(place: Path, keys: tuple[str, ...], mistakes: bool = True) -> Path:
    """A run of `limits` with a few of its steps, smaller, not begun."""
    said, environment = limits.plan(quick=False)
    points = [point_from_json(one) for one in said["points"] if one["key"] in keys]
    points = [
        replace(one, load=replace(one.load, requests=min(one.load.requests, 3000), deadline_s=60))
        for one in points
    ]
    said["points"] = [point_to_json(point) for point in points]
    said["mistakes"] = said["mistakes"] if mistakes else []
    for one in said["mistakes"]:
        one["point"]["load"]["requests"] = min(one["point"]["load"]["requests"], 300)
    directory = place / "results" / "some-limits"
    store.create(directory, json.loads(json.dumps(said)), environment)
    return directory


def answer(said: Mapping[str, Any], question: str) -> str:
    (found,) = (one["answer"] for one in said["findings"] if question in one["question"])
    return str(found)


def test_the_command_shows_what_happened(lab: Lab) -> None:
    keys = ("async-100-fast", "kept-100000", "ports-used-up", "ports-sources", "ports-reuse")
    directory = planned(lab.place, keys)
    done = lab("limits", "--resume", str(directory), "--format", "json")
    assert done.code == 0, done.err
    said = done.report
    assert said["kind"] == "limits"
    assert "3,000 requests over" in answer(said, "How far")
    assert "0 requests; with await it sees 100" in answer(said, "missing await")
    shown = answer(said, "session per request")
    assert shown.startswith("300 connections for 300 requests, where one session needs 20")
    assert "left 300 ports in TIME_WAIT, against" in shown
    if preflight.narrows_ports():
        assert answer(said, "local ports").startswith("Errno 99, cannot assign requested address")
    for words in ((), ("--format", "markdown"), ("--format", "csv")):
        assert lab("report", str(directory), *words).code == 0
    # All is measured: there is nothing left to run
    again = lab("limits", "--resume", str(directory), "--format", "json")
    assert again.code == 0
    assert again.report == said


def test_a_stopped_run_is_resumed(lab: Lab) -> None:
    directory = planned(lab.place, ("async-100-fast", "kept-100000"), mistakes=False)
    process = lab.start("limits", "--resume", str(directory))
    until(lambda: list(directory.glob("raw/*/tool/stdout")), "a load runs")
    process.terminate()
    _, err = process.communicate()
    assert process.returncode == 143
    assert "limits --resume" in err
    assert "Traceback" not in err
    done = lab("limits", "--resume", str(directory), "--format", "json")
    assert done.code == 0, done.err
    assert not [note for note in done.report["notes"] if "not measured" in note]


@pytest.mark.parametrize("words", [("--quick",), ("--out", "x")])
def test_resuming_takes_no_other_words(lab: Lab, words: tuple[str, ...]) -> None:
    done = lab("limits", "--resume", "anything", *words)
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_a_machine_of_few_files_and_an_old_kernel() -> None:
    small = Machine(has=lambda tool: tool == "fast", files=1100, ports=None, core=None)
    chosen, left_out = steps(small, quick=True)
    assert max(one.point.load.concurrency for one in chosen) == 1100 - 64
    assert not [one for one in chosen if one.chapter == "ports"]
    assert len(left_out) == 3
    assert any("ulimit -n" in why for why in left_out)


@pytest.mark.parametrize(
    ("name", "symptoms"),
    [
        ("missing_await", ["10 x coroutine handed back: 0 answers, 0 connections opened",
                           "said 10 times: coroutine 'fetch' was never awaited",
                           "10 x Task handed back: 0 answers",
                           "said 10 times: Task was destroyed but it is pending!",
                           "10 x int handed back: 10 answers"]),
        ("session_per_request", ["10 answers, 10 connections opened"]),
    ],
)  # fmt: skip
def test_a_mistake_by_itself(tmp_path: Path, name: str, symptoms: list[str]) -> None:
    with target(tmp_path, Target()) as server:
        words = [sys.executable, "-m", f"harness.experiments.limits.mistakes.{name}", server.url]
        done = subprocess.run(
            [*words, "--requests", "10"], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S
        )
    assert done.returncode == 0, done.stderr
    for symptom in symptoms:
        assert symptom in done.stdout
    assert done.stderr == ""


def test_a_mistake_without_a_server(tmp_path: Path) -> None:
    words = [sys.executable, limits.MISTAKES, "session_per_request", "http://127.0.0.1:1/"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
