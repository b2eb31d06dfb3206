"""What the null server answers: made once, sent many times."""

from __future__ import annotations

from typing import Literal, NamedTuple

from harness.server.null.requests import Request

FAULTS = ("", "reset", "stall", "garbage", "half", "status500", "close")
TEXT = b"Hello World\n"

Ending = Literal["keep", "close", "reset", "never"]


class Reply(NamedTuple):
    """`then`: what becomes of the connection after it; "never": nothing is ever sent."""

    data: bytes
    then: Ending


BAD_REQUEST = Reply(
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "close"
)


def _head(status: bytes, body_bytes: int, connection: bytes) -> bytes:
    line = b"Connection: %b\r\n" % connection if connection else b""
    return (
        b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n%b\r\n"
    ) % (status, body_bytes, line)  # fmt: skip


class Replies:
    """The answers of one null server, by what a request wants of its connection."""

    def __init__(self, body_bytes: int, fault: str) -> None:
        self._body = (TEXT * (body_bytes // len(TEXT) + 1))[:body_bytes]
        self._fault = fault
        self._made: dict[tuple[bool, bool, bool], Reply] = {}

    def to(self, request: Request) -> Reply:
        wishes = request[1:]
        if (reply := self._made.get(wishes)) is None:
            reply = self._made[wishes] = self._make(request)
        return reply

    def _make(self, request: Request) -> Reply:
        status = b"500 Internal Server Error" if self._fault == "status500" else b"200 OK"
        wish = b"keep-alive" if request.told else b"" if request.keep else b"close"
        head = _head(status, len(self._body), wish)
        body = b"" if request.bodiless else self._body
        spoilt: dict[str, Reply] = {
            "reset": Reply(b"", "reset"),
            "stall": Reply(b"", "never"),
            "garbage": Reply(b"\x00\x01 nothing like HTTP \xff\r\n" * 4, "close"),
            "half": Reply(head + body[: len(body) // 2] if body else head[:-4], "close"),
            "close": Reply(b"", "close"),
        }
        return spoilt.get(self._fault) or Reply(head + body, "keep" if request.keep else "close")
