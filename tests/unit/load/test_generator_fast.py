"""`fast` against servers that respond correctly, and servers that do not."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, count, cycle, repeat
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from tests.builders.conditions import until
from tests.builders.processes import default_signals, started
from tests.builders.responses import CHUNKED, INTERIM, LENGTH, NO_CONTENT, OTHER, UNTIL_CLOSE
from workerlab.load.fast import FAST, ROWS_FILE
from workerlab.load.generators import fast
from workerlab.load.generators.document import Tally, document, text_of
from workerlab.load.generators.options import OPTIONAL_FIELDS, LoadOptions, parse
from workerlab.load.generators.request import destination
from workerlab.load.generators.share import FORK
from workerlab.load.programs import RequestsSentAgain
from workerlab.model.evidence import Measurement, Output
from workerlab.model.plan import Load
from workerlab.numbers.schedule import schedule

T = TypeVar("T")
TIMEOUT_S = 60.0  # only a hang takes as long, even on a busy machine


def options_of(arguments: str) -> LoadOptions:
    return parse(shlex.split(arguments), "fast", supports=OPTIONAL_FIELDS)


def run_generator(arguments: str) -> Tally:
    """Run the generator in this process, without rows."""
    return fast.run(options_of(arguments))


def run_with_rows(arguments: str) -> tuple[Output, Tally]:
    """Run the generator in this process, with rows. Returns the output that the tool would read."""
    with tempfile.TemporaryDirectory() as directory:
        rows = Path(directory, ROWS_FILE)
        options = options_of(f"{arguments} --rows {shlex.quote(str(rows))}")
        tally = fast.run(options)
        stdout = text_of(document("fast", options, tally))
        return Output(stdout, files={ROWS_FILE: rows.read_text()}), tally


# --- the load -----------------------------------------------------------------------------

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """A server on loopback, and what it received."""

    answer: Handler
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    in_flight: int = 0
    in_flight_at_arrival: list[int] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.in_flight += 1
                self.in_flight_at_arrival.append(self.in_flight)
                try:
                    self.requests.append(head)
                    await self.answer(reader, writer)
                finally:
                    self.in_flight -= 1
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


def reset(transport: asyncio.Transport) -> None:
    linger = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()


def respond(data: bytes, after_s: float = 0.0, then: str = "wait") -> Handler:
    """Send these bytes. `then`: wait for the client to close, close, reset, or stay for the next
    request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(after_s)
        writer.write(data)
        await writer.drain()
        if then == "close":
            writer.close()
        elif then == "reset":
            reset(writer.transport)
        elif then == "wait":
            await reader.read()

    return answer


def respond_in_turn(responses: Iterable[tuple[bytes, str]]) -> Handler:
    """Send one response after the other, each (bytes, `then`) as in `respond`."""
    remaining = iter(responses)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data, then = next(remaining)
        await respond(data, then=then)(reader, writer)

    return answer


@asynccontextmanager
async def serving(site: Site) -> AsyncIterator[str]:
    """The URL of the server, without a path."""
    async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
        yield url_of(server)


def url_of(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def run_with_timeout(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 2 * TIMEOUT_S))


def run_beside(site: Site, load: Callable[[str], T]) -> T:
    """The result of `load` for the URL of this server. The load leaves no connection."""

    async def both() -> T:
        async with serving(site) as url:
            result = await asyncio.to_thread(load, url)
            while site.open:  # the server notices the last ends in the loop's next iterations
                await asyncio.sleep(0)
            return result

    return run_with_timeout(both())


def run_against(site: Site, load: Callable[[str], T], arguments: str) -> T:
    deadline = f"--deadline {TIMEOUT_S}"
    return run_beside(site, lambda url: load(f"--url {url}/x?y=1 {deadline} {arguments}"))


def load_site(
    answer: Handler | Site, concurrency: int = 2, requests: int = 5, arguments: str = ""
) -> tuple[Measurement, Site]:
    """The measurement that the tool reads."""
    site = answer if isinstance(answer, Site) else Site(answer)
    arguments = f"--concurrency {concurrency} --requests {requests} {arguments}"
    output, _ = run_against(site, run_with_rows, arguments)
    return FAST.parse(output), site


def run_site(answer: Handler, arguments: str) -> tuple[Tally, Site]:
    """Like `load_site`, for loads without rows."""
    site = Site(answer)
    return run_against(site, run_generator, arguments), site


def respond_together(clients: int, *, but_the_first: bool = False, then: str = "wait") -> Handler:
    """Wait until this many clients have sent a request, then respond."""
    barrier, numbers = asyncio.Barrier(clients), count()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(numbers) or not but_the_first:
            await barrier.wait()
        await respond(LENGTH, then=then)(reader, writer)

    return answer


