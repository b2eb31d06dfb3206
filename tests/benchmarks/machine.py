"""Shared by the benchmarks: CPU use, paired measurements, and throughput according to wrk."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")


def busy_s() -> float:
    """CPU seconds used on this machine since boot."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def used_s(process: psutil.Process) -> float:
    """CPU seconds of a process and its descendants."""
    processes = [process, *process.children(recursive=True)]
    return sum(sum(member.cpu_times()[:2]) for member in processes)


def alternating(pairs: int, measure: Callable[[bool], T]) -> list[tuple[T, T]]:
    """Pairs of `measure(True)` and `measure(False)`, in alternating order, after a warm-up pair."""
    results = []
    for number in range(pairs + 1):
        by_side = {side: measure(side) for side in ((True, False) if number % 2 else (False, True))}
        results.append((by_side[True], by_side[False]))
    return results[1:]


def wrk_rps(url: str, seconds: int = 1, connection: str = "close") -> float:
    """Requests per second on 8 connections. `connection`: the header of that name."""
    argv = ["wrk", "-t1", "-c8", f"-d{seconds}s", "-H", f"Connection: {connection}", url]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    match = re.search(r"Requests/sec:\s+([\d.]+)", text)
    assert match, text
    return float(match[1])
