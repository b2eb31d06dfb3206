"""Reads the span maps the probe left in a trial's directory, and shrinks them to what is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from harness.model import Span, Spans
from harness.server.inside.probe import HEADER, HEADER_BYTES, MAGIC, RECORD

PATTERN = "spans-*.map"


def parse_map(data: bytes) -> tuple[int, bool, list[Span]]:
    """(pid, full, spans in the order they began) of one map's bytes.

    Raises ValueError when the bytes are not a whole span map.
    """
    if len(data) < HEADER_BYTES:
        raise ValueError("a span map is shorter than its header")
    magic, pid, record_bytes, _capacity, full = HEADER.unpack_from(data)
    if magic != MAGIC or record_bytes != RECORD.size:
        raise ValueError("not a span map of this version")
    return pid, bool(full & 0xFF), list(_spans(pid, data))


def _spans(pid: int, data: bytes) -> Iterator[Span]:
    whole = len(data) - (len(data) - HEADER_BYTES) % RECORD.size
    for start, end, accepted, request_id in RECORD.iter_unpack(data[HEADER_BYTES:whole]):
        if start:
            name = None
            if request_id[0]:
                name = request_id.rstrip(b"\0").decode("ascii", "replace")
            yield Span(pid, start, end or None, accepted or None, name)


def used_bytes(data: bytes) -> int:
    """How much of a map holds records. Threads begin in order, so the last one that began ends it
    (a record that was taken but never started leaves a gap, not an end)."""
    last = len(data)
    while last - RECORD.size >= HEADER_BYTES and not any(data[last - RECORD.size : last]):
        last -= RECORD.size
    return last


def read_spans(directory: Path) -> Spans:
    """All spans of a trial. Raises ValueError or OSError when a map cannot be read whole."""
    spans: list[Span] = []
    full: list[int] = []
    for path in sorted(directory.glob(PATTERN)):
        pid, was_full, found = parse_map(path.read_bytes())
        spans += found
        full += [pid] * was_full
    return Spans(tuple(spans), tuple(full))


def served(directory: Path) -> set[int]:
    """Pids of the workers that have begun a request."""
    found = set()
    for path in directory.glob(PATTERN):
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES + RECORD.size)
        if len(head) == HEADER_BYTES + RECORD.size and any(head[HEADER_BYTES:]):
            found.add(HEADER.unpack_from(head)[1])
    return found


def shrink(directory: Path) -> None:
    """Cut each map after its last record, once no process maps it any more."""
    for path in directory.glob(PATTERN):
        os.truncate(path, used_bytes(path.read_bytes()))
