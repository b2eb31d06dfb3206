"""`fast` against servers that behave, and servers that do not."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count, cycle, islice, repeat
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from tests.builders.processes import default_signals
from workerlab.load.fast import FAST, ROWS
from workerlab.load.generators import fast
from workerlab.load.generators.document import Tally, document
from workerlab.load.generators.request import destination
from workerlab.load.generators.share import FORK
from workerlab.load.generators.words import OPTIONAL, Words, parse
from workerlab.load.programs import RequestsSentAgain
from workerlab.model import Load, Measurement, Output
from workerlab.numbers.schedule import schedule

T = TypeVar("T")
PATIENCE_S = 60.0  # a bound for hanging, also where other tests have the cores

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nContent-Length: 1\r\n\r\n"
    b"5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
)
UNTIL_CLOSE = b"HTTP/1.0 200\r\nServer: x\r\n\r\nhello"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH


def tally_of(*words: str) -> Tally:
    """Runs the generator here, without rows."""
    return fast.run(parse(words, "fast", supports=OPTIONAL))


def said_of(*words: str) -> tuple[Output, Tally]:
    """Runs the generator here, with rows; what the tool would read of it."""
    with tempfile.TemporaryDirectory() as place:
        rows = f"{place}/{ROWS}"
        asked = parse([*words, "--rows", rows], "fast", supports=OPTIONAL)
        tally = fast.run(asked)
        said = json.dumps(document("fast", asked, tally))
        return Output(said, files={ROWS: Path(rows).read_text()}), tally


# --- the load -----------------------------------------------------------------------------

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Site:
    """A server on loopback; what it saw."""

    answer: Handler
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    in_flight_at_arrival: list[int] = field(default_factory=list)
    closed_by_client: int = 0

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


def saying(data: bytes, after_s: float = 0.0, then: str = "wait") -> Handler:
    """Answers with these bytes, then waits for the client to close, closes, resets, or stays for
    the next request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(after_s)
        writer.write(data)
        await writer.drain()
        if then == "close":
            writer.close()
        elif then == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        elif then == "wait":
            await reader.read()

    return answer


def answers(turns: Iterable[tuple[bytes, str]]) -> Handler:
    """One after the other: (what it answers, what it does then), as `saying`."""
    left = iter(turns)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data, then = next(left)
        await saying(data, then=then)(reader, writer)

    return answer


async def against(site: Site, load: Callable[..., T], *words: str, path: str = "/") -> T:
    """What `load` says of that server: both in one event loop."""
    async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
        asked = ("--url", url, "--deadline", str(PATIENCE_S), *words)
        return await asyncio.to_thread(load, *asked)


def within_patience(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 2 * PATIENCE_S))


def load_site(
    answer: Handler,
    concurrency: int = 2,
    requests: int = 5,
    words: tuple[str, ...] = (),
    site: Site | None = None,
) -> tuple[Measurement, Site]:
    """The measurement as the tool reads it."""
    site = site or Site(answer)
    amount = ("--concurrency", str(concurrency), "--requests", str(requests))
    output, _ = within_patience(against(site, said_of, *amount, *words, path="/x?y=1"))
    return FAST.parse(output), site


def run_site(answer: Handler, *words: str) -> tuple[Tally, Site]:
    """As `load_site`, for loads that leave no rows."""
    site = Site(answer)
    return within_patience(against(site, tally_of, *words)), site


def all_of(clients: int, *, but_the_first: bool = False, then: str = "wait") -> Handler:
    """Answers when so many ask, and then does as `saying`."""
    barrier, numbers = asyncio.Barrier(clients), count()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(numbers) or not but_the_first:
            await barrier.wait()
        await saying(LENGTH, then=then)(reader, writer)

    return answer


def test_the_first_request_is_alone_and_then_all_connections_are_busy() -> None:
    found, site = load_site(all_of(4, but_the_first=True), concurrency=4, requests=13)
    assert (found.requests, found.failed, found.errors) == (13, 0, {})
    assert len(site.requests) == 13
    assert site.in_flight_at_arrival[:2] == [1, 1]
    assert max(site.in_flight_at_arrival) == 4
    first, *others = found.timings
    assert first.end_s is not None
    assert all(other.start_s >= first.start_s + first.end_s for other in others)
    assert found.lone_s == first.end_s


def test_together_no_request_is_alone() -> None:
    """The first is not answered before the others are there."""
    words = ("--together",)
    found, site = load_site(all_of(4), concurrency=4, requests=12, words=words)
    assert (found.requests, found.failed, found.lone_s) == (12, 0, None)
    assert max(site.in_flight_at_arrival[:4]) == 4
    first, *others = found.timings
    assert first.end_s is not None
    assert sum(other.start_s < first.start_s + first.end_s for other in others) >= 3


