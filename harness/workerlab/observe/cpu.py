"""Samples CPU, waiting for a core, and memory of the server's and the load tool's processes; CPU
and memory of the app's services and of the whole machine; network bytes by interface.

The CPU of a tree is that of its live processes and of the children they have waited for, so it
includes children that have ended. Each sample reads the tree again, since not every kernel has
/proc/PID/task/TID/children.

The time for which threads were ready to run but had no core is the second number of Linux's
/proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst).

Each thread is read separately, since /proc/PID/schedstat covers the main thread alone. The sum adds
each thread's increase since its last read, so it does not fall when threads or processes end; the
wait after their last read is lost. Rejected: pressure stall information (time in which any
thread of a control group waited; the group would have to be ours), taskstats (complete, but only
for root)."""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping

import psutil
from msgspec import Struct

from workerlab.model.evidence import ProcessSample, ServiceSample

NS = 1e9


class RunQueue:
    """Sums how long the threads of some processes waited, since they began or since the first
    sample."""

    def __init__(self, *, from_first: bool = False) -> None:
        self._from_first = from_first
        self._last_ns: dict[int, int] = {}  # by thread
        self._sum_ns: int | None = None

    def sample(self, pids: Iterable[int]) -> None:
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
        """The sum; None if the kernel does not count it, or before there was a thread."""
        return None if self._sum_ns is None else self._sum_ns / NS


def waited_ns(pid: int) -> dict[int, int]:
    """The wait of each thread in nanoseconds, without threads that the kernel does not count."""
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


# Idle time, and time counted twice (a guest's is in `user`, too). Steal counts as busy: the core
# was needed, but given to another virtual machine.
NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")
LAB_CPU_VALID_S = 0.3  # with many processes, a refresh takes milliseconds
PARENTS_VALID_S = 0.01  # one refresh for all trees of a sample
PID_REUSE_S = 5.0  # a pid is not reused sooner: the kernel first takes all other pids


class Parents:
    """The parents of all processes, kept between refreshes: with many processes, reading them anew
    for every tree took most of the observer's CPU time."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._parents: dict[int, int] = {}
        self._lock = threading.Lock()
        self._refreshed_s = -math.inf

    def descendants(self, root: int) -> set[int]:
        """The pids of all descendants of `root`."""
        with self._lock:
            if time.monotonic() - self._refreshed_s >= PARENTS_VALID_S:
                self._refresh()
            members = set[int]()
            level = {root}
            while level:
                level = {pid for pid, parent in self._parents.items() if parent in level} - members
                members |= level
        return members

    def _refresh(self) -> None:
        """Read the parents of new processes, and of those whose parent has ended: they now have
        another parent."""
        if time.monotonic() - self._refreshed_s >= PID_REUSE_S:
            self._names, self._parents = set(), {}
        before, self._names = self._names, set(os.listdir("/proc"))
        for pid in _pids(before - self._names):
            self._parents.pop(pid, None)
        orphans = [pid for pid, parent in self._parents.items() if parent not in self._parents]
        for pid in (*_pids(self._names - before), *orphans):
            self._parents[pid] = parent_of(pid)
        self._refreshed_s = time.monotonic()


def _pids(names: Iterable[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit()]


def parent_of(pid: int) -> int:
    """The parent's pid; 0 if it is not visible, or if the process has ended."""
    with contextlib.suppress(OSError):
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:  # the program's name may contain spaces and brackets
            return int(os.read(handle, 1024).rpartition(b")")[2].split()[1])
        finally:
            os.close(handle)
    return 0


PARENTS = Parents()


