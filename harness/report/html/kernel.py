"""What the kernel showed beside the requests: the accept queue, TCP states, slow handshakes."""

from __future__ import annotations

import json
from typing import Any

import altair as alt

from harness.model import Finding, Timeline
from harness.report.html.colours import var
from harness.report.html.figures import Figure, count_axis, data, key, tip, unit
from harness.report.html.over_time import Stretch, corners, time_axis, time_tip, whole
from harness.report.messages import say

NEAR = 4  # a limit is drawn where it is at most so many times what was seen
ROW = 34  # pixels of a state's row
LATE_S = 0.5  # no loopback takes that long by itself, and no kernel repeats a SYN sooner


# --- accept queue -------------------------------------------------------------------------


def queue(seen: Timeline, name: str, where: Finding) -> Figure | None:
    """None where it was not observed."""
    if not seen.queue:
        return None
    most = max(length for _, length in seen.queue)
    limit = {"limit": seen.queue_limit}
    return Figure(
        name=name,
        title=Finding("chart.queue", {"where": where}),
        heading=Finding("chart.queue.heading"),
        caption=(Finding("chart.queue.caption", limit),),
        alternative=(Finding("chart.queue.most", {"where": where, "longest": most, **limit}),),
        panes=(queue_pane(seen, whole(seen)),),
        legend=(
            key("accept_queue", "accept-queue"),
            *([key("limit", "connect", "solid")] if _near_limit(seen, most) else []),
        ),
    )


def _near_limit(seen: Timeline, most: int) -> bool:
    return seen.queue_limit is not None and seen.queue_limit <= NEAR * max(1, most)


def queue_pane(seen: Timeline, stretch: Stretch) -> Any:
    """The accept queue's length as steps, and its limit where that is near."""
    factor = unit(stretch[1])[1]
    most = max(length for _, length in seen.queue)
    inside = [(at * factor, length) for at, length in seen.queue if stretch[0] <= at <= stretch[1]]
    source = data(("from", "length"), corners(inside))
    area = alt.Chart(source, name="queue").mark_area(
        interpolate="step-after", color=var("accept-queue"), clip=True
    )
    limit, near = seen.queue_limit or 0, _near_limit(seen, most)
    top = max(most, limit + 1) if near else max(1, most)
    down = alt.Y("length:Q", title=say("chart.accept_queue"), axis=count_axis(most))
    layers = [
        area.encode(
            x=time_axis("from:Q", stretch),
            y=down.scale(domain=[0, top], nice=False),
            tooltip=[time_tip("from", stretch), tip("length", "d", Finding("chart.waiting"))],
        )
    ]
    if near:
        rule = alt.Chart(data(("limit",), [(limit,)]), name="limit")
        layers.append(rule.mark_rule(color=var("connect"), strokeWidth=2).encode(y="limit:Q"))
    return alt.layer(*layers).properties(height=90)


# --- TCP states ---------------------------------------------------------------------------


def states(seen: Timeline, name: str, where: Finding) -> Figure | None:
    """A row per side and state, all of one scale."""
    most: dict[str, int] = {}
    for _, state, count in seen.states:
        most[state] = max(most.get(state, 0), count)
    most = {state: count for state, count in most.items() if count}
    if not most:
        return None
    counts = tuple(f"{state} {count}" for state, count in most.items())
    return Figure(
        name=name,
        title=Finding("chart.states", {"where": where}),
        heading=Finding("chart.states.heading"),
        caption=(Finding("chart.states.caption"),),
        alternative=(Finding("chart.states.most", {"where": where, "counts": counts}),),
        panes=(_state_rows(seen, most),),
        legend=(key("sockets", "sockets"),),
    )