def test_the_first_request_is_alone_and_then_all_connections_are_busy() -> None:
    measurement, site = load_site(respond_together(4, but_the_first=True), 4, 13)
    assert (measurement.requests, measurement.failed, measurement.errors) == (13, 0, {})
    assert len(site.requests) == 13
    assert site.in_flight_at_arrival[:2] == [1, 1]
    assert max(site.in_flight_at_arrival) == 4
    first, *others = measurement.timings
    assert all(other.start_s >= first.start_s + first.end_s for other in others)
    assert measurement.lone_s == first.end_s


def test_with_together_no_request_is_sent_alone() -> None:
    """The first request is answered only once the others have arrived."""
    measurement, site = load_site(respond_together(4), 4, 12, "--together")
    assert (measurement.requests, measurement.failed, measurement.lone_s) == (12, 0, None)
    assert max(site.in_flight_at_arrival[:4]) == 4
    first, *others = measurement.timings
    assert sum(other.start_s < first.start_s + first.end_s for other in others) >= 3


@pytest.mark.parametrize("requests", [1, 3])
def test_fewer_requests_than_connections(requests: int) -> None:
    measurement, site = load_site(respond(LENGTH), concurrency=8, requests=requests)
    assert measurement.requests == len(measurement.timings) == len(site.requests) == requests


def test_times_are_in_order_and_include_the_delay() -> None:
    measurement, _ = load_site(respond(LENGTH, after_s=0.02))
    for timing in measurement.timings:
        assert 0 < timing.connect_s < timing.first_byte_s <= timing.end_s
        assert timing.first_byte_s >= 0.02


def test_a_response_ends_with_its_body() -> None:
    async def in_two_parts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LENGTH[:-1])
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(LENGTH[-1:])
        await reader.read()

    measurement, _ = load_site(in_two_parts, requests=1)
    (timing,) = measurement.timings
    assert timing.end_s >= 0.019  # a busy client may see the first byte late
    assert timing.first_byte_s <= timing.end_s


@pytest.mark.parametrize(
    ("data", "then"),
    [
        (LENGTH, "wait"),  # the server waits for the client to close, which it does at once
        (LENGTH, "close"),
        (LENGTH + b"and more than that", "wait"),
        (CHUNKED, "wait"),
        (UNTIL_CLOSE, "close"),
        (NO_CONTENT, "wait"),
        (INTERIM, "wait"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + bytes(3_000_000), "wait"),
    ],
)
def test_responses_of_every_framing(data: bytes, then: str) -> None:
    measurement, site = load_site(respond(data, then=then))
    assert (measurement.requests, measurement.errors) == (5, {})
    assert len(site.requests) == 5


@pytest.mark.parametrize(
    ("data", "then", "cause"),
    [
        (b"", "close", "closed"),
        (b"", "reset", "reset"),
        (LENGTH[:-1], "close", "truncated"),
        (CHUNKED[:-7], "close", "truncated"),
        (LENGTH[:9], "close", "truncated"),
        (b"what?\r\n\r\n", "wait", "protocol"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "wait", "protocol"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "wait", "non_2xx"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "wait", "non_2xx"),
    ],
)
def test_failures_by_cause(data: bytes, then: str, cause: str) -> None:
    measurement, site = load_site(respond(data, then=then))
    assert measurement.errors == {cause: 5}
    assert measurement.requests == (5 if cause == "non_2xx" else 0)
    assert len(site.requests) == 5
    assert measurement.lone_s is None


@pytest.mark.parametrize(
    ("status", "expect", "errors"),
    [(200, 200, {}), (201, 200, {}), (404, 404, {}), (200, 404, {"status": 5})],
)
def test_the_expected_status(status: int, expect: int, errors: dict[str, int]) -> None:
    answer = respond(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
    measurement, _ = load_site(answer, arguments=f"--expect-status {expect}")
    assert (measurement.requests, measurement.errors) == (5, errors)


def test_a_stalled_load_stops_at_the_deadline() -> None:
    after_the_first = chain([(LENGTH, "wait")], repeat((b"HTTP/1.1 200 OK\r\n", "wait")))
    measurement, _ = load_site(respond_in_turn(after_the_first), 3, 10, "--deadline 6")
    assert (measurement.requests, measurement.errors) == (1, {"timeout": 3})
    assert [note.values["unsent"] for note in measurement.notes] == [6]
    assert 6 <= measurement.duration_s < TIMEOUT_S
    assert measurement.lone_s is not None


def test_an_endless_response_stops_at_the_deadline() -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(10_000))
            await writer.drain()
            await asyncio.sleep(0)

    measurement, _ = load_site(endless, arguments="--deadline 1")
    assert measurement.errors == {"timeout": 1}


