"""Reads HTTP/1 responses: parses one incrementally, or recognises a typical one at a tenth of the
cost. Does no I/O, and keeps at most the beginning of a body, if requested.

Heads and chunked bodies are parsed by a generator that yields when it needs more bytes. A body ends
after Content-Length bytes, with the last chunk, or with the stream (RFC 9112, 6.3); only chunks are
buffered, other bodies are counted as they arrive.

A recognised response is still checked to the last byte: it equals the last verified one, or its
head equals a verified head, or each line of its head is parsed; the body has the announced length,
and equals the reference if bodies are compared. Only successes are recognised. If the head arrives
without the whole body (application servers send them separately), only the body is left to read.
Everything else (a head in pieces, bytes after the end, a chunked body or one that ends with the
stream, an interim response, a failure) is parsed.

If every head is different (a Date with microseconds, a request id, an ETag), most of its lines are
cached, and only the lines that frame the body are parsed together. Rejected: one regular expression
for a whole head, which is slower than parsing its lines one by one.
"""

import hashlib
import math
import re
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

MAX_HEAD_BYTES = 65_536  # all head and trailer lines of a response
MAX_CHUNK_LINE_BYTES = 4_096  # the size line of a chunk

HEAD_END = b"\r\n\r\n"
MAX_RECOGNISED_HEAD_BYTES = 4_096
MAX_CACHED = 256  # entries of a cache; a full one is cleared
NO_RESPONSE = b"\0"  # equals no response

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
FRAMING_HEADERS = (b"content-length", b"transfer-encoding", b"connection")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")

K = TypeVar("K")
T = TypeVar("T")
Reader: TypeAlias = Generator[None, None, T]  # each `yield` waits for more bytes


class MalformedResponse(Exception):
    """The bytes are not an HTTP/1 response."""


def framing_field(line: bytes) -> tuple[bytes, bytes] | None:
    """(name, value) of a header line that affects body framing or connection reuse; None for any
    other header line. Raises MalformedResponse for a line without a colon."""
    name, colon, value = line.partition(b":")
    if not colon:
        raise MalformedResponse("a header without a colon")
    name = name.lower()
    return (name, value.strip(b" \t")) if name in FRAMING_HEADERS else None


class Head:
    """The status, body framing and connection persistence that a response head announces. Raises
    MalformedResponse for a malformed line."""

    __slots__ = ("coding", "length", "persistent", "status")

    def __init__(self, status_line: bytes) -> None:
        if (match := STATUS_LINE.fullmatch(status_line)) is None:
            raise MalformedResponse("not a status line")
        self.status = int(match[2])
        if self.status == 101:
            raise MalformedResponse("an unrequested protocol switch")
        self.persistent = match[1] == b"1"
        self.length: int | None = None
        self.coding = b""

    def add_field(self, line: bytes) -> None:
        if (pair := framing_field(line)) is None:
            return
        name, value = pair
        if name == b"transfer-encoding":
            self.coding = value.lower()
        elif name == b"connection":
            options = {option.strip() for option in value.lower().split(b",")}
            keeps_alive = self.persistent or b"keep-alive" in options
            self.persistent = keeps_alive and b"close" not in options
        else:
            if not (value.isdigit() and len(value) < 19) or self.length not in (None, int(value)):
                raise MalformedResponse("a bad Content-Length")
            self.length = int(value)

    def body_bytes(self, method: str) -> float | None:
        """The length of the body of a response to this method (RFC 9112, 6.3): an int, or math.inf
        if the body ends with the stream; None if it is chunked."""
        if method == "HEAD" or self.status in (204, 304):
            return 0
        if self.coding:  # overrides any length
            return None if self.coding.endswith(b"chunked") else math.inf
        return math.inf if self.length is None else self.length


@dataclass(frozen=True, slots=True)
class ParsedResponse:
    """A successful response: complete, or as its head announces it."""

    status: int
    body_bytes: int
    keeps_connection: bool  # whether the connection can carry another request


UNKNOWN_RESPONSE = ParsedResponse(0, 0, keeps_connection=False)


