"""Reads a request out of the bytes of a connection. Knows no sockets."""

from __future__ import annotations

from typing import NamedTuple

MAX_HEAD = 65_536


class Garbage(Exception):
    """The bytes are no HTTP/1 request, or one this server does not read (chunked bodies)."""


class Request(NamedTuple):
    """`length`: bytes of head and body together. `keep`: the client wants its connection kept;
    `told`: it must be told that it is (HTTP/1.0)."""

    length: int
    keep: bool
    told: bool
    bodiless: bool  # HEAD: the answer has no body


def read_request(data: bytes | bytearray) -> Request | None:
    """The first request in `data`; None while it is not there in full. Raises Garbage."""
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD)
    if end < 0:
        if len(data) > MAX_HEAD or not _may_begin(data):
            raise Garbage
        return None
    first, *lines = bytes(data[:end]).split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Garbage
    fields = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise Garbage
        fields[name.strip().lower()] = value.strip().lower()
    if b"transfer-encoding" in fields:
        raise Garbage
    body = fields.get(b"content-length", b"0")
    if not body.isdigit() or len(body) > 12:
        raise Garbage
    length = end + 4 + int(body)
    if len(data) < length:
        return None
    wish, old = fields.get(b"connection", b""), words[2] == b"HTTP/1.0"
    keep = b"keep-alive" in wish if old else b"close" not in wish
    return Request(length, keep, told=old and keep, bodiless=words[0] == b"HEAD")


def _may_begin(data: bytes | bytearray) -> bool:
    """Whether a request may begin like this: what a stray client sends must not wait for ever."""
    word = bytes(data[:16]).split(b" ")[0]
    return word.isalpha() or not data
