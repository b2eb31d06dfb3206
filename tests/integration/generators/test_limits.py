"""How far a client goes: the limits, provoked, recognised and avoided; the mistakes, shown."""

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
from tests.integration.conftest import LONG_S, ROOT, Lab, answers, loaded
from workerlab import run_store as store
from workerlab.analysis.facts import TrialData, why_unusable
from workerlab.experiments.limits import command as limits
from workerlab.load.mistakes import PROGRAMS
from workerlab.model.plan import Cell
from workerlab.server import preflight


def step(name: str, **load: Any) -> Cell:
    """The first of such real steps, on this machine, its load changed."""
    here = replace(limits.this_machine(), core=None)
    steps = limits.steps(here)
    cell = next(planned.cell for planned in steps if planned.cell.name.startswith(name))
    return replace(cell, load=replace(cell.load, **load))


def counts(data: TrialData) -> tuple[int, int]:
    """Requests that were answered, and that failed."""
    assert data.measurement is not None, why_unusable(data)
    return data.measurement.requests, data.measurement.failed


@pytest.mark.parametrize("tool", ["fast", "coroutines"])
def test_too_many_open_files(tmp_path: Path, tool: str) -> None:
    provoked = step("unbounded-", concurrency=200, requests=200, open_files=100)
    data = loaded(replace(provoked, tool=tool), tmp_path)
    requests, failed = counts(data)
    assert set(data.measurement.errors) == {"no_files"}
    # Each connection takes one; a process has some other files open
    assert 100 < failed < 200
    assert requests == 200 - failed


def test_a_bound_avoids_it(tmp_path: Path) -> None:
    bounded = step("bounded-", concurrency=50, requests=200, open_files=100)
    assert counts(loaded(bounded, tmp_path)) == (200, 0)


def test_no_port_left_and_two_ways_out(tmp_path: Path) -> None:
    if not preflight.can_restrict_ports():
        pytest.skip("this kernel cannot tell a socket which ports to use")
    data = loaded(step("ports-used-up"), tmp_path)
    assert set(data.measurement.errors) == {"no_address"}
    assert data.null.connections <= 200
    for name in ("ports-sources", "ports-reuse"):
        assert counts(loaded(step(name), tmp_path)) == (800, 0), name


def test_ports_in_time_wait_run_out_and_are_used_again_after_a_second(tmp_path: Path) -> None:
    if why := limits.this_machine().no_network:
        pytest.skip(f"no network namespace can be made: {why}")
    if not preflight.can_restrict_ports():
        pytest.skip("this kernel cannot tell a socket which ports to use")
    few: Any = {"ports": (40_000, 40_199), "requests": 300, "concurrency": 10}
    data = loaded(step("time-wait-0", **few), tmp_path)
    assert data.measurement.errors == {"no_address": 100}
    assert data.null.connections == 200
    # All ports are held. The server may still have to close its end of what was open last
    held = data.observations.connections[-1].client
    assert sum(held.values()) == 200
    assert held["TIME_WAIT"] >= 200 - few["concurrency"]
    assert counts(loaded(step("time-wait-2", **few), tmp_path)) == (300, 0)


def test_a_thousand_connections_fit_into_the_usual_limit_of_files(tmp_path: Path) -> None:
    data = loaded(step("unbounded-1000"), tmp_path)
    assert counts(data) == (1000, 0)
    assert (data.cell.concurrency, data.cell.load.open_files) == (1000, 1024)


def test_what_a_client_keeps_takes_memory(tmp_path: Path) -> None:
    """Tasks, and bodies of 440 KB."""
    loads = {"all-tasks-10000": 300, "all-bodies-250": 20, "all-bodies-500": 60}
    peaks = {}
    for name, requests in loads.items():
        data = loaded(step(name, requests=requests), tmp_path)
        assert counts(data) == (requests, 0), name
        peaks[name] = data.measurement.details["peak_bytes"]
    kept = peaks["all-bodies-500"] - peaks["all-bodies-250"]
    assert 40 * limits.NOVEL_BYTES * 0.9 < kept < 40 * limits.NOVEL_BYTES * 1.5
    assert peaks["all-tasks-10000"] > 1 << 20


def planned(place: Path, names: tuple[str, ...]) -> Path:
    """A run of `limits` with a few of its steps, smaller, not begun."""
    here = limits.this_machine()
    plan = limits.plan_of(here)
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
    """The mistake and its cure."""
    return [values[form]["values"] for form in ("mistake", "cure")]


def test_the_command_shows_what_happened_though_it_was_stopped(lab: Lab) -> None:
    keys = ("async-100-fast", "kept-100000", "ports-used-up", "ports-sources", "ports-reuse",
            "aiohttp-100000")  # fmt: skip
    directory = planned(lab.place, keys)
    resume = ("limits", "--resume", str(directory))
    done = lab.end(lab.at_work(*resume, when=lab.loads, what="a load runs"), signal.SIGTERM)
    assert done.code == 143
    assert "limits --resume" in done.err
    assert "Traceback" not in done.err
    document = lab.report(*resume)
    assert document["kind"] == "limits"
    assert "NotMeasured" not in [note["code"] for note in document["notes"]]
    assert answers(document)["Farthest"]["step"]["values"]["requests"] == 1000
    aiohttp = answers(document)["FarthestByAiohttp"]["step"]["values"]
    assert aiohttp["requests"] == 1000
    assert aiohttp["client_cores"] > 0
    assert aiohttp["server_cores"] > 0
    assert len(document["charts"]) == 2
    missing, awaited = forms_of(answers(document)["MissingAwait"])
    assert (missing["requests"], awaited["requests"]) == (0, 100)
    sessions, session = forms_of(answers(document)["SessionPerRequest"])
    assert (sessions["connections"], sessions["requests"]) == (300, 300)
    assert session["connections"] == 20
    assert 200 < sessions["time_wait"] <= 300  # others may leave that state meanwhile
    if preflight.can_restrict_ports():
        assert answers(document)["LimitReached"]
    assert lab("report", str(directory), "--format", "markdown").code == 0
    # All is measured: there is nothing left to run
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
def test_a_mistake_by_itself(tmp_path: Path, name: str, symptoms: list[str]) -> None:
    with serving(tmp_path) as server:
        words = [sys.executable, "-m", "workerlab.load.mistakes", name, server.url]
        done = subprocess.run(
            [*words, "--requests", "10"], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S
        )
    assert done.returncode == 0, done.stderr
    for symptom in symptoms:
        assert symptom in done.stdout
    assert done.stderr == ""


def test_a_mistake_without_a_server(tmp_path: Path) -> None:
    words = [sys.executable, PROGRAMS, "session_per_request", "http://127.0.0.1:1/"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
