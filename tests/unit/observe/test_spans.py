"""Span maps are read as they were written; anything else is rejected."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.model.evidence import Span, Spans
from workerlab.observe.spans import SpanFollower, parse_map, read_spans, serving_pids
from workerlab.server.inside.maps import (
    HEADER,
    HEADER_BYTES,
    READ_RECORDS,
    SPANS,
    shrink,
    used_bytes,
)

MAGIC, RECORD = SPANS.magic, SPANS.record
NS = st.integers(1, 2**63 - 1)
ASCII = st.characters(min_codepoint=1, max_codepoint=127)
PIDS = st.integers(1, 2**22)


class Row(NamedTuple):
    start_ns: int
    end_ns: int | None
    accept_ns: int | None
    name: str | None

    def packed(self) -> bytes:
        name = (self.name or "").encode()
        return RECORD.pack(self.start_ns, self.end_ns or 0, self.accept_ns or 0, name)

    def span(self, pid: int) -> Span:
        return Span(pid, self.start_ns, self.end_ns, self.accept_ns, self.name)


ANY_ROW = st.builds(
    Row, NS, st.none() | NS, st.none() | NS, st.none() | st.text(ASCII, min_size=1, max_size=16)
)
ROWS = st.lists(ANY_ROW, max_size=20)


def map_bytes(pid: int, rows: Sequence[Row], *, free: int = 0, full: bool = False) -> bytes:
    head = HEADER.pack(MAGIC, pid, RECORD.size, len(rows) + free, full)
    body = b"".join(row.packed() for row in rows)
    return head.ljust(HEADER_BYTES, b"\0") + body + bytes(free * RECORD.size)


@given(PIDS, ROWS, st.integers(0, 5), st.booleans())
def test_a_map_is_read_as_written(pid: int, rows: list[Row], free: int, full: bool) -> None:
    data = map_bytes(pid, rows, free=free, full=full)
    assert parse_map(data) == (pid, full, [row.span(pid) for row in rows])


@given(PIDS, ROWS, st.integers(0, 5), st.data())
def test_complete_records_of_a_truncated_map_are_read(
    pid: int, rows: list[Row], free: int, data: st.DataObject
) -> None:
    whole = map_bytes(pid, rows, free=free)
    size = data.draw(st.integers(0, len(whole)))
    if size < HEADER_BYTES:
        with pytest.raises(ValueError, match="header"):
            parse_map(whole[:size])
    else:
        complete = (size - HEADER_BYTES) // RECORD.size
        assert parse_map(whole[:size])[2] == [row.span(pid) for row in rows[:complete]]


@given(PIDS, ROWS, st.integers(0, HEADER_BYTES - 1), st.binary(min_size=1, max_size=8))
def test_another_version_is_rejected(pid: int, rows: list[Row], at: int, other: bytes) -> None:
    data = bytearray(map_bytes(pid, rows))
    data[at : at + len(other)] = other
    magic, _, record_bytes, _, _ = HEADER.unpack_from(data)
    if (magic, record_bytes) == (MAGIC, RECORD.size):
        parse_map(bytes(data))
    else:
        with pytest.raises(ValueError, match="version"):
            parse_map(bytes(data))


def test_a_request_id_that_is_not_text_is_kept() -> None:
    (span,) = parse_map(map_bytes(7, []) + RECORD.pack(1, 2, 0, b"\xff\x00\xfe"))[2]
    assert span.request_id is not None


FREE_RECORDS = st.integers(0, 5) | st.integers(2 * READ_RECORDS - 2, 2 * READ_RECORDS + 2)


@given(PIDS, st.lists(st.none() | ANY_ROW), FREE_RECORDS)
def test_shrink_keeps_every_span(pid: int, rows: list[Row | None], free: int) -> None:
    """A record that a thread reserved and never wrote stays empty between others."""
    records = [bytes(RECORD.size) if row is None else row.packed() for row in rows]
    data = map_bytes(pid, []) + b"".join(records) + bytes(free * RECORD.size)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, f"spans-{pid}-0.map")
        path.write_bytes(data)
        before = read_spans(Path(directory))
        shrink(Path(directory))
        assert read_spans(Path(directory)) == before
        assert path.stat().st_size == used_bytes(data) <= len(data)
        used = max((number for number, row in enumerate(rows, 1) if row), default=0)
        assert path.stat().st_size == HEADER_BYTES + used * RECORD.size


def test_the_spans_of_a_trial_come_from_all_its_maps(tmp_path: Path) -> None:
    first, second = Row(10, 20, None, None), Row(11, None, 9, "r1")
    (tmp_path / "spans-1-0.map").write_bytes(map_bytes(1, [first], free=3))
    (tmp_path / "spans-2-0.map").write_bytes(map_bytes(2, [second], full=True))
    (tmp_path / "spans-3-0.map").write_bytes(map_bytes(3, [], free=3))
    (tmp_path / "worker-1.json").write_text("{}")
    assert read_spans(tmp_path) == Spans((first.span(1), second.span(2)), full=(2,))
    assert serving_pids(tmp_path) == {1, 2}


@given(ROWS, st.data())
def test_following_a_map_reports_each_start_and_end_once(
    rows: list[Row], data: st.DataObject
) -> None:
    """However many spans have started and ended by each poll."""
    with tempfile.TemporaryDirectory() as directory:
        follower = SpanFollower(Path(directory))
        path, started, ended = Path(directory, "spans-7-0.map"), list[str](), list[str]()
        ended_rows: set[int] = set()
        path.write_bytes(bytes(HEADER_BYTES))  # a map that is being created has no pid yet
        assert follower.poll() == []
        for count in sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4))):
            ended_rows |= set(data.draw(st.lists(st.integers(0, max(0, count - 1)), max_size=5)))
            written = [
                row._replace(end_ns=row.end_ns if n in ended_rows else None, name=str(n))
                for n, row in enumerate(rows[:count])
            ]
            path.write_bytes(map_bytes(7, written, free=2))
            for span in follower.poll():
                name = span.request_id or ""
                started += [name] if name not in started else []
                assert span.pid == 7
                ended += [name] if span.end_ns else []
            assert started == [str(n) for n in range(count)]
            assert sorted(ended) == sorted(str(n) for n, row in enumerate(written) if row.end_ns)
            assert follower.poll() == []
        assert not follower.full
