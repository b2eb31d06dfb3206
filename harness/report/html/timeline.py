"""The timeline of one cell: which worker served which request when, and what waited meanwhile."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import altair as alt

from harness.model import CellResult, Finding, Timeline
from harness.report.html.colours import var
from harness.report.html.figures import AXIS, Figure, Key, data, key, tip, unit
from harness.report.html.kernel import queue_pane
from harness.report.html.over_time import steady_rules, time_axis
from harness.report.html.timeline_rows import SLOT, Places, placed
from harness.report.values import finite

PIXELS, LOWEST, HIGHEST = 15, 90, 460
FINE = 150  # so many typical bars in a row leave no room for lines between them
LABELS = 12


def timeline(cell: CellResult, seen: Timeline, name: str, where: Finding) -> Figure | None:
    """None where no request was seen."""
    if not seen.bars:
        return None
    shared = not cell.worker_class.accepts_first
    known = any(bar.arrived_s is not None for bar in seen.bars)
    queue = not known and bool(seen.queue)
    panes = [_rows_pane(seen, placed(seen, shared), titled=not queue)]
    return Figure(
        name=name,
        title=Finding("chart.timeline", {"where": where}),
        caption=(
            Finding("chart.timeline.caption"),
            Finding(f"chart.timeline.{_arrivals(known, queue, shared)}"),
        ),
        alternative=_words(cell, seen),
        panes=(*panes, queue_pane(seen, seen.shown)) if queue else tuple(panes),
        legend=(
            Key(Finding("part.service"), "service", "box"),
            *([key("waiting", "waiting")] if known else []),
            *([key("accept_queue", "accept-queue")] if queue else []),
            *([key("steady", "soft", "dashed")] if seen.steady else []),
        ),
    )


def _arrivals(known: bool, queue: bool, shared: bool) -> str:
    """What is known of the time before a request was served."""
    if known:
        return "waits_below" if shared else "waits_under_worker"
    return "queue_below" if queue else "unknown"


def _rows_pane(seen: Timeline, places: Places, *, titled: bool) -> Any:
    down = alt.Scale(domain=[places.depth, -0.1], nice=False, zero=False)
    labels = dict(list(places.labels.items())[:: -(-len(places.labels) // LABELS)])
    axis = alt.Axis(
        values=list(labels),
        labelExpr=f"{json.dumps(list(labels.values()))}[indexof({list(labels)}, datum.value)]",
        grid=False,
        minExtent=AXIS,
        maxExtent=AXIS,
    )
    across = time_axis("from:Q", seen.shown, titled=titled)
    tall = max(LOWEST, min(HIGHEST, PIXELS * places.depth))
    top = alt.Y("top:Q", scale=down, axis=axis, title=None)
    layers = [
        layer.encode(x=across, x2="to:Q", y=top, y2="bottom:Q")
        for layer in (_waits(seen, places), _served(seen, places))
    ]
    return alt.layer(*layers, *steady_rules(seen, across)).properties(height=round(tall))


def _served(seen: Timeline, places: Places) -> Any:
    name, factor = unit(seen.shown[1])
    number = {pid: i + 1 for i, pid in enumerate(seen.workers)}
    rows = [
        (
            number[bar.worker],
            places.slots[bar.worker] + SLOT * bar.row,
            bar.start_s * factor,
            bar.end_s * factor,
            None if bar.arrived_s is None else max(0.0, bar.start_s - bar.arrived_s) * factor,
        )
        for bar in seen.bars
    ]
    tips = [
        tip("worker", "d"),
        tip("from", ".4~g", Finding("chart.timeline.entered_in", {"unit": name})),
        tip("served", ".4~g", Finding("chart.in_app_in", {"unit": name})),
        tip("waited", ".4~g", Finding("chart.timeline.waited_before_in", {"unit": name})),
    ]
    return (
        alt.Chart(data(("worker", "top", "from", "to", "waited"), rows), name="served")
        .transform_calculate(bottom=f"datum.top + {0.92 * SLOT}", served="datum.to - datum.from")
        .mark_rect(color=var("service"), clip=True, stroke=var("paper"), strokeWidth=_line(seen))
        .encode(tooltip=tips if rows and rows[0][-1] is not None else tips[:-1])
    )


def _line(seen: Timeline) -> int:
    """How wide the line between two bars is."""
    typical = median(bar.end_s - bar.start_s for bar in seen.bars)
    in_a_row = (seen.shown[1] - seen.shown[0]) / max(typical, 1e-9)
    return 0 if in_a_row > FINE else 1 if in_a_row > FINE / 3 else 2


def _waits(seen: Timeline, places: Places) -> Any:
    name, factor = unit(seen.shown[1])
    rows = [
        (top, (seen.bars[i].arrived_s or 0.0) * factor, seen.bars[i].start_s * factor)
        for i, top in places.waits.items()
    ]
    tips = [
        tip("waited", ".4~g", Finding("chart.timeline.waited_in", {"unit": name})),
        tip("from", ".4~g", Finding("chart.timeline.arrived")),
    ]
    return (
        alt.Chart(data(("top", "from", "to"), rows), name="waits")
        .transform_calculate(
            bottom=f"datum.top + {0.86 * places.wait}", waited="datum.to - datum.from"
        )
        .mark_rect(color=var("waiting"), clip=True, stroke=var("paper"), strokeWidth=_line(seen))
        .encode(tooltip=tips)
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
    words = [Finding("chart.timeline.requests", requests)]
    if cell.slots_measured is not None:
        most = {"slots": cell.slots_measured, "rate_rps": finite(cell.throughput_rps)}
        words.append(Finding("chart.timeline.at_once", most))
    return tuple(words)
