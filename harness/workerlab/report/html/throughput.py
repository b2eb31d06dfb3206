"""Throughput against concurrency: requests per second of each series by connections."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt

from workerlab.analysis.diagnosis.slots import part_of_load
from workerlab.model import CellResult
from workerlab.numbers.units import MISSING, amount, fill
from workerlab.report.html.figure import (
    POINT_STYLE,
    Figure,
    Key,
    colour_of,
    layer,
    look_of,
    not_none,
    shape_of,
    span,
    split_figures,
    tips,
)
from workerlab.report.html.series import SweepSeries
from workerlab.report.values import finite

MAX_BOUND_RATIO = 3.0  # times the highest throughput: a higher bound is cut off
LOG_AXIS_RATIO = 16  # highest / lowest level from which the axis is logarithmic
NEAR_SHARE = 0.03  # of the axis: closer points hide each other
STEP_SHARE = 0.008  # of the axis, between points drawn side by side
RATES = "class connections rate"  # columns of lines, bounds and knees
TRIALS = "class connections beside rate low high bound trial verdict"  # of points and intervals
HEADER = ("class", "connections", "requests/s", "± req/s", "bound", "verdict")
CAPTION = (
    "Requests per second in {part}. Dashed: the bound set by connections and slots.[[ It"
    " continues above the chart, up to {highest_bound_rps:number}.]]"
)

Offsets = dict[tuple[str, int], int]  # by (name, connections): steps to the right of the level


def throughput(all_series: Iterable[SweepSeries]) -> list[Figure]:
    """Requests/s against connections: a line and a shape per series, a point per trial. Several
    figures if there are many series, or some reach ten times the throughput of others."""
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
    max_rps = max(not_none(*(finite(cell.throughput_rps) for cell in cells)))
    max_bound_rps = max(finite(cell.bound_rps) or 0.0 for cell in cells)
    cut_bound_rps = max_bound_rps if max_bound_rps > MAX_BOUND_RATIO * max_rps else None
    caption_values = {"highest_bound_rps": cut_bound_rps, "part": part_of_load(cells)}
    knees = [series for series in group if finite(series.result.knee)]
    looks = {series.name: look_of(series.number) for series in group}
    upper_ends = [interval[1] for cell in cells if (interval := _interval(cell))]
    top_rps = 1.06 * max(max_rps, *upper_ends, min(max_bound_rps, MAX_BOUND_RATIO * max_rps)) or 1.0
    offsets = _offsets(group, NEAR_SHARE * top_rps)
    intervals = any(map(_interval, cells))
    return Figure(
        name=name,
        title=title,
        caption=not_none(
            fill(CAPTION, caption_values),
            "Dotted: the knee; further connections only wait." if knees else None,
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
            (series.name, str(cell.trial.cell.concurrency), _rate_text(cell.throughput_rps),
             _rate_text(cell.throughput_half_rps), _rate_text(cell.bound_rps), cell.verdict)
            for series in group
            for cell in series.closed
        ),
    )  # fmt: skip


def _mean_rates(series: SweepSeries, name: str = "throughput_rps") -> list[tuple[int, float]]:
    """(connections, mean of the field `name` over the trials) of each level that has it."""
    rates = ((connections, level.mean_of_all(name)) for connections, level in series.levels.items())
    return [(connections, rate) for connections, rate in rates if rate is not None]


def _interval(cell: CellResult) -> tuple[float, float] | None:
    """The 95 % interval of the throughput within one trial; None if unknown or of width 0."""
    rate, half = finite(cell.throughput_rps), finite(cell.throughput_half_rps)
    return (rate - half, rate + half) if rate is not None and half else None


def _offsets(group: Sequence[SweepSeries], near_rps: float) -> Offsets:
    """Offsets that move points that would hide each other side by side, in series order."""
    offsets: Offsets = {}
    levels: dict[int, list[tuple[float, int]]] = {}
    for series in group:
        for connections, rate_rps in _mean_rates(series):
            level = levels.setdefault(connections, [])
            taken = [offset for other_rps, offset in level if abs(other_rps - rate_rps) <= near_rps]
            offsets[series.name, connections] = max(taken, default=-1) + 1
            level.append((rate_rps, offsets[series.name, connections]))
    return offsets


def _rate_text(value: float | None) -> str:
    rate = finite(value)
    return MISSING if rate is None else amount(rate)


def _series_sentence(series: SweepSeries) -> str:
    (fewest, rps_at_fewest), *others = _mean_rates(series)
    most, rps_at_most = others[-1] if others else (None, None)
    knee = finite(series.result.knee)
    return fill(
        "{name}: {rate_rps:number} requests/s at {connections:# connection}"
        "[[, {last_rps:number} at {last_connections}]][[, knee at {knee:number}]].",
        {
            "name": series.name,
            "rate_rps": rps_at_fewest,
            "connections": fewest,
            "last_rps": rps_at_most,
            "last_connections": most,
            "knee": None if knee is None else round(knee, 1),  # more decimals are noise
        },
    )


def _pane(
    group: Sequence[SweepSeries],
    looks: Mapping[str, tuple[str, str]],
    knees: Sequence[SweepSeries],
    offsets: Offsets,
    top_rps: float,
) -> Any:
    rates, bounds = (
        [(series.name, *rate) for series in group for rate in _mean_rates(series, name)]
        for name in ("throughput_rps", "bound_rps")
    )
    levels = sorted({level for series in group for level in series.levels})
    log_axis = levels[-1] / levels[0] >= LOG_AXIS_RATIO
    trials = _trial_rows(group, offsets, levels, log_axis=log_axis)
    intervals = [row for row in trials if row[4] is not None]
    knee_rows = [(s.name, s.result.knee, max(rate for _, rate in _mean_rates(s))) for s in knees]
    trial_tips = tips(
        "class:N", "connections:d", ("rate", "requests/s"), "bound", "trial:d", "verdict:N"
    )
    knee_tips = tips("class:N", ("connections", "knee, connections"))
    look: dict[str, Any] = {"opacity": 0.8, "clip": True}
    x_axis = partial(
        alt.X,
        title="connections kept busy",
        scale=alt.Scale(type="log", base=2) if log_axis else alt.Scale(domainMin=0),
        axis=alt.Axis(values=levels, format="d", labelOverlap=True),
    )
    layers = not_none(  # the extent of a layer without rows would be infinite
        layer("bound", RATES, bounds).mark_line(strokeWidth=1.5, strokeDash=[6, 4], **look)
        if bounds
        else None,
        # Where throughput reaches the bound, its line hides the bound: add a dash at each level
        layer("bounds", RATES, bounds).mark_tick(
            orient="horizontal", size=26, thickness=1.5, **look
        )
        if bounds
        else None,
        layer("measured", RATES, rates).mark_line(strokeWidth=2.5),
        layer("intervals", TRIALS, intervals)
        .mark_rule(strokeWidth=1.5, clip=True)
        .encode(x_axis("beside:Q"), alt.Y("low:Q", title="requests/s"), y2="high:Q")
        if intervals
        else None,
        layer("trials", TRIALS, trials)
        .mark_point(**POINT_STYLE)
        .encode(x_axis("beside:Q"), shape_of("class", looks), tooltip=trial_tips),
        layer("knees", RATES, knee_rows)
        .mark_rule(strokeDash=[2, 3], strokeWidth=2)
        .encode(y2=alt.datum(0), tooltip=knee_tips)
        if knee_rows
        else None,
    )
    return (
        alt.layer(*layers)
        .encode(
            x_axis("connections:Q"),
            y=alt.Y("rate:Q", title="requests/s", scale=span(0, top_rps)),
            color=colour_of("class", looks),
        )
        .properties(height=320)
    )


def _trial_rows(
    group: Sequence[SweepSeries], offsets: Offsets, levels: Sequence[int], *, log_axis: bool
) -> list[tuple[Any, ...]]:
    """The columns TRIALS of each valid trial with a throughput."""

    def shifted(name: str, connections: int) -> float:
        share = STEP_SHARE * offsets.get((name, connections), 0)
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
