"""Figures of the kernel's data: the accept queue, TCP states, slow handshakes."""

import json
from typing import Any

import altair as alt

from workerlab.numbers.units import counted
from workerlab.report.html.figure import WHOLE, Figure, Key, data, of_cell, some, tip, unit, var
from workerlab.report.html.over_time import Stretch, corners, time_axis, whole
from workerlab.report.html.timeline_data import Timeline
from workerlab.report.values import PARTS

NEAR = 4  # a limit is drawn if it is at most this many times the longest queue
ROW = 34  # pixels per row of a state
LATE_S = 0.5  # loopback alone never takes that long, and no kernel repeats a SYN sooner
STEPS = (
    "Dashed: when this kernel repeats a SYN that was not answered. A connection at one of these"
    " lines was turned away by a full accept queue and tried again."
)


# --- accept queue -------------------------------------------------------------------------


def queue(timeline: Timeline, where: str) -> Figure | None:
    """None if it was always empty or not observed, or if the timeline shows all of it."""
    outside = [n for at, n in timeline.queue if not timeline.shown[0] <= at <= timeline.shown[1]]
    if len(timeline.queue) < 2 or not (
        any(outside) or (has_queue(timeline) and not in_timeline(timeline))
    ):
        return None
    most, near = _most_and_near(timeline)
    limit = (
        ""
        if timeline.queue_limit is None
        else f" The limit is {timeline.queue_limit}; the kernel lets one more in."
    )
    return of_cell(
        "queue",
        "Accept queue",
        where,
        panes=(queue_pane(timeline, whole(timeline)),),
        legend=some(
            Key(PARTS["accept_queue"], "accept-queue"),
            Key("limit", "connect", "solid") if near else None,
        ),
        caption=(f"Connections that no worker has accepted yet.{limit}",),
        alternative=(f"Accept queue of {where}: at most {counted(most, 'connection')}.{limit}",),
    )


def has_queue(timeline: Timeline) -> bool:
    """Whether the accept queue was ever non-empty in the period that the timeline shows."""
    return any(n for at, n in timeline.queue if timeline.shown[0] <= at <= timeline.shown[1])


def in_timeline(timeline: Timeline) -> bool:
    """Whether the timeline draws the queue, as the wait of each request is unknown."""
    return has_queue(timeline) and not any(bar.arrived_s is not None for bar in timeline.bars)


def _most_and_near(timeline: Timeline) -> tuple[int, bool]:
    """The longest queue, and whether its limit is near enough to draw."""
    most = max(length for _, length in timeline.queue)
    return most, timeline.queue_limit is not None and timeline.queue_limit <= NEAR * max(1, most)


def queue_pane(timeline: Timeline, stretch: Stretch) -> Any:
    """The accept queue's length as steps, and its limit if that is near."""
    name, factor = unit(stretch[1])
    (most, near), limit = _most_and_near(timeline), timeline.queue_limit or 0
    inside = [
        (at * factor, length) for at, length in timeline.queue if stretch[0] <= at <= stretch[1]
    ]
    area = alt.Chart(data("from length", corners(inside)), name="queue")
    top = max(most, limit + 1) if near else max(1, most)
    scale = alt.Scale(domain=[0, top], nice=False)
    area = area.mark_area(interpolate="step-after", color=var("accept-queue"), clip=True).encode(
        time_axis(stretch),
        y=alt.Y("length:Q", title=PARTS["accept_queue"], axis=WHOLE, scale=scale),
        tooltip=[tip("from", name), tip("length", "waiting", "d")],
    )
    rule = alt.Chart(data("limit", [(limit,)] if near else []), name="limit")
    rule = rule.mark_rule(color=var("connect"), strokeWidth=2).encode(y="limit:Q")
    return alt.layer(area, rule).properties(height=90)


# --- TCP states ---------------------------------------------------------------------------


def states(timeline: Timeline, where: str) -> Figure | None:
    """A row per side and state, all on one scale. None without sockets or a second sample."""
    most: dict[str, int] = {}
    for _, state, count in timeline.states:
        most[state] = max(most.get(state, 0), count)
    most = {state: count for state, count in most.items() if count}
    if not most or len({at for at, *_ in timeline.states}) < 2:
        return None
    counts = ", ".join(f"{state} {count}" for state, count in most.items())
    return of_cell(
        "states",
        "TCP states",
        where,
        panes=(_state_rows(timeline, most),),
        legend=(Key("sockets", "sockets"),),
        caption=(
            "Sockets by end and state, all rows on one scale; the number is the highest of the"
            " row.",
        ),
        alternative=(f"Most sockets in each TCP state, {where}: {counts}.",),
    )