class ResponseParser:
    """An incremental parser of one response. `kept_bytes`: how much of the body to keep in
    `body_start`; `checksummed`: compute `checksum`; `hashed`: compute `digest` (SHA-256);
    `announced_response`: what a previously parsed head announces; then only the body is fed."""

    __slots__ = (
        *("body_bytes", "body_start", "checksum", "complete", "digest", "status"),
        *("_body_bytes_left", "_buffer", "_checksummed", "_has_data", "_head_bytes_left"),
        *("_inspects_body", "_kept_bytes", "_method", "_persistent", "_reader"),
    )

    def __init__(
        self,
        method: str,
        *,
        checksummed: bool = False,
        hashed: bool = False,
        kept_bytes: int = 0,
        announced_response: ParsedResponse | None = None,
    ) -> None:
        self.body_start = b""
        self._kept_bytes = kept_bytes
        self.complete = self._has_data = False
        self.body_bytes = 0  # so far
        self.checksum = 0  # CRC-32 of the body, if `checksummed`
        self.digest = hashlib.sha256() if hashed else None
        self._checksummed = checksummed
        self._inspects_body = checksummed or hashed or kept_bytes > 0
        self.status: int | None = None
        self._body_bytes_left: float | None = None  # None: in the head or in a chunked body
        if announced_response is not None:
            self.status = announced_response.status
            self._body_bytes_left = announced_response.body_bytes
            self._persistent = announced_response.keeps_connection
            return
        self._method, self._persistent = method, False
        self._buffer = bytearray()
        self._head_bytes_left = MAX_HEAD_BYTES
        self._reader = self._read()

    def feed(self, data: bytes) -> bool:
        """Parse the next bytes. Returns whether that completes the response. Raises
        MalformedResponse."""
        self._has_data = True
        left = self._body_bytes_left
        if left is None:
            self._buffer += data
            try:
                next(self._reader)
            except StopIteration as end:
                left, data = end.value, bytes(self._buffer)
            else:
                return False
        size = len(data)
        if size > left:
            data = data[: int(left)]
        self.body_bytes += len(data)
        if self._inspects_body:
            self._inspect_body(data)
        self._body_bytes_left = left - size
        self.complete = size >= left
        return self.complete

    @property
    def keeps_connection(self) -> bool:
        """Whether the connection can carry another request (RFC 9112, 9.3): not if the body
        ends with the stream, or if bytes follow the end."""
        return self._body_bytes_left == 0 and self._persistent

    def end(self) -> str | None:
        """Handle the end of the stream. Returns the cause of failure, or None if complete."""
        self.complete = self.complete or self._body_bytes_left == math.inf
        if self.complete:
            return None
        return "truncated" if self._has_data else "closed"

    def _read(self) -> Reader[float]:
        """Read the head, and a body in chunks. Returns the number of body bytes that follow."""
        head = yield from self._head()
        while head.status < 200:  # interim responses (100, 103) precede the real one
            head = yield from self._head()
        self.status, self._persistent = head.status, head.persistent
        body_bytes = head.body_bytes(self._method)
        if body_bytes is None:
            yield from self._chunks()
        return body_bytes or 0

    def _head(self) -> Reader[Head]:
        while not self._buffer.startswith(b"HTTP/1."):
            if not b"HTTP/1.".startswith(self._buffer):
                raise MalformedResponse("no status line")
            yield
        head = Head((yield from self._line(self._head_bytes_left)))
        while line := (yield from self._line(self._head_bytes_left)):
            head.add_field(line)
        return head

    def _chunks(self) -> Reader[None]:
        while True:
            match = CHUNK_LINE.fullmatch((yield from self._line(MAX_CHUNK_LINE_BYTES)))
            if match is None:
                raise MalformedResponse("a bad chunk size")
            size = int(match[1], 16)
            if size == 0:
                break
            yield from self._chunk(size)
            if (yield from self._line(MAX_CHUNK_LINE_BYTES)):
                raise MalformedResponse("a chunk longer than its size")
        while (yield from self._line(self._head_bytes_left)):
            pass  # trailers

    def _line(self, limit: int) -> Reader[bytes]:
        search_start = 0
        while (stop := self._buffer.find(b"\r\n", search_start)) < 0:
            if len(self._buffer) > limit:
                break
            search_start = max(0, len(self._buffer) - 1)  # \r\n may be split after the \r
            yield
        if not 0 <= stop <= limit:
            raise MalformedResponse("a line that is too long")
        line = bytes(self._buffer[:stop])
        del self._buffer[: stop + 2]
        self._head_bytes_left -= stop + 2
        return line

    def _chunk(self, size: int) -> Reader[None]:
        while True:
            available = min(size, len(self._buffer))
            self.body_bytes += available
            if self._inspects_body:
                with memoryview(self._buffer)[:available] as data:
                    self._inspect_body(data)
            del self._buffer[:available]
            size -= available
            if not size:
                return
            yield

    def _inspect_body(self, data: bytes | memoryview) -> None:
        if self._checksummed:
            self.checksum = zlib.crc32(data, self.checksum)
        if self.digest is not None:
            self.digest.update(data)
        if (missing_bytes := self._kept_bytes - len(self.body_start)) > 0:
            self.body_start += data[:missing_bytes]


