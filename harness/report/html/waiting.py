"""A response time by where it was spent, a stacked bar per level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from harness.model import Breakdown, CellResult, Report
from harness.numbers.units import format_duration
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, data, unit, y_axis
from harness.report.html.members import Group, mean
from harness.report.sentences import listed
from harness.report.values import finite

PARTS = (  # field, how it is called, colour
    ("connect_s", "connect", "connect"),
    ("accept_queue_s", "accept queue", "accept-queue"),
    ("in_worker_s", "in the worker", "in-worker"),
    ("service_s", "in the app", "service"),
    ("transfer_s", "transfer", "transfer"),
    ("unattributed_s", "unattributed", "unattributed"),
)
BAND = 240  # pixels that all bars share: a phone has them, and one level is no wall
SEEN = 0.005  # of the axis: a shorter part is thinner than a line

Levels = dict[int, dict[str, float | None]]  # connections: seconds by field


def _part(split: Breakdown, field: str) -> float | None:
    found: float | None = getattr(split, field)
    return finite(found)


def longest_s(report: Report) -> float:
    """The highest bar of the run."""
    return max((_height(cell) for cell in report.cells), default=0.0)


def _height(cell: CellResult) -> float:
    known = [_part(cell.breakdown, field) or 0.0 for field, _, _ in PARTS]
    return max(sum(part for part in known if part > 0), finite(cell.breakdown.response_s) or 0.0)


def waiting(group: Group, longest_s: float) -> Figure | None:
    """The mean response time by where it was spent, a bar per level. `longest_s`: of the run, so
    that classes can be compared."""
    levels = {
        at: {field: mean(cells, lambda c, field=field: _part(c.breakdown, field))  # type: ignore[misc]
             for field in ("response_s", *(field for field, _, _ in PARTS))}
        for at, cells in group.levels.items()
    }  # fmt: skip
    levels = {at: parts for at, parts in levels.items() if parts["response_s"] is not None}
    if not levels:
        return None
    drawn = [
        part for part in PARTS
        if any(abs(parts[part[0]] or 0.0) >= SEEN * longest_s for parts in levels.values())
    ]  # fmt: skip
    return Figure(
        name=f"waiting-{group.slug}",
        title=f"{group.name}: where the time went",
        heading=group.name,
        caption=f"Mean of the steady part. {_how(group)}"
        + _not_drawn(levels, [field for field, _, _ in drawn]),
        alternative=f"Mean response time of {group.name} by where it was spent. "
        + " ".join(_spent(at, parts) for at, parts in levels.items()),
        panes=(_stacked(levels, longest_s),),
        legend=tuple(Key(name, colour, "box") for _, name, colour in drawn),
        heads=("connections", "response", *(name for _, name, _ in PARTS)),
        rows=tuple(
            (str(at), *(format_duration(parts[field]) for field in parts))
            for at, parts in levels.items()
        ),
    )


def _how(group: Group) -> str:
    exact = all(cell.breakdown.exact for cell in group.believed)
    return "Every request was followed by its id." if exact else "Each part by its own witness."


def _not_drawn(levels: Levels, drawn: Sequence[str]) -> str:
    """The parts that no bar shows: not witnessed, or too short to be seen."""
    unseen, short, longest_s = [], [], 0.0
    for field, name, _ in PARTS:
        known = [part for parts in levels.values() if (part := parts[field]) is not None]
        if not known:
            unseen.append(name)
        elif field not in drawn:
            short.append(name)
            longest_s = max(longest_s, *map(abs, known))
    said = ""
    if short:
        said = f" Too short to be seen, at most {format_duration(longest_s)}: {listed(short)}."
    return said + (f" Not witnessed: {listed(unseen)}." if unseen else "")


def _stacked(levels: Levels, longest_s: float) -> Any:
    name, factor = unit(longest_s)
    rows = [
        (at, label, value * factor, order, format_duration(value))
        for at, parts in levels.items()
        for order, (field, label, _) in enumerate(PARTS)
        if (value := parts[field]) is not None
    ]
    tops = [
        (at, sum(v for field, _, _ in PARTS if (v := parts[field]) and v > 0) * factor,
         format_duration(parts["response_s"]))
        for at, parts in levels.items()
    ]  # fmt: skip
    across = alt.X("connections:O", title="connections", axis=alt.Axis(labelAngle=0), sort=None)
    down = alt.Y(
        "time:Q",
        title=f"mean response time, {name}",
        axis=y_axis(),
        scale=alt.Scale(domainMax=longest_s * factor * 1.08, nice=False),
    )
    colours = alt.Scale(domain=[p[1] for p in PARTS], range=[var(p[2]) for p in PARTS])
    heads = ("connections", "part", "time", "order", "mean")
    bars = (
        alt.Chart(data(heads, rows, words=("connections", "part", "mean")), name="parts")
        .mark_bar(stroke=var("paper"), strokeWidth=0.5, size=min(90.0, BAND / len(levels)))
        .encode(
            x=across,
            y=down,
            color=alt.Color("part:N", scale=colours, legend=None),
            order=alt.Order("order:Q"),
            tooltip=[alt.Tooltip("connections:O"), alt.Tooltip("part:N"), alt.Tooltip("mean:N")],
        )
    )
    said = (
        alt.Chart(data(("connections", "time", "sum"), tops, words=("connections", "sum")))
        .mark_text(baseline="bottom", dy=-3)
        .encode(x=across, y="time:Q", text="sum:N")
    )
    return alt.layer(bars, said).properties(height=230)


def _spent(at: int, parts: dict[str, float | None]) -> str:
    known = [
        f"{name} {format_duration(value)}"
        for field, name, _ in PARTS
        if (value := parts[field]) is not None
    ]
    return f"At {at} connections {format_duration(parts['response_s'])}: {', '.join(known)}."
