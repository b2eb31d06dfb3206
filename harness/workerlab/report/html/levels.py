"""Figures of the levels of a series: bars for where the time went and for what kept-alive
connections allow, and response time against throughput, in the closed loop and at a rate."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
from msgspec.structs import replace

from workerlab.analysis.open_closed import conclusive
from workerlab.analysis.overview import LevelTrials, part_of_load
from workerlab.model import CellResult, Chart, ChartSeries, Look
from workerlab.numbers.units import amount, counted, format_duration, listed
from workerlab.report.html.chart_figures import Upright, chart_figure, looks_of
from workerlab.report.html.figure import (
    OWN_AXIS,
    POINT,
    TENFOLD,
    Figure,
    Key,
    by_name,
    data,
    some,
    tip,
    unit,
    var,
)
from workerlab.report.html.series import SweepSeries
from workerlab.report.sweep_tables import closed_and_open, load_of
from workerlab.report.values import PART_LOOKS, PARTS, finite

LOOPS = {"closed": ("sockets", "circle"), "open": ("measured", "diamond")}


def open_and_closed(series: SweepSeries) -> Figure | None:
    """A line per cell, from p50 to p95. None without a conclusive cell at a rate."""
    at_rate = [cell for cell in series.open if conclusive(cell) and _known(cell)]
    cells = [cell for cell in series.valid if _known(cell)] + at_rate
    if not at_rate or len(cells) < 2:
        return None
    note = closed_and_open(at_rate, cells)
    return Figure(
        name=f"loops-{series.slug}",
        title=f"Closed loop and open model, {series.name}",
        heading=series.name,
        caption=(
            "From the median to 95 % of the response times, against requests per second. " + note,
        ),
        alternative=(f"Response times of {series.name}.", *map(_words, cells)),
        panes=(_pane(cells),),
        legend=tuple(Key(f"{loop}: median to 95 %", *look) for loop, look in LOOPS.items()),
        heads=("load", "requests/s", "median", "95 %", "verdict"),
        rows=tuple(
            (
                load_of(cell),
                amount(cell.throughput_rps or 0.0),
                *map(format_duration, (cell.response.p50, cell.response.p95)),
                cell.verdict,
            )
            for cell in cells
        ),
    )


def _known(cell: CellResult) -> bool:
    values = (cell.throughput_rps, cell.response.p50, cell.response.p95)
    return all(finite(value) is not None for value in values)


def _words(cell: CellResult) -> str:
    p50, p95 = map(format_duration, (cell.response.p50, cell.response.p95))
    rate = amount(cell.throughput_rps or 0.0)
    return f"{load_of(cell)}: {rate} requests/s, half within {p50}, 95 % within {p95}."


def _pane(cells: Sequence[CellResult]) -> Any:
    name, factor = unit(max(cell.response.p95 or 0.0 for cell in cells))
    rows = [
        (
            "closed" if cell.trial.cell.rate is None else "open",
            load_of(cell),
            cell.throughput_rps,
            *(factor * (value or 0.0) for value in (cell.response.p50, cell.response.p95)),
            cell.verdict,
        )
        for cell in cells
    ]
    source = data("loop load rate median p95 verdict", rows)
    tips = [
        tip("load", form=""),
        tip("rate", "requests/s"),
        tip("median", f"median, {name}"),
        tip("p95", f"95 %, {name}"),
        tip("verdict", form=""),
    ]
    shapes = by_name(alt.Shape, "loop", {loop: shape for loop, (_, shape) in LOOPS.items()})
    colours = by_name(alt.Color, "loop", {loop: var(colour) for loop, (colour, _) in LOOPS.items()})
    title, zero = f"response time, {name}", alt.Scale(domainMin=0)
    return (
        alt.layer(
            alt.Chart(source).mark_rule(strokeWidth=2.5).encode(y2="median:Q"),
            alt.Chart(source, name="loops").mark_point(**POINT).encode(shapes, tooltip=tips),
        )
        .encode(
            alt.X("rate:Q", title="requests/s", scale=zero),
            alt.Y("p95:Q", title=title, scale=zero),
            colours,
        )
        .properties(height=240)
    )


VISIBLE_SHARE = 0.005  # of the axis: a smaller part is thinner than a line
SIDES = {  # name and colour, by field
    "bound_rps": ("bound", "bound"),
    "split_prediction_rps": ("prediction by worker", "prediction"),
    "throughput_rps": ("measured", "measured"),
}

Parts = dict[str, float | None]  # seconds by part; "response" is the total


def _series(
    name: str, look: Look, values: Iterable[float | None], factor: float = 1.0
) -> ChartSeries:
    points = ((at, value * factor) for at, value in enumerate(values) if value is not None)
    return ChartSeries(name, tuple(points), look=look)


# --- where the time went ------------------------------------------------------------------


def longest_s(every: Iterable[SweepSeries]) -> float | None:
    """The highest bar of the run, as a common axis makes series comparable. None if all bars of
    some series would be slivers on it: then each series has its own axis."""
    longest = [highest for series in every if (highest := _longest_s(series)) > 0]
    return max(longest) if longest and max(longest) <= TENFOLD * min(longest) else None


def _longest_s(series: SweepSeries) -> float:
    return max((_height(_parts(level)) for level in series.levels.values()), default=0.0)


def _height(parts: Parts) -> float:
    return max(sum(max(0.0, parts[part] or 0.0) for part in PARTS), parts["response"] or 0.0)


def _parts(level: LevelTrials) -> Parts:
    return {part: level.mean_of_all(f"breakdown.{part}_s") for part in ("response", *PARTS)}


def breakdown(series: SweepSeries, shared_s: float | None) -> Figure | None:
    """The mean response time by where it was spent, a bar per level. `shared_s`: the top of the
    common axis; None: an axis of its own."""
    longest_s = _longest_s(series) if shared_s is None else shared_s
    parts_of = {at: _parts(level) for at, level in series.levels.items()}
    levels = {at: parts for at, parts in parts_of.items() if parts["response"] is not None}
    name, factor = unit(longest_s)
    chart = Chart(
        title=f"{series.name}: where the time went",
        x_title="connections",
        y_title=f"mean response time, {name}",
        series=tuple(
            _series(words, PART_LOOKS[part], (parts[part] for parts in levels.values()), factor)
            for part, words in PARTS.items()
        ),
        form="stacked",
        names=tuple(map(str, levels)),
    )
    labels = [format_duration(parts["response"]) for parts in levels.values()]
    upright = Upright(longest_s * factor * 1.08, labels)
    figure = chart_figure(chart, f"waiting-{series.slug}", looks_of([chart]), upright)
    worded = figure and _worded(figure, series, levels, longest_s)
    if worded is None or shared_s is not None:
        return worded
    return replace(worded, caption=(*worded.caption, OWN_AXIS))


def _worded(
    figure: Figure, series: SweepSeries, levels: Mapping[int, Parts], longest_s: float
) -> Figure:
    # The longest value of each part. None: it has no source; short: it is not visible in a bar
    longest = {
        part: max((abs(s) for s in some(*(parts[part] for parts in levels.values()))), default=None)
        for part in PARTS
    }
    missing = [part for part, most_s in longest.items() if most_s is None]
    short = {p: s for p, s in longest.items() if s is not None and s < VISIBLE_SHARE * longest_s}
    visible = [words for part, words in PARTS.items() if part not in (*missing, *short)]
    exact = all(cell.breakdown.exact for cell in series.valid)
    exact_note = "Every request was followed by its id."
    estimate_note = "Each part is an estimate from its own source."
    at_most = format_duration(max(short.values(), default=0.0))
    return replace(
        figure,
        heading=series.name,
        caption=some(
            f"Mean of {part_of_load(series.valid)}. {exact_note if exact else estimate_note}",
            f"Too short to be seen, at most {at_most}: {_named(short)}." if short else None,
            f"No source: {_named(missing)}." if missing else None,
        ),
        alternative=(
            f"Mean response time of {series.name} by where it was spent.",
            *(_spent(at, parts) for at, parts in levels.items()),
        ),
        legend=tuple(key for key in figure.legend if key.label in visible),
        heads=("connections", "response", *PARTS.values()),
        rows=tuple(
            (str(at), *map(format_duration, parts.values())) for at, parts in levels.items()
        ),
    )


def _named(parts: Iterable[str]) -> str:
    return listed([PARTS[part] for part in parts])


def _spent(at: int, parts: Parts) -> str:
    spent = ", ".join(
        f"{words} {format_duration(parts[part])}"
        for part, words in PARTS.items()
        if parts[part] is not None
    )
    return f"At {counted(at, 'connection')} {format_duration(parts['response'])}: {spent}."


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
            _series(
                name,
                (colour, "circle"),
                (level.mean_of_all(rps) for level in series.levels.values()),
            )
            for rps, (name, colour) in SIDES.items()
        ),
        note="A kept-alive connection stays with its worker. Bound: every slot could serve any of"
        " them. Prediction by worker: each worker serves only its own.",
        form="bars",
        names=tuple(map(str, series.levels)),
    )
    figure = chart_figure(chart, f"keepalive-{series.slug}", looks_of([chart]), Upright())
    return figure and replace(figure, heading=series.name)
