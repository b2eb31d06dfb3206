"""Reads how long threads of this process have waited for a core, as counted by the kernel. Used in
the workers, and by the lab for its own threads. Stdlib only, syntax of Python 3.10, like all files
here.
"""

from __future__ import annotations

import contextlib
import os
from os import pread

SCHEDSTAT = "/proc/thread-self/schedstat"
TASKS = "/proc/self/task"
MAX_ENDED_CPU_NS = 1_000_000  # CPU of ended threads above which their lost wait matters


def counted_ns(handle: int) -> tuple[int, int]:
    """(CPU, wait for a core) of the thread of this open `schedstat`; the CPU of a running thread is
    as of the last tick."""
    cpu, queued, _ = pread(handle, 64, 0).split()
    return int(cpu), int(queued)


def queued_ns(handle: int) -> int:
    """The wait for a core of the thread of this open `schedstat`."""
    return int(pread(handle, 64, 0).split(None, 2)[1])


def counts_waits() -> bool:
    """Whether this kernel counts how long threads wait for a core; without that, a busy machine
    would look like a blocking call."""
    try:
        with open(SCHEDSTAT, "rb") as file:
            return int(file.read().split()[0]) > 0
    except (OSError, ValueError, IndexError):
        return False


class OtherThreads:
    """Measures how long the other threads of this process waited for a core: a thread that holds
    the GIL and has no core holds up the loop without using CPU."""

    def __init__(self) -> None:
        self.own = os.path.basename(os.readlink("/proc/thread-self"))
        self.threads: dict[str, tuple[int, int, int]] = {}  # (open schedstat, last CPU, last wait)
        self.queued_ns(0)  # otherwise a thread's past CPU would hide that of threads that end later

    def close(self) -> None:
        for handle, _, _ in self.threads.values():
            os.close(handle)

    def queued_ns(self, computed_ns: int) -> int | None:
        """The wait since the last call; for a new thread its whole wait, to err on the high side.
        `computed_ns`: the CPU of all other threads since then. None if threads that have ended used
        a part of it, since their wait is lost."""
        before, self.threads, total = self.threads, {}, 0
        for name in os.listdir(TASKS):
            if name == self.own:
                continue
            with contextlib.suppress(OSError):  # it has ended
                if name not in before:
                    before[name] = os.open(f"{TASKS}/{name}/schedstat", os.O_RDONLY), 0, 0
                handle, last_cpu, last = before[name]
                cpu, queued = counted_ns(handle)
                total += queued - last
                computed_ns -= cpu - last_cpu
                self.threads[name] = handle, cpu, queued
                del before[name]
        for handle, _, _ in before.values():
            os.close(handle)
        return total if computed_ns <= MAX_ENDED_CPU_NS else None
