"""Observations of real servers under load, per worker class."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.processes import burned_s, burning
from tests.integration.conftest import OPEN_BUSY_S, OPEN_N, OPEN_WORKERS, Lab, Sweep, is_keepalive
from workerlab.experiments import trial
from workerlab.experiments.load_trials import task_for
from workerlab.model.evidence import Span
from workerlab.observe.observations import FILE, read_observations
from workerlab.observe.observer import Observer
from workerlab.observe.spans import read_spans
from workerlab.plan import trials as trials_of
from workerlab.run_store import load as load_run
from workerlab.server.running import Running


@pytest.fixture
def closed(closed_and_kept: Sweep) -> tuple[dict[str, Any], Path]:
    """The record and the directory of the cell without keep-alive."""
    lab = closed_and_kept.lab
    (record,) = (record for record in lab.records() if not is_keepalive(record))
    return record, lab.run / "raw" / record["key"]


def is_steady(spans: list[Span], at_ns: int) -> bool:
    """Whether every connection was busy, and no request began or ended around this time: between a
    response and the next accept, a connection is in neither place or in both. Samples are taken at
    their time or soon after."""
    ends = sorted(span.end_ns for span in spans if span.end_ns)
    boundaries = [*ends, *(span.start_ns for span in spans)]
    busy = ends[1] < at_ns < ends[-OPEN_N]  # after the lone request, before connections run out
    return busy and not any(-250e6 < boundary - at_ns < 150e6 for boundary in boundaries)


def test_only_sync_fills_the_queue(closed: tuple[dict[str, Any], Path], worker_class: str) -> None:
    record, raw = closed
    observed = read_observations(raw)
    assert observed.missing == {}
    spans = [span for span in read_spans(raw).spans if span.start_ns > record["load_start_ns"]]
    queue = [sample.length for sample in observed.queue if is_steady(spans, sample.at_ns)]
    # sync accepts only what it serves: other connections wait in the kernel
    waiting = OPEN_N - OPEN_WORKERS if worker_class == "sync" else 0
    assert queue
    assert median(queue) == waiting, queue
    samples = [sample for sample in observed.connections if is_steady(spans, sample.at_ns)]
    for sample in samples:
        assert set(sample.per_worker) == set(record["worker_pids"])
        assert sum(sample.per_worker.values()) <= sum(sample.server.values())
    accepted = [sum(sample.per_worker.values()) for sample in samples]
    assert not samples or median(accepted) == OPEN_N - waiting, accepted
    limit = 100 if worker_class == "asgi" else 2048  # asgi listens again, with its own backlog
    assert observed.queue[-1].limit == limit


def test_samples_cover_the_cpu_and_memory_of_the_load(closed: tuple[dict[str, Any], Path]) -> None:
    record, raw = closed
    observed = read_observations(raw)
    first, last = observed.processes[0], observed.processes[-1]
    # Samples cover the load: the first precedes it, and the server still runs at the last one
    assert first.at_ns <= record["load_start_ns"]
    assert record["load_end_ns"] <= last.at_ns
    assert first.server_cpu_s == 0.0
    assert last.server_cpu_s > 0.8 * OPEN_BUSY_S * record["planned_requests"]
    assert last.server_cpu_s < 1.1 * (last.at_ns - first.at_ns) / 1e9 * (observed.cores or 0)
    assert last.host_busy_s > 0.8 * last.server_cpu_s
    assert record["tool_cpu_s"] > 0.01  # an interpreter has started
    tool = [sample for sample in observed.processes if sample.tool_cpu_s is not None]
    assert tool
    # The first sample may precede the start of the interpreter
    assert max(sample.tool_rss_bytes or 0 for sample in tool) > 1 << 20
    assert tool[-1].tool_cpu_s <= record["tool_cpu_s"] + 0.02  # counted in ticks of 10 ms
    assert all((sample.server_rss_bytes or 0) > OPEN_WORKERS << 20 for sample in observed.processes)


def test_waits_for_a_core_accumulate(closed: tuple[dict[str, Any], Path]) -> None:
    samples = read_observations(closed[1]).processes
    server = [sample.server_wait_s for sample in samples if sample.server_wait_s is not None]
    assert len(server) == len(samples)
    assert server[0] == 0.0
    assert server == sorted(server)
    tool = [sample.tool_wait_s for sample in samples if sample.tool_wait_s is not None]
    assert tool == sorted(tool)  # the sum includes ended processes
    assert samples[-1].tool_wait_s is not None
    assert samples[-1].lab_cpu_s is not None


@pytest.fixture
def one_core() -> Iterator[None]:
    """This process and those it starts share one core."""
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(affinity)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, affinity)


CPU_S = 0.02  # per request


def sweep_with_burner(lab: Lab) -> tuple[dict[str, Any], float, float]:
    """A cell, the cores that another program used during its load, and the duration of the fastest
    lone request. That program starts with the load: lone requests must not wait for it, or the
    load would seem to lose nothing."""
    process = lab.at_work(
        *("sweep", "sync", "1", "--workers", "1", "--path", f"/?sleep=0&cpu={1e3 * CPU_S:.0f}"),
        *("--tool", "fast", "--duration", "2", "--format", "json"),
        when=lab.loads,
        what="the load",
    )
    log = lab.place / "burned"
    with burning(log):
        result = lab.finish(process)
    assert result.code == 0, result.err
    (cell,), (record,) = result.report["cells"], lab.records()
    start_ns, end_ns = record["load_start_ns"], record["load_end_ns"]
    shutil.rmtree(lab.run)
    cores = burned_s(log, start_ns, end_ns) * 1e9 / (end_ns - start_ns)
    return cell, cores, min(record["lone_s"])


@pytest.mark.quiet
@pytest.mark.once
@pytest.mark.usefixtures("one_core")
def test_cores_used_by_other_programs_are_observed(lab: Lab) -> None:
    """Two programs on one core get half of it each, unless the machine is busy: this is checked
    first."""
    premises = []
    for _ in range(5):
        cell, cores, lone_s = sweep_with_burner(lab)
        premises.append(f"burned {cores:.2f} cores, lone request {lone_s:.3f} s")
        if cores >= 0.25 and lone_s < 2 * CPU_S:
            break
    else:
        pytest.skip(f"the machine was busy with something else: {'; '.join(premises)}")
    wait = cell["core_wait"]
    assert wait["share"] >= 0.05, premises
    assert wait["worker_s"] >= 0.05 * CPU_S, premises
    assert wait["others_cores"] >= cores / 2, premises


def test_the_report_has_the_cpu_and_memory_of_the_load(closed_and_kept: Sweep) -> None:
    for cell in closed_and_kept.cells:
        assert 0 < cell["cpu"]["server_cores"] < (os.cpu_count() or 1)
        assert cell["cpu"]["generator_cores"] > 0
        assert 0 < cell["cpu"]["host_busy"] <= 1
        assert cell["rss_bytes"]["server_max"] > cell["rss_bytes"]["generator_max"] > 1 << 20


@pytest.mark.once
def test_observations_survive_the_death_of_the_harness(lab: Lab) -> None:
    process = lab.at_work(
        *("sweep", "sync", str(OPEN_N)),
        *("--workers", str(OPEN_WORKERS), "--sleep", "2", "--tool", "fast"),
        when=lambda: any(
            path.read_text().count('"queue"') >= 5
            for path in lab.place.glob(f"results/*/raw/*/{FILE}")
        ),
        what="five samples of the queue",
    )
    lab.end(process, signal.SIGKILL)
    (raw,) = (lab.run / "raw").iterdir()
    observations = read_observations(raw)
    assert len(observations.queue) >= 5
    assert observations.counters is None
    assert set(observations.missing) == {"queue", "processes", "connections", "counters"}


@pytest.fixture
def run(closed_and_kept: Sweep, tmp_path: Path) -> Path:
    """A writable copy of a run."""
    original = closed_and_kept.lab.run
    return Path(shutil.copytree(original, tmp_path / "results" / original.name))


@pytest.fixture
def rerun(run: Path) -> trial.Task:
    """A trial that has run before."""
    plan = replace(load_run(run).plan, rounds=1)
    (planned,) = (planned for planned in trials_of(plan) if not planned.cell.keepalive)
    task = task_for(plan, planned, run)
    trial.discard_attempt(task.directory)
    return task


@pytest.mark.once
def test_the_queue_is_available_during_the_load(rerun: trial.Task) -> None:
    lengths: list[int | None] = []

    def watch(server: Running, observer: Observer) -> None:
        assert len(server.proofs) == OPEN_WORKERS
        lengths.append(observer.latest_queue)

    record = trial.run(replace(rerun, watch=watch))
    assert record.fault is None
    assert OPEN_N - OPEN_WORKERS in lengths


@pytest.mark.once
def test_a_trial_needs_no_observations(rerun: trial.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    rerun.directory.mkdir()
    (rerun.directory / FILE).symlink_to("/dev/full")
    original_mkdir = Path.mkdir

    def mkdir(path: Path, *args: object, **kwargs: object) -> None:
        if path != rerun.directory:  # which the trial creates
            original_mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    record = trial.run(rerun)
    assert record.fault is None
    assert record.exit_code == 0
    assert record.load_end_ns is not None
    (rerun.directory / FILE).unlink()
    assert len(read_observations(rerun.directory).missing) == 4


@pytest.mark.once
def test_a_run_without_observations_can_be_reported(lab: Lab, run: Path) -> None:
    for path in run.glob(f"raw/*/{FILE}"):
        path.unlink()
    for cell in lab.report("report", str(run))["cells"]:
        assert cell["verdict"] == "saturated"
        assert cell["kernel"]["accept_queue_max"] is None
        assert cell["kernel"]["listen_overflows"] is None
        assert cell["cpu"]["server_cores"] is None
