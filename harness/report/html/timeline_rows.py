"""Where the bars of a timeline stand.

Each worker has a row per slot. What waits has thinner rows of its own, each wait ending where its
service begins: in one block below all workers where it waits for any of them, which makes the
staircase of a saturated server, and below the worker that holds it where a class accepts first.
Drawing a wait on the row of its service was rejected: on a saturated server it would lie on the
request served before it, which is just what shall be seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

from harness.model import Timeline
from harness.numbers.rows import row_numbers
from harness.report.messages import say

SLOT, WAIT, GAP = 1.0, 0.6, 0.7  # heights of a row, of a row of waiting, between workers
SHORT = 0.004  # of what is drawn: a shorter wait cannot be seen
SHARED = 0  # no worker's pid
ROOM = 16.0  # row heights that all rows of waiting share, where they are many

Wait = tuple[float, float, int]  # arrived, served from, place of the bar in the timeline


@dataclass(frozen=True)
class Places:
    """Where things stand, in row heights from the top."""

    slots: dict[int, float]  # pid: top of its first row
    waits: dict[int, float]  # place of the bar in the timeline: top
    wait: float  # height of a row of waiting
    labels: dict[float, str]  # height: what stands there
    depth: float


def placed(seen: Timeline, shared: bool) -> Places:
    """`shared`: what waits does so for any worker."""
    rows = _rows(seen, shared)
    deep = {pid: 1 + max(mine.values()) for pid, mine in rows.items()}
    wait = min(WAIT, ROOM / max(1, sum(deep.values())))
    used = dict.fromkeys(seen.workers, 1)
    for bar in seen.bars:
        used[bar.worker] = max(used[bar.worker], bar.row + 1)
    slots, waits, labels = dict[int, float](), dict[int, float](), dict[float, str]()
    top = 0.0
    for pid in (*seen.workers, *([SHARED] if SHARED in rows else [])):
        slots[pid], below = top, top + SLOT * used.get(pid, 0)
        waits |= {i: below + wait * row for i, row in rows.get(pid, {}).items()}
        end = below + wait * deep.get(pid, 0)
        if pid == SHARED:
            labels[(top + end) / 2] = say("chart.waiting")
        else:
            labels[(top + below) / 2] = say("chart.timeline.worker", number=len(slots))
        top = end + GAP
    return Places(slots, waits, wait, labels, top - GAP)


def _rows(seen: Timeline, shared: bool) -> dict[int, dict[int, int]]:
    """The row of each wait, by its bar's place in the timeline; by worker, or `shared` by all."""
    short_s = SHORT * (seen.shown[1] - seen.shown[0])
    waited: dict[int, list[Wait]] = {}
    for i, bar in enumerate(seen.bars):
        if bar.arrived_s is not None and bar.start_s - bar.arrived_s >= short_s:
            mine = waited.setdefault(SHARED if shared else bar.worker, [])
            mine.append((bar.arrived_s, bar.start_s, i))
    found = {}
    for pid, mine in waited.items():
        ordered = _in_order(mine, short_s)
        # What arrives just before a row is free takes it, and their bars still seem to touch
        rows = row_numbers((arrived + short_s / 2, start) for arrived, start, _ in ordered)
        found[pid] = {i: row for (_, _, i), row in zip(ordered, rows, strict=True)}
    return found


def _in_order(waited: list[Wait], short_s: float) -> list[Wait]:
    """By arrival; those that arrive together, by who is served first: so they make stairs."""
    found: list[Wait] = []
    together: list[Wait] = []
    for one in sorted(waited):
        if together and one[0] - together[0][0] > short_s:
            found += sorted(together, key=itemgetter(1))
            together = []
        together.append(one)
    return found + sorted(together, key=itemgetter(1))