def test_fewer_requests_than_connections() -> None:
    found, site = load_site(saying(LENGTH), concurrency=8, requests=3)
    assert found.requests == len(site.requests) == 3


def test_one_request_is_all() -> None:
    found, _ = load_site(saying(LENGTH), concurrency=4, requests=1)
    assert (found.requests, len(found.timings)) == (1, 1)


def test_moments_are_in_order_and_no_shorter_than_the_work() -> None:
    found, _ = load_site(saying(LENGTH, after_s=0.02))
    for timing in found.timings:
        assert timing.connect_s is not None
        assert timing.first_byte_s is not None
        assert timing.end_s is not None
        assert 0 < timing.connect_s < timing.first_byte_s <= timing.end_s
        assert timing.first_byte_s >= 0.02


def test_a_body_that_comes_later_ends_later() -> None:
    async def in_two_parts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LENGTH[:-1])
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(LENGTH[-1:])
        await reader.read()

    found, _ = load_site(in_two_parts, requests=1)
    (timing,) = found.timings
    assert timing.end_s is not None
    assert timing.first_byte_s is not None
    assert timing.end_s >= 0.019  # how soon a busy client sees the first byte, nobody promises
    assert timing.first_byte_s <= timing.end_s


@pytest.mark.parametrize(
    ("data", "then"),
    [
        (LENGTH, "wait"),  # the server waits for us to close: we do at once
        (LENGTH, "close"),
        (LENGTH + b"and more than that", "wait"),
        (CHUNKED, "wait"),
        (UNTIL_CLOSE, "close"),
        (NO_CONTENT, "wait"),
        (INTERIM, "wait"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + bytes(3_000_000), "wait"),
    ],
)
def test_answers_of_every_framing(data: bytes, then: str) -> None:
    found, site = load_site(saying(data, then=then))
    assert (found.requests, found.errors) == (5, {})
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
def test_misbehaviour_by_cause(data: bytes, then: str, cause: str) -> None:
    found, site = load_site(saying(data, then=then))
    assert found.errors == {cause: 5}
    assert found.requests == (5 if cause == "non_2xx" else 0)
    assert len(site.requests) == 5
    assert found.lone_s is None


def test_one_bad_answer_of_three() -> None:
    every_third = cycle([(LENGTH, "close"), (LENGTH, "close"), (b"", "close")])
    found, _ = load_site(answers(every_third), concurrency=3, requests=9)
    assert (found.requests, found.errors) == (6, {"closed": 3})


@pytest.mark.parametrize(
    ("status", "expect", "errors"),
    [(200, 200, {}), (201, 200, {}), (404, 404, {}), (200, 404, {"status": 5})],
)
def test_the_expected_status(status: int, expect: int, errors: dict[str, int]) -> None:
    answer = saying(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % status)
    found, _ = load_site(answer, words=("--expect-status", str(expect)))
    assert (found.requests, found.errors) == (5, errors)


def test_a_stalling_server_ends_with_the_deadline() -> None:
    after_the_first = chain([(LENGTH, "wait")], repeat((b"HTTP/1.1 200 OK\r\n", "wait")))
    found, _ = load_site(
        answers(after_the_first), concurrency=3, requests=10, words=("--deadline", "6")
    )
    assert (found.requests, found.errors) == (1, {"timeout": 3})
    assert [note.values["unsent"] for note in found.notes] == [6]
    assert 6 <= found.duration_s < PATIENCE_S
    assert found.lone_s is not None


def test_an_endless_answer_ends_with_the_deadline() -> None:
    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(10_000))
            await writer.drain()
            await asyncio.sleep(0)

    found, _ = load_site(endless, words=("--deadline", "1"))
    assert found.errors == {"timeout": 1}


def test_what_is_sent() -> None:
    _, site = load_site(saying(LENGTH), requests=1, words=("--header", "X-A: é"))
    lines = site.requests[0].decode("latin-1").split("\r\n")
    host = lines[1]
    assert lines[0] == "GET /x?y=1 HTTP/1.1"
    assert host.startswith("Host: 127.0.0.1:")
    assert lines[2:] == [
        "User-Agent: workerlab", "Accept: */*", "X-A: é", "Connection: close",
        "X-Workerlab-Request: 1", "", "",
    ]  # fmt: skip


