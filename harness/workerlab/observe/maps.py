"""The maps that workers leave in a trial's directory: a header, and records of one size.

The probe makes them (`server/inside/probe.py`), for its spans and for the beats of the event loop.
"""

import os
from pathlib import Path
from struct import Struct as Layout

from msgspec import Struct

from workerlab.server.inside.probe import HEADER, HEADER_BYTES

PATTERN = "*-*-*.map"
AT_ONCE = 256  # records read in one go


class Header(Struct, frozen=True):
    pid: int
    capacity: int  # records
    mark: int  # of spans: whether some are missing


def header(data: bytes, magic: bytes, record: Layout) -> Header:
    """Raises ValueError when this is no map of such records."""
    if len(data) < HEADER_BYTES:
        raise ValueError("a map is shorter than its header")
    found, pid, record_bytes, capacity, mark = HEADER.unpack_from(data)
    if found != magic or record_bytes != record.size:
        raise ValueError(f"not a map of this version: {magic.decode()}")
    return Header(pid, capacity, mark)


def whole(data: bytes, record: Layout) -> bytes:
    """Its records, without one that is cut off."""
    return data[HEADER_BYTES : len(data) - (len(data) - HEADER_BYTES) % record.size]


def used_bytes(data: bytes) -> int:
    """How much of a map holds records. Threads begin in order, so the last one that began ends it
    (a record that was taken but never started leaves a gap, not an end)."""
    record_bytes, last = HEADER.unpack_from(data)[2], len(data)
    for records in (AT_ONCE, 1):  # most of a map is empty: half a million records
        empty = bytes(records * record_bytes)
        while empty and data.endswith(empty, HEADER_BYTES, last):
            last -= len(empty)
    return last


def shrink(directory: Path) -> None:
    """Cut each map after its last record, once no process maps it any more."""
    for path in directory.glob(PATTERN):
        data = path.read_bytes()
        if len(data) >= HEADER_BYTES:  # a worker may die while it makes one
            os.truncate(path, used_bytes(data))
