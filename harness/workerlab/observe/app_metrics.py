"""Reads metrics that an app publishes while it is under load, added up over its processes.

Any app can publish them. If the environment variable WORKERLAB_METRICS names a directory,
each process of the app creates a file in it, `metrics-PID.bin`, writes it in one call, and adds to
the sums while it serves (in mapped memory, which needs no system call):

    8 bytes       METRICS1
    8 bytes       L, the length of the names in bytes; a multiple of 8
    L bytes       the names, ASCII, separated by and padded with blanks
    8 bytes each  the sums, in the order of the names

Numbers are unsigned 64-bit integers in native byte order. Sums never decrease; those of a process
that has ended still count. Their names define their meaning:

    requests           served; required, since every other metric is divided by it
    X_ns               nanoseconds of wall-clock time spent in X; parts should not overlap
    X_asked, X_hits    lookups of a cache, and hits: both, or neither
    any other name     a count, such as round trips to a database

An app in Python:

    names = b"requests cart_asked cart_hits db_ns".ljust(40)
    with open(f"{os.environ['WORKERLAB_METRICS']}/metrics-{os.getpid()}.bin", "w+b") as file:
        file.write(b"METRICS1" + struct.pack("=Q", len(names)) + names + bytes(4 * 8))
        file.flush()
        sums = memoryview(mmap.mmap(file.fileno(), 0))[16 + len(names) :].cast("Q")
    sums[0] += 1  # in each request; with threads, under a lock

Each worker creates its own file after the fork (`os.register_at_fork`), like
`apps/blog/metrics.py`.
"""

import struct
import time
from collections import Counter
from pathlib import Path

from workerlab.model.evidence import AppMetricsSample

FILES = "metrics-*.bin"
HEADER = struct.Struct("=8sQ")
MAGIC = b"METRICS1"


def read_metrics(path: Path) -> dict[str, int]:
    """The sums of one process, by name. Raises OSError; ValueError for a file of another kind."""
    data = path.read_bytes()
    try:
        magic, length = HEADER.unpack_from(data)
        name_bytes, sum_bytes = data[HEADER.size :][:length], data[HEADER.size :][length:]
        names = name_bytes.decode("ascii").split()
        sums = struct.unpack(f"={len(names)}Q", sum_bytes)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{path.name} does not hold app metrics: {error}") from error
    if magic != MAGIC or length % 8 or len(name_bytes) < length:
        raise ValueError(f"{path.name} does not hold app metrics")
    return dict(zip(names, sums, strict=True))


def sample_app_metrics(directory: Path) -> AppMetricsSample | None:
    """The sum of all files in a trial's directory; None if there are none. Raises OSError,
    ValueError."""
    # An empty file is still being created
    paths = [path for path in directory.glob(FILES) if path.stat().st_size]
    totals, at_ns = Counter[str](), time.monotonic_ns()
    for path in paths:
        totals.update(read_metrics(path))
    return AppMetricsSample(at_ns, dict(totals)) if paths else None
