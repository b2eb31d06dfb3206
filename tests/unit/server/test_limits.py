"""Cores and memory within control groups, from files as kernels write them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from workerlab.server.limits import cores, memory_bytes

ALL = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else os.cpu_count()
PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
LESS = PHYSICAL // 2
V1 = "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"
V2 = "0::/system.slice/shop.service\n"


def make_files(place: Path, groups: str, files: Mapping[str, str]) -> Path:
    (place / "proc/self").mkdir(parents=True)
    (place / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = place / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {}, ALL),
        (V2, {"system.slice/shop.service/cpu.max": "max 100000\n"}, ALL),
        (V2, {"system.slice/shop.service/cpu.max": "50000 100000\n"}, 0.5),
        (V2, {"system.slice/cpu.max": "25000 100000\n"}, 0.25),
        ("0::/\n", {"cpu.max": "75000 100000\n"}, 0.75),
        # In a namespace of its own the path is not mounted
        ("0::/../other\n", {"cpu.max": "75000 100000\n"}, 0.75),
        (V2, {"unified/system.slice/shop.service/cpu.max": "50000 100000\n"}, 0.5),
        (
            V1,
            {
                "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "60000\n",
                "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            0.6,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, ALL),
        (V1, {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        (V2, {"system.slice/shop.service/cpu.max": "9900000 100000\n"}, ALL),
    ],
)
def test_cores(
    tmp_path: Path, groups: str, files: Mapping[str, str], expected: float | None
) -> None:
    assert cores(make_files(tmp_path, groups, files)) == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {}, PHYSICAL),
        (V2, {"system.slice/shop.service/memory.max": "max\n"}, PHYSICAL),
        (V2, {"system.slice/shop.service/memory.max": f"{LESS}\n"}, LESS),
        (V2, {"system.slice/memory.max": f"{LESS}\n"}, LESS),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": f"{LESS}\n"}, LESS),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, PHYSICAL),
    ],
)
def test_memory(tmp_path: Path, groups: str, files: Mapping[str, str], expected: int) -> None:
    assert memory_bytes(make_files(tmp_path, groups, files)) == expected


def test_without_control_groups(tmp_path: Path) -> None:
    """As on systems other than Linux."""
    assert (cores(tmp_path), memory_bytes(tmp_path)) == (ALL, PHYSICAL)


def test_this_machine() -> None:
    assert 0 < cores() <= (os.cpu_count() or 1)
    assert 0 < memory_bytes() <= PHYSICAL
