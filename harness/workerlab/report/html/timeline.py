"""The timeline of one cell: when each worker served each request, and which requests waited.

Each worker has a row per slot. Waits have thinner rows of their own, and each wait ends where its
service begins. Requests that wait for any worker are in one block below all workers, where a
saturated server shows as a staircase. If a class accepts more than it can serve at once, waits are
below the worker that has accepted them.

Rejected: drawing a wait on the row of its service. On a saturated server it would cover the request
served before, which is exactly what the figure must show.
"""

import json
import math
from statistics import median
from typing import Any, NamedTuple

import altair as alt

from workerlab.model.result import Result
from workerlab.numbers.units import fill
from workerlab.report.html.figure import (
    Figure,
    Key,
    cell_figure,
    layer,
    not_none,
    span,
    tips,
    unit,
    var,
)
from workerlab.report.html.over_time import queue_in_timeline, queue_pane, time_axis
from workerlab.report.html.timeline_data import Rows, Timeline
from workerlab.report.values import PARTS, finite

ROW_HEIGHT = 15  # pixels
MIN_HEIGHT, MAX_HEIGHT = 90, 460  # pixels of the pane
MAX_LINED_BARS = 150  # in a row: between more bars, there is no room for lines
MAX_LABELS = 12
WAIT_HEIGHT, WORKER_GAP = 0.6, 0.7  # in rows, one per slot
MIN_VISIBLE_SHARE = 0.004  # of the period shown: a shorter wait is invisible
ANY_WORKER = 0  # the pid of waits for any worker
MAX_WAITS_HEIGHT = 16.0  # in rows, for all waits together

REQUESTS = (
    "{requests:# request} on {workers:# worker}; median time in the app {service_s:duration}"
    "[[; median wait before that {wait_s:duration}]]"
    "[[, longest {longest_wait_s:duration}]]"
    "[[; longest accept queue {longest_queue}]]."
)

Row = tuple[float | None, ...]


def request_by_request(cell: Result, timeline: Timeline, where: str) -> Figure | None:
    """The timeline figure; None if no request was recorded."""
    if not timeline.bars:
        return None
    shared = not cell.worker_class.accepts_first
    arrivals_known = any(bar.arrived_s is not None for bar in timeline.bars)
    queue = queue_in_timeline(timeline)
    rows = _rows_pane(timeline, shared, titled=not queue)
    if arrivals_known:
        text = (
            f"Each thin bar {'below' if shared else 'under a worker'} is a request's wait before"
            " that, from its start at the client until the app was called."
        )
    elif queue:
        text = "Below, on the same time axis: connections waiting in the accept queue."
    elif timeline.queue:
        text = "Arrival times are unknown. The accept queue was empty in every sample shown."
    else:
        text = "Arrival times and the length of the accept queue are unknown."
    return cell_figure(
        "timeline",
        "",
        where,
        panes=not_none(rows, queue_pane(timeline, timeline.shown) if queue else None),
        legend=not_none(
            Key(PARTS["service"], "service"),
            Key("waiting", "waiting") if arrivals_known else None,
            Key(PARTS["accept_queue"], "accept-queue") if queue else None,
            Key("steady part", "soft", "dashed") if timeline.steady else None,
        ),
        caption=(
            "Each thick bar is a request in the app, on a row of the worker that served it.",
            text,
        ),
        alternative=_sentences(cell, timeline),
        title=f"{where}, request by request",
    )


def _sentences(cell: Result, timeline: Timeline) -> tuple[str, ...]:
    waits_s = not_none(*(bar.waited_s for bar in timeline.bars))
    queue = max((length for _, length in timeline.queue), default=None)
    request_values = {
        "requests": len(timeline.bars),
        "workers": len(timeline.workers),
        "service_s": median(bar.end_s - bar.start_s for bar in timeline.bars),
        "wait_s": median(waits_s) if waits_s else None,
        "longest_wait_s": max(waits_s, default=None),
        "longest_queue": None if waits_s else queue,
    }
    values = {"slots": cell.slots_measured, "rate_rps": finite(cell.throughput_rps)}
    return (
        fill(REQUESTS, request_values),
        fill("At most {slots} in the app at once[[; {rate_rps:number} requests/s]].", values),
    )


# --- layout of the bars -------------------------------------------------------------------


class PlacedBars(NamedTuple):
    """The content of the workers' pane. Heights: rows from the top; times: in the unit of the axis.
    `waits`: (top, from, to); `labels`: texts of the axis, by height."""

    services: list[Row]
    waits: list[Row]
    labels: dict[float, str]
    wait_height: float
    height: float


