"""Shared by the apps of the corpus. They use only the standard library, because they run in a
server's own interpreter. Environment: SLEEP_MS and CPU_MS per request, CASE, QUOTAS.
"""

from __future__ import annotations

import ctypes
import os
import random
import time

CASE = os.environ.get("CASE", "steady")
SLEEP_S = float(os.environ.get("SLEEP_MS", "50")) / 1000
CPU_S = float(os.environ.get("CPU_MS", "0")) / 1000
QUOTAS = os.environ.get("QUOTAS", "")

RNG = random.Random()


def burn(cpu_s: float) -> None:
    """Use that much CPU time of this thread."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        sum(range(100))


def random_s() -> float:
    """The sleep of a request, about SLEEP_S on average; random in some CASEs."""
    if CASE == "exponential":
        return RNG.expovariate(1 / SLEEP_S)
    if CASE == "bimodal":
        return SLEEP_S * (5.5 if RNG.random() < 0.1 else 0.5)
    if CASE == "heavy":  # Pareto, shape 1.5: infinite variance without the cap
        return min(SLEEP_S / 3 * RNG.paretovariate(1.5), 20 * SLEEP_S)
    return SLEEP_S


def hold_gil(seconds: float) -> None:
    """Sleep in C without releasing the GIL: no other thread can run."""
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))
