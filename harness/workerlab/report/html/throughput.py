"""Throughput against concurrency: requests per second of each series by connections."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt

from workerlab.analysis.overview import part_of_load
from workerlab.model import CellResult, Document
from workerlab.numbers.units import MISSING, amount, fill
from workerlab.report.html.figure import (
    OWN_AXIS,
    POINT,
    Figure,
    Key,
    by_name,
    data,
    grouped,
    mark_of,
    part_of,
    some,
    tip,
    var,
)
from workerlab.report.html.series import SweepSeries, all_series
from workerlab.report.values import finite

ABOVE = 3.0  # times the highest throughput: a higher bound is cut off
WIDE = 16  # highest / lowest level from which the axis is logarithmic
NEAR = 0.03  # of the axis: closer points hide each other
STEP = 0.008  # of the axis, between points drawn side by side
HEADS = ("class", "connections", "requests/s", "± req/s", "bound", "verdict")
CAPTION = (
    "Requests per second in {part}. Dashed: what connections and slots allow at best.[[ That"
    " continues above the chart, up to {highest_bound_rps:number}.]]"
)

Places = dict[tuple[str, int], int]  # by (name, connections): steps to the right of the level


def throughput(document: Document) -> list[Figure]:
    """Requests/s against connections: a line and a shape per series, a point per trial. Several
    figures if there are many series, or some reach ten times the throughput of others."""
    charted = [series for series in all_series(document) if _rates(series)]
    if sum(len(series.valid) for series in charted) < 2:
        return []
    groups = grouped(charted, lambda series: max(rate for _, rate in _rates(series)))
    return [_figure(group, n, len(groups)) for n, group in enumerate(groups, 1)]


def _figure(group: Sequence[SweepSeries], number: int, parts: int) -> Figure:
    cells = [cell for series in group for cell in series.valid]
    rate = max(some(*(finite(cell.throughput_rps) for cell in cells)))
    bound = max(finite(cell.bound_rps) or 0.0 for cell in cells)
    highest = bound if bound > ABOVE * rate else None
    beyond = {"highest_bound_rps": highest, "part": part_of_load(cells)}
    knees = [series for series in group if finite(series.result.knee)]
    marks = {series.name: mark_of(series.number) for series in group}
    reach = max(rate, *(low_high[1] for cell in cells if (low_high := _interval(cell))), 0.0)
    top = 1.06 * max(reach, min(bound, ABOVE * rate)) or 1.0
    places = _places(group, NEAR * top)
    intervals = any(map(_interval, cells))
    return Figure(
        name="throughput" if number == 1 else f"throughput-{number}",
        title=part_of("Throughput against concurrency", number, parts),
        caption=some(
            fill(CAPTION, beyond),
            "Dotted: the knee, from where more connections only wait." if knees else None,
            "Upright lines: the 95 % interval of the throughput within one trial."
            if intervals
            else None,
            "Points that would hide each other stand side by side."
            if any(places.values())
            else None,
            OWN_AXIS if parts > 1 else None,
        ),
        alternative=("Throughput by connections.", *map(_growth, group)),
        panes=(_pane(group, marks, knees, places, top),),
        legend=some(
            *(Key(name, *mark) for name, mark in marks.items()),
            Key("bound", "soft", "dashed"),
            Key("knee: waiting begins", "soft", "dotted") if knees else None,
            Key("95 % interval", "soft", "solid") if intervals else None,
        ),
        heads=HEADS,
        rows=tuple(
            (series.name, str(cell.trial.cell.concurrency), _rps(cell.throughput_rps),
             _rps(cell.throughput_half_rps), _rps(cell.bound_rps), cell.verdict)
            for series in group
            for cell in series.closed
        ),
    )  # fmt: skip


def _rates(series: SweepSeries, name: str = "throughput_rps") -> list[tuple[int, float]]:
    """(connections, mean of `name` over the trials), by level."""
    rates = ((at, level.mean_of_all(name)) for at, level in series.levels.items())
    return [(at, rate) for at, rate in rates if rate is not None]


def _interval(cell: CellResult) -> tuple[float, float] | None:
    """The 95 % interval of the throughput within one load; None if unknown, or exact."""
    rate, half = finite(cell.throughput_rps), finite(cell.throughput_half_rps)
    return (rate - half, rate + half) if rate is not None and half else None


def _places(group: Sequence[SweepSeries], near_rps: float) -> Places:
    """Moves points that would hide each other side by side, in the order of the series."""
    places: Places = {}
    levels: dict[int, list[tuple[float, int]]] = {}
    for series in group:
        for at, rate in _rates(series):
            level = levels.setdefault(at, [])
            taken = [place for other, place in level if abs(other - rate) <= near_rps]
            places[series.name, at] = max(taken, default=-1) + 1
            level.append((rate, places[series.name, at]))
    return places


def _rps(value: float | None) -> str:
    rate = finite(value)
    return MISSING if rate is None else amount(rate)


def _growth(series: SweepSeries) -> str:
    (lowest, first_rps), *others = _rates(series)
    highest, last_rps = others[-1] if others else (None, None)
    knee = finite(series.result.knee)
    return fill(
        "{name}: {rate_rps:number} requests/s at {connections:# connection}"
        "[[, {last_rps:number} at {last_connections}]][[, knee at {knee:number}]].",
        {
            "name": series.name,
            "rate_rps": first_rps,
            "connections": lowest,
            "last_rps": last_rps,
            "last_connections": highest,
            "knee": None if knee is None else round(knee, 1),  # more decimals are noise
        },
    )


def _pane(
    group: Sequence[SweepSeries],
    marks: Mapping[str, tuple[str, str]],
    knees: Sequence[SweepSeries],
    places: Places,
    top: float,
) -> Any:
    rates, bounds = (
        [(series.name, *rate) for series in group for rate in _rates(series, name)]
        for name in ("throughput_rps", "bound_rps")
    )
    levels = sorted({level for series in group for level in series.levels})
    log_axis = levels[-1] / levels[0] >= WIDE

    def beside(name: str, at: int) -> float:
        share = STEP * places.get((name, at), 0)
        return at * (levels[-1] / levels[0]) ** share if log_axis else at + share * levels[-1]

    trials = [
        (series.name, cell.trial.cell.concurrency, beside(series.name, cell.trial.cell.concurrency),
         rate, *(_interval(cell) or (None, None)), finite(cell.bound_rps), cell.trial.number,
         cell.verdict)
        for series in group
        for cell in series.valid
        if (rate := finite(cell.throughput_rps)) is not None
    ]  # fmt: skip
    heads = "class connections beside rate low high bound trial verdict"
    points = alt.Chart(data(heads, trials), name="trials")
    precise = [row for row in trials if row[4] is not None]
    intervals = [alt.Chart(data(heads, precise), name="intervals")] if precise else []
    knee_rows = [(s.name, s.result.knee, max(rate for _, rate in _rates(s))) for s in knees]
    tips = [tip("class", form=""), tip("connections", form="d"), tip("rate", "requests/s"),
            tip("bound"), tip("trial", form="d"), tip("verdict", form="")]  # fmt: skip
    knee_tips = [tip("class", form=""), tip("connections", "knee, connections")]
    # Where throughput reaches the bound, its line hides the bound: add a dash at each level
    faint: dict[str, Any] = {"opacity": 0.8, "clip": True}
    shapes = {name: shape for name, (_, shape) in marks.items()}
    colours = {name: var(colour) for name, (colour, _) in marks.items()}

    def layers(rows: Sequence[tuple[object, ...]], *names: str) -> list[Any]:
        """No layers without rows, as their extent would be infinite."""
        return [
            alt.Chart(data("class connections rate", rows), name=mark) for mark in names if rows
        ]

    across = partial(
        alt.X,
        title="connections kept busy",
        scale=alt.Scale(type="log", base=2) if log_axis else alt.Scale(domainMin=0),
        axis=alt.Axis(values=levels, format="d", labelOverlap=True),
    )
    line, tick = {"strokeWidth": 1.5, "strokeDash": [6, 4]}, {"size": 26, "thickness": 1.5}
    dashed = layers(bounds, "bound", "bounds")
    return (
        alt.layer(
            *(layer.mark_line(**line, **faint) for layer in dashed[:1]),
            *(layer.mark_tick(orient="horizontal", **tick, **faint) for layer in dashed[1:]),
            *(layer.mark_line(strokeWidth=2.5) for layer in layers(rates, "measured")),
            *(
                layer.mark_rule(strokeWidth=1.5, clip=True).encode(
                    across("beside:Q"), alt.Y("low:Q", title="requests/s"), y2="high:Q"
                )
                for layer in intervals
            ),
            points.mark_point(**POINT).encode(
                across("beside:Q"), by_name(alt.Shape, "class", shapes), tooltip=tips
            ),
            *(
                layer.mark_rule(strokeDash=[2, 3], strokeWidth=2).encode(
                    y2=alt.datum(0), tooltip=knee_tips
                )
                for layer in layers(knee_rows, "knees")
            ),
        )
        .encode(
            across("connections:Q"),
            y=alt.Y("rate:Q", title="requests/s", scale=alt.Scale(domain=[0, top], nice=False)),
            color=by_name(alt.Color, "class", colours),
        )
        .properties(height=320)
    )
