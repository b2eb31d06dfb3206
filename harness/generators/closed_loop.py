"""A closed-loop HTTP load generator that needs nothing installed: one file, standard library.

Run as a program (`python -I -S closed_loop.py --url ... --concurrency 8 --requests 41`):

- The first request is sent alone. When it has ended, `concurrency` connections each send their
  next request as soon as the previous one ended, until `requests` were sent.
- Each request has a connection of its own (HTTP/1.1, `Connection: close`), closed by us the
  moment the response is complete: some servers wait for a client that lingers.
- With `--keepalive` each client uses its connection until the server closes it or says that it
  will, and closes it itself as soon as it has nothing more to send: an idle connection would take
  a slot from the others. A connection that was used before and ends before a byte of the answer
  has come was closed while the request was under way, which is nobody's failure: the request is
  sent once more, on a new connection, and counted in `reconnects`. Its times run on from its
  first start.
- Each request has a number, from 1, which it bears in the header `X-Workerlab-Request`.
- A response is complete when its body is: by Content-Length, by the last chunk, or by the end of
  the stream where neither is given. Nothing of the body is kept.
- Times are CLOCK_MONOTONIC nanoseconds, taken when the event loop hands us the bytes.

A protocol over bare bytes rather than asyncio's streams: a stream wakes its reader one loop
iteration after the bytes came, and buffers what we only want to count.

One JSON document goes to standard output, when the last request has ended or the deadline has
struck; one row per request to the `--rows` file (see COLUMNS), in the order they ended. Requests
under way at the deadline are rows too, with the cause `timeout` or `connect_timeout`; those never
sent are counted as `unsent`. Causes: refused, reset, closed (no byte of an answer), truncated
(the answer breaks off), protocol (not HTTP), connect_timeout, timeout, no_address, no_files,
connect (any other error of connecting), non_2xx, status (not the one the user expects).

Exit codes: 0 whatever the server did; 2 usage; 3 a file cannot be read or written.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias, TypeVar
from urllib.parse import urlsplit

# start: since `origin_ns`; the others since start, empty where never reached; status: of a
# complete response; id: its number; reused: NEW, KEPT (connect is then 0) or AGAIN.
COLUMNS = "start_ns,connect_ns,first_byte_ns,end_ns,status,cause,id,reused"
FORMAT = 2  # of the document and the rows
NAME_HEADER = "X-Workerlab-Request"
NEW, KEPT, AGAIN = 0, 1, 2  # AGAIN: on a new connection, after a kept one was closed
MAX_HEAD = 65_536  # bytes of all head and trailer lines of a response
MAX_LINE = 4_096  # bytes of a chunk's size line

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")
CONNECT_CAUSES = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.ETIMEDOUT: "connect_timeout",
    errno.EADDRNOTAVAIL: "no_address",
    errno.EADDRINUSE: "no_address",
    errno.EMFILE: "no_files",
    errno.ENFILE: "no_files",
}


T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]  # each `yield` says: more bytes, please


class Garbage(Exception):
    """The bytes are not an HTTP/1 response."""


class Response:
    """Reads one response from bytes as they come. Knows no sockets and keeps no body."""

    def __init__(self, method: str) -> None:
        self.status: int | None = None
        self.complete = False
        self._method = method
        self._buffer = bytearray()
        self._begun = self._until_close = self._lasting = False
        self._head_left = MAX_HEAD
        self._reader = self._read()

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; True once the response is complete. Raises Garbage."""
        self._begun = True
        self._buffer += data
        try:
            next(self._reader)
        except StopIteration:
            self.complete = True
        return self.complete

    @property
    def keeps(self) -> bool:
        """Whether the connection can carry another request (RFC 9112, 9.3)."""
        return self.complete and self._lasting and not self._until_close and not self._buffer

    def end(self) -> str | None:
        """The stream has ended: why that is a failure, or None where it is the proper end."""
        self.complete = self.complete or self._until_close
        if self.complete:
            return None
        return "truncated" if self._begun else "closed"

    def _read(self) -> Reading[None]:
        status = 100
        while status < 200:  # interim responses (100, 103) precede the real one
            status = yield from self._status()
            if status == 101:
                raise Garbage("a protocol switch nobody asked for")
            length, chunked = yield from self._headers()
        self.status = status
        if self._method == "HEAD" or status in (204, 304):
            return
        if chunked:
            yield from self._chunks()
        elif length is not None:
            yield from self._skip(length)
        else:
            self._until_close = True
            while True:
                self._buffer.clear()
                yield

    def _status(self) -> Reading[int]:
        while not self._buffer.startswith(b"HTTP/1."):
            if not b"HTTP/1.".startswith(self._buffer):
                raise Garbage("no status line")
            yield
        match = STATUS_LINE.fullmatch((yield from self._line(self._head_left)))
        if match is None:
            raise Garbage("not a status line")
        self._lasting = match[1] == b"1"
        return int(match[2])

    def _headers(self) -> Reading[tuple[int | None, bool]]:
        length: int | None = None
        coding = b""
        while line := (yield from self._line(self._head_left)):
            name, colon, value = line.partition(b":")
            if not colon:
                raise Garbage("a header without a colon")
            name, value = name.lower(), value.strip(b" \t")
            if name == b"transfer-encoding":
                coding = value.lower()
            elif name == b"connection":
                self._lasting = _lasts(value, self._lasting)
            elif name == b"content-length":
                if not (value.isdigit() and len(value) < 19) or length not in (None, int(value)):
                    raise Garbage("a bad Content-Length")
                length = int(value)
        # RFC 9112, 6.3: any transfer coding overrides the length; unless the last one is chunked
        # the body runs to the end of the stream.
        return None if coding else length, coding.endswith(b"chunked")

    def _chunks(self) -> Reading[None]:
        while True:
            match = CHUNK_LINE.fullmatch((yield from self._line(MAX_LINE)))
            if match is None:
                raise Garbage("a bad chunk size")
            size = int(match[1], 16)
            if size == 0:
                break
            yield from self._skip(size)
            if (yield from self._line(MAX_LINE)):
                raise Garbage("a chunk longer than its size")
        while (yield from self._line(self._head_left)):
            pass  # trailers

    def _line(self, limit: int) -> Reading[bytes]:
        seen = 0
        while (stop := self._buffer.find(b"\r\n", seen)) < 0:
            if len(self._buffer) > limit:
                break
            seen = max(0, len(self._buffer) - 1)  # a line feed may still come
            yield
        if not 0 <= stop <= limit:
            raise Garbage("a line without end")
        line = bytes(self._buffer[:stop])
        del self._buffer[: stop + 2]
        self._head_left -= stop + 2
        return line

    def _skip(self, count: int) -> Reading[None]:
        while count > len(self._buffer):
            count -= len(self._buffer)
            self._buffer.clear()
            yield
        del self._buffer[:count]