def test_a_body_is_sent_whole(tmp_path: Path) -> None:
    body = bytes(range(256)) * 8_000
    (tmp_path / "body").write_bytes(body)
    seen: list[bytes] = []

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readexactly(len(body)))
        await saying(LENGTH)(reader, writer)

    words = ("--method", "PUT", "--body-file", str(tmp_path / "body"), "--header", "expect: x")
    found, site = load_site(collect, requests=3, words=words)
    assert found.failed == 0
    assert seen == [body] * 3
    assert b"Content-Length: 2048000\r\n" in site.requests[0]
    assert b"Content-Type: application/octet-stream\r\n" in site.requests[0]
    assert b"expect" not in site.requests[0]


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ([("host", "a"), ("User-agent", "b")], b"/1.1\r\nAccept: */*\r\nContent-Type"),
        ([("host", "a")], b"octet-stream\r\nhost: a\r\nConnection: close\r\n"),
        ([("CONTENT-TYPE", "a/b")], b"CONTENT-TYPE: a/b\r\nConnection: close\r\nContent-Length: 1"),
        ([("Connection", "keep-alive")], b"octet-stream\r\nConnection: close\r\n"),
        ([("x-workerlab-request", "me")], b"octet-stream\r\nConnection: close\r\n"),
    ],
)
def test_given_headers_replace_ours(headers: list[tuple[str, str]], wanted: bytes) -> None:
    words = Words(("http://h/",), 1, requests=1, method="POST", headers=tuple(headers), body=b"x")
    goes = destination(dataclasses.replace(words, urls=()), "http://127.0.0.1:1/")
    before, after = goes.parts
    assert wanted in before
    assert before.endswith(b"\r\nX-Workerlab-Request: ")
    assert after == b"\r\n\r\nx"


@pytest.mark.parametrize(
    ("method", "target", "value"), [("GE T", "/", "x"), ("GET", "/ /", "x"), ("GET", "/", "x\r\ny")]
)
def test_what_no_request_can_carry(method: str, target: str, value: str) -> None:
    words = Words((), 1, requests=1, method=method, headers=(("A", value),))
    with pytest.raises(ValueError, match="line break or a blank"):
        destination(words, f"http://127.0.0.1:1{target}")


# --- keep-alive ---------------------------------------------------------------------------


def kept(answer: Handler, concurrency: int = 2, requests: int = 9) -> tuple[Measurement, Site]:
    return load_site(answer, concurrency, requests, ("--keepalive",))


def test_each_client_keeps_its_connection() -> None:
    """The first of them is that of the request that was alone."""
    served = all_of(3, but_the_first=True, then="stay")
    found, site = kept(served, concurrency=3, requests=13)
    assert (found.requests, found.failed, site.connections) == (13, 0, 3)
    assert len(found.connects_s) == 3
    assert sum(timing.reused for timing in found.timings) == 10
    assert max(site.in_flight_at_arrival) == 3
    for timing in found.timings:
        assert timing.connect_s is not None
        assert (timing.connect_s == 0) == timing.reused
    assert b"Connection:" not in site.requests[0]


def test_requests_are_numbered_from_1() -> None:
    found, site = kept(saying(LENGTH, then="stay"))
    names = [timing.request_id for timing in found.timings]
    assert sorted(names, key=lambda name: int(name or 0)) == [str(n) for n in range(1, 10)]
    for number in range(1, 10):
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
    ids=["says so", "http 1.0", "unasked bytes", "until close", "protocol switch"],
)
def test_a_connection_that_cannot_be_used_again_is_not(data: bytes, then: str) -> None:
    found, site = kept(saying(data, then=then))
    assert site.connections == len(site.requests) == 9
    assert not any(timing.reused for timing in found.timings)
    assert not any(isinstance(note, RequestsSentAgain) for note in found.notes)


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
def test_any_framed_answer_leaves_the_connection_usable(data: bytes) -> None:
    _, site = kept(saying(data, then="stay"))
    assert (site.connections, len(site.requests)) == (2, 9)


def in_the_face(every: int, then: str) -> Handler:
    """Answers, but ends a connection on its `every`th request, whose bytes it has read."""
    seen: dict[asyncio.StreamWriter, int] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen[writer] = seen.get(writer, 0) + 1
        last = seen[writer] == every
        await saying(b"" if last else LENGTH, then=then if last else "stay")(reader, writer)

    return answer


@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_kept_connection_closed_in_the_face_of_a_request_is_no_failure(then: str) -> None:
    found, site = kept(in_the_face(3, then), concurrency=1, requests=9)
    assert (found.requests, found.failed) == (9, 0)
    # 1 2 (3) | 3 4 (5) | 5 6 (7) | 7 8 (9) | 9
    assert site.connections == 5
    assert len(site.requests) == 13
    assert found.notes[0] == RequestsSentAgain(4)
    assert len(found.connects_s) == 1
    again = [t for t in found.timings if not t.reused and t.connect_s not in found.connects_s]
    assert [timing.request_id for timing in again] == ["3", "5", "7", "9"]


