"""Figures of one cell over time, in seconds since the load began: CPU and memory of server, load
tool and host, and the phases of a load on kept-alive connections."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import altair as alt

from workerlab.analysis.phases import changing, phase_finding
from workerlab.numbers.units import FORMATS, format_bytes
from workerlab.report.html.figure import (
    DASHES,
    WHOLE,
    Figure,
    Key,
    by_name,
    data,
    of_cell,
    some,
    tip,
    unit,
    var,
)
from workerlab.report.html.timeline_data import Moment, Timeline
from workerlab.report.values import text

MEGABYTE = 2.0**20
LEAST_CORES = 0.1  # lowest top of the axis: below it, a line shows the kernel's 10 ms ticks
SHAPES = {"server": "solid", "load tool": "dashed", "host": "dotted"}
PHASES = {"ramp-up": "accept-queue", "drain": "transfer", "steady": "service", "churn": "connect"}
OPEN, CLOSING = "client ESTABLISHED", ("_WAIT", "FIN_WAIT1", "FIN_WAIT2", "LAST_ACK", "CLOSING")
LINES = {  # of the phases figure, with their dashes
    "median, or ESTABLISHED at the client": "solid",
    "95 %, or closing at either end": "dashed",
}
FAINT = 0.16

Stretch = tuple[float, float]  # from, until, in seconds
Points = Iterable[tuple[float, float | None]]
Uses = dict[str, Callable[[Moment], float | None]]

CORES: Uses = {"server": lambda m: m.server_cores, "load tool": lambda m: m.generator_cores}
HOST: Uses = {"host": lambda m: m.host_busy}
RSS: Uses = {"server": lambda m: m.server_rss_bytes, "load tool": lambda m: m.generator_rss_bytes}

T = TypeVar("T")


def whole(timeline: Timeline) -> Stretch:
    """From the start of the load to the last observation."""
    last = [sample[0] for samples in (timeline.queue, timeline.states) for sample in samples[-1:]]
    return 0.0, max([timeline.shown[1], *last, *(moment.at_s for moment in timeline.usage[-1:])])


def time_axis(stretch: Stretch, *, titled: bool = True) -> Any:
    """`titled`: False if the pane below has the same axis with a title."""
    name, factor = unit(stretch[1])
    scale = alt.Scale(domain=[stretch[0] * factor, stretch[1] * factor], nice=False)
    title = f"{name} since the load began" if titled else None
    return alt.X("from:Q", scale=scale, title=title, axis=alt.Axis(tickCount=8))


def corners(points: Iterable[tuple[float, T]]) -> list[tuple[float, T]]:
    """The points at which a line can turn. Leaving out the others does not change the drawing.

    A point equal to both its neighbours is on the line between them, straight or in steps.
    """
    listed = list(points)
    return [
        point
        for i, point in enumerate(listed)
        if i in (0, len(listed) - 1) or not listed[i - 1][1] == point[1] == listed[i + 1][1]
    ]


def _lines(
    names: dict[str, str], points: Sequence[Points], stretch: Stretch, mark: str, down: alt.Y
) -> Any:
    """Lines of one colour with different dashes. `names`: the dashes by name; `mark`: the name of
    the marks, unique in a figure."""
    name, factor = unit(stretch[1])
    rows = [
        (label, at * factor, value)
        for label, line in zip(names, points, strict=True)
        for at, value in corners(line)
    ]
    dashes = {label: DASHES[shape] for label, shape in names.items()}
    lines = alt.Chart(data("line from value", rows), name=mark)
    return lines.mark_line(color=var("ink"), strokeWidth=1.5).encode(
        down,
        strokeDash=by_name(alt.StrokeDash, "line", dashes),
        tooltip=[tip("line", form=""), tip("value", down["title"]), tip("from", name)],
    )


# --- CPU and memory -----------------------------------------------------------------------


def cpu(timeline: Timeline, where: str) -> Figure | None:
    """Cores that server and load tool used; in a second pane, how busy the host was."""
    cores = _usage(timeline, CORES, "cores", LEAST_CORES)
    host = _usage(timeline, HOST, "% busy", 100.0, mark="host", factor=100.0)
    return _used(
        "CPU",
        where,
        panes=some(cores, host),
        caption="CPU seconds per second, of the server with its workers and of the load tool; below"
        " it, how busy all cores of the machine were.",
        most={
            **_most(timeline, CORES, "{:.2f} cores".format),
            **_most(timeline, HOST, lambda busy: f"{FORMATS['percent'](busy)} busy"),
        },
    )


def memory(timeline: Timeline, where: str) -> Figure | None:
    """Resident memory of the server and the load tool."""
    pane = _usage(timeline, RSS, "MB", 1.0, factor=1 / MEGABYTE)
    return _used(
        "Memory",
        where,
        panes=some(pane),
        caption="Resident memory of the server with its workers and of the load tool (1 MB = 1024²"
        " bytes); pages that processes share count in each of them.",
        most=_most(timeline, RSS, format_bytes),
    )


def _most(timeline: Timeline, uses: Uses, written: Callable[[float], str]) -> dict[str, str]:
    """The peak of each, as text."""
    most = {name: max(some(*map(use, timeline.usage)), default=None) for name, use in uses.items()}
    return {name: "missing" if v is None else written(v) for name, v in most.items()}


def _used(
    heading: str, where: str, *, panes: tuple[Any, ...], caption: str, most: dict[str, str]
) -> Figure | None:
    """A figure of usage; None without panes."""
    if not panes:
        return None
    words = "; ".join(f"{name} {used}" for name, used in most.items())
    return of_cell(
        heading.lower(),
        heading,
        where,
        panes=panes,
        legend=tuple(Key(name, "ink", SHAPES[name]) for name in most),
        caption=(caption,),
        alternative=(f"{heading} of {where}, at most: {words}.",),
    )


def _usage(
    timeline: Timeline,
    uses: Uses,
    title: str,
    least: float,
    mark: str = "usage",
    factor: float = 1.0,
) -> Any:
    """None for fewer than two values. `least`: the lowest top of the axis."""
    points = [
        [(m.at_s, None if (used := use(m)) is None else used * factor) for m in timeline.usage]
        for use in uses.values()
    ]
    values = some(*(value for line in points for _, value in line))
    if len(values) < 2:
        return None
    down = alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, max(least, *values)]))
    stretch = whole(timeline)
    lines = _lines({name: SHAPES[name] for name in uses}, points, stretch, mark, down)
    return lines.encode(time_axis(stretch)).properties(height=90)


# --- phases -------------------------------------------------------------------------------


def phases(timeline: Timeline, where: str) -> Figure | None:
    """Response times and sockets. None without response times, or without ramp-up and drain."""
    if not changing(timeline.phases) or not timeline.responses:
        return None
    name, factor = unit(max(high for _, _, high in timeline.responses))
    title = f"in the app, {name}" if timeline.in_app else f"response time, {name}"
    times = alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0))
    median = [(at, p50 * factor) for at, p50, _ in timeline.responses]
    p95 = [(at, high * factor) for at, _, high in timeline.responses]
    established, closing = dict[float, int](), dict[float, int]()
    for at, state, count in timeline.states:
        established[at] = established.get(at, 0) + (count if state == OPEN else 0)
        closing[at] = closing.get(at, 0) + (count if state.endswith(CLOSING) else 0)
    counts = alt.Y("value:Q", title="sockets", axis=WHOLE)
    why = [text(phase_finding(phase)) for phase in timeline.phases]
    timed = "Times inside the app, as requests left it" if timeline.in_app else "Response times"
    names = dict.fromkeys(phase.name for phase in timeline.phases)
    return of_cell(
        "phases",
        "Phases",
        where,
        panes=(
            _phases(timeline, [median, p95], times, "responses"),
            _phases(timeline, [established.items(), closing.items()], counts, "sockets"),
        ),
        legend=(
            *(Key(name, PHASES[name]) for name in names),
            *(Key(label, "ink", shape) for label, shape in LINES.items()),
        ),
        caption=(f"{timed}, and the load's sockets below. They define the phases.", *why),
        alternative=(f"Phases of {where}.", *why),
    )


def _phases(timeline: Timeline, points: Sequence[Points], down: alt.Y, mark: str) -> Any:
    """A solid and a dashed line in front of bands for the phases."""
    ends = (
        *(phase.end_s for phase in timeline.phases),
        *(at for at, _, _ in timeline.responses[-1:]),
    )
    stretch = 0.0, max(whole(timeline)[1], *ends)
    factor = unit(stretch[1])[1]
    rows = [(phase.name, phase.start_s * factor, phase.end_s * factor) for phase in timeline.phases]
    colours = by_name(alt.Color, "phase", {name: var(colour) for name, colour in PHASES.items()})
    bands = alt.Chart(data("phase from to", rows), name=f"phases-of-{mark}")
    return (
        alt.layer(
            bands.mark_rect(opacity=FAINT).encode(colours, x2="to:Q"),
            _lines(LINES, points, stretch, mark, down),
        )
        .encode(time_axis(stretch, titled=mark == "sockets"))
        .properties(height=150)
    )
