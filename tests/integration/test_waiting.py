"""Where requests wait, for real: each class's way of making them wait, by all three witnesses."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest

from tests.integration.conftest import LIMITED, LIMITED_N, Lab, Sweep, retry_if_disturbed

# Of the whole. Where the tool does not name its requests, the accept queue is sampled: a busy
# machine leaves few samples, and one of a moment between two requests counts until the next
UNEXPLAINED = {"fast": 0.05, "ab": 0.1, "wrk": 0.1, "h2load": 0.1, "oha": 0.1}
PARTS = ("connect", "accept_queue", "in_worker", "service", "transfer")
# Few rounds: the longer the overload lasts, the longer clients wait before they try again
FULL = ("--workers", "2", "--sleep", "0.3", "--rounds", "2")
pytestmark = pytest.mark.counters
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's queue is seen on Linux")


def installed(tool: str) -> None:
    if tool != "fast" and shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")


def assert_adds_up(cell: dict[str, Any]) -> float:
    """The whole in ms. No known part is negative; with what is unattributed they are the whole."""
    split = cell["waiting_split_ms"]
    assert all(split[part] is None or split[part] >= 0 for part in PARTS), split
    whole = sum(value for value in split.values() if value is not None)
    assert whole > 0
    return float(whole)


@ON_LINUX
@pytest.mark.parametrize("tool", UNEXPLAINED)
@pytest.mark.classes("sync")
def test_sync_waits_in_the_accept_queue(limited: Sweep, tool: str) -> None:
    installed(tool)
    (cell,) = (row for row in limited.cells if row["tool"] == tool)
    split, whole = cell["waiting_split_ms"], assert_adds_up(cell)
    # 8 wait; at the moment when 2 more are answered and ask again, before they are accepted, 10 do.
    # wrk first makes one more, to see whether anybody listens, and closes it
    most = LIMITED_N + (tool == "wrk")
    assert LIMITED_N - LIMITED.workers <= cell["kernel"]["accept_queue_max"] <= most
    assert cell["kernel"]["accept_queue_limit"] == 2048
    # Little's law; a worker that others keep from a core makes both sides of it larger
    waiting_ms = 1e3 * (LIMITED_N - LIMITED.workers) / cell["throughput_rps"]
    assert split["accept_queue"] == pytest.approx(waiting_ms, rel=0.1)
    times_connects = tool in ("fast", "ab")
    assert split["connect"] < 0.05 * whole if times_connects else split["connect"] is None
    assert cell["split_exact"] is (tool == "fast")
    assert abs(split["unattributed"]) < UNEXPLAINED[tool] * whole
    assert "accept queue" in cell["diagnosis"]["text"]


@ON_LINUX
@pytest.mark.classes("gthread")
def test_gthread_waits_inside_its_workers(closed_and_kept: Sweep) -> None:
    (cell,) = (row for row in closed_and_kept.cells if not row["keepalive"])
    split, whole = cell["waiting_split_ms"], assert_adds_up(cell)
    assert split["accept_queue"] < 0.05 * whole
    assert split["in_worker"] > 0.25 * whole  # 4 slots for 6: a third, if dealt evenly
    assert abs(split["unattributed"]) < 0.05 * whole


@ON_LINUX
@pytest.mark.classes("gthread")
def test_ab_finds_the_same(lab: Lab) -> None:
    installed("ab")
    args = ("--workers", "2", "--threads", "2", "--sleep", "1", "--rounds", "2", "--tool", "ab")
    (cell,) = lab.sweep("gthread", "16", *args)
    split, whole = cell["waiting_split_ms"], assert_adds_up(cell)
    assert split["accept_queue"] < 0.05 * whole
    assert split["in_worker"] > 0.5 * whole  # 4 slots for 16: three quarters, if dealt evenly
    assert abs(split["unattributed"]) < UNEXPLAINED["ab"] * whole


@ON_LINUX
@pytest.mark.parametrize("tool", ["ab", "fast"])
@pytest.mark.classes("sync", "gthread", "gevent", "eventlet")
def test_nothing_is_left_unexplained(limited: Sweep, tool: str) -> None:
    installed(tool)
    (cell,) = (row for row in limited.cells if row["tool"] == tool)
    split = cell["waiting_split_ms"]
    assert abs(split["unattributed"]) < UNEXPLAINED[tool] * assert_adds_up(cell), split
    assert None not in split.values()


@ON_LINUX
@pytest.mark.classes("sync")
def test_a_full_queue_shows_at_connect(lab: Lab) -> None:
    """The same overload twice: hidden in the accept queue, and thrown back at the client."""
    hidden, thrown = lab.sweep("sync", "16", *FULL, "--backlog", "2048,2", "--tool", "fast")
    assert hidden["verdict"] == "saturated"
    assert hidden["kernel"]["socket_drops"] == 0
    assert (thrown["verdict"], thrown["kernel"]["accept_queue_limit"]) == ("saturated", 2)
    assert thrown["kernel"]["socket_drops"] > 0
    assert thrown["connect_ms"]["p99"] >= 990
    assert thrown["waiting_split_ms"]["connect"] > 0


@ON_LINUX
@pytest.mark.classes("sync")
def test_ab_survives_a_full_queue(lab: Lab) -> None:
    """With its own timeout it would give up without a report. Connections it has no request left
    for keep the workers waiting in vain, here for five seconds instead of Gunicorn's thirty."""
    installed("ab")
    (lab.place / "brisk.py").write_text("timeout = 5\n")
    args = ("--backlog", "2", "--tool", "ab", "--config", str(lab.place / "brisk.py"))
    (cell,) = lab.sweep("sync", "16", *FULL, *args)
    assert cell["verdict"] == "saturated"
    assert cell["kernel"]["syn_retransmits"] > 0
    assert cell["failed"] == sum(cell["errors"].values())


