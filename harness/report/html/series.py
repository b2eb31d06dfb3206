"""What the kernel showed over time beside the requests: accept queue and TCP states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

import altair as alt

from harness.model import Timeline
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, count_axis, data, unit

NEAR = 4  # a limit is drawn where it is at most so many times what was seen
ROW = 34  # pixels of a state's row

T = TypeVar("T")


def unseen(view: Timeline) -> list[str]:
    """What was not observed, in words."""
    names = (("the accept queue", view.queue), ("TCP states", view.states),
             ("CPU and memory", view.usage))  # fmt: skip
    return [name for name, samples in names if not samples]


def time_axis(field: str, shown: tuple[float, float], factor: float, title: str | None) -> Any:
    scale = alt.Scale(domain=[shown[0] * factor, shown[1] * factor], nice=False)
    return alt.X(field, scale=scale, title=title, axis=alt.Axis(tickCount=8))


def corners(points: Sequence[tuple[float, T]]) -> list[tuple[float, T]]:
    """The points at which a line may turn: the others can be left out, and nothing looks different.

    What is like both its neighbours lies on the line between them, drawn straight or in steps.
    """
    last = len(points) - 1
    return [
        point
        for i, point in enumerate(points)
        if i in (0, last) or not points[i - 1][1] == point[1] == points[i + 1][1]
    ]


def edges(view: Timeline, factor: float, across: Any) -> list[Any]:
    """Where the steady part begins and ends."""
    if view.steady is None:
        return []
    inside = [(at * factor,) for at in view.steady if view.shown[0] <= at <= view.shown[1]]
    if not inside:
        return []
    rule = alt.Chart(data(("from",), inside), name="steady")
    return [rule.mark_rule(color=var("soft"), strokeDash=[6, 4]).encode(x=across)]


def whole(view: Timeline) -> tuple[float, float]:
    ends = [view.shown[1], *(at for at, _ in view.queue[-1:]), *(s[0] for s in view.states[-1:])]
    return 0.0, max([*ends, *(moment.at_s for moment in view.usage[-1:])])


# --- accept queue -------------------------------------------------------------------------


def queue_pane(view: Timeline, shown: tuple[float, float]) -> Any:
    """The accept queue's length as steps, and its limit where that is near."""
    name, factor = unit(shown[1])
    most = max(length for _, length in view.queue)
    across = time_axis("from:Q", shown, factor, f"{name} since the load began")
    inside = [(at * factor, length) for at, length in view.queue if shown[0] <= at <= shown[1]]
    tips = [
        alt.Tooltip("from:Q", title=name, format=".4~g"),
        alt.Tooltip("length:Q", title="waiting", format="d"),
    ]
    down = alt.Y("length:Q", title="accept queue", axis=count_axis(most))
    area = (
        alt.Chart(data(("from", "length"), corners(inside)), name="queue")
        .mark_area(interpolate="step-after", color=var("accept-queue"), clip=True)
        .encode(x=across, y=down.scale(domain=[0, max(1, most)], nice=False), tooltip=tips)
    )
    layers = [area]
    limit = view.queue_limit
    if limit is not None and limit <= NEAR * max(1, most):
        area = area.encode(y=down.scale(domain=[0, max(most, limit + 1)], nice=False))
        rule = alt.Chart(data(("limit",), [(limit,)]), name="limit")
        layers = [area, rule.mark_rule(color=var("connect"), strokeWidth=2).encode(y="limit:Q")]
    return alt.layer(*layers).properties(height=90)


def queue(view: Timeline, name: str, where: str) -> Figure | None:
    """None where it was not seen. `where`: 'sync at 8 connections'."""
    if not view.queue:
        return None
    most, limit = max(length for _, length in view.queue), view.queue_limit
    near = limit is not None and limit <= NEAR * max(1, most)
    let_in = f" Its limit is {limit}; the kernel lets one more in." if limit is not None else ""
    return Figure(
        name=name,
        title=f"Accept queue, {where}",
        heading="Accept queue",
        caption=f"Connections that no worker has accepted yet.{let_in}",
        alternative=f"Accept queue of {where}: at most {most} connections.{let_in}",
        panes=(queue_pane(view, whole(view)),),
        legend=(
            Key("accept queue", "accept-queue", "box"),
            *([Key("limit", "connect", "solid")] if near else []),
        ),
    )


# --- TCP states ---------------------------------------------------------------------------


def states(view: Timeline, name: str, where: str) -> Figure | None:
    """A row per side and state, all of one scale."""
    most: dict[str, int] = {}
    for _, state, count in view.states:
        most[state] = max(most.get(state, 0), count)
    most = {state: count for state, count in most.items() if count}
    if not most:
        return None
    said = ", ".join(f"{state} {count}" for state, count in most.items())
    return Figure(
        name=name,
        title=f"TCP states, {where}",
        heading="TCP states",
        caption="Sockets by end and state, all rows on one scale; the number is the row's most.",
        alternative=f"Most sockets in each TCP state, {where}: {said}.",
        panes=(_state_rows(view, most),),
        legend=(Key("sockets", "sockets", "box"),),
    )


def _state_rows(view: Timeline, most: dict[str, int]) -> Any:
    name, factor = unit(whole(view)[1])
    row = {state: i for i, state in enumerate(most)}
    tallest = max(most.values())
    rows = [
        (row[state], at * factor, count)
        for state in row
        for at, count in corners([(at, count) for at, one, count in view.states if one == state])
    ]
    source = data(("row", "from", "sockets"), rows)
    across = time_axis("from:Q", whole(view), factor, f"{name} since the load began")
    down = alt.Scale(domain=[len(row), 0], nice=False)
    areas = (
        alt.Chart(source, name="states")
        .transform_calculate(
            base="datum.row + 1",
            top=f"datum.row + 1 - 0.55 * datum.sockets / {tallest}",
            state=f"{json.dumps(list(row))}[datum.row]",
        )
        .mark_area(interpolate="step-after", color=var("sockets"))
        .encode(
            x=across,
            y=alt.Y("top:Q", scale=down, axis=None),
            y2="base:Q",
            detail="row:N",
            tooltip=[alt.Tooltip("state:N"), alt.Tooltip("sockets:Q", format="d")],
        )
    )
    words = [(f"{state}: {count}", row[state] + 0.22) for state, count in most.items()]
    labels = (
        alt.Chart(data(("label", "top"), words, words=("label",)))
        .mark_text(align="left", baseline="middle", color=var("soft"))
        .encode(x=alt.value(2), y=alt.Y("top:Q", scale=down, axis=None), text="label:N")
    )
    return alt.layer(areas, labels).properties(height=ROW * len(row))