# --- recognised responses ------------------------------------------------------------------------


class Recogniser:
    """Recognises successful responses to one kind of request. `failure_cause(status)` is None for a
    success. If bodies are compared, each must match `reference` (bytes, checksum), which is None
    until it is set. `kept_bytes`: as in ResponseParser."""

    def __init__(
        self,
        method: str,
        failure_cause: Callable[[int], str | None],
        *,
        compare_bodies: bool,
        kept_bytes: int = 0,
    ) -> None:
        self._kept_bytes = kept_bytes
        self.last_data, self.last_response = NO_RESPONSE, UNKNOWN_RESPONSE
        self.reference: tuple[int, int] | None = None
        self._method, self._failure_cause = method, failure_cause
        self._compare_bodies = compare_bodies
        self._heads: dict[bytes, ParsedResponse | None] = {}  # None: must be parsed
        self._framing_by_line: dict[bytes, bool] = {}  # by header line
        # By status line and framing lines
        self._by_framing: dict[tuple[bytes, ...], ParsedResponse | None] = {}

    def remember(self, data: bytes, parser: ResponseParser) -> None:
        """Remember the bytes of a successful response."""
        self.last_data = data
        self.last_response = ParsedResponse(
            status=parser.status or 0,
            body_bytes=parser.body_bytes,
            keeps_connection=parser.keeps_connection,
        )

    def recognise(self, data: bytes) -> ParsedResponse | None:
        """The response in these bytes, or None if they must be parsed."""
        if data == self.last_data:
            return self.last_response
        stop, response = self._split_head(data)
        if response is None or len(data) != stop + response.body_bytes:
            return None
        if self._compare_bodies and (
            (response.body_bytes, zlib.crc32(data[stop:])) != self.reference
        ):
            return None
        self.last_data, self.last_response = data, response  # the next response may be equal
        return response

    def start_parser(self, data: bytes) -> ResponseParser:
        """A parser that was fed the first bytes of a response. Raises MalformedResponse."""
        stop, announced_response = self._split_head(data)
        parser = ResponseParser(
            self._method,
            checksummed=self._compare_bodies,
            hashed=self._compare_bodies and self.reference is None,
            kept_bytes=0 if announced_response is not None else self._kept_bytes,  # it is a success
            announced_response=announced_response,
        )
        parser.feed(data if announced_response is None else data[stop:])
        return parser

    def _split_head(self, data: bytes) -> tuple[int, ParsedResponse | None]:
        """(length of the head, the response it announces or None if that must be parsed)."""
        stop = data.find(HEAD_END, 0, MAX_RECOGNISED_HEAD_BYTES) + len(HEAD_END)
        head = data[:stop]
        response = self._heads.get(head, UNKNOWN_RESPONSE)
        return stop, self._verify_head(head) if response is UNKNOWN_RESPONSE else response

    def _verify_head(self, text: bytes) -> ParsedResponse | None:
        """The response that this head announces, or None if it must be parsed."""
        status_line, *fields = text.removesuffix(HEAD_END).split(b"\r\n")
        framing_lines, cache = [status_line], self._framing_by_line
        try:
            for line in fields:
                is_framing = cache.get(line)
                if is_framing is None:
                    is_framing = self._store(cache, line, framing_field(line) is not None)
                if is_framing:
                    framing_lines.append(line)
            key = tuple(framing_lines)
            if key not in self._by_framing:
                self._store(self._by_framing, key, self._parse_framing(key))
        except MalformedResponse:
            return None
        return self._store(self._heads, text, self._by_framing[key])

    def _parse_framing(self, lines: Sequence[bytes]) -> ParsedResponse | None:
        """The response that these lines announce, or None if it must be parsed. Raises
        MalformedResponse."""
        head = Head(lines[0])
        for line in lines[1:]:
            head.add_field(line)
        body_bytes = head.body_bytes(self._method)
        if body_bytes is None or body_bytes == math.inf:
            return None
        if head.status < 200 or self._failure_cause(head.status) is not None:
            return None
        return ParsedResponse(head.status, int(body_bytes), keeps_connection=head.persistent)

    @staticmethod
    def _store(cache: dict[K, T], key: K, value: T) -> T:
        """Add to a cache of bounded size."""
        if len(cache) == MAX_CACHED:
            cache.clear()
        cache[key] = value
        return value
