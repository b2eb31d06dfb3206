"""What the observer sees of real servers under a real load, per worker class."""

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
from tests.integration.conftest import (
    OPEN_BUSY_S,
    OPEN_N,
    OPEN_WORKERS,
    Lab,
    Sweep,
    kept,
)
from workerlab.experiments import trial
from workerlab.experiments.load_trials import task_for
from workerlab.model.evidence import Record, Span
from workerlab.observe.observations import FILE, read_observations
from workerlab.observe.observer import Observer
from workerlab.observe.spans import read_spans
from workerlab.plan import trials as trials_of
from workerlab.run_store import load as load_run
from workerlab.server.running import Running

# These accept no more than they serve: what is beyond their slots waits in the kernel
HOLD_BACK = {"sync": OPEN_WORKERS}


@pytest.fixture
def closed(closed_and_kept: Sweep) -> tuple[dict[str, Any], Path]:
    """The record and the directory of the cell whose connections are closed after each request."""
    lab = closed_and_kept.lab
    (record,) = (candidate for candidate in lab.records() if not kept(candidate))
    return record, lab.run / "raw" / record["key"]


def at_rest(spans: list[Span], at_ns: int) -> bool:
    """Whether every connection was busy, and for a while nothing began or ended: between an answer
    and the next accept a connection is in neither place, or in both. A sample is taken when it is
    dated, or soon after."""
    ends = sorted(span.end_ns for span in spans if span.end_ns)
    moments = [*ends, *(span.start_ns for span in spans)]
    busy = ends[1] < at_ns < ends[-OPEN_N]  # after the lone one's end until fewer are left
    return busy and not any(-250e6 < moment - at_ns < 150e6 for moment in moments)


def test_where_a_saturated_class_keeps_its_connections(
    closed: tuple[dict[str, Any], Path], worker_class: str
) -> None:
    values, raw = closed
    record, observed = Record(**{**values, "fault": None}), read_observations(raw)
    assert observed.missing == {}
    assert record.load_start_ns is not None
    spans = [span for span in read_spans(raw).spans if span.start_ns > record.load_start_ns]
    queue = [sample.length for sample in observed.queue if at_rest(spans, sample.at_ns)]
    waiting = OPEN_N - HOLD_BACK.get(worker_class, OPEN_N)
    assert queue
    assert median(queue) == waiting, queue
    samples = [sample for sample in observed.connections if at_rest(spans, sample.at_ns)]
    for sample in samples:
        assert set(sample.per_worker) == set(record.worker_pids)
        assert sum(sample.per_worker.values()) <= sum(sample.server.values())
    accepted = [sum(sample.per_worker.values()) for sample in samples]
    assert not samples or median(accepted) == OPEN_N - waiting, accepted
    limit = 100 if worker_class == "asgi" else 2048  # that class listens anew, with its own
    assert observed.queue[-1].limit == limit


def test_what_the_load_cost(closed: tuple[dict[str, Any], Path]) -> None:
    record, raw = closed
    observed = read_observations(raw)
    first, last = observed.processes[0], observed.processes[-1]
    # The first sample before the load, the last one when it has ended, of a server that still runs:
    # nothing is left out
    assert first.at_ns <= record["load_start_ns"]
    assert record["load_end_ns"] <= last.at_ns
    assert first.server_cpu_s == 0.0
    assert last.server_cpu_s > 0.8 * OPEN_BUSY_S * record["planned_requests"]
    assert last.server_cpu_s < 1.1 * (last.at_ns - first.at_ns) / 1e9 * (observed.cores or 0)
    assert last.host_busy_s > 0.8 * last.server_cpu_s
    assert record["tool_cpu_s"] > 0.01  # an interpreter has started
    during = [sample for sample in observed.processes if sample.tool_cpu_s is not None]
    assert during
    # A sample may meet a process that has not become an interpreter yet
    assert max(sample.tool_rss_bytes or 0 for sample in during) > 1 << 20
    assert during[-1].tool_cpu_s <= record["tool_cpu_s"] + 0.02  # counted in ticks of 10 ms
    assert all((sample.server_rss_bytes or 0) > OPEN_WORKERS << 20 for sample in observed.processes)


def test_how_long_it_waited_for_a_core(closed: tuple[dict[str, Any], Path]) -> None:
    _, raw = closed
    samples = read_observations(raw).processes
    server = [sample.server_wait_s for sample in samples]
    tool = [sample.tool_wait_s for sample in samples if sample.tool_wait_s is not None]
    waits = [wait for wait in server if wait is not None]
    assert len(waits) == len(server)
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert tool == sorted(tool)  # its end takes nothing from the sum
    assert samples[-1].tool_wait_s is not None
    assert samples[-1].lab_cpu_s is not None


