"""Response time against throughput, of the same server in the closed loop and at a rate."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from workerlab.analysis.open_closed import conclusive, one_trial
from workerlab.model import CellResult, Finding
from workerlab.numbers.formats import amount
from workerlab.numbers.units import format_duration
from workerlab.report.html.colours import var
from workerlab.report.html.figure import POINT, Figure, by_name, data, key, tip, unit
from workerlab.report.html.series import SweepSeries
from workerlab.report.messages import say, text
from workerlab.report.sweep_tables import arrivals, load_of
from workerlab.report.values import finite

LOOPS = {"closed": ("sockets", "circle"), "open": ("measured", "diamond")}
HEADS = ("load", "rate", "median", "p95", "verdict")


def open_and_closed(series: SweepSeries) -> Figure | None:
    """None where no cell at a rate is valid. A line from the median to 95 %, per cell."""
    at_rate = [cell for cell in series.open if conclusive(cell) and _known(cell)]
    cells = [cell for cell in series.valid if _known(cell)] + at_rate
    if not at_rate or len(cells) < 2:
        return None
    name = {"name": series.name}
    note = {"arrivals": arrivals(at_rate), "one_trial": one_trial(cells)}
    return Figure(
        name=f"loops-{series.slug}",
        title=Finding("chart.loops", name),
        heading=series.name,
        caption=(Finding("chart.loops.caption", note),),
        alternative=(Finding("chart.loops.response_times", name), *map(_words, cells)),
        panes=(_pane(cells),),
        legend=tuple(key(f"loops.{loop}", *look) for loop, look in LOOPS.items()),
        heads=tuple(Finding(f"chart.{head}") for head in HEADS),
        rows=tuple(
            (
                text(load_of(cell)),
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


def _words(cell: CellResult) -> Finding:
    values = {
        "load": load_of(cell),
        "rate_rps": cell.throughput_rps,
        "median_s": cell.response.p50,
        "p95_s": cell.response.p95,
    }
    return Finding("chart.loops.cell", values)


def _pane(cells: Sequence[CellResult]) -> Any:
    name, factor = unit(max(cell.response.p95 or 0.0 for cell in cells))
    rows = [
        (
            "closed" if cell.trial.cell.rate is None else "open",
            text(load_of(cell)),
            cell.throughput_rps,
            *(factor * (value or 0.0) for value in (cell.response.p50, cell.response.p95)),
            cell.verdict,
        )
        for cell in cells
    ]
    source = data("loop load rate median p95 verdict", rows)
    tips = [
        tip("load", form=""),
        tip("rate"),
        tip("median", Finding("chart.median_in", {"unit": name})),
        tip("p95", Finding("chart.p95_in", {"unit": name})),
        tip("verdict", form=""),
    ]
    shapes = by_name(alt.Shape, "loop", {one: shape for one, (_, shape) in LOOPS.items()})
    colours = by_name(alt.Color, "loop", {one: var(colour) for one, (colour, _) in LOOPS.items()})
    title, zero = say("chart.response_in", unit=name), alt.Scale(domainMin=0)
    return (
        alt.layer(
            alt.Chart(source).mark_rule(strokeWidth=2.5).encode(y2="median:Q"),
            alt.Chart(source, name="loops").mark_point(**POINT).encode(shapes, tooltip=tips),
        )
        .encode(
            alt.X("rate:Q", title=say("chart.rate"), scale=zero),
            alt.Y("p95:Q", title=title, scale=zero),
            colours,
        )
        .properties(height=240)
    )
