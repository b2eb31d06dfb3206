"""Requests per second against connections: what each class makes of more of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from harness.model import Report
from harness.numbers.units import MISSING
from harness.report.html.colours import CLASSES, var
from harness.report.html.figures import Figure, Key, Shape, data, y_axis
from harness.report.html.members import Group, groups, mean
from harness.report.sentences import amount, connections
from harness.report.values import finite

SHAPES: tuple[Shape, ...] = (
    "circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right",
)  # fmt: skip
ABOVE = 3.0  # times what was measured: a bound that is higher is cut off
WIDE = 16  # from how many times the lowest level on the axis doubles instead of counting


def throughput(report: Report) -> Figure | None:
    """Requests/s against connections: a line and a shape per group, a point per trial."""
    members = [group for group in groups(report) if _rates(group)]
    if not members:
        return None
    levels = sorted({level for group in members for level in group.levels})
    spread = levels[-1] / levels[0] >= WIDE
    scale = alt.Scale(type="log", base=2) if spread else alt.Scale(domainMin=0)
    axis = alt.Axis(values=levels, format="d", labelOverlap=True)
    across = alt.X("connections:Q", title="connections kept busy", scale=scale, axis=axis)
    layers = [*_bounds(members, across), _lines(members, across), _points(members, across)]
    knees = any(finite(group.result.knee) for group in members)
    if knees:
        layers.append(_knees(members, across))
    rows = tuple(row for group in members for row in _throughput_rows(group))
    names = [Key(g.name, _colour(g), SHAPES[g.number % len(SHAPES)]) for g in members]
    signs = [Key("bound", "soft", "dashed"), Key("knee: waiting begins", "soft", "dotted")]
    return Figure(
        name="throughput",
        title="Throughput against concurrency",
        caption=_caption(members, knees),
        alternative="Throughput by connections. " + " ".join(_grows(g) for g in members),
        panes=(alt.layer(*layers).properties(height=320),),
        legend=(*names, *(signs if knees else signs[:1])),
        heads=("class", "connections", "requests/s", "bound", "verdict"),
        rows=rows,
    )


def _colour(group: Group) -> str:
    return CLASSES[group.number % len(CLASSES)]


def _by_class(members: Sequence[Group]) -> Any:
    names, colours = [group.name for group in members], [var(_colour(g)) for g in members]
    return alt.Color("class:N", scale=alt.Scale(domain=names, range=colours), legend=None)


def _rates(group: Group) -> list[tuple[int, float]]:
    """(connections, mean requests/s of the trials)."""
    found = [(at, mean(cells, lambda c: c.throughput_rps)) for at, cells in group.levels.items()]
    return [(at, rate) for at, rate in found if rate is not None]


def _most(members: Sequence[Group]) -> tuple[float, float]:
    """The highest rate that was measured, and the highest bound."""
    cells = [cell for group in members for cell in group.believed]
    rates = max(rate for cell in cells if (rate := finite(cell.throughput_rps)) is not None)
    return rates, max(finite(cell.bound_rps) or 0.0 for cell in cells)


def _down(members: Sequence[Group], field: str = "rate") -> Any:
    rate, bound = _most(members)
    top = 1.06 * max(rate, min(bound, ABOVE * rate)) or 1.0
    scale = alt.Scale(domain=[0, top], nice=False)
    return alt.Y(f"{field}:Q", title="requests/s", axis=y_axis(), scale=scale)


def _lines(members: Sequence[Group], across: Any) -> Any:
    rows = [(group.name, at, rate) for group in members for at, rate in _rates(group)]
    source = data(("class", "connections", "rate"), rows, words=("class",))
    return (
        alt.Chart(source, name="measured")
        .mark_line(strokeWidth=2.5)
        .encode(x=across, y=_down(members), color=_by_class(members))
    )


def _caption(members: Sequence[Group], knees: bool) -> str:
    said = (
        "Requests per second in the steady part. Dashed: what connections and slots allow at best."
    )
    rate, bound = _most(members)
    if bound > ABOVE * rate:
        said += f" That goes on above the chart, up to {amount(bound)}."
    return said + (" Dotted: the knee, from where more connections only wait." if knees else "")


def _bounds(members: Sequence[Group], across: Any) -> list[Any]:
    """Lines, and a dash at each level: a line that is met by what was measured is hidden by it."""
    rows = []
    for group in members:
        bounds = {at: mean(cells, lambda c: c.bound_rps) for at, cells in group.levels.items()}
        rows += [(group.name, at, bound) for at, bound in bounds.items() if bound is not None]
    source = data(("class", "connections", "rate"), rows, words=("class",))
    look = {"x": across, "y": _down(members), "color": _by_class(members)}
    line = alt.Chart(source, name="bound").mark_line(
        strokeWidth=1.5, strokeDash=[6, 4], opacity=0.8, clip=True
    )
    dash = alt.Chart(source, name="bounds").mark_tick(
        orient="horizontal", size=26, thickness=1.5, opacity=0.8, clip=True
    )
    return [line.encode(**look), dash.encode(**look)]


def _points(members: Sequence[Group], across: Any) -> Any:
    heads = ("class", "connections", "rate", "bound", "trial", "verdict")
    rows = [
        (group.name, cell.trial.cell.concurrency, finite(cell.throughput_rps),
         finite(cell.bound_rps), cell.trial.number, cell.verdict)
        for group in members
        for cell in group.believed
        if finite(cell.throughput_rps) is not None
    ]  # fmt: skip
    shapes = [SHAPES[group.number % len(SHAPES)] for group in members]
    by_shape = alt.Scale(domain=[group.name for group in members], range=shapes)
    tips = [
        alt.Tooltip("class:N"),
        alt.Tooltip("connections:Q", format="d"),
        alt.Tooltip("rate:Q", title="requests/s", format=".4~g"),
        alt.Tooltip("bound:Q", title="bound, requests/s", format=".4~g"),
        alt.Tooltip("trial:Q", format="d"),
        alt.Tooltip("verdict:N"),
    ]
    return (
        alt.Chart(data(heads, rows, words=("class", "verdict")), name="trials")
        .mark_point(filled=True, size=90, opacity=1, stroke=var("paper"), strokeWidth=1)
        .encode(
            x=across,
            y=_down(members),
            color=_by_class(members),
            shape=alt.Shape("class:N", scale=by_shape, legend=None),
            tooltip=tips,
        )
    )


def _knees(members: Sequence[Group], across: Any) -> Any:
    rows = [
        (group.name, knee, max(rate for _, rate in _rates(group)), 0)
        for group in members
        if (knee := finite(group.result.knee))
    ]
    source = data(("class", "connections", "rate", "zero"), rows, words=("class",))
    tips = [
        alt.Tooltip("class:N"),
        alt.Tooltip("connections:Q", title="knee, connections", format=".1f"),
    ]
    return (
        alt.Chart(source, name="knees")
        .mark_rule(strokeDash=[2, 3], strokeWidth=2)
        .encode(
            x=across, y=_down(members, "zero"), y2="rate:Q", color=_by_class(members), tooltip=tips
        )
    )


def _throughput_rows(group: Group) -> list[tuple[str, ...]]:
    def said(value: float | None) -> str:
        known = finite(value)
        return MISSING if known is None else amount(known)

    return [
        (group.name, str(c.trial.cell.concurrency), said(c.throughput_rps), said(c.bound_rps),
         c.verdict)
        for c in group.cells
    ]  # fmt: skip


def _grows(group: Group) -> str:
    rates = _rates(group)
    first, last = rates[0], rates[-1]
    said = f"{group.name}: {amount(first[1])} requests/s at {first[0]} connections"
    if len(rates) > 1:
        said += f", {amount(last[1])} at {last[0]}"
    knee = finite(group.result.knee)
    return f"{said}, knee at {connections(knee)}." if knee else f"{said}."