@pytest.fixture
def one_core() -> Iterator[None]:
    """All that is started meanwhile shares a core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


CPU_S = 0.02  # that a request computes
BURNED_CORES = 0.25  # of the only core; without further programs it would be half


def beside_a_burner(lab: Lab) -> tuple[dict[str, Any], float, float]:
    """A cell beside a program that begins with its load, since what a lone request takes beside it
    no request of the load is said to have lost. Also the cores that program burned during the load,
    and how long the fastest lone request took."""
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
    begin_ns, end_ns = record["load_start_ns"], record["load_end_ns"]
    shutil.rmtree(lab.run)
    cores = burned_s(log, begin_ns, end_ns) * 1e9 / (end_ns - begin_ns)
    return cell, cores, min(record["lone_s"])


@pytest.mark.quiet
@pytest.mark.once
@pytest.mark.usefixtures("one_core")
def test_others_that_keep_it_waiting_are_seen(lab: Lab) -> None:
    """Two that want the same core all the time get half of it each. Whether the other one got its
    part, and lone requests theirs, is up to the rest of the machine: it is looked at first."""
    premises = []
    for _ in range(5):
        cell, cores, lone_s = beside_a_burner(lab)
        premises.append(f"burned {cores:.2f} cores, lone request {lone_s:.3f} s")
        if cores >= BURNED_CORES and lone_s < 2 * CPU_S:
            break
    else:
        pytest.skip(f"the machine was busy with something else: {'; '.join(premises)}")
    wait = cell["core_wait"]
    assert wait["share"] >= 0.05, premises
    assert wait["worker_s"] >= 0.05 * CPU_S, premises
    assert wait["others_cores"] >= cores / 2, premises


def test_what_the_load_cost_is_reported(closed_and_kept: Sweep) -> None:
    for cell in closed_and_kept.cells:
        assert 0 < cell["cpu"]["server_cores"] < (os.cpu_count() or 1)
        assert cell["cpu"]["generator_cores"] > 0
        assert 0 < cell["cpu"]["host_busy"] <= 1
        assert cell["rss_bytes"]["server_max"] > cell["rss_bytes"]["generator_max"] > 1 << 20


@pytest.mark.once
def test_a_harness_that_is_killed_leaves_what_was_seen(lab: Lab) -> None:
    process = lab.at_work(
        *("sweep", "sync", str(OPEN_N)),
        *("--workers", str(OPEN_WORKERS), "--sleep", "2", "--tool", "fast"),
        when=lambda: any(
            path.read_text().count('"queue"') >= 5
            for path in lab.place.glob(f"results/*/raw/*/{FILE}")
        ),
        what="five looks at the queue",
    )
    lab.end(process, signal.SIGKILL)
    (raw,) = (lab.run / "raw").iterdir()
    observations = read_observations(raw)
    assert len(observations.queue) >= 5
    assert observations.counters is None
    assert set(observations.missing) == {"queue", "processes", "connections", "counters"}


@pytest.fixture
def run(closed_and_kept: Sweep, tmp_path: Path) -> Path:
    """A copy of a run, to do with as a test likes."""
    original = closed_and_kept.lab.run
    return Path(shutil.copytree(original, tmp_path / "results" / original.name))


@pytest.fixture
def again(run: Path) -> trial.Task:
    """A trial that has run once, to be run again."""
    plan = replace(load_run(run).plan, rounds=1)
    (planned,) = (other for other in trials_of(plan) if not other.cell.keepalive)
    task = task_for(plan, planned, run)
    trial.discard_attempt(task.directory)
    return task


@pytest.mark.once
def test_the_queue_can_be_watched_while_the_load_runs(again: trial.Task) -> None:
    lengths: list[int | None] = []

    def watch(server: Running, observer: Observer) -> None:
        assert len(server.proofs) == OPEN_WORKERS
        lengths.append(observer.latest_queue)

    record = trial.run(replace(again, watch=watch))
    assert record.fault is None
    assert OPEN_N - OPEN_WORKERS in lengths


@pytest.mark.once
def test_a_blind_observer_does_not_touch_the_trial(
    again: trial.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    again.directory.mkdir()
    (again.directory / FILE).symlink_to("/dev/full")
    made = Path.mkdir

    def mkdir(path: Path, *args: object, **named: object) -> None:
        if path != again.directory:  # the trial insists on making it
            made(path, *args, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    record = trial.run(again)
    assert record.fault is None
    assert record.exit_code == 0
    assert record.load_end_ns is not None
    (again.directory / FILE).unlink()
    assert len(read_observations(again.directory).missing) == 4


@pytest.mark.once
def test_a_run_that_was_not_observed_is_reported(lab: Lab, run: Path) -> None:
    for path in run.glob(f"raw/*/{FILE}"):
        path.unlink()
    for cell in lab.report("report", str(run))["cells"]:
        assert cell["verdict"] == "saturated"
        assert cell["kernel"]["accept_queue_max"] is None
        assert cell["kernel"]["listen_overflows"] is None
        assert cell["cpu"]["server_cores"] is None
