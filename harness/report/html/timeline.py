"""The timeline of one cell: who was served by whom and when, and who waited meanwhile.

Each worker has a lane per slot. What waits has thinner rows of its own, each wait ending where its
service begins: in one block below all workers where it waits for any of them, which makes the
staircase of a saturated server, and below the worker that holds it where a class accepts first.
Drawing a wait on the lane of its service was rejected: on a saturated server it would lie on the
request served before it, which is just what shall be seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any

import altair as alt

from harness.model import CellResult, Timeline
from harness.numbers.lanes import lanes
from harness.numbers.units import format_duration
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, data, unit
from harness.report.html.series import edges, queue_pane, time_axis
from harness.report.values import finite

SLOT, WAIT, GAP = 1.0, 0.6, 0.7  # heights of a lane, of a row of waiting, between workers
PIXELS, LOWEST, HIGHEST = 15, 90, 460
SHORT = 0.004  # of what is drawn: a shorter wait cannot be seen
FINE = 150  # so many typical bars in a row leave no room for lines between them
LABELS = 12
SHARED = 0  # no worker's pid
ROOM = 16.0  # lane heights that all rows of waiting share, where they are many


Wait = tuple[float, float, int]  # arrived, served from, place of the bar in the view


def timeline(cell: CellResult, view: Timeline, name: str, title: str) -> Figure | None:
    """None where no request was seen."""
    if not view.bars:
        return None
    shared = not cell.worker_class.accepts_first
    places = _place(view, shared)
    longest_s = view.shown[1] - view.shown[0]
    known = any(bar.arrived_s is not None for bar in view.bars)
    name_of, factor = unit(longest_s)
    lower = queue_pane(view, view.shown) if not known and view.queue else None
    x_title = None if lower is not None else f"{name_of} since the load began"
    panes = [_lanes(view, places, factor, x_title)]
    if lower is not None:
        panes.append(lower)
    legend = [Key("in the app", "service", "box")]
    if known:
        legend.append(Key("waiting", "waiting", "box"))
    if lower is not None:
        legend.append(Key("accept queue", "accept-queue", "box"))
    if view.steady:
        legend.append(Key("steady part", "soft", "dashed"))
    return Figure(
        name=name,
        title=title,
        caption=_caption(known, shared, lower is not None),
        alternative=_said(cell, view),
        panes=tuple(panes),
        legend=tuple(legend),
    )


@dataclass(frozen=True)
class Places:
    """Where things stand, in lane heights from the top."""

    slots: dict[int, float]  # pid: top of its first lane
    waits: dict[int, float]  # place of the bar in the view: top
    wait: float  # height of a row of waiting
    labels: dict[float, str]  # height: what stands there
    depth: float


def _place(view: Timeline, shared: bool) -> Places:
    """`shared`: what waits does so for any worker."""
    rows = _rows(view, shared)
    deep = {pid: 1 + max(mine.values()) for pid, mine in rows.items()}
    wait = min(WAIT, ROOM / max(1, sum(deep.values())))
    used = dict.fromkeys(view.workers, 1)
    for bar in view.bars:
        used[bar.worker] = max(used[bar.worker], bar.lane + 1)
    slots, waits, labels = dict[int, float](), dict[int, float](), dict[float, str]()
    top = 0.0
    for pid in (*view.workers, *([SHARED] if SHARED in rows else [])):
        slots[pid], below = top, top + SLOT * used.get(pid, 0)
        waits |= {i: below + wait * row for i, row in rows.get(pid, {}).items()}
        end = below + wait * deep.get(pid, 0)
        if pid == SHARED:
            labels[(top + end) / 2] = "waiting"
        else:
            labels[(top + below) / 2] = f"worker {len(slots)}"
        top = end + GAP
    return Places(slots, waits, wait, labels, top - GAP)


def _rows(view: Timeline, shared: bool) -> dict[int, dict[int, int]]:
    """The row of each wait, by its bar's place in the view, by worker; `shared`: all together."""
    short_s = SHORT * (view.shown[1] - view.shown[0])
    waited: dict[int, list[Wait]] = {}
    for i, bar in enumerate(view.bars):
        if bar.arrived_s is not None and bar.start_s - bar.arrived_s >= short_s:
            mine = waited.setdefault(SHARED if shared else bar.worker, [])
            mine.append((bar.arrived_s, bar.start_s, i))
    found = {}
    for pid, mine in waited.items():
        ordered = _in_order(mine, short_s)
        # What arrives just before a row is free takes it, and their bars still seem to touch
        rows = lanes((arrived + short_s / 2, start) for arrived, start, _ in ordered)
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


