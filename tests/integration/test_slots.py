"""Slots, knee and proof of each class on real servers, measured with each tool."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest
from gunicorn.workers import SUPPORTED_WORKERS

from tests.integration.conftest import (
    LIMITED_N,
    LIMITED_ROUNDS,
    LIMITED_SLEEP_S,
    Lab,
    Sweep,
    limited_server,
)
from workerlab.analysis.knee import MAX_HALF_SHARE, ONE_LEVEL
from workerlab.analysis.series import REACHED_SHARE
from workerlab.server.worker_classes import class_named, configured_slots

MIN_SLEEP_S = LIMITED_SLEEP_S - 0.001  # a timer may fire 1 ms early
TOOLS = pytest.mark.parametrize("tool", ["fast", "ab", "wrk", "h2load", "oha"])


def of_tool(results: list[dict[str, Any]], tool: str) -> dict[str, Any]:
    by_tool = {row["tool"]: row for row in results}
    if tool not in by_tool:
        pytest.skip(f"{tool} is not installed, or cannot renew connections")
    return by_tool[tool]


def slots_of(worker_class: str) -> int | None:
    return configured_slots(limited_server(worker_class))


@TOOLS
def test_measured_slots_match_the_class(limited: Sweep, worker_class: str, tool: str) -> None:
    series = of_tool(limited.report["classes"], tool)
    assert series["slots_configured"] == slots_of(worker_class)
    assert series["slots_measured"] == (slots_of(worker_class) or LIMITED_N)
    assert of_tool(limited.cells, tool)["slots_measured"] == series["slots_measured"]


@TOOLS
def test_no_number_is_impossible(limited: Sweep, worker_class: str, tool: str) -> None:
    """Requests hold a slot and clients wait at least as long as the app sleeps; counts of workers
    and client agree (or the cell would be invalid).

    The mean response may be shorter than the mean service: a worker ends its span when the app
    returns, after the client may have received the response.
    """
    cell = of_tool(limited.cells, tool)
    used_slots = min(LIMITED_N, slots_of(worker_class) or LIMITED_N)
    assert 0 < cell["throughput_rps"] <= used_slots / MIN_SLEEP_S
    assert cell["service_ms"]["mean"] >= 1000 * MIN_SLEEP_S
    if tool == "wrk":  # has a fixed duration, and no mean of real requests
        return
    assert cell["response_ms"]["mean"] >= 1000 * MIN_SLEEP_S
    assert cell["failed"] == 0
    assert cell["requests"] == 1 + LIMITED_ROUNDS * LIMITED_N
    assert sum(cell["requests_per_worker"].values()) == cell["requests"]


@TOOLS
def test_only_limited_classes_are_saturated(limited: Sweep, worker_class: str, tool: str) -> None:
    if slots_of(worker_class):
        assert of_tool(limited.cells, tool)["verdict"] == "saturated"
        return
    # On a busy machine requests may wait without a limit; then the single level is inconclusive,
    # which the cell and the class report
    cell, series = of_tool(limited.cells, tool), of_tool(limited.report["classes"], tool)
    assert series["knee"] is None
    note = series["knee_note"]
    if cell["verdict"] == "inconclusive":
        assert note["text"] == "unknown: every cell is inconclusive"
        assert cell["throughput_rps"] < REACHED_SHARE * LIMITED_N / MIN_SLEEP_S
    elif note["code"] == "KneeDoubtful":
        taken = {"CoresTaken", "CoresStolen"} & {finding["code"] for finding in cell["findings"]}
        assert taken or cell["throughput_half_rps"] > MAX_HALF_SHARE * cell["throughput_rps"]
    else:
        one_level = note["values"].get("why") == ONE_LEVEL
        assert note["code"] == "KneeAbove" or (note["code"] == "KneeAtLeast" and one_level)


@pytest.mark.once
def test_figures_of_ab_equal_its_output(limited: Sweep) -> None:
    cell = of_tool(limited.cells, "ab")
    (stdout,) = limited.lab.run.glob("raw/*-ab-*/tool/stdout")
    output = stdout.read_text()

    def figure(pattern: str) -> float:
        match = re.search(pattern, output)
        assert match is not None, output
        return float(match[1])

    assert cell["ab"]["time_taken_s"] == figure(r"Time taken for tests: +([\d.]+)")
    assert cell["ab"]["time_per_request_s"] == pytest.approx(
        figure(r"Time per request: +([\d.]+) \[ms\] \(mean\)") / 1000
    )
    assert cell["ab"]["html_transferred_bytes"] == figure(r"HTML transferred: +(\d+)")
    assert cell["ab_total_ms"]["max"] == figure(r"Total: .* (\d+)")
    assert cell["ab_waiting_ms"]["sd"] == figure(r"Waiting: +\d+ +\d+ +([\d.]+)")
    evidence = (item for finding in limited.report["findings"] for item in finding["evidence"])
    assert "AbIdentities" in [item["code"] for item in evidence]  # even if disturbed


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
@pytest.mark.classes("asgi")
def test_h2load_requires_responses_that_announce_the_end_of_a_connection(lab: Lab) -> None:
    """Without keep-alive, asgi closes connections but omits the header Connection: close."""
    args = ("asgi", "4", "--sleep", "0.1", "--rounds", "4", "--tool", "h2load")
    without_keepalive, with_keepalive = lab.sweep(*args, "--keepalive", "off,on", code=1)
    assert without_keepalive["verdict"] == "invalid"
    assert "use --keepalive on or another tool" in without_keepalive["reason"]["text"]
    assert (with_keepalive["failed"], with_keepalive["requests"]) == (0, 17)


def test_the_server_proves_its_configuration(limited: Sweep, worker_class: str) -> None:
    row, server = class_named(worker_class), limited_server(worker_class)
    patching = {"gevent", "eventlet"} & {*row.packages}
    # The configuration file of uvicorn defines its own class
    classes = {"uvicorn": "__config__.PinnedUvicornWorker", **SUPPORTED_WORKERS}
    for record in limited.lab.records():
        proof = record["proof"]
        assert proof["worker_class"] == classes[worker_class]
        assert proof["patched"] == next(iter(patching), None)
        assert proof["workers"] == server.workers
        assert proof["threads"] == (server.threads if worker_class == "gthread" else 1)
        assert proof["worker_connections"] == server.worker_connections
        assert proof["backlog"] == 2048
        assert proof["timeout_s"] > 1
        assert proof["gunicorn"] == "25.3.0"
        assert len(record["worker_pids"]) == server.workers
        assert (proof["event_loop"] is not None) == (row.loop or worker_class == "tornado")
        # asgi listens again, with its own backlog
        assert proof["accept_queue_limit"] == (100 if worker_class == "asgi" else 2048)
