"""Waiting for what will be true, instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LONG_S = 120.0  # a bound for hanging, not an expectation of speed


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition, and give back what made it true."""
    give_up = time.monotonic() + LONG_S
    while time.monotonic() < give_up:
        if found := condition():
            return found
        time.sleep(0.002)
    raise AssertionError(f"never happened: {what}")