def test_the_bytes_of_a_request() -> None:
    _, site = load_site(respond(LENGTH), requests=1, arguments="--header 'X-A: é'")
    request_line, host, *lines = site.requests[0].decode("latin-1").split("\r\n")
    assert request_line == "GET /x?y=1 HTTP/1.1"
    assert host.startswith("Host: 127.0.0.1:")
    assert lines == [
        "User-Agent: workerlab", "Accept: */*", "X-A: é", "Connection: close",
        "X-Workerlab-Request: 1", "", "",
    ]  # fmt: skip


def test_a_body_is_sent_whole(tmp_path: Path) -> None:
    body = bytes(range(256)) * 8_000
    (tmp_path / "body").write_bytes(body)
    bodies: list[bytes] = []

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await reader.readexactly(len(body)))
        await respond(LENGTH)(reader, writer)

    arguments = f"--method PUT --body-file '{tmp_path}/body' --header 'expect: x'"
    measurement, site = load_site(collect, requests=3, arguments=arguments)
    assert measurement.failed == 0
    assert bodies == [body] * 3
    assert b"Content-Length: 2048000\r\n" in site.requests[0]
    assert b"Content-Type: application/octet-stream\r\n" in site.requests[0]
    assert b"expect" not in site.requests[0]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("host", "a"), ("User-agent", "b")], b"/1.1\r\nAccept: */*\r\nContent-Type"),
        ([("host", "a")], b"octet-stream\r\nhost: a\r\nConnection: close\r\n"),
        ([("CONTENT-TYPE", "a/b")], b"CONTENT-TYPE: a/b\r\nConnection: close\r\nContent-Length: 1"),
        ([("Connection", "keep-alive")], b"octet-stream\r\nConnection: close\r\n"),
        ([("x-workerlab-request", "me")], b"octet-stream\r\nConnection: close\r\n"),
    ],
)
def test_custom_headers_replace_defaults(headers: list[tuple[str, str]], expected: bytes) -> None:
    options = LoadOptions(
        urls=(), concurrency=1, requests=1, method="POST", headers=tuple(headers), body=b"x"
    )
    before, after = destination(options, "http://127.0.0.1:1/").parts
    assert expected in before
    assert before.endswith(b"\r\nX-Workerlab-Request: ")
    assert after == b"\r\n\r\nx"


@pytest.mark.parametrize(
    ("method", "target", "value"), [("GE T", "/", "x"), ("GET", "/ /", "x"), ("GET", "/", "x\r\ny")]
)
def test_a_request_that_http_cannot_express_is_rejected(
    method: str, target: str, value: str
) -> None:
    options = LoadOptions(
        urls=(), concurrency=1, requests=1, method=method, headers=(("A", value),)
    )
    with pytest.raises(ValueError, match="line break or space"):
        destination(options, f"http://127.0.0.1:1{target}")


# --- keep-alive ---------------------------------------------------------------------------


def load_keepalive(
    answer: Handler | Site, concurrency: int = 2, requests: int = 9, arguments: str = ""
) -> tuple[Measurement, Site]:
    return load_site(answer, concurrency, requests, f"--keepalive {arguments}")


def test_each_client_keeps_its_connection_and_requests_are_numbered() -> None:
    """The request that is sent alone uses one of the connections."""
    handler = respond_together(3, but_the_first=True, then="stay")
    measurement, site = load_keepalive(handler, 3, 13)
    assert (measurement.requests, measurement.failed, site.connections) == (13, 0, 3)
    assert len(measurement.connects_s) == 3
    assert sum(timing.reused for timing in measurement.timings) == 10
    assert max(site.in_flight_at_arrival) == 3
    for timing in measurement.timings:
        assert (timing.connect_s == 0) == timing.reused
    assert b"Connection:" not in site.requests[0]
    numbers = sorted(int(timing.request_id or 0) for timing in measurement.timings)
    assert numbers == list(range(1, 14))
    for number in numbers:
        line = b"\r\nX-Workerlab-Request: %d\r\n" % number
        assert sum(line in head for head in site.requests) == 1


