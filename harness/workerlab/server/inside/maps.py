"""The maps in which each worker stores its records: a header and fixed-size records in shared
memory, so that they survive its death. The workers write and the lab reads them with this module;
`observe` gives the records their meaning. Stdlib only, syntax of Python 3.10, like all files here.

A map is fully allocated when it is created: a sparse file would end the worker with SIGBUS on a
full disk.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

HEADER = struct.Struct("<8sIIQI")  # magic, pid, bytes per record, records, full (0 or 1)
HEADER_BYTES = 64
READ_RECORDS = 256  # per read

# Maps of spans and costs are viewed as arrays of 64-bit cells
CELL = 8
FULL_CELL = 3  # the header's cell for `full`
SCRATCH = 4  # cells 4 to 7 of the header, for what must not be recorded
FIRST = HEADER_BYTES // CELL  # the cell of the first record


class MapFormat(NamedTuple):
    """`kind`: prefix of its file names. `magic`: the first bytes of its files; changes with
    `record`."""

    kind: str
    magic: bytes
    record: struct.Struct

    @property
    def cells(self) -> int:
        """Cells of a record."""
        return self.record.size // CELL


# Start, end, accepted (0: not known), request id (empty: none)
SPANS = MapFormat("spans", b"WLSPANS1", struct.Struct("<qqq16s"))
END, ACCEPTED, NAME = range(1, 4)  # offsets in cells after the start
# CPU; wait for a core; total time of its steps (0: it has none), and how long other requests held
# them up; its route, from 1 (0: none); GIL samples, and how many of them found the GIL held; how
# often its thread went to sleep
COSTS = MapFormat("costs", b"WLCOSTS1", struct.Struct("<8q"))
QUEUED, STEPS, HELD_UP, ROUTE, GIL_SAMPLES, GIL_HELD, SLEPT = range(1, COSTS.cells)  # after the CPU
# Nanoseconds: time, time since the last beat, delay; CPU and wait for a core of this thread, then
# of the other threads of the process
BEATS = MapFormat("beats", b"WLBEATS1", struct.Struct("<7q"))
# The fields of StackSample in nanoseconds: time; since the last sample: time, this thread's wait
# for a core, CPU and wait for a core of the loop's thread, CPU of all other threads; delay of this
# sample; how long the beat is overdue; since the last beat: time, CPU and wait for a core of the
# loop's thread, CPU of other threads; for how long the same call was on the stack. Then whether the
# loop's thread sleeps, and the numbers of two lines: the loop's, another thread's
STACKS = MapFormat("stacks", b"WLSTACK1", struct.Struct("<16q"))


def free_path(directory: str, form: MapFormat) -> str:
    """An unused path. Maps of one pid are numbered: pids are reused after a worker's death."""
    name = f"{form.kind}-{os.getpid()}"
    paths = (os.path.join(directory, f"{name}-{n}.map") for n in itertools.count())
    return next(path for path in paths if not os.path.exists(path))


def create_map(path: str, form: MapFormat, capacity: int) -> mmap.mmap:
    """A file of `capacity` records, allocated and mapped shared. Raises OSError on a full disk."""
    size = HEADER_BYTES + capacity * form.record.size
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)
        else:
            for remaining in range(size, 0, -(1 << 20)):
                os.write(handle, bytes(min(remaining, 1 << 20)))
        shared = mmap.mmap(handle, size)
        # Touch all pages: otherwise the first request on each would wait for a page fault
        shared[:: mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(handle)
    HEADER.pack_into(shared, 0, form.magic, os.getpid(), form.record.size, capacity, 0)
    return shared


def create_cells(directory: str, form: MapFormat, capacity: int) -> memoryview[int]:
    """The cells of a new map of this process. Raises OSError if the disk is full."""
    return memoryview(create_map(free_path(directory, form), form, capacity)).cast("q")


def scratch(size: int) -> memoryview[int]:
    """Memory of this process alone, of `size` bytes, in place of a map: a forked child inherits its
    parent's map, and must not write there."""
    return memoryview(bytearray(size)).cast("q")


class Ring:
    """A new map of this process that keeps the latest records. Raises OSError if the disk is
    full."""

    def __init__(self, directory: str, form: MapFormat, capacity: int) -> None:
        self._shared = create_map(free_path(directory, form), form, capacity)
        self._record, self._place = form.record, HEADER_BYTES

    def write(self, *fields: int) -> None:
        self._record.pack_into(self._shared, self._place, *fields)
        self._place += self._record.size
        if self._place == len(self._shared):
            self._place = HEADER_BYTES


# --- for the lab ----------------------------------------------------------------------------------


class MapHeader(NamedTuple):
    pid: int
    capacity: int  # records
    full: bool  # whether spans are missing


def header(data: bytes, form: MapFormat) -> MapHeader:
    """Raises ValueError if this is not a map in this format."""
    if len(data) < HEADER_BYTES:
        raise ValueError("a map is shorter than its header")
    magic, pid, record_bytes, capacity, full = HEADER.unpack_from(data)
    if magic != form.magic or record_bytes != form.record.size:
        raise ValueError(f"not a map of this version: {form.magic.decode()}")
    return MapHeader(pid=pid, capacity=capacity, full=bool(full))


def records(data: bytes, form: MapFormat) -> Iterator[tuple[Any, ...]]:
    """The records of a map; a truncated last record is left out."""
    cut_off = (len(data) - HEADER_BYTES) % form.record.size
    return form.record.iter_unpack(data[HEADER_BYTES : len(data) - cut_off])


def used_bytes(data: bytes) -> int:
    """The bytes up to the last record that was begun (a record that was reserved but never begun
    leaves a gap, not an end)."""
    record_bytes, last = HEADER.unpack_from(data)[2], len(data)
    for count in (READ_RECORDS, 1):  # in large steps: a map has up to half a million records
        empty = bytes(count * record_bytes)
        while empty and data.endswith(empty, HEADER_BYTES, last):
            last -= len(empty)
    return last


def shrink(directory: Path) -> None:
    """Truncate each map after its last record, once no process maps it."""
    for path in directory.glob("*-*-*.map"):
        data = path.read_bytes()
        if len(data) >= HEADER_BYTES:  # a worker may die while creating one
            os.truncate(path, used_bytes(data))
