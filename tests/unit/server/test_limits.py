"""The cores and memory that control groups leave, from files as kernels write them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from workerlab.server.limits import cores, memory_bytes

ALL = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else os.cpu_count()
PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
LIMIT = PHYSICAL // 2
V1 = "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n"
V2 = "0::/system.slice/shop.service\n"
GROUP = "system.slice/shop.service"


def v1_quota(group: str, quota_us: int) -> dict[str, str]:
    return {f"{group}/cpu.cfs_quota_us": f"{quota_us}\n", f"{group}/cpu.cfs_period_us": "100000\n"}


def make_files(directory: Path, groups: str, files: Mapping[str, str]) -> Path:
    (directory / "proc/self").mkdir(parents=True)
    (directory / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = directory / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {}, ALL),
        (V2, {f"{GROUP}/cpu.max": "max 100000\n"}, ALL),
        (V2, {f"{GROUP}/cpu.max": "50000 100000\n"}, 0.5),
        (V2, {f"{GROUP}/cpu.max": "9900000 100000\n"}, ALL),
        (V2, {"system.slice/cpu.max": "25000 100000\n"}, 0.25),
        (V2, {f"{GROUP}/cpu.max": "90 100\n", "system.slice/cpu.max": "25 100\n"}, 0.25),
        ("0::/\n", {"cpu.max": "75000 100000\n"}, 0.75),
        # A process in its own namespace: the path is not below the mount
        ("0::/../other\n", {"cpu.max": "75000 100000\n"}, 0.75),
        (V2, {f"unified/{GROUP}/cpu.max": "50000 100000\n"}, 0.5),
        (V1, v1_quota("cpu,cpuacct/docker/abc", 60_000), 0.6),
        (V1, v1_quota("cpu", -1), ALL),
        (V1, v1_quota("cpu", 50_000), 0.5),
    ],
)
def test_the_lowest_quota_limits_the_cores(
    tmp_path: Path, groups: str, files: Mapping[str, str], expected: float
) -> None:
    assert cores(make_files(tmp_path, groups, files)) == expected


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {}, PHYSICAL),
        (V2, {f"{GROUP}/memory.max": "max\n"}, PHYSICAL),
        (V2, {f"{GROUP}/memory.max": f"{LIMIT}\n"}, LIMIT),
        (V2, {"system.slice/memory.max": f"{LIMIT}\n"}, LIMIT),
        (V2, {f"{GROUP}/memory.max": f"{2 * LIMIT}\n", "system.slice/memory.max": "4096\n"}, 4096),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": f"{LIMIT}\n"}, LIMIT),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, PHYSICAL),
    ],
)
def test_the_lowest_limit_applies_to_memory(
    tmp_path: Path, groups: str, files: Mapping[str, str], expected: int
) -> None:
    assert memory_bytes(make_files(tmp_path, groups, files)) == expected


def test_without_control_groups_all_cores_and_memory_count(tmp_path: Path) -> None:
    """Systems other than Linux have none."""
    assert (cores(tmp_path), memory_bytes(tmp_path)) == (ALL, PHYSICAL)


def test_limits_of_this_machine_are_plausible() -> None:
    assert 0 < cores() <= (os.cpu_count() or 1)
    assert 0 < memory_bytes() <= PHYSICAL
