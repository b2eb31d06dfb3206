"""Waiting for a condition instead of a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LONG_S = 120.0  # a limit for hangs, not an expected duration


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for a true value of `condition` and returns it."""
    give_up = time.monotonic() + LONG_S
    while time.monotonic() < give_up:
        if value := condition():
            return value
        time.sleep(0.002)
    raise AssertionError(f"never happened: {what}")
