"""CPU and memory of the server's processes, the load tool's, those of what the app stands on, and
of the whole machine.

The CPU of a tree is the sum over its live processes of their own time and that of the children
they awaited, so that a child which ends is not forgotten. The tree is looked up anew for each
sample (psutil reads all of /proc for it, 0.5 ms with 70 processes): a cheaper list of children,
/proc/PID/task/TID/children, is not there on every kernel.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

import psutil

from harness.model import ProcessSample, ServiceSample

# Time with nothing to do, and time that is counted a second time (a guest's is in `user` too).
# Steal stays: a core that was wanted and given to another machine was not to be had.
NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")


class Tree:
    """A process and all below it."""

    def __init__(self, pid: int | None) -> None:
        """`pid` None: it did not start. Raises psutil.NoSuchProcess when it is gone already."""
        if pid is None:  # which psutil would take for this process
            raise psutil.NoSuchProcess(0)
        self._root = psutil.Process(pid)
        self._cpu_s = 0.0

    def used(self) -> tuple[float, int] | None:
        """(CPU seconds so far, resident bytes now); None once its root has ended. Pages that
        processes share count for each of them."""
        try:
            if self._root.status() == psutil.STATUS_ZOMBIE:  # its memory would read as 0
                return None
            members = self._root.children(recursive=True)
            cpu_s, rss_bytes = _used(self._root)
        except psutil.NoSuchProcess:
            return None
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                more_s, more_bytes = _used(member)
                cpu_s, rss_bytes = cpu_s + more_s, rss_bytes + more_bytes
        # One that ended between the look at its parent and at itself is in neither, this once
        self._cpu_s = max(self._cpu_s, cpu_s)
        return self._cpu_s, rss_bytes


def _used(process: psutil.Process) -> tuple[float, int]:
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
    own_s = times.user + times.system
    return own_s + times.children_user + times.children_system, memory.rss


def _together(trees: list[Tree]) -> tuple[float, int] | None:
    """What several have used; None once one of them has ended."""
    each = [tree.used() for tree in trees]
    known = [one for one in each if one is not None]
    if len(known) < len(each):
        return None
    return sum(cpu_s for cpu_s, _ in known), sum(rss_bytes for _, rss_bytes in known)


def _host_s() -> tuple[float, float]:
    """(busy, of these in interrupts)"""
    times = psutil.cpu_times()._asdict()
    busy = sum(value for name, value in times.items() if name not in NOT_BUSY)
    return float(busy), float(times.get("irq", 0.0) + times.get("softirq", 0.0))


class Processes:
    """Samples what has been used since the first sample, of the servers and of a load tool."""

    def __init__(self, *server_pids: int | None) -> None:
        self._server_pids = server_pids
        self._servers: list[Tree] = []
        self._tool: Tree | None = None
        self._server_zero_s: float | None = None
        self._host_zero_s: tuple[float, float] | None = None

    def follow(self, tool_pid: int | None) -> None:
        """The load tool was started: all it has used, it used since sampling began."""
        with contextlib.suppress(psutil.Error):
            self._tool = Tree(tool_pid)

    def sample(self) -> ProcessSample:
        """Raises psutil.Error when the server is gone or hidden."""
        self._servers = self._servers or [Tree(pid) for pid in self._server_pids]
        tool = self._tool.used() if self._tool else None
        server, (host_s, irq_s) = _together(self._servers), _host_s()
        if self._host_zero_s is None:
            self._host_zero_s = host_s, irq_s
            self._server_zero_s = server[0] if server else None
        zero_s = self._server_zero_s
        return ProcessSample(
            at_ns=time.monotonic_ns(),
            server_cpu_s=server[0] - zero_s if server and zero_s is not None else None,
            tool_cpu_s=tool[0] if tool else None,
            host_busy_s=host_s - self._host_zero_s[0],
            server_rss_bytes=server[1] if server else None,
            tool_rss_bytes=tool[1] if tool else None,
            host_memory_bytes=psutil.virtual_memory().used,
            host_irq_s=irq_s - self._host_zero_s[1],
        )


class Services:
    """Samples what each of `pids` and all below it have used since the first sample, by name."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._trees: Mapping[str, Tree] = {}
        self._zero_s: dict[str, float] = {}

    def sample(self) -> ServiceSample:
        """One that has ended is not in it. Raises psutil.Error where one never ran or is hidden."""
        self._trees = self._trees or {name: Tree(pid) for name, pid in self._pids.items()}
        each = {name: tree.used() for name, tree in self._trees.items()}
        known = {name: used for name, used in each.items() if used is not None}
        for name, (cpu_s, _) in known.items():
            self._zero_s.setdefault(name, cpu_s)
        return ServiceSample(
            at_ns=time.monotonic_ns(),
            cpu_s={name: cpu_s - self._zero_s[name] for name, (cpu_s, _) in known.items()},
            rss_bytes={name: rss_bytes for name, (_, rss_bytes) in known.items()},
        )