def _state_rows(seen: Timeline, most: dict[str, int]) -> Any:
    factor = unit(whole(seen)[1])[1]
    row = {state: i for i, state in enumerate(most)}
    tallest = max(most.values())
    rows = [
        (row[state], at * factor, count)
        for state in row
        for at, count in corners([(at, count) for at, one, count in seen.states if one == state])
    ]
    down = alt.Scale(domain=[len(row), 0], nice=False)
    areas = (
        alt.Chart(data(("row", "from", "sockets"), rows), name="states")
        .transform_calculate(
            base="datum.row + 1",
            top=f"datum.row + 1 - 0.55 * datum.sockets / {tallest}",
            state=f"{json.dumps(list(row))}[datum.row]",
        )
        .mark_area(interpolate="step-after", color=var("sockets"))
        .encode(
            x=time_axis("from:Q", whole(seen)),
            y=alt.Y("top:Q", scale=down, axis=None),
            y2="base:Q",
            detail="row:N",
            tooltip=[tip("state"), tip("sockets", "d")],
        )
    )
    words = [(f"{state}: {count}", row[state] + 0.22) for state, count in most.items()]
    labels = (
        alt.Chart(data(("label", "top"), words, words=("label",)))
        .mark_text(align="left", baseline="middle", color=var("soft"))
        .encode(x=alt.value(2), y=alt.Y("top:Q", scale=down, axis=None), text="label:N")
    )
    return alt.layer(areas, labels).properties(height=ROW * len(row))


# --- time to connect ----------------------------------------------------------------------


def connects(seen: Timeline, name: str, where: Finding) -> Figure | None:
    """How long connecting took: where handshakes were dropped, some stand at the kernel's own
    steps. None where every connection came up at once, or it is not known."""
    late = sum(count for since, _, count in seen.connects if since >= LATE_S)
    if not late:
        return None
    prompt = sum(count for _, _, count in seen.connects) - late
    longest = max(until for _, until, _ in seen.connects)
    steps = [step for step in seen.syn_steps_s if step <= longest]
    values = {"where": where, "prompt": prompt, "late_after_s": LATE_S, "late": late}
    return Figure(
        name=name,
        title=Finding("chart.connects", {"where": where}),
        heading=Finding("chart.connects.heading"),
        caption=(
            Finding("chart.connects.caption"),
            *([Finding("chart.connects.steps")] if steps else []),
        ),
        alternative=(Finding("chart.connects.late", values),),
        panes=(_connect_bars(seen, steps, longest),),
        legend=(
            key("connections", "connect"),
            *([key("syn_step", "soft", "dashed")] if steps else []),
        ),
        heads=(Finding("chart.connects.heading"), Finding("chart.connections")),
        rows=tuple(
            (say("chart.connects.between", since=f"{since:g}", until=f"{until:g}"), str(count))
            for since, until, count in seen.connects
        ),
    )


def _connect_bars(seen: Timeline, steps: list[float], longest: float) -> Any:
    most = max(count for _, _, count in seen.connects)
    scale = alt.Scale(domain=[0, longest], nice=False)
    title = say("chart.connects.time")
    across = alt.X("from:Q", title=title, scale=scale, axis=alt.Axis(tickCount=8))
    tall = alt.Scale(domain=[0, 1.12 * most], nice=False)
    down = alt.Y("connections:Q", title=say("chart.connections"), axis=count_axis(most), scale=tall)
    heads = ("from", "until", "connections")
    rules = alt.Chart(data(("from",), [(step,) for step in steps]), name="steps")
    bars = alt.Chart(data(heads, seen.connects), name="connects").mark_rect(color=var("connect"))
    counts = alt.Chart(data(heads, _peaks(seen)), name="counts").mark_text(
        align="left", baseline="bottom", dx=4, dy=-2
    )
    tips = [
        tip("from", ".4~g", Finding("chart.connects.from")),
        tip("until", ".4~g", Finding("chart.connects.until")),
        tip("connections", "d"),
    ]
    return alt.layer(
        rules.mark_rule(color=var("soft"), strokeDash=[6, 4]).encode(x=across),
        bars.encode(x=across, x2="until:Q", y=down, y2=alt.datum(0), tooltip=tips),
        counts.encode(x=across, y=down, text="connections:Q"),
    ).properties(height=200)


def _peaks(seen: Timeline) -> list[tuple[float, float, int]]:
    """Bars with no taller one beside them: the numbers of neighbours would lie on each other."""
    peaks = []
    for one in seen.connects:
        since, until, count = one
        beside = [n for a, b, n in seen.connects if a == until or b == since]
        if all(count >= other for other in beside):
            peaks.append(one)
    return peaks