def test_it_is_tried_once_more_and_not_for_ever() -> None:
    """A new connection that ends without an answer is a failure, as it is without keep-alive."""
    after_the_first = chain([(LENGTH, "stay")], repeat((b"", "close")))
    found, site = kept(answers(after_the_first), concurrency=1, requests=3)
    assert (found.requests, found.errors) == (1, {"closed": 2})
    assert len(site.requests) == 4
    assert found.notes[0] == RequestsSentAgain(1)


def test_an_answer_that_breaks_off_is_a_failure_on_a_kept_connection_too() -> None:
    every_other = cycle([(LENGTH, "stay"), (LENGTH[:9], "close")])
    found, site = kept(answers(every_other), concurrency=1, requests=4)
    assert (found.requests, found.errors) == (2, {"truncated": 2})
    assert site.connections == 2


def test_a_connection_closed_right_after_its_answer_costs_a_new_one_and_nothing_else() -> None:
    """Whether the client notices before or after it sends its next request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LENGTH)
        writer.write_eof()
        await reader.read()
        writer.close()

    found, site = kept(answer, concurrency=1, requests=3)
    assert (found.requests, found.failed, site.connections) == (3, 0, 3)


def test_a_client_with_nothing_more_to_send_closes_its_connection() -> None:
    """Or it would take a slot from those who wait: the last one is answered only then."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(site.requests) == 5:
            while site.open > 1:
                await asyncio.sleep(0.001)
        await saying(LENGTH, then="stay")(reader, writer)

    site = Site(answer)
    found, _ = load_site(answer, 4, 5, ("--keepalive",), site=site)
    assert (found.requests, found.failed) == (5, 0)


# --- connecting ---------------------------------------------------------------------------


def load_port(port: int, deadline_s: float = PATIENCE_S, requests: int = 3) -> Measurement:
    words = ["--url", f"http://127.0.0.1:{port}", "--concurrency", "2"]
    words += ["--requests", str(requests), "--deadline", str(deadline_s)]
    return FAST.parse(said_of(*words)[0])


