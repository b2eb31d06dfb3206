"""The timeline of one cell: which worker served which request when, and what waited meanwhile.

Each worker has a row per slot. Waits have thinner rows of their own, and each wait ends where its
service begins. Requests that wait for any worker are in one block below all workers, which shows
the staircase of a saturated server. If a class accepts more than it serves, waits are below the
worker that holds them. Drawing a wait on the row of its service was rejected: on a saturated server
it would cover the request served before it, which is exactly what the figure must show.
"""

import json
import math
from statistics import median
from typing import Any

import altair as alt

from workerlab.model import CellResult
from workerlab.numbers.units import fill
from workerlab.report.html.figure import Figure, Key, data, of_cell, some, tip, unit, var
from workerlab.report.html.kernel import in_timeline, queue_pane
from workerlab.report.html.over_time import time_axis
from workerlab.report.html.timeline_data import Timeline, row_numbers
from workerlab.report.values import PARTS, finite

PIXELS, LOWEST, HIGHEST = 15, 90, 460
FINE = 150  # more typical bars than this in a row leave no room for lines between them
LABELS = 12
SLOT, WAIT, GAP = 1.0, 0.6, 0.7  # heights: of a row, of a row of waiting, between workers
SHORT = 0.004  # of the time shown: a shorter wait is not visible
SHARED = 0  # instead of a pid: waiting for any worker
ROOM = 16.0  # in rows: maximum height of all rows of waiting together

REQUESTS = (
    "{requests:# request} on {workers:# worker}, {service_s:duration} in the app each (median)"
    "[[; before that they waited {wait_s:duration} (median)]]"
    "[[, at most {longest_wait_s:duration}]]"
    "[[; the accept queue held at most {longest_queue}]]."
)

Row = tuple[float | None, ...]


def request_by_request(cell: CellResult, timeline: Timeline, where: str) -> Figure | None:
    """None if no request was seen."""
    if not timeline.bars:
        return None
    shared = not cell.worker_class.accepts_first
    arrivals_known = any(bar.arrived_s is not None for bar in timeline.bars)
    queue = in_timeline(timeline)
    rows = _rows_pane(timeline, shared, titled=not queue)
    return of_cell(
        "timeline",
        "",
        where,
        panes=some(rows, queue_pane(timeline, timeline.shown) if queue else None),
        legend=some(
            Key(PARTS["service"], "service"),
            Key("waiting", "waiting") if arrivals_known else None,
            Key(PARTS["accept_queue"], "accept-queue") if queue else None,
            Key("steady part", "soft", "dashed") if timeline.steady else None,
        ),
        caption=(
            "Each thick bar is a request inside the app, on a row of the worker that served it.",
            _arrivals(shared) if arrivals_known else _unknown_arrivals(timeline),
        ),
        alternative=_words(cell, timeline),
        title=f"{where}, request by request",
    )


def _arrivals(shared: bool) -> str:
    where = "below" if shared else "under a worker"
    return (
        f"Each thin bar {where} is one of them before that, from its client's start until the app"
        " was called."
    )


def _unknown_arrivals(timeline: Timeline) -> str:
    if in_timeline(timeline):
        return "Below, on the same time axis: connections waiting in the accept queue."
    unknown = "When the requests arrived is not known"
    if timeline.queue:
        return f"{unknown}; meanwhile the accept queue was empty in every sample."
    return f"{unknown}, nor how long the accept queue was."


def _words(cell: CellResult, timeline: Timeline) -> tuple[str, ...]:
    waits = [bar.start_s - bar.arrived_s for bar in timeline.bars if bar.arrived_s is not None]
    queue = max((length for _, length in timeline.queue), default=None)
    requests = {
        "requests": len(timeline.bars),
        "workers": len(timeline.workers),
        "service_s": median(bar.end_s - bar.start_s for bar in timeline.bars),
        "wait_s": max(0.0, median(waits)) if waits else None,
        "longest_wait_s": max(0.0, *waits) if waits else None,
        "longest_queue": None if waits else queue,
    }
    slots = cell.slots_measured
    most = {"slots": slots, "rate_rps": finite(cell.throughput_rps)}
    return some(
        fill(REQUESTS, requests),
        None
        if slots is None
        else fill("At most {slots} were served at once[[, {rate_rps:number} per second]].", most),
    )


# --- layout of the bars -------------------------------------------------------------------


