"""The timeline of one cell: which worker served which request when, and what waited meanwhile.

Each worker has a row per slot. What waits has thinner rows of its own, each wait ending where its
service begins: in one block below all workers where it waits for any of them, which makes the
staircase of a saturated server, and below the worker that holds it where a class accepts first.
Drawing a wait on the row of its service was rejected: on a saturated server it would lie on the
request served before it, which is just what shall be seen.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import median
from typing import Any

import altair as alt

from harness.model import CellResult, Finding, Timeline
from harness.numbers.rows import row_numbers
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, data, key, of_cell, some, tip, unit
from harness.report.html.kernel import queue_pane
from harness.report.html.over_time import time_axis
from harness.report.messages import say
from harness.report.values import finite

PIXELS, LOWEST, HIGHEST = 15, 90, 460
FINE = 150  # so many typical bars in a row leave no room for lines between them
LABELS = 12
SLOT, WAIT, GAP = 1.0, 0.6, 0.7  # heights of a row, of a row of waiting, between workers
SHORT = 0.004  # of what is drawn: a shorter wait cannot be seen
SHARED = 0  # no worker's pid
ROOM = 16.0  # row heights that all rows of waiting share, where they are many


def timeline(cell: CellResult, seen: Timeline, where: Finding) -> Figure | None:
    """None where no request was seen."""
    if not seen.bars:
        return None
    shared = not cell.worker_class.accepts_first
    known = any(bar.arrived_s is not None for bar in seen.bars)
    queue = not known and bool(seen.queue)
    waits = "waits_below" if shared else "waits_under_worker"
    arrivals = waits if known else "queue_below" if queue else "unknown"
    rows = _rows_pane(seen, placed(seen, shared), titled=not queue)
    return of_cell(
        "timeline",
        where,
        panes=some(rows, queue_pane(seen, seen.shown) if queue else None),
        legend=some(
            Key(Finding("part.service"), "service", "box"),
            key("waiting", "waiting") if known else None,
            key("accept_queue", "accept-queue") if queue else None,
            key("steady", "soft", "dashed") if seen.steady else None,
        ),
        caption=[Finding("chart.timeline.caption"), Finding(f"chart.timeline.{arrivals}")],
        alternative=_words(cell, seen),
        heading="",
    )


def _words(cell: CellResult, seen: Timeline) -> tuple[Finding, ...]:
    waits = [bar.start_s - bar.arrived_s for bar in seen.bars if bar.arrived_s is not None]
    queue = max((length for _, length in seen.queue), default=None)
    requests = {
        "requests": len(seen.bars),
        "workers": len(seen.workers),
        "service_s": median(bar.end_s - bar.start_s for bar in seen.bars),
        "wait_s": max(0.0, median(waits)) if waits else None,
        "longest_wait_s": max(0.0, *waits) if waits else None,
        "longest_queue": None if waits else queue,
    }
    slots = cell.slots_measured
    most = {"slots": slots, "rate_rps": finite(cell.throughput_rps)}
    return some(
        Finding("chart.timeline.requests", requests),
        None if slots is None else Finding("chart.timeline.at_once", most),
    )


# --- where the bars stand -----------------------------------------------------------------


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
    rows = _wait_rows(seen, shared)
    deep = {pid: 1 + max(mine.values()) for pid, mine in rows.items()}
    wait = min(WAIT, ROOM / max(1, sum(deep.values())))
    used = dict.fromkeys(seen.workers, 1)
    for bar in seen.bars:
        used[bar.worker] = max(used[bar.worker], bar.row + 1)
    slots, waits, labels = dict[int, float](), dict[int, float](), dict[float, str]()
    top = 0.0
    for number, pid in enumerate(dict.fromkeys((*seen.workers, *rows)), 1):
        slots[pid], below = top, top + SLOT * used.get(pid, 0)
        waits |= {i: below + wait * row for i, row in rows.get(pid, {}).items()}
        end = below + wait * deep.get(pid, 0)
        if pid == SHARED:
            labels[(top + end) / 2] = say("chart.waiting")
        else:
            labels[(top + below) / 2] = say("chart.timeline.worker", number=number)
        top = end + GAP
    return Places(slots, waits, wait, labels, top - GAP)


def _wait_rows(seen: Timeline, shared: bool) -> dict[int, dict[int, int]]:
    """The row of each wait, by its bar's place in the timeline; by worker, or `shared` by all.

    They come by arrival; those that arrive together, by who is served first: so they make stairs.
    """
    short_s = SHORT * (seen.shown[1] - seen.shown[0])
    waited: dict[int, list[tuple[float, float, int]]] = {}
    for i, bar in enumerate(seen.bars):
        if bar.arrived_s is not None and bar.start_s - bar.arrived_s >= short_s:
            mine = waited.setdefault(SHARED if shared else bar.worker, [])
            mine.append((bar.arrived_s, bar.start_s, i))
    found = {}
    for pid, mine in waited.items():
        ordered, first_s = [], -math.inf
        for arrived_s, start_s, i in sorted(mine):
            first_s = first_s if arrived_s - first_s <= short_s else arrived_s
            ordered.append((first_s, start_s, arrived_s, i))
        ordered.sort()
        # What arrives just before a row is free takes it, and their bars still seem to touch
        rows = row_numbers(
            (arrived_s + short_s / 2, start_s) for _, start_s, arrived_s, _ in ordered
        )
        found[pid] = {i: row for (*_, i), row in zip(ordered, rows, strict=True)}
    return found


# --- how they are drawn -------------------------------------------------------------------


def _rows_pane(seen: Timeline, places: Places, *, titled: bool) -> Any:
    name, factor = unit(seen.shown[1])
    number = {pid: i for i, pid in enumerate(seen.workers, 1)}
    served = [
        (
            number[bar.worker],
            places.slots[bar.worker] + SLOT * bar.row,
            bar.start_s * factor,
            bar.end_s * factor,
            None if bar.arrived_s is None else max(0.0, bar.start_s - bar.arrived_s) * factor,
        )
        for bar in seen.bars
    ]
    waits = [
        (top, (seen.bars[i].arrived_s or 0.0) * factor, seen.bars[i].start_s * factor)
        for i, top in places.waits.items()
    ]
    waits_tips = [
        tip("took", Finding("chart.timeline.waited_in", {"unit": name})),
        tip("from", Finding("chart.timeline.arrived")),
    ]
    served_tips = [
        tip("worker", form="d"),
        tip("from", Finding("chart.timeline.entered_in", {"unit": name})),
        tip("took", Finding("chart.in_app_in", {"unit": name})),
        tip("waited", Finding("chart.timeline.waited_before_in", {"unit": name})),
    ]
    steady = [(at * factor,) for at in seen.steady or () if seen.shown[0] <= at <= seen.shown[1]]
    rules = alt.Chart(data("from", steady), name="steady")
    labels = dict(list(places.labels.items())[:: -(-len(places.labels) // LABELS)])
    axis = alt.Axis(
        values=list(labels),
        labelExpr=f"{json.dumps(list(labels.values()))}[indexof({list(labels)}, datum.value)]",
        grid=False,
    )
    scale = alt.Scale(domain=[places.depth, -0.1], nice=False, zero=False)
    down = alt.Y("top:Q", scale=scale, axis=axis, title=None)
    look: dict[str, Any] = {"clip": True, "stroke": var("paper"), "strokeWidth": _line(seen)}
    known = 3 + (served[0][-1] is not None)
    bars = [
        alt.Chart(source, name=name)
        .transform_calculate(bottom=f"datum.top + {tall}", took="datum.to - datum.from")
        .mark_rect(color=var(colour), **look)
        .encode(x2="to:Q", y=down, y2="bottom:Q", tooltip=tips)
        for name, colour, source, tall, tips in (
            ("waits", "waiting", data("top from to", waits), 0.86 * places.wait, waits_tips),
            ("served", "service", data("worker top from to waited", served), 0.92 * SLOT,
             served_tips[:known]),
        )
    ]  # fmt: skip
    tall = max(LOWEST, min(HIGHEST, PIXELS * places.depth))
    return (
        alt.layer(
            *bars,
            rules.mark_rule(color=var("soft"), strokeDash=[6, 4]),
        )
        .encode(time_axis(seen.shown, titled=titled))
        .properties(height=round(tall))
    )


def _line(seen: Timeline) -> int:
    """How wide the line between two bars is."""
    typical = median(bar.end_s - bar.start_s for bar in seen.bars)
    in_a_row = (seen.shown[1] - seen.shown[0]) / max(typical, 1e-9)
    return 0 if in_a_row > FINE else 1 if in_a_row > FINE / 3 else 2
