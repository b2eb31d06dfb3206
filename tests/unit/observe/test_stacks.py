"""Stack samples of an event loop are read as they were written; anything else is rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab import codec
from workerlab.model import CodeLine, Stacks, StackSample
from workerlab.observe.map_readers import parse_lines, parse_stack_samples, read_stacks
from workerlab.server.inside.maps import HEADER, HEADER_BYTES, STACKS

MAGIC, RECORD = STACKS.magic, STACKS.record
CELLS = st.integers(-(2**40), 2**40)
ROW = st.tuples(st.integers(1, 2**62), *[CELLS] * 15)
ROWS = st.lists(ROW, max_size=8, unique_by=lambda row: row[0]).map(sorted)
LINES = st.lists(
    st.builds(CodeLine, number=st.integers(2, 1000), file=st.text(), line=st.integers(1, 99),
              function=st.text(), called=st.text(), inside=st.text(), app=st.booleans()),
    max_size=5, unique_by=lambda line: line.number,
)  # fmt: skip


def map_bytes(pid: int, rows: list[tuple[int, ...]]) -> bytes:
    head = HEADER.pack(MAGIC, pid, RECORD.size, len(rows) + 1, 0).ljust(HEADER_BYTES, b"\0")
    return head + b"".join(RECORD.pack(*row) for row in rows) + bytes(RECORD.size)


def text_of(lines: list[CodeLine]) -> bytes:
    return b"".join(codec.encode(line) + b"\n" for line in lines)


@given(st.integers(1, 2**22), ROWS)
def test_samples_are_read_as_written(pid: int, rows: list[tuple[int, ...]]) -> None:
    samples = tuple(StackSample(*row) for row in rows)
    assert parse_stack_samples(map_bytes(pid, rows)) == (pid, samples)


@given(LINES, st.data())
def test_lines_are_read_as_written_except_a_truncated_one(
    lines: list[CodeLine], data: st.DataObject
) -> None:
    text = text_of(lines)
    cut = data.draw(st.integers(0, len(text)))
    whole = text[:cut].count(b"\n")
    assert parse_lines(text[:cut]) == {line.number: line for line in lines[:whole]}


@given(LINES, st.binary(max_size=60))
def test_a_damaged_line_is_rejected_or_dropped(lines: list[CodeLine], garbage: bytes) -> None:
    try:
        by_number = parse_lines(text_of(lines) + garbage)
    except ValueError:
        assert b"\n" in garbage  # an incomplete line is dropped
        return
    assert by_number.items() >= {line.number: line for line in lines}.items()


def test_stacks_of_a_trial_need_samples_and_lines(tmp_path: Path) -> None:
    assert read_stacks(tmp_path) == Stacks()
    row = tuple(range(1, 17))
    (tmp_path / "stacks-7-0.map").write_bytes(map_bytes(7, [row]))
    with pytest.raises(OSError, match=r"stacks-7\.jsonl"):
        read_stacks(tmp_path)
    line = CodeLine(2, "orders.py", 42, "total", "time.sleep")
    (tmp_path / "stacks-7.jsonl").write_bytes(text_of([line]))
    assert read_stacks(tmp_path) == Stacks(7, (StackSample(*row),), {2: line})
