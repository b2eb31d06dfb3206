"""What the apps of the corpus are made of. They run in a server's own interpreter, so they import
nothing but the standard library.

The environment says what a request costs: SLEEP_MS and CPU_MS; and CASE, which app it is.
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

CHANCE = random.Random()


def burn(cpu_s: float) -> None:
    """Compute for so long, by the CPU's clock of this thread."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        sum(range(100))


def random_s() -> float:
    """How long a request of CASE sleeps, where that is random; about SLEEP_S on average."""
    if CASE == "exponential":
        return CHANCE.expovariate(1 / SLEEP_S)
    if CASE == "bimodal":
        return SLEEP_S * (5.5 if CHANCE.random() < 0.1 else 0.5)
    if CASE == "heavy":  # Pareto, shape 1.5: no variance but for the cap
        return min(SLEEP_S / 3 * CHANCE.paretovariate(1.5), 20 * SLEEP_S)
    return SLEEP_S


def hold_gil(seconds: float) -> None:
    """Sleep as C code does that keeps the interpreter's lock: no other thread runs meanwhile."""
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))
