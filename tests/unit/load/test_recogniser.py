"""Any recognised response is one that http1 parses, and usual responses are recognised."""

from __future__ import annotations

import hashlib
import zlib
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.builders.responses import CHUNKED, LENGTH, OTHER
from workerlab.load.generators import http1
from workerlab.load.generators.http1 import (
    MAX_CACHED,
    MAX_RECOGNISED_HEAD_BYTES,
    MalformedResponse,
    ParsedResponse,
    Recogniser,
    ResponseParser,
)


def failure_cause(status: int) -> str | None:
    return None if 200 <= status < 400 else "status"


def recogniser_for(method: str = "GET", *, compare_bodies: bool = False) -> Recogniser:
    return Recogniser(method, failure_cause, compare_bodies=compare_bodies)


def parse(
    recogniser: Recogniser, data: bytes, method: str = "GET"
) -> tuple[ParsedResponse, int] | None:
    """(the complete success that http1 parses, the checksum of its body), which `recogniser` then
    remembers. None for other bytes."""
    parser = ResponseParser(method, checksummed=True)
    try:
        complete = parser.feed(data)
    except MalformedResponse:
        return None
    if not complete or parser.status is None or failure_cause(parser.status):
        return None
    recogniser.remember(data, parser)
    response = ParsedResponse(
        status=parser.status, body_bytes=parser.body_bytes, keeps_connection=parser.keeps_connection
    )
    return response, parser.checksum


# --- valid and invalid responses ----------------------------------------------------------

STATUS_LINES = st.one_of(
    st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK"]),
    st.sampled_from([b"HTTP/1.1 204 No", b"HTTP/1.1 304 Not", b"HTTP/1.1 302 Found"]),
    st.sampled_from([b"HTTP/1.1 100 Continue", b"HTTP/1.1 101 Up", b"HTTP/1.1 404 No"]),
    st.sampled_from([b"HTTP/1.1 200", b"HTTP/1.1 2000 OK", b"HTTP/2 200 OK", b"", b"\r\n"]),
    st.binary(max_size=20),
)
CONNECTION = st.sampled_from(
    [b"close", b"keep-alive", b"Keep-Alive, x", b"x ,CLOSE", b"close, keep-alive", b"upgrade"]
)
NAMES = st.sampled_from([b"Content-Length", b"content-length", b"Content-Length "])
FIELDS = st.one_of(
    st.builds(lambda value: b"Connection: " + value, CONNECTION),
    st.builds(lambda name, n: name + b": %d" % n, NAMES, st.integers(0, 40)),
    st.sampled_from([b"Transfer-Encoding: chunked", b"transfer-encoding:", b"Content-Length: x"]),
    st.sampled_from([b"Date: x", b"X: a\rb", b"X: a\nContent-Length: 1", b"no colon", b":", b""]),
    st.builds(lambda text: b"ETag: " + text, st.binary(max_size=8)),
)


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """Valid and almost valid responses, most of them with the right length."""
    body = draw(st.binary(max_size=40))
    fields = draw(st.lists(FIELDS, max_size=3))
    if draw(st.booleans()):
        index = draw(st.integers(0, len(fields)))
        fields.insert(index, b"Content-Length: %d" % len(body))
    head = b"\r\n".join([draw(STATUS_LINES), *fields])
    after = draw(st.sampled_from([b"", b"", b"\r\n", LENGTH]))
    return head + b"\r\n\r\n" + body + after


