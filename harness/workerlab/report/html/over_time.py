"""Figures of one cell over time, in seconds since the load began: CPU and memory of server, load
tool and host, and the phases of a load on kept-alive connections."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import altair as alt
from msgspec import Struct

from workerlab.analysis.phases import CLOSING, changing, phase_finding
from workerlab.numbers.units import FORMATS, format_bytes
from workerlab.report.html.figure import (
    COUNT_AXIS,
    DASHES,
    Figure,
    Key,
    by_name,
    cell_figure,
    layer,
    not_none,
    span,
    tips,
    unit,
    var,
)
from workerlab.report.html.timeline_data import Timeline

MEGABYTE = 2.0**20
BANDS = {"ramp-up": "accept-queue", "drain": "transfer", "steady": "service", "churn": "connect"}
ESTABLISHED = ("client ESTABLISHED",)
LINE_DASHES = {  # of the phases figure, with their dashes
    "median, or ESTABLISHED at the client": "solid",
    "95 %, or closing at either end": "dashed",
}
BAND_OPACITY = 0.16

Period = tuple[float, float]  # from, until, in seconds
TimeSeries = Iterable[tuple[float, float | None]]

T = TypeVar("T")


class UsagePane(Struct, frozen=True):
    """A pane of usage. `fields`: of a Moment, by name of the line; `peak`: formats a value;
    `factor`: to the unit of the axis; `min_top`: its lowest top."""

    mark: str
    title: str
    fields: Mapping[str, str]
    peak: Callable[[float], str]
    factor: float = 1.0
    min_top: float = 1.0


CPU_PANES = (
    UsagePane(
        "usage",
        "cores",
        {"server": "server_cores", "load tool": "generator_cores"},
        "{:.2f} cores".format,
        min_top=0.1,  # below it, a line shows the kernel's 10 ms ticks
    ),
    UsagePane(
        "host",
        "% busy",
        {"host": "host_busy"},
        lambda busy: f"{FORMATS['percent'](busy)} busy",
        factor=100.0,
        min_top=100.0,
    ),
)
MEMORY_PANE = UsagePane(
    "usage",
    "MB",
    {"server": "server_rss_bytes", "load tool": "generator_rss_bytes"},
    format_bytes,
    factor=1 / MEGABYTE,
)
COMPONENT_DASHES = {"server": "solid", "load tool": "dashed", "host": "dotted"}


def whole_period(timeline: Timeline) -> Period:
    """From the start of the load to the last observation."""
    last = [sample[0] for samples in (timeline.queue, timeline.states) for sample in samples[-1:]]
    return 0.0, max([timeline.shown[1], *last, *(moment.at_s for moment in timeline.usage[-1:])])


def time_axis(period: Period, *, titled: bool = True) -> Any:
    """`titled`: False if the pane below has the same axis with a title."""
    unit_name, factor = unit(period[1])
    title = f"{unit_name} since the load began" if titled else None
    scale = span(period[0] * factor, period[1] * factor)
    return alt.X("from:Q", scale=scale, title=title, axis=alt.Axis(tickCount=8))


def corners(points: Iterable[tuple[float, T]]) -> list[tuple[float, T]]:
    """The points at which a line can turn. Leaving out the others does not change the drawing.

    A point equal to both its neighbours is on the line between them, straight or in steps.
    """
    path = list(points)
    return [
        point
        for index, point in enumerate(path)
        if index in (0, len(path) - 1) or not path[index - 1][1] == point[1] == path[index + 1][1]
    ]


def _lines_layer(
    lines: Mapping[str, TimeSeries], dashes: Mapping[str, str], period: Period, mark: str, y: alt.Y
) -> Any:
    """Lines of one colour, by name. `dashes`: names in DASHES; `mark`: the name of the layer,
    unique in a figure."""
    unit_name, factor = unit(period[1])
    rows = [
        (name, at_s * factor, value)
        for name, line in lines.items()
        for at_s, value in corners(line)
    ]
    chart = layer(mark, "line from value", rows).mark_line(color=var("ink"), strokeWidth=1.5)
    return chart.encode(
        y,
        strokeDash=by_name(alt.StrokeDash, "line", {name: DASHES[dashes[name]] for name in lines}),
        tooltip=tips("line:N", ("value", y["title"]), ("from", unit_name)),
    )


# --- CPU and memory -----------------------------------------------------------------------


def cpu(timeline: Timeline, where: str) -> Figure | None:
    """Cores that server and load tool used; in a second pane, how busy the host was."""
    caption = (
        "CPU cores used by the server with its workers and by the load tool; below, how busy all"
        " cores of the machine were."
    )
    return _usage_figure("CPU", where, timeline, CPU_PANES, caption)


def memory(timeline: Timeline, where: str) -> Figure | None:
    """Resident memory of the server and the load tool."""
    caption = (
        "Resident memory of the server with its workers and of the load tool (1 MB = 1024² bytes);"
        " a page that processes share counts in each of them."
    )
    return _usage_figure("Memory", where, timeline, (MEMORY_PANE,), caption)


def _usage_figure(
    heading: str, where: str, timeline: Timeline, panes: Sequence[UsagePane], caption: str
) -> Figure | None:
    """None if no pane has two values."""
    drawn = not_none(*(_usage_pane(timeline, pane) for pane in panes))
    if not drawn:
        return None
    peaks = {
        name: pane.peak(max(values)) if values else "missing"
        for pane in panes
        for name, field in pane.fields.items()
        for values in [not_none(*map(attrgetter(field), timeline.usage))]
    }
    listed = "; ".join(f"{name} {peak}" for name, peak in peaks.items())
    return cell_figure(
        heading.lower(),
        heading,
        where,
        panes=drawn,
        legend=tuple(Key(name, "ink", COMPONENT_DASHES[name]) for name in peaks),
        caption=(caption,),
        alternative=(f"{heading} of {where}, at most: {listed}.",),
    )


def _usage_pane(timeline: Timeline, pane: UsagePane) -> Any:
    """None for fewer than two values."""
    lines = {
        name: [
            (moment.at_s, None if (used := getattr(moment, field)) is None else used * pane.factor)
            for moment in timeline.usage
        ]
        for name, field in pane.fields.items()
    }
    values = not_none(*(value for line in lines.values() for _, value in line))
    if len(values) < 2:
        return None
    scale = alt.Scale(domain=[0, max(pane.min_top, *values)])
    y_axis = alt.Y("value:Q", title=pane.title, scale=scale)
    period = whole_period(timeline)
    drawn = _lines_layer(lines, COMPONENT_DASHES, period, pane.mark, y_axis)
    return drawn.encode(time_axis(period)).properties(height=90)


# --- phases -------------------------------------------------------------------------------


def phases(timeline: Timeline, where: str) -> Figure | None:
    """Response times and sockets. None without response times, or with no ramp-up and no drain."""
    if not changing(timeline.phases) or not timeline.responses:
        return None
    unit_name, factor = unit(max(high for _, _, high in timeline.responses))
    title = f"in the app, {unit_name}" if timeline.in_app else f"response time, {unit_name}"
    times = alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0))
    responses = [
        [(at_s, percentiles[index] * factor) for at_s, *percentiles in timeline.responses]
        for index in range(2)
    ]
    sockets = [dict[float, int](), dict[float, int]()]
    for at_s, state, count in timeline.states:
        for totals, states in zip(sockets, (ESTABLISHED, CLOSING), strict=True):
            totals[at_s] = totals.get(at_s, 0) + count * state.endswith(states)
    counts = alt.Y("value:Q", title="sockets", axis=COUNT_AXIS)
    reasons = [str(phase_finding(phase)) for phase in timeline.phases]
    timed = "Times in the app, by when requests left it" if timeline.in_app else "Response times"
    phase_names = dict.fromkeys(phase.name for phase in timeline.phases)
    return cell_figure(
        "phases",
        "Phases",
        where,
        panes=(
            _phases_pane(timeline, responses, times, "responses"),
            _phases_pane(timeline, [totals.items() for totals in sockets], counts, "sockets"),
        ),
        legend=(
            *(Key(name, BANDS[name]) for name in phase_names),
            *(Key(label, "ink", shape) for label, shape in LINE_DASHES.items()),
        ),
        caption=(f"{timed}, and the load's sockets below. They define the phases.", *reasons),
        alternative=(f"Phases of {where}.", *reasons),
    )


def _phases_pane(timeline: Timeline, lines: Sequence[TimeSeries], y_axis: alt.Y, mark: str) -> Any:
    """A solid and a dashed line in front of bands for the phases."""
    ends_s = (
        *(phase.end_s for phase in timeline.phases),
        *(at_s for at_s, _, _ in timeline.responses[-1:]),
    )
    period = 0.0, max(whole_period(timeline)[1], *ends_s)
    factor = unit(period[1])[1]
    rows = [(phase.name, phase.start_s * factor, phase.end_s * factor) for phase in timeline.phases]
    colours = by_name(alt.Color, "phase", {name: var(c) for name, c in BANDS.items()})
    bands = layer(f"phases-of-{mark}", "phase from to", rows)
    return (
        alt.layer(
            bands.mark_rect(opacity=BAND_OPACITY).encode(colours, x2="to:Q"),
            _lines_layer(
                dict(zip(LINE_DASHES, lines, strict=True)), LINE_DASHES, period, mark, y_axis
            ),
        )
        .encode(time_axis(period, titled=mark == "sockets"))
        .properties(height=150)
    )
