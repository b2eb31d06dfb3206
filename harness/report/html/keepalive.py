"""What kept-alive connections allow: bound, what each worker's share allows, and what came out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.model import CellResult, Chart, Finding, Series
from harness.report.html.bars import Upright
from harness.report.html.charts import chart_figure
from harness.report.html.figures import Figure
from harness.report.html.series import SweepSeries, mean

SIDES: dict[str, Callable[[CellResult], float | None]] = {
    "bound": lambda cell: cell.bound_rps,
    "split_prediction": lambda cell: cell.split_prediction_rps,
    "measured": lambda cell: cell.throughput_rps,
}


def keepalive(series: SweepSeries) -> Figure | None:
    """Bound, what the connections of each worker allow, and what came out, side by side."""
    if not series.result.keepalive:
        return None
    chart = Chart(
        title=Finding("chart.keepalive", {"name": series.name}),
        x_title=Finding("chart.connections"),
        y_title=Finding("chart.rate"),
        series=tuple(_side(series, name) for name in SIDES),
        note=Finding("chart.keepalive.caption"),
        form="bars",
        names=tuple(map(str, series.levels)),
    )
    figure = chart_figure(chart, f"keepalive-{series.slug}", Upright())
    return figure and replace(figure, heading=series.name)


def _side(series: SweepSeries, name: str) -> Series:
    rates = [mean(cells, SIDES[name]) for cells in series.levels.values()]
    points = tuple((at, rate) for at, rate in enumerate(rates) if rate is not None)
    return Series(Finding(f"chart.{name}"), points)
