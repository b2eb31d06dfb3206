"""Parses one HTTP/1 response incrementally. It does no I/O, and keeps at most the beginning of the
body, if requested.

A reader is a generator that yields when it needs more bytes. A body ends after Content-Length
bytes, with the last chunk, or with the stream (RFC 9112, 6.3). `Head` parses the lines of a head;
`answers` also uses it.
"""

import hashlib
import math
import re
import zlib
from collections.abc import Generator
from typing import TypeAlias, TypeVar

MAX_HEAD_BYTES = 65_536  # all head and trailer lines of a response
MAX_CHUNK_LINE_BYTES = 4_096  # the size line of a chunk

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
FRAMING_HEADERS = (b"content-length", b"transfer-encoding", b"connection")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")

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


class Response:
    """An incremental parser of one response. `kept_bytes`: how much of the body to keep in
    `body_start`; `checksummed`: compute `checksum`; `hashed`: compute `digest` (SHA-256)."""

    def __init__(
        self, method: str, *, checksummed: bool = False, hashed: bool = False, kept_bytes: int = 0
    ) -> None:
        self.body_start = b""
        self._kept_bytes = kept_bytes
        self.status: int | None = None
        self.complete = False
        self.body_bytes = 0  # so far
        self.checksum = 0  # CRC-32 of the body, if `checksummed`
        self.digest = hashlib.sha256() if hashed else None
        self._checksummed = checksummed
        self._method = method
        self._buffer = bytearray()
        self._has_data = self._until_close = self._persistent = False
        self._head_bytes_left = MAX_HEAD_BYTES
        self._reader = self._read()

    def feed(self, data: bytes) -> bool:
        """Parse the next bytes; True once the response is complete. Raises MalformedResponse."""
        self._has_data = True
        self._buffer += data
        try:
            next(self._reader)
        except StopIteration:
            self.complete = True
        return self.complete

    @property
    def keeps_connection(self) -> bool:
        """Whether the connection can carry another request (RFC 9112, 9.3)."""
        return self.complete and self._persistent and not self._until_close and not self._buffer

    def end(self) -> str | None:
        """Handle the end of the stream. Returns the cause of failure, None if complete."""
        self.complete = self.complete or self._until_close
        if self.complete:
            return None
        return "truncated" if self._has_data else "closed"

    def _read(self) -> Reader[None]:
        head = yield from self._head()
        while head.status < 200:  # interim responses (100, 103) precede the real one
            head = yield from self._head()
        self.status, self._persistent = head.status, head.persistent
        if self._method == "HEAD" or head.status in (204, 304):
            return
        # RFC 9112, 6.3: any transfer coding overrides the length; unless the last one is chunked
        # the body runs to the end of the stream.
        if head.coding.endswith(b"chunked"):
            yield from self._chunks()
        elif head.length is not None and not head.coding:
            yield from self._consume_body(head.length)
        else:
            self._until_close = True
            yield from self._consume_body(math.inf)

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
            yield from self._consume_body(size)
            if (yield from self._line(MAX_CHUNK_LINE_BYTES)):
                raise MalformedResponse("a chunk longer than its size")
        while (yield from self._line(self._head_bytes_left)):
            pass  # trailers

    def _line(self, limit: int) -> Reader[bytes]:
        searched = 0
        while (stop := self._buffer.find(b"\r\n", searched)) < 0:
            if len(self._buffer) > limit:
                break
            searched = max(0, len(self._buffer) - 1)  # \r\n may be split after the \r
            yield
        if not 0 <= stop <= limit:
            raise MalformedResponse("a line that is too long")
        line = bytes(self._buffer[:stop])
        del self._buffer[: stop + 2]
        self._head_bytes_left -= stop + 2
        return line

    def _consume_body(self, count: float) -> Reader[None]:
        """Consume the next `count` bytes of the body."""
        while True:
            size = int(min(count, len(self._buffer)))
            self.body_bytes += size
            if len(self.body_start) < self._kept_bytes:
                missing = self._kept_bytes - len(self.body_start)
                self.body_start += bytes(self._buffer[: min(size, missing)])
            if self._checksummed or self.digest is not None:
                with memoryview(self._buffer) as view:
                    self.checksum = zlib.crc32(view[:size], self.checksum)
                    if self.digest is not None:
                        self.digest.update(view[:size])
            del self._buffer[:size]
            count -= size
            if not count:
                return
            yield