def _lasts(connection: bytes, otherwise: bool) -> bool:
    """What a Connection header says of the connection's future."""
    options = {option.strip() for option in connection.lower().split(b",")}
    return b"close" not in options and (otherwise or b"keep-alive" in options)


class Exchange:
    """One request's answer, timed."""

    def __init__(self, method: str, ended: asyncio.Future[str | None]) -> None:
        self.response = Response(method)
        self.first_byte_ns: int | None = None
        self.end_ns: int | None = None
        self.ended = ended  # becomes the cause of a failure, or None


class Connection(asyncio.Protocol):
    """Carries one request after the other; closes at once when it cannot, or shall not, go on.

    It knows its first exchange before it is connected: the server may end it before we send.
    """

    def __init__(self, keep: bool, first: Exchange) -> None:
        self._keep = keep
        self._exchange: Exchange | None = first  # the one under way
        self._transport: asyncio.Transport | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, exchange: Exchange) -> None:
        assert self._transport is not None
        if not exchange.ended.done():
            self._exchange = exchange
            self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:  # bytes nobody asked for
            self.close()
            return
        if exchange.first_byte_ns is None:
            exchange.first_byte_ns = now
        try:
            complete = exchange.response.feed(data)
        except Garbage:
            self._finish("protocol")
        else:
            if complete:
                exchange.end_ns = now
                self._finish(None)

    def eof_received(self) -> None:
        now = time.monotonic_ns()
        if self._exchange is not None:
            cause = self._exchange.response.end()
            if cause is None:
                self._exchange.end_ns = now
            self._finish(cause)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish("closed" if exc is None else "reset")

    def _finish(self, cause: str | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if not (self._keep and cause is None and exchange.response.keeps):
            self.close()
        if not exchange.ended.done():
            exchange.ended.set_result(cause)


@dataclass(frozen=True)
class Plan:
    """What to send, where, how often. `request`: the bytes before and after its number."""

    address: tuple[str | int | bytes, ...]
    family: socket.AddressFamily
    request: tuple[bytes, bytes]
    method: str
    expect_status: int
    concurrency: int
    requests: int
    deadline_s: float
    keepalive: bool


@dataclass
class Attempt:
    """One request as it goes: absolute nanoseconds, None where it has not come so far."""

    number: int
    start_ns: int
    connect_ns: int | None = None
    exchange: Exchange | None = None
    reused: int = NEW

    def crossed(self, cause: str | None) -> bool:
        """Whether the server closed a kept connection while the request was on its way."""
        silent = self.exchange is not None and self.exchange.first_byte_ns is None
        return self.reused == KEPT and silent and cause in ("closed", "reset")

    def row(self, origin_ns: int, cause: str | None) -> str:
        """A line of the rows file."""
        exchange = self.exchange
        first_ns = exchange.first_byte_ns if exchange else None
        end_ns = exchange.end_ns if exchange else None
        status = exchange.response.status if exchange and end_ns is not None else None
        reached = (self.connect_ns, first_ns, end_ns)
        since = ["" if moment is None else moment - self.start_ns for moment in reached]
        cells = (self.start_ns - origin_ns, *since, status or "", cause or "")
        return ",".join(map(str, (*cells, self.number, self.reused))) + "\n"


@dataclass
class Run:
    """Sends the plan's requests and writes a row for each."""

    plan: Plan
    rows: TextIO
    sent: int = 0
    complete: int = 0
    reconnects: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    origin_ns: int = 0
    last_ns: int = 0

    async def all(self) -> bool:
        """The whole load; False if the deadline cut it short."""
        self.origin_ns = self.last_ns = time.monotonic_ns()
        self.rows.write(COLUMNS + "\n")
        clients = [Client(self) for _ in range(self.plan.concurrency)]
        try:
            async with asyncio.timeout(self.plan.deadline_s):
                await clients[0].one()
                async with asyncio.TaskGroup() as group:
                    for client in clients[: self.plan.requests - self.sent]:
                        group.create_task(client.all())
        except TimeoutError:
            return False
        finally:
            for client in clients:
                client.close()
        return True

    def next(self) -> Attempt:
        self.sent += 1
        return Attempt(self.sent, time.monotonic_ns())

    def note(self, attempt: Attempt, cause: str | None) -> None:
        self.last_ns = time.monotonic_ns()
        self.rows.write(attempt.row(self.origin_ns, cause))
        if attempt.exchange is not None and attempt.exchange.end_ns is not None:
            self.complete += 1
        if cause is not None:
            self.errors[cause] += 1

    def document(self, whole: bool) -> dict[str, object]:
        """What is printed: counts, and nanoseconds of CLOCK_MONOTONIC."""
        return {
            "generator": "closed_loop",
            "format": FORMAT,
            "concurrency": self.plan.concurrency,
            "planned": self.plan.requests,
            "sent": self.sent,
            "unsent": self.plan.requests - self.sent,
            "complete": self.complete,
            "failed": self.errors.total(),
            "errors": dict(sorted(self.errors.items())),
            "reconnects": self.reconnects,
            "deadline_struck": not whole,
            "origin_ns": self.origin_ns,
            "duration_ns": self.last_ns - self.origin_ns,
            "cpu_ns": time.process_time_ns(),
        }


class Client:
    """Sends one request after the other, each on a new connection or on the one it has kept."""

    def __init__(self, run: Run) -> None:
        self._run, self._plan = run, run.plan
        self._kept: Connection | None = None

    async def all(self) -> None:
        while self._run.sent < self._plan.requests:
            await self.one()
        self.close()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    async def one(self) -> None:
        attempt = self._run.next()
        try:
            cause = await self._try(attempt)
            if attempt.crossed(cause):
                self._run.reconnects += 1
                attempt.reused, attempt.connect_ns = AGAIN, None
                cause = await self._try(attempt)
        except asyncio.CancelledError:  # the deadline has struck
            late = "connect_timeout" if attempt.connect_ns is None else "timeout"
            self._run.note(attempt, late)
            raise
        self._run.note(attempt, cause)

    async def _try(self, attempt: Attempt) -> str | None:
        """The cause of the failure, None for a success."""
        exchange = Exchange(self._plan.method, asyncio.get_running_loop().create_future())
        attempt.exchange = exchange
        if self._kept is not None and self._kept.usable:
            attempt.reused, attempt.connect_ns = KEPT, attempt.start_ns
        elif cause := await self._connect(attempt, exchange):
            return cause
        assert self._kept is not None
        before, after = self._plan.request
        try:
            self._kept.send(b"%b%d%b" % (before, attempt.number, after), exchange)
            return await exchange.ended or self._judge(exchange.response.status)
        except BaseException:
            self.close()
            raise

    async def _connect(self, attempt: Attempt, exchange: Exchange) -> str | None:
        """Put a new connection in the place of the kept one, or say why there is none."""
        loop = asyncio.get_running_loop()
        try:
            sock = socket.socket(self._plan.family, socket.SOCK_STREAM)
        except OSError as error:
            return CONNECT_CAUSES.get(error.errno or 0, "connect")
        connection = Connection(self._plan.keepalive, exchange)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, self._plan.address)
            attempt.connect_ns = time.monotonic_ns()
            await loop.create_connection(lambda: connection, sock=sock)
        except BaseException as error:
            sock.close()
            if isinstance(error, OSError):
                return CONNECT_CAUSES.get(error.errno or 0, "connect")
            raise
        self._kept = connection
        return None

    def _judge(self, status: int | None) -> str | None:
        if self._plan.expect_status == 200:  # as good as "a success" where nobody said otherwise
            return None if status is not None and 200 <= status < 300 else "non_2xx"
        return None if status == self._plan.expect_status else "status"