@pytest.mark.parametrize(
    ("data", "then"),
    [
        (LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: x, Close\r\n\r\n"), "stay"),
        (LENGTH.replace(b"1.1", b"1.0"), "stay"),
        (LENGTH + b"and more than that", "stay"),
        (UNTIL_CLOSE, "close"),
        (LENGTH.replace(b"200 OK", b"101 Up").replace(b"5", b"0"), "stay"),
    ],
    ids=["connection: close", "http 1.0", "unrequested bytes", "until close", "protocol switch"],
)
def test_a_connection_that_cannot_be_reused_is_not(data: bytes, then: str) -> None:
    measurement, site = load_keepalive(respond(data, then=then))
    assert site.connections == len(site.requests) == 9
    assert not any(timing.reused for timing in measurement.timings)
    assert not any(isinstance(note, RequestsSentAgain) for note in measurement.notes)


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED,
        NO_CONTENT,
        INTERIM,
        LENGTH.replace(b"1.1", b"1.0").replace(b"\r\n\r\n", b"\r\nConnection: Keep-Alive\r\n\r\n"),
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_connection_is_reused_after_a_response_with_framing(data: bytes) -> None:
    _, site = load_keepalive(respond(data, then="stay"))
    assert (site.connections, len(site.requests)) == (2, 9)


def ends_connection(every: int, then: str) -> Handler:
    """Respond, but end a connection once it has read the `every`th request on it."""
    requests: dict[asyncio.StreamWriter, int] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests[writer] = requests.get(writer, 0) + 1
        last = requests[writer] == every
        await respond(b"" if last else LENGTH, then=then if last else "stay")(reader, writer)

    return answer


@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_request_on_a_kept_connection_that_closes_is_resent(then: str) -> None:
    measurement, site = load_keepalive(ends_connection(3, then), concurrency=1)
    assert (measurement.requests, measurement.failed) == (9, 0)
    # 1 2 (3) | 3 4 (5) | 5 6 (7) | 7 8 (9) | 9
    assert site.connections == 5
    assert len(site.requests) == 13
    assert measurement.notes[0] == RequestsSentAgain(4)
    assert len(measurement.connects_s) == 1
    resent = [
        t for t in measurement.timings if not t.reused and t.connect_s not in measurement.connects_s
    ]
    assert [timing.request_id for timing in resent] == ["3", "5", "7", "9"]


def test_a_request_is_resent_only_once() -> None:
    """On a new connection, an end without a response is a failure."""
    after_the_first = chain([(LENGTH, "stay")], repeat((b"", "close")))
    measurement, site = load_keepalive(respond_in_turn(after_the_first), 1, 3)
    assert (measurement.requests, measurement.errors) == (1, {"closed": 2})
    assert len(site.requests) == 4
    assert measurement.notes[0] == RequestsSentAgain(1)


def test_a_truncated_response_on_a_kept_connection_is_a_failure() -> None:
    every_other = cycle([(LENGTH, "stay"), (LENGTH[:9], "close")])
    measurement, site = load_keepalive(respond_in_turn(every_other), 1, 4)
    assert (measurement.requests, measurement.errors) == (2, {"truncated": 2})
    assert site.connections == 2


def test_a_connection_closed_after_a_response_is_replaced() -> None:
    """Whether or not the client notices before it sends its next request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LENGTH)
        writer.write_eof()
        await reader.read()
        writer.close()

    measurement, site = load_keepalive(answer, 1, 3)
    assert (measurement.requests, measurement.failed, site.connections) == (3, 0, 3)


def test_a_client_with_nothing_more_to_send_closes_its_connection() -> None:
    """It would occupy a slot otherwise. The last request is answered only once it has closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(site.requests) == 5:
            while site.open > 1:
                await asyncio.sleep(0.001)
        await respond(LENGTH, then="stay")(reader, writer)

    site = Site(answer)
    measurement, _ = load_keepalive(site, 4, 5)
    assert (measurement.requests, measurement.failed) == (5, 0)


# --- connecting ---------------------------------------------------------------------------


def load_port(port: int, deadline_s: float = TIMEOUT_S, requests: int = 3) -> Measurement:
    amount = f"--concurrency 2 --requests {requests} --deadline {deadline_s}"
    return FAST.parse(run_with_rows(f"--url http://127.0.0.1:{port} {amount}")[0])


class EarlyServer(asyncio.Protocol):
    """Acts on a connection before the client has sent a byte."""

    def __init__(self, act: Callable[[asyncio.Transport], None]) -> None:
        self.act = act

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.act(transport)


@pytest.mark.parametrize("keepalive", ["", "--keepalive"])
@pytest.mark.parametrize(
    ("act", "causes"),
    [
        (lambda transport: transport.close(), {"closed", "reset"}),
        (reset, {"reset"}),
        (lambda transport: transport.write(b"SSH-2.0-x\r\n"), {"protocol"}),
    ],
    ids=["close", "reset", "banner"],
)
def test_a_server_that_acts_before_the_request(
    act: Callable[[asyncio.Transport], None], causes: set[str], keepalive: str
) -> None:
    async def both() -> Tally:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: EarlyServer(act), "127.0.0.1", 0) as server:
            arguments = f"--url {url_of(server)} --concurrency 4 --requests 41 {keepalive}"
            return (await asyncio.to_thread(run_with_rows, arguments))[1]

    tally = run_with_timeout(both())
    assert tally.errors.total() == 41
    assert set(tally.errors) <= causes
    assert tally.reconnects == 0


