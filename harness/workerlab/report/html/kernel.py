"""What the kernel showed beside the requests: the accept queue, TCP states, slow handshakes."""

import json
from typing import Any

import altair as alt

from workerlab.model import Finding, Timeline
from workerlab.report.html.colours import var
from workerlab.report.html.figure import WHOLE, Figure, data, key, of_cell, some, tip, unit
from workerlab.report.html.over_time import Stretch, corners, time_axis, whole
from workerlab.report.messages import say

NEAR = 4  # a limit is drawn where it is at most so many times what was seen
ROW = 34  # pixels of a state's row
LATE_S = 0.5  # no loopback takes that long by itself, and no kernel repeats a SYN sooner


# --- accept queue -------------------------------------------------------------------------


def queue(seen: Timeline, where: Finding) -> Figure | None:
    """None where it was always empty or not observed, or where the timeline shows all of it."""
    outside = [n for at, n in seen.queue if not seen.shown[0] <= at <= seen.shown[1]]
    if len(seen.queue) < 2 or not (any(outside) or (has_queue(seen) and not in_timeline(seen))):
        return None
    most, near = _most_and_near(seen)
    limit = {"limit": seen.queue_limit}
    return of_cell(
        "queue",
        where,
        panes=[queue_pane(seen, whole(seen))],
        legend=some(
            key("accept_queue", "accept-queue"), key("limit", "connect", "solid") if near else None
        ),
        caption=[Finding("chart.queue.caption", limit)],
        alternative=[Finding("chart.queue.most", {"where": where, "longest": most, **limit})],
    )


def has_queue(seen: Timeline) -> bool:
    """Whether anything was in the accept queue in the stretch that the timeline shows."""
    return any(n for at, n in seen.queue if seen.shown[0] <= at <= seen.shown[1])


def in_timeline(seen: Timeline) -> bool:
    """Whether the timeline draws the queue: where it does not know how long each request waited."""
    return has_queue(seen) and not any(bar.arrived_s is not None for bar in seen.bars)


def _most_and_near(seen: Timeline) -> tuple[int, bool]:
    """The longest queue, and whether its limit is near."""
    most = max(length for _, length in seen.queue)
    return most, seen.queue_limit is not None and seen.queue_limit <= NEAR * max(1, most)


def queue_pane(seen: Timeline, stretch: Stretch) -> Any:
    """The accept queue's length as steps, and its limit where that is near."""
    name, factor = unit(stretch[1])
    (most, near), limit = _most_and_near(seen), seen.queue_limit or 0
    inside = [(at * factor, length) for at, length in seen.queue if stretch[0] <= at <= stretch[1]]
    area = alt.Chart(data("from length", corners(inside)), name="queue")
    top = max(most, limit + 1) if near else max(1, most)
    scale = alt.Scale(domain=[0, top], nice=False)
    area = area.mark_area(interpolate="step-after", color=var("accept-queue"), clip=True).encode(
        time_axis(stretch),
        y=alt.Y("length:Q", title=say("chart.accept_queue"), axis=WHOLE, scale=scale),
        tooltip=[tip("from", name), tip("length", Finding("chart.waiting"), "d")],
    )
    rule = alt.Chart(data("limit", [(limit,)] if near else []), name="limit")
    rule = rule.mark_rule(color=var("connect"), strokeWidth=2).encode(y="limit:Q")
    return alt.layer(area, rule).properties(height=90)


# --- TCP states ---------------------------------------------------------------------------


def states(seen: Timeline, where: Finding) -> Figure | None:
    """A row per side and state, all of one scale."""
    most: dict[str, int] = {}
    for _, state, count in seen.states:
        most[state] = max(most.get(state, 0), count)
    most = {state: count for state, count in most.items() if count}
    if not most or len({at for at, *_ in seen.states}) < 2:
        return None
    counts = tuple(f"{state} {count}" for state, count in most.items())
    return of_cell(
        "states",
        where,
        panes=[_state_rows(seen, most)],
        legend=[key("sockets", "sockets")],
        caption=[Finding("chart.states.caption")],
        alternative=[Finding("chart.states.most", {"where": where, "counts": counts})],
    )


def _state_rows(seen: Timeline, most: dict[str, int]) -> Any:
    factor = unit(whole(seen)[1])[1]
    rows = [
        (row, at * factor, count)
        for row, state in enumerate(most)
        for at, count in corners([(at, count) for at, one, count in seen.states if one == state])
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
            time_axis(whole(seen)),
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


def connects(seen: Timeline, where: Finding) -> Figure | None:
    """How long connecting took: where handshakes were dropped, some stand at the kernel's own
    steps. None where every connection came up at once, or it is not known."""
    late = sum(count for since, _, count in seen.connects if since >= LATE_S)
    if not late:
        return None
    prompt = sum(count for _, _, count in seen.connects) - late
    longest = max(until for _, until, _ in seen.connects)
    steps = [step for step in seen.syn_steps_s if step <= longest]
    values = {"where": where, "prompt": prompt, "late_after_s": LATE_S, "late": late}
    return of_cell(
        "connects",
        where,
        panes=[_connect_bars(seen, steps, longest)],
        legend=some(
            key("connections", "connect"), key("syn_step", "soft", "dashed") if steps else None
        ),
        caption=some(
            Finding("chart.connects.caption"), Finding("chart.connects.steps") if steps else None
        ),
        alternative=[Finding("chart.connects.late", values)],
        heads=(Finding("chart.connects"), Finding("chart.connections")),
        rows=tuple(
            (say("chart.connects.between", since=f"{since:g}", until=f"{until:g}"), str(count))
            for since, until, count in seen.connects
        ),
    )


def _connect_bars(seen: Timeline, steps: list[float], longest: float) -> Any:
    # Bars with no taller one beside them: the numbers of neighbours would lie on each other
    peaks = [
        (since, until, count)
        for since, until, count in seen.connects
        if all(count >= n for a, b, n in seen.connects if a == until or b == since)
    ]
    most = max(count for _, _, count in seen.connects)
    tall, wide = (alt.Scale(domain=[0, end], nice=False) for end in (1.12 * most, longest))
    down = alt.Y("connections:Q", title=say("chart.connections"), axis=WHOLE, scale=tall)
    rules = alt.Chart(data("from", [(step,) for step in steps]), name="steps")
    bars = alt.Chart(data("from until connections", seen.connects), name="connects")
    counts = alt.Chart(data("from until connections", peaks), name="counts")
    tips = [
        tip("from", Finding("chart.connects.from")),
        tip("until", Finding("chart.connects.until")),
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
        .encode(x=alt.X("from:Q", title=say("chart.connects.time"), scale=wide,
                        axis=alt.Axis(tickCount=8)))
        .properties(height=200)
    )  # fmt: skip
