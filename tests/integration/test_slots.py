"""Every class, for real: its slots, its knee, its proof; as every tool finds them."""

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

LEAST_S = LIMITED_SLEEP_S - 0.001  # a timer may fire so much before its time
TOOLS = pytest.mark.parametrize("tool", ["fast", "ab", "wrk", "h2load", "oha"])


def of_tool(results: list[dict[str, Any]], tool: str) -> dict[str, Any]:
    by_tool = {row["tool"]: row for row in results}
    if tool not in by_tool:
        pytest.skip(f"{tool} is not installed, or cannot renew connections")
    return by_tool[tool]


def slots_of(worker_class: str) -> int | None:
    return configured_slots(limited_server(worker_class))


@TOOLS
def test_slots_measured_are_the_slots_of_the_class(
    limited: Sweep, worker_class: str, tool: str
) -> None:
    series = of_tool(limited.report["classes"], tool)
    assert series["slots_configured"] == slots_of(worker_class)
    assert series["slots_measured"] == (slots_of(worker_class) or LIMITED_N)
    assert of_tool(limited.cells, tool)["slots_measured"] == series["slots_measured"]


@TOOLS
def test_no_number_is_impossible(limited: Sweep, worker_class: str, tool: str) -> None:
    """A slot is held, and a client waits, at least as long as the app sleeps; the workers saw what
    the client counted (or the cell were invalid).

    That the mean response is longer than the mean service is no law: a worker closes its span
    when the app is through, and by then the client may have had the answer for a while.
    """
    cell = of_tool(limited.cells, tool)
    held = min(LIMITED_N, slots_of(worker_class) or LIMITED_N)
    assert 0 < cell["throughput_rps"] <= held / LEAST_S
    assert cell["service_ms"]["mean"] >= 1000 * LEAST_S
    if tool == "wrk":  # runs for a time, and has no mean of real requests
        return
    assert cell["response_ms"]["mean"] >= 1000 * LEAST_S
    assert cell["failed"] == 0
    assert cell["requests"] == 1 + LIMITED_ROUNDS * LIMITED_N
    assert sum(cell["requests_per_worker"].values()) == cell["requests"]


@TOOLS
def test_saturation(limited: Sweep, worker_class: str, tool: str) -> None:
    if slots_of(worker_class):
        assert of_tool(limited.cells, tool)["verdict"] == "saturated"
        return
    # A busy machine may make requests wait that no limit keeps, and one level alone then says
    # nothing: the cell says so, and with it the class. Where none waited there is no excuse.
    cell, series = of_tool(limited.cells, tool), of_tool(limited.report["classes"], tool)
    assert series["knee"] is None
    note = series["knee_note"]
    if cell["verdict"] == "inconclusive":
        assert note["text"] == "unknown: every cell is inconclusive"
        assert cell["throughput_rps"] < REACHED_SHARE * LIMITED_N / LEAST_S
    elif note["code"] == "KneeDoubtful":  # says so of itself, too
        taken = {"CoresTaken", "CoresStolen"} & {finding["code"] for finding in cell["findings"]}
        assert taken or cell["throughput_half_rps"] > MAX_HALF_SHARE * cell["throughput_rps"]
    else:
        one_level = note["values"].get("why") == ONE_LEVEL
        assert note["code"] == "KneeAbove" or (note["code"] == "KneeAtLeast" and one_level)


@pytest.mark.once
def test_figures_of_ab_are_those_that_it_printed(limited: Sweep) -> None:
    cell = of_tool(limited.cells, "ab")
    (stdout,) = limited.lab.run.glob("raw/*-ab-*/tool/stdout")
    printed = stdout.read_text()

    def figure(pattern: str) -> float:
        match = re.search(pattern, printed)
        assert match is not None, printed
        return float(match[1])

    assert cell["ab"]["time_taken_s"] == figure(r"Time taken for tests: +([\d.]+)")
    assert cell["ab"]["time_per_request_s"] == pytest.approx(
        figure(r"Time per request: +([\d.]+) \[ms\] \(mean\)") / 1000
    )
    assert cell["ab"]["html_transferred_bytes"] == figure(r"HTML transferred: +(\d+)")
    assert cell["ab_total_ms"]["max"] == figure(r"Total: .* (\d+)")
    assert cell["ab_waiting_ms"]["sd"] == figure(r"Waiting: +\d+ +\d+ +([\d.]+)")
    evidence = (item for finding in limited.report["findings"] for item in finding["evidence"])
    assert "AbIdentities" in [item["code"] for item in evidence]  # of a disturbed class, too


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
@pytest.mark.classes("asgi")
def test_h2load_needs_connections_whose_end_is_announced(lab: Lab) -> None:
    """asgi closes a connection without Connection: close in its response; it keeps one as usual."""
    args = ("asgi", "4", "--sleep", "0.1", "--rounds", "4", "--tool", "h2load")
    closed, kept = lab.sweep(*args, "--keepalive", "off,on", code=1)
    assert closed["verdict"] == "invalid"
    assert "use --keepalive on or another tool" in closed["reason"]["text"]
    assert (kept["failed"], kept["requests"]) == (0, 17)


PINNED = {"uvicorn": "__config__.PinnedUvicornWorker"}  # by its configuration file


def test_proof_from_inside_the_server(limited: Sweep, worker_class: str) -> None:
    row, server = class_named(worker_class), limited_server(worker_class)
    patching = {"gevent", "eventlet"} & {*row.packages}
    for record in limited.lab.records():
        proof = record["proof"]
        assert proof["worker_class"] == (PINNED | SUPPORTED_WORKERS)[worker_class]
        assert proof["patched"] == next(iter(patching), None)
        assert proof["workers"] == server.workers
        assert proof["threads"] == (server.threads if worker_class == "gthread" else 1)
        assert proof["worker_connections"] == server.worker_connections
        assert proof["backlog"] == 2048
        assert proof["timeout_s"] > 1
        assert proof["gunicorn"] == "25.3.0"
        assert len(record["worker_pids"]) == server.workers
        assert (proof["event_loop"] is not None) == (row.loop or worker_class == "tornado")
        # the native asgi worker listens again, with a queue of its own length
        assert proof["accept_queue_limit"] == (100 if worker_class == "asgi" else 2048)