def test_thousands_of_refused_connections() -> None:
    """All are refused at once. The generator neither recurses nor hangs, and counts all."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        measurement = load_port(bound.getsockname()[1], requests=5_000)
    assert (measurement.requests, measurement.errors) == (0, {"refused": 5_000})
    assert measurement.response.mean is None


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue drops SYNs on Linux only")
def test_a_full_accept_queue_is_a_connect_timeout() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with ExitStack() as stack:
            for _ in range(10):  # more than fit
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(listener.getsockname())
            measurement = load_port(listener.getsockname()[1], deadline_s=0.2)
    assert measurement.errors == {"connect_timeout": 1}
    assert measurement.connect.mean is None


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.EADDRNOTAVAIL, "no_address"),
        (errno.EMFILE, "no_files"),
        (errno.ETIMEDOUT, "connect_timeout"),
        (errno.ECONNRESET, "reset"),
        (errno.EHOSTUNREACH, "connect"),
    ],
)
def test_connect_errors_by_cause(number: int, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(socket.socket):
        def connect_ex(self, _address: object) -> int:
            sockets.append(self)
            return number

    sockets: list[socket.socket] = []
    monkeypatch.setattr(socket, "socket", Failing)
    measurement = load_port(1)
    assert measurement.errors == {cause: 3}
    assert len(sockets) == 3
    assert all(sock.fileno() == -1 for sock in sockets)


def test_too_many_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", full)
    assert load_port(1, requests=2).errors == {"no_files": 2}


# --- recognised responses ----------------------------------------------------------------


BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nhello"
LONGER = LENGTH.replace(b"5", b"6").replace(b"hello", b"hello!")
DATED = LENGTH.replace(b"\r\n\r\n", b"\r\nDate: x\r\n\r\n")


# The arguments of a load, and what the server does after each of its responses
CONNECTION_MODES = pytest.mark.parametrize(
    ("keepalive", "then"), [("", "wait"), ("--keepalive", "stay")]
)


@CONNECTION_MODES
def test_a_response_that_differs_slightly_is_parsed(keepalive: str, then: str) -> None:
    """Only identical responses are recognised."""
    responses = cycle([(LENGTH, then), (LENGTH, then), (BUSY, then), (LENGTH[:9], "close")])
    measurement, _ = load_site(respond_in_turn(responses), 3, 40, keepalive)
    assert (measurement.requests, measurement.errors) == (30, {"non_2xx": 10, "truncated": 10})


@pytest.mark.parametrize("other", [OTHER, LONGER])
def test_with_same_body_every_body_must_equal_the_first(other: bytes) -> None:
    handler = respond_in_turn(cycle([(data, "stay") for data in (LENGTH, LENGTH, DATED, other)]))
    measurement, _ = load_keepalive(handler, 1, 40, "--same-body")
    assert (measurement.requests, measurement.errors) == (40, {"body": 10})
    assert measurement.body_sha256 is None
    assert load_keepalive(handler, 1, 40)[0].errors == {}


@pytest.mark.parametrize(("size", "processes"), [(0, 1), (10, 1), (300_000, 1), (10, 2)])
def test_with_same_body_the_digest_of_all_bodies_is_known(size: int, processes: int) -> None:
    """Each process hashes its own first body, and all digests are equal."""
    page = (bytes(range(250)) * (size // 250 + 1))[:size]
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + page
    handler = respond(response, then="stay")
    measurement, _ = load_keepalive(handler, 2, 40, f"--same-body --processes {processes}")
    assert measurement.errors == {}
    assert measurement.body_sha256 == hashlib.sha256(page).hexdigest()


def numbered(sizes: Iterable[int], bad_every: int = 0) -> Handler:
    """Every response differs from all others. Their bodies have these sizes in turn."""
    numbers, lengths = count(1), cycle(sizes)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, length = next(numbers), next(lengths)
        bad = bad_every and number % bad_every == 0
        head = b"HTTP/1.1 %d X\r\nX-Number: %d\r\nContent-Length: %d\r\n\r\n"
        body = b"%d" % number * length
        response = head % (500 if bad else 200, number, length) + body[:length]
        await respond(response, then="stay")(reader, writer)

    return answer


@pytest.mark.parametrize("with_rows", [False, True])
@pytest.mark.parametrize(
    ("amount", "due"), [("--requests 600", 600), ("--duration 0.5 --rate 600", 300)]
)
@pytest.mark.parametrize("sizes", [(5,), (0, 5, 700, 3_000, 200_000)])
def test_responses_that_all_differ_are_counted(
    sizes: tuple[int, ...], amount: str, due: int, with_rows: bool
) -> None:
    site = Site(numbered(sizes, bad_every=3))
    arguments = f"--concurrency 4 --keepalive {amount}"
    if with_rows:
        output, tally = run_against(site, run_with_rows, arguments)
    else:
        tally = run_against(site, run_generator, arguments)
    sent = len(site.requests)
    assert sent + tally.unsent == due
    assert tally.sent == tally.complete == tally.response.count == tally.first_byte.count == sent
    assert tally.errors == {"non_2xx": sent // 3}
    assert site.connections <= 4
    if with_rows:
        measurement = FAST.parse(output)  # which compares the rows and the document
        rows = measurement.timings
        assert (measurement.requests, measurement.errors) == (sent, {"non_2xx": sent // 3})
        assert {row.request_id for row in rows} == {str(n) for n in range(1, sent + 1)}
        assert sum(row.status == 500 for row in rows) == sent // 3
        assert all((row.end_s or 0) >= (row.first_byte_s or 0) > 0 for row in rows)


@pytest.mark.parametrize(("then", "cause"), [("close", "truncated"), ("reset", "reset")])
@pytest.mark.parametrize("same_body", ["", "--same-body"])
def test_a_truncated_body_is_a_failure_even_with_a_recognised_head(
    then: str, cause: str, same_body: str
) -> None:
    responses = cycle([(LENGTH, "stay"), (DATED, "stay"), (LENGTH, "stay"), (DATED[:-1], then)])
    measurement, _ = load_keepalive(respond_in_turn(responses), 1, 40, same_body)
    assert (measurement.requests, measurement.errors) == (30, {cause: 10})


def test_a_recognised_response_in_pieces_counts_once() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces = 1 + len(site.requests) % 3
        step = len(LENGTH) // pieces + 1
        for start in range(0, len(LENGTH), step):
            writer.write(LENGTH[start : start + step])
            await writer.drain()
            await asyncio.sleep(0.001)

    site = Site(answer)
    measurement, _ = load_keepalive(site, 3, 31)
    assert (measurement.requests, measurement.errors, site.connections) == (31, {}, 3)
    assert len(site.requests) == 31


# --- amounts, rates, addresses -----------------------------------------------------------


@CONNECTION_MODES
def test_a_timed_load_completes_its_requests(keepalive: str, then: str) -> None:
    arguments = f"--concurrency 4 --duration 0.2 {keepalive}"
    for _ in range(5):
        tally, site = run_site(respond(LENGTH, 0.01, then), arguments)
        assert tally.sent == tally.complete == len(site.requests)
        if tally.sent >= 4:
            break
    else:
        pytest.fail("no run was long enough for all connections to have a request")
    assert tally.response.count == tally.first_byte.count == tally.complete
    assert tally.response.least >= 9_000_000  # a timer of asyncio may fire early
    assert tally.last_ns - tally.origin_ns >= 0.2e9
    assert tally.unsent == 0
    # Four connections, each with one request at a time
    assert tally.in_flight_ns <= 4 * (tally.last_ns - tally.origin_ns)


def test_a_response_is_timed_from_its_due_time() -> None:
    """One connection, 50 ms per response, 100 arrivals per second: later requests are sent long
    after they were due."""
    arguments = "--concurrency 1 --duration 0.5 --rate 100 --keepalive"
    tally, _ = run_site(respond(LENGTH, after_s=0.05, then="stay"), arguments)
    assert tally.sent + tally.unsent == 50
    assert 1 <= tally.sent <= 11  # 0.5 s / 50 ms, and the request in flight at the end
    assert tally.response.most >= tally.lag.most + 49_000_000
    if tally.sent >= 3:
        assert tally.lag.most >= 2 * 39_000_000


def test_the_open_model_opens_only_the_connections_it_needs() -> None:
    arguments = "--concurrency 500 --duration 0.3 --rate 100 --keepalive"
    tally, site = run_site(respond(LENGTH, then="stay"), arguments)
    # On a busy machine, some requests are still due at the end and never sent
    assert tally.sent + tally.unsent == 30
    assert tally.connections == site.connections <= tally.sent


def test_a_ramp_starts_connections_one_after_another() -> None:
    measurement, site = load_keepalive(respond(LENGTH, 0.001, then="stay"), 5, 450, "--ramp 0.2")
    starts_s = [t.start_s for t in measurement.timings if not t.reused]
    assert site.connections == len(starts_s) == 5
    for i, start_s in enumerate(starts_s):
        assert start_s >= 0.2 * i / 5
    assert measurement.lone_s is None


def test_clients_that_linger_keep_their_connections_open() -> None:
    """They continue on new ones, while the server waits for each old one to be closed."""
    measurement, site = load_site(respond(LENGTH), 2, 7, "--linger 60")
    assert (measurement.requests, measurement.failed, site.connections) == (7, 0, 7)
    assert site.in_flight_at_arrival[-1] == 7
    assert (site.open, site.in_flight) == (0, 0)  # all are closed at the end of the load


def test_a_client_lingers_for_a_limited_time() -> None:
    _, site = load_site(respond(LENGTH, 0.05), 1, 12, "--linger 0.01")
    assert max(site.in_flight_at_arrival) < 12


def test_the_oldest_of_too_many_lingering_connections_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workerlab.load.generators.engine.MAX_LINGERING_CONNECTIONS", 3)
    measurement, site = load_site(respond(LENGTH, 0.02), 1, 12, "--linger 60")
    assert (measurement.requests, measurement.failed) == (12, 0)
    assert 4 <= max(site.in_flight_at_arrival) < 12


def test_several_processes_share_the_load() -> None:
    all_connected = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Only the first request is answered before all have connected: otherwise a process that
        starts late would find no requests left."""
        if site.connections == 5:
            all_connected.set()
        if len(site.requests) > 1:
            await all_connected.wait()
        writer.write(LENGTH)

    site = Site(answer)
    measurement, _ = load_keepalive(site, 4, 42, "--processes 3")
    assert (measurement.requests, measurement.failed, len(site.requests)) == (42, 0, 42)
    assert site.connections == 5  # the first request's, then four
    assert {int(t.request_id or 0) for t in measurement.timings} == set(range(1, 43))
    assert measurement.timings[0].request_id == "1"
    assert measurement.lone_s == measurement.timings[0].end_s
    assert site.in_flight_at_arrival[:2] == [1, 1]


