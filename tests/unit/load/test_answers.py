"""What is recognised is what http1 reads, whatever the bytes; and what is usual is recognised."""

from __future__ import annotations

import zlib
from itertools import accumulate, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workerlab.load.generators.answers import (
    MAX_CACHED,
    MAX_HEAD_BYTES,
    AnswerBody,
    Answers,
    ParsedAnswer,
)
from workerlab.load.generators.http1 import MalformedResponse, Response

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
OTHER = LENGTH.replace(b"hello", b"hullo")


def judge(status: int) -> str | None:
    return None if 200 <= status < 400 else "status"


def answers_of(method: str = "GET", *, compared: bool = False) -> Answers:
    return Answers(method, judge, compared=compared)


def fed(answers: Answers, data: bytes, method: str = "GET") -> tuple[ParsedAnswer, int] | None:
    """What http1 says of these bytes where they are a success, whole; remembered by `answers`.
    (what it is, checksum of its body)."""
    response = Response(method, summed=True)
    try:
        complete = response.feed(data)
    except MalformedResponse:
        return None
    if not complete or response.status is None or judge(response.status):
        return None
    answers.remember(data, response)
    return ParsedAnswer(response.status, response.body_bytes, response.keeps), response.checksum


# --- responses, right and wrong -----------------------------------------------------------

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
    """Some right, some nearly so; most with a length that fits."""
    body = draw(st.binary(max_size=40))
    fields = draw(st.lists(FIELDS, max_size=3))
    if draw(st.booleans()):
        place = draw(st.integers(0, len(fields)))
        fields.insert(place, b"Content-Length: %d" % len(body))
    head = b"\r\n".join([draw(STATUS_LINES), *fields])
    after = draw(st.sampled_from([b"", b"", b"\r\n", LENGTH]))
    return head + b"\r\n\r\n" + body + after


@given(st.lists(responses(), min_size=1, max_size=6), st.sampled_from(["GET", "HEAD"]))
@example([LENGTH, LENGTH + LENGTH, LENGTH[:-1], OTHER], "GET")
@example([b"HTTP/1.1 204 No\r\nContent-Length: 5\r\n\r\n"], "GET")
@example([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"], "GET")
@example([LENGTH.removesuffix(b"hello"), LENGTH], "HEAD")
def test_what_is_recognised_is_what_http1_reads(texts: list[bytes], method: str) -> None:
    """In any order, so that heads seen before cannot lend their meaning to other bytes."""
    answers = answers_of(method)
    for data in [*texts, *texts]:
        answer = answers.recognised(data)
        read = fed(answers, data, method)
        assert answer is None or (read is not None and answer == read[0])


@given(st.lists(responses(), min_size=1, max_size=4), st.data())
def test_cut_anywhere_it_is_what_http1_reads(texts: list[bytes], draw: st.DataObject) -> None:
    answers = answers_of()
    for data in texts:
        fed(answers, data)
        part = data[: draw.draw(st.integers(0, len(data)))]
        answer, read = answers.recognised(part), fed(answers_of(), part)
        assert answer is None or (read is not None and answer == read[0])


def state_of(reader: Response | AnswerBody) -> tuple[object, ...]:
    return (reader.complete, reader.body_bytes, reader.complete and (reader.status, reader.keeps),
            reader.checksum)  # fmt: skip


@given(responses(), st.lists(st.integers(1, 40)), st.booleans(), st.booleans())
@example(LENGTH + LENGTH, [38], False, True)
@example(LENGTH, [38, 1, 1], True, True)
def test_in_pieces_it_is_read_as_http1_reads_it(
    data: bytes, sizes: list[int], known: bool, compared: bool
) -> None:
    """After each piece: what has come so far, and in the end how the stream ended."""
    answers, response = answers_of(compared=compared), Response("GET", summed=compared)
    answers.reference = (0, 0)
    if known:
        answers.recognised(data)
    stops = [*accumulate(sizes), len(data)]
    reader = None
    for start, stop in pairwise([0, *stops]):
        if not (piece := data[start:stop]) or response.complete:
            break
        try:
            response.feed(piece)
        except MalformedResponse:
            with pytest.raises(MalformedResponse):
                reader.feed(piece) if reader is not None else answers.begun(piece)
            return
        if reader is None:
            reader = answers.begun(piece)
        else:
            reader.feed(piece)
        assert state_of(reader) == state_of(response)
    if reader is not None and not reader.complete:
        assert reader.end() == response.end()


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=4))
def test_where_bodies_are_compared_only_the_reference_is_recognised(
    first: bytes, other: bytes, date: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nDate: %b\r\nContent-Length: %d\r\n\r\n"
    answers = answers_of(compared=True)
    assert answers.recognised(head % (b"x", len(first)) + first) is None  # nothing to compare with
    answers.reference = len(first), zlib.crc32(first)
    if b"\r" in date or b"\n" in date:
        return
    answer = answers.recognised(head % (date, len(other)) + other)
    assert (answer is not None) == (first == other)


# --- what is usual ------------------------------------------------------------------------


def test_bodies_that_differ_are_recognised_by_their_head_and_counted() -> None:
    answers = answers_of()
    for body in (b"a", b"b", b"hello", b""):
        head = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        answer = answers.recognised(head + body)
        assert answer == ParsedAnswer(200, len(body), keeps=True)


def test_only_the_rest_of_a_body_is_read_where_its_head_came_first() -> None:
    head, body = LENGTH[:-5], LENGTH[-5:]
    assert isinstance(answers_of().begun(head), AnswerBody)
    assert isinstance(answers_of().begun(head + body[:2]), AnswerBody)
    assert isinstance(answers_of().begun(head[:-1]), Response)
    assert isinstance(answers_of(compared=True).begun(head), Response)  # the first is digested


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (LENGTH, ParsedAnswer(200, 5, keeps=True)),
        (LENGTH.replace(b"1.1", b"1.0"), ParsedAnswer(200, 5, keeps=False)),
        (
            LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
            ParsedAnswer(200, 5, keeps=False),
        ),
        (LENGTH.replace(b"200 OK", b"302 Found"), ParsedAnswer(302, 5, keeps=True)),
        (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n", ParsedAnswer(304, 0, keeps=True)),
        (LENGTH.replace(b"200 OK", b"404 Not Found"), None),
        (LENGTH + b"x", None),
        (LENGTH[:-1], None),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", None),
        (LENGTH.replace(b"5", b"5\r\nX: " + b"x" * MAX_HEAD_BYTES), None),
        (b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n", None),
    ],
)
def test_each_by_its_kind(data: bytes, wanted: ParsedAnswer | None) -> None:
    assert answers_of().recognised(data) == wanted


def test_heads_that_all_differ_take_no_memory() -> None:
    answers = answers_of()
    for number in range(3 * MAX_CACHED):
        data = LENGTH.replace(b"\r\n\r\n", b"\r\nETag: %d\r\n\r\n" % number)
        assert answers.recognised(data) == ParsedAnswer(200, 5, keeps=True)
        assert max(len(answers._heads), len(answers._tells)) <= MAX_CACHED


def test_an_interim_response_is_no_answer_whatever_is_expected() -> None:
    answers = Answers("GET", lambda status: None if status == 103 else "status", compared=False)
    assert answers.recognised(b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n") is None
