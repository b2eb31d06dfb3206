"""Loads without a fixed length: longer if throughput varies, and only then."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Lab, app_text, retry_if_disturbed, stood_still
from workerlab.observe.observations import FILE, read_observations
from workerlab.observe.spans import read_spans

N, ROUNDS = 4, 5


def write_app(lab: Lab, worker_class: str) -> None:
    """An app with varying throughput."""
    wait_s = "random.choice([0.001, 0.004, 0.02])"
    text = app_text(worker_class, setup="import random", wait_s=wait_s)
    (lab.place / "own.py").write_text(text)


def only_record(lab: Lab) -> tuple[dict[str, Any], Path]:
    (record,) = lab.records()
    return record, lab.run / "raw" / record["key"]


def within(record: dict[str, Any], at_ns: int) -> bool:
    return bool(record["load_start_ns"] <= at_ns <= record["load_end_ns"])


@pytest.mark.classes("gthread", "uvicorn")
def test_varying_throughput_is_measured_in_a_second_load(lab: Lab, worker_class: str) -> None:
    """With keep-alive: the server must have closed the connections of the first load before the
    second one. A pause of the machine in the first load may leave no time for a second one."""
    write_app(lab, worker_class)
    args = (
        "sweep", worker_class, str(N), "--workers", "2", "--tool", "fast", "--keepalive", "on",
        "--app", "own:app", "--max-seconds", "6", "--format", "json",
    )  # fmt: skip
    result = retry_if_disturbed(
        lab,
        lambda: lab(*args),
        lambda result: result.code == 0 and only_record(lab)[0]["pilot_s"] is not None,
    )
    assert result.code == 0, result.err
    (cell,) = result.report["cells"]
    record, raw = only_record(lab)
    assert record["pilot_s"] > 0
    assert record["planned_requests"] > 1 + ROUNDS * N
    assert cell["requests"] == record["planned_requests"]
    assert sum(cell["requests_per_worker"].values()) == cell["requests"]
    assert cell["throughput_half_rps"] > 0
    assert "LongerLoadFollowed" in [note["code"] for note in cell["notes"]]

    (first,) = raw.glob("pilot/tool/stdout")
    assert json.loads(first.read_text())["load"]["requests"] == 1 + ROUNDS * N
    spans = read_spans(raw).spans
    earlier = [span for span in spans if span.start_ns < record["load_start_ns"]]
    assert len(earlier) > 1 + ROUNDS * N  # those of the pilot and the warm-up
    assert all(span.end_ns is not None for span in earlier)
    assert max(span.end_ns or 0 for span in earlier) < record["load_start_ns"]
    observed = read_observations(raw)
    assert not observed.missing
    assert any(within(record, sample.at_ns) for sample in observed.processes)
    pilot_queue = read_observations(raw / "pilot").queue
    assert not any(within(record, sample.at_ns) for sample in pilot_queue)


@pytest.mark.once
def test_the_load_of_an_app_that_sleeps_is_not_repeated(lab: Lab) -> None:
    """The throughput of requests of 1 s is precise unless the machine pauses or workers wait long
    for a core: then the test tries again."""
    for _ in range(5):
        (cell,) = lab.sweep("sync", str(N), "--sleep", "1", "--tool", "fast")
        record, raw = only_record(lab)
        durations_ns = [
            (span.end_ns or 0) - span.start_ns
            for place in (raw, *raw.glob("pilot*"))  # the load that varied is the first
            for span in read_spans(place).spans
        ]
        if record["pilot_s"] is None:
            break
        late = record["pilot_s"] > 1.05 * (1 + ROUNDS)  # ideally each round takes 1 s
        if not (late or stood_still(lab.run) or max(durations_ns) > 1.2e9):
            break
        shutil.rmtree(lab.run)
    else:
        pytest.skip("each time the machine stood still, or kept a worker from a core")
    assert record["pilot_s"] is None
    assert cell["requests"] == 1 + ROUNDS * N
    assert not list(raw.glob("pilot*"))
    assert (raw / FILE).exists()


@pytest.mark.once
def test_a_cell_interrupted_in_its_second_load_is_measured_again(lab: Lab) -> None:
    write_app(lab, "sync")
    args = ("--workers", "2", "--tool", "fast", "--app", "own:app", "--max-seconds", "8")
    process = lab.at_work(
        *("sweep", "sync", str(N), *args),
        when=lambda: list(lab.place.glob("results/*/raw/*/pilot/tool/stdout")) and lab.loads(),
        what="the second load",
    )
    assert lab.end(process, signal.SIGINT).code == 130
    record, raw = only_record(lab)
    assert record["fault"]["kind"] == "interrupted"
    assert record["pilot_s"] > 0

    (cell,) = lab.sweep("--resume", str(lab.run))
    *_, last = lab.records()
    assert cell["requests"] == last["planned_requests"] > 1 + ROUNDS * N
    assert (raw / "pilot").exists()
