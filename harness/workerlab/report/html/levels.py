"""Figures of the levels of a series: bars for the parts of the response time and for the throughput
that kept-alive connections allow; response time against throughput, in the closed loop and at a
rate; and throughput against concurrency, of all series."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import altair as alt
from msgspec.structs import replace

from workerlab.analysis.diagnosis.slots import part_of_load
from workerlab.analysis.open_closed import models_note
from workerlab.analysis.overview import LevelTrials
from workerlab.analysis.trials import conclusive
from workerlab.model.result import Chart, ChartSeries, Look, Mark, Result
from workerlab.numbers.units import MISSING, amount, counted, fill, format_duration, listed
from workerlab.report.html.chart_figures import VerticalBars, chart_figure
from workerlab.report.html.figure import (
    MAX_HEIGHT_RATIO,
    OWN_AXIS_NOTE,
    POINT_STYLE,
    Figure,
    Key,
    Looks,
    colour_of,
    layer,
    look_of,
    not_none,
    shape_of,
    span,
    split_figures,
    tips,
    unit,
)
from workerlab.report.html.series import SweepSeries
from workerlab.report.values import PART_LOOKS, PARTS, figure_of, finite, load_of

MODEL_FIGURES = ("throughput_rps", "response.p50", "response.p95")
MODEL_LOOKS = {"closed": ("sockets", "circle"), "open": ("measured", "diamond")}


class ModelPoint(NamedTuple):
    """A cell whose MODEL_FIGURES are all known."""

    cell: Result
    rate_rps: float
    p50_s: float
    p95_s: float


def open_and_closed(series: SweepSeries) -> Figure | None:
    """A line per cell, from p50 to p95. None for one cell, or without a conclusive one at a
    rate."""
    points = {"closed": _points(series.valid), "open": _points(filter(conclusive, series.open))}
    all_points = [*points["closed"], *points["open"]]
    if not points["open"] or len(all_points) < 2:
        return None
    figure = chart_figure(_models_chart(series.name, points), f"loops-{series.slug}")
    texts = [
        (load_of(cell), amount(rate_rps), *map(format_duration, times_s), cell.verdict)
        for cell, rate_rps, *times_s in all_points
    ]
    return figure and replace(
        figure,
        heading=series.name,
        alternative=(
            f"Response times of {series.name}.",
            *(
                f"{load}: {rate} requests/s, half within {p50}, 95 % within {p95}."
                for load, rate, p50, p95, _ in texts
            ),
        ),
        header=("load", "requests/s", "median", "95 %", "verdict"),
        rows=tuple(texts),
        links=(),
    )


def _points(cells: Iterable[Result]) -> list[ModelPoint]:
    """The points of the cells that have all MODEL_FIGURES."""
    figures = ((cell, not_none(*map(finite, attrgetter(*MODEL_FIGURES)(cell)))) for cell in cells)
    return [
        ModelPoint(cell, *values) for cell, values in figures if len(values) == len(MODEL_FIGURES)
    ]


def _models_chart(name: str, points: Mapping[str, Sequence[ModelPoint]]) -> Chart:
    all_points = [*points["closed"], *points["open"]]
    unit_name, factor = unit(max(p95_s for *_, p95_s in all_points))
    note = models_note([cell for cell, *_ in points["open"]], [cell for cell, *_ in all_points])
    return Chart(
        title=f"Closed loop and open model, {name}",
        x_title="requests/s",
        y_title=f"response time, {unit_name}",
        series=tuple(
            ChartSeries(
                name=f"{loop}: median to 95 %",
                points=tuple((rate_rps, p95_s * factor) for _, rate_rps, _, p95_s in loop_points),
                marks=tuple(
                    Mark(f"{load_of(cell)}: {cell.verdict}", p50_s * factor, p95_s * factor)
                    for cell, _, p50_s, p95_s in loop_points
                ),
                look=MODEL_LOOKS[loop],
            )
            for loop, loop_points in points.items()
        ),
        form="scatter",
        note=f"Each line reaches from the median to the 95th percentile of response times. {note}",
    )


MIN_VISIBLE_SHARE = 0.005  # of the axis: a smaller part is thinner than a line
RATE_LOOKS = {  # label and colour of each field
    "bound_rps": ("bound", "bound"),
    "split_prediction_rps": ("prediction by worker", "prediction"),
    "throughput_rps": ("measured", "measured"),
}

Parts = dict[str, float | None]  # seconds by part; "response" is the total


def _bar_series(
    name: str, look: Look, values: Iterable[float | None], factor: float = 1.0
) -> ChartSeries:
    points = ((index, value * factor) for index, value in enumerate(values) if value is not None)
    return ChartSeries(name, tuple(points), look=look)


# --- where the time went ------------------------------------------------------------------


def shared_top_s(all_series: Iterable[SweepSeries]) -> float | None:
    """The height of the highest bar of the run, for a common axis, which makes series comparable.
    None if all bars of a series would be slivers on it: each series then has its own axis."""
    tops_s = [top_s for series in all_series if (top_s := _highest_s(series)) > 0]
    return max(tops_s) if tops_s and max(tops_s) <= MAX_HEIGHT_RATIO * min(tops_s) else None


def _highest_s(series: SweepSeries) -> float:
    heights_s = (
        max(sum(max(0.0, parts[part] or 0.0) for part in PARTS), parts["response"] or 0.0)
        for parts in map(_parts, series.levels.values())
    )
    return max(heights_s, default=0.0)


def _parts(level: LevelTrials) -> Parts:
    return {part: level.mean_of_all(f"breakdown.{part}_s") for part in ("response", *PARTS)}


def breakdown(series: SweepSeries, common_top_s: float | None) -> Figure | None:
    """The parts of the mean response time, a bar per level; None without a level to show.
    `common_top_s`: the top of the common axis; None: the figure has its own axis."""
    top_s = _highest_s(series) if common_top_s is None else common_top_s
    all_levels = ((connections, _parts(level)) for connections, level in series.levels.items())
    timed_levels = {at: parts for at, parts in all_levels if parts["response"] is not None}
    levels = {at: parts for at, parts in timed_levels.items() if parts["unattributed"] is not None}
    unit_name, factor = unit(top_s)
    chart = Chart(
        title=f"{series.name}: where the time went",
        x_title="connections",
        y_title=f"mean response time, {unit_name}",
        series=tuple(
            _bar_series(name, PART_LOOKS[part], (parts[part] for parts in levels.values()), factor)
            for part, name in PARTS.items()
        ),
        form="stacked",
        names=tuple(map(str, levels)),
    )
    labels = [format_duration(parts["response"]) for parts in levels.values()]
    bars = VerticalBars(top_s * factor * 1.08, labels)
    figure = chart_figure(chart, f"waiting-{series.slug}", vertical=bars)
    if figure is None:
        return None
    with_text = _with_text(figure, series, levels, top_s)
    omitted = [str(at) for at in timed_levels if at not in levels]
    notes = not_none(
        f"Omitted at {listed(omitted)} connections: the parts exceed the response time."
        if omitted
        else None,
        OWN_AXIS_NOTE if common_top_s is None else None,
    )
    return replace(with_text, caption=(*with_text.caption, *notes))


def _with_text(
    figure: Figure, series: SweepSeries, levels: Mapping[int, Parts], top_s: float
) -> Figure:
    # The longest value of each part; None for a part without a source
    times_s = {part: not_none(*(parts[part] for parts in levels.values())) for part in PARTS}
    longest_s = {part: max(map(abs, values), default=None) for part, values in times_s.items()}
    unmeasured = [part for part, part_s in longest_s.items() if part_s is None]
    too_short = {
        part: part_s
        for part, part_s in longest_s.items()
        if part_s is not None and part_s < MIN_VISIBLE_SHARE * top_s
    }
    visible = [name for part, name in PARTS.items() if part not in (*unmeasured, *too_short)]
    exact = all(cell.breakdown.exact for cell in series.valid)
    exact_note = "Every request was traced by its id."
    estimate_note = "Each part is estimated from its own source."
    at_most = format_duration(max(too_short.values(), default=0.0))
    return replace(
        figure,
        heading=series.name,
        caption=not_none(
            f"Mean of {part_of_load(series.valid)}. {exact_note if exact else estimate_note}",
            f"Too short to be visible (at most {at_most}): {_part_list(too_short)}."
            if too_short
            else None,
            f"No source: {_part_list(unmeasured)}." if unmeasured else None,
        ),
        alternative=(
            f"Parts of the mean response time of {series.name}.",
            *(_level_sentence(connections, parts) for connections, parts in levels.items()),
        ),
        legend=tuple(key for key in figure.legend if key.label in visible),
        header=("connections", "response", *PARTS.values()),
        rows=tuple(
            (str(connections), *map(format_duration, parts.values()))
            for connections, parts in levels.items()
        ),
    )


def _part_list(parts: Iterable[str]) -> str:
    return listed([PARTS[part] for part in parts])


def _level_sentence(connections: int, parts: Parts) -> str:
    spent = ", ".join(
        f"{name} {format_duration(parts[part])}"
        for part, name in PARTS.items()
        if parts[part] is not None
    )
    return f"At {counted(connections, 'connection')} {format_duration(parts['response'])}: {spent}."


# --- kept-alive connections ---------------------------------------------------------------


def keepalive(series: SweepSeries) -> Figure | None:
    """For each level, the bound, the prediction by worker and the throughput. None without
    keep-alive."""
    if not series.result.keepalive:
        return None
    chart = Chart(
        title=f"{series.name}: what kept-alive connections allow",
        x_title="connections",
        y_title="requests/s",
        series=tuple(
            _bar_series(
                name,
                (colour, "circle"),
                (level.mean_of_all(rps) for level in series.levels.values()),
            )
            for rps, (name, colour) in RATE_LOOKS.items()
        ),
        note="A kept-alive connection stays with its worker. The bound assumes that any slot can"
        " serve it; the prediction by worker does not.",
        form="bars",
        names=tuple(map(str, series.levels)),
    )
    figure = chart_figure(chart, f"keepalive-{series.slug}", vertical=VerticalBars())
    return figure and replace(figure, heading=series.name)


# --- throughput against concurrency -------------------------------------------------------

MAX_BOUND_RATIO = 3.0  # to the highest throughput: a higher bound is cut off
MIN_LOG_AXIS_RATIO = 16  # of the highest to the lowest level, for a logarithmic axis
MIN_DISTANCE_SHARE = 0.03  # of the axis: closer points would hide each other
OFFSET_SHARE = 0.008  # of the axis, between points drawn side by side
LINE_COLUMNS = "class connections rate"  # columns of lines, bounds and knees
TRIAL_COLUMNS = "class connections shifted rate low high bound trial verdict"  # points, intervals
HEADER = ("class", "connections", "requests/s", "± req/s", "bound", "verdict")
SHOWN_RATES = ("throughput_rps", "throughput_half_rps", "bound_rps")
CAPTION = (
    "Requests per second in {part}. Dashed: the bound set by connections and slots[[, which"
    " continues above the chart, up to {highest_bound_rps:number}]]."
)

Offsets = dict[tuple[str, int], int]  # steps to the right of the level, by (name, connections)


def throughput(all_series: Iterable[SweepSeries]) -> list[Figure]:
    """Requests/s against connections: a line and a shape per series, a point per trial. There are
    several figures for many series, or if the throughput of some is ten times that of others."""
    charted = [series for series in all_series if _mean_rates(series)]
    if sum(len(series.valid) for series in charted) < 2:
        return []
    return split_figures(
        charted,
        lambda series: max(rate for _, rate in _mean_rates(series)),
        "throughput",
        "Throughput against concurrency",
        _figure,
    )


def _figure(group: Sequence[SweepSeries], name: str, title: str) -> Figure:
    cells = [cell for series in group for cell in series.valid]
    max_rps = max(finite(cell.throughput_rps) or 0.0 for cell in cells)
    max_bound_rps = max(finite(cell.bound_rps) or 0.0 for cell in cells)
    cut_bound_rps = max_bound_rps if max_bound_rps > MAX_BOUND_RATIO * max_rps else None
    caption_values = {"highest_bound_rps": cut_bound_rps, "part": part_of_load(cells)}
    knees = [series for series in group if finite(series.result.knee)]
    looks = {series.name: look_of(series.number) for series in group}
    upper_ends = [interval[1] for cell in cells if (interval := _interval(cell))]
    top_rps = 1.06 * max(max_rps, *upper_ends, min(max_bound_rps, MAX_BOUND_RATIO * max_rps)) or 1.0
    offsets = _offsets(group, MIN_DISTANCE_SHARE * top_rps)
    intervals = any(map(_interval, cells))
    return Figure(
        name=name,
        title=title,
        caption=not_none(
            fill(CAPTION, caption_values),
            "Dotted: the knee. Connections beyond it only wait." if knees else None,
            "Vertical lines: the 95 % interval of the throughput within one trial."
            if intervals
            else None,
            "Overlapping points are drawn side by side." if any(offsets.values()) else None,
        ),
        alternative=("Throughput by connections.", *map(_series_sentence, group)),
        panes=(_pane(group, looks, knees, offsets, top_rps),),
        legend=not_none(
            *(Key(name, *look) for name, look in looks.items()),
            Key("bound", "soft", "dashed"),
            Key("knee: waiting begins", "soft", "dotted") if knees else None,
            Key("95 % interval", "soft", "solid") if intervals else None,
        ),
        header=HEADER,
        rows=tuple(
            (series.name, str(cell.trial.cell.concurrency),
             *(_rate_text(figure_of(cell, name)) for name in SHOWN_RATES), cell.verdict)
            for series in group
            for cell in series.closed
        ),
    )  # fmt: skip


def _mean_rates(series: SweepSeries, name: str = "throughput_rps") -> list[tuple[int, float]]:
    """(connections, mean of the field `name` over the trials) of each level where it is known."""
    rates = ((connections, level.mean_of_all(name)) for connections, level in series.levels.items())
    return [(connections, rate) for connections, rate in rates if rate is not None]


def _interval(cell: Result) -> tuple[float, float] | None:
    """The 95 % interval of the throughput within one trial; None if unknown or of width 0."""
    rate, half = finite(cell.throughput_rps), finite(cell.throughput_half_rps)
    return (rate - half, rate + half) if rate is not None and half else None


def _offsets(group: Sequence[SweepSeries], min_distance_rps: float) -> Offsets:
    """Offsets that place points side by side, in series order, where they would hide each other."""
    offsets: Offsets = {}
    levels: dict[int, list[tuple[float, int]]] = {}
    for series in group:
        for connections, rate_rps in _mean_rates(series):
            level = levels.setdefault(connections, [])
            near = [offset for rps, offset in level if abs(rps - rate_rps) <= min_distance_rps]
            offsets[series.name, connections] = max(near, default=-1) + 1
            level.append((rate_rps, offsets[series.name, connections]))
    return offsets


def _rate_text(value: float | None) -> str:
    rate = finite(value)
    return MISSING if rate is None else amount(rate)


def _series_sentence(series: SweepSeries) -> str:
    (fewest, rps_at_fewest), *others = _mean_rates(series)
    highest_level, rps_at_most = others[-1] if others else (None, None)
    knee = finite(series.result.knee)
    return fill(
        "{name}: {rate_rps:number} requests/s at {connections:# connection}"
        "[[, {last_rps:number} at {last_connections}]][[, knee at {knee:number}]].",
        {
            "name": series.name,
            "rate_rps": rps_at_fewest,
            "connections": fewest,
            "last_rps": rps_at_most,
            "last_connections": highest_level,
            "knee": None if knee is None else round(knee, 1),  # more decimals are noise
        },
    )


def _pane(
    group: Sequence[SweepSeries],
    looks: Looks,
    knees: Sequence[SweepSeries],
    offsets: Offsets,
    top_rps: float,
) -> Any:
    levels = sorted({level for series in group for level in series.levels})
    log_axis = levels[-1] / levels[0] >= MIN_LOG_AXIS_RATIO
    x_axis = partial(
        alt.X,
        title="connections kept busy",
        scale=alt.Scale(type="log", base=2) if log_axis else alt.Scale(domainMin=0),
        axis=alt.Axis(values=levels, format="d", labelOverlap=True),
    )
    shifted_axis = x_axis("shifted:Q")
    trials = _trial_rows(group, offsets, levels, log_axis=log_axis)
    trial_layers = _trial_layers(trials, shifted_axis, shape_of("class", looks))
    return (
        alt.layer(*_rate_layers(group), *trial_layers, *_knee_layers(knees))
        .encode(
            x_axis("connections:Q"),
            y=alt.Y("rate:Q", title="requests/s", scale=span(0, top_rps)),
            color=colour_of("class", looks),
        )
        .properties(height=320)
    )


# Layers without rows are omitted, because their extent would be infinite


def _rate_layers(group: Sequence[SweepSeries]) -> list[Any]:
    """The lines of the measured throughput and of the bound."""
    rates, bounds = (
        [(series.name, *rate) for series in group for rate in _mean_rates(series, name)]
        for name in ("throughput_rps", "bound_rps")
    )
    look: dict[str, Any] = {"opacity": 0.8, "clip": True}
    measured_line = layer("measured", LINE_COLUMNS, rates).mark_line(strokeWidth=2.5)
    if not bounds:
        return [measured_line]
    return [
        layer("bound", LINE_COLUMNS, bounds).mark_line(strokeWidth=1.5, strokeDash=[6, 4], **look),
        # Where throughput reaches the bound, its line hides the bound: add a dash at each level
        layer("bounds", LINE_COLUMNS, bounds).mark_tick(
            orient="horizontal", size=26, thickness=1.5, **look
        ),
        measured_line,
    ]


def _trial_layers(trials: Sequence[tuple[Any, ...]], shifted_axis: alt.X, shape: Any) -> list[Any]:
    """A point per trial, in front of the line of its interval."""
    fields = ("class:N", "connections:d", ("rate", "requests/s"), "bound", "trial:d", "verdict:N")
    points = layer("trials", TRIAL_COLUMNS, trials).mark_point(**POINT_STYLE)
    intervals = [row for row in trials if row[4] is not None]
    rules = layer("intervals", TRIAL_COLUMNS, intervals).mark_rule(strokeWidth=1.5, clip=True)
    ends = {"y": alt.Y("low:Q", title="requests/s"), "y2": alt.Y2("high:Q")}
    return [
        *([rules.encode(shifted_axis, **ends)] if intervals else []),
        points.encode(shifted_axis, shape, tooltip=tips(*fields)),
    ]


def _knee_layers(knees: Sequence[SweepSeries]) -> list[Any]:
    if not knees:
        return []
    rows = [(s.name, s.result.knee, max(rate for _, rate in _mean_rates(s))) for s in knees]
    rules = layer("knees", LINE_COLUMNS, rows).mark_rule(strokeDash=[2, 3], strokeWidth=2)
    tooltip = tips("class:N", ("connections", "knee, connections"))
    return [rules.encode(y2=alt.Y2Datum(0), tooltip=tooltip)]


def _trial_rows(
    group: Sequence[SweepSeries], offsets: Offsets, levels: Sequence[int], *, log_axis: bool
) -> list[tuple[Any, ...]]:
    """The row of each valid trial with a throughput, with the columns TRIAL_COLUMNS."""

    def shifted(name: str, connections: int) -> float:
        share = OFFSET_SHARE * offsets.get((name, connections), 0)
        if log_axis:
            return connections * math.pow(levels[-1] / levels[0], share)
        return connections + share * levels[-1]

    return [
        (series.name, connections, shifted(series.name, connections),
         rate, *(_interval(cell) or (None, None)), finite(cell.bound_rps), cell.trial.number,
         cell.verdict)
        for series in group
        for cell in series.valid
        for connections in [cell.trial.cell.concurrency]
        if (rate := finite(cell.throughput_rps)) is not None
    ]  # fmt: skip
