"""What requests cost, counted where it happens, for whoever watches from outside.

Each worker adds to numbers in a file of its own, mapped into memory: a count costs well under a
microsecond, needs no system call, and survives the worker. A reader needs NAMES and nothing else.

    blog-PID.ledger    8 bytes of MAGIC, then a number of 64 bits per name of NAMES

Names that end in `_ns` are nanoseconds of wall-clock time between asking and having the answer,
which for code that waits includes what the event loop did for others meanwhile. The parts exclude
each other: a pool's connection is waited for before the storage is asked.

It is written where BLOG_LEDGER says; without one, where the lab keeps the trial; else nowhere.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path

MAGIC = b"ledger01"
NAMES = (
    "requests",
    "local_asked",  # of the cache inside the worker
    "local_hits",
    "redis_trips",
    "redis_asked",
    "redis_hits",
    "redis_failed",
    "redis_ns",
    "storage_trips",
    "storage_failed",
    "storage_ns",
    "pool_ns",  # until a connection to the storage was free
    "serialise_ns",  # values to bytes for Redis, and back
    "template_ns",
)
PLACES = {name: place for place, name in enumerate(NAMES)}
SIZE = len(MAGIC) + 8 * len(NAMES)


def read(path: Path) -> dict[str, int]:
    """The numbers of one worker, by name. ValueError for a file that is no ledger."""
    data = path.read_bytes()
    if len(data) != SIZE or not data.startswith(MAGIC):
        raise ValueError(f"{path.name} is no ledger of this blog")
    return dict(zip(NAMES, struct.unpack_from(f"={len(NAMES)}Q", data, len(MAGIC)), strict=True))


class Ledger:
    """Of this process. Threads may add at the same time."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        self._lock = threading.Lock()
        if self._directory is None:
            self._numbers = memoryview(bytearray(8 * len(NAMES))).cast("Q")
            return
        path = Path(self._directory, f"blog-{os.getpid()}.ledger")
        path.write_bytes(MAGIC + bytes(8 * len(NAMES)))
        with path.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), SIZE)
        self._numbers = memoryview(mapped)[len(MAGIC) :].cast("Q")

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._numbers[PLACES[name]] += number

    def timed(self, name: str) -> Timed:
        """`with ledger.timed("storage_ns"): ...`"""
        return Timed(self, name)

    def total(self, name: str) -> int:
        return self._numbers[PLACES[name]]


class Timed:
    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger, self._name = ledger, name

    def __enter__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        self._ledger.add(self._name, time.monotonic_ns() - self._began_ns)


LEDGER = Ledger(os.environ.get("BLOG_LEDGER") or os.environ.get("WORKERLAB_TRIAL"))
