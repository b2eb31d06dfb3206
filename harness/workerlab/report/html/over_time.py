"""Figures of one cell over time, in seconds since the load began: CPU and memory of server, load
tool and host, and the phases of a load on kept-alive connections."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import altair as alt

from workerlab.analysis.phases import changing, phase_finding
from workerlab.numbers.units import FORMATS, format_bytes
from workerlab.report.html.figure import (
    COUNT_AXIS,
    DASHES,
    Figure,
    Key,
    by_name,
    cell_figure,
    data,
    not_none,
    tip,
    unit,
    var,
)
from workerlab.report.html.timeline_data import Moment, Timeline
from workerlab.report.values import text

MEGABYTE = 2.0**20
MIN_TOP_CORES = 0.1  # lowest top of the axis: below it, a line shows the kernel's 10 ms ticks
COMPONENT_DASHES = {"server": "solid", "load tool": "dashed", "host": "dotted"}
BANDS = {"ramp-up": "accept-queue", "drain": "transfer", "steady": "service", "churn": "connect"}
ESTABLISHED = "client ESTABLISHED"
CLOSING = ("_WAIT", "FIN_WAIT1", "FIN_WAIT2", "LAST_ACK", "CLOSING")  # ends of states
LINE_DASHES = {  # of the phases figure, with their dashes
    "median, or ESTABLISHED at the client": "solid",
    "95 %, or closing at either end": "dashed",
}
BAND_OPACITY = 0.16

Period = tuple[float, float]  # from, until, in seconds
TimeSeries = Iterable[tuple[float, float | None]]
Usages = dict[str, Callable[[Moment], float | None]]

CORES: Usages = {"server": lambda m: m.server_cores, "load tool": lambda m: m.generator_cores}
HOST: Usages = {"host": lambda m: m.host_busy}
RSS: Usages = {"server": lambda m: m.server_rss_bytes, "load tool": lambda m: m.generator_rss_bytes}

T = TypeVar("T")


def whole_period(timeline: Timeline) -> Period:
    """From the start of the load to the last observation."""
    last = [sample[0] for samples in (timeline.queue, timeline.states) for sample in samples[-1:]]
    return 0.0, max([timeline.shown[1], *last, *(moment.at_s for moment in timeline.usage[-1:])])


def time_axis(period: Period, *, titled: bool = True) -> Any:
    """`titled`: False if the pane below has the same axis with a title."""
    unit_name, factor = unit(period[1])
    scale = alt.Scale(domain=[period[0] * factor, period[1] * factor], nice=False)
    title = f"{unit_name} since the load began" if titled else None
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
    dashes_of: dict[str, str], lines: Sequence[TimeSeries], period: Period, mark: str, y_axis: alt.Y
) -> Any:
    """Lines of one colour with different dashes. `dashes_of`: names in DASHES by name of the line;
    `mark`: the name of the layer, unique in a figure."""
    unit_name, factor = unit(period[1])
    rows = [
        (label, at_s * factor, value)
        for label, line in zip(dashes_of, lines, strict=True)
        for at_s, value in corners(line)
    ]
    dashes = {label: DASHES[shape] for label, shape in dashes_of.items()}
    chart = alt.Chart(data("line from value", rows), name=mark)
    return chart.mark_line(color=var("ink"), strokeWidth=1.5).encode(
        y_axis,
        strokeDash=by_name(alt.StrokeDash, "line", dashes),
        tooltip=[tip("line", form=""), tip("value", y_axis["title"]), tip("from", unit_name)],
    )


# --- CPU and memory -----------------------------------------------------------------------


def cpu(timeline: Timeline, where: str) -> Figure | None:
    """Cores that server and load tool used; in a second pane, how busy the host was. None if
    neither was observed."""
    cores = _usage_pane(timeline, CORES, "cores", MIN_TOP_CORES)
    host = _usage_pane(timeline, HOST, "% busy", 100.0, mark="host", factor=100.0)
    return _usage_figure(
        "CPU",
        where,
        panes=not_none(cores, host),
        caption="CPU cores used by the server with its workers and by the load tool; below, how"
        " busy all cores of the machine were.",
        peaks={
            **_peaks(timeline, CORES, "{:.2f} cores".format),
            **_peaks(timeline, HOST, lambda busy: f"{FORMATS['percent'](busy)} busy"),
        },
    )


def memory(timeline: Timeline, where: str) -> Figure | None:
    """Resident memory of the server and the load tool."""
    pane = _usage_pane(timeline, RSS, "MB", 1.0, factor=1 / MEGABYTE)
    return _usage_figure(
        "Memory",
        where,
        panes=not_none(pane),
        caption="Resident memory of the server with its workers and of the load tool (1 MB = 1024²"
        " bytes); a page that processes share counts in each of them.",
        peaks=_peaks(timeline, RSS, format_bytes),
    )


def _peaks(timeline: Timeline, uses: Usages, format_peak: Callable[[float], str]) -> dict[str, str]:
    """The peak of each, as text; "missing" without a value."""
    values = {name: not_none(*map(use, timeline.usage)) for name, use in uses.items()}
    peaks = {name: max(of_name, default=None) for name, of_name in values.items()}
    return {name: "missing" if peak is None else format_peak(peak) for name, peak in peaks.items()}


def _usage_figure(
    heading: str, where: str, *, panes: tuple[Any, ...], caption: str, peaks: dict[str, str]
) -> Figure | None:
    """A figure of usage; None without panes."""
    if not panes:
        return None
    listed = "; ".join(f"{name} {peak}" for name, peak in peaks.items())
    return cell_figure(
        heading.lower(),
        heading,
        where,
        panes=panes,
        legend=tuple(Key(name, "ink", COMPONENT_DASHES[name]) for name in peaks),
        caption=(caption,),
        alternative=(f"{heading} of {where}, at most: {listed}.",),
    )


def _usage_pane(
    timeline: Timeline,
    uses: Usages,
    title: str,
    min_top: float,
    mark: str = "usage",
    factor: float = 1.0,
) -> Any:
    """None for fewer than two values. `min_top`: the lowest top of the axis."""
    lines = [
        [(m.at_s, None if (used := use(m)) is None else used * factor) for m in timeline.usage]
        for use in uses.values()
    ]
    values = not_none(*(value for line in lines for _, value in line))
    if len(values) < 2:
        return None
    y_axis = alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, max(min_top, *values)]))
    period = whole_period(timeline)
    dashes_of = {name: COMPONENT_DASHES[name] for name in uses}
    layer = _lines_layer(dashes_of, lines, period, mark, y_axis)
    return layer.encode(time_axis(period)).properties(height=90)


# --- phases -------------------------------------------------------------------------------


def phases(timeline: Timeline, where: str) -> Figure | None:
    """Response times and sockets. None without response times, or with no ramp-up and no drain."""
    if not changing(timeline.phases) or not timeline.responses:
        return None
    unit_name, factor = unit(max(high for _, _, high in timeline.responses))
    title = f"in the app, {unit_name}" if timeline.in_app else f"response time, {unit_name}"
    times = alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0))
    median = [(at_s, p50 * factor) for at_s, p50, _ in timeline.responses]
    p95 = [(at_s, high * factor) for at_s, _, high in timeline.responses]
    established, closing = dict[float, int](), dict[float, int]()
    for at_s, state, count in timeline.states:
        established[at_s] = established.get(at_s, 0) + (count if state == ESTABLISHED else 0)
        closing[at_s] = closing.get(at_s, 0) + (count if state.endswith(CLOSING) else 0)
    counts = alt.Y("value:Q", title="sockets", axis=COUNT_AXIS)
    reasons = [text(phase_finding(phase)) for phase in timeline.phases]
    timed = "Times in the app, by when requests left it" if timeline.in_app else "Response times"
    phase_names = dict.fromkeys(phase.name for phase in timeline.phases)
    return cell_figure(
        "phases",
        "Phases",
        where,
        panes=(
            _phases_pane(timeline, [median, p95], times, "responses"),
            _phases_pane(timeline, [established.items(), closing.items()], counts, "sockets"),
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
    bands = alt.Chart(data("phase from to", rows), name=f"phases-of-{mark}")
    return (
        alt.layer(
            bands.mark_rect(opacity=BAND_OPACITY).encode(colours, x2="to:Q"),
            _lines_layer(LINE_DASHES, lines, period, mark, y_axis),
        )
        .encode(time_axis(period, titled=mark == "sockets"))
        .properties(height=150)
    )
