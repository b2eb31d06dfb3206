"""CPU, waiting for a core, and memory of the server's processes and the load tool's; CPU and memory
of what the app stands on, and of the whole machine; network bytes by interface.

The CPU of a tree is the sum over its live processes of their own time and that of the children
they awaited, so that a child which ends is not forgotten. The tree is looked up anew for each
sample: /proc/PID/task/TID/children is not there on every kernel.
"""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping

import psutil
from msgspec import Struct

from workerlab.model import ProcessSample, ServiceSample
from workerlab.observe.run_queue import NS, RunQueue

# Time with nothing to do, and time that is counted a second time (a guest's is in `user` too).
# Steal stays: a core that was wanted and given to another machine was not to be had.
NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")
FRESH_S = 0.3  # what the whole lab used is good for so long: to look takes ms where many run
SAME_S = 0.01  # the trees of one sample are looked up together
REUSE_S = 5.0  # sooner no pid is given to another process: all others come first


class Parents:
    """Of all processes of this machine, kept between looks: to read the parent of each, every time
    and for every tree, took most of what the observer used where many run."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._parents: dict[int, int] = {}
        self._lock = threading.Lock()
        self._looked_s = -math.inf

    def below(self, root: int) -> set[int]:
        """Pids."""
        with self._lock:
            if time.monotonic() - self._looked_s >= SAME_S:
                self._look()
            members = set[int]()
            level = {root}
            while level:
                level = {pid for pid, parent in self._parents.items() if parent in level} - members
                members |= level
        return members

    def _look(self) -> None:
        """Read the parents of processes that are new, and of those whose parent has gone: they have
        another one then."""
        if time.monotonic() - self._looked_s >= REUSE_S:
            self._names, self._parents = set(), {}
        before, self._names = self._names, set(os.listdir("/proc"))
        for pid in _pids(before - self._names):
            self._parents.pop(pid, None)
        orphans = [pid for pid, parent in self._parents.items() if parent not in self._parents]
        for pid in (*_pids(self._names - before), *orphans):
            self._parents[pid] = parent_of(pid)
        self._looked_s = time.monotonic()


def _pids(names: Iterable[str]) -> list[int]:
    return [int(name) for name in names if name.isdigit()]


def parent_of(pid: int) -> int:
    """0 where it has none that is to be seen, or is gone itself."""
    with contextlib.suppress(OSError):
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:  # the program's name may hold spaces and brackets
            return int(os.read(handle, 1024).rpartition(b")")[2].split()[1])
        finally:
            os.close(handle)
    return 0


PARENTS = Parents()


class Tree:
    """A process and all below it."""

    def __init__(self, pid: int | None) -> None:
        """`pid` None: it did not start. Raises psutil.NoSuchProcess when it is gone already."""
        if pid is None:  # which psutil would take for this process
            raise psutil.NoSuchProcess(0)
        self._root = psutil.Process(pid)
        self.used_s = 0.0  # CPU, as far as it was looked at
        self.pids: tuple[int, ...] = ()  # that were there when it was last looked at
        self._members: dict[int, psutil.Process] = {}

    def used(self) -> tuple[float, int] | None:
        """(CPU seconds so far, resident bytes now); None once its root has ended. Pages that
        processes share count for each of them."""
        try:
            self.pids = ()
            if self._root.status() == psutil.STATUS_ZOMBIE:  # its memory would read as 0
                return None
            self._members = self._look()
            cpu_s, rss_bytes = _used(self._root)
        except psutil.NoSuchProcess:
            return None
        self.pids = (self._root.pid, *self._members)
        for member in self._members.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                more_s, more_bytes = _used(member)
                cpu_s, rss_bytes = cpu_s + more_s, rss_bytes + more_bytes
        # One that ended between the look at its parent and at itself is in neither, this once
        self.used_s = max(self.used_s, cpu_s)
        return self.used_s, rss_bytes

    def _look(self) -> dict[int, psutil.Process]:
        """All below the root now, by pid."""
        if sys.platform != "linux":
            return {member.pid: member for member in self._root.children(recursive=True)}
        members = dict[int, psutil.Process]()
        for pid in PARENTS.below(self._root.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                members[pid] = self._members.get(pid) or psutil.Process(pid)
        return members


def _used(process: psutil.Process) -> tuple[float, int]:
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
    own_s = times.user + times.system
    return own_s + times.children_user + times.children_system, memory.rss


class Host(Struct, frozen=True):
    """CPU seconds of all cores since this machine began."""

    busy_s: float
    irq_s: float  # of these in interrupts
    steal_s: float | None  # given to another machine; None: the kernel does not say


def host_cpu() -> Host:
    times = psutil.cpu_times()._asdict()
    busy = sum(value for name, value in times.items() if name not in NOT_BUSY)
    irq = float(times.get("irq", 0.0) + times.get("softirq", 0.0))
    return Host(float(busy), irq, times.get("steal"))


def network_bytes() -> dict[str, int]:
    """As in ProcessSample."""
    with contextlib.suppress(OSError):
        every = psutil.net_io_counters(pernic=True).items()
        return {f"{name} {w}": one[w == "in"] for name, one in every for w in ("out", "in")}
    return {}


class Services:
    """Samples what each of `pids` and all below it have used since the first sample, by name."""

    def __init__(self, pids: Mapping[str, int | None]) -> None:
        self._pids = pids
        self._trees: Mapping[str, Tree] = {}
        self._zero_s: dict[str, float] = {}

    def used(self) -> dict[str, tuple[float, int]]:
        """(CPU seconds, resident bytes) of those that have not ended. Raises psutil.Error where one
        never ran or is hidden."""
        self._trees = self._trees or {name: Tree(pid) for name, pid in self._pids.items()}
        found = {name: used for name, tree in self._trees.items() if (used := tree.used())}
        return {
            name: (cpu_s - self._zero_s.setdefault(name, cpu_s), rss_bytes)
            for name, (cpu_s, rss_bytes) in found.items()
        }

    @property
    def pids(self) -> list[int]:
        """Of all that was there when they were last looked at."""
        return [pid for tree in self._trees.values() for pid in tree.pids]

    def sample(self) -> ServiceSample:
        used = self.used()
        return ServiceSample(
            at_ns=time.monotonic_ns(),
            cpu_s={name: cpu_s for name, (cpu_s, _) in used.items()},
            rss_bytes={name: rss_bytes for name, (_, rss_bytes) in used.items()},
        )


class Lab:
    """CPU seconds of this process and of all that it has started, what has ended included. Asked by
    the observer of each trial that runs, in threads of their own."""

    def __init__(self) -> None:
        self._tree, self._lock = Tree(os.getpid()), threading.Lock()
        self._looked_s = -math.inf

    def cpu_s(self) -> float:
        with self._lock:
            if time.monotonic() - self._looked_s >= FRESH_S:
                self._tree.used()
                self._looked_s = time.monotonic()
            return self._tree.used_s


class Processes:
    """Samples what has been used since the first sample, of the servers and of a load tool. `lab`:
    where other trials run at the same time, which are no strangers."""

    def __init__(self, *server_pids: int | None, lab: Lab | None = None) -> None:
        self._lab = lab
        self._beside_zero_s: float | None = None
        self._count = len(server_pids)
        self._servers = Services({str(number): pid for number, pid in enumerate(server_pids)})
        self._tool: Tree | None = None
        self._tool_pid: int | None = None
        self._server_queue, self._tool_queue = RunQueue(from_first=True), RunQueue()
        self._zero: tuple[Host, float] | None = None

    def follow(self, tool_pid: int | None) -> None:
        """The load tool was started: all it has used, it used since sampling began."""
        self._tool_pid = tool_pid
        with contextlib.suppress(psutil.Error):
            self._tool = Tree(tool_pid)

    def tool_ended(self, wait_s: float | None) -> None:
        """Its main thread, whose end no sample sees, waited so long for a core in all."""
        if self._tool_pid is not None and wait_s is not None:
            self._tool_queue.add({self._tool_pid: round(wait_s * NS)})

    def sample(self) -> ProcessSample:
        """Raises psutil.Error when the server is gone or hidden."""
        servers = self._servers.used().values()
        alive = len(servers) == self._count  # None once one of them has ended
        server_s = sum(cpu_s for cpu_s, _ in servers)
        tool = self._tool.used() if self._tool else None
        self._server_queue.look(self._servers.pids)
        self._tool_queue.look(self._tool.pids if self._tool else ())
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
            beside_cpu_s=self._beside_s(server_s + lab_s) if alive else None,
            network_bytes=network_bytes(),
        )

    def _beside_s(self, own_s: float) -> float | None:
        """What the lab used since the first sample but for the server and this process, `own_s`,
        and the load tool, which may have ended meanwhile."""
        if self._lab is None:
            return None
        tool_s = self._tool.used_s if self._tool else 0.0
        beside_s = self._lab.cpu_s() - own_s - tool_s
        if self._beside_zero_s is None:
            self._beside_zero_s = beside_s
        return beside_s - self._beside_zero_s