@ON_LINUX
@pytest.mark.classes("gthread")
def test_kept_connections_are_predicted_by_their_split(lab: Lab) -> None:
    """What a worker's threads can serve of its own, and no more."""
    installed("wrk")
    # Dealt unevenly, 10 leave slots idle
    args = ("10", "--workers", "2", "--threads", "4", "--sleep", "2", "--rounds", "2")

    def working(cell: dict[str, Any]) -> int:
        return sum(min(held, 4) for held in cell["connections_per_worker"].values())

    # A busy machine takes some of what the law allows; one that stood still takes more
    cells = retry_if_disturbed(
        lab,
        lambda: lab.sweep("gthread", *args, "--keepalive", "on", "--tool", "wrk,fast"),
        lambda cells: all(cell["throughput_rps"] > 0.5 * working(cell) / 2 for cell in cells),
    )
    assert len(cells) == 2
    for cell in cells:
        assert sum(cell["connections_per_worker"].values()) == cell["concurrency"]
        split_rps, served_rps = cell["bound_rps"] * working(cell) / 8, cell["throughput_rps"]
        if cell["split_prediction_rps"] is None:  # the lone request took longer than all others
            assert served_rps > split_rps
        else:
            assert cell["split_prediction_rps"] == pytest.approx(split_rps, rel=1e-3)
        assert 0.5 * working(cell) / 2 < served_rps <= 1.001 * working(cell) / 2


BLOCKING = ("6", "--workers", "2", "--sleep", "0.3", "--rounds", "2", "--tool", "fast")


def assert_called_blocked(lab: Lab, *args: str) -> None:
    """One request per worker at a time."""

    (cell,) = retry_if_disturbed(
        lab,
        lambda: lab.sweep(*args),
        lambda cells: cells[0]["diagnosis"]["code"] == "BlockedLoop",
    )
    assert cell["diagnosis"]["code"] == "BlockedLoop"
    assert cell["slots_measured"] == 2


@pytest.mark.classes("asgi")  # the corpus of tests/diagnosis has uvicorn and gevent
def test_a_blocked_loop_is_called_one(lab: Lab, worker_class: str) -> None:
    assert_called_blocked(lab, worker_class, *BLOCKING, "--app", "@blocking_asgi")


@pytest.mark.classes("gevent")
def test_late_patching_is_called_so(lab: Lab) -> None:
    (lab.place / "preload.py").write_text("preload_app = True\n")
    args = ("--app", "@imported_sleep", "--config", str(lab.place / "preload.py"))
    assert_called_blocked(lab, "gevent", *BLOCKING, *args)


@pytest.mark.classes("gevent", "eventlet")
def test_an_imported_sleep_is_no_trap_without_preloading(lab: Lab, worker_class: str) -> None:
    (cell,) = retry_if_disturbed(
        lab,
        lambda: lab.sweep(worker_class, *BLOCKING, "--app", "@imported_sleep"),
        lambda cells: cells[0]["slots_measured"] == 6,
    )
    assert cell["slots_measured"] == 6
