"""What an app counts about itself while it is loaded, added up over its processes.

Any app may publish such app metrics. Where the environment variable WORKERLAB_METRICS names a
directory, each process of the app makes a file in it, `metrics-PID.bin`, writes all of it at once,
and adds to the sums while it serves (in memory that it maps: then adding needs no system call):

    8 bytes       METRICS1
    8 bytes       L, how many bytes the names take; a multiple of 8
    L bytes       the names, ASCII, separated by blanks and filled up with blanks
    8 bytes each  the sums, in the order of the names

Numbers are unsigned, of 64 bits, in the machine's own byte order. Sums only ever grow; those of a
process that has ended still count. What they mean follows from their names:

    requests           served; what all others are divided by, so that it must be there
    X_ns               nanoseconds of wall-clock time spent in X; parts should exclude each other
    X_asked, X_hits    how often a cache was asked, and had the answer: both, or neither
    any other name     a number of something, such as round trips to a database

An app in Python:

    names = b"requests cart_asked cart_hits db_ns".ljust(40)
    with open(f"{os.environ['WORKERLAB_METRICS']}/metrics-{os.getpid()}.bin", "w+b") as file:
        file.write(b"METRICS1" + struct.pack("=Q", len(names)) + names + bytes(4 * 8))
        file.flush()
        sums = memoryview(mmap.mmap(file.fileno(), 0))[16 + len(names) :].cast("Q")
    sums[0] += 1  # in each request; with threads, under a lock

Each worker makes its own, after the fork (`os.register_at_fork`), as `apps/blog/metrics.py` does.
"""

import struct
import time
from collections import Counter
from pathlib import Path

from workerlab.model import AppMetricsSample

FILES = "metrics-*.bin"
HEADER = struct.Struct("=8sQ")
MAGIC = b"METRICS1"


def read_metrics(path: Path) -> dict[str, int]:
    """The sums of one process, by name. Raises OSError; ValueError for a file of another kind."""
    data = path.read_bytes()
    try:
        magic, length = HEADER.unpack_from(data)
        words, numbers = data[HEADER.size :][:length], data[HEADER.size :][length:]
        names = words.decode("ascii").split()
        sums = struct.unpack(f"={len(names)}Q", numbers)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(f"{path.name} does not hold app metrics: {error}") from error
    if magic != MAGIC or length % 8 or len(words) < length:
        raise ValueError(f"{path.name} does not hold app metrics")
    return dict(zip(names, sums, strict=True))


def sample_app_metrics(directory: Path) -> AppMetricsSample | None:
    """Of all files in a trial's directory; None where there are none: the app does not count.
    Raises OSError, ValueError."""
    # An empty one was made a moment ago
    paths = [path for path in directory.glob(FILES) if path.stat().st_size]
    totals, at_ns = Counter[str](), time.monotonic_ns()
    for path in paths:
        totals.update(read_metrics(path))
    return AppMetricsSample(at_ns, dict(totals)) if paths else None
