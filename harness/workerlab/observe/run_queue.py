"""How long threads were ready to run and had no core: the second number of Linux's
/proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst).

Each thread is read for itself: /proc/PID/schedstat is the main thread's alone. A sum adds what each
has gained since it was last seen, so that threads and processes that end do not make it fall; what
they waited between the last look and their end is not in it. Rejected: pressure stall information
(the time in which anybody waited, of a control group, which needs one of our own), taskstats (exact
to the end, but for root alone).
"""

import contextlib
import os
from collections.abc import Iterable

NS = 1e9


class RunQueue:
    """Sums the waiting of all threads of some processes, from 0 or from the first look on."""

    def __init__(self, *, from_first: bool = False) -> None:
        self._from_first = from_first
        self._seen_ns: dict[int, int] = {}  # by thread
        self._sum_ns: int | None = None

    def look(self, pids: Iterable[int]) -> None:
        self.add({thread: ns for pid in pids for thread, ns in waited_ns(pid).items()})

    def add(self, waited_ns: dict[int, int]) -> None:
        """What these threads have waited since they began."""
        if self._sum_ns is None and waited_ns:
            self._sum_ns = 0
            if self._from_first:
                self._seen_ns = dict(waited_ns)
        for thread, ns in waited_ns.items():
            before = self._seen_ns.get(thread, 0)
            # Less than it had is another thread of the same number
            self._sum_ns = (self._sum_ns or 0) + (ns - before if ns >= before else ns)
            self._seen_ns[thread] = ns

    @property
    def waited_s(self) -> float | None:
        """None where this kernel does not say, or before there was a thread."""
        return None if self._sum_ns is None else self._sum_ns / NS


def waited_ns(pid: int) -> dict[int, int]:
    """By thread, those of which the kernel knows nothing left out."""
    directory, found = f"/proc/{pid}/task", dict[int, int]()
    try:
        for thread in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                ran, waited, slices = _read(f"{directory}/{thread}/schedstat")
                if ran or waited or slices:  # three zeros: the kernel was told not to count
                    found[int(thread)] = waited
    except (OSError, ValueError):
        pass  # the process has ended, or this kernel has no such file
    return found


def _read(path: str) -> tuple[int, ...]:
    handle = os.open(path, os.O_RDONLY)  # a third of what open() costs, a hundred times a sample
    try:
        return tuple(map(int, os.read(handle, 128).split()))
    finally:
        os.close(handle)