class Slammed(asyncio.Protocol):
    """The door, in the client's face: before it could send a byte."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self.banner:
            transport.write(b"SSH-2.0-x\r\n")
        elif self.resets:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
            transport.abort()
        else:
            transport.close()

    def __init__(self, *, resets: bool = False, banner: bool = False) -> None:
        self.resets, self.banner = resets, banner


@pytest.mark.parametrize("words", [(), ("--keepalive",)])
@pytest.mark.parametrize(
    ("behaviour", "causes"),
    [({}, {"closed", "reset"}), ({"resets": True}, {"reset"}), ({"banner": True}, {"protocol"})],
)
def test_a_server_that_acts_before_it_is_asked(
    behaviour: dict[str, bool], causes: set[str], words: tuple[str, ...]
) -> None:
    async def both() -> Tally:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: Slammed(**behaviour), "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            asked = ["--url", url, "--concurrency", "4", "--requests", "41", *words]
            return (await asyncio.to_thread(said_of, *asked))[1]

    run = asyncio.run(asyncio.wait_for(both(), PATIENCE_S))
    assert run.errors.total() == 41
    assert set(run.errors) <= causes
    assert run.reconnects == 0


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        found = load_port(bound.getsockname()[1])
    assert (found.requests, found.errors) == (0, {"refused": 3})
    assert found.response.mean is None


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue drops SYNs on Linux only")
def test_a_full_accept_queue_is_a_connect_timeout() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        try:
            for _ in range(10):  # more than fit
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(listener.getsockname())
            found = load_port(listener.getsockname()[1], deadline_s=0.2)
        finally:
            for sock in waiting:
                sock.close()
    assert found.errors == {"connect_timeout": 1}
    assert found.connect.mean is None


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
def test_errors_of_connecting_by_cause(
    number: int, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(socket.socket):
        def connect_ex(self, _address: object) -> int:
            seen.append(self)
            return number

    seen: list[socket.socket] = []
    monkeypatch.setattr(socket, "socket", Failing)
    found = load_port(1)
    assert found.errors == {cause: 3}
    assert len(seen) == 3
    assert all(sock.fileno() == -1 for sock in seen)


def test_no_files_left_for_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", full)
    assert load_port(1, requests=2).errors == {"no_files": 2}


def test_no_socket_stays_open() -> None:
    async def requests_seen() -> int:
        site = Site(saying(LENGTH))
        await against(site, said_of, "--concurrency", "4", "--requests", "21")
        # The server sees the end of the last connections in the next turns of the loop.
        while site.in_flight:
            await asyncio.sleep(0)
        return len(site.requests)

    assert within_patience(requests_seen()) == 21


# --- known answers, and others ------------------------------------------------------------


BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nhello"
OTHER = LENGTH.replace(b"hello", b"hullo")
LONGER = LENGTH.replace(b"5", b"6").replace(b"hello", b"hello!")
DATED = LENGTH.replace(b"\r\n\r\n", b"\r\nDate: x\r\n\r\n")


@pytest.mark.parametrize("words", [(), ("--keepalive",)])
def test_an_answer_like_others_is_judged_for_itself(words: tuple[str, ...]) -> None:
    """One that is known is not read again: what differs must be."""
    then = "stay" if words else "wait"
    turns = cycle([(data, then) for data in (LENGTH, LENGTH, BUSY, LENGTH)])
    found, _ = load_site(answers(turns), 1, 40, words)
    assert (found.requests, found.errors) == (40, {"non_2xx": 10})


@pytest.mark.parametrize("other", [OTHER, LONGER])
def test_every_body_must_equal_the_first_where_that_is_asked_for(other: bytes) -> None:
    served = answers(cycle([(data, "stay") for data in (LENGTH, LENGTH, DATED, other)]))
    found, _ = load_site(served, 1, 40, ("--keepalive", "--same-body"))
    assert (found.requests, found.errors) == (40, {"body": 10})
    found, _ = load_site(served, 1, 40, ("--keepalive",))
    assert found.errors == {}


def numbered(sizes: Iterable[int], bad_every: int = 0) -> Handler:
    """Every answer differs from all others, and has a body of the next of these sizes."""
    numbers, lengths = count(1), cycle(sizes)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, length = next(numbers), next(lengths)
        bad = bad_every and number % bad_every == 0
        head = b"HTTP/1.1 %d X\r\nX-Number: %d\r\nContent-Length: %d\r\n\r\n"
        body = b"%d" % number * length
        await saying(head % (500 if bad else 200, number, length) + body[:length], then="stay")(
            reader, writer
        )

    return answer


@pytest.mark.parametrize("load", [tally_of, lambda *words: said_of(*words)[1]], ids=["", "rows"])
@pytest.mark.parametrize("words", [("--requests", "600"), ("--duration", "0.5", "--rate", "600")])
@pytest.mark.parametrize("sizes", [(5,), (0, 5, 700, 3_000, 200_000)])
def test_answers_that_all_differ_are_each_counted(
    sizes: tuple[int, ...], words: tuple[str, ...], load: Callable[..., Tally]
) -> None:
    site = Site(numbered(sizes, bad_every=3))
    tally = within_patience(against(site, load, "--concurrency", "4", "--keepalive", *words))
    sent = len(site.requests)
    assert tally.sent == tally.complete == tally.response.count == tally.first_byte.count == sent
    assert tally.errors == {"non_2xx": sent // 3}
    assert tally.body_bytes == sum(islice(cycle(sizes), sent))
    assert site.connections <= 4


def test_rows_of_answers_that_all_differ_say_what_the_document_says() -> None:
    """The parser compares them."""
    found, site = load_site(numbered((5, 3_000), bad_every=4), 4, 400, ("--keepalive",))
    assert (found.requests, found.errors) == (400, {"non_2xx": 100})
    assert {t.request_id for t in found.timings} == {str(n) for n in range(1, 401)}
    assert sum(timing.status == 500 for timing in found.timings) == 100
    site = Site(numbered((5, 3_000)))
    words = ("--concurrency", "4", "--duration", "0.5", "--rate", "400", "--keepalive")
    output, tally = within_patience(against(site, said_of, *words))
    rows = FAST.parse(output).timings
    assert len(rows) == tally.sent == len(site.requests)
    assert all(row.end_s is not None and row.end_s >= (row.first_byte_s or 0) > 0 for row in rows)


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize("words", [(), ("--same-body",)])
def test_a_body_that_breaks_off_is_no_answer_however_well_its_head_is_known(
    then: str, words: tuple[str, ...]
) -> None:
    turns = cycle([(LENGTH, "stay"), (DATED, "stay"), (LENGTH, "stay"), (DATED[:-1], then)])
    found, _ = load_site(answers(turns), 1, 40, ("--keepalive", *words))
    cause = "truncated" if then == "close" else "reset"
    assert (found.requests, found.errors) == (30, {cause: 10})


def test_a_known_answer_in_pieces_is_one_answer() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces = 1 + len(site.requests) % 3
        step = len(LENGTH) // pieces + 1
        for start in range(0, len(LENGTH), step):
            writer.write(LENGTH[start : start + step])
            await writer.drain()
            await asyncio.sleep(0.001)

    site = Site(answer)
    found, _ = load_site(answer, 3, 31, ("--keepalive",), site=site)
    assert (found.requests, found.errors, site.connections) == (31, {}, 3)
    assert len(site.requests) == 31


# --- how much, how often, from where ------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--keepalive",)])
def test_a_load_for_a_time_ends_what_it_began(words: tuple[str, ...]) -> None:
    then = "stay" if words else "wait"
    for _ in range(5):
        tally, site = run_site(
            saying(LENGTH, 0.01, then=then), "--concurrency", "4", "--duration", "0.2", *words
        )
        assert tally.sent == tally.complete == len(site.requests)
        if tally.sent >= 4:
            break
    else:
        pytest.fail("the time was over each time before all connections had a request")
    assert tally.response.count == tally.first_byte.count == tally.complete
    assert tally.origin_ns is not None
    assert tally.last_ns is not None
    assert tally.last_ns - tally.origin_ns >= 0.2e9
    assert tally.unsent == 0
    # Four connections, each with a request at every moment
    assert tally.in_flight_ns <= 4 * (tally.last_ns - tally.origin_ns)


def test_histograms_say_what_the_rows_say() -> None:
    served = saying(LENGTH, after_s=0.003, then="stay")
    found, _ = load_site(served, 4, 200, ("--keepalive",))
    tally, _ = run_site(served, "--concurrency", "4", "--requests", "200", "--keepalive")
    assert (tally.complete, tally.errors) == (found.requests, {})
    assert tally.response.least is not None
    assert tally.response.least >= 3_000_000 - 1_000_000  # a timer of asyncio may fire early


@pytest.mark.parametrize("words", [(), ("--keepalive",)])
def test_arrivals_come_at_their_rate_and_none_is_forgotten(words: tuple[str, ...]) -> None:
    tally, site = run_site(
        saying(LENGTH, then="stay" if words else "wait"),
        *("--concurrency", "50", "--duration", "0.5", "--rate", "200", *words),
    )
    assert tally.sent + tally.unsent == 100
    assert tally.sent == len(site.requests) == tally.complete
    assert tally.lag.count == tally.sent


def test_a_response_is_timed_from_when_it_was_due() -> None:
    """One connection, 50 ms an answer, 100 arrivals a second: the k-th that is answered was due
    long before it was sent."""
    tally, _ = run_site(
        saying(LENGTH, after_s=0.05, then="stay"),
        *("--concurrency", "1", "--duration", "0.5", "--rate", "100", "--keepalive"),
    )
    assert tally.sent + tally.unsent == 50
    assert 1 <= tally.sent <= 11  # 0.5 s / 50 ms, and the one under way at the end
    assert tally.lag.most is not None
    assert tally.response.most is not None
    assert tally.response.most >= tally.lag.most + 49_000_000
    if tally.sent >= 3:
        assert tally.lag.most >= 2 * 39_000_000


def test_the_open_model_opens_only_the_connections_it_needs() -> None:
    tally, site = run_site(
        saying(LENGTH, then="stay"),
        *("--concurrency", "500", "--duration", "0.3", "--rate", "100", "--keepalive"),
    )
    # What is still due when the time is over is not sent, where this machine was late
    assert tally.sent + tally.unsent == 30
    assert tally.connections == site.connections <= tally.sent


def test_a_ramp_begins_one_after_the_other() -> None:
    found, site = load_site(
        saying(LENGTH, 0.001, then="stay"), 5, 400, ("--keepalive", "--ramp", "0.2")
    )
    begins = [t.start_s for t in found.timings if not t.reused]
    assert site.connections == len(begins) == 5
    for i, start_s in enumerate(begins):
        assert start_s >= 0.2 * i / 5
    assert found.lone_s is None


def test_clients_that_linger_keep_their_connections_open() -> None:
    """They go on with new ones: the server waits for each of them to close."""
    found, site = load_site(saying(LENGTH), 2, 7, ("--linger", "60"))
    assert (found.requests, found.failed, site.connections) == (7, 0, 7)
    assert site.in_flight_at_arrival[-1] == 7
    assert (site.open, site.in_flight) == (0, 0)  # nothing outlives the load


def test_a_client_lingers_only_for_so_long() -> None:
    _, site = load_site(saying(LENGTH, 0.05), 1, 12, ("--linger", "0.01"))
    assert max(site.in_flight_at_arrival) < 12


def test_where_too_many_linger_the_oldest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workerlab.load.generators.engine.MAX_LINGERING", 3)
    found, site = load_site(saying(LENGTH, 0.02), 1, 12, ("--linger", "60"))
    assert (found.requests, found.failed) == (12, 0)
    assert 4 <= max(site.in_flight_at_arrival) < 12


def test_several_processes_share_the_load_and_miss_nothing() -> None:
    all_there = asyncio.Event()
    site: Site

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """But for the first one, nobody is answered before all are there: or a process that begins
        late finds nothing left to send."""
        if site.connections == 5:
            all_there.set()
        if len(site.requests) > 1:
            await all_there.wait()
        writer.write(LENGTH)

    site = Site(answer)
    found, _ = load_site(answer, 4, 42, ("--keepalive", "--processes", "3"), site)
    assert (found.requests, found.failed, len(site.requests)) == (42, 0, 42)
    assert site.connections == 5  # the first request's, then four
    assert {int(t.request_id or 0) for t in found.timings} == set(range(1, 43))
    assert found.timings[0].request_id == "1"
    assert found.lone_s == found.timings[0].end_s
    assert site.in_flight_at_arrival[:2] == [1, 1]


def test_all_processes_are_there_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or connections are idle for as long as it takes to fork them, after it was answered."""
    arrived: list[int] = []
    at_fork: list[int] = []
    start = FORK.Process.start

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(1)
        await saying(LENGTH)(reader, writer)

    def noting(process: Any) -> None:
        at_fork.append(len(arrived))
        start(process)

    monkeypatch.setattr(FORK.Process, "start", noting)
    found, site = load_site(answer, 4, 9, ("--processes", "2"))
    assert at_fork == [0, 0]
    assert (found.requests, found.failed, len(site.requests)) == (9, 0, 9)
    assert site.in_flight_at_arrival[0] == 1


