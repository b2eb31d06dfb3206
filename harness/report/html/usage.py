"""What a cell cost over time: CPU and memory of the server, of the load tool and of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from harness.model import Moment, Timeline
from harness.numbers.units import format_bytes
from harness.report.html.colours import var
from harness.report.html.figures import DASHES, Figure, Key, Shape, data, unit, y_axis
from harness.report.html.series import corners, time_axis, whole

MEGABYTE = 2.0**20
LITTLE = 0.1  # cores: below, a line shows the kernel's ticks of 10 ms

Lines = Sequence[tuple[str, Shape, Sequence[tuple[float, float | None]]]]


def cpu(view: Timeline, name: str, where: str) -> Figure | None:
    lines: Lines = (
        ("server", "solid", [(m.at_s, m.server_cores) for m in view.usage]),
        ("load tool", "dashed", [(m.at_s, m.generator_cores) for m in view.usage]),
    )
    host: Lines = (("host", "dotted", [(m.at_s, _percent(m)) for m in view.usage]),)
    panes = [_lines(view, lines, "cores", LITTLE), _lines(view, host, "% busy", 100.0, "host")]
    known = [pane for pane in panes if pane is not None]
    if not known:
        return None
    said = "; ".join(_most(one, lambda v: f"{v:.2f} cores") for one in lines)
    busy = _most(host[0], lambda v: f"{v:.0f} % busy")
    return Figure(
        name=name,
        title=f"CPU, {where}",
        heading="CPU",
        caption="CPU seconds per second, of the server with its workers and of the load tool; below"
        " it, how busy all cores of the machine were.",
        alternative=f"CPU of {where}, at most: {said}; {busy}.",
        panes=tuple(known),
        legend=tuple(Key(name, "ink", shape) for name, shape, _ in (*lines, *host)),
    )


def _percent(moment: Moment) -> float | None:
    return None if moment.host_busy is None else 100 * moment.host_busy


def memory(view: Timeline, name: str, where: str) -> Figure | None:
    def size(value: int | None) -> float | None:
        return None if value is None else value / MEGABYTE

    lines: Lines = (
        ("server", "solid", [(m.at_s, size(m.server_rss_bytes)) for m in view.usage]),
        ("load tool", "dashed", [(m.at_s, size(m.generator_rss_bytes)) for m in view.usage]),
    )
    pane = _lines(view, lines, "MB", 1.0)
    if pane is None:
        return None
    said = "; ".join(_most(one, lambda v: format_bytes(v * MEGABYTE)) for one in lines)
    return Figure(
        name=name,
        title=f"Memory, {where}",
        heading="Memory",
        caption="Resident memory of the server with its workers and of the load tool (1 MB = 1024²"
        " bytes); pages that processes share count in each of them.",
        alternative=f"Memory of {where}, at most: {said}.",
        panes=(pane,),
        legend=tuple(Key(name, "ink", shape) for name, shape, _ in lines),
    )


def _most(line: tuple[str, Shape, Sequence[tuple[float, float | None]]], say: Any) -> str:
    known = [value for _, value in line[2] if value is not None]
    return f"{line[0]} {say(max(known)) if known else 'missing'}"


def _lines(view: Timeline, lines: Lines, title: str, least: float, mark: str = "usage") -> Any:
    """None where nothing is known. `least`: what the axis reaches at least; `mark`: the name of
    its marks, one of a kind in a figure."""
    name, factor = unit(whole(view)[1])
    rows = [
        (who, at * factor, value)
        for who, _, points in lines
        for at, value in corners(points)
        if any(known is not None for _, known in points)
    ]
    if not rows:
        return None
    top = max(least, *(value for _, _, value in rows if value is not None))
    names = [who for who, _, _ in lines]
    dashes = alt.Scale(domain=names, range=[DASHES[shape] for _, shape, _ in lines])
    down = alt.Y("value:Q", title=title, axis=y_axis(), scale=alt.Scale(domain=[0, top]))
    tips = [
        alt.Tooltip("who:N"),
        alt.Tooltip("value:Q", title=title, format=".3~g"),
        alt.Tooltip("from:Q", title=name, format=".4~g"),
    ]
    return (
        alt.Chart(data(("who", "from", "value"), rows, words=("who",)), name=mark)
        .mark_line(color=var("ink"), strokeWidth=1.5)
        .encode(
            x=time_axis("from:Q", whole(view), factor, f"{name} since the load began"),
            y=down,
            strokeDash=alt.StrokeDash("who:N", scale=dashes, legend=None),
            tooltip=tips,
        )
        .properties(height=90)
    )
