"""Where requests wait, per worker class, by client, workers and kernel."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest

from tests.integration.conftest import LIMITED, LIMITED_N, Lab, Sweep, retry_if_disturbed

# Share of the response time. Unless the tool sends request ids, the accept queue is sampled: a busy
# machine has few samples, and one taken between two requests counts until the next one
UNEXPLAINED = {"fast": 0.05, "ab": 0.1, "wrk": 0.1, "h2load": 0.1, "oha": 0.1}
PARTS = ("connect", "accept_queue", "in_worker", "service", "transfer")
# Few rounds: clients of a long overload wait longer before they try again
FULL = ("--workers", "2", "--sleep", "0.3", "--rounds", "2")
pytestmark = pytest.mark.counters
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the queue is observed on Linux")


def skip_unless_installed(tool: str) -> None:
    if tool != "fast" and shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")


def cell_of(sweep: Sweep, tool: str) -> dict[str, Any]:
    skip_unless_installed(tool)
    (cell,) = (cell for cell in sweep.cells if cell["tool"] == tool)
    return cell


def total_ms(cell: dict[str, Any]) -> float:
    """The sum of the split, whose parts must not be negative, except for the unattributed one."""
    split = cell["waiting_split_ms"]
    assert all(split[part] is None or split[part] >= 0 for part in PARTS), split
    total = sum(value for value in split.values() if value is not None)
    assert total > 0
    return float(total)


@ON_LINUX
@pytest.mark.parametrize("tool", UNEXPLAINED)
@pytest.mark.classes("sync")
def test_sync_waits_in_the_accept_queue(limited: Sweep, tool: str) -> None:
    cell = cell_of(limited, tool)
    split, total = cell["waiting_split_ms"], total_ms(cell)
    # 8 connections wait, or 10 just after 2 responses. wrk opens and closes one more first, to see
    # whether the server listens
    max_length = LIMITED_N + (tool == "wrk")
    assert LIMITED_N - LIMITED.workers <= cell["kernel"]["accept_queue_max"] <= max_length
    assert cell["kernel"]["accept_queue_limit"] == 2048
    # Little's law, which a worker that waits for a core does not change
    waiting_ms = 1e3 * (LIMITED_N - LIMITED.workers) / cell["throughput_rps"]
    assert split["accept_queue"] == pytest.approx(waiting_ms, rel=0.1)
    times_connects = tool in ("fast", "ab")
    assert split["connect"] < 0.05 * total if times_connects else split["connect"] is None
    assert cell["split_exact"] is (tool == "fast")
    assert abs(split["unattributed"]) < UNEXPLAINED[tool] * total
    assert "accept queue" in cell["diagnosis"]["text"]


@ON_LINUX
@pytest.mark.classes("gthread")
def test_gthread_waits_inside_its_workers(closed_and_kept: Sweep) -> None:
    (cell,) = (cell for cell in closed_and_kept.cells if not cell["keepalive"])
    split, total = cell["waiting_split_ms"], total_ms(cell)
    assert split["accept_queue"] < 0.05 * total
    assert split["in_worker"] > 0.25 * total  # 4 slots for 6: a third, if evenly distributed
    assert abs(split["unattributed"]) < 0.05 * total


@ON_LINUX
@pytest.mark.classes("gthread")
def test_ab_also_shows_that_gthread_waits_inside_its_workers(lab: Lab) -> None:
    skip_unless_installed("ab")
    args = ("--workers", "2", "--threads", "2", "--sleep", "1", "--rounds", "2", "--tool", "ab")
    (cell,) = lab.sweep("gthread", "16", *args)
    split, total = cell["waiting_split_ms"], total_ms(cell)
    assert split["accept_queue"] < 0.05 * total
    assert split["in_worker"] > 0.5 * total  # 4 slots for 16: 3/4, if evenly distributed
    assert abs(split["unattributed"]) < UNEXPLAINED["ab"] * total


@ON_LINUX
@pytest.mark.parametrize("tool", ["ab", "fast"])
@pytest.mark.classes("sync", "gthread", "gevent", "eventlet")
def test_the_whole_response_time_is_attributed(limited: Sweep, tool: str) -> None:
    cell = cell_of(limited, tool)
    split = cell["waiting_split_ms"]
    assert abs(split["unattributed"]) < UNEXPLAINED[tool] * total_ms(cell), split
    assert None not in split.values()


@ON_LINUX
@pytest.mark.classes("sync")
def test_a_full_accept_queue_delays_connect(lab: Lab) -> None:
    """The same overload with a long and with a short queue."""
    long, short = lab.sweep("sync", "16", *FULL, "--backlog", "2048,2", "--tool", "fast")
    assert long["verdict"] == "saturated"
    assert long["kernel"]["socket_drops"] == 0
    assert (short["verdict"], short["kernel"]["accept_queue_limit"]) == ("saturated", 2)
    assert short["kernel"]["socket_drops"] > 0
    assert short["connect_ms"]["p99"] >= 990
    assert short["waiting_split_ms"]["connect"] > 0


@ON_LINUX
@pytest.mark.classes("sync")
def test_ab_reports_a_full_accept_queue(lab: Lab) -> None:
    """With its default timeout, ab would exit without a report. Workers wait for requests on the
    connections that ab no longer uses: here for 5 s instead of Gunicorn's 30."""
    skip_unless_installed("ab")
    (lab.place / "short_timeout.py").write_text("timeout = 5\n")
    args = ("--backlog", "2", "--tool", "ab", "--config", str(lab.place / "short_timeout.py"))
    (cell,) = lab.sweep("sync", "16", *FULL, *args)
    assert cell["verdict"] == "saturated"
    assert cell["kernel"]["syn_retransmits"] > 0
    assert cell["failed"] == sum(cell["errors"].values())