def test_a_process_that_is_served_slowly_is_not_left_alone_with_its_rest() -> None:
    """One of two connections gets no answer until the other one has had nearly all."""
    slow: list[asyncio.StreamWriter] = []
    site: Site

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not slow and site.connections == 2:  # the first one's request was alone
            slow.append(writer)
        while writer in slow and len(site.requests) < 380:
            await asyncio.sleep(0.001)
        writer.write(LENGTH)

    site = Site(answer)
    words = ("--keepalive", "--processes", "2")
    found, _ = load_site(answer, 2, 401, words, site)
    assert (found.requests, found.errors) == (401, {})
    assert {int(t.request_id or 0) for t in found.timings} == set(range(1, 402))


def test_arrivals_of_several_processes_are_one_stream() -> None:
    tally, site = run_site(
        saying(LENGTH, then="stay"),
        *("--concurrency", "10", "--duration", "0.5", "--rate", "90", "--processes", "2"),
    )
    assert tally.sent + tally.unsent == 45
    assert tally.sent == len(site.requests)


@pytest.mark.parametrize("processes", ["1", "3"])
@pytest.mark.parametrize("kind", ["even", "poisson"])
def test_the_moments_of_all_processes_are_those_of_the_schedule(kind: str, processes: str) -> None:
    """Every row begins when its request was due, whenever it was sent."""
    with tempfile.TemporaryDirectory() as place:
        rows = f"{place}/{ROWS}"
        tally, _ = run_site(
            saying(LENGTH, then="stay"),
            *("--concurrency", "30", "--duration", "0.5", "--rate", "300", "--rows", rows),
            *("--arrivals", kind, "--seed", "10001", "--processes", processes, "--keepalive"),
        )
        begun = [int(row.split(",")[0]) for row in Path(rows).read_text().splitlines()[1:]]
    due = list(schedule(kind, 300, 0.5, 10_001))
    assert tally.sent + tally.unsent == len(due)
    assert sorted(begun) == due[: len(begun)] if processes == "1" else set(begun) <= set(due)
    assert len(begun) == len(set(begun)) == tally.sent


