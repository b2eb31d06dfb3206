"""Parses the null server's requests, and builds its replies once. Does no I/O."""

from functools import cache
from typing import Literal, NamedTuple

FAULTS = ("", "reset", "stall", "garbage", "half", "status500", "close", "kept")
TEXT = b"Hello World\n"
MAX_HEAD = 65_536


class MalformedRequest(Exception):
    """Not an HTTP/1 request, or one with a chunked body, which is not supported."""


class NullRequest(NamedTuple):
    """`length`: bytes of head and body. `keep`: the client wants to keep its connection; `confirm`:
    the reply must confirm that (HTTP/1.0)."""

    length: int
    keep: bool
    confirm: bool
    bodiless: bool  # HEAD: the answer has no body


class Reply(NamedTuple):
    """`then`: what happens to the connection afterwards; "never": nothing is sent at all."""

    data: bytes
    then: Literal["keep", "close", "reset", "never"]


def last_reply(reply: Reply) -> Reply:
    """The same reply, but closing the connection, with the header that says so."""
    if reply.then != "keep":
        return reply
    head, blank, body = reply.data.partition(b"\r\n\r\n")
    head = head.replace(b"\r\nConnection: keep-alive", b"")
    return Reply(head + b"\r\nConnection: close" + blank + body, "close")


BAD_REQUEST = Reply(
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", "close"
)


def read_request(data: bytes | bytearray) -> NullRequest | None:
    """The first request in `data`; None while it is incomplete. Raises MalformedRequest."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end < 0:
        # A stray client must not wait for ever
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
def reply_to(keep: bool, confirm: bool, bodiless: bool, body_bytes: int, fault: str) -> Reply:
    """The reply to a request; see NullRequest. With the fault "kept" the server closes no
    connection, even if the request says so."""
    keep = keep or fault == "kept"
    status = b"500 Internal Server Error" if fault == "status500" else b"200 OK"
    token = b"keep-alive" if confirm else b"" if keep else b"close"
    connection = b"Connection: %b\r\n" % token if token else b""
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n%b\r\n"
    head %= (status, body_bytes, connection)
    body = b"" if bodiless else (TEXT * (body_bytes // len(TEXT) + 1))[:body_bytes]
    faulty: dict[str, Reply] = {
        "reset": Reply(b"", "reset"),
        "stall": Reply(b"", "never"),
        "garbage": Reply(b"\x00\x01 nothing like HTTP \xff\r\n" * 4, "close"),
        "half": Reply(head + body[: len(body) // 2] if body else head[:-4], "close"),
        "close": Reply(b"", "close"),
    }
    return faulty.get(fault) or Reply(head + body, "keep" if keep else "close")
