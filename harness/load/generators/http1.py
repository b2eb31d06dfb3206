"""Reads one HTTP/1 response from bytes as they come. Knows no sockets and keeps no body.

A reader is a generator that asks for more bytes by yielding. A response is complete when its body
is: by Content-Length, by the last chunk, or by the end of the stream (RFC 9112, 6.3).
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
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?")

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]  # each `yield` says: more bytes, please


class Garbage(Exception):
    """The bytes are not an HTTP/1 response."""


class Response:
    def __init__(self, method: str, *, summed: bool = False, hashed: bool = False) -> None:
        self.status: int | None = None
        self.complete = False
        self.body_bytes = 0  # so far
        self.checksum = 0  # CRC-32 of the body, where that is asked for
        self.digest = hashlib.sha256() if hashed else None
        self._summed = summed
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
            yield from self._skip(math.inf)

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
                options = {option.strip() for option in value.lower().split(b",")}
                kept = self._lasting or b"keep-alive" in options
                self._lasting = kept and b"close" not in options
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

    def _skip(self, count: float) -> Reading[None]:
        """The next `count` bytes are of the body."""
        while True:
            size = int(min(count, len(self._buffer)))
            self.body_bytes += size
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
