"""Responses in piece_bytes: complete, truncated, followed by more bytes, and not HTTP."""

from __future__ import annotations

import hashlib
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.load.generators.http1 import MalformedResponse, Response

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nContent-Length: 1\r\n\r\n"
    b"5\r\nhello\r\nA;x=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
)
UNTIL_CLOSE = b"HTTP/1.0 200\r\nServer: x\r\n\r\nhello"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH


def outcome_of(data: bytes, piece_bytes: int = 1, method: str = "GET") -> tuple[str, int | None]:
    """(outcome, status) of a response in pieces of this size, at the end of the stream."""
    response = Response(method)
    try:
        for start in range(0, len(data), piece_bytes):
            if response.feed(data[start : start + piece_bytes]):
                return "complete", response.status
    except MalformedResponse:
        return "garbage", response.status
    return response.end() or "complete at the end", response.status


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 10_000])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (LENGTH, ("complete", 200)),
        (CHUNKED, ("complete", 200)),
        (UNTIL_CLOSE, ("complete at the end", 200)),
        (NO_CONTENT, ("complete", 204)),
        (INTERIM, ("complete", 200)),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", ("complete", 304)),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", ("complete", 503)),
        (LENGTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n"), ("complete", 200)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nx", ("complete at the end", 200)),
    ],
)  # fmt: skip
def test_complete_responses(data: bytes, piece_bytes: int, expected: tuple[str, int]) -> None:
    assert outcome_of(data, piece_bytes) == expected


@pytest.mark.parametrize("data", [LENGTH, CHUNKED, NO_CONTENT, INTERIM])
def test_a_response_is_complete_at_its_last_byte_and_not_before(data: bytes) -> None:
    for stop in range(len(data)):
        assert outcome_of(data[:stop])[0] == ("truncated" if stop else "closed")
    assert outcome_of(data + b"more")[0] == "complete"


def test_a_response_to_head_has_no_body() -> None:
    assert outcome_of(LENGTH.removesuffix(b"hello"), method="HEAD") == ("complete", 200)


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
    assert outcome_of(data, piece_bytes)[0] == "garbage"


@given(st.binary(max_size=200), st.integers(1, 50), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n"]))
def test_any_bytes_have_an_outcome(data: bytes, piece_bytes: int, before: bytes) -> None:
    outcome = outcome_of(before + data, piece_bytes)[0]
    assert outcome in ("complete", "complete at the end", "garbage", "truncated", "closed")


@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(1, 60))
def test_any_chunks_in_any_pieces(chunks: list[bytes], piece_bytes: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    assert outcome_of(head + body + b"0\r\n\r\n", piece_bytes) == ("complete", 200)
    assert outcome_of(head + body, piece_bytes)[0] == "truncated"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5f5e0ff\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_bodies_are_not_kept_in_memory(head: bytes) -> None:
    response, block = Response("GET"), bytes(100_000)
    tracemalloc.start()
    try:
        response.feed(head)
        for _ in range(200):
            assert not response.feed(block)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(block)


@pytest.mark.parametrize("piece_bytes", [1, 3, 10_000])
@pytest.mark.parametrize(
    ("data", "body"),
    [
        (LENGTH, b"hello"),
        (CHUNKED, b"hello0123456789"),
        (UNTIL_CLOSE, b"hello"),
        (NO_CONTENT, b""),
        (INTERIM, b"hello"),
    ],
)
def test_the_size_checksum_and_digest_of_a_body(data: bytes, body: bytes, piece_bytes: int) -> None:
    response = Response("GET", checksummed=True, hashed=True)
    for start in range(0, len(data), piece_bytes):
        response.feed(data[start : start + piece_bytes])
    assert response.end() is None
    assert (response.body_bytes, response.checksum) == (len(body), zlib.crc32(body))
    assert response.digest is not None
    assert response.digest.digest() == hashlib.sha256(body).digest()
