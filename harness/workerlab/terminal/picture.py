"""Slots and queues in plain text for a terminal of 80 columns: at one moment, and over time.

3.2 s  in the app   [#] [#] [#] [#]          4 of 4 slots
       accept queue ooooo                    5
       no room      ~~~~~~~                  7, SYNs repeated: 12
       elsewhere                             0, on the way
       idle                                  0, with nothing to send
       answered                              9 of 32
"""

import textwrap
from collections.abc import Mapping, Sequence

from workerlab.terminal.console import output_columns

WIDTH, NARROWEST = 80, 30
MARK = 24  # columns for what is drawn
NAME = 12
MARKED = 10 + NAME + 1  # where that begins
BESIDE = 15
COLUMNS = WIDTH - BESIDE - 5  # of what is drawn over time
NARROW = "boxes and marks hidden (terminal narrower than 80 columns)"
MANY = "+"  # more than one digit
UNKNOWN = "missing"


def draw(
    at_s: float,
    *,
    busy: Sequence[int],
    slots: int | None,
    queue: int | None,
    connections: int,
    answered: int,
    requests: int | None,
    accepts_first: bool,
    no_room: int | None = None,
    repeated: int | None = None,
    width: int = WIDTH,
) -> list[str]:
    """The lines, none longer than `width`, without marks below WIDTH. `busy`: requests in the app,
    by worker; `slots`: of all workers, None unlimited; `queue`: None where it cannot be seen;
    `accepts_first`: what is in neither app nor queue waits inside a worker. At the end connections
    have nothing more to send.
    `requests`: None where they arrive at random, and nobody knows how many will.
    `no_room`: connections that a full accept queue keeps out, None where it is long enough;
    `repeated`: SYNs that were sent again since the load began."""
    inside, limit = sum(busy), "unlimited" if slots is None else slots
    known = inside + (queue or 0) + (no_room or 0)
    sent = known if requests is None else min(connections, requests - answered)
    elsewhere = max(0, sent - known)
    idle = max(0, connections - max(sent, known))
    where = "accepted, not yet in the app" if accepts_first else "on the way, or not connected"
    lines = [
        _line(f"{at_s:6.1f} s", "in the app", _workers(busy), f"{inside} of {limit} slots"),
        _line("", "accept queue", "o" * (queue or 0), UNKNOWN if queue is None else queue),
    ]
    if no_room is not None:
        where = "on the way"
        again = UNKNOWN if repeated is None else repeated
        lines.append(_line("", "no room", "~" * no_room, f"{no_room}, SYNs repeated: {again}"))
    if requests is None:
        return [*lines, _line("", "answered", "", answered)]
    lines += [
        _line("", "elsewhere", "." * elsewhere, f"{elsewhere}, {where}"),
        _line("", "idle", "." * idle, f"{idle}, with nothing to send"),
        _line("", "answered", "", f"{answered} of {requests}"),
    ]
    if width >= WIDTH:
        return [line[:WIDTH] for line in lines]
    unmarked = [line[:MARKED] + line[MARKED + MARK + 1 :] for line in lines]
    return [part for line in [*unmarked, NARROW] for part in textwrap.wrap(line, width)]


def fitting_width() -> int:
    """WIDTH, or what standard output has where that is less; at least NARROWEST."""
    return max(NARROWEST, min(WIDTH, output_columns() or WIDTH))


def _line(when: str, name: str, marks: str, count: object) -> str:
    return f"{when:>8}  {name:<{NAME}} {marks[:MARK]:<{MARK}} {count}".rstrip()


def _workers(busy: Sequence[int]) -> str:
    """A box a worker; where they do not fit, their numbers."""
    boxes = " ".join(f"[{'#' * count or ' '}]" for count in busy)
    return boxes if len(boxes) <= MARK else " ".join(f"[{count}]" for count in busy)


def over_time(rows: Mapping[str, Sequence[int]], column_s: float) -> list[str]:
    """A digit a column, "." for none; below it the seconds."""
    width = max(map(len, rows.values()), default=0)
    lines = [
        f"  {name:<{BESIDE}} {''.join(_digit(count) for count in counts)}"
        for name, counts in rows.items()
    ]
    scale = [" "] * (width + 4)
    for place in range(0, width, 10):
        label = f"{place * column_s:g}"
        scale[place : place + len(label)] = label
    return [*lines, f"  {'second':<{BESIDE}} {''.join(scale)}".rstrip()]


def _digit(count: int) -> str:
    return "." if not count else str(count) if count < 10 else MANY
