"""The null server: its requests, responses, report and network namespace."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.numbers.histogram import Histogram
from workerlab.server import null_server, preflight
from workerlab.server.null.__main__ import listen, parse
from workerlab.server.null.server import (
    FAULTS,
    MalformedRequest,
    NullRequest,
    Response,
    ServerTally,
    final_response,
    read_request,
    response_to,
)
from workerlab.server.null_server import own_network

GET = b"GET /?a=1 HTTP/1.1\r\nHost: x\r\n\r\n"


def read(head: bytes) -> NullRequest:
    request = read_request(head)
    assert request is not None
    return request


def respond(head: bytes = GET, *, body_bytes: int = 12, fault: str = "") -> Response:
    return response_to(*read(head)[1:], body_bytes, fault)


@pytest.mark.parametrize(
    ("head", "keep", "confirm"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", True, False),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", False, False),
        (b"GET / HTTP/1.1\r\nCONNECTION:Close\r\n\r\n", False, False),
        (b"GET / HTTP/1.0\r\n\r\n", False, False),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", True, True),
    ],
)
def test_the_version_and_the_connection_header_decide_whether_a_connection_is_kept(
    head: bytes, keep: bool, confirm: bool
) -> None:
    assert read(head) == NullRequest(len(head), keep, confirm, bodiless=False)


def test_a_listener_avoids_the_ports_of_the_load() -> None:
    """A listening port cannot be used for connections to it."""
    low, high = preflight.port_range() or (49_152, 65_535)
    reserved = (low, (low + high) // 2)
    with ExitStack() as listening:
        for _ in range(20):
            listener = listening.enter_context(listen("127.0.0.1", 0, 1, reserved))
            assert listener.getsockname()[1] > reserved[1]


@given(st.integers(0, 40), st.binary(max_size=40))
def test_a_request_is_read_once_it_is_complete(length: int, rest: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % length
    request = head + b"b" * length
    for size in range(len(request)):
        assert read_request(request[:size]) is None
    assert read(request + rest).length == len(request)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01",  # TLS
        b"GET /\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a" * 70_000,
    ],
)
def test_malformed_requests_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_request(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_malformed_or_incomplete(data: bytes) -> None:
    with suppress(MalformedRequest):
        request = read_request(data)
        assert request is None or request.length <= len(data)


@given(st.integers(0, 5000))
def test_a_response_has_the_length_of_its_body(body_bytes: int) -> None:
    response = respond(body_bytes=body_bytes)
    head, _, body = response.data.partition(b"\r\n\r\n")
    assert len(body) == body_bytes
    assert b"Content-Length: %d" % body_bytes in head.split(b"\r\n")
    assert response.then == "keep"


def test_a_response_follows_the_request_unless_the_client_must_close() -> None:
    close = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    closing, left_open = respond(close), respond(close, fault="kept")
    assert (closing.then, left_open.then) == ("close", "keep")
    assert b"\r\nConnection: close\r\n" in closing.data
    assert b"Connection" not in left_open.data
    kept = respond(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert b"\r\nConnection: keep-alive\r\n" in kept.data
    assert respond(b"HEAD / HTTP/1.1\r\n\r\n").data.endswith(b"\r\n\r\n")
    assert respond() is respond()


@pytest.mark.parametrize("body_bytes", [0, 1, 12, 1000])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_response_is_no_success(fault: str, body_bytes: int) -> None:
    response = respond(body_bytes=body_bytes, fault=fault)
    _, end, body = response.data.partition(b"\r\n\r\n")
    success = response.data.startswith(b"HTTP/1.1 200 ") and bool(end) and len(body) == body_bytes
    assert success is (fault in ("", "kept"))
    assert (response.then == "keep") is (fault in ("", "kept", "status500"))


def test_options_are_read() -> None:
    options = parse(["--delay", "0.5,3", "--body-bytes", "440000", "--core", "1"])
    assert (options.delay, options.body_bytes) == ((0.5, 3.0), 440_000)
    assert (options.core, options.fault) == (1, "")


@pytest.mark.parametrize(
    "argv",
    [["--delay", "3,1"], ["--delay", "1"], ["--delay=-1,1"], ["--body-bytes=-1"], ["--fault", "x"]],
)
def test_invalid_options_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        parse(argv)


def test_the_report_is_rewritten_with_the_latest_counts(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    tally = ServerTally(str(path))
    tally.requests, tally.delays_ns = 3, 1_500_000_000
    tally.spans += [10, 20, 30]
    tally.write()
    tally.spans.append(40)
    tally.write()
    report = json.loads(path.read_text())
    assert (report["requests"], report["delays_s"]) == (3, 1.5)
    service = Histogram.from_json(report["service"])
    assert (service.count, service.sum) == (4, 100)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("confirm", [False, True])
@pytest.mark.parametrize("fault", ["", "reset", "half", "stall"])
def test_the_last_response_of_a_connection_closes_it_unless_it_is_faulty(
    confirm: bool, fault: str
) -> None:
    response = response_to(keep=True, confirm=confirm, bodiless=False, body_bytes=12, fault=fault)
    closing = response_to(keep=False, confirm=False, bodiless=False, body_bytes=12, fault="")
    assert final_response(response) == (response if fault else closing)


# --- network -----------------------------------------------------------------------------------


def current_namespace() -> str:
    return str(Path("/proc/thread-self/ns/net").readlink())


def test_a_network_has_its_own_settings_and_is_left_after_an_error() -> None:
    try:
        with own_network(2):
            pass
    except OSError as error:
        pytest.skip(f"cannot make a network namespace: {error}")
    original = current_namespace(), preflight.sysctl("net.ipv4.tcp_tw_reuse")
    with suppress(InterruptedError), own_network(0):
        assert current_namespace() != original[0]
        assert preflight.sysctl("net.ipv4.tcp_tw_reuse") == "0"
        assert preflight.port_range() == (32_768, 60_999)
        with socket.create_server(("127.0.0.1", 0)) as listener:  # the loopback interface is up
            socket.create_connection(listener.getsockname()).close()
        raise InterruptedError
    assert (current_namespace(), preflight.sysctl("net.ipv4.tcp_tw_reuse")) == original


def test_a_refused_namespace_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = current_namespace()
    monkeypatch.setattr(null_server, "CLONE_NEWNET", 1)  # refused for any user
    with pytest.raises(OSError, match="Invalid argument"), own_network(2):
        pytest.fail("the namespace was made")
    assert current_namespace() == namespace