def _state_rows(timeline: Timeline, most: dict[str, int]) -> Any:
    factor = unit(whole(timeline)[1])[1]
    rows = [
        (row, at * factor, count)
        for row, state in enumerate(most)
        for at, count in corners(
            [(at, count) for at, name, count in timeline.states if name == state]
        )
    ]
    top = alt.Y("top:Q", scale=alt.Scale(domain=[len(most), 0], nice=False), axis=None)
    areas = (
        alt.Chart(data("row from sockets", rows), name="states")
        .transform_calculate(
            base="datum.row + 1",
            top=f"datum.row + 1 - 0.55 * datum.sockets / {max(most.values())}",
            state=f"{json.dumps(list(most))}[datum.row]",
        )
        .mark_area(interpolate="step-after", color=var("sockets"))
        .encode(
            time_axis(whole(timeline)),
            y=top,
            y2="base:Q",
            detail="row:N",
            tooltip=[tip("state", form=""), tip("sockets", form="d")],
        )
    )
    words = [(f"{state}: {count}", row + 0.22) for row, (state, count) in enumerate(most.items())]
    labels = alt.Chart(data("label top", words))
    labels = labels.mark_text(align="left", baseline="middle", color=var("soft")).encode(
        x=alt.value(2), y=top, text="label:N"
    )
    return alt.layer(areas, labels).properties(height=ROW * len(most))


# --- time to connect ----------------------------------------------------------------------


def connects(timeline: Timeline, where: str) -> Figure | None:
    """A histogram of connect times. After dropped handshakes, some are at the times when the kernel
    repeats a SYN. None if no connection was slow, or if the times are unknown."""
    late = sum(count for since, _, count in timeline.connects if since >= LATE_S)
    if not late:
        return None
    prompt = sum(count for _, _, count in timeline.connects) - late
    longest = max(until for _, until, _ in timeline.connects)
    steps = [step for step in timeline.syn_steps_s if step <= longest]
    return of_cell(
        "connects",
        "Time to connect",
        where,
        panes=(_connect_bars(timeline, steps, longest),),
        legend=some(
            Key("connections", "connect"),
            Key("the kernel repeats a dropped SYN", "soft", "dashed") if steps else None,
        ),
        caption=some(
            "All connections of the load by how long connecting took.", STEPS if steps else None
        ),
        alternative=(f"Time to connect, {where}: {prompt} in less than {LATE_S} s, {late} later.",),
        heads=("Time to connect", "connections"),
        rows=tuple(
            (f"{since:g} to {until:g} s", str(count)) for since, until, count in timeline.connects
        ),
    )


def _connect_bars(timeline: Timeline, steps: list[float], longest: float) -> Any:
    # Only bars without a taller neighbour get a number: those of neighbours would overlap
    peaks = [
        (since, until, count)
        for since, until, count in timeline.connects
        if all(count >= n for a, b, n in timeline.connects if a == until or b == since)
    ]
    most = max(count for _, _, count in timeline.connects)
    tall, wide = (alt.Scale(domain=[0, end], nice=False) for end in (1.12 * most, longest))
    down = alt.Y("connections:Q", title="connections", axis=WHOLE, scale=tall)
    rules = alt.Chart(data("from", [(step,) for step in steps]), name="steps")
    bars = alt.Chart(data("from until connections", timeline.connects), name="connects")
    counts = alt.Chart(data("from until connections", peaks), name="counts")
    tips = [
        tip("from", "from, s"),
        tip("until", "until, s"),
        tip("connections", form="d"),
    ]
    return (
        alt.layer(
            rules.mark_rule(color=var("soft"), strokeDash=[6, 4]),
            bars.mark_rect(color=var("connect")).encode(
                x2="until:Q", y=down, y2=alt.datum(0), tooltip=tips
            ),
            counts.mark_text(align="left", baseline="bottom", dx=4, dy=-2).encode(
                y=down, text="connections:Q"
            ),
        )
        .encode(x=alt.X("from:Q", title="time to connect, s", scale=wide,
                        axis=alt.Axis(tickCount=8)))
        .properties(height=200)
    )  # fmt: skip
