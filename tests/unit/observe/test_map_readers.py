"""Maps are read as they were written; anything else is rejected or read as records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab import codec
from workerlab.model.evidence import Beat, Beats, CodeLine, Stacks, StackSample
from workerlab.observe import spans
from workerlab.server.inside.maps import BEATS, HEADER, HEADER_BYTES, SPANS, STACKS

PIDS = st.integers(1, 2**22)
MOMENTS = st.integers(1, 2**62)
Row = tuple[int, ...]


def rows_of(columns: st.SearchStrategy[int], count: int, max_size: int) -> Any:
    """Rows of a moment and this many more columns, by moment."""
    row = st.tuples(MOMENTS, *[columns] * count)
    return st.lists(row, max_size=max_size, unique_by=lambda row: row[0]).map(sorted)


def map_bytes(form: Any, pid: int, rows: Sequence[Row], capacity: int) -> bytes:
    """The map of a worker that wrote `rows` in order into a ring."""
    records = [bytes(form.record.size)] * capacity
    for number, row in enumerate(rows):
        records[number % capacity] = form.record.pack(*row)
    head = HEADER.pack(form.magic, pid, form.record.size, capacity, 0)
    return head.ljust(HEADER_BYTES, b"\0") + b"".join(records)


# --- any map ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "parse"),
    [(SPANS, spans.parse_map), (BEATS, spans.parse_beats), (STACKS, spans.parse_stack_samples)],
    ids=["spans", "beats", "stacks"],
)
@given(data=st.binary(max_size=600), has_magic=st.booleans(), has_header=st.booleans())
def test_garbage_is_rejected_or_read_as_records(
    form: Any, parse: Callable[[bytes], Any], data: bytes, has_magic: bool, has_header: bool
) -> None:
    """Anything after a whole header is read as records."""
    head = form.magic if has_magic else b""
    if has_header:
        head = map_bytes(form, 7, [], 5)[:HEADER_BYTES]
    try:
        pid, *_, records = parse(head + data)
    except ValueError:
        assert len(head) < HEADER_BYTES
        return
    assert pid == 7
    assert len(records) <= len(data) // form.record.size


@pytest.mark.parametrize(
    ("kind", "read"), [("spans", spans.read_spans), ("beats", spans.read_beats)]
)
def test_an_unreadable_map_is_an_error(
    tmp_path: Path, kind: str, read: Callable[[Path], Any]
) -> None:
    (tmp_path / f"{kind}-1-0.map").write_bytes(b"no map" * 100)
    with pytest.raises(ValueError, match="map of this version"):
        read(tmp_path)


# --- beats --------------------------------------------------------------------------------------

BEAT_ROWS = rows_of(st.integers(0, 2**62), 6, max_size=12)


@given(PIDS, BEAT_ROWS, st.integers(1, 15))
def test_beats_are_read_as_written(pid: int, rows: list[Row], capacity: int) -> None:
    latest = [Beat(pid, *row) for row in rows[-capacity:]]
    parsed = spans.parse_beats(map_bytes(BEATS, pid, rows, capacity))
    assert parsed == (pid, len(rows) >= capacity, latest)


@given(BEAT_ROWS, st.data())
def test_complete_records_of_a_truncated_map_are_read(rows: list[Row], data: st.DataObject) -> None:
    whole = map_bytes(BEATS, 7, rows, 12)
    size = data.draw(st.integers(HEADER_BYTES, len(whole)))
    complete = (size - HEADER_BYTES) // BEATS.record.size
    assert spans.parse_beats(whole[:size])[2] == [Beat(7, *row) for row in rows[:complete]]


def test_a_timer_that_fires_early_is_not_late() -> None:
    _, _, (early,) = spans.parse_beats(map_bytes(BEATS, 7, [(10, 20, -3, 1, 0, -2, 0)], 3))
    assert early == Beat(7, 10, 20, 0, 1, 0, 0, 0)


def test_the_beats_of_a_trial_come_from_all_its_maps(tmp_path: Path) -> None:
    assert spans.read_beats(tmp_path) == Beats()  # as in an older run
    first, second = (10, 20_000, 0, 1, 2, 3, 4), (11, 1000, 7, 0, 0, 0, 0)
    (tmp_path / "beats-1-0.map").write_bytes(map_bytes(BEATS, 1, [first], 3))
    (tmp_path / "beats-2-0.map").write_bytes(map_bytes(BEATS, 2, [first, second], 1))
    (tmp_path / "spans-1-0.map").write_bytes(b"something else")
    assert spans.read_beats(tmp_path) == Beats((Beat(1, *first), Beat(2, *second)), cut=(2,))


# --- stack samples ------------------------------------------------------------------------------

LINES = st.lists(
    st.builds(CodeLine, number=st.integers(2, 1000), file=st.text(), line=st.integers(1, 99),
              function=st.text(), called=st.text(), inside=st.text(), app=st.booleans()),
    max_size=5, unique_by=lambda line: line.number,
)  # fmt: skip


def text_of(lines: list[CodeLine]) -> bytes:
    return b"".join(codec.encode(line) + b"\n" for line in lines)


@given(PIDS, rows_of(st.integers(-(2**40), 2**40), 15, max_size=8))
def test_samples_are_read_as_written(pid: int, rows: list[Row]) -> None:
    samples = tuple(StackSample(*row) for row in rows)
    assert spans.parse_stack_samples(map_bytes(STACKS, pid, rows, len(rows) + 1)) == (pid, samples)


@given(LINES, st.data())
def test_lines_are_read_as_written_except_a_truncated_one(
    lines: list[CodeLine], data: st.DataObject
) -> None:
    text = text_of(lines)
    truncated = text[: data.draw(st.integers(0, len(text)))]
    complete = lines[: truncated.count(b"\n")]
    assert spans.parse_lines(truncated) == {line.number: line for line in complete}


@given(LINES, st.binary(max_size=60))
def test_a_damaged_line_is_rejected_or_dropped(lines: list[CodeLine], garbage: bytes) -> None:
    try:
        by_number = spans.parse_lines(text_of(lines) + garbage)
    except ValueError:
        assert b"\n" in garbage  # an incomplete line is dropped
        return
    assert by_number.items() >= {line.number: line for line in lines}.items()


def test_stacks_of_a_trial_need_samples_and_lines(tmp_path: Path) -> None:
    assert spans.read_stacks(tmp_path) == Stacks()
    row = tuple(range(1, 17))
    (tmp_path / "stacks-7-0.map").write_bytes(map_bytes(STACKS, 7, [row], 2))
    with pytest.raises(OSError, match=r"stacks-7\.jsonl"):
        spans.read_stacks(tmp_path)
    line = CodeLine(2, "orders.py", 42, "total", "time.sleep")
    (tmp_path / "stacks-7.jsonl").write_bytes(text_of([line]))
    assert spans.read_stacks(tmp_path) == Stacks(7, (StackSample(*row),), {2: line})
