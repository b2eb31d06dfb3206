"""CPU and memory of the workers, to compute what a request needs.

CPU is read from the clock of each process (`clock_getcpuclockid`), which the kernel sums up to this
moment, including threads that have ended; a sum over /proc/PID/task would lose these. On other
systems than Linux, and for the child processes of a worker, psutil is used.

Memory is the proportional set size (Pss) of /proc/PID/smaps: shared pages are divided between the
processes, so that a sum over all counts each page once. The lab's own maps in a worker are left
out: half a million spans would be 20 MB.
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
    """Raises psutil.Error if one has ended or is hidden."""
    at_ns = time.monotonic_ns()
    return WorkersSample(at_ns, {pid: ran_s(pid) for pid in pids})


def ran_s(pid: int) -> float:
    """CPU seconds of a process since it began, and of the children it has waited for."""
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
    """Memory of servers and workers, without files mapped from `directory`, which are the lab's.
    None if the system has no Pss. Raises OSError if a process has ended or is hidden."""
    if not Path("/proc/self/smaps").exists():
        return None
    at_ns = time.monotonic_ns()
    of_masters = [held(_smaps(pid), directory) for pid in masters if pid is not None]
    by_worker = {pid: held(_smaps(pid), directory) for pid in workers}
    pss = sum(memory.pss for memory in (*of_masters, *by_worker.values()))
    return MemorySample(at_ns, pss, {pid: memory.private for pid, memory in by_worker.items()})


def _smaps(pid: int) -> str:
    return Path(f"/proc/{pid}/smaps").read_text(errors="replace")


def held(smaps: str, excluded: Path) -> Held:
    """The memory of all mappings but those of files in the directory `excluded`."""
    sums, counts = dict.fromkeys(COUNTED, 0), True
    for line in smaps.splitlines():
        if MAPPING.match(line):
            counts = str(excluded) not in line
        elif counts and (name := line.partition(":")[0]) in sums:
            sums[name] += int(line.split()[1]) * KB
    return Held(sums["Pss"], sums["Private_Clean"] + sums["Private_Dirty"])