# Ours to say: what frames the message, ends the connection and names the request.
OWN_HEADERS = {
    *("connection", "content-length", "transfer-encoding", "expect", "keep-alive"),
    NAME_HEADER.lower(),
}
DEFAULT_HEADERS = {"User-Agent": "workerlab", "Accept": "*/*"}


def request_bytes(
    method: str,
    target: str,
    host: str,
    headers: list[tuple[str, str]],
    body: bytes | None,
    keepalive: bool = False,
) -> tuple[bytes, bytes]:
    """The request as it goes over the wire, before and after its number. ValueError for what no
    HTTP/1 request can carry."""
    given = [(name, value) for name, value in headers if name.lower() not in OWN_HEADERS]
    names = {name.lower() for name, _ in given}
    defaults = {"Host": host, **DEFAULT_HEADERS}
    if body is not None:
        defaults["Content-Type"] = "application/octet-stream"
    lines = [(name, value) for name, value in defaults.items() if name.lower() not in names]
    lines += given if keepalive else [*given, ("Connection", "close")]
    if body is not None or method in ("POST", "PUT", "PATCH"):
        lines.append(("Content-Length", str(len(body or b""))))
    words = [method, target, *(word for line in lines for word in line)]
    if any("\r" in word or "\n" in word for word in words) or " " in method + target:
        raise ValueError("a line break or a blank where HTTP allows none")
    lines.append((NAME_HEADER, ""))
    head = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in lines)]
    return "\r\n".join(head).encode("latin-1"), b"\r\n\r\n" + (body or b"")


