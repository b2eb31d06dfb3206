"""Figures of the levels of a series: bars for where the time went and for what kept-alive
connections allow, and response time against throughput, in the closed loop and at a rate."""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import altair as alt
from msgspec.structs import replace

from workerlab.analysis.diagnosis.slots import part_of_load
from workerlab.analysis.open_closed import models_note
from workerlab.analysis.overview import LevelTrials
from workerlab.analysis.trials import conclusive
from workerlab.model import CellResult, Chart, ChartSeries, Look
from workerlab.numbers.units import amount, counted, format_duration, listed
from workerlab.report.html.chart_figures import VerticalBars, chart_figure, looks_of
from workerlab.report.html.figure import (
    MAX_HEIGHT_RATIO,
    OWN_AXIS_NOTE,
    POINT_STYLE,
    Figure,
    Key,
    colour_of,
    layer,
    not_none,
    shape_of,
    tips,
    unit,
)
from workerlab.report.html.series import SweepSeries
from workerlab.report.values import PART_LOOKS, PARTS, finite, load_of

MODEL_FIGURES = ("throughput_rps", "response.p50", "response.p95")
MODEL_LOOKS = {"closed": ("sockets", "circle"), "open": ("measured", "diamond")}


class ModelPoint(NamedTuple):
    """A cell of which all figures are known."""

    cell: CellResult
    rate_rps: float
    p50_s: float
    p95_s: float


def open_and_closed(series: SweepSeries) -> Figure | None:
    """A line per cell, p50 to p95. None for one cell, or without a conclusive cell at a rate."""
    points = [
        ModelPoint(cell, *figures)
        for cell in (*series.valid, *filter(conclusive, series.open))
        for figures in [not_none(*map(finite, attrgetter(*MODEL_FIGURES)(cell)))]
        if len(figures) == len(MODEL_FIGURES)
    ]
    cells = [point.cell for point in points]
    at_rate = [cell for cell in cells if cell.trial.cell.rate is not None]
    if not at_rate or len(points) < 2:
        return None
    texts = [
        (load_of(cell), amount(rate_rps), *map(format_duration, times), cell.verdict)
        for cell, rate_rps, *times in points
    ]
    note = models_note(at_rate, cells)
    return Figure(
        name=f"loops-{series.slug}",
        title=f"Closed loop and open model, {series.name}",
        heading=series.name,
        caption=("Each line: from the median to the 95th percentile of response times. " + note,),
        alternative=(
            f"Response times of {series.name}.",
            *(
                f"{load}: {rate} requests/s, half within {p50}, 95 % within {p95}."
                for load, rate, p50, p95, _ in texts
            ),
        ),
        panes=(_models_pane(points),),
        legend=tuple(Key(f"{loop}: median to 95 %", *look) for loop, look in MODEL_LOOKS.items()),
        header=("load", "requests/s", "median", "95 %", "verdict"),
        rows=tuple(texts),
    )


def _models_pane(points: Sequence[ModelPoint]) -> Any:
    unit_name, factor = unit(max(point.p95_s for point in points))
    rows = [
        (
            "closed" if cell.trial.cell.rate is None else "open",
            *(load_of(cell), rate_rps, p50_s * factor, p95_s * factor, cell.verdict),
        )
        for cell, rate_rps, p50_s, p95_s in points
    ]
    columns = "loop load rate median p95 verdict"
    tooltip = tips(
        "load:N",
        ("rate", "requests/s"),
        ("median", f"median, {unit_name}"),
        ("p95", f"95 %, {unit_name}"),
        "verdict:N",
    )
    zero = alt.Scale(domainMin=0)
    return (
        alt.layer(
            layer("", columns, rows).mark_rule(strokeWidth=2.5).encode(y2="median:Q"),
            layer("loops", columns, rows)
            .mark_point(**POINT_STYLE)
            .encode(shape_of("loop", MODEL_LOOKS), tooltip=tooltip),
        )
        .encode(
            alt.X("rate:Q", title="requests/s", scale=zero),
            alt.Y("p95:Q", title=f"response time, {unit_name}", scale=zero),
            colour_of("loop", MODEL_LOOKS),
        )
        .properties(height=240)
    )


VISIBLE_SHARE = 0.005  # of the axis: a smaller part is thinner than a line
RATE_LOOKS = {  # name and colour, by field
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
    """The highest bar of the run, for a common axis, which makes series comparable. None if all
    bars of some series would be slivers on it: then each series has its own axis."""
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
    """The mean response time by where it was spent, a bar per level. `common_top_s`: the
    top of the common axis; None: an axis of its own. None without a level to show."""
    top_s = _highest_s(series) if common_top_s is None else common_top_s
    all_levels = ((connections, _parts(level)) for connections, level in series.levels.items())
    timed = {at: parts for at, parts in all_levels if parts["response"] is not None}
    levels = {at: parts for at, parts in timed.items() if parts["unattributed"] is not None}
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
    figure = chart_figure(chart, f"waiting-{series.slug}", looks_of([chart]), bars)
    if figure is None:
        return None
    described = _with_text(figure, series, levels, top_s)
    withheld = [str(at) for at in timed if at not in levels]
    notes = not_none(
        f"Left out at {listed(withheld)} connections: the parts exceed the response."
        if withheld
        else None,
        OWN_AXIS_NOTE if common_top_s is None else None,
    )
    return replace(described, caption=(*described.caption, *notes))


def _with_text(
    figure: Figure, series: SweepSeries, levels: Mapping[int, Parts], top_s: float
) -> Figure:
    # The longest value of each part. None: it has no source
    times_s = {part: not_none(*(parts[part] for parts in levels.values())) for part in PARTS}
    longest_s = {part: max(map(abs, values), default=None) for part, values in times_s.items()}
    missing = [part for part, part_s in longest_s.items() if part_s is None]
    too_short = {
        part: part_s
        for part, part_s in longest_s.items()
        if part_s is not None and part_s < VISIBLE_SHARE * top_s
    }
    visible = [name for part, name in PARTS.items() if part not in (*missing, *too_short)]
    exact = all(cell.breakdown.exact for cell in series.valid)
    exact_note = "Every request was traced by its id."
    estimate_note = "Each part is an estimate from its own source."
    at_most = format_duration(max(too_short.values(), default=0.0))
    return replace(
        figure,
        heading=series.name,
        caption=not_none(
            f"Mean of {part_of_load(series.valid)}. {exact_note if exact else estimate_note}",
            f"Too short to be visible, at most {at_most}: {_part_list(too_short)}."
            if too_short
            else None,
            f"No source: {_part_list(missing)}." if missing else None,
        ),
        alternative=(
            f"Mean response time of {series.name} by where it was spent.",
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
    """Per level: the bound, what the connections of each worker allow, and the throughput."""
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
        note="A kept-alive connection stays with its worker. Bound: every slot could serve any of"
        " them. Prediction by worker: each worker serves only its own.",
        form="bars",
        names=tuple(map(str, series.levels)),
    )
    figure = chart_figure(chart, f"keepalive-{series.slug}", looks_of([chart]), VerticalBars())
    return figure and replace(figure, heading=series.name)