class Tree:
    """A process and all its descendants."""

    def __init__(self, pid: int | None) -> None:
        """`pid` None: it did not start. Raises psutil.NoSuchProcess if it has ended."""
        if pid is None:  # psutil would take it for this process
            raise psutil.NoSuchProcess(0)
        self._root = psutil.Process(pid)
        self.cpu_s = 0.0  # as of the last refresh
        self.pids: tuple[int, ...] = ()  # as of the last refresh
        self._members: dict[int, psutil.Process] = {}

    def usage(self) -> tuple[float, int] | None:
        """(CPU seconds so far, resident bytes now); None once its root has ended. Shared
        pages count for each process."""
        try:
            self.pids = ()
            if self._root.status() == psutil.STATUS_ZOMBIE:  # its memory reads as 0
                return None
            self._members = self._refresh()
            cpu_s, rss_bytes = _usage(self._root)
        except psutil.NoSuchProcess:
            return None
        self.pids = (self._root.pid, *self._members)
        for member in self._members.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                member_s, member_bytes = _usage(member)
                cpu_s, rss_bytes = cpu_s + member_s, rss_bytes + member_bytes
        # A process that ends between the reads of its parent and itself is missing from this sum
        self.cpu_s = max(self.cpu_s, cpu_s)
        return self.cpu_s, rss_bytes

    def _refresh(self) -> dict[int, psutil.Process]:
        """All descendants of the root, by pid."""
        if sys.platform != "linux":
            return {member.pid: member for member in self._root.children(recursive=True)}
        members = dict[int, psutil.Process]()
        for pid in PARENTS.descendants(self._root.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                members[pid] = self._members.get(pid) or psutil.Process(pid)
        return members


def _usage(process: psutil.Process) -> tuple[float, int]:
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
    own_s = times.user + times.system
    return own_s + times.children_user + times.children_system, memory.rss


class Host(Struct, frozen=True):
    """CPU seconds of all cores since boot."""

    busy_s: float
    irq_s: float  # part of `busy_s`
    steal_s: float | None  # given to another machine; None: not known


def host_cpu() -> Host:
    times = psutil.cpu_times()._asdict()
    busy = sum(value for name, value in times.items() if name not in NOT_BUSY)
    irq = float(times.get("irq", 0.0) + times.get("softirq", 0.0))
    return Host(float(busy), irq, times.get("steal"))


def network_bytes() -> dict[str, int]:
    """Bytes by interface and direction, as in ProcessSample."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for name, counters in psutil.net_io_counters(pernic=True).items():
            sizes[f"{name} out"] = counters.bytes_sent
            sizes[f"{name} in"] = counters.bytes_recv
    return sizes


class ServiceCpus:
    """Samples each of `pids` with its descendants, by name: CPU since the first sample, and
    memory."""

    def __init__(self, pids: Mapping[str, int | None]) -> None:
        self._pids = pids
        self._trees: Mapping[str, Tree] = {}
        self._zero_s: dict[str, float] = {}

    def usage(self) -> dict[str, tuple[float, int]]:
        """(CPU seconds, resident bytes) of those still running. Raises psutil.Error if one never
        ran or is hidden."""
        self._trees = self._trees or {name: Tree(pid) for name, pid in self._pids.items()}
        by_name = {name: usage for name, tree in self._trees.items() if (usage := tree.usage())}
        return {
            name: (cpu_s - self._zero_s.setdefault(name, cpu_s), rss_bytes)
            for name, (cpu_s, rss_bytes) in by_name.items()
        }

    @property
    def pids(self) -> list[int]:
        """All pids as of the last refresh."""
        return [pid for tree in self._trees.values() for pid in tree.pids]

    def sample(self) -> ServiceSample:
        usage = self.usage()
        return ServiceSample(
            at_ns=time.monotonic_ns(),
            cpu_s={name: cpu_s for name, (cpu_s, _) in usage.items()},
            rss_bytes={name: rss_bytes for name, (_, rss_bytes) in usage.items()},
        )


class Lab:
    """The CPU seconds of this process and all its descendants, including those that have ended.
    Thread-safe: the observers of all running trials share it."""

    def __init__(self) -> None:
        self._tree, self._lock = Tree(os.getpid()), threading.Lock()
        self._refreshed_s = -math.inf

    def cpu_s(self) -> float:
        with self._lock:
            if time.monotonic() - self._refreshed_s >= LAB_CPU_VALID_S:
                self._tree.usage()
                self._refreshed_s = time.monotonic()
            return self._tree.cpu_s


class Processes:
    """Samples the servers and a load tool; CPU counts from the first sample. `lab`: set if other
    trials run at the same time."""

    def __init__(self, *server_pids: int | None, lab: Lab | None = None) -> None:
        self._lab = lab
        self._other_trials_zero_s: float | None = None
        self._count = len(server_pids)
        self._servers = ServiceCpus({str(number): pid for number, pid in enumerate(server_pids)})
        self._tool: Tree | None = None
        self._tool_pid: int | None = None
        self._server_queue, self._tool_queue = RunQueue(from_first=True), RunQueue()
        self._zero: tuple[Host, float] | None = None

    def follow(self, tool_pid: int | None) -> None:
        """Called when the load tool has started, after sampling began: all its CPU time counts."""
        self._tool_pid = tool_pid
        with contextlib.suppress(psutil.Error):
            self._tool = Tree(tool_pid)

    def tool_ended(self, wait_s: float | None) -> None:
        """`wait_s`: how long its main thread waited for a core until it ended, which no sample
        covers."""
        if self._tool_pid is not None and wait_s is not None:
            self._tool_queue.add({self._tool_pid: round(wait_s * NS)})

    def sample(self) -> ProcessSample:
        """Raises psutil.Error if the server has ended or is hidden."""
        servers = self._servers.usage().values()
        alive = len(servers) == self._count  # None once one of them has ended
        server_s = sum(cpu_s for cpu_s, _ in servers)
        tool = self._tool.usage() if self._tool else None
        self._server_queue.sample(self._servers.pids)
        self._tool_queue.sample(self._tool.pids if self._tool else ())
        host, lab_s = host_cpu(), time.process_time()
        zero, lab_zero_s = self._zero = self._zero or (host, lab_s)
        steal = None if host.steal_s is None else host.steal_s - (zero.steal_s or 0.0)
        return ProcessSample(
            at_ns=time.monotonic_ns(),
            server_cpu_s=server_s if alive else None,
            tool_cpu_s=tool[0] if tool else None,
            host_busy_s=host.busy_s - zero.busy_s,
            server_rss_bytes=sum(rss_bytes for _, rss_bytes in servers) if alive else None,
            tool_rss_bytes=tool[1] if tool else None,
            host_memory_bytes=psutil.virtual_memory().used,
            host_irq_s=host.irq_s - zero.irq_s,
            server_wait_s=self._server_queue.waited_s if alive else None,
            tool_wait_s=self._tool_queue.waited_s,
            host_steal_s=steal,
            lab_cpu_s=lab_s - lab_zero_s,
            beside_cpu_s=self._other_trials_s(server_s + lab_s) if alive else None,
            network_bytes=network_bytes(),
        )

    def _other_trials_s(self, own_s: float) -> float | None:
        """CPU of the lab since the first sample, without `own_s` (the server and this process) and
        the load tool, which may have ended."""
        if self._lab is None:
            return None
        tool_s = self._tool.cpu_s if self._tool else 0.0
        other_trials_s = self._lab.cpu_s() - own_s - tool_s
        if self._other_trials_zero_s is None:
            self._other_trials_zero_s = other_trials_s
        return other_trials_s - self._other_trials_zero_s
