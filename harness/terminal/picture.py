"""Slots and queues at one moment, in four lines of plain text for a terminal of 80 columns.

3.2 s  in the app   [#] [#] [#] [#]          4 of 4 slots
       accept queue oooo                     4
       elsewhere                             0, on the way, or not connected
       answered                              9 of 33
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80
MARK = 24  # columns for what is drawn
UNKNOWN = "missing"


@dataclass(frozen=True)
class Now:
    """What is known of a load under way. `busy`: requests in the app, by worker; `slots`: of all
    workers, None unlimited; `queue`: None where it cannot be seen."""

    at_s: float
    connections: int
    busy: Sequence[int]
    slots: int | None
    queue: int | None
    answered: int
    requests: int
    accepts_first: bool  # what is in neither app nor queue waits inside a worker


def draw(now: Now) -> list[str]:
    """The lines, none longer than WIDTH."""
    inside = sum(now.busy)
    limit = "unlimited" if now.slots is None else str(now.slots)
    elsewhere = max(0, now.connections - inside - (now.queue or 0))
    where = "accepted, inside a worker" if now.accepts_first else "on the way, or not connected"
    lines = [
        _line(f"{now.at_s:6.1f} s", "in the app", _workers(now.busy), f"{inside} of {limit} slots"),
        _line(
            "", "accept queue", "o" * (now.queue or 0), UNKNOWN if now.queue is None else now.queue
        ),
        _line("", "elsewhere", "." * elsewhere, f"{elsewhere}, {where}"),
        _line("", "answered", "", f"{now.answered} of {now.requests}"),
    ]
    return [line[:WIDTH] for line in lines]


def _line(when: str, name: str, marks: str, count: object) -> str:
    return f"{when:>8}  {name:<13}{marks[:MARK]:<{MARK}} {count}".rstrip()


def _workers(busy: Sequence[int]) -> str:
    """A box a worker; where they do not fit, their numbers."""
    boxes = " ".join(f"[{'#' * count or ' '}]" for count in busy)
    return boxes if len(boxes) <= MARK else " ".join(f"[{count}]" for count in busy)
