"""How long threads were ready to run and had no core: the second number of Linux's
/proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst).

Each thread is read separately, as /proc/PID/schedstat covers the main thread alone. The sum adds
what each gained since it was last read, so that it does not fall when threads or processes end;
what they waited after the last read is lost. Rejected: pressure stall information (time in which
any thread waited, of a control group, which would have to be ours), taskstats (complete, but for
root alone).
"""

import contextlib
import os
from collections.abc import Iterable

NS = 1e9


class RunQueue:
    """Sums the waiting of all threads of some processes, since they began or since the first
    look."""

    def __init__(self, *, from_first: bool = False) -> None:
        self._from_first = from_first
        self._last_ns: dict[int, int] = {}  # by thread
        self._sum_ns: int | None = None

    def look(self, pids: Iterable[int]) -> None:
        self.add({thread: ns for pid in pids for thread, ns in waited_ns(pid).items()})

    def add(self, waited_ns: dict[int, int]) -> None:
        """`waited_ns`: how long each thread has waited since it began."""
        if self._sum_ns is None and waited_ns:
            self._sum_ns = 0
            if self._from_first:
                self._last_ns = dict(waited_ns)
        for thread, ns in waited_ns.items():
            before = self._last_ns.get(thread, 0)
            # Less than before: another thread with the same id
            self._sum_ns = (self._sum_ns or 0) + (ns - before if ns >= before else ns)
            self._last_ns[thread] = ns

    @property
    def waited_s(self) -> float | None:
        """None if the kernel does not count it, or before there was a thread."""
        return None if self._sum_ns is None else self._sum_ns / NS


def waited_ns(pid: int) -> dict[int, int]:
    """By thread, without those that the kernel does not count."""
    directory, by_thread = f"/proc/{pid}/task", dict[int, int]()
    try:
        for thread in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                ran, waited, slices = _read(f"{directory}/{thread}/schedstat")
                if ran or waited or slices:  # three zeros: counting is off
                    by_thread[int(thread)] = waited
    except (OSError, ValueError):
        pass  # the process has ended, or this kernel has no such file
    return by_thread


def _read(path: str) -> tuple[int, ...]:
    handle = os.open(path, os.O_RDONLY)  # costs a third of open(), and a sample has a hundred
    try:
        return tuple(map(int, os.read(handle, 128).split()))
    finally:
        os.close(handle)
