"""Responses in pieces: complete, truncated, followed by more bytes, and not HTTP."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.responses import CHUNKED, INTERIM, LENGTH, NO_CONTENT, UNTIL_CLOSE
from workerlab.load.generators.http1 import MalformedResponse, ResponseParser


def outcome_in(parser: ResponseParser, data: bytes, piece_bytes: int) -> str:
    """The outcome of a response in pieces of this size, at the end of the stream."""
    try:
        for start in range(0, len(data), piece_bytes):
            if parser.feed(data[start : start + piece_bytes]):
                return parser.end() or "complete"
    except MalformedResponse:
        return "garbage"
    return parser.end() or "complete at the end"


def outcome_of(data: bytes, piece_bytes: int = 1) -> str:
    return outcome_in(ResponseParser("GET"), data, piece_bytes)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "outcome", "status", "body"),
    [
        (LENGTH, "complete", 200, b"hello"),
        (CHUNKED, "complete", 200, b"hello0123456789"),
        (UNTIL_CLOSE, "complete at the end", 200, b"hello"),
        (NO_CONTENT, "complete", 204, b""),
        (INTERIM, "complete", 200, b"hello"),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "complete", 304, b""),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "complete", 503, b""),
        (LENGTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n"), "complete", 200, b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx", "complete at the end", 200, b"x"),
    ],
)
def test_complete_responses(
    data: bytes, piece_bytes: int, outcome: str, status: int, body: bytes
) -> None:
    parser = ResponseParser("GET", checksummed=True, hashed=True)
    assert outcome_in(parser, data, piece_bytes) == outcome
    assert (parser.status, parser.body_bytes) == (status, len(body))
    assert parser.checksum == zlib.crc32(body)
    assert parser.digest.digest() == hashlib.sha256(body).digest()


@pytest.mark.parametrize("data", [LENGTH, CHUNKED, NO_CONTENT, INTERIM])
def test_a_response_is_complete_at_its_last_byte_and_not_before(data: bytes) -> None:
    for stop in range(len(data)):
        assert outcome_of(data[:stop]) == ("truncated" if stop else "closed")
    assert outcome_of(data + b"more") == "complete"


def test_a_response_to_head_has_no_body() -> None:
    assert outcome_in(ResponseParser("HEAD"), LENGTH.removesuffix(b"hello"), 1) == "complete"


@pytest.mark.parametrize("piece_bytes", [1, 10_000])
@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\x00\xff\x00\xff\x00",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 999 No\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 5000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 12_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000,
    ],
)
def test_malformed_responses(data: bytes, piece_bytes: int) -> None:
    assert outcome_of(data, piece_bytes) == "garbage"


@given(st.binary(max_size=200), st.integers(1, 50), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]))
def test_any_bytes_have_an_outcome(data: bytes, piece_bytes: int, before: bytes) -> None:
    outcome = outcome_of(before + data, piece_bytes)
    assert outcome in ("complete", "complete at the end", "garbage", "truncated", "closed")


@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(1, 60))
def test_any_chunks_in_any_pieces(chunks: list[bytes], piece_bytes: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    assert outcome_of(head + body + b"0\r\n\r\n", piece_bytes) == "complete"
    assert outcome_of(head + body, piece_bytes) == "truncated"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5f5e0ff\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_bodies_are_not_kept_in_memory(head: bytes) -> None:
    parser, block = ResponseParser("GET"), bytes(100_000)
    tracemalloc.start()
    try:
        parser.feed(head)
        for _ in range(200):
            assert not parser.feed(block)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(block)