def _rows_pane(timeline: Timeline, shared: bool, *, titled: bool) -> Any:
    """Heights are in rows from the top. `shared`: requests wait for any worker, not for one."""
    name, factor = unit(timeline.shown[1])
    rows = _wait_rows(timeline, shared)
    deep = {pid: 1 + max(row for row, _, _ in waits) for pid, waits in rows.items()}
    wait = min(WAIT, ROOM / max(1, sum(deep.values())))
    served, waits, labels = list[Row](), list[Row](), dict[float, str]()
    top = 0.0
    for number, pid in enumerate(dict.fromkeys((*timeline.workers, *rows)), 1):
        bars = [bar for bar in timeline.bars if bar.worker == pid]
        below = top + (0 if pid == SHARED else SLOT * (1 + max((b.row for b in bars), default=0)))
        for bar in bars:
            waited_s = None if bar.arrived_s is None else max(0.0, bar.start_s - bar.arrived_s)
            times = (bar.start_s * factor, bar.end_s * factor, waited_s and waited_s * factor)
            served.append((number, top + SLOT * bar.row, *times))
        waits += [(below + wait * row, a * factor, b * factor) for row, a, b in rows.get(pid, [])]
        end = below + wait * deep.get(pid, 0)
        if pid == SHARED:
            labels[(top + end) / 2] = "waiting"
        else:
            labels[(top + below) / 2] = str(number)
        top = end + GAP
    steady = [
        (at * factor,)
        for at in timeline.steady or ()
        if timeline.shown[0] <= at <= timeline.shown[1]
    ]
    rules = alt.Chart(data("from", steady), name="steady")
    labels = dict(list(labels.items())[:: -(-len(labels) // LABELS)])
    axis = alt.Axis(
        values=list(labels),
        tickCount=len(labels),  # otherwise Vega drops every second label if there are many
        labelExpr=f"{json.dumps(list(labels.values()))}[indexof({list(labels)}, datum.value)]",
        grid=False,
    )
    scale = alt.Scale(domain=[top - GAP, -0.1], nice=False, zero=False)
    # With a title, as the pane of the queue has one: this aligns their horizontal axes
    down = alt.Y("top:Q", scale=scale, axis=axis, title="workers")
    look: dict[str, Any] = {"clip": True, "stroke": var("paper"), "strokeWidth": _line(timeline)}
    columns = 3 + (served[0][-1] is not None)
    layers = [
        alt.Chart(data(heads, bars), name=mark)
        .transform_calculate(bottom=f"datum.top + {tall}", took="datum.to - datum.from")
        .mark_rect(color=var(colour), **look)
        .encode(down, x2="to:Q", y2="bottom:Q", tooltip=tips)
        for mark, colour, heads, bars, tall, tips in (
            ("waits", "waiting", "top from to", waits, 0.86 * wait, [
                tip("took", f"waited, {name}"),
                tip("from", "arrived"),
            ]),
            ("served", "service", "worker top from to waited", served, 0.92 * SLOT, [
                tip("worker", form="d"),
                tip("from", f"entered the app, {name}"),
                tip("took", f"in the app, {name}"),
                tip("waited", f"waited before, {name}"),
            ][:columns]),
        )
    ]  # fmt: skip
    tall = max(LOWEST, min(HIGHEST, PIXELS * (top - GAP)))
    return (
        alt.layer(*layers, rules.mark_rule(color=var("soft"), strokeDash=[6, 4]))
        .encode(time_axis(timeline.shown, titled=titled))
        .properties(height=round(tall))
    )


def _wait_rows(timeline: Timeline, shared: bool) -> dict[int, list[tuple[int, float, float]]]:
    """(row, arrived, served from) of each visible wait, by worker, or under SHARED if `shared`.

    Sorted by arrival, then, if they arrive together, by start of service, to form stairs.
    """
    short_s = SHORT * (timeline.shown[1] - timeline.shown[0])
    waited: dict[int, list[tuple[float, float]]] = {}
    for bar in timeline.bars:
        if bar.arrived_s is not None and bar.start_s - bar.arrived_s >= short_s:
            of_worker = waited.setdefault(SHARED if shared else bar.worker, [])
            of_worker.append((bar.arrived_s, bar.start_s))
    rows_of = {}
    for pid, of_worker in waited.items():
        ordered, first_s = [], -math.inf
        for arrived_s, start_s in sorted(of_worker):
            first_s = first_s if arrived_s - first_s <= short_s else arrived_s
            ordered.append((first_s, start_s, arrived_s))
        ordered.sort()
        # A wait takes a row that becomes free just after its arrival: the bars still seem to touch
        rows = row_numbers((arrived_s + short_s / 2, start_s) for _, start_s, arrived_s in ordered)
        rows_of[pid] = [(row, a, b) for row, (_, b, a) in zip(rows, ordered, strict=True)]
    return rows_of


def _line(timeline: Timeline) -> int:
    """The width of the line between two bars, in pixels."""
    typical = median(bar.end_s - bar.start_s for bar in timeline.bars)
    in_a_row = (timeline.shown[1] - timeline.shown[0]) / max(typical, 1e-9)
    return 0 if in_a_row > FINE else 1 if in_a_row > FINE / 3 else 2
