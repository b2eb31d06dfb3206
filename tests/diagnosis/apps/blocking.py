"""What the apps beside this file do in a request, as its query says, in milliseconds:

    /?wait=50&block=30&compute=5&each=10

`wait` gives way to other requests, `block` does not, `compute` uses a core; the latter two in each
tenth request only. They run in a server's own interpreter: stdlib only.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from urllib.parse import parse_qsl

COUNTER = itertools.count(1)
BODY = b"ok\n"


def parts(query: str) -> tuple[float, float, float]:
    """Seconds to wait, to block, to compute in this request."""
    asked = {"wait": 0, "block": 0, "compute": 0, "each": 1}
    asked |= {name: int(value) for name, value in parse_qsl(query)}
    wait_s, block_s, compute_s = (asked[name] / 1000 for name in ("wait", "block", "compute"))
    if next(COUNTER) % asked["each"]:
        return wait_s, 0.0, 0.0
    return wait_s, block_s, compute_s


def hold_up(block_s: float, compute_s: float) -> None:
    """Block as C code does, which gevent and eventlet cannot make cooperative; then compute."""
    if block_s:
        ctypes.CDLL(None).usleep(round(block_s * 1e6))
    until = time.thread_time() + compute_s
    while time.thread_time() < until:
        sum(range(100))
