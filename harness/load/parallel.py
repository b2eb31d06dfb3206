"""How much of a machine a load tool can use: what it is held against where its CPU is judged."""

from __future__ import annotations

from harness.load import wrk

EVERY_CORE = 1024  # more than any machine has: it starts a process per core


def cores_used_at_most(tool: str, concurrency: int, processes: int) -> int:
    """Cores that the tool can keep busy at once: its threads, or its processes where each computes
    on one core at a time, as Python does. `processes`: as asked for."""
    if tool == "wrk":
        return wrk.threads(concurrency)
    if tool == "processes":  # one per connection
        return concurrency
    if tool == "processes-coroutines" and processes == 1:
        return EVERY_CORE
    return processes
