"""The maps that workers leave in a trial's directory: a header and fixed-size records.

`server/inside/maps.py` has their formats. This module reads beats and stack samples; `spans.py`
reads spans and costs."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from workerlab import codec
from workerlab.model import Beat, Beats, CodeLine, Stacks, StackSample
from workerlab.server.inside.maps import BEATS, HEADER, HEADER_BYTES, STACKS, MapFormat

ALL_MAPS = "*-*-*.map"
READ_RECORDS = 256  # per read


class MapHeader(Struct, frozen=True):
    pid: int
    capacity: int  # records
    mark: int  # of spans: whether some are missing


def header(data: bytes, form: MapFormat) -> MapHeader:
    """Raises ValueError if this is no map of this format."""
    if len(data) < HEADER_BYTES:
        raise ValueError("a map is shorter than its header")
    magic, pid, record_bytes, capacity, mark = HEADER.unpack_from(data)
    if magic != form.magic or record_bytes != form.record.size:
        raise ValueError(f"not a map of this version: {form.magic.decode()}")
    return MapHeader(pid=pid, capacity=capacity, mark=mark)


def records(data: bytes, form: MapFormat) -> Iterator[tuple[Any, ...]]:
    """The records of a map, without a last one that is cut off."""
    cut_off = (len(data) - HEADER_BYTES) % form.record.size
    return form.record.iter_unpack(data[HEADER_BYTES : len(data) - cut_off])


def used_bytes(data: bytes) -> int:
    """The bytes up to the last record that was begun (a record that was taken but never begun
    leaves a gap, not an end)."""
    record_bytes, last = HEADER.unpack_from(data)[2], len(data)
    for count in (READ_RECORDS, 1):  # in large steps: a map has up to half a million records
        empty = bytes(count * record_bytes)
        while empty and data.endswith(empty, HEADER_BYTES, last):
            last -= len(empty)
    return last


def shrink(directory: Path) -> None:
    """Truncate each map after its last record, once no process maps it."""
    for path in directory.glob(ALL_MAPS):
        data = path.read_bytes()
        if len(data) >= HEADER_BYTES:  # a worker may die while creating one
            os.truncate(path, used_bytes(data))


BEAT_MAPS = f"{BEATS.kind}-*.map"


def parse_beats(data: bytes) -> tuple[int, bool, list[Beat]]:
    """(pid, whether the ring was full and may have lost some, beats by time) of one map's bytes.
    Raises ValueError if they are not a whole map of beats."""
    head = header(data, BEATS)
    beats = [
        Beat(head.pid, at, *(max(0, part) for part in parts))  # a timer may fire before its time
        for at, *parts in sorted(records(data, BEATS))
        if at
    ]
    return head.pid, len(beats) >= head.capacity, beats


def read_beats(directory: Path) -> Beats:
    """The beats of all workers of a trial. Raises ValueError or OSError if a map cannot be read."""
    beats: list[Beat] = []
    cut: list[int] = []
    for path in sorted(directory.glob(BEAT_MAPS)):
        pid, was_cut, worker_beats = parse_beats(path.read_bytes())
        beats += worker_beats
        cut += [pid] * was_cut
    return Beats(tuple(beats), tuple(cut))


STACK_MAPS = f"{STACKS.kind}-*.map"


def parse_stack_samples(data: bytes) -> tuple[int, tuple[StackSample, ...]]:
    """(pid, samples in order of time). Raises ValueError if it is not a whole map of samples."""
    head = header(data, STACKS)
    return head.pid, tuple(StackSample(*row) for row in sorted(records(data, STACKS)) if row[0])


def parse_lines(text: bytes) -> dict[int, CodeLine]:
    """By number; a last line cut off by the death of its worker is ignored. Raises ValueError."""
    lines: dict[int, CodeLine] = {}
    rows = text.split(b"\n")
    for row in rows[:-1]:
        line = codec.decode(row, CodeLine)
        lines[line.number] = line
    return lines


def read_stacks(directory: Path) -> Stacks:
    """Stacks of the sampled worker. Raises ValueError or OSError if its files cannot be read."""
    for path in directory.glob(STACK_MAPS):
        pid, samples = parse_stack_samples(path.read_bytes())
        lines = parse_lines((directory / f"stacks-{pid}.jsonl").read_bytes())
        return Stacks(pid, samples, lines)
    return Stacks()
