"""Limits of a client: provoked, recognised and avoided; common mistakes and their symptoms."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.null import serving
from tests.integration.conftest import LONG_S, ROOT, Lab, answers, run_null_trial
from workerlab import run_store as store
from workerlab.analysis.facts import TrialData, why_unusable
from workerlab.experiments.limits import command as limits
from workerlab.load.mistakes import PROGRAMS
from workerlab.model.plan import Cell
from workerlab.server import preflight


def step(name: str, **load: Any) -> Cell:
    """The first step on this machine whose name starts with `name`, with a different load."""
    cells = [planned.cell for planned in limits.steps(replace(limits.this_machine(), core=None))]
    cell = next(cell for cell in cells if cell.name.startswith(name))
    return replace(cell, load=replace(cell.load, **load))


def counts(data: TrialData) -> tuple[int, int]:
    """Successful and failed requests."""
    assert data.measurement is not None, why_unusable(data)
    return data.measurement.requests, data.measurement.failed


@pytest.mark.parametrize("tool", ["fast", "coroutines"])
def test_unbounded_concurrency_exhausts_open_files(tmp_path: Path, tool: str) -> None:
    unbounded = step("unbounded-", concurrency=200, requests=200, open_files=100)
    data = run_null_trial(replace(unbounded, tool=tool), tmp_path)
    requests, failed = counts(data)
    assert set(data.measurement.errors) == {"no_files"}
    assert 100 < failed < 200  # a process has some other files open
    assert requests == 200 - failed


def test_bounded_concurrency_stays_below_the_limit_of_open_files(tmp_path: Path) -> None:
    bounded = step("bounded-", concurrency=50, requests=200, open_files=100)
    assert counts(run_null_trial(bounded, tmp_path)) == (200, 0)


needs_port_ranges = pytest.mark.skipif(
    not preflight.can_restrict_ports(), reason="this kernel has no port ranges per socket"
)


@needs_port_ranges
def test_used_up_ports_have_two_workarounds(tmp_path: Path) -> None:
    data = run_null_trial(step("ports-used-up"), tmp_path)
    assert set(data.measurement.errors) == {"no_address"}
    assert data.null.connections <= 200
    for name in ("ports-sources", "ports-reuse"):
        assert counts(run_null_trial(step(name), tmp_path)) == (800, 0), name


@needs_port_ranges
def test_ports_in_time_wait_run_out_and_are_reused_after_a_second(tmp_path: Path) -> None:
    if reason := limits.this_machine().no_network:
        pytest.skip(f"no network namespace can be made: {reason}")
    few_ports: Any = {"ports": (40_000, 40_199), "requests": 300, "concurrency": 10}
    data = run_null_trial(step("time-wait-0", **few_ports), tmp_path)
    assert data.measurement.errors == {"no_address": 100}
    assert data.null.connections == 200
    # All ports are in use. The server may not have closed the last connections yet
    states = data.observations.connections[-1].client
    assert sum(states.values()) == 200
    assert states["TIME_WAIT"] >= 200 - few_ports["concurrency"]
    assert counts(run_null_trial(step("time-wait-2", **few_ports), tmp_path)) == (300, 0)


def test_a_thousand_connections_stay_below_the_default_limit_of_open_files(tmp_path: Path) -> None:
    data = run_null_trial(step("unbounded-1000"), tmp_path)
    assert counts(data) == (1000, 0)
    assert (data.cell.concurrency, data.cell.load.open_files) == (1000, 1024)


def test_retained_tasks_and_bodies_take_memory(tmp_path: Path) -> None:
    """A body has 440 KB."""
    loads = {"all-tasks-10000": 300, "all-bodies-250": 20, "all-bodies-500": 60}
    peaks = {}
    for name, requests in loads.items():
        data = run_null_trial(step(name, requests=requests), tmp_path)
        assert counts(data) == (requests, 0), name
        peaks[name] = data.measurement.details["peak_bytes"]
    bodies = (peaks["all-bodies-500"] - peaks["all-bodies-250"]) / limits.NOVEL_BYTES
    assert 40 * 0.9 < bodies < 40 * 1.5
    assert peaks["all-tasks-10000"] > 1 << 20


def create_run(place: Path, names: tuple[str, ...]) -> Path:
    """A run of `limits` with some of its steps and fewer requests, not started."""
    plan = limits.plan_of(limits.this_machine())
    cells = []
    for cell in plan.cells:
        chapter, load = plan.details["steps"][cell.name]["chapter"], cell.load
        if cell.name in names:
            load = replace(load, requests=min(load.requests, 1000), deadline_s=60)
        elif chapter == "mistakes":
            load = replace(load, requests=min(load.requests, 300))
        else:
            continue
        cells.append(replace(cell, load=load))
    directory = place / "results" / "some-limits"
    store.create(directory, replace(plan, cells=tuple(cells)), preflight.machine({}))
    return directory


def forms_of(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The mistake and its correction."""
    return [values[form]["values"] for form in ("mistake", "cure")]


