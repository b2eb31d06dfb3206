"""The costs of requests, counted in the app and published for outside observers.

Each worker adds to sums in its own memory-mapped file: adding costs well under a microsecond and
needs no system call, and the sums survive the worker. The file's format is described in
`harness/workerlab/observe/app_metrics.py`; without WORKERLAB_METRICS there is no file.

Timed parts do not overlap: the wait for a pooled connection ends before the storage is queried.
"""

import mmap
import os
import struct
import threading
import time
from pathlib import Path

NAMES = (
    "requests",
    "local_asked",  # lookups in the cache inside the worker
    "local_hits",
    "redis_trips",
    "redis_asked",
    "redis_hits",
    "redis_failed",
    "redis_ns",
    "storage_trips",
    "storage_failed",
    "storage_ns",
    "pool_ns",  # waiting for a free connection to the storage
    "serialise_ns",  # values to bytes for Redis, and back
    "template_ns",
)
INDICES = {name: index for index, name in enumerate(NAMES)}
NAME_BYTES = " ".join(NAMES).encode()
NAME_BYTES += b" " * (-len(NAME_BYTES) % 8)
HEADER = b"METRICS1" + struct.pack("=Q", len(NAME_BYTES)) + NAME_BYTES


class Metrics:
    """The metrics of this process. Thread-safe."""

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
            self._sums[INDICES[name]] += number

    def timed(self, name: str) -> "Timed":
        """`with METRICS.timed("storage_ns"): ...`"""
        return Timed(self, name)

    def total(self, name: str) -> int:
        return self._sums[INDICES[name]]


class Timed:
    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics, self._name = metrics, name

    def __enter__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        self._metrics.add(self._name, time.monotonic_ns() - self._began_ns)


METRICS = Metrics(os.environ.get("WORKERLAB_METRICS"))