def test_a_schedule_begins_once_all_processes_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it took to fork them: longer than the load here."""
    start, forked_ns = FORK.Process.start, 0

    def slowly(process: Any) -> None:
        nonlocal forked_ns
        start(process)
        time.sleep(0.3)
        forked_ns = time.monotonic_ns()

    monkeypatch.setattr(FORK.Process, "start", slowly)
    tally, site = run_site(
        saying(LENGTH, then="stay"),
        *("--concurrency", "10", "--duration", "0.5", "--rate", "90", "--processes", "2"),
    )
    assert tally.origin_ns is not None
    assert tally.origin_ns >= forked_ns
    assert tally.sent + tally.unsent == 45
    assert tally.sent == len(site.requests)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_it_connects_from_the_addresses_it_is_given() -> None:
    peers: set[str] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername")[0])
        await saying(LENGTH)(reader, writer)

    tally, _ = run_site(
        answer, "--concurrency", "4", "--requests", "9", "--source", "127.0.0.2,127.0.0.3"
    )
    assert (tally.complete, peers) == (9, {"127.0.0.2", "127.0.0.3"})


def test_an_address_that_is_not_ours_is_said_by_cause() -> None:
    tally, _ = run_site(
        saying(LENGTH), "--concurrency", "1", "--requests", "2", "--source", "192.0.2.1"
    )
    assert tally.errors == {"no_address": 2}


def test_several_servers_get_their_part() -> None:
    other = Site(saying(LENGTH))

    async def both() -> tuple[Tally, Site]:
        site = Site(saying(LENGTH))
        async with (
            await asyncio.start_server(site.serve, "127.0.0.1", 0) as one,
            await asyncio.start_server(other.serve, "127.0.0.1", 0) as two,
        ):
            ports = [server.sockets[0].getsockname()[1] for server in (one, two)]
            urls = [word for port in ports for word in ("--url", f"http://127.0.0.1:{port}/")]
            words = parse(
                [*urls, "--concurrency", "2", "--requests", "200"], "fast", supports=OPTIONAL
            )
            return await asyncio.to_thread(fast.run, words), site

    tally, site = asyncio.run(asyncio.wait_for(both(), PATIENCE_S))
    assert tally.complete == 200
    assert len(site.requests) + len(other.requests) == 200
    # By a fair coin: fewer than 50 of 200 have a chance of less than one in 10^12
    assert min(len(site.requests), len(other.requests)) >= 50


def test_failures_do_not_hold_up_the_others() -> None:
    """Every connection is refused at once: no recursion, no hang, no request forgotten."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        found = load_port(bound.getsockname()[1], requests=5_000)
    assert found.errors == {"refused": 5_000}