def test_all_processes_are_forked_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise connections would be idle while they are forked, after the first response."""
    arrivals_at_fork: list[int] = []
    start = FORK.Process.start
    site = Site(respond(LENGTH))

    def recording_start(process: Any) -> None:
        arrivals_at_fork.append(len(site.requests))
        start(process)

    monkeypatch.setattr(FORK.Process, "start", recording_start)
    measurement, _ = load_site(site, 4, 9, "--processes 2")
    assert arrivals_at_fork == [0, 0]
    assert (measurement.requests, measurement.failed, len(site.requests)) == (9, 0, 9)
    assert site.in_flight_at_arrival[0] == 1


def test_other_processes_send_the_requests_of_a_slow_one() -> None:
    """One of two connections gets no response until the other has sent nearly all requests."""
    slow: list[asyncio.StreamWriter] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not slow and site.connections == 2:  # the first request was sent alone
            slow.append(writer)
        while writer in slow and len(site.requests) < 380:
            await asyncio.sleep(0.001)
        writer.write(LENGTH)

    site = Site(answer)
    measurement, _ = load_keepalive(site, 2, 401, "--processes 2")
    assert (measurement.requests, measurement.errors) == (401, {})
    assert {int(t.request_id or 0) for t in measurement.timings} == set(range(1, 402))


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize(
    ("kind", "then", "keepalive"), [("even", "wait", ""), ("poisson", "stay", "--keepalive")]
)
def test_all_processes_follow_the_schedule(
    kind: str, then: str, keepalive: str, processes: int
) -> None:
    """Every row begins when its request was due, not when it was sent."""
    site = Site(respond(LENGTH, then=then))
    arguments = f"--concurrency 30 --duration 0.5 --rate 300 --arrivals {kind} --seed 10001"
    arguments += f" --processes {processes} {keepalive}"
    output, tally = run_against(site, run_with_rows, arguments)
    starts_ns = [int(row.split(",")[0]) for row in output.files[ROWS_FILE].splitlines()[1:]]
    due_ns = list(schedule(kind, 300, 0.5, 10_001))
    assert tally.sent + tally.unsent == len(due_ns)
    if processes == 1:
        assert sorted(starts_ns) == due_ns[: len(starts_ns)]
    assert set(starts_ns) <= set(due_ns)
    assert len(starts_ns) == len(set(starts_ns)) == len(site.requests)
    assert tally.sent == tally.complete == tally.lag.count == len(site.requests)


def test_a_schedule_begins_once_all_processes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forking takes longer than the load here."""
    start, forked_ns = FORK.Process.start, 0

    def slow_start(process: Any) -> None:
        nonlocal forked_ns
        start(process)
        time.sleep(0.3)
        forked_ns = time.monotonic_ns()

    monkeypatch.setattr(FORK.Process, "start", slow_start)
    arguments = "--concurrency 10 --duration 0.5 --rate 90 --processes 2"
    tally, site = run_site(respond(LENGTH, then="stay"), arguments)
    assert tally.origin_ns >= forked_ns
    assert tally.sent + tally.unsent == 45
    assert tally.sent == len(site.requests)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_connections_come_from_the_source_addresses() -> None:
    peers: set[str] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername")[0])
        await respond(LENGTH)(reader, writer)

    tally, _ = run_site(answer, "--concurrency 4 --requests 9 --source 127.0.0.2,127.0.0.3")
    assert (tally.complete, peers) == (9, {"127.0.0.2", "127.0.0.3"})


