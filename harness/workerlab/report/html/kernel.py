"""Figures of the kernel's data: the accept queue, TCP states, slow handshakes."""

import json
from typing import Any

import altair as alt

from workerlab.numbers.units import counted
from workerlab.report.html.figure import (
    COUNT_AXIS,
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
from workerlab.report.html.over_time import Period, corners, time_axis, whole_period
from workerlab.report.html.timeline_data import Timeline
from workerlab.report.values import PARTS

MAX_LIMIT_RATIO = 4  # the limit is drawn if it is at most this many times the longest queue
ROW_HEIGHT = 34  # pixels per row of a state
SLOW_CONNECT_S = 0.5  # loopback alone never takes this long, and no kernel repeats a SYN sooner
SYN_NOTE = (
    "Dashed: when this kernel repeats a SYN that was not answered. For a connection at one of these"
    " lines, the SYN was dropped, as the accept queue was full, and repeated."
)


# --- accept queue -------------------------------------------------------------------------


def queue(timeline: Timeline, where: str) -> Figure | None:
    """None if it was always empty or not observed, or if the timeline shows all of it."""
    from_s, until_s = timeline.shown
    outside = any(length for at_s, length in timeline.queue if not from_s <= at_s <= until_s)
    drawn_alone = has_queue(timeline) and not in_timeline(timeline)
    if len(timeline.queue) < 2 or not (outside or drawn_alone):
        return None
    longest, limit_shown = _longest_and_limit_shown(timeline)
    note = ""
    if timeline.queue_limit is not None:
        note = f" The limit is {timeline.queue_limit}; the kernel admits one more."
    return cell_figure(
        "queue",
        "Accept queue",
        where,
        panes=(queue_pane(timeline, whole_period(timeline)),),
        legend=not_none(
            Key(PARTS["accept_queue"], "accept-queue"),
            Key("limit", "connect", "solid") if limit_shown else None,
        ),
        caption=(f"Connections that no worker has accepted yet.{note}",),
        alternative=(f"Accept queue of {where}: at most {counted(longest, 'connection')}.{note}",),
    )


def has_queue(timeline: Timeline) -> bool:
    """Whether the accept queue was ever non-empty in the period that the timeline shows."""
    from_s, until_s = timeline.shown
    return any(length for at_s, length in timeline.queue if from_s <= at_s <= until_s)


def in_timeline(timeline: Timeline) -> bool:
    """Whether the timeline draws the queue, as the wait of each request is unknown."""
    return has_queue(timeline) and not any(bar.arrived_s is not None for bar in timeline.bars)


def _longest_and_limit_shown(timeline: Timeline) -> tuple[int, bool]:
    """The longest observed queue, and whether its limit is near enough to draw."""
    longest = max(length for _, length in timeline.queue)
    limit = timeline.queue_limit
    return longest, limit is not None and limit <= MAX_LIMIT_RATIO * max(1, longest)


def queue_pane(timeline: Timeline, period: Period) -> Any:
    """The accept queue's length as steps, and its limit if that is near."""
    unit_name, factor = unit(period[1])
    (longest, limit_shown), limit = _longest_and_limit_shown(timeline), timeline.queue_limit or 0
    inside = [
        (at_s * factor, length) for at_s, length in timeline.queue if period[0] <= at_s <= period[1]
    ]
    area = layer("queue", "from length", corners(inside))
    scale = span(0, max(longest, limit + 1) if limit_shown else max(1, longest))
    area = area.mark_area(interpolate="step-after", color=var("accept-queue"), clip=True).encode(
        time_axis(period),
        y=alt.Y("length:Q", title=PARTS["accept_queue"], axis=COUNT_AXIS, scale=scale),
        tooltip=tips(("from", unit_name), ("length:d", "waiting")),
    )
    rule = layer("limit", "limit", [(limit,)] if limit_shown else [])
    rule = rule.mark_rule(color=var("connect"), strokeWidth=2).encode(y="limit:Q")
    return alt.layer(area, rule).properties(height=90)


# --- TCP states ---------------------------------------------------------------------------


def states(timeline: Timeline, where: str) -> Figure | None:
    """A row per side and state, all on one scale. None without sockets or a second sample."""
    peaks = dict[str, int]()
    for _, state, count in timeline.states:
        peaks[state] = max(peaks.get(state, 0), count)
    peaks = {state: count for state, count in peaks.items() if count}
    if not peaks or len({at_s for at_s, *_ in timeline.states}) < 2:
        return None
    counts = ", ".join(f"{state} {count}" for state, count in peaks.items())
    return cell_figure(
        "states",
        "TCP states",
        where,
        panes=(_state_rows(timeline, peaks),),
        legend=(Key("sockets", "sockets"),),
        caption=("Sockets by side and state, on one scale; each number is the peak of its row.",),
        alternative=(f"Highest number of sockets in each TCP state, {where}: {counts}.",),
    )


def _state_rows(timeline: Timeline, peaks: dict[str, int]) -> Any:
    factor = unit(whole_period(timeline)[1])[1]
    rows = [
        (row, at_s * factor, count)
        for row, state in enumerate(peaks)
        for at_s, count in corners(
            [(at_s, count) for at_s, name, count in timeline.states if name == state]
        )
    ]
    top = alt.Y("top:Q", scale=span(len(peaks), 0), axis=None)
    areas = (
        layer("states", "row from sockets", rows)
        .transform_calculate(
            base="datum.row + 1",
            top=f"datum.row + 1 - 0.55 * datum.sockets / {max(peaks.values())}",
            state=f"{json.dumps(list(peaks))}[datum.row]",
        )
        .mark_area(interpolate="step-after", color=var("sockets"))
        .encode(
            time_axis(whole_period(timeline)),
            y=top,
            y2="base:Q",
            detail="row:N",
            tooltip=tips("state:N", "sockets:d"),
        )
    )
    places = [(f"{state}: {peak}", row + 0.22) for row, (state, peak) in enumerate(peaks.items())]
    labels = (
        layer("", "label top", places)
        .mark_text(align="left", baseline="middle", color=var("soft"))
        .encode(x=alt.value(2), y=top, text="label:N")
    )
    return alt.layer(areas, labels).properties(height=ROW_HEIGHT * len(peaks))


# --- time to connect ----------------------------------------------------------------------


def connects(timeline: Timeline, where: str) -> Figure | None:
    """A histogram of connect times. After dropped handshakes, some are at the times when the kernel
    repeats a SYN. None if no connection was slow, or if the times are unknown."""
    slow = sum(count for from_s, _, count in timeline.connects if from_s >= SLOW_CONNECT_S)
    if not slow:
        return None
    fast = sum(count for _, _, count in timeline.connects) - slow
    longest_s = max(until_s for _, until_s, _ in timeline.connects)
    steps_s = [step_s for step_s in timeline.syn_steps_s if step_s <= longest_s]
    return cell_figure(
        "connects",
        "Time to connect",
        where,
        panes=(_connect_bars(timeline, steps_s, longest_s),),
        legend=not_none(
            Key("connections", "connect"),
            Key("the kernel repeats a dropped SYN", "soft", "dashed") if steps_s else None,
        ),
        caption=not_none(
            "All connections of the load by time to connect.", SYN_NOTE if steps_s else None
        ),
        alternative=(f"Time to connect, {where}: {fast} under {SLOW_CONNECT_S} s, {slow} longer.",),
        header=("Time to connect", "connections"),
        rows=tuple(
            (f"{from_s:g} to {to_s:g} s", str(count)) for from_s, to_s, count in timeline.connects
        ),
    )


def _connect_bars(timeline: Timeline, steps_s: list[float], longest_s: float) -> Any:
    # Only bars without a taller neighbour get a number: adjacent numbers would overlap
    peaks = [
        (from_s, until_s, count)
        for from_s, until_s, count in timeline.connects
        if all(count >= n for a, b, n in timeline.connects if a == until_s or b == from_s)
    ]
    top = max(count for _, _, count in timeline.connects)
    y_axis = alt.Y("connections:Q", title="connections", axis=COUNT_AXIS, scale=span(0, 1.12 * top))
    x_axis = alt.X(
        "from:Q", title="time to connect, s", scale=span(0, longest_s), axis=alt.Axis(tickCount=8)
    )
    rules = layer("steps", "from", [(step_s,) for step_s in steps_s])
    bars, counts = (
        layer(name, "from until connections", rows)
        for name, rows in {"connects": timeline.connects, "counts": peaks}.items()
    )
    tooltip = tips(("from", "from, s"), ("until", "until, s"), "connections:d")
    return (
        alt.layer(
            rules.mark_rule(color=var("soft"), strokeDash=[6, 4]),
            bars.mark_rect(color=var("connect")).encode(
                x2="until:Q", y=y_axis, y2=alt.datum(0), tooltip=tooltip
            ),
            counts.mark_text(align="left", baseline="bottom", dx=4, dy=-2).encode(
                y=y_axis, text="connections:Q"
            ),
        )
        .encode(x_axis)
        .properties(height=200)
    )  # fmt: skip
