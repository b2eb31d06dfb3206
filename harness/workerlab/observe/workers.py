"""CPU and memory of the workers, for what a request needs of them.

CPU is read from the clock of each process (`clock_getcpuclockid`): the counter of which the first
number of /proc/PID/task/TID/schedstat is a thread's share, summed by the kernel up to this moment
and over threads that have ended, which a sum over /proc/PID/task would lose. Elsewhere than on
Linux, and for the programs that a worker ran and awaited, it is what psutil says.

Memory is the proportional set size (Pss) of /proc/PID/smaps: pages that processes share are
divided between them, so that a sum over all of them counts each once. What the lab has mapped into
a worker, its spans for one, is left out: of half a million spans that would be 20 MB.
"""

import re
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil
from msgspec import Struct

from workerlab.model import MemorySample, WorkersSample

CPUCLOCK_SCHED = 2  # of a process's clock, in its lowest three bits (linux/posix-timers.h)
KB = 1024
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")  # how the lines of a mapping begin
COUNTED = ("Pss", "Private_Clean", "Private_Dirty")


def sample_workers(pids: Collection[int]) -> WorkersSample:
    """Raises psutil.Error where one has ended or is hidden."""
    at_ns = time.monotonic_ns()
    return WorkersSample(at_ns, {pid: ran_s(pid) for pid in pids})


def ran_s(pid: int) -> float:
    """CPU seconds of a process since it began, and of the programs that it awaited."""
    times = psutil.Process(pid).cpu_times()
    own_s = float(times.user + times.system)
    if sys.platform == "linux":
        own_s = time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    return own_s + float(times.children_user + times.children_system)


class Held(Struct, frozen=True):
    """Bytes."""

    pss: int
    private: int


def sample_memory(
    masters: Iterable[int | None], workers: Iterable[int], directory: Path
) -> MemorySample | None:
    """What servers and workers hold; what is mapped from `directory` is the lab's. None where this
    system does not say what processes share. Raises OSError where one has ended or is hidden."""
    if not Path("/proc/self/smaps").exists():
        return None
    at_ns = time.monotonic_ns()
    above = [held(_smaps(pid), directory) for pid in masters if pid is not None]
    each = {pid: held(_smaps(pid), directory) for pid in workers}
    pss = sum(one.pss for one in (*above, *each.values()))
    return MemorySample(at_ns, pss, {pid: one.private for pid, one in each.items()})


def _smaps(pid: int) -> str:
    return Path(f"/proc/{pid}/smaps").read_text(errors="replace")


def held(smaps: str, but: Path) -> Held:
    """Of all mappings, but for those of files in this directory."""
    sums, counts = dict.fromkeys(COUNTED, 0), True
    for line in smaps.splitlines():
        if MAPPING.match(line):
            counts = str(but) not in line
        elif counts and (name := line.partition(":")[0]) in sums:
            sums[name] += int(line.split()[1]) * KB
    return Held(sums["Pss"], sums["Private_Clean"] + sums["Private_Dirty"])
