"""What requests cost, counted where it happens, for whoever watches from outside.

Each worker adds to sums in a file of its own, mapped into memory: adding costs well under a
microsecond, needs no system call, and survives the worker. The file's format is the lab's, as
`harness/workerlab/observe/app_metrics.py` describes it; without WORKERLAB_METRICS there is no file.

The parts that are timed exclude each other: a pool's connection is waited for before the storage is
asked.
"""

import mmap
import os
import struct
import threading
import time
from pathlib import Path

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
WORDS = " ".join(NAMES).encode()
WORDS += b" " * (-len(WORDS) % 8)
HEADER = b"METRICS1" + struct.pack("=Q", len(WORDS)) + WORDS


class Metrics:
    """Of this process. Threads may add at the same time."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        self._lock = threading.Lock()
        data: bytearray | mmap.mmap = bytearray(HEADER + bytes(8 * len(NAMES)))
        if self._directory:
            path = Path(self._directory, f"metrics-{os.getpid()}.bin")
            path.write_bytes(data)
            with path.open("r+b") as file:
                data = mmap.mmap(file.fileno(), 0)
        self._sums = memoryview(data)[len(HEADER) :].cast("Q")

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._sums[PLACES[name]] += number

    def timed(self, name: str) -> "Timed":
        """`with METRICS.timed("storage_ns"): ...`"""
        return Timed(self, name)

    def total(self, name: str) -> int:
        return self._sums[PLACES[name]]


class Timed:
    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics, self._name = metrics, name

    def __enter__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        self._metrics.add(self._name, time.monotonic_ns() - self._began_ns)


METRICS = Metrics(os.environ.get("WORKERLAB_METRICS"))
