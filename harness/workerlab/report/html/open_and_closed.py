"""Response time against throughput, of the same server in the closed loop and at a rate."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from workerlab.analysis.open_closed import conclusive
from workerlab.model import CellResult
from workerlab.numbers.formats import amount
from workerlab.numbers.units import format_duration
from workerlab.report.html.colours import var
from workerlab.report.html.figure import POINT, Figure, Key, by_name, data, tip, unit
from workerlab.report.html.series import SweepSeries
from workerlab.report.sweep_tables import closed_and_open, load_of
from workerlab.report.values import finite

LOOPS = {"closed": ("sockets", "circle"), "open": ("measured", "diamond")}


def open_and_closed(series: SweepSeries) -> Figure | None:
    """None where no cell at a rate is valid. A line from the median to 95 %, per cell."""
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
    half, most = map(format_duration, (cell.response.p50, cell.response.p95))
    rate = amount(cell.throughput_rps or 0.0)
    return f"{load_of(cell)}: {rate} requests/s, half within {half}, 95 % within {most}."


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
