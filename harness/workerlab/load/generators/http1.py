"""Parses one HTTP/1 response incrementally. Does no I/O; keeps at most the beginning of the body,
if requested.

A reader is a generator that yields when it needs more bytes. A body ends after Content-Length
bytes, with the last chunk, or with the stream (RFC 9112, 6.3). `Head` parses the lines of a head;
`answers` uses it too.
"""

import hashlib
import math
import re
import zlib
from collections.abc import Generator
from typing import TypeAlias, TypeVar

MAX_HEAD = 65_536  # bytes of all head and trailer lines of a response
MAX_LINE = 4_096  # bytes of a chunk's size line

STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\r\n]*)?")
FRAMING = (b"content-length", b"transfer-encoding", b"connection")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]  # each `yield` waits for more bytes


class MalformedResponse(Exception):
    """The bytes are not an HTTP/1 response."""


def framing(line: bytes) -> tuple[bytes, bytes] | None:
    """(name, value) of a header line that affects body framing or connection reuse; None for any
    other header line. Raises MalformedResponse for a line without a colon."""
    name, colon, value = line.partition(b":")
    if not colon:
        raise MalformedResponse("a header without a colon")
    name = name.lower()
    return (name, value.strip(b" \t")) if name in FRAMING else None


class Head:
    """The status, body framing and connection persistence (`lasting`) that a response head
    announces. Raises MalformedResponse for a malformed line."""

    __slots__ = ("coding", "lasting", "length", "status")

    def __init__(self, status_line: bytes) -> None:
        if (match := STATUS_LINE.fullmatch(status_line)) is None:
            raise MalformedResponse("not a status line")
        self.status = int(match[2])
        if self.status == 101:
            raise MalformedResponse("a protocol switch nobody asked for")
        self.lasting = match[1] == b"1"
        self.length: int | None = None
        self.coding = b""

    def field(self, line: bytes) -> None:
        if (pair := framing(line)) is None:
            return
        name, value = pair
        if name == b"transfer-encoding":
            self.coding = value.lower()
        elif name == b"connection":
            options = {option.strip() for option in value.lower().split(b",")}
            kept = self.lasting or b"keep-alive" in options
            self.lasting = kept and b"close" not in options
        else:
            if not (value.isdigit() and len(value) < 19) or self.length not in (None, int(value)):
                raise MalformedResponse("a bad Content-Length")
            self.length = int(value)


class Response:
    """An incremental parser of one response. `kept`: bytes of the body to keep in `begin`;
    `summed`: compute `checksum`; `hashed`: compute `digest` (SHA-256)."""

    def __init__(
        self, method: str, *, summed: bool = False, hashed: bool = False, kept: int = 0
    ) -> None:
        self.begin = b""
        self._kept = kept
        self.status: int | None = None
        self.complete = False
        self.body_bytes = 0  # so far
        self.checksum = 0  # CRC-32 of the body, if `summed`
        self.digest = hashlib.sha256() if hashed else None
        self._summed = summed
        self._method = method
        self._buffer = bytearray()
        self._begun = self._until_close = self._lasting = False
        self._head_left = MAX_HEAD
        self._reader = self._read()

    def feed(self, data: bytes) -> bool:
        """Parse the next bytes; True once the response is complete. Raises MalformedResponse."""
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
        """Handle the end of the stream. Returns the cause of failure, None if complete."""
        self.complete = self.complete or self._until_close
        if self.complete:
            return None
        return "truncated" if self._begun else "closed"

    def _read(self) -> Reading[None]:
        head = yield from self._head()
        while head.status < 200:  # interim responses (100, 103) precede the real one
            head = yield from self._head()
        self.status, self._lasting = head.status, head.lasting
        if self._method == "HEAD" or head.status in (204, 304):
            return
        # RFC 9112, 6.3: any transfer coding overrides the length; unless the last one is chunked
        # the body runs to the end of the stream.
        if head.coding.endswith(b"chunked"):
            yield from self._chunks()
        elif head.length is not None and not head.coding:
            yield from self._skip(head.length)
        else:
            self._until_close = True
            yield from self._skip(math.inf)

    def _head(self) -> Reading[Head]:
        while not self._buffer.startswith(b"HTTP/1."):
            if not b"HTTP/1.".startswith(self._buffer):
                raise MalformedResponse("no status line")
            yield
        head = Head((yield from self._line(self._head_left)))
        while line := (yield from self._line(self._head_left)):
            head.field(line)
        return head

    def _chunks(self) -> Reading[None]:
        while True:
            match = CHUNK_LINE.fullmatch((yield from self._line(MAX_LINE)))
            if match is None:
                raise MalformedResponse("a bad chunk size")
            size = int(match[1], 16)
            if size == 0:
                break
            yield from self._skip(size)
            if (yield from self._line(MAX_LINE)):
                raise MalformedResponse("a chunk longer than its size")
        while (yield from self._line(self._head_left)):
            pass  # trailers

    def _line(self, limit: int) -> Reading[bytes]:
        searched = 0
        while (stop := self._buffer.find(b"\r\n", searched)) < 0:
            if len(self._buffer) > limit:
                break
            searched = max(0, len(self._buffer) - 1)  # \r\n may be split after the \r
            yield
        if not 0 <= stop <= limit:
            raise MalformedResponse("a line without end")
        line = bytes(self._buffer[:stop])
        del self._buffer[: stop + 2]
        self._head_left -= stop + 2
        return line

    def _skip(self, count: float) -> Reading[None]:
        """Consume the next `count` bytes of the body."""
        while True:
            size = int(min(count, len(self._buffer)))
            self.body_bytes += size
            if len(self.begin) < self._kept:
                self.begin += bytes(self._buffer[: min(size, self._kept - len(self.begin))])
            if self._summed or self.digest is not None:
                with memoryview(self._buffer) as view:
                    self.checksum = zlib.crc32(view[:size], self.checksum)
                    if self.digest is not None:
                        self.digest.update(view[:size])
            del self._buffer[:size]
            count -= size
            if not count:
                return
            yield
