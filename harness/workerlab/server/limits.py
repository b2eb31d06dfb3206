"""Cores and memory that a server can use: those of the machine, or the limits of its control
groups. A container sees all cores of its host in /proc, but may have a quota.

All control groups from this process's own up to the root count, since each limits those below it:
version 2 (`cpu.max`, `memory.max`), version 1 (`cpu.cfs_quota_us` and `cpu.cfs_period_us`,
`memory.limit_in_bytes`), or both at once. In a container with its own namespace, the path may not
exist in the mount; then the root of the mount is the container's own group.
"""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
MOUNTED = "sys/fs/cgroup"
UNIFIED = "unified"  # the mount of version 2 if version 1 is mounted, too


def cores(root: Path = ROOT) -> float:
    """The number of cores, possibly fractional: 1.5 for a quota of 150 %."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [quota for group in _groups(root, "cpu") if (quota := _quota(group)) is not None]
    return min([float(affinity or 1), *quotas])


def memory_bytes(root: Path = ROOT) -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")
    groups = [group / name for group in _groups(root, "memory") for name in names]
    limits = [limit for path in groups if (limit := _number(path)) is not None]
    return min([physical, *(limit for limit in limits if limit > 0)])


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of this process's control groups, and of their ancestors."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            mounts = [root / MOUNTED, root / MOUNTED / UNIFIED]
        elif controller in names.split(","):
            mounts = [root / MOUNTED / name for name in (names, controller)]
        else:
            continue
        inner = Path(path.strip("/"))
        for mount in mounts:
            yield from (mount / group for group in (inner, *inner.parents))


def _quota(group: Path) -> float | None:
    """The quota in cores; None if this group has no limit."""
    fields = _text(group / "cpu.max").split()
    if not fields:
        fields = [_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        quota, period = map(int, fields)
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
