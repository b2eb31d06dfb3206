"""Slots and queues at one moment, in five lines of plain text for a terminal of 80 columns.

3.2 s  in the app   [#] [#] [#] [#]          4 of 4 slots
       accept queue oooo                     4
       elsewhere                             0, on the way, or not connected
       idle                                  0, nothing sent
       answered                              9 of 33
"""

from collections.abc import Sequence

WIDTH = 80
MARK = 24  # columns for what is drawn
UNKNOWN = "missing"


def draw(
    at_s: float,
    *,
    busy: Sequence[int],
    slots: int | None,
    queue: int | None,
    connections: int,
    answered: int,
    requests: int,
    accepts_first: bool,
) -> list[str]:
    """The lines, none longer than WIDTH. `busy`: requests in the app, by worker; `slots`: of all
    workers, None unlimited; `queue`: None where it cannot be seen; `accepts_first`: what is in
    neither app nor queue waits inside a worker. A load tool that sends its first request alone has
    nothing to send on the other connections until that is answered, nor at the end."""
    inside, limit = sum(busy), "unlimited" if slots is None else slots
    sent = min(connections, requests - answered) if answered else 1
    elsewhere = max(0, sent - inside - (queue or 0))
    idle = connections - max(sent, inside + (queue or 0))
    where = "accepted, inside a worker" if accepts_first else "on the way, or not connected"
    lines = [
        _line(f"{at_s:6.1f} s", "in the app", _workers(busy), f"{inside} of {limit} slots"),
        _line("", "accept queue", "o" * (queue or 0), UNKNOWN if queue is None else queue),
        _line("", "elsewhere", "." * elsewhere, f"{elsewhere}, {where}"),
        _line("", "idle", "." * idle, f"{idle}, nothing sent"),
        _line("", "answered", "", f"{answered} of {requests}"),
    ]
    return [line[:WIDTH] for line in lines]


def _line(when: str, name: str, marks: str, count: object) -> str:
    return f"{when:>8}  {name:<13}{marks[:MARK]:<{MARK}} {count}".rstrip()


def _workers(busy: Sequence[int]) -> str:
    """A box a worker; where they do not fit, their numbers."""
    boxes = " ".join(f"[{'#' * count or ' '}]" for count in busy)
    return boxes if len(boxes) <= MARK else " ".join(f"[{count}]" for count in busy)
