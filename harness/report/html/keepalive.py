"""What kept-alive connections allow: bound, what each worker's share allows, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from harness.numbers.units import MISSING
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, data, y_axis
from harness.report.html.members import Group, mean
from harness.report.sentences import amount

SIDES = (("bound", "bound"), ("split prediction", "prediction"), ("measured", "measured"))


def keepalive(group: Group) -> Figure | None:
    """Bound, what the connections of each worker allow, and what came out, side by side."""
    if not group.result.keepalive:
        return None
    found = [
        (at, (mean(cells, lambda c: c.bound_rps), mean(cells, lambda c: c.split_prediction_rps),
              mean(cells, lambda c: c.throughput_rps)))
        for at, cells in group.levels.items()
    ]  # fmt: skip
    rows = [
        (at, name, rate)
        for at, rates in found
        for (name, _), rate in zip(SIDES, rates, strict=True)
        if rate is not None
    ]
    if not rows:
        return None
    said = [(str(at), *(MISSING if r is None else amount(r) for r in rates)) for at, rates in found]
    return Figure(
        name=f"keepalive-{group.slug}",
        title=f"{group.name}: what kept-alive connections allow",
        heading=group.name,
        caption="A kept-alive connection stays with its worker. Bound: every slot"
        " could serve any of them. Split prediction: each worker serves only its own.",
        alternative=f"{group.name} with kept-alive connections, requests/s: "
        + " ".join(
            f"at {at} bound {bound}, predicted {split}, measured {rate}."
            for at, bound, split, rate in said
        ),
        panes=(_side_by_side(rows),),
        legend=tuple(Key(name, colour, "box") for name, colour in SIDES),
        heads=("connections", *(f"{name}, requests/s" for name, _ in SIDES)),
        rows=tuple(said),
    )


def _side_by_side(rows: Sequence[tuple[int, str, float]]) -> Any:
    order = [name for name, _ in SIDES]
    colours = alt.Scale(domain=order, range=[var(colour) for _, colour in SIDES])
    source = data(("connections", "which", "rate"), rows, words=("connections", "which"))
    return (
        alt.Chart(source, name="sides")
        .mark_bar()
        .encode(
            x=alt.X("connections:O", sort=None, axis=alt.Axis(labelAngle=0), title="connections"),
            xOffset=alt.XOffset("which:N", sort=order),
            y=alt.Y("rate:Q", title="requests/s", axis=y_axis()),
            color=alt.Color("which:N", scale=colours, legend=None),
            tooltip=[
                alt.Tooltip("connections:O"),
                alt.Tooltip("which:N"),
                alt.Tooltip("rate:Q", title="requests/s", format=".4~g"),
            ],
        )
        .properties(height=230)
    )
