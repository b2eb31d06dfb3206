"""Waiting for a condition instead of a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LONG_S = 120.0  # a limit for hangs, not an expected duration


def until(condition: Callable[[], Any], what: str, timeout_s: float = LONG_S) -> Any:
    """Waits for a true value of `condition` and returns it."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.002
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(pause_s)
        pause_s = min(0.05, 1.2 * pause_s)
    raise AssertionError(f"never happened: {what}")
