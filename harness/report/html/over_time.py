"""What all figures of one cell share: seconds since the load began, from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import altair as alt

from harness.model import Timeline
from harness.report.html.colours import var
from harness.report.html.figures import DASHES, Shape, by_name, data, tip, unit
from harness.report.messages import say

Stretch = tuple[float, float]  # from, until, in seconds

T = TypeVar("T")


def whole(seen: Timeline) -> Stretch:
    """From the begin of the load to the last that was observed."""
    ends = [
        seen.shown[1],
        *(at for at, _ in seen.queue[-1:]),
        *(one[0] for one in seen.states[-1:]),
    ]
    return 0.0, max([*ends, *(moment.at_s for moment in seen.usage[-1:])])


def time_axis(field: str, stretch: Stretch, *, titled: bool = True) -> Any:
    """`titled`: not, where the pane below has the same axis and says it."""
    name, factor = unit(stretch[1])
    scale = alt.Scale(domain=[stretch[0] * factor, stretch[1] * factor], nice=False)
    title = say("chart.since_load_began", unit=name) if titled else None
    return alt.X(field, scale=scale, title=title, axis=alt.Axis(tickCount=8))


def time_tip(field: str, stretch: Stretch) -> Any:
    return tip(field, ".4~g", unit(stretch[1])[0])


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


def steady_rules(seen: Timeline, across: Any) -> list[Any]:
    """Where the steady part begins and ends."""
    factor = unit(seen.shown[1])[1]
    ends = seen.steady or ()
    inside = [(at * factor,) for at in ends if seen.shown[0] <= at <= seen.shown[1]]
    if not inside:
        return []
    rule = alt.Chart(data(("from",), inside), name="steady")
    return [rule.mark_rule(color=var("soft"), strokeDash=[6, 4]).encode(x=across)]


Lines = Mapping[str, tuple[Shape, Sequence[tuple[float, float | None]]]]


def lines(
    every: Lines, stretch: Stretch, down: Mapping[str, Any], mark: str, *, titled: bool = True
) -> Any:
    """Lines of one colour that differ by their dashes. `down`: title, axis and scale of the values;
    `mark`: the name of their marks, one of a kind in a figure."""
    factor = unit(stretch[1])[1]
    known = {
        name: points
        for name, (_, points) in every.items()
        if any(value is not None for _, value in points)
    }
    rows = [
        (name, at * factor, value)
        for name, points in known.items()
        for at, value in corners(points)
    ]
    source = data(("line", "from", "value"), rows, words=("line",))
    dashes = {name: DASHES[shape] for name, (shape, _) in every.items()}
    marks = alt.Chart(source, name=mark).mark_line(color=var("ink"), strokeWidth=1.5)
    return marks.encode(
        x=time_axis("from:Q", stretch, titled=titled),
        y=alt.Y("value:Q", **down),
        strokeDash=by_name(alt.StrokeDash, "line", dashes),
        tooltip=[tip("line"), tip("value", ".4~g", down["title"]), time_tip("from", stretch)],
    )