def test_a_source_address_of_another_machine_is_a_failure() -> None:
    tally, _ = run_site(respond(LENGTH), "--concurrency 1 --requests 2 --source 192.0.2.1")
    assert tally.errors == {"no_address": 2}


def test_several_servers_share_the_load() -> None:
    first, second = Site(respond(LENGTH)), Site(respond(LENGTH))

    async def all_three() -> Tally:
        async with serving(first) as first_url, serving(second) as second_url:
            arguments = f"--url {first_url} --url {second_url} --concurrency 2 --requests 200"
            return await asyncio.to_thread(run_generator, arguments)

    tally = run_with_timeout(all_three())
    assert tally.complete == 200
    assert len(first.requests) + len(second.requests) == 200
    # With a fair coin, fewer than 50 of 200 have a probability of less than 10^-12
    assert min(len(first.requests), len(second.requests)) >= 50


# --- the program --------------------------------------------------------------------------


def run_program(argv: Sequence[str], directory: Path) -> Output:
    process = subprocess.run(argv, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S)
    rows = directory / ROWS_FILE
    files = {ROWS_FILE: rows.read_text()} if rows.exists() else {}
    return Output(process.stdout, process.stderr, process.returncode, files)


PLAIN = Load(concurrency=3, requests=10, duration_s=1.0, deadline_s=TIMEOUT_S)