# --- the program --------------------------------------------------------------------------


async def run_program(*words: str, cwd: Path) -> Output:
    process = await asyncio.create_subprocess_exec(
        *words, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    stdout, stderr = await process.communicate()
    rows = cwd / ROWS
    files = {ROWS: rows.read_text()} if rows.exists() else {}
    return Output(stdout.decode(), stderr.decode(), process.returncode, files)


PLAIN = Load(concurrency=3, requests=10, duration_s=1.0, deadline_s=PATIENCE_S)


def test_the_program_does_as_the_tool_commands(tmp_path: Path) -> None:
    async def both() -> Output:
        site = Site(saying(LENGTH))
        async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            argv = FAST.command(PLAIN, url, str(tmp_path)).argv
            return await run_program(*argv, cwd=tmp_path)

    output = asyncio.run(asyncio.wait_for(both(), PATIENCE_S))
    found = FAST.parse(output)
    assert (found.requests, found.failed, len(found.timings)) == (10, 0, 10)
    assert output.stderr == ""


def test_an_interrupted_load_leaves_the_rows_of_what_was_answered(tmp_path: Path) -> None:
    """But those of the turn in which the interrupt came: never more than there are connections."""

    async def both() -> int:
        site = Site(saying(LENGTH, then="stay"))
        async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            load = replace(PLAIN, requests=10_000_000, keepalive=True)
            argv = FAST.command(load, url, str(tmp_path)).argv
            process = await asyncio.create_subprocess_exec(
                *argv,
                stderr=asyncio.subprocess.PIPE,
                preexec_fn=default_signals,
            )
            try:
                while len(site.requests) < 200:
                    await asyncio.sleep(0.01)
                process.send_signal(signal.SIGINT)
                await process.communicate()
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
            assert process.returncode == 130
            return len(site.requests)

    sent = asyncio.run(asyncio.wait_for(both(), PATIENCE_S))
    rows = (tmp_path / ROWS).read_text()
    assert rows.endswith("\n")
    assert sent - 2 * PLAIN.concurrency <= rows.count("\n") - 1 <= sent


@pytest.mark.parametrize(
    ("load", "url", "code"),
    [
        (PLAIN, "https://127.0.0.1/", 2),
        (PLAIN, "http://127.0.0.1/ /", 2),
        (PLAIN, "http://127.0.0.1:99999/", 2),
        (replace(PLAIN, headers=(("A", "x\ny"),)), "http://127.0.0.1/", 2),
        (replace(PLAIN, headers=(("", "x"),)), "http://127.0.0.1/", 2),
        (replace(PLAIN, body_file="missing"), "http://127.0.0.1/", 3),
    ],
)
def test_the_program_refuses_with_one_sentence(
    load: Load, url: str, code: int, tmp_path: Path
) -> None:
    argv = FAST.command(load, url, str(tmp_path)).argv
    output = asyncio.run(run_program(*argv, cwd=tmp_path))
    assert output.exit_code == code
    assert output.stdout == ""
    assert "Traceback" not in output.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_is_said(tmp_path: Path) -> None:
    words = list(FAST.command(PLAIN, "http://127.0.0.1:1/", str(tmp_path)).argv)
    words[words.index("--rows") + 1] = "/dev/full"
    output = asyncio.run(run_program(*words, cwd=tmp_path))
    assert output.exit_code == 3
    assert "No space left" in output.stderr
    assert "Traceback" not in output.stderr
