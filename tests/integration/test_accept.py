"""Accept times and request ids in a real server of each class, with and without keep-alive."""

from __future__ import annotations

import http.client
import importlib.util
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from tests.integration.conftest import (
    LONG_S,
    OPEN_N,
    OPEN_ROUNDS,
    Serve,
    Sweep,
    finished_spans,
    is_keepalive,
    sample_app,
)
from workerlab.load.registry import TOOLS
from workerlab.model.evidence import Measurement, Span
from workerlab.observe.spans import read_spans
from workerlab.run_store import tool_output
from workerlab.server.running import Running
from workerlab.server.services import free_port
from workerlab.server.worker_classes import ASGI_CLASSES

REQUESTS = 1 + OPEN_ROUNDS * OPEN_N


# --- a sweep --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CellRecord:
    """The spans of the workers and the measurement of the client in one cell."""

    proof: dict[str, object]
    spans: tuple[Span, ...]
    measurement: Measurement

    @property
    def load(self) -> list[Span]:
        """Without readiness and warm-up requests, which have no id."""
        return [span for span in self.spans if span.request_id is not None]


@pytest.fixture(scope="module")
def cells(closed_and_kept: Sweep) -> dict[bool, CellRecord]:
    """By keep-alive."""
    by_keepalive, lab = {}, closed_and_kept.lab
    for record in lab.records():
        raw = lab.run / "raw" / record["key"]
        output = tool_output(raw, TOOLS["fast"].OUTPUT_FILES, record["exit_code"])
        cell = CellRecord(record["proof"], read_spans(raw).spans, TOOLS["fast"].parse(output))
        by_keepalive[is_keepalive(record)] = cell
    return by_keepalive


@pytest.fixture(params=[False, True], ids=["closed", "kept"])
def cell(request: pytest.FixtureRequest, cells: dict[bool, CellRecord]) -> CellRecord:
    return cells[bool(request.param)]


def test_every_accept_is_timed_and_precedes_the_app(cell: CellRecord) -> None:
    """Including readiness and warm-up requests."""
    assert cell.proof["accept_timed"] is True
    assert len(cell.spans) > REQUESTS
    for span in cell.spans:
        assert span.accept_ns <= span.start_ns


def test_each_request_has_a_span_with_its_id(cell: CellRecord) -> None:
    assert cell.measurement.failed == 0
    ids = [timing.request_id for timing in cell.measurement.timings]
    assert sorted(ids, key=str) == sorted(map(str, range(1, REQUESTS + 1)))
    assert Counter(ids) == Counter(span.request_id for span in cell.load)


def test_a_new_connection_is_accepted_after_its_request_starts(cell: CellRecord) -> None:
    """Client and workers share a clock."""
    spans = {span.request_id: span for span in cell.load}
    for timing in cell.measurement.timings:
        span, origin_ns = spans[timing.request_id], cell.measurement.origin_ns
        assert span.accept_ns is not None
        start_ns = origin_ns + round(1e9 * timing.start_s)
        assert start_ns < span.start_ns < start_ns + 1e9 * timing.end_s
        if not timing.reused:
            assert start_ns < span.accept_ns


def test_requests_on_one_connection_share_its_accept_time(cell: CellRecord) -> None:
    accepts = {(span.pid, span.accept_ns) for span in cell.load}
    assert len(accepts) == sum(not timing.reused for timing in cell.measurement.timings)


def test_all_but_sync_reuse_connections(cells: dict[bool, CellRecord], worker_class: str) -> None:
    reused = {
        keepalive: sum(timing.reused for timing in cell.measurement.timings)
        for keepalive, cell in cells.items()
    }
    assert reused[False] == 0
    if worker_class == "sync":
        assert reused[True] == 0
    else:
        assert reused[True] > REQUESTS / 2
        assert len(cells[True].measurement.connects_s) < REQUESTS / 2


# --- one server -----------------------------------------------------------------------------


def ask(server: Running, headers: dict[str, str], port: int) -> bytes:
    """The body of a response to `port` (0: any), which a reset frees at once."""
    connection = http.client.HTTPConnection(
        server.host, server.port, timeout=LONG_S, source_address=("127.0.0.1", port)
    )
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    headers = {"Host": "lab", "Connection": "close", **headers}
    try:
        connection.request("GET", "/environ", headers=headers)
        return connection.getresponse().read()
    finally:
        connection.close()


def test_apps_do_not_see_the_probe(shared_server: Running, serve: Serve, worker_class: str) -> None:
    """Environ and scope are equal except for the ports."""

    def environ(server: Running) -> str:
        port = free_port()
        body = ask(server, {"X-Workerlab-Request": "sixteen-letters-"}, port).decode()
        return body.replace(str(port), "CLIENT").replace(str(server.port), "PORT")

    with_probe = environ(shared_server)
    assert finished_spans(shared_server)[-1].request_id == "sixteen-letters-"
    with serve(sample_app(worker_class), records=0, named=True) as without_probe:
        assert environ(without_probe) == with_probe
    assert "sixteen-letters-" in with_probe


def test_a_reused_port_has_the_last_accept_time(shared_server: Running, worker_class: str) -> None:
    port, starts_ns = free_port(), []
    before = len(finished_spans(shared_server))
    for _ in range(5):
        starts_ns.append(time.monotonic_ns())
        ask(shared_server, {}, port)
    new = finished_spans(shared_server)[before:]
    # uvicorn trusts the header of a local proxy: then the accept time is unknown, not wrong
    ask(shared_server, {"X-Forwarded-For": "10.1.2.3"}, 0)
    proxied = finished_spans(shared_server)[-1]
    assert len(new) == 5
    for start_ns, span in zip(starts_ns, new, strict=True):
        assert start_ns < span.accept_ns <= span.start_ns
    assert (proxied.accept_ns is None) == (worker_class == "uvicorn")


@pytest.mark.classes(*ASGI_CLASSES)
def test_accept_times_are_unknown_with_uvloop(serve: Serve) -> None:
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    with serve(sample_app("asgi"), env=(("ASGI_LOOP", "uvloop"),)) as server:
        assert {proof["accept_timed"] for proof in server.proofs.values()} == {False}
        assert {span.accept_ns for span in finished_spans(server)} == {None}
