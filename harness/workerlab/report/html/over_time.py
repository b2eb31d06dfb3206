"""Figures of one cell over time, seconds since the load began from left to right: CPU and memory of
the server, the load tool and the host, and the phases of a load on kept connections."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import altair as alt

from workerlab.analysis.phases import changing, phase_finding
from workerlab.model import Finding, Moment, Timeline
from workerlab.report.html.colours import var
from workerlab.report.html.figure import (
    DASHES,
    WHOLE,
    Figure,
    by_name,
    data,
    key,
    of_cell,
    some,
    tip,
    unit,
)
from workerlab.report.messages import say

MEGABYTE = 2.0**20
LITTLE = 0.1  # cores: below, a line shows the kernel's ticks of 10 ms
SHAPES = {"server": "solid", "load_tool": "dashed", "host": "dotted"}
PHASES = {"ramp-up": "accept-queue", "drain": "transfer", "steady": "service", "churn": "connect"}
OPEN, CLOSING = "client ESTABLISHED", ("_WAIT", "FIN_WAIT1", "FIN_WAIT2", "LAST_ACK", "CLOSING")
FAINT = 0.16

Stretch = tuple[float, float]  # from, until, in seconds
Points = Iterable[tuple[float, float | None]]
Uses = dict[str, Callable[[Moment], float | None]]

CORES: Uses = {"server": lambda m: m.server_cores, "load_tool": lambda m: m.generator_cores}
HOST: Uses = {"host": lambda m: m.host_busy}
RSS: Uses = {"server": lambda m: m.server_rss_bytes, "load_tool": lambda m: m.generator_rss_bytes}

T = TypeVar("T")


def whole(seen: Timeline) -> Stretch:
    """From the begin of the load to the last that was observed."""
    last = [one[0] for samples in (seen.queue, seen.states) for one in samples[-1:]]
    return 0.0, max([seen.shown[1], *last, *(moment.at_s for moment in seen.usage[-1:])])


def time_axis(stretch: Stretch, *, titled: bool = True) -> Any:
    """`titled`: not, where the pane below has the same axis and says it."""
    name, factor = unit(stretch[1])
    scale = alt.Scale(domain=[stretch[0] * factor, stretch[1] * factor], nice=False)
    title = say("chart.since_load_began", unit=name) if titled else None
    return alt.X("from:Q", scale=scale, title=title, axis=alt.Axis(tickCount=8))


def corners(points: Iterable[tuple[float, T]]) -> list[tuple[float, T]]:
    """The points at which a line may turn: the others can be left out, and nothing looks different.

    What is like both its neighbours lies on the line between them, drawn straight or in steps.
    """
    every = list(points)
    return [
        point
        for i, point in enumerate(every)
        if i in (0, len(every) - 1) or not every[i - 1][1] == point[1] == every[i + 1][1]
    ]


def _lines(
    names: dict[str, str], points: Sequence[Points], stretch: Stretch, mark: str, down: alt.Y
) -> Any:
    """Lines of one colour that differ by their dashes. `names`: their codes and shapes; `mark`: the
    name of their marks, one of a kind in a figure."""
    name, factor = unit(stretch[1])
    words = [say(f"chart.{code}") for code in names]
    rows = [
        (word, at * factor, value)
        for word, mine in zip(words, points, strict=True)
        for at, value in corners(mine)
    ]
    dashes = dict(zip(words, (DASHES[shape] for shape in names.values()), strict=True))
    lines = alt.Chart(data("line from value", rows), name=mark)
    return lines.mark_line(color=var("ink"), strokeWidth=1.5).encode(
        down,
        strokeDash=by_name(alt.StrokeDash, "line", dashes),
        tooltip=[tip("line", form=""), tip("value", down["title"]), tip("from", name)],
    )


# --- what it cost -------------------------------------------------------------------------


def cpu(seen: Timeline, where: Finding) -> Figure | None:
    """Cores of the server and the load tool; below it the host."""
    cores = _usage(seen, CORES, "chart.cores", LITTLE)
    host = _usage(seen, HOST, "chart.host_busy", 100.0, mark="host", factor=100.0)
    return _used(seen, "cpu", where, some(cores, host), CORES | HOST)


def memory(seen: Timeline, where: Finding) -> Figure | None:
    """Resident memory of the server and the load tool."""
    pane = _usage(seen, RSS, "chart.megabytes", 1.0, factor=1 / MEGABYTE)
    return _used(seen, "memory", where, some(pane), RSS)


def _used(
    seen: Timeline, kind: str, where: Finding, panes: tuple[Any, ...], uses: Uses
) -> Figure | None:
    """None where nothing is known."""
    if not panes:
        return None
    most = {who: max(some(*map(use, seen.usage)), default=None) for who, use in uses.items()}
    words = [Finding(f"chart.{kind}.most", {"where": where, **most})]
    legend = [key(who, "ink", SHAPES[who]) for who in uses]
    return of_cell(kind, where, panes, legend, [Finding(f"chart.{kind}.caption")], words)


def _usage(
    seen: Timeline, uses: Uses, title: str, least: float, mark: str = "usage", factor: float = 1.0
) -> Any:
    """None for less than two samples. `least`: what the axis reaches at least."""
    points = [
        [(m.at_s, None if (used := use(m)) is None else used * factor) for m in seen.usage]
        for use in uses.values()
    ]
    values = some(*(value for mine in points for _, value in mine))
    if len(values) < 2:
        return None
    down = alt.Y("value:Q", title=say(title), scale=alt.Scale(domain=[0, max(least, *values)]))
    stretch = whole(seen)
    lines = _lines({who: SHAPES[who] for who in uses}, points, stretch, mark, down)
    return lines.encode(time_axis(stretch)).properties(height=90)


# --- phases -------------------------------------------------------------------------------


def phases(seen: Timeline, where: Finding) -> Figure | None:
    """Response times and sockets; None where no phase was found, or nothing but a steady load."""
    if not changing(seen.phases) or not seen.responses:
        return None
    name, factor = unit(max(high for _, _, high in seen.responses))
    title = say("chart.in_app_in" if seen.in_app else "chart.response_in", unit=name)
    times = alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0))
    median = [(at, half * factor) for at, half, _ in seen.responses]
    p95 = [(at, high * factor) for at, _, high in seen.responses]
    established, closing = dict[float, int](), dict[float, int]()
    for at, state, count in seen.states:
        established[at] = established.get(at, 0) + (count if state == OPEN else 0)
        closing[at] = closing.get(at, 0) + (count if state.endswith(CLOSING) else 0)
    counts = alt.Y("value:Q", title=say("chart.sockets"), axis=WHOLE)
    why = list(map(phase_finding, seen.phases))
    timed = Finding("chart.phases.in_app" if seen.in_app else "chart.phases.responses")
    names = dict.fromkeys(phase.name for phase in seen.phases)
    signs = [key(f"phases.{shape}", "ink", shape) for shape in ("solid", "dashed")]
    return of_cell(
        "phases",
        where,
        panes=[
            _phases(seen, [median, p95], times, "responses"),
            _phases(seen, [established.items(), closing.items()], counts, "sockets"),
        ],
        legend=[*(key(f"phase.{one}", PHASES[one]) for one in names), *signs],
        caption=[Finding("chart.phases.caption", {"times": timed}), *why],
        alternative=[Finding("chart.phases.of", {"where": where}), *why],
    )


def _phases(seen: Timeline, points: Sequence[Points], down: alt.Y, mark: str) -> Any:
    """Lines, solid and dashed, before the phases."""
    ends = (*(phase.end_s for phase in seen.phases), *(at for at, _, _ in seen.responses[-1:]))
    stretch = 0.0, max(whole(seen)[1], *ends)
    factor = unit(stretch[1])[1]
    rows = [(one.name, one.start_s * factor, one.end_s * factor) for one in seen.phases]
    colours = by_name(alt.Color, "phase", {name: var(one) for name, one in PHASES.items()})
    bands = alt.Chart(data("phase from to", rows), name=f"phases-of-{mark}")
    codes = {f"phases.{shape}": shape for shape in ("solid", "dashed")}
    return (
        alt.layer(
            bands.mark_rect(opacity=FAINT).encode(colours, x2="to:Q"),
            _lines(codes, points, stretch, mark, down),
        )
        .encode(time_axis(stretch, titled=mark == "sockets"))
        .properties(height=150)
    )
