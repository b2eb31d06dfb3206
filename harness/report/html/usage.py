"""What a cell cost over time: CPU and memory of the server, of the load tool and of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from harness.model import Finding, Moment, Timeline
from harness.report.html.figures import Figure, Shape, key, y_axis
from harness.report.html.over_time import Lines, lines, whole
from harness.report.messages import say

MEGABYTE = 2.0**20
LITTLE = 0.1  # cores: below, a line shows the kernel's ticks of 10 ms
SHAPES: dict[str, Shape] = {"server": "solid", "load_tool": "dashed", "host": "dotted"}

Use = Callable[[Moment], float | None]


def cpu(seen: Timeline, name: str, where: Finding) -> Figure | None:
    """Cores of the server and the load tool; below it the host."""
    cores: dict[str, Use] = {
        "server": lambda moment: moment.server_cores,
        "load_tool": lambda moment: moment.generator_cores,
    }
    host: dict[str, Use] = {"host": lambda moment: moment.host_busy}
    panes = [
        _pane(seen, cores, "chart.cores", LITTLE),
        _pane(seen, host, "chart.host_busy", 100.0, mark="host", factor=100.0),
    ]
    return _figure(seen, "cpu", name, where, panes, cores | host)


def memory(seen: Timeline, name: str, where: Finding) -> Figure | None:
    """Resident memory of the server and the load tool."""
    rss: dict[str, Use] = {
        "server": lambda moment: moment.server_rss_bytes,
        "load_tool": lambda moment: moment.generator_rss_bytes,
    }
    pane = _pane(seen, rss, "chart.megabytes", 1.0, factor=1 / MEGABYTE)
    return _figure(seen, "memory", name, where, [pane], rss)


def _figure(
    seen: Timeline, kind: str, name: str, where: Finding, panes: Sequence[Any], uses: dict[str, Use]
) -> Figure | None:
    """None where nothing is known."""
    known = tuple(pane for pane in panes if pane is not None)
    if not known:
        return None
    most = {who: _most(seen, use) for who, use in uses.items()}
    return Figure(
        name=name,
        title=Finding(f"chart.{kind}", {"where": where}),
        heading=Finding(f"chart.{kind}.heading"),
        caption=(Finding(f"chart.{kind}.caption"),),
        alternative=(Finding(f"chart.{kind}.most", {"where": where, **most}),),
        panes=known,
        legend=tuple(key(who, "ink", SHAPES[who]) for who in uses),
    )


def _most(seen: Timeline, use: Use) -> float | None:
    return max((one for moment in seen.usage if (one := use(moment)) is not None), default=None)


def _pane(
    seen: Timeline,
    uses: dict[str, Use],
    title: str,
    least: float,
    mark: str = "usage",
    factor: float = 1.0,
) -> Any:
    """None where nothing is known. `least`: what the axis reaches at least."""
    every: Lines = {
        say(f"chart.{who}"): (SHAPES[who], [(m.at_s, _scaled(use(m), factor)) for m in seen.usage])
        for who, use in uses.items()
    }
    values = [one for _, points in every.values() for _, one in points if one is not None]
    if not values:
        return None
    scale = alt.Scale(domain=[0, max(least, *values)])
    down = {"title": say(title), "axis": y_axis(), "scale": scale}
    return lines(every, whole(seen), down, mark).properties(height=90)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
