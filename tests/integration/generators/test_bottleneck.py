"""Ceilings of load tools and the experiment `bottleneck`, on real servers."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.integration.conftest import (
    LONG_S,
    CommandResult,
    Lab,
    fake_program,
    retry_if_disturbed,
    run_null_trial,
)
from workerlab import run_store as store
from workerlab.analysis.facts import Facts
from workerlab.experiments import calibration
from workerlab.experiments.bottleneck.command import GENERATORS
from workerlab.experiments.bottleneck.document import (
    ClosedInMidLoad,
    NotClosedInMidLoad,
    phases_answers,
)
from workerlab.experiments.bottleneck.findings import BottleneckVerdict, Factor, TooFewTrials
from workerlab.experiments.calibration import CeilingKey
from workerlab.experiments.planning import why_unavailable
from workerlab.finding import Answer
from workerlab.model.plan import Load, NullServer
from workerlab.plan import SLEEP_ENV, null_cell

# --- ceilings -------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "workerlab" / "ceilings.json"


# Slow enough for the app to come near its ceiling on any machine
TOOL = "coroutines"
KEY = CeilingKey(TOOL, keepalive=False, processes=1, connections=16)


def sweep_idle_app(lab: Lab, cache: Path) -> CommandResult:
    """A sweep of an app that does nothing. Its load lasts a tenth of a second: on a busy machine
    the cell may be invalid (exit code 1), which does not affect ceilings."""
    lab.env["XDG_CACHE_HOME"] = str(cache.parents[1])
    result = lab("sweep", "sync", "4", "--workers", "2", "--sleep", "0", "--rounds", "50",
                 "--tool", TOOL, "--format", "json")  # fmt: skip
    invalid = [cell["reason"] for cell in result.report["cells"] if cell["verdict"] == "invalid"]
    assert result.code == bool(invalid), (invalid, result.err)
    return result


def test_a_sweep_measures_the_ceiling_of_its_tool_once(lab: Lab, cache: Path) -> None:
    for _ in range(5):
        first = sweep_idle_app(lab, cache)
        rps = first.report["cells"][0]["throughput_rps"] or 0.0  # none if the cell is invalid
        if calibration.is_near_limit(KEY, {KEY: rps}):
            break
    else:
        pytest.skip("the app came near no limit in any of 5 loads: the machine is too busy")
    assert f"measuring the highest rate of {TOOL}, 16 connections" in first.err
    environment = first.report["environment"]
    if missing := environment["ceilings_missing"]:  # other tests keep the cores busy
        reason = missing[f"{TOOL}, 16 connections"]
        assert "other programs used" in reason or "was paused" in reason
        assert not cache.exists()
        return
    (ceiling,) = environment["ceilings"]
    assert ceiling["tool"] == TOOL
    assert ceiling["rps"] > 0
    second = sweep_idle_app(lab, cache)
    assert "measuring" not in second.err
    assert second.report["environment"]["ceilings"] == [ceiling]


def test_the_number_of_tool_processes_is_an_axis(lab: Lab) -> None:
    cells = lab.sweep(
        *("sync", "4", "--workers", "2", "--sleep", "0.5", "--tool", "fast"),
        *("--rounds", "5", "--tool-processes", "1,2"),
    )
    assert [cell["tool_processes"] for cell in cells] == [1, 2]
    assert not any(cell["generator_bound"] for cell in cells)
    assert "measuring" not in lab.last.err  # an app that sleeps never reaches the ceiling


def test_a_ceiling_that_cannot_be_measured_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_program(tmp_path, "ab", "#!/bin/sh\necho nonsense\n") as fakes:
        monkeypatch.setenv("PATH", str(fakes), prepend=":")
        key = CeilingKey("ab", keepalive=False, processes=1, connections=4)
        ceiling = calibration.measure(key, tmp_path / "calibration")
    assert isinstance(ceiling, str)
    assert ceiling


# --- the experiment -------------------------------------------------------------------------


def test_a_resumed_run_reaches_a_verdict(lab: Lab, cache: Path) -> None:
    lab.env["XDG_CACHE_HOME"] = str(cache.parents[1])
    first = lab.at_work(
        *("bottleneck", "--quick"),
        when=lambda: list(lab.place.glob("results/*/raw/*")),
        what="its first trial begins",
    )
    stopped = lab.end(first, signal.SIGINT)
    assert stopped.code == 130, stopped.err
    assert "bottleneck --resume" in stopped.err
    assert " not finished" in stopped.out
    assert "--resume" not in stopped.out
    directory = lab.run
    smaller = shrink_run(directory)

    def resume() -> CommandResult:
        store.create(directory, smaller.plan, smaller.environment)
        return lab("bottleneck", "--resume", str(directory), "--format", "json")

    # A pause of the machine may leave too little of a load of two seconds
    result = retry_if_disturbed(lab, resume, lambda result: result.code == 0)
    assert result.code == 0, (result.err, result.report["findings"], result.report["notes"])
    assert "measuring" not in result.err  # an app that sleeps never reaches the ceiling
    report = result.report
    assert report["kind"] == "bottleneck"
    verdict = report["findings"][0]
    assert verdict["question"] == BottleneckVerdict.question
    kinds: tuple[type[Answer], ...] = (*BottleneckVerdict.__subclasses__(), TooFewTrials)
    assert verdict["answer"]["code"] in [kind.__name__ for kind in kinds]
    titles = [table["title"] for table in report["tables"]]
    assert titles[:3] == [Factor.USERS.title, Factor.THREADS.title, Factor.SERVERS.title]
    assert "Both sides of each load" in titles
    codes = {finding["answer"]["code"] for finding in report["findings"]}
    assert codes & {ClosedInMidLoad.__name__, NotClosedInMidLoad.__name__}
    assert lab.report("report", str(lab.run)) == report


@pytest.mark.skipif(sys.platform != "linux", reason="TCP states are observed on Linux")
@pytest.mark.parametrize("tool", ["fast", "locust"])
def test_connections_closed_by_the_server_are_a_phase(tmp_path: Path, tool: str) -> None:
    if missing := why_unavailable(tool):
        pytest.skip(missing)
    null = NullServer(delay_s=(0.1, 0.1), requests_per_connection=15)
    load = Load(8, 8, 6.0, LONG_S, keepalive=True, ramp_s=1.0, timed=True, same_body=True)
    data = run_null_trial(null_cell("phases", null, tool, load), tmp_path)
    if data.observations.pauses:
        pytest.skip("the machine stood still")
    assert isinstance(data.facts, Facts)
    (answer,) = phases_answers([data.facts])
    assert isinstance(answer, ClosedInMidLoad)
    assert answer.opened > answer.users == 8
    assert data.facts.measurement.failed == 0
    churn = answer.phases[-1].why.values
    assert churn["states"]["TIME_WAIT"] >= 8  # of the server, which closes first
    assert churn["p50_s"] >= 0.1


def shrink_run(directory: Path) -> store.Run:
    """Removes the directory. Returns the run with fewer users, on an app that sleeps and keeps no
    core busy."""
    run = store.load(directory)
    cells = []
    for cell in run.plan.cells:
        if cell.load is not None:  # on the server that closes connections
            load = replace(cell.load, concurrency=8, ramp_s=1.0, duration_s=6.0)
            cells.append(replace(cell, concurrency=8, load=load))
            continue
        app = replace(cell.server.app, env=((SLEEP_ENV, "0.5"),), sleep_s=0.5)
        if cell.tool in GENERATORS and cell.processes == 1:
            server = replace(cell.server, app=app)
            cells.append(replace(cell, server=server, concurrency=cell.concurrency // 40))
    shutil.rmtree(directory)
    plan = replace(run.plan, cells=tuple(cells), trials=1, duration_s=2.0)
    return replace(run, plan=plan)
