"""Bars for each level of connections of a series: where the time went, and what kept-alive
connections allow."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from msgspec.structs import replace

from workerlab.model import CellResult, Chart, Finding, Series
from workerlab.numbers.units import format_duration
from workerlab.report.html.bars import Upright
from workerlab.report.html.document_charts import chart_figure, looks_of
from workerlab.report.html.figure import TENFOLD, Figure, some, unit
from workerlab.report.html.series import SweepSeries, mean
from workerlab.report.values import PARTS, part_of_load

SEEN = 0.005  # of the axis: a shorter part is thinner than a line
SIDES = {
    "bound": "bound_rps",
    "split_prediction": "split_prediction_rps",
    "measured": "throughput_rps",
}

Parts = dict[str, float | None]  # seconds, by part; the whole as "response"


def _series(name: str, values: Iterable[float | None], factor: float = 1.0) -> Series:
    points = ((at, one * factor) for at, one in enumerate(values) if one is not None)
    return Series(Finding(name), tuple(points))


# --- where the time went ------------------------------------------------------------------


def longest_s(every: Iterable[SweepSeries]) -> float | None:
    """The highest bar of the run, so that series can be compared; None where that would make all
    bars of another series slivers, so that each has an axis of its own."""
    longest = [one for series in every if (one := _longest_s(series)) > 0]
    return max(longest) if longest and max(longest) <= TENFOLD * min(longest) else None


def _longest_s(series: SweepSeries) -> float:
    return max((_height(_parts(cells)) for cells in series.levels.values()), default=0.0)


def _height(parts: Parts) -> float:
    return max(sum(max(0.0, parts[part] or 0.0) for part in PARTS), parts["response"] or 0.0)


def _parts(cells: Sequence[CellResult]) -> Parts:
    names = ("response", *PARTS)
    return {part: mean(cells, attrgetter(f"breakdown.{part}_s")) for part in names}


def breakdown(series: SweepSeries, shared_s: float | None) -> Figure | None:
    """The mean response time by where it was spent, a bar per level. `shared_s`: what the axes of
    all series reach; None: its own."""
    longest_s = _longest_s(series) if shared_s is None else shared_s
    every = {at: _parts(cells) for at, cells in series.levels.items()}
    levels = {at: parts for at, parts in every.items() if parts["response"] is not None}
    name, factor = unit(longest_s)
    chart = Chart(
        title=Finding("chart.breakdown", {"name": series.name}),
        x_title=Finding("chart.connections"),
        y_title=Finding("chart.mean_response", {"unit": name}),
        series=tuple(
            _series(f"part.{part}", (parts[part] for parts in levels.values()), factor)
            for part in PARTS
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
    return replace(worded, caption=(*worded.caption, Finding("chart.own_axis")))


def _worded(
    figure: Figure, series: SweepSeries, levels: dict[int, Parts], longest_s: float
) -> Figure:
    # The longest of each part, and those that a bar shows, are too short to be seen, have no source
    longest = {
        part: max((abs(s) for s in some(*(parts[part] for parts in levels.values()))), default=None)
        for part in PARTS
    }
    missing = [part for part, most_s in longest.items() if most_s is None]
    short = {p: s for p, s in longest.items() if s is not None and s < SEEN * longest_s}
    seen = [Finding(f"part.{part}") for part in PARTS if part not in (*missing, *short)]
    kind = "exact" if all(cell.breakdown.exact for cell in series.valid) else "estimated"
    part = {"part": part_of_load(series.valid)}
    short_values = {"longest_s": max(short.values(), default=0), "parts": _named(short)}
    return replace(
        figure,
        heading=series.name,
        caption=some(
            Finding(f"chart.breakdown.{kind}", part),
            Finding("chart.breakdown.short", short_values) if short else None,
            Finding("chart.breakdown.missing", {"parts": _named(missing)}) if missing else None,
        ),
        alternative=(
            Finding("chart.breakdown.mean", {"name": series.name}),
            *(_spent(at, parts) for at, parts in levels.items()),
        ),
        legend=tuple(key for key in figure.legend if key.label in seen),
        heads=(Finding("chart.connections"), Finding("chart.response"), *_named(PARTS)),
        rows=tuple(
            (str(at), *map(format_duration, parts.values())) for at, parts in levels.items()
        ),
    )


def _named(parts: Iterable[str]) -> tuple[Finding, ...]:
    return tuple(Finding(f"part.{part}") for part in parts)


def _spent(at: int, parts: Parts) -> Finding:
    spent = tuple(
        Finding("chart.breakdown.part", {"part": Finding(f"part.{part}"), "time_s": seconds})
        for part in PARTS
        if (seconds := parts[part]) is not None
    )
    values = {"connections": at, "response_s": parts["response"], "parts": spent}
    return Finding("chart.breakdown.spent", values)


# --- kept-alive connections ---------------------------------------------------------------


def keepalive(series: SweepSeries) -> Figure | None:
    """Bound, what the connections of each worker allow, and what came out, side by side."""
    if not series.result.keepalive:
        return None
    chart = Chart(
        title=Finding("chart.keepalive", {"name": series.name}),
        x_title=Finding("chart.connections"),
        y_title=Finding("chart.rate"),
        series=tuple(
            _series(f"chart.{name}", (mean(c, attrgetter(rps)) for c in series.levels.values()))
            for name, rps in SIDES.items()
        ),
        note=Finding("chart.keepalive.caption"),
        form="bars",
        names=tuple(map(str, series.levels)),
    )
    figure = chart_figure(chart, f"keepalive-{series.slug}", looks_of([chart]), Upright())
    return figure and replace(figure, heading=series.name)
