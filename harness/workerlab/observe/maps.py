"""The maps that workers leave in a trial's directory: a header and fixed-size records.

The probe creates them (`server/inside/probe.py`) for spans, costs, beats and stack samples. Here
are the readers of beats (`server/inside/heartbeat.py`) and of stack samples
(`server/inside/stacks.py`); `spans.py` reads the others."""

import os
from pathlib import Path
from struct import Struct as Layout

from msgspec import Struct

from workerlab import codec
from workerlab.model import Beat, Beats, CodeLine, Stacks, StackSample
from workerlab.server.inside import heartbeat, stacks
from workerlab.server.inside.probe import HEADER, HEADER_BYTES

ALL_MAPS = "*-*-*.map"
READ_RECORDS = 256  # per read


class MapHeader(Struct, frozen=True):
    pid: int
    capacity: int  # records
    mark: int  # of spans: whether some are missing


def header(data: bytes, magic: bytes, record: Layout) -> MapHeader:
    """Raises ValueError if this is no map of such records."""
    if len(data) < HEADER_BYTES:
        raise ValueError("a map is shorter than its header")
    map_magic, pid, record_bytes, capacity, mark = HEADER.unpack_from(data)
    if map_magic != magic or record_bytes != record.size:
        raise ValueError(f"not a map of this version: {magic.decode()}")
    return MapHeader(pid=pid, capacity=capacity, mark=mark)


def whole(data: bytes, record: Layout) -> bytes:
    """The records, without one that is cut off."""
    return data[HEADER_BYTES : len(data) - (len(data) - HEADER_BYTES) % record.size]


def used_bytes(data: bytes) -> int:
    """The bytes up to the last record that was begun (a record that was taken but never begun
    leaves a gap, not an end)."""
    record_bytes, last = HEADER.unpack_from(data)[2], len(data)
    for records in (READ_RECORDS, 1):  # in large steps: a map has up to half a million records
        empty = bytes(records * record_bytes)
        while empty and data.endswith(empty, HEADER_BYTES, last):
            last -= len(empty)
    return last


def shrink(directory: Path) -> None:
    """Truncate each map after its last record, once no process maps it."""
    for path in directory.glob(ALL_MAPS):
        data = path.read_bytes()
        if len(data) >= HEADER_BYTES:  # a worker may die while making one
            os.truncate(path, used_bytes(data))


BEAT_MAPS = "beats-*.map"


def parse_beats(data: bytes) -> tuple[int, bool, list[Beat]]:
    """(pid, whether the ring was full and may have lost some, beats by time) of one map's bytes.
    Raises ValueError if they are not a whole map of beats."""
    head = header(data, heartbeat.MAGIC, heartbeat.RECORD)
    beats = [
        Beat(head.pid, at, *(max(0, part) for part in parts))  # a timer may fire before its time
        for at, *parts in sorted(heartbeat.RECORD.iter_unpack(whole(data, heartbeat.RECORD)))
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


STACK_MAPS = "stacks-*.map"


def parse_stack_samples(data: bytes) -> tuple[int, tuple[StackSample, ...]]:
    """(pid, samples in order of time). Raises ValueError if it is not a whole map of samples."""
    head = header(data, stacks.MAGIC, stacks.RECORD)
    rows = sorted(stacks.RECORD.iter_unpack(whole(data, stacks.RECORD)))
    return head.pid, tuple(StackSample(*row) for row in rows if row[0])


def parse_lines(text: bytes) -> dict[int, CodeLine]:
    """By number. The last one may be cut off, if its worker was killed. Raises ValueError."""
    lines: dict[int, CodeLine] = {}
    rows = text.split(b"\n")
    for row in rows[:-1]:
        line = codec.decode(row, CodeLine)
        lines[line.number] = line
    return lines


def read_stacks(directory: Path) -> Stacks:
    """Of the sampled worker. Raises ValueError or OSError if its files cannot be read."""
    for path in directory.glob(STACK_MAPS):
        pid, samples = parse_stack_samples(path.read_bytes())
        lines = parse_lines((directory / f"stacks-{pid}.jsonl").read_bytes())
        return Stacks(pid, samples, lines)
    return Stacks()