@given(st.lists(responses(), min_size=1, max_size=6), st.sampled_from(["GET", "HEAD"]))
@example([LENGTH, LENGTH + LENGTH, LENGTH[:-1], OTHER], "GET")
@example([b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n"], "GET")
@example([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"], "GET")
@example([LENGTH.removesuffix(b"hello"), LENGTH], "HEAD")
def test_recognised_responses_are_those_that_http1_parses(texts: list[bytes], method: str) -> None:
    """In any order: a recognised head must not affect how other bytes are recognised."""
    recogniser = recogniser_for(method)
    for data in [*texts, *texts]:
        response = recogniser.recognise(data)
        parsed = parse(recogniser, data, method)
        assert response is None or (parsed is not None and response == parsed[0])


@given(st.lists(responses(), min_size=1, max_size=4), st.data())
def test_truncated_responses_are_those_that_http1_parses(
    texts: list[bytes], draw: st.DataObject
) -> None:
    recogniser = recogniser_for()
    for data in texts:
        parse(recogniser, data)
        part = data[: draw.draw(st.integers(0, len(data)))]
        response, parsed = recogniser.recognise(part), parse(recogniser_for(), part)
        assert response is None or (parsed is not None and response == parsed[0])


def state_of(parser: ResponseParser) -> tuple[object, ...]:
    outcome = parser.complete and (parser.status, parser.keeps_connection)
    return parser.complete, parser.body_bytes, outcome, parser.checksum


@given(responses(), st.lists(st.integers(1, 40)), st.booleans(), st.booleans())
@example(LENGTH + LENGTH, [38], False, True)
@example(LENGTH, [38, 1, 1], True, True)
def test_responses_in_pieces_are_read_as_by_http1(
    data: bytes, sizes: list[int], is_known: bool, compared: bool
) -> None:
    """Compares both parsers after each piece, and at the end of the stream."""
    recogniser = recogniser_for(compare_bodies=compared)
    reference = ResponseParser("GET", checksummed=compared)
    recogniser.reference = (0, 0)
    if is_known:
        recogniser.recognise(data)
    parser = None
    for start, stop in pairwise([0, *accumulate(sizes), len(data)]):
        if not (piece := data[start:stop]) or reference.complete:
            break
        try:
            reference.feed(piece)
        except MalformedResponse:
            with pytest.raises(MalformedResponse):
                parser.feed(piece) if parser is not None else recogniser.start_parser(piece)
            return
        if parser is None:
            parser = recogniser.start_parser(piece)
        else:
            parser.feed(piece)
        assert state_of(parser) == state_of(reference)
    if parser is not None and not parser.complete:
        assert parser.end() == reference.end()


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=4))
def test_only_the_reference_is_recognised_if_bodies_are_compared(
    first: bytes, other: bytes, date: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nDate: %b\r\nContent-Length: %d\r\n\r\n"
    recogniser = recogniser_for(compare_bodies=True)
    assert recogniser.recognise(head % (b"x", len(first)) + first) is None
    recogniser.reference = len(first), zlib.crc32(first)
    if b"\r" in date or b"\n" in date:
        return
    response = recogniser.recognise(head % (date, len(other)) + other)
    assert (response is not None) == (first == other)


# --- usual responses ----------------------------------------------------------------------


def test_responses_with_different_bodies_are_recognised_by_their_heads() -> None:
    recogniser = recogniser_for()
    for body in (b"a", b"b", b"hello", b""):
        head = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        response = recogniser.recognise(head + body)
        assert response == ParsedResponse(200, len(body), keeps_connection=True)


@pytest.mark.parametrize("first_bytes", range(6))
def test_after_a_recognised_head_only_the_body_is_read(
    first_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, body = LENGTH[:-5], LENGTH[-5:]
    recogniser = recogniser_for(compare_bodies=True)
    assert recogniser.recognise(head) is None  # remembers the head
    monkeypatch.delattr(http1, "Head")  # parsing a head would fail
    reader = recogniser.start_parser(head + body[:first_bytes])
    assert reader.complete == (first_bytes == len(body))
    assert reader.feed(body[first_bytes:])
    assert (reader.status, reader.body_bytes, reader.keeps_connection) == (200, 5, True)
    assert reader.checksum == zlib.crc32(body)
    assert reader.digest is not None  # the first body is hashed
    assert reader.digest.digest() == hashlib.sha256(body).digest()
    recogniser.reference = (reader.body_bytes, reader.checksum)
    assert recogniser.start_parser(head).digest is None


def test_a_head_that_must_be_parsed_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recogniser = recogniser_for()
    assert recogniser.recognise(CHUNKED) is None
    monkeypatch.delattr(Recogniser, "_verify_head")
    assert recogniser.recognise(CHUNKED) is None
    assert recogniser.start_parser(CHUNKED).complete


CLOSING = LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (LENGTH, ParsedResponse(200, 5, keeps_connection=True)),
        (LENGTH.replace(b"1.1", b"1.0"), ParsedResponse(200, 5, keeps_connection=False)),
        (CLOSING, ParsedResponse(200, 5, keeps_connection=False)),
        (LENGTH.replace(b"200 OK", b"302 Found"), ParsedResponse(302, 5, keeps_connection=True)),
        (b"HTTP/1.1 304 X\r\nETag: x\r\n\r\n", ParsedResponse(304, 0, keeps_connection=True)),
        (LENGTH.replace(b"200 OK", b"404 Not Found"), None),
        (LENGTH + b"x", None),
        (LENGTH[:-1], None),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", None),
        (LENGTH.replace(b"5", b"5\r\nX: " + b"x" * MAX_RECOGNISED_HEAD_BYTES), None),
    ],
)
def test_recognised_and_other_responses(data: bytes, expected: ParsedResponse | None) -> None:
    assert recogniser_for().recognise(data) == expected


def test_caches_are_bounded_if_all_heads_differ() -> None:
    recogniser = recogniser_for()
    for number in range(3 * MAX_CACHED):
        data = LENGTH.replace(b"\r\n\r\n", b"\r\nETag: %d\r\n\r\n" % number)
        assert recogniser.recognise(data) == ParsedResponse(200, 5, keeps_connection=True)
        assert max(len(recogniser._heads), len(recogniser._framing_by_line)) <= MAX_CACHED


def test_an_interim_response_is_not_recognised_even_if_expected() -> None:
    recogniser = Recogniser("GET", lambda _: None, compare_bodies=False)
    assert recogniser.recognise(b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n") is None