def test_the_program_runs_the_command_of_the_tool(tmp_path: Path) -> None:
    def load(url: str) -> Output:
        return run_program(FAST.command(PLAIN, url, str(tmp_path)).argv, tmp_path)

    output = run_beside(Site(respond(LENGTH)), load)
    measurement = FAST.parse(output)
    assert (measurement.requests, measurement.failed, len(measurement.timings)) == (10, 0, 10)
    assert output.stderr == ""


def test_an_interrupted_load_keeps_the_rows_of_its_responses(tmp_path: Path) -> None:
    """All but those of the interrupted iteration, at most one per connection."""

    site = Site(respond(LENGTH, then="stay"))

    def interrupted_load(url: str) -> int:
        load = replace(PLAIN, requests=10_000_000, keepalive=True)
        argv = FAST.command(load, url, str(tmp_path)).argv
        with started(argv, stderr=subprocess.PIPE, preexec_fn=default_signals) as process:
            until(lambda: len(site.requests) >= 200, "200 requests have arrived")
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=TIMEOUT_S)
        return process.returncode

    assert run_beside(site, interrupted_load) == 130
    sent, rows = len(site.requests), (tmp_path / ROWS_FILE).read_text()
    assert rows.endswith("\n")
    assert sent - 2 * PLAIN.concurrency <= rows.count("\n") - 1 <= sent


@pytest.mark.parametrize(
    ("load", "url", "exit_code"),
    [
        (PLAIN, "https://127.0.0.1/", 2),
        (PLAIN, "http://127.0.0.1/ /", 2),
        (PLAIN, "http://127.0.0.1:99999/", 2),
        (replace(PLAIN, headers=(("A", "x\ny"),)), "http://127.0.0.1/", 2),
        (replace(PLAIN, headers=(("", "x"),)), "http://127.0.0.1/", 2),
        (replace(PLAIN, body_file="missing"), "http://127.0.0.1/", 3),
    ],
)
def test_the_program_rejects_invalid_options(
    load: Load, url: str, exit_code: int, tmp_path: Path
) -> None:
    output = run_program(FAST.command(load, url, str(tmp_path)).argv, tmp_path)
    assert (output.exit_code, output.stdout) == (exit_code, "")
    assert "Traceback" not in output.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    arguments = list(FAST.command(PLAIN, "http://127.0.0.1:1/", str(tmp_path)).argv)
    arguments[arguments.index("--rows") + 1] = "/dev/full"
    output = run_program(arguments, tmp_path)
    assert output.exit_code == 3
    assert "No space left" in output.stderr
    assert "Traceback" not in output.stderr
