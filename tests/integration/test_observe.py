"""What the observer sees of real servers under a real load, per worker class."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest
from msgspec.structs import replace

from harness.experiments import trial
from harness.experiments.execution import task_for
from harness.model import Observations, Record, Span
from harness.observe.observations import FILE, read_observations
from harness.observe.observer import GIVE_UP_S, Observer
from harness.observe.spans import read_spans
from harness.plan import trials as trials_of
from harness.run_store import load as load_run
from harness.server.running import Running
from tests.integration.conftest import Lab, until

WORKERS, CONNECTIONS = 2, 6
WORDS = ("--workers", str(WORKERS), "--sleep", "0.3", "--rounds", "5", "--tool", "fast")
BUSY_S = 0.02  # what a request computes where CPU is looked at, which is counted in 10 ms
# These accept no more than they serve: what is beyond their slots waits in the kernel
HOLD_BACK = {"sync": WORKERS}


def swept(lab: Lab, worker_class: str, *words: str) -> tuple[Path, Observations]:
    """The directory and the observations of one cell."""
    threads = ("--threads", "2") if worker_class == "gthread" else ()
    done = lab("sweep", worker_class, str(CONNECTIONS), *WORDS, *threads, *words)
    assert done.code == 0, done.err
    (raw,) = (lab.run / "raw").iterdir()
    return raw, read_observations(raw)


def steady(spans: list[Span]) -> tuple[int, int]:
    """While every connection was kept busy: from the moment that as many requests had ended as
    there are connections, until that many were left to begin."""
    ends = sorted(span.end_ns for span in spans if span.end_ns)
    starts = sorted(span.start_ns for span in spans)
    return ends[CONNECTIONS], starts[-CONNECTIONS]


def test_where_a_saturated_class_keeps_its_connections(lab: Lab, worker_class: str) -> None:
    raw, seen = swept(lab, worker_class)
    assert seen.missing == {}
    (record,) = (Record(**{**values, "fault": None}) for values in lab.records())
    assert record.load_start_ns is not None
    opens, closes = steady(
        [span for span in read_spans(raw).spans if span.start_ns > record.load_start_ns]
    )
    queue = [sample.length for sample in seen.queue if opens < sample.at_ns < closes]
    waiting = CONNECTIONS - HOLD_BACK.get(worker_class, CONNECTIONS)
    assert queue
    # Between an answer and the next accept, a connection is in neither place, or in both
    assert median(queue) == waiting, queue
    found = [sample for sample in seen.connections if opens < sample.at_ns < closes]
    for sample in found:
        assert set(sample.per_worker) == set(record.worker_pids)
        assert sum(sample.per_worker.values()) <= sum(sample.server.values())
    accepted = [sum(sample.per_worker.values()) for sample in found]
    assert not found or median(accepted) == CONNECTIONS - waiting, accepted
    assert max(accepted, default=0) <= CONNECTIONS
    limit = 100 if worker_class == "asgi" else 2048  # that class listens anew, with its own
    assert seen.queue[-1].limit == limit


def test_what_the_load_cost(lab: Lab, worker_class: str) -> None:
    _, seen = swept(lab, worker_class, "--path", f"/?cpu={1000 * BUSY_S:.0f}")
    (record,) = lab.records()
    first, last = seen.processes[0], seen.processes[-1]
    # The first sample before the load, the last one when it has ended, of a server that still runs:
    # nothing is left out
    assert first.at_ns <= record["load_start_ns"]
    assert record["load_end_ns"] <= last.at_ns <= record["load_end_ns"] + GIVE_UP_S * 1e9
    assert first.server_cpu_s == 0.0
    assert last.server_cpu_s is not None
    assert last.server_cpu_s > 0.8 * BUSY_S * record["planned_requests"]
    assert last.server_cpu_s < 1.1 * (last.at_ns - first.at_ns) / 1e9 * (seen.cores or 0)
    assert last.host_busy_s is not None
    assert last.host_busy_s > 0.8 * last.server_cpu_s
    assert record["tool_cpu_s"] > 0.01  # an interpreter has started
    during = [sample for sample in seen.processes if sample.tool_cpu_s is not None]
    assert during
    # A sample may meet a process that has not become an interpreter yet
    assert max(sample.tool_rss_bytes or 0 for sample in during) > 1 << 20
    assert during[-1].tool_cpu_s is not None
    assert during[-1].tool_cpu_s <= record["tool_cpu_s"] + 0.02  # counted in ticks of 10 ms
    assert all((sample.server_rss_bytes or 0) > WORKERS << 20 for sample in seen.processes)


def only_matters_once(worker_class: str) -> None:
    if worker_class != "sync":
        pytest.skip("the same for every class")


def test_a_harness_that_is_killed_leaves_what_was_seen(lab: Lab, worker_class: str) -> None:
    only_matters_once(worker_class)
    words = (
        "sweep",
        worker_class,
        str(CONNECTIONS),
        *WORDS[:4],
        "--sleep",
        "2",
        "--tool",
        "fast",
    )
    process = lab.start(*words)

    def observed() -> bool:
        files = list((lab.place / "results").glob(f"*/raw/*/{FILE}"))
        return bool(files) and files[0].read_text().count('"queue"') >= 5

    until(observed, "five looks at the queue")
    process.kill()
    process.communicate()
    (raw,) = (lab.run / "raw").iterdir()
    seen = read_observations(raw)
    assert len(seen.queue) >= 5
    assert seen.counters is None
    assert set(seen.missing) == {"queue", "processes", "connections", "counters"}


def repeated(lab: Lab, worker_class: str) -> trial.Task:
    """A trial that has run once, to be run again as the test likes it."""
    swept(lab, worker_class)
    plan = load_run(lab.run).plan
    (one,) = trials_of(plan)
    task = task_for(plan, one, lab.run)
    trial.forget(task.directory)
    return task


def test_the_queue_can_be_watched_while_the_load_runs(lab: Lab, worker_class: str) -> None:
    only_matters_once(worker_class)
    lengths: list[int | None] = []

    def watch(server: Running, observer: Observer) -> None:
        assert len(server.proofs) == WORKERS
        lengths.append(observer.latest_queue)

    record = trial.run(replace(repeated(lab, worker_class), watch=watch), lambda _: None)
    assert record.fault is None
    assert CONNECTIONS - WORKERS in lengths


def test_a_blind_observer_does_not_touch_the_trial(
    lab: Lab, worker_class: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_matters_once(worker_class)
    task = repeated(lab, worker_class)
    task.directory.mkdir()
    (task.directory / FILE).symlink_to("/dev/full")
    made = Path.mkdir

    def mkdir(path: Path, *words: object, **named: object) -> None:
        if path != task.directory:  # the trial insists on making it
            made(path, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", mkdir)
    began = time.monotonic()
    record = trial.run(task, lambda _: None)
    assert record.fault is None
    assert record.exit_code == 0
    assert record.load_end_ns is not None
    assert time.monotonic() - began < 60
    (task.directory / FILE).unlink()
    assert len(read_observations(task.directory).missing) == 4


def test_a_run_that_was_not_observed_is_reported(lab: Lab, worker_class: str) -> None:
    only_matters_once(worker_class)
    raw, _ = swept(lab, worker_class)
    (raw / FILE).unlink()
    done = lab("report", str(lab.run), "--format", "json")
    (cell,) = done.report["cells"]
    assert cell["verdict"] == "saturated"
    assert cell["kernel"]["accept_queue_max"] is None
    assert cell["kernel"]["listen_overflows"] is None
    assert cell["cpu"]["server_cores"] is None
