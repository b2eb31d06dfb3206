"""Response time against throughput, of the same server in the closed loop and at a rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from harness.model import CellResult
from harness.numbers.units import format_duration
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, Shape, data, unit, y_axis
from harness.report.html.members import Group
from harness.report.loops import BELOW, how
from harness.report.sentences import amount
from harness.report.values import finite

LOOPS: Sequence[tuple[str, str, Shape]] = (
    ("closed", "service", "circle"),
    ("open", "connect", "diamond"),
)


def open_and_closed(group: Group) -> Figure | None:
    """None where no cell at a rate is believed. A line from the median to 95 %, per cell."""
    opened = [cell for cell in group.opened if cell.verdict != "invalid" and _known(cell)]
    cells = [cell for cell in group.believed if _known(cell)] + opened
    if not opened:
        return None
    return Figure(
        name=f"loops-{group.slug}",
        title=f"Closed loop and open model, {group.name}",
        heading=group.name,
        caption=f"From the median to 95 % of the response times, against requests per second."
        f" {BELOW}",
        alternative=f"Response times of {group.name}. " + " ".join(map(_said, cells)),
        panes=(_pane(cells),),
        legend=tuple(
            Key(f"{name}: median to 95 %", colour, shape) for name, colour, shape in LOOPS
        ),
        heads=("load", "requests/s", "median", "95 %", "verdict"),
        rows=tuple(_row(cell) for cell in cells),
    )


def _known(cell: CellResult) -> bool:
    values = (cell.throughput_rps, cell.response.p50, cell.response.p95)
    return all(finite(value) is not None for value in values)


def _row(cell: CellResult) -> tuple[str, ...]:
    return (
        *(how(cell), amount(cell.throughput_rps or 0.0)),
        *(format_duration(cell.response.p50), format_duration(cell.response.p95)),
        cell.verdict,
    )


def _said(cell: CellResult) -> str:
    load, rate, half, most, _ = _row(cell)
    return f"{load}: {rate} requests/s, half within {half}, 95 % within {most}."


def _pane(cells: Sequence[CellResult]) -> Any:
    name, factor = unit(max(cell.response.p95 or 0.0 for cell in cells))
    rows = [
        (
            *("closed" if cell.trial.cell.rate is None else "open", how(cell)),
            *(cell.throughput_rps, factor * (cell.response.p50 or 0.0)),
            *(factor * (cell.response.p95 or 0.0), cell.verdict),
        )
        for cell in cells
    ]
    heads = ("loop", "load", "rate", "half", "most", "verdict")
    source = data(heads, rows, words=("loop", "load", "verdict"))
    names = [name for name, _, _ in LOOPS]
    colour = alt.Color(
        "loop:N",
        legend=None,
        scale=alt.Scale(domain=names, range=[var(colour) for _, colour, _ in LOOPS]),
    )
    shape = alt.Shape(
        "loop:N",
        legend=None,
        scale=alt.Scale(domain=names, range=[shape for _, _, shape in LOOPS]),
    )
    across = alt.X("rate:Q", title="requests/s", scale=alt.Scale(domainMin=0))
    title = f"response time, {name}"
    down = alt.Y("most:Q", title=title, axis=y_axis(), scale=alt.Scale(domainMin=0))
    tips = [
        alt.Tooltip("load:N"),
        alt.Tooltip("rate:Q", title="requests/s", format=".4~g"),
        alt.Tooltip("half:Q", title=f"median, {name}", format=".4~g"),
        alt.Tooltip("most:Q", title=f"95 %, {name}", format=".4~g"),
        alt.Tooltip("verdict:N"),
    ]
    chart = alt.Chart(source)
    stems = chart.mark_rule(strokeWidth=2.5).encode(x=across, y=down, y2="half:Q", color=colour)
    tops = alt.Chart(source, name="loops").mark_point(
        filled=True, size=90, opacity=1, stroke=var("paper"), strokeWidth=1
    )
    return alt.layer(
        stems, tops.encode(x=across, y=down, color=colour, shape=shape, tooltip=tips)
    ).properties(height=240)
