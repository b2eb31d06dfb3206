"""Maps of beats are read as they were written; anything else is rejected."""

from __future__ import annotations

from pathlib import Path

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
    """The map of a worker that wrote `rows` in order into a ring."""
    places = [bytes(RECORD.size)] * capacity
    for number, row in enumerate(rows):
        places[number % capacity] = RECORD.pack(*row)
    head = HEADER.pack(MAGIC, pid, RECORD.size, capacity, 0)
    return head.ljust(HEADER_BYTES, b"\0") + b"".join(places)


def beat(pid: int, row: Row) -> Beat:
    return Beat(pid, *row)


@given(st.integers(1, 2**22), ROWS, st.integers(1, 15))
def test_round_trip(pid: int, rows: list[Row], capacity: int) -> None:
    latest = [beat(pid, row) for row in rows[-capacity:]]
    assert parse_beats(map_bytes(pid, rows, capacity)) == (pid, len(rows) >= capacity, latest)


@given(ROWS, st.data())
def test_complete_records_of_a_truncated_map_are_read(rows: list[Row], data: st.DataObject) -> None:
    whole = map_bytes(7, rows, 12)
    size = data.draw(st.integers(HEADER_BYTES, len(whole)))
    left = (size - HEADER_BYTES) // RECORD.size
    assert parse_beats(whole[:size])[2] == [beat(7, row) for row in rows[:left]]


def test_a_timer_that_fires_early_is_not_late() -> None:
    _, _, (early,) = parse_beats(map_bytes(7, [(10, 20, -3, 1, 0, -2, 0)], 3))
    assert early == beat(7, (10, 20, 0, 1, 0, 0, 0))


def test_the_beats_of_a_trial_come_from_all_its_maps(tmp_path: Path) -> None:
    first, second = (10, 20_000, 0, 1, 2, 3, 4), (11, 1000, 7, 0, 0, 0, 0)
    (tmp_path / "beats-1-0.map").write_bytes(map_bytes(1, [first], 3))
    (tmp_path / "beats-2-0.map").write_bytes(map_bytes(2, [first, second], 1))
    (tmp_path / "spans-1-0.map").write_bytes(b"something else")
    assert read_beats(tmp_path) == Beats((beat(1, first), beat(2, second)), cut=(2,))


def test_an_older_run_has_no_beats(tmp_path: Path) -> None:
    assert read_beats(tmp_path) == Beats()