def _placed_bars(timeline: Timeline, shared: bool, factor: float) -> PlacedBars:
    waits_of = _wait_rows(timeline, shared)
    depths = {pid: 1 + max(row for row, _, _ in waits) for pid, waits in waits_of.items()}
    wait_height = min(WAIT_HEIGHT, MAX_WAITS_HEIGHT / max(1, sum(depths.values())))
    services, waits, labels = list[Row](), list[Row](), dict[float, str]()
    top = 0.0
    for number, pid in enumerate(dict.fromkeys((*timeline.workers, *waits_of)), 1):
        bars = [bar for bar in timeline.bars if bar.worker == pid]
        slots = 0 if pid == ANY_WORKER else 1 + max((bar.row for bar in bars), default=0)
        waits_top = top + slots
        for bar in bars:
            wait = bar.waited_s and bar.waited_s * factor
            services.append((number, top + bar.row, bar.start_s * factor, bar.end_s * factor, wait))
        for row, arrived_s, start_s in waits_of.get(pid, []):
            waits.append((waits_top + wait_height * row, arrived_s * factor, start_s * factor))
        end = waits_top + wait_height * depths.get(pid, 0)
        if pid == ANY_WORKER:
            labels[(top + end) / 2] = "waiting"
        else:
            labels[(top + waits_top) / 2] = str(number)
        top = end + WORKER_GAP
    labels = dict(list(labels.items())[:: -(-len(labels) // MAX_LABELS)])
    return PlacedBars(services, waits, labels, wait_height, height=top - WORKER_GAP)


def _workers_axis(bars: PlacedBars) -> alt.Y:
    labels = bars.labels
    axis = alt.Axis(
        values=list(labels),
        tickCount=len(labels),  # otherwise Vega drops every second label if there are many
        labelExpr=f"{json.dumps(list(labels.values()))}[indexof({list(labels)}, datum.value)]",
        grid=False,
    )
    scale = span(bars.height, -0.1, zero=False)
    # The queue's pane has a title, too; without this one, the panes' time axes would not align
    return alt.Y("top:Q", scale=scale, axis=axis, title="workers")


def _rows_pane(timeline: Timeline, shared: bool, *, titled: bool) -> Any:
    """The pane of workers. `shared`: requests wait for any worker, not for a particular one."""
    unit_name, factor = unit(timeline.shown[1])
    bars = _placed_bars(timeline, shared, factor)
    y_axis = _workers_axis(bars)
    from_s, until_s = timeline.shown
    steady = [(at_s * factor,) for at_s in timeline.steady or () if from_s <= at_s <= until_s]
    rules = layer("steady", "from", steady)
    line_width = _line_width(timeline)
    look: dict[str, Any] = {"clip": True, "stroke": var("paper"), "strokeWidth": line_width}
    field_count = 3 + (bars.services[0][-1] is not None)
    layers = [
        layer(mark, columns, rows)
        .transform_calculate(bottom=f"datum.top + {height}", took="datum.to - datum.from")
        .mark_rect(color=var(colour), **look)
        .encode(y_axis, x2=alt.X2("to:Q"), y2=alt.Y2("bottom:Q"), tooltip=tips(*fields))
        for mark, colour, columns, rows, height, fields in (
            ("waits", "waiting", "top from to", bars.waits, 0.86 * bars.wait_height, [
                ("took", f"waited, {unit_name}"),
                ("from", "arrived"),
            ]),
            ("served", "service", "worker top from to waited", bars.services, 0.92, [
                "worker:d",
                ("from", f"entered the app, {unit_name}"),
                ("took", f"in the app, {unit_name}"),
                ("waited", f"waited before, {unit_name}"),
            ][:field_count]),
        )
    ]  # fmt: skip
    height = max(MIN_HEIGHT, min(MAX_HEIGHT, ROW_HEIGHT * bars.height))
    return (
        alt.layer(*layers, rules.mark_rule(color=var("soft"), strokeDash=[6, 4]))
        .encode(time_axis(timeline.shown, titled=titled))
        .properties(height=round(height))
    )


def _wait_rows(timeline: Timeline, shared: bool) -> dict[int, list[tuple[int, float, float]]]:
    """(row, arrived_s, start_s) of each visible wait, by worker, or under ANY_WORKER if `shared`.

    They are sorted by arrival, and by start of service if they arrive together, to form stairs.
    """
    short_s = MIN_VISIBLE_SHARE * (timeline.shown[1] - timeline.shown[0])
    waits_of: dict[int, list[tuple[float, float]]] = {}
    for bar in timeline.bars:
        if bar.arrived_s is not None and bar.start_s - bar.arrived_s >= short_s:
            waits = waits_of.setdefault(ANY_WORKER if shared else bar.worker, [])
            waits.append((bar.arrived_s, bar.start_s))
    rows_of = {}
    for pid, waits in waits_of.items():
        sorted_waits, first_s = [], -math.inf
        for arrived_s, start_s in sorted(waits):
            first_s = first_s if arrived_s - first_s <= short_s else arrived_s
            sorted_waits.append((first_s, start_s, arrived_s))
        sorted_waits.sort()
        rows = Rows()
        # A wait may take a row that is free only just after its arrival: the overlap is invisible
        rows_of[pid] = [
            (rows.take(arrived_s + short_s / 2, start_s), arrived_s, start_s)
            for _, start_s, arrived_s in sorted_waits
        ]
    return rows_of


def _line_width(timeline: Timeline) -> int:
    """The width of the line between two bars, in pixels."""
    typical_s = median(bar.end_s - bar.start_s for bar in timeline.bars)
    bars_per_row = (timeline.shown[1] - timeline.shown[0]) / max(typical_s, 1e-9)
    return 0 if bars_per_row > MAX_LINED_BARS else 1 if bars_per_row > MAX_LINED_BARS / 3 else 2
