"""Figures of one cell over time, in seconds since the load began: accept queue, TCP states and slow
handshakes; CPU and memory of server, load tool and host; and the phases of a load on kept-alive
connections."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import altair as alt
from msgspec import Struct

from workerlab.analysis.phases import CLOSING, has_ramp_or_drain, phase_finding
from workerlab.numbers.units import FORMATS, counted, format_bytes
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
from workerlab.report.values import PARTS

MEGABYTE = 2.0**20
BANDS = {"ramp-up": "accept-queue", "drain": "transfer", "steady": "service", "churn": "connect"}
ESTABLISHED = ("client ESTABLISHED",)
LINE_DASHES = {  # dashes of the lines in the figure of the phases
    "median, or ESTABLISHED at the client": "solid",
    "95 %, or closing at either end": "dashed",
}
BAND_OPACITY = 0.16
MAX_LIMIT_RATIO = 4  # the limit is drawn if it is at most this many times the longest queue
ROW_HEIGHT = 34  # pixels per state
SLOW_CONNECT_S = 0.5  # loopback connects are always faster; no kernel retransmits a SYN sooner
SYN_NOTE = (
    "Dashed: the times when this kernel retransmits an unanswered SYN. A connection at one of these"
    " lines had its SYN dropped, because the accept queue was full, and retransmitted."
)

Period = tuple[float, float]  # from, until, in seconds
TimeSeries = Iterable[tuple[float, float | None]]

T = TypeVar("T")


class UsagePane(Struct, frozen=True):
    """A pane of CPU or memory usage. `fields`: the field of a Moment for each line; `peak`: formats
    a value; `factor`: converts it to the unit of the axis; `min_top`: lowest upper end of the
    axis."""

    mark: str
    title: str
    fields: Mapping[str, str]
    peak: Callable[[float], str]
    factor: float = 1.0
    min_top: float = 1.0


COMPONENT_DASHES = {"server": "solid", "load tool": "dashed", "host": "dotted"}


def whole_period(timeline: Timeline) -> Period:
    """The period from the start of the load to the last observation."""
    last = [sample[0] for samples in (timeline.queue, timeline.states) for sample in samples[-1:]]
    return 0.0, max([timeline.shown[1], *last, *(moment.at_s for moment in timeline.usage[-1:])])


def time_axis(period: Period, *, titled: bool = True) -> Any:
    """The time axis. `titled`: False if the pane below has the same axis with a title."""
    unit_name, factor = unit(period[1])
    title = f"{unit_name} since the load began" if titled else None
    scale = span(period[0] * factor, period[1] * factor)
    return alt.X("from:Q", scale=scale, title=title, axis=alt.Axis(tickCount=8))


def corners(points: Iterable[tuple[float, T]]) -> list[tuple[float, T]]:
    """The points where a line can turn. Omitting the others does not change the drawing: a point
    equal to both its neighbours is on the line between them, whether straight or in steps."""
    path = list(points)
    return [
        point
        for index, point in enumerate(path)
        if index in (0, len(path) - 1) or not path[index - 1][1] == point[1] == path[index + 1][1]
    ]


def _lines_layer(
    lines: Mapping[str, TimeSeries], dashes: Mapping[str, str], period: Period, mark: str, y: alt.Y
) -> Any:
    """Lines of one colour, by name. `dashes`: keys of DASHES; `mark`: the layer's name, unique in a
    figure."""
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


# --- accept queue -------------------------------------------------------------------------


def queue(timeline: Timeline, where: str) -> Figure | None:
    """The length of the accept queue over time. None if it was always empty or not observed, or if
    the timeline shows it completely."""
    from_s, until_s = timeline.shown
    outside = any(length for at_s, length in timeline.queue if not from_s <= at_s <= until_s)
    needs_own_figure = has_queue(timeline) and not queue_in_timeline(timeline)
    if len(timeline.queue) < 2 or not (outside or needs_own_figure):
        return None
    longest, draws_limit = _longest_and_draws_limit(timeline)
    note = ""
    if timeline.queue_limit is not None:
        note = f" The limit is {timeline.queue_limit}; the kernel admits one more."
    return cell_figure(
        "queue",
        "Accept queue",
        where,
        panes=(queue_pane(timeline, whole_period(timeline)),),
        legend=not_none(
            Key(PARTS["accept_queue"], "accept-queue"),
            Key("limit", "connect", "solid") if draws_limit else None,
        ),
        caption=(f"Connections that no worker has accepted yet.{note}",),
        alternative=(f"Accept queue of {where}: at most {counted(longest, 'connection')}.{note}",),
    )


def has_queue(timeline: Timeline) -> bool:
    """Whether the accept queue was ever non-empty in the period that the timeline shows."""
    from_s, until_s = timeline.shown
    return any(length for at_s, length in timeline.queue if from_s <= at_s <= until_s)


def queue_in_timeline(timeline: Timeline) -> bool:
    """Whether the timeline draws the queue, because the wait of each request is unknown."""
    return has_queue(timeline) and not any(bar.arrived_s is not None for bar in timeline.bars)


def _longest_and_draws_limit(timeline: Timeline) -> tuple[int, bool]:
    """The longest observed queue, and whether its limit is close enough to be drawn."""
    longest = max(length for _, length in timeline.queue)
    limit = timeline.queue_limit
    return longest, limit is not None and limit <= MAX_LIMIT_RATIO * max(1, longest)


def queue_pane(timeline: Timeline, period: Period) -> Any:
    """The length of the accept queue in steps, and its limit if that is close."""
    unit_name, factor = unit(period[1])
    (longest, draws_limit), limit = _longest_and_draws_limit(timeline), timeline.queue_limit or 0
    points = [
        (at_s * factor, length) for at_s, length in timeline.queue if period[0] <= at_s <= period[1]
    ]
    area = layer("queue", "from length", corners(points))
    scale = span(0, max(longest, limit + 1) if draws_limit else max(1, longest))
    area = area.mark_area(interpolate="step-after", color=var("accept-queue"), clip=True).encode(
        time_axis(period),
        y=alt.Y("length:Q", title=PARTS["accept_queue"], axis=COUNT_AXIS, scale=scale),
        tooltip=tips(("from", unit_name), ("length:d", "waiting")),
    )
    rule = layer("limit", "limit", [(limit,)] if draws_limit else [])
    rule = rule.mark_rule(color=var("connect"), strokeWidth=2).encode(alt.Y("limit:Q"))
    return alt.layer(area, rule).properties(height=90)


# --- TCP states ---------------------------------------------------------------------------


def states(timeline: Timeline, where: str) -> Figure | None:
    """A row per side and TCP state, all on one scale. None without sockets or a second sample."""
    peaks = dict[str, int]()
    for _, state, count in timeline.states:
        peaks[state] = max(peaks.get(state, 0), count)
    peaks = {state: count for state, count in peaks.items() if count}
    if not peaks or len({at_s for at_s, *_ in timeline.states}) < 2:
        return None
    counts = ", ".join(f"{state} {count}" for state, count in peaks.items())
    return cell_figure(
        "states",
        "TCP states",
        where,
        panes=(_state_rows(timeline, peaks),),
        legend=(Key("sockets", "sockets"),),
        caption=("Sockets by side and state, on one scale; each number is the peak of its row.",),
        alternative=(f"Highest number of sockets in each TCP state, {where}: {counts}.",),
    )


def _state_rows(timeline: Timeline, peaks: dict[str, int]) -> Any:
    factor = unit(whole_period(timeline)[1])[1]
    rows = [
        (row, at_s * factor, count)
        for row, state in enumerate(peaks)
        for at_s, count in corners(
            [(at_s, count) for at_s, name, count in timeline.states if name == state]
        )
    ]
    top = alt.Y("top:Q", scale=span(len(peaks), 0), axis=None)
    areas = (
        layer("states", "row from sockets", rows)
        .transform_calculate(
            base="datum.row + 1",
            top=f"datum.row + 1 - 0.55 * datum.sockets / {max(peaks.values())}",
            state=f"{json.dumps(list(peaks))}[datum.row]",
        )
        .mark_area(interpolate="step-after", color=var("sockets"))
        .encode(
            time_axis(whole_period(timeline)),
            y=top,
            y2=alt.Y2("base:Q"),
            detail=alt.Detail("row:N"),
            tooltip=tips("state:N", "sockets:d"),
        )
    )
    places = [(f"{state}: {peak}", row + 0.22) for row, (state, peak) in enumerate(peaks.items())]
    labels = (
        layer("", "label top", places)
        .mark_text(align="left", baseline="middle", color=var("soft"))
        .encode(x=alt.XValue(2), y=top, text=alt.Text("label:N"))  # type: ignore[no-untyped-call]
    )
    return alt.layer(areas, labels).properties(height=ROW_HEIGHT * len(peaks))


# --- time to connect ----------------------------------------------------------------------


def connects(timeline: Timeline, where: str) -> Figure | None:
    """A histogram of connect times, with the times when the kernel retransmits a dropped SYN. None
    if no connection was slow, or if the times are unknown."""
    slow = sum(count for from_s, _, count in timeline.connects if from_s >= SLOW_CONNECT_S)
    if not slow:
        return None
    fast = sum(count for _, _, count in timeline.connects) - slow
    longest_s = max(until_s for _, until_s, _ in timeline.connects)
    steps_s = [step_s for step_s in timeline.syn_steps_s if step_s <= longest_s]
    return cell_figure(
        "connects",
        "Time to connect",
        where,
        panes=(_connect_bars(timeline, steps_s, longest_s),),
        legend=not_none(
            Key("connections", "connect"),
            Key("the kernel retransmits a dropped SYN", "soft", "dashed") if steps_s else None,
        ),
        caption=not_none(
            "All connections of the load, by time to connect.", SYN_NOTE if steps_s else None
        ),
        alternative=(f"Time to connect, {where}: {fast} under {SLOW_CONNECT_S} s, {slow} longer.",),
        header=("Time to connect", "connections"),
        rows=tuple(
            (f"{from_s:g} to {to_s:g} s", str(count)) for from_s, to_s, count in timeline.connects
        ),
    )


def _connect_bars(timeline: Timeline, steps_s: list[float], longest_s: float) -> Any:
    # Only bars without a taller neighbour get a number: adjacent numbers would overlap
    peaks = [
        (from_s, until_s, count)
        for from_s, until_s, count in timeline.connects
        if all(count >= n for a, b, n in timeline.connects if a == until_s or b == from_s)
    ]
    top = max(count for _, _, count in timeline.connects)
    y_axis = alt.Y("connections:Q", title="connections", axis=COUNT_AXIS, scale=span(0, 1.12 * top))
    x_axis = alt.X(
        "from:Q", title="time to connect, s", scale=span(0, longest_s), axis=alt.Axis(tickCount=8)
    )
    rules = layer("steps", "from", [(step_s,) for step_s in steps_s])
    bars, counts = (
        layer(name, "from until connections", rows)
        for name, rows in {"connects": timeline.connects, "counts": peaks}.items()
    )
    tooltip = tips(("from", "from, s"), ("until", "until, s"), "connections:d")
    return (
        alt.layer(
            rules.mark_rule(color=var("soft"), strokeDash=[6, 4]),
            bars.mark_rect(color=var("connect")).encode(
                x2=alt.X2("until:Q"), y=y_axis, y2=alt.Y2Datum(0), tooltip=tooltip
            ),
            counts.mark_text(align="left", baseline="bottom", dx=4, dy=-2).encode(
                y=y_axis, text=alt.Text("connections:Q")
            ),
        )
        .encode(x_axis)
        .properties(height=200)
    )  # fmt: skip


# --- CPU and memory -----------------------------------------------------------------------


USAGE_FIGURES = {
    "CPU": (
        (
            UsagePane(
                "usage",
                "cores",
                {"server": "server_cores", "load tool": "generator_cores"},
                "{:.2f} cores".format,
                min_top=0.1,  # below it, a line would show the kernel's 10 ms ticks
            ),
            UsagePane(
                "host",
                "% busy",
                {"host": "host_busy"},
                lambda busy: f"{FORMATS['percent'](busy)} busy",
                factor=100.0,
                min_top=100.0,
            ),
        ),
        "CPU cores used by the server with its workers and by the load tool; below, how busy all"
        " cores of the machine were.",
    ),
    "Memory": (
        (
            UsagePane(
                "usage",
                "MB",
                {"server": "server_rss_bytes", "load tool": "generator_rss_bytes"},
                format_bytes,
                factor=1 / MEGABYTE,
            ),
        ),
        "Resident memory of the server with its workers and of the load tool (1 MB = 1024² bytes);"
        " a page that several processes share counts once for each.",
    ),
}  # panes and caption, by heading


def usage(timeline: Timeline, where: str, *, heading: str) -> Figure | None:
    """The figure with this heading. None if every pane has fewer than two values."""
    panes, caption = USAGE_FIGURES[heading]
    drawn_panes = not_none(*(_usage_pane(timeline, pane) for pane in panes))
    if not drawn_panes:
        return None
    peaks = {
        name: pane.peak(max(values)) if values else "missing"
        for pane in panes
        for name, field in pane.fields.items()
        for values in [not_none(*map(attrgetter(field), timeline.usage))]
    }
    peak_texts = "; ".join(f"{name} {peak}" for name, peak in peaks.items())
    return cell_figure(
        heading.lower(),
        heading,
        where,
        panes=drawn_panes,
        legend=tuple(Key(name, "ink", COMPONENT_DASHES[name]) for name in peaks),
        caption=(caption,),
        alternative=(f"{heading} of {where}, at most: {peak_texts}.",),
    )


def _usage_pane(timeline: Timeline, pane: UsagePane) -> Any:
    """The lines of one pane. None for fewer than two values."""
    lines = {
        name: [
            (moment.at_s, None if (raw := getattr(moment, field)) is None else raw * pane.factor)
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
    lines_layer = _lines_layer(lines, COMPONENT_DASHES, period, pane.mark, y_axis)
    return lines_layer.encode(time_axis(period)).properties(height=90)


# --- phases -------------------------------------------------------------------------------


def phases(timeline: Timeline, where: str) -> Figure | None:
    """Response times and sockets. None if the former, or both ramp-up and drain, are missing."""
    if not has_ramp_or_drain(timeline.phases) or not timeline.responses:
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
    subject = "Times in the app, as requests left it" if timeline.in_app else "Response times"
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
        caption=(f"{subject}, and the load's sockets below. They determine the phases.", *reasons),
        alternative=(f"Phases of {where}.", *reasons),
    )


def _phases_pane(timeline: Timeline, lines: Sequence[TimeSeries], y_axis: alt.Y, mark: str) -> Any:
    """A solid and a dashed line, in front of bands for the phases."""
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
            bands.mark_rect(opacity=BAND_OPACITY).encode(colours, x2=alt.X2("to:Q")),
            _lines_layer(
                dict(zip(LINE_DASHES, lines, strict=True)), LINE_DASHES, period, mark, y_axis
            ),
        )
        .encode(time_axis(period, titled=mark == "sockets"))
        .properties(height=150)
    )
