"""When each connection was accepted and what each request is called, in a real server of every
class; with connections kept alive and without."""

from __future__ import annotations

import http.client
import importlib.util
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.integration.conftest import (
    LONG_S,
    OPEN_N,
    OPEN_ROUNDS,
    Serve,
    Sweep,
    kept,
    serve_in,
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

WSGI_APP = """
import json

def app(environ, start_response):
    texts = {name: value for name, value in environ.items() if isinstance(value, str)}
    body = json.dumps([sorted(environ), texts]).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""
ASGI_APP = """
import json

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    headers = sorted((name.decode(), value.decode()) for name, value in scope["headers"])
    texts = {name: value for name, value in scope.items() if isinstance(value, str)}
    body = json.dumps([sorted(scope), dict(headers), texts, scope["client"]]).encode()
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})
"""
NAME = {"X-Workerlab-Request": "sixteen-letters-"}


def app_for(worker_class: str) -> str:
    return ASGI_APP if worker_class in ASGI_CLASSES else WSGI_APP


def ask(server: Running, headers: dict[str, str], port: int = 0) -> bytes:
    """The body, asked for from `port`, which is free again at once: the client resets."""
    connection = http.client.HTTPConnection(
        server.host, server.port, timeout=LONG_S, source_address=("127.0.0.1", port)
    )
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        connection.request("GET", "/", headers={"Host": "lab", "Connection": "close", **headers})
        return connection.getresponse().read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory, worker_class: str) -> Iterator[Running]:
    serve = serve_in(tmp_path_factory.mktemp("accept"), worker_class)
    with serve(app_for(worker_class), named=True) as server:
        yield server


def test_the_app_sees_its_request_and_nothing_of_ours(
    probed: Running, serve: Serve, worker_class: str
) -> None:
    """The same environ or scope with the probe as without it; ports differ."""

    def environ(server: Running) -> str:
        port = free_port()
        body = ask(server, NAME, port).decode()
        return body.replace(str(port), "OURS").replace(str(server.port), "PORT")

    with_probe = environ(probed)
    assert settled(probed)[-1].request_id == "sixteen-letters-"
    with serve(app_for(worker_class), records=0, named=True) as without_probe:
        assert environ(without_probe) == with_probe
    assert "sixteen-letters-" in with_probe


def test_the_newest_connection_of_a_port_counts(probed: Running, worker_class: str) -> None:
    port, began = free_port(), []
    before = len(settled(probed))
    for _ in range(5):
        began.append(time.monotonic_ns())
        ask(probed, {}, port)
    new = settled(probed)[before:]
    # Unknown rather than wrong: uvicorn believes a local proxy's header, the others show the
    # connection as it is
    ask(probed, {"X-Forwarded-For": "10.1.2.3"})
    proxied = settled(probed)[-1]
    assert len(new) == 5
    for began_ns, span in zip(began, new, strict=True):
        assert began_ns < span.accept_ns <= span.start_ns
    assert (proxied.accept_ns is None) == (worker_class == "uvicorn")


@pytest.mark.classes(*ASGI_CLASSES)
def test_uvloop_accepts_where_nobody_can_look(serve: Serve) -> None:
    if importlib.util.find_spec("uvloop") is None:
        pytest.skip("uvloop is not installed")
    with serve(ASGI_APP, env=(("ASGI_LOOP", "uvloop"),)) as server:
        assert {proof["accept_timed"] for proof in server.proofs.values()} == {False}
        assert {span.accept_ns for span in settled(server)} == {None}
