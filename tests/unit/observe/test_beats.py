"""Maps of beats: what is written is what is read, and what is no map is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.model import Beat, Beats
from workerlab.observe.map_readers import parse_beats, read_beats
from workerlab.server.inside.maps import BEATS, HEADER, HEADER_BYTES

MAGIC, RECORD = BEATS.magic, BEATS.record
NS = st.integers(0, 2**62)
MOMENTS = st.integers(1, 2**62)
ROWS = st.lists(st.tuples(MOMENTS, *[NS] * 6), max_size=12, unique_by=lambda row: row[0]).map(
    sorted
)
Row = tuple[int, ...]


def map_bytes(pid: int, rows: list[Row], capacity: int) -> bytes:
    """As a worker leaves it that wrote `rows`, one after the other, into a ring."""
    places = [bytes(RECORD.size)] * capacity
    for number, row in enumerate(rows):
        places[number % capacity] = RECORD.pack(*row)
    head = HEADER.pack(MAGIC, pid, RECORD.size, capacity, 0)
    return head.ljust(HEADER_BYTES, b"\0") + b"".join(places)


def beat(pid: int, row: Row) -> Beat:
    return Beat(pid, *row)


@given(st.integers(1, 2**22), ROWS, st.integers(1, 15))
def test_round_trip(pid: int, rows: list[Row], capacity: int) -> None:
    kept = [beat(pid, row) for row in rows[-capacity:]]
    assert parse_beats(map_bytes(pid, rows, capacity)) == (pid, len(rows) >= capacity, kept)


@given(st.binary(max_size=600), st.sampled_from([b"", MAGIC, map_bytes(7, [], 5)[:HEADER_BYTES]]))
def test_garbage_is_refused_or_read_but_never_crashes(data: bytes, head: bytes) -> None:
    """Whatever stands behind a whole header is records."""
    try:
        pid, _, beats = parse_beats(head + data)
    except ValueError:
        assert len(head) < HEADER_BYTES
        return
    assert pid == 7
    assert len(beats) <= len(data) // RECORD.size


@given(ROWS, st.data())
def test_a_truncated_map_has_its_whole_records(rows: list[Row], data: st.DataObject) -> None:
    whole = map_bytes(7, rows, 12)
    size = data.draw(st.integers(HEADER_BYTES, len(whole)))
    left = (size - HEADER_BYTES) // RECORD.size
    assert parse_beats(whole[:size])[2] == [beat(7, row) for row in rows[:left]]


def test_a_timer_that_fires_before_its_time_is_not_late() -> None:
    _, _, (one,) = parse_beats(map_bytes(7, [(10, 20, -3, 1, 0, -2, 0)], 3))
    assert one == beat(7, (10, 20, 0, 1, 0, 0, 0))


def test_a_trial_is_all_its_maps(tmp_path: Path) -> None:
    one, two = (10, 20_000, 0, 1, 2, 3, 4), (11, 1000, 7, 0, 0, 0, 0)
    (tmp_path / "beats-1-0.map").write_bytes(map_bytes(1, [one], 3))
    (tmp_path / "beats-2-0.map").write_bytes(map_bytes(2, [one, two], 1))
    (tmp_path / "spans-1-0.map").write_bytes(b"something else")
    assert read_beats(tmp_path) == Beats((beat(1, one), beat(2, two)), cut=(2,))


def test_a_run_from_before_has_none(tmp_path: Path) -> None:
    assert read_beats(tmp_path) == Beats()


def test_a_map_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "beats-1-0.map").write_bytes(b"no map" * 100)
    with pytest.raises(ValueError, match="map of this version"):
        read_beats(tmp_path)
