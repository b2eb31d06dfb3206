"""The null server: it parses requests, builds each response once, and runs one thread with one
epoll.

What makes it fast: the bytes of a request are looked up in a cache, so only the first of each kind
is parsed; responses are prebuilt bytes; exceptional states (incomplete requests or responses,
pipelined requests) are kept in separate tables. Delayed responses wait in a heap of due times.
Rejected: asyncio (more Python per request), a process per core (the generator needs one), an
object per connection.
"""

import contextlib
import errno
import heapq
import json
import os
import random
import select
import signal
import socket
import struct
import time
from argparse import Namespace
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from workerlab.numbers.histogram import Histogram

MAX_UNCOUNTED_SPANS = 8192  # counting in batches is cheaper
READ_BYTES = 65_536
REPORT_NS = 1_000_000_000
MAX_CACHED_REQUESTS = 64  # requests that carry an id are all different
MAX_CACHED_BYTES = 4_096  # of a request
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST

COUNTS = ("requests", "connections", "most_connections_at_once")
clock = time.monotonic_ns


class ServerTally:
    """The counts for the report. `spans`: nanoseconds per request, not yet counted."""

    def __init__(self, path: str | None) -> None:
        self.requests = 0
        self.connections = 0
        self.most_connections_at_once = 0
        self.delays_ns = 0
        self.spans: list[int] = []
        self._service = Histogram()
        self._path = path

    def count_spans(self) -> None:
        self._service.record_all(self.spans)
        self.spans.clear()

    def write(self) -> None:
        if self._path is None:
            return
        self.count_spans()
        document: dict[str, Any] = {name: getattr(self, name) for name in COUNTS}
        document["cpu_s"] = time.process_time()
        document["delays_s"] = self.delays_ns / 1e9
        document["service"] = self._service.to_json()
        publish(self._path, document)


def publish(path: str, document: Mapping[str, Any]) -> None:
    """Write JSON atomically: readers always see a complete file."""
    with open(f"{path}.part", "w") as file:
        json.dump(document, file)
    os.replace(f"{path}.part", path)


# --- requests and responses, without I/O ---------------------------------------------------------

FAULTS = ("", "reset", "stall", "garbage", "half", "status500", "close", "kept")
TEXT = b"Hello World\n"
MAX_HEAD = 65_536


class MalformedRequest(Exception):
    """Not an HTTP/1 request, or one with a chunked body, which is not supported."""


class NullRequest(NamedTuple):
    """`length`: bytes of head and body. `keep`: the client wants to keep its connection; `confirm`:
    the response must confirm that (HTTP/1.0)."""

    length: int
    keep: bool
    confirm: bool
    bodiless: bool  # HEAD: the response has no body


class Response(NamedTuple):
    """`then`: what happens to the connection afterwards; "never": nothing is sent at all."""

    data: bytes
    then: Literal["keep", "close", "reset", "never"]


def final_response(response: Response) -> Response:
    """The same response, but closing the connection, with the header that announces it."""
    if response.then != "keep":
        return response
    head, blank, body = response.data.partition(b"\r\n\r\n")
    head = head.replace(b"\r\nConnection: keep-alive", b"")
    return Response(head + b"\r\nConnection: close" + blank + body, "close")


BAD_REQUEST = Response(
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "close"
)


