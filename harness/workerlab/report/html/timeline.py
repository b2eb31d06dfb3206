"""The timeline of one cell: which worker served which request when, and what waited meanwhile.

Each worker has a row per slot. What waits has thinner rows of its own, each wait ending where its
service begins: in one block below all workers where it waits for any of them, which makes the
staircase of a saturated server, and below the worker that holds it where a class accepts first.
Drawing a wait on the row of its service was rejected: on a saturated server it would lie on the
request served before it, which is just what shall be seen.
"""

import json
import math
from statistics import median
from typing import Any

import altair as alt

from workerlab.model import CellResult, Finding, Timeline
from workerlab.numbers.rows import row_numbers
from workerlab.report.html.colours import var
from workerlab.report.html.figure import Figure, Key, data, key, of_cell, some, tip, unit
from workerlab.report.html.kernel import in_timeline, queue_pane
from workerlab.report.html.over_time import time_axis
from workerlab.report.messages import say
from workerlab.report.values import finite

PIXELS, LOWEST, HIGHEST = 15, 90, 460
FINE = 150  # so many typical bars in a row leave no room for lines between them
LABELS = 12
SLOT, WAIT, GAP = 1.0, 0.6, 0.7  # heights of a row, of a row of waiting, between workers
SHORT = 0.004  # of what is drawn: a shorter wait cannot be seen
SHARED = 0  # no worker's pid
ROOM = 16.0  # row heights that all rows of waiting share, where they are many

Row = tuple[float | None, ...]


def timeline(cell: CellResult, seen: Timeline, where: Finding) -> Figure | None:
    """None where no request was seen."""
    if not seen.bars:
        return None
    shared = not cell.worker_class.accepts_first
    known = any(bar.arrived_s is not None for bar in seen.bars)
    queue = in_timeline(seen)
    waits = "waits_below" if shared else "waits_under_worker"
    empty = "queue_empty" if seen.queue else "unknown"
    arrivals = waits if known else "queue_below" if queue else empty
    rows = _rows_pane(seen, shared, titled=not queue)
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
        title=Finding("chart.timeline", {"where": where}),
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


def _rows_pane(seen: Timeline, shared: bool, *, titled: bool) -> Any:
    """Heights are in rows from the top. `shared`: what waits does so for any worker."""
    name, factor = unit(seen.shown[1])
    rows = _wait_rows(seen, shared)
    deep = {pid: 1 + max(row for row, _, _ in mine) for pid, mine in rows.items()}
    wait = min(WAIT, ROOM / max(1, sum(deep.values())))
    served, waits, labels = list[Row](), list[Row](), dict[float, str]()
    top = 0.0
    for number, pid in enumerate(dict.fromkeys((*seen.workers, *rows)), 1):
        bars = [bar for bar in seen.bars if bar.worker == pid]
        below = top + (0 if pid == SHARED else SLOT * (1 + max((b.row for b in bars), default=0)))
        for bar in bars:
            waited_s = None if bar.arrived_s is None else max(0.0, bar.start_s - bar.arrived_s)
            times = (bar.start_s * factor, bar.end_s * factor, waited_s and waited_s * factor)
            served.append((number, top + SLOT * bar.row, *times))
        waits += [(below + wait * row, a * factor, b * factor) for row, a, b in rows.get(pid, [])]
        end = below + wait * deep.get(pid, 0)
        if pid == SHARED:
            labels[(top + end) / 2] = say("chart.waiting")
        else:
            labels[(top + below) / 2] = str(number)
        top = end + GAP
    steady = [(at * factor,) for at in seen.steady or () if seen.shown[0] <= at <= seen.shown[1]]
    rules = alt.Chart(data("from", steady), name="steady")
    labels = dict(list(labels.items())[:: -(-len(labels) // LABELS)])
    axis = alt.Axis(
        values=list(labels),
        tickCount=len(labels),  # or Vega leaves out every second one of more than it wants
        labelExpr=f"{json.dumps(list(labels.values()))}[indexof({list(labels)}, datum.value)]",
        grid=False,
    )
    scale = alt.Scale(domain=[top - GAP, -0.1], nice=False, zero=False)
    # With a title, as the pane of the queue has one: so their horizontal axes begin at one place
    down = alt.Y("top:Q", scale=scale, axis=axis, title=say("chart.workers"))
    look: dict[str, Any] = {"clip": True, "stroke": var("paper"), "strokeWidth": _line(seen)}
    known = 3 + (served[0][-1] is not None)
    layers = [
        alt.Chart(data(heads, every), name=mark)
        .transform_calculate(bottom=f"datum.top + {tall}", took="datum.to - datum.from")
        .mark_rect(color=var(colour), **look)
        .encode(down, x2="to:Q", y2="bottom:Q", tooltip=tips)
        for mark, colour, heads, every, tall, tips in (
            ("waits", "waiting", "top from to", waits, 0.86 * wait, [
                tip("took", Finding("chart.timeline.waited_in", {"unit": name})),
                tip("from", Finding("chart.timeline.arrived")),
            ]),
            ("served", "service", "worker top from to waited", served, 0.92 * SLOT, [
                tip("worker", form="d"),
                tip("from", Finding("chart.timeline.entered_in", {"unit": name})),
                tip("took", Finding("chart.in_app_in", {"unit": name})),
                tip("waited", Finding("chart.timeline.waited_before_in", {"unit": name})),
            ][:known]),
        )
    ]  # fmt: skip
    tall = max(LOWEST, min(HIGHEST, PIXELS * (top - GAP)))
    return (
        alt.layer(*layers, rules.mark_rule(color=var("soft"), strokeDash=[6, 4]))
        .encode(time_axis(seen.shown, titled=titled))
        .properties(height=round(tall))
    )


def _wait_rows(seen: Timeline, shared: bool) -> dict[int, list[tuple[int, float, float]]]:
    """(row, arrived, served from) of each wait that can be seen, by worker, or `shared` by all.

    They come by arrival; those that arrive together, by who is served first: so they make stairs.
    """
    short_s = SHORT * (seen.shown[1] - seen.shown[0])
    waited: dict[int, list[tuple[float, float]]] = {}
    for bar in seen.bars:
        if bar.arrived_s is not None and bar.start_s - bar.arrived_s >= short_s:
            mine = waited.setdefault(SHARED if shared else bar.worker, [])
            mine.append((bar.arrived_s, bar.start_s))
    found = {}
    for pid, mine in waited.items():
        ordered, first_s = [], -math.inf
        for arrived_s, start_s in sorted(mine):
            first_s = first_s if arrived_s - first_s <= short_s else arrived_s
            ordered.append((first_s, start_s, arrived_s))
        ordered.sort()
        # What arrives just before a row is free takes it, and their bars still seem to touch
        rows = row_numbers((arrived_s + short_s / 2, start_s) for _, start_s, arrived_s in ordered)
        found[pid] = [(row, a, b) for row, (_, b, a) in zip(rows, ordered, strict=True)]
    return found


def _line(seen: Timeline) -> int:
    """How wide the line between two bars is."""
    typical = median(bar.end_s - bar.start_s for bar in seen.bars)
    in_a_row = (seen.shown[1] - seen.shown[0]) / max(typical, 1e-9)
    return 0 if in_a_row > FINE else 1 if in_a_row > FINE / 3 else 2
