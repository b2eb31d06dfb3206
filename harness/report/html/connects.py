"""How long connecting took: where handshakes were dropped, some stand at the kernel's own steps."""

from __future__ import annotations

from typing import Any

import altair as alt

from harness.model import Timeline
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, count_axis, data

LATE_S = 0.5  # no loopback takes that long by itself, and no kernel repeats a SYN sooner


def connects(view: Timeline, name: str, title: str) -> Figure | None:
    """None where every connection came up at once, or it is not known."""
    late = sum(count for since, _, count in view.connects if since >= LATE_S)
    if not late:
        return None
    prompt = sum(count for _, _, count in view.connects) - late
    longest = max(until for _, until, _ in view.connects)
    steps = [step for step in view.syn_steps_s if step <= longest]
    ruled = [Key("the kernel repeats a dropped SYN", "soft", "dashed")] if steps else []
    where = " Dashed: when this kernel repeats a SYN that was not answered." if steps else ""
    return Figure(
        name=name,
        title=title,
        heading="Time to connect",
        caption=f"All connections of the load by how long connecting took.{where} One that stands"
        " there was turned away by a full accept queue and tried again.",
        alternative=f"{title}: {prompt} in less than {LATE_S:g} s, {late} later.",
        panes=(_bars(view, steps, longest),),
        legend=(Key("connections", "connect", "box"), *ruled),
        heads=("time to connect", "connections"),
        rows=tuple((f"{since:g} to {until:g} s", str(n)) for since, until, n in view.connects),
    )


def _bars(view: Timeline, steps: list[float], longest: float) -> Any:
    most = max(count for _, _, count in view.connects)
    scale = alt.Scale(domain=[0, longest], nice=False)
    across = alt.X("from:Q", title="time to connect, s", scale=scale, axis=alt.Axis(tickCount=8))
    down = alt.Y("connections:Q", title="connections", axis=count_axis(most))
    tall = alt.Scale(domain=[0, 1.12 * most], nice=False)
    heads = ("from", "until", "connections")
    bars = alt.Chart(data(heads, view.connects), name="connects").encode(x=across)
    tips = [
        alt.Tooltip("from:Q", title="from, s", format=".4~g"),
        alt.Tooltip("until:Q", title="until, s", format=".4~g"),
        alt.Tooltip("connections:Q", format="d"),
    ]
    rule = alt.Chart(data(("from",), [(step,) for step in steps]), name="steps")
    above = alt.Chart(data(heads, _peaks(view)), name="counts")
    return alt.layer(
        rule.mark_rule(color=var("soft"), strokeDash=[6, 4]).encode(x=across),
        bars.mark_rect(color=var("connect")).encode(
            x2="until:Q", y=down.scale(tall), y2=alt.datum(0), tooltip=tips
        ),
        above.mark_text(align="left", baseline="bottom", dx=4, dy=-2).encode(
            x=across, y=down.scale(tall), text="connections:Q"
        ),
    ).properties(height=200)


def _peaks(view: Timeline) -> list[tuple[float, float, int]]:
    """Bars with no taller one beside them: the numbers of neighbours would lie on each other."""
    found = []
    for one in view.connects:
        since, until, count = one
        beside = [n for a, b, n in view.connects if a == until or b == since]
        if all(count >= other for other in beside):
            found.append(one)
    return found