def read_request(data: bytes | bytearray) -> NullRequest | None:
    """The first request in `data`; None while it is incomplete. Raises MalformedRequest."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end < 0:
        # A stray client must not wait forever
        if len(data) > MAX_HEAD or (data and not bytes(data[:16]).split(b" ")[0].isalpha()):
            raise MalformedRequest
        return None
    first, *lines = bytes(data[:end]).split(b"\r\n")
    parts = first.split(b" ")
    if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise MalformedRequest
    fields = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise MalformedRequest
        fields[name.strip().lower()] = value.strip().lower()
    body = fields.get(b"content-length", b"0")
    if b"transfer-encoding" in fields or not body.isdigit() or len(body) > 12:
        raise MalformedRequest
    length = end + 4 + int(body)
    if len(data) < length:
        return None
    connection, http_1_0 = fields.get(b"connection", b""), parts[2] == b"HTTP/1.0"
    keep = b"keep-alive" in connection if http_1_0 else b"close" not in connection
    return NullRequest(length, keep, confirm=http_1_0 and keep, bodiless=parts[0] == b"HEAD")


@cache
def response_to(keep: bool, confirm: bool, bodiless: bool, body_bytes: int, fault: str) -> Response:
    """The response to a request; see NullRequest. With the fault "kept" the server closes no
    connection, even if the request says so."""
    keep = keep or fault == "kept"
    status = b"500 Internal Server Error" if fault == "status500" else b"200 OK"
    token = b"keep-alive" if confirm else b"" if keep else b"close"
    connection = b"Connection: %b\r\n" % token if token else b""
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n%b\r\n"
    head %= (status, body_bytes, connection)
    body = b"" if bodiless else (TEXT * (body_bytes // len(TEXT) + 1))[:body_bytes]
    faulty_responses: dict[str, Response] = {
        "reset": Response(b"", "reset"),
        "stall": Response(b"", "never"),
        "garbage": Response(b"\x00\x01 nothing like HTTP \xff\r\n" * 4, "close"),
        "half": Response(head + body[: len(body) // 2] if body else head[:-4], "close"),
        "close": Response(b"", "close"),
    }
    return faulty_responses.get(fault) or Response(head + body, "keep" if keep else "close")


# --- the loop -------------------------------------------------------------------------------------


class NullProcess:
    """Serves the connections of `listener` until SIGTERM or SIGINT."""

    def __init__(self, listener: socket.socket, options: Namespace) -> None:
        self._listener, self._tally = listener, ServerTally(options.report)
        self._body_bytes, self._fault = options.body_bytes, options.fault
        self._min_delay_ns, self._max_delay_ns = (round(limit * 1e9) for limit in options.delay)
        self._requests_per_connection: int = options.requests_per_connection
        self._requests_left: dict[int, int] = {}  # requests that a connection may still send
        self._random = random.Random(options.seed)
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._responses: dict[bytes, Response] = {}
        self._read_buffers: dict[int, bytearray] = {}  # bytes read, without a response yet
        self._busy: set[int] = set()  # connections whose response is not completely sent
        self._unsent: dict[int, tuple[memoryview, Response, int]] = {}
        self._due_heap: list[tuple[int, int, int, socket.socket, Response, int]] = []
        self._out_of_files = False  # whether all file descriptors are used
        self._tally.write()  # the report exists before the server is ready

    def run(self) -> None:
        wakeup, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        self._epoll.register(wakeup, select.EPOLLIN)
        self._epoll.register(self._listener, select.EPOLLIN)
        self._loop(wakeup)
        self._tally.write()

    def _loop(self, wakeup_fd: int) -> None:
        listener_fd, poll, read = self._listener.fileno(), self._epoll.poll, self._read
        report_ns = clock()
        while True:
            now_ns = clock()
            if now_ns >= report_ns:
                self._tally.write()
                report_ns = now_ns + REPORT_NS
            until_ns = min(report_ns, self._due_heap[0][0]) if self._due_heap else report_ns
            for fd, events in poll(max(0, until_ns - now_ns) / 1e9):
                if fd == listener_fd:
                    self._accept()
                elif fd == wakeup_fd:
                    return
                elif events & select.EPOLLOUT and fd in self._unsent:
                    self._send_rest(fd)
                else:
                    read(fd)
            if self._due_heap:
                self._send_due()
            if len(self._tally.spans) >= MAX_UNCOUNTED_SPANS:
                self._tally.count_spans()

    def _accept(self) -> None:
        """Accept all pending connections."""
        tally, sockets, register = self._tally, self._sockets, self._epoll.register
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._out_of_files = True
                    self._epoll.modify(self._listener, 0)
                    return
                continue  # the client is gone
            connection.setblocking(False)
            fd = connection.fileno()
            sockets[fd] = connection
            register(fd, select.EPOLLIN)
            tally.connections += 1
            tally.most_connections_at_once = max(tally.most_connections_at_once, len(sockets))

    def _read(self, fd: int) -> None:
        if (connection := self._sockets.get(fd)) is None:
            return  # closed in this iteration
        try:
            data = connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(fd)
            return
        read_ns = clock()
        response = self._responses.get(data)
        if response is None or fd in self._busy or fd in self._read_buffers:
            self._read_buffers.setdefault(fd, bytearray()).extend(data)
            self._read_buffered(fd)
        else:
            self._begin(fd, connection, response, read_ns)

    def _read_buffered(self, fd: int) -> None:
        """Respond to the complete requests, in order."""
        buffered = self._read_buffers.pop(fd)
        while buffered and fd in self._sockets and fd not in self._busy:
            try:
                request = read_request(buffered)
            except MalformedRequest:
                self._send(fd, BAD_REQUEST, clock())
                return
            if request is None:
                break
            response = response_to(
                request.keep, request.confirm, request.bodiless, self._body_bytes, self._fault
            )
            if len(self._responses) < MAX_CACHED_REQUESTS and request.length <= MAX_CACHED_BYTES:
                self._responses[bytes(buffered[: request.length])] = response
            del buffered[: request.length]
            self._begin(fd, self._sockets[fd], response, clock())
        if buffered and fd in self._sockets:
            self._read_buffers[fd] = buffered

    def _begin(self, fd: int, connection: socket.socket, response: Response, read_ns: int) -> None:
        """Respond to a complete request. The k-th request has the same delay in every run."""
        self._tally.requests += 1
        if self._requests_per_connection:
            remaining = self._requests_left.get(fd, self._requests_per_connection) - 1
            self._requests_left[fd] = remaining
            response = response if remaining > 0 else final_response(response)
        if not self._max_delay_ns:
            self._send(fd, response, read_ns)
            return
        wait_ns = round(self._random.uniform(self._min_delay_ns, self._max_delay_ns))
        self._tally.delays_ns += wait_ns
        self._busy.add(fd)
        due = (read_ns + wait_ns, self._tally.requests, fd, connection, response, read_ns)
        heapq.heappush(self._due_heap, due)

    def _send_due(self) -> None:
        now_ns, due, sockets = clock(), self._due_heap, self._sockets
        while due and due[0][0] <= now_ns:
            _, _, fd, connection, response, read_ns = heapq.heappop(due)
            if sockets.get(fd) is not connection:
                continue  # its client is gone
            self._busy.discard(fd)
            self._send(fd, response, read_ns)
            if self._read_buffers and fd in self._read_buffers:
                self._read_buffered(fd)

    def _send(
        self, fd: int, response: Response, read_ns: int, rest: memoryview | None = None
    ) -> None:
        data = response.data if rest is None else rest
        try:
            sent = self._sockets[fd].send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(fd)
            return
        if sent < len(data):
            self._unsent[fd] = memoryview(data)[sent:], response, read_ns
            if rest is None:
                self._busy.add(fd)
                self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            return
        if rest is not None:
            del self._unsent[fd]
            self._busy.discard(fd)
            self._epoll.modify(fd, select.EPOLLIN)
        if response.then == "keep":
            self._tally.spans.append(clock() - read_ns)
        else:
            self._end(fd, response, read_ns)

    def _send_rest(self, fd: int) -> None:
        rest, response, read_ns = self._unsent[fd]
        self._send(fd, response, read_ns, rest)
        if fd in self._read_buffers and fd not in self._busy:
            self._read_buffered(fd)

    def _end(self, fd: int, response: Response, read_ns: int) -> None:
        """Handle a response that was sent and whose connection is not kept."""
        if response.then == "never":
            self._busy.add(fd)
            return
        self._tally.spans.append(clock() - read_ns)
        if response.then == "reset":
            with contextlib.suppress(OSError):
                self._sockets[fd].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._sockets.pop(fd).close()  # which removes it from the epoll
        self._read_buffers.pop(fd, None)
        self._requests_left.pop(fd, None)
        self._unsent.pop(fd, None)
        self._busy.discard(fd)
        if self._out_of_files:
            self._out_of_files = False
            self._epoll.modify(self._listener, select.EPOLLIN)
