"""The maps that workers leave in a trial's directory: a header and fixed-size records.

The probe creates them (`server/inside/probe.py`) for spans, costs, beats and stack samples.
"""

import os
from pathlib import Path
from struct import Struct as Layout

from msgspec import Struct

from workerlab.server.inside.probe import HEADER, HEADER_BYTES

PATTERN = "*-*-*.map"
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
    for path in directory.glob(PATTERN):
        data = path.read_bytes()
        if len(data) >= HEADER_BYTES:  # a worker may die while making one
            os.truncate(path, used_bytes(data))
