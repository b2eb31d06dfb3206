"""Cells side by side: they run at the same time and say so, each keeps to itself what the kernel
counts, and however the lab ends, all of them end with it."""

from __future__ import annotations

import json
import signal
import subprocess
from itertools import combinations

import pytest

from tests.integration.conftest import LONG_S, Lab, processes, send, until
from workerlab.model import Record
from workerlab.observe.observations import read_observations
from workerlab.run_store import load as load_run

pytestmark = pytest.mark.once
# Far from what the cores can do, whatever else runs
LEAST_S = 0.999  # a timer may fire so much before its time
SLOW = ("--workers", "2", "--sleep", "1", "--rounds", "3", "--tool", "fast")


def overlap(record: Record, other: Record) -> bool:
    assert record.load_end_ns is not None
    assert other.load_start_ns is not None
    return record.load_start_ns < other.load_end_ns and other.load_start_ns < record.load_end_ns


def records(lab: Lab) -> list[Record]:
    return list(load_run(lab.run).records.values())


def test_cells_that_sleep_run_side_by_side(lab: Lab, worker_class: str) -> None:
    done = lab("sweep", worker_class, "1,2,4", *SLOW, "--format", "json")
    assert done.code == 0, done.err
    assert [cell["concurrency"] for cell in done.report["cells"]] == [1, 2, 4]
    kept = [record for record in records(lab) if record.again_cores is None]
    for record, other in combinations(kept, 2):
        assert overlap(record, other)
        assert other.key in record.beside
    assert all(record.key not in record.beside for record in kept)
    # Between them they took no slot from each other: N/R0 and no more (Denning & Buzen 1978)
    for cell in done.report["cells"]:
        assert cell["throughput_rps"] <= min(cell["concurrency"], 2) / LEAST_S
    if len(kept) > 1:
        assert "RanSideBySide" in [note["code"] for note in done.report["notes"]]


def test_one_after_the_other_where_that_is_asked_for(lab: Lab, worker_class: str) -> None:
    words = ("--workers", "1", "--sleep", "0.1", "--rounds", "2", "--tool", "fast", "--jobs", "1")
    assert lab("sweep", worker_class, "1,2", *words).code == 0
    record, other = records(lab)
    assert not overlap(record, other)
    assert record.beside == other.beside == ()


def test_each_counts_the_drops_of_its_own_sockets(lab: Lab, worker_class: str) -> None:
    """A server whose accept queue is full, and beside it one whose is not: the kernel's namespace
    has the drops of both."""
    words = ("--workers", "1", "--sleep", "0.5", "--rounds", "2", "--backlog", "1,64")
    done = lab("sweep", worker_class, "8", *words, "--tool", "fast", "--format", "json")
    assert done.code == 0, done.err
    full, roomy = done.report["cells"]
    assert (full["backlog"], roomy["backlog"]) == (1, 64)
    record, other = records(lab)
    assert overlap(record, other)
    counters = read_observations(lab.run / "raw" / other.key).counters
    assert (counters.listen_overflows or 0) > 0  # what its cell would be blamed for
    assert full["kernel"]["socket_drops"] > 0
    assert roomy["kernel"]["socket_drops"] == 0
    for cell in (full, roomy):  # whose those are cannot be told
        assert cell["kernel"]["listen_overflows"] is None
        assert cell["kernel"]["syn_retransmits"] is None
    assert "HandshakesDropped" in json.dumps(full["reason"])
    assert "handshakes" not in json.dumps(roomy["reason"])


OWN = """
import time

def app(environ, start_response):
    time.sleep(0.5)
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
"""


@pytest.mark.parametrize(("words", "together"), [((), False), (("--jobs", "3"), True)])
def test_an_app_of_the_users_has_the_machine_for_itself_unless_asked(
    lab: Lab, worker_class: str, words: tuple[str, ...], together: bool
) -> None:
    """And then, too, for its first cell, from which the others are predicted."""
    (lab.place / "own.py").write_text(OWN)
    load = ("--workers", "2", "--rounds", "3", "--tool", "fast", "--app", "own:app")
    done = lab("sweep", worker_class, "1,2,4", *load, *words)
    assert done.code == 0, done.err
    first, *others = records(lab)
    assert first.beside == ()
    assert overlap(*others) == together
    assert not any(overlap(first, other) for other in others)


def both_loaded(lab: Lab, worker_class: str) -> subprocess.Popen[str]:
    process = lab.start("sweep", worker_class, "1,2,4", *SLOW)

    def loads() -> bool:
        assert process.poll() is None, process.communicate()[1]
        return len(list((lab.place / "results").glob("*/raw/*/tool/stdout"))) == 3

    try:
        until(loads, "the loads of all cells")
    except BaseException:
        process.kill()
        raise
    return process


def resumed(lab: Lab) -> None:
    done = lab("sweep", "--resume", str(lab.run), "--format", "json")
    assert done.code == 0, done.err
    assert [cell["concurrency"] for cell in done.report["cells"]] == [1, 2, 4]
    assert all(cell["throughput_rps"] for cell in done.report["cells"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_of_them(
    lab: Lab, worker_class: str, number: signal.Signals, code: int
) -> None:
    process = both_loaded(lab, worker_class)
    send(process.pid, number)
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == code, err
    assert "--resume" in err
    assert "Traceback" not in err
    assert not processes(str(lab.place))
    faults = [record.fault and record.fault.kind for record in records(lab)]
    assert faults == ["interrupted"] * 3
    if number == signal.SIGINT:
        resumed(lab)


def test_a_signal_while_they_start_ends_all_of_them(lab: Lab, worker_class: str) -> None:
    process = lab.start("sweep", worker_class, "1,2,4", *SLOW)
    place = lab.place / "results"
    until(lambda: list(place.glob("*/raw/*/server.log")), "the first server starts")
    send(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not processes(str(lab.place))


def test_sigkill_leaves_none_of_them(lab: Lab, worker_class: str) -> None:
    process = both_loaded(lab, worker_class)
    process.kill()
    process.communicate(timeout=LONG_S)
    until(lambda: not processes(str(lab.place)), "everything gone")
    resumed(lab)


def test_one_that_fails_leaves_the_others_alone(lab: Lab, worker_class: str) -> None:
    process = both_loaded(lab, worker_class)
    killed = lab.workers()[0]
    send(killed, signal.SIGKILL)
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == 1, err
    faults = {record.fault.kind for record in records(lab) if record.fault}
    assert faults == {"server"}
    assert sum(record.fault is not None for record in records(lab)) == 1
