"""Cells that run side by side: each has its own kernel counters, and all end with the lab."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from itertools import combinations

import pytest

from tests.integration.conftest import Lab, app_text, processes, until
from workerlab.model.evidence import Record
from workerlab.observe.observations import read_observations
from workerlab.run_store import load as load_run

pytestmark = pytest.mark.once
# Light enough for a busy machine
SLOW = ("--workers", "2", "--sleep", "1", "--rounds", "3", "--tool", "fast")


def overlap(record: Record, other: Record) -> bool:
    assert record.load_end_ns is not None
    assert other.load_start_ns is not None
    return record.load_start_ns < other.load_end_ns and other.load_start_ns < record.load_end_ns


def records(lab: Lab) -> list[Record]:
    return list(load_run(lab.run).records.values())


def test_cells_that_sleep_run_side_by_side(lab: Lab) -> None:
    report = lab.report("sweep", "sync", "1,2,4", *SLOW)
    assert [cell["concurrency"] for cell in report["cells"]] == [1, 2, 4]
    first_attempts = [record for record in records(lab) if record.again_cores is None]
    for record, other in combinations(first_attempts, 2):
        assert overlap(record, other)
        assert other.key in record.beside
    assert all(record.key not in record.beside for record in first_attempts)
    # Cells share no slots: N/R0 is the bound of each (Denning & Buzen 1978). Timers may be 1 ms
    # early
    for cell in report["cells"]:
        assert cell["throughput_rps"] <= min(cell["concurrency"], 2) / 0.999
    if len(first_attempts) > 1:
        assert "RanSideBySide" in [note["code"] for note in report["notes"]]


def test_each_cell_counts_drops_of_its_own_sockets(lab: Lab) -> None:
    """One server with a full accept queue, one without: the counters of the network namespace
    include both."""
    args = ("--workers", "1", "--sleep", "0.5", "--rounds", "2", "--backlog", "1,64")
    full, roomy = lab.sweep("sync", "8", *args, "--tool", "fast")
    assert (full["backlog"], roomy["backlog"]) == (1, 64)
    record, other = records(lab)
    assert overlap(record, other)
    counters = read_observations(lab.run / "raw" / other.key).counters
    assert (counters.listen_overflows or 0) > 0  # of the other cell
    assert full["kernel"]["socket_drops"] > 0
    assert roomy["kernel"]["socket_drops"] == 0
    for cell in (full, roomy):  # cannot be attributed to a cell
        assert cell["kernel"]["listen_overflows"] is None
        assert cell["kernel"]["syn_retransmits"] is None
    assert "HandshakesDropped" in json.dumps(full["reason"])
    assert "handshakes" not in json.dumps(roomy["reason"])


def test_the_first_cell_of_a_custom_app_runs_alone_even_with_jobs(lab: Lab) -> None:
    """It predicts the others."""
    (lab.place / "own.py").write_text(app_text("sync", wait_s=0.5))
    load = ("--workers", "2", "--rounds", "3", "--tool", "fast", "--app", "own:app")
    lab.sweep("sync", "1,2,4", *load, "--jobs", "3")
    first, *others = records(lab)
    assert first.beside == ()
    assert overlap(*others)
    assert any(other.beside for other in others)
    assert not any(overlap(first, other) for other in others)


def sweep_in_all_loads(lab: Lab) -> subprocess.Popen[str]:
    return lab.at_work(
        *("sweep", "sync", "1,2", *SLOW),
        when=lambda: lab.loads() == 2,
        what="the loads of all cells",
    )


def test_an_interrupt_ends_all_cells(lab: Lab) -> None:
    result = lab.end(sweep_in_all_loads(lab), signal.SIGINT)
    assert result.code == 130, result.err
    assert "--resume" in result.err
    assert "Traceback" not in result.err
    assert not processes(str(lab.place))
    faults = [record.fault and record.fault.kind for record in records(lab)]
    assert faults == ["interrupted"] * 2
    cells = lab.sweep("--resume", str(lab.run))
    assert [cell["concurrency"] for cell in cells] == [1, 2]
    assert all(cell["throughput_rps"] for cell in cells)


def test_an_interrupt_while_servers_start_ends_all_cells(lab: Lab) -> None:
    process = lab.at_work(
        *("sweep", "sync", "1,2,4", *SLOW),
        when=lambda: list(lab.place.glob("results/*/raw/*/server.log")),
        what="the first server starts",
    )
    result = lab.end(process, signal.SIGINT)
    assert result.code == 130, result.err
    assert "Traceback" not in result.err
    assert not processes(str(lab.place))


def test_sigkill_of_the_harness_ends_all_cells(lab: Lab) -> None:
    lab.end(sweep_in_all_loads(lab), signal.SIGKILL)
    until(lambda: not processes(str(lab.place)), "everything gone")


def test_a_failed_cell_does_not_affect_others(lab: Lab) -> None:
    process = sweep_in_all_loads(lab)
    os.kill(lab.workers()[0], signal.SIGKILL)
    result = lab.finish(process)
    assert result.code == 1, result.err
    faults = [record.fault.kind for record in records(lab) if record.fault]
    assert faults == ["server"]
