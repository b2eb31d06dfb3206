"""When each connection was accepted and what each request is called, in a real server of every
class; with connections kept alive and without."""

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
    answering_app,
    kept,
    settled,
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
class Swept:
    """One cell: what the workers recorded (`load`: of the requests the client named) and what
    the client says."""

    proof: dict[str, object]
    spans: tuple[Span, ...]
    measurement: Measurement

    @property
    def load(self) -> list[Span]:
        return [span for span in self.spans if span.request_id is not None]


@pytest.fixture(scope="module")
def cells(closed_and_kept: Sweep) -> dict[bool, Swept]:
    """By keep-alive."""
    by_loop, lab = {}, closed_and_kept.lab
    for record in lab.records():
        raw = lab.run / "raw" / record["key"]
        output = tool_output(raw, TOOLS["fast"].OUTPUT_FILES, record["exit_code"])
        swept = Swept(record["proof"], read_spans(raw).spans, TOOLS["fast"].parse(output))
        by_loop[kept(record)] = swept
    return by_loop


@pytest.fixture(params=[False, True], ids=["closed", "kept"])
def swept(request: pytest.FixtureRequest, cells: dict[bool, Swept]) -> Swept:
    return cells[bool(request.param)]


def test_every_accept_is_timed_and_comes_before_the_app(swept: Swept) -> None:
    """Of the readiness and warm-up requests, too, which have no name."""
    assert swept.proof["accept_timed"] is True
    assert len(swept.spans) > REQUESTS
    for span in swept.spans:
        assert span.accept_ns <= span.start_ns


def test_every_request_is_found_by_its_name(swept: Swept) -> None:
    assert swept.measurement.failed == 0
    names = [timing.request_id for timing in swept.measurement.timings]
    assert sorted(names, key=str) == sorted(map(str, range(1, REQUESTS + 1)))
    assert Counter(names) == Counter(span.request_id for span in swept.load)


def test_a_new_connection_is_accepted_after_its_client_began(swept: Swept) -> None:
    """Both clocks are one."""
    spans = {span.request_id: span for span in swept.load}
    for timing in swept.measurement.timings:
        span, origin_ns = spans[timing.request_id], swept.measurement.origin_ns
        assert span.accept_ns is not None
        began_ns = origin_ns + round(1e9 * timing.start_s)
        assert began_ns < span.start_ns < began_ns + 1e9 * timing.end_s
        if not timing.reused:
            assert began_ns < span.accept_ns


def test_requests_of_one_connection_bear_one_accept(swept: Swept) -> None:
    accepts = {(span.pid, span.accept_ns) for span in swept.load}
    assert len(accepts) == sum(not timing.reused for timing in swept.measurement.timings)


def test_connections_are_kept_where_the_class_keeps_them(
    cells: dict[bool, Swept], worker_class: str
) -> None:
    reused = {
        keepalive: sum(timing.reused for timing in swept.measurement.timings)
        for keepalive, swept in cells.items()
    }
    assert reused[False] == 0
    if worker_class == "sync":
        assert reused[True] == 0
    else:
        assert reused[True] > REQUESTS / 2
        assert len(cells[True].measurement.connects_s) < REQUESTS / 2


# --- one server -----------------------------------------------------------------------------

NAME = {"X-Workerlab-Request": "sixteen-letters-"}


def ask(server: Running, headers: dict[str, str], port: int = 0) -> bytes:
    """The body, asked for from `port`, which is free again at once: the client resets."""
    connection = http.client.HTTPConnection(
        server.host, server.port, timeout=LONG_S, source_address=("127.0.0.1", port)
    )
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        connection.request(
            "GET", "/environ", headers={"Host": "lab", "Connection": "close", **headers}
        )
        return connection.getresponse().read()
    finally:
        connection.close()


def test_the_app_sees_its_request_and_nothing_of_ours(
    answering: Running, serve: Serve, worker_class: str
) -> None:
    """The same environ or scope with the probe as without it; ports differ."""

    def environ(server: Running) -> str:
        port = free_port()
        body = ask(server, NAME, port).decode()
        return body.replace(str(port), "OURS").replace(str(server.port), "PORT")

    with_probe = environ(answering)
    assert settled(answering)[-1].request_id == "sixteen-letters-"
    with serve(answering_app(worker_class), records=0, named=True) as without_probe:
        assert environ(without_probe) == with_probe
    assert "sixteen-letters-" in with_probe


def test_the_newest_connection_of_a_port_counts(answering: Running, worker_class: str) -> None:
    port, began = free_port(), []
    before = len(settled(answering))
    for _ in range(5):
        began.append(time.monotonic_ns())
        ask(answering, {}, port)
    new = settled(answering)[before:]
    # Unknown rather than wrong: uvicorn believes a local proxy's header, the others show the
    # connection as it is
    ask(answering, {"X-Forwarded-For": "10.1.2.3"})
    proxied = settled(answering)[-1]
    assert len(new) == 5
    for began_ns, span in zip(began, new, strict=True):
        assert began_ns < span.accept_ns <= span.start_ns
    assert (proxied.accept_ns is None) == (worker_class == "uvicorn")


@pytest.mark.classes(*ASGI_CLASSES)
def test_uvloop_accepts_where_nobody_can_look(serve: Serve) -> None:
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    with serve(answering_app("asgi"), env=(("ASGI_LOOP", "uvloop"),)) as server:
        assert {proof["accept_timed"] for proof in server.proofs.values()} == {False}
        assert {span.accept_ns for span in settled(server)} == {None}
