"""Slots and queues as text for a terminal of 80 columns: at one moment, and over time.

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
NAME_WIDTH = 12
MARKS_WIDTH = 24  # boxes and marks
MARKS_START = 10 + NAME_WIDTH + 1  # their first column
ROW_NAME_WIDTH = 15  # over time
COLUMNS = WIDTH - ROW_NAME_WIDTH - 5  # of a picture over time
NARROW = "boxes and marks hidden (terminal narrower than 80 columns)"
TEN_OR_MORE = "+"
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
    by worker; `slots`: of all workers, None for unlimited; `queue`: None if it cannot be read;
    `accepts_first`: requests in neither app nor queue wait inside a worker; `requests`: None for
    random arrivals, whose number is not known; `no_room`: connections that do not fit into the
    accept queue, None if all fit; `repeated`: SYNs sent again since the load began."""
    inside, limit = sum(busy), "unlimited" if slots is None else slots
    located = inside + (queue or 0) + (no_room or 0)
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
    sent = min(connections, requests - answered)
    elsewhere = max(0, sent - located)
    idle = max(0, connections - max(sent, located))
    lines += [
        _line("", "elsewhere", "." * elsewhere, f"{elsewhere}, {where}"),
        _line("", "idle", "." * idle, f"{idle}, with nothing to send"),
        _line("", "answered", "", f"{answered} of {requests}"),
    ]
    return _fitted(lines, width)


def _fitted(lines: Sequence[str], width: int) -> list[str]:
    """Without their marks, and wrapped, on a terminal that is too narrow for them."""
    if width >= WIDTH:
        return [line[:WIDTH] for line in lines]
    unmarked = [line[:MARKS_START] + line[MARKS_START + MARKS_WIDTH + 1 :] for line in lines]
    return [part for line in [*unmarked, NARROW] for part in textwrap.wrap(line, width)]


def fitting_width() -> int:
    """WIDTH, or that of standard output if it is less; at least NARROWEST."""
    return max(NARROWEST, min(WIDTH, output_columns() or WIDTH))


def _line(when: str, name: str, marks: str, count: object) -> str:
    return f"{when:>8}  {name:<{NAME_WIDTH}} {marks[:MARKS_WIDTH]:<{MARKS_WIDTH}} {count}".rstrip()


def _workers(busy: Sequence[int]) -> str:
    """A box per worker, or the counts alone if the boxes do not fit."""
    boxes = " ".join(f"[{'#' * count or ' '}]" for count in busy)
    return boxes if len(boxes) <= MARKS_WIDTH else " ".join(f"[{count}]" for count in busy)


def over_time(rows: Mapping[str, Sequence[int]], column_s: float) -> list[str]:
    """A digit per column, "." for none, above a scale of seconds."""
    width = max(map(len, rows.values()), default=0)
    lines = [
        f"  {name:<{ROW_NAME_WIDTH}} {''.join(_digit(count) for count in counts)}"
        for name, counts in rows.items()
    ]
    scale = [" "] * (width + 4)
    for place in range(0, width, 10):
        label = f"{place * column_s:g}"
        scale[place : place + len(label)] = label
    return [*lines, f"  {'second':<{ROW_NAME_WIDTH}} {''.join(scale)}".rstrip()]


def _digit(count: int) -> str:
    return "." if not count else str(count) if count < 10 else TEN_OR_MORE