@ON_LINUX
@pytest.mark.classes("gthread")
def test_the_distribution_of_kept_connections_predicts_throughput(lab: Lab) -> None:
    """The threads of a worker serve only its own connections."""
    skip_unless_installed("wrk")
    # Unevenly distributed, 10 connections leave slots idle
    args = ("10", "--workers", "2", "--threads", "4", "--sleep", "2", "--rounds", "2")

    def busy_threads(cell: dict[str, Any]) -> int:
        return sum(min(n, 4) for n in cell["connections_per_worker"].values())

    # A busy machine lowers throughput; a pause lowers it further
    cells = retry_if_disturbed(
        lab,
        lambda: lab.sweep("gthread", *args, "--keepalive", "on", "--tool", "wrk,fast"),
        lambda cells: all(cell["throughput_rps"] > 0.5 * busy_threads(cell) / 2 for cell in cells),
    )
    assert len(cells) == 2
    for cell in cells:
        assert sum(cell["connections_per_worker"].values()) == cell["concurrency"]
        predicted_rps = cell["bound_rps"] * busy_threads(cell) / 8
        rps = cell["throughput_rps"]
        if cell["split_prediction_rps"] is None:  # the lone request took longer than all others
            assert rps > predicted_rps
        else:
            assert cell["split_prediction_rps"] == pytest.approx(predicted_rps, rel=1e-3)
        assert 0.5 * busy_threads(cell) / 2 < rps <= 1.001 * busy_threads(cell) / 2


BLOCKING = ("6", "--workers", "2", "--sleep", "0.3", "--rounds", "2", "--tool", "fast")


def assert_blocked_loop(lab: Lab, *args: str) -> None:
    """The diagnosis is a blocked loop, and the workers serve one request each at a time."""
    (cell,) = retry_if_disturbed(
        lab,
        lambda: lab.sweep(*args),
        lambda cells: cells[0]["diagnosis"]["code"] == "BlockedLoop",
    )
    assert cell["diagnosis"]["code"] == "BlockedLoop"
    assert cell["slots_measured"] == 2


@pytest.mark.classes("asgi")  # the corpus of tests/diagnosis has uvicorn and gevent
def test_a_blocked_loop_is_diagnosed(lab: Lab, worker_class: str) -> None:
    assert_blocked_loop(lab, worker_class, *BLOCKING, "--app", "@blocking_asgi")


@pytest.mark.classes("gevent")
def test_late_patching_is_diagnosed_as_a_blocked_loop(lab: Lab) -> None:
    (lab.place / "preload.py").write_text("preload_app = True\n")
    args = ("--app", "@imported_sleep", "--config", str(lab.place / "preload.py"))
    assert_blocked_loop(lab, "gevent", *BLOCKING, *args)


@pytest.mark.classes("gevent", "eventlet")
def test_an_imported_sleep_does_not_block_without_preload(lab: Lab, worker_class: str) -> None:
    (cell,) = retry_if_disturbed(
        lab,
        lambda: lab.sweep(worker_class, *BLOCKING, "--app", "@imported_sleep"),
        lambda cells: cells[0]["slots_measured"] == 6,
    )
    assert cell["slots_measured"] == 6