def test_a_resumed_run_reports_limits_and_mistakes(lab: Lab) -> None:
    keys = ("async-100-fast", "kept-100000", "ports-used-up", "ports-sources", "ports-reuse",
            "aiohttp-100000")  # fmt: skip
    directory = create_run(lab.place, keys)
    resume = ("limits", "--resume", str(directory))
    result = lab.end(lab.at_work(*resume, when=lab.loads, what="a load runs"), signal.SIGTERM)
    assert result.code == 143
    assert "limits --resume" in result.err
    assert "Traceback" not in result.err
    document = lab.report(*resume)
    assert document["kind"] == "limits"
    assert "NotMeasured" not in [note["code"] for note in document["notes"]]
    assert answers(document)["Farthest"]["step"]["values"]["requests"] == 1000
    aiohttp = answers(document)["FarthestByAiohttp"]["step"]["values"]
    assert aiohttp["requests"] == 1000
    assert aiohttp["client_cores"] > 0
    assert aiohttp["server_cores"] > 0
    assert len(document["charts"]) == 2
    missing, corrected = forms_of(answers(document)["MissingAwait"])
    assert (missing["requests"], corrected["requests"]) == (0, 100)
    sessions, session = forms_of(answers(document)["SessionPerRequest"])
    assert (sessions["connections"], sessions["requests"]) == (300, 300)
    assert session["connections"] == 20
    assert 200 < sessions["time_wait"] <= 300  # some may have left that state
    if preflight.can_restrict_ports():
        assert answers(document)["LimitReached"]
    assert lab("report", str(directory), "--format", "markdown").code == 0
    # Complete: nothing is left to run
    assert lab.report(*resume) == document


@pytest.mark.parametrize(
    ("name", "symptoms"),
    [
        ("missing_await", ["10 x coroutine returned: 0 responses, 0 connections opened",
                           "reported 10 times: coroutine 'fetch' was never awaited",
                           "10 x Task returned: 0 responses",
                           "reported 10 times: Task was destroyed but it is pending!",
                           "10 x int returned: 10 responses"]),
        ("session_per_request", ["10 responses, 10 connections opened"]),
        ("everything_at_once", ["10 x int returned: 10 responses",
                                "10 x bytes returned: 10 responses", "MB of peak memory so far"]),
    ],
)  # fmt: skip
def test_a_mistake_prints_its_symptoms(tmp_path: Path, name: str, symptoms: list[str]) -> None:
    with serving(tmp_path) as server:
        argv = [sys.executable, "-m", "workerlab.load.mistakes", name, server.url]
        result = subprocess.run(
            [*argv, "--requests", "10"], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S
        )
    assert result.returncode == 0, result.stderr
    for symptom in symptoms:
        assert symptom in result.stdout
    assert result.stderr == ""


def test_a_mistake_without_a_server_is_a_one_line_error(tmp_path: Path) -> None:
    args = [sys.executable, PROGRAMS, "session_per_request", "http://127.0.0.1:1/"]
    result = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
