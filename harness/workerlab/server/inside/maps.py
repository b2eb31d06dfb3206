"""The maps in which each worker leaves its records: a header and fixed-size records in shared
memory, so that they survive its death. `observe/map_readers.py` and `observe/spans.py` read them.
Stdlib only, syntax of Python 3.10, as all files here.

A map is fully allocated when it is created: a sparse file would end the worker with SIGBUS on a
full disk.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from typing import NamedTuple

HEADER = struct.Struct("<8sIIQI")  # magic, pid, bytes per record, records, full (0 or 1)
HEADER_BYTES = 64


class MapFormat(NamedTuple):
    """`kind`: prefix of the names of its files. `magic`: their first bytes; changes with
    `record`."""

    kind: str
    magic: bytes
    record: struct.Struct


# Start, end, accepted (0: not known), request id (empty: none)
SPANS = MapFormat("spans", b"WLSPANS1", struct.Struct("<qqq16s"))
# CPU; wait for a core; total time of its steps (0: it has none), and how long others' steps held
# them up; its route, from 1 (0: none); GIL samples, and how many of them found the GIL held; how
# often its thread went to sleep
COSTS = MapFormat("costs", b"WLCOSTS1", struct.Struct("<8q"))
# Nanoseconds: time, time since the last beat, delay; CPU and wait for a core of this thread, then
# of the others of the process
BEATS = MapFormat("beats", b"WLBEATS1", struct.Struct("<7q"))
# The fields of StackSample in nanoseconds: time; since the last sample: time, this thread's wait
# for a core, CPU and wait for a core of the loop's thread, CPU of all others; delay of this sample;
# how long the beat is overdue; since the last beat: time, CPU and wait for a core of the loop's
# thread, CPU of others; for how long the same call was on the stack. Then whether the loop's thread
# sleeps, and the numbers of two lines: the loop's, another thread's
STACKS = MapFormat("stacks", b"WLSTACK1", struct.Struct("<16q"))


def free_path(directory: str, form: MapFormat) -> str:
    """An unused path. Maps of one pid are numbered, as pids are reused after a worker's death."""
    name = f"{form.kind}-{os.getpid()}"
    paths = (os.path.join(directory, f"{name}-{n}.map") for n in itertools.count())
    return next(path for path in paths if not os.path.exists(path))


def create_map(path: str, form: MapFormat, capacity: int) -> mmap.mmap:
    """A file of `capacity` records, allocated on disk, mapped shared. Raises OSError if full."""
    size = HEADER_BYTES + capacity * form.record.size
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size)
        else:
            for remaining in range(size, 0, -(1 << 20)):
                os.write(handle, bytes(min(remaining, 1 << 20)))
        shared = mmap.mmap(handle, size)
        # Touch all pages, or the first request on each pays for a page fault
        shared[:: mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(handle)
    HEADER.pack_into(shared, 0, form.magic, os.getpid(), form.record.size, capacity, 0)
    return shared