def _lanes(view: Timeline, places: Places, factor: float, title: str | None) -> Any:
    down = alt.Scale(domain=[places.depth, -0.1], nice=False, zero=False)
    labels = dict(list(places.labels.items())[:: -(-len(places.labels) // LABELS)])
    axis = alt.Axis(
        values=list(labels),
        labelExpr=f"{json.dumps(list(labels.values()))}[indexof({list(labels)}, datum.value)]",
        grid=False,
        minExtent=58,
        maxExtent=58,
    )
    across = time_axis("from:Q", view.shown, factor, title)
    tall = max(LOWEST, min(HIGHEST, PIXELS * places.depth))
    low = alt.Y("top:Q", scale=down, axis=axis, title=None)
    layers = [_waits(view, places, factor), _served(view, places, factor)]
    layers = [layer.encode(x=across, x2="to:Q", y=low, y2="bottom:Q") for layer in layers]
    return alt.layer(*layers, *edges(view, factor, across)).properties(height=round(tall))


def _served(view: Timeline, places: Places, factor: float) -> Any:
    number = {pid: i + 1 for i, pid in enumerate(view.workers)}
    rows = [
        (
            number[bar.worker],
            places.slots[bar.worker] + SLOT * bar.lane,
            bar.start_s * factor,
            bar.end_s * factor,
            None if bar.arrived_s is None else max(0.0, bar.start_s - bar.arrived_s) * factor,
        )
        for bar in view.bars
    ]
    name = unit(view.shown[1])[0]
    tips = [
        alt.Tooltip("worker:Q", format="d"),
        alt.Tooltip("from:Q", title=f"entered the app, {name}", format=".4~g"),
        alt.Tooltip("served:Q", title=f"in the app, {name}", format=".4~g"),
        alt.Tooltip("waited:Q", title=f"waited before, {name}", format=".4~g"),
    ]
    return (
        alt.Chart(data(("worker", "top", "from", "to", "waited"), rows), name="served")
        .transform_calculate(bottom=f"datum.top + {0.92 * SLOT}", served="datum.to - datum.from")
        .mark_rect(color=var("service"), clip=True, stroke=var("paper"), strokeWidth=_line(view))
        .encode(tooltip=tips if rows and rows[0][-1] is not None else tips[:-1])
    )


def _line(view: Timeline) -> int:
    """How wide the line between two bars is."""
    typical = median(bar.end_s - bar.start_s for bar in view.bars)
    in_a_row = (view.shown[1] - view.shown[0]) / max(typical, 1e-9)
    return 0 if in_a_row > FINE else 1 if in_a_row > FINE / 3 else 2


def _waits(view: Timeline, places: Places, factor: float) -> Any:
    rows = [
        (top, (view.bars[i].arrived_s or 0.0) * factor, view.bars[i].start_s * factor)
        for i, top in places.waits.items()
    ]
    tips = [
        alt.Tooltip("waited:Q", title=f"waited, {unit(view.shown[1])[0]}", format=".4~g"),
        alt.Tooltip("from:Q", title="arrived", format=".4~g"),
    ]
    return (
        alt.Chart(data(("top", "from", "to"), rows), name="waits")
        .transform_calculate(
            bottom=f"datum.top + {0.86 * places.wait}", waited="datum.to - datum.from"
        )
        .mark_rect(color=var("waiting"), clip=True, stroke=var("paper"), strokeWidth=_line(view))
        .encode(tooltip=tips)
    )


def _caption(known: bool, shared: bool, queue: bool) -> str:
    said = ["Each thick bar is a request inside the app, on the lane of the worker that served it."]
    if known:
        where = "below" if shared else "under a worker"
        said.append(
            f"Each thin bar {where} is one of them before that, from its client's start until the"
            " app was called."
        )
    elif queue:
        said.append("Below, on the same time: connections waiting in the accept queue.")
    else:
        said.append("When the requests arrived is not known, nor how long the accept queue was.")
    return " ".join(said)


def _said(cell: CellResult, view: Timeline) -> str:
    served = median(bar.end_s - bar.start_s for bar in view.bars)
    waits = [bar.start_s - bar.arrived_s for bar in view.bars if bar.arrived_s is not None]
    said = (
        f"{len(view.bars)} requests on {len(view.workers)} workers, {format_duration(served)} in"
        " the app each (median)"
    )
    if waits:
        said += (
            f"; before that they waited {format_duration(max(0.0, median(waits)))} (median), at"
            f" most {format_duration(max(0.0, *waits))}"
        )
    elif view.queue:
        said += f"; the accept queue held at most {max(length for _, length in view.queue)}"
    used, rate = cell.slots_measured, finite(cell.throughput_rps)
    tail = f" At most {used} were served at once" if used is not None else ""
    return f"{said}.{tail}{'' if rate is None or not tail else f', {rate:.3g} per second'}."