def header(text: str) -> tuple[str, str]:
    """(name, value) from "Name: value"; ValueError without a name or a colon."""
    name, colon, value = text.partition(":")
    if not (colon and name.strip()):
        raise ValueError(text)
    return name.strip(), value.strip()


def positive(text: str) -> int:
    """A whole number of at least 1; ValueError otherwise."""
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command's words, checked one by one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", required=True)
    parser.add_argument("--concurrency", type=positive, required=True)
    parser.add_argument("--requests", type=positive, required=True)
    parser.add_argument("--rows", default="requests.csv", help="file to write a row per request to")
    parser.add_argument("--method", default="GET")
    parser.add_argument("--header", type=header, action="append", default=[])
    parser.add_argument("--body-file")
    parser.add_argument("--expect-status", type=positive, default=200)
    parser.add_argument("--keepalive", action="store_true", help="use connections again")
    parser.add_argument("--deadline", type=float, default=3600.0, help="seconds for the whole run")
    return parser.parse_args(argv)


def make_plan(words: argparse.Namespace) -> Plan:
    """ValueError for a URL or header that cannot be sent; OSError for an unreadable body file or
    an unknown host."""
    url = urlsplit(words.url)
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"not a http:// address: {words.url}")
    body = None
    if words.body_file is not None:
        with open(words.body_file, "rb") as file:
            body = file.read()
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    host = url.netloc.rpartition("@")[2]
    found = socket.getaddrinfo(url.hostname, url.port or 80, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    return Plan(
        address=address,
        family=family,
        request=request_bytes(words.method, target, host, words.header, body, words.keepalive),
        method=words.method,
        expect_status=words.expect_status,
        concurrency=words.concurrency,
        requests=words.requests,
        deadline_s=words.deadline,
        keepalive=words.keepalive,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the load, print the document; the exit code."""
    words = parse_arguments(argv)
    try:
        plan = make_plan(words)
        with open(words.rows, "w", encoding="ascii", newline="\n") as rows:
            run = Run(plan, rows)
            whole = asyncio.run(run.all())
    except ValueError as error:
        print(f"closed_loop: {error}", file=sys.stderr)
        return 2
    except (OSError, ExceptionGroup) as error:
        reason = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        if not isinstance(reason, OSError):
            raise
        print(f"closed_loop: {reason}", file=sys.stderr)
        return 3
    print(json.dumps(run.document(whole)), flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
