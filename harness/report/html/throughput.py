"""Requests per second against connections: what each series makes of more of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from harness.model import Document, Finding
from harness.numbers.units import MISSING
from harness.report.html.colours import var
from harness.report.html.figures import Figure, Key, by_name, data, key, mark_of, tip, y_axis
from harness.report.html.series import SweepSeries, all_series, mean
from harness.report.messages import amount, say
from harness.report.values import finite

ABOVE = 3.0  # times what was measured: a bound that is higher is cut off
WIDE = 16  # from how many times the lowest level on the axis doubles instead of counting


def throughput(document: Document) -> Figure | None:
    """Requests/s against connections: a line and a shape per series, a point per trial."""
    every = [series for series in all_series(document) if _rates(series)]
    if not every:
        return None
    across = _across(every)
    layers = [*_bounds(every, across), _lines(every, across), _points(every, across)]
    signs = [key("bound", "soft", "dashed")]
    if knees := [series for series in every if finite(series.result.knee)]:
        layers.append(_knees(knees, every, across))
        signs.append(key("knee", "soft", "dotted"))
    return Figure(
        name="throughput",
        title=Finding("chart.throughput"),
        caption=_caption(every, bool(knees)),
        alternative=(Finding("chart.throughput.by_connections"), *map(_growth, every)),
        panes=(alt.layer(*layers).properties(height=320),),
        legend=(*(Key(one.name, *mark_of(one.number)) for one in every), *signs),
        heads=tuple(
            Finding(f"chart.{name}")
            for name in ("class", "connections", "rate", "bound", "verdict")
        ),
        rows=tuple(row for series in every for row in _rows(series)),
    )


def _across(every: Sequence[SweepSeries]) -> Any:
    levels = sorted({level for series in every for level in series.levels})
    spread = levels[-1] / levels[0] >= WIDE
    scale = alt.Scale(type="log", base=2) if spread else alt.Scale(domainMin=0)
    axis = alt.Axis(values=levels, format="d", labelOverlap=True)
    return alt.X("connections:Q", title=say("chart.connections_busy"), scale=scale, axis=axis)


def _by_class(every: Sequence[SweepSeries]) -> Any:
    colours = {series.name: var(mark_of(series.number)[0]) for series in every}
    return by_name(alt.Color, "class", colours)


def _rates(series: SweepSeries) -> list[tuple[int, float]]:
    """(connections, mean requests/s of the trials)."""
    rates = [(at, mean(cells, lambda c: c.throughput_rps)) for at, cells in series.levels.items()]
    return [(at, rate) for at, rate in rates if rate is not None]


def _most(every: Sequence[SweepSeries]) -> tuple[float, float]:
    """The highest rate that was measured, and the highest bound."""
    cells = [cell for series in every for cell in series.valid]
    rates = max(rate for cell in cells if (rate := finite(cell.throughput_rps)) is not None)
    return rates, max(finite(cell.bound_rps) or 0.0 for cell in cells)


def _down(every: Sequence[SweepSeries], field: str = "rate") -> Any:
    rate, bound = _most(every)
    top = 1.06 * max(rate, min(bound, ABOVE * rate)) or 1.0
    scale = alt.Scale(domain=[0, top], nice=False)
    return alt.Y(f"{field}:Q", title=say("chart.rate"), axis=y_axis(), scale=scale)


def _caption(every: Sequence[SweepSeries], knees: bool) -> tuple[Finding, ...]:
    rate, bound = _most(every)
    beyond = bound if bound > ABOVE * rate else None
    caption = [Finding("chart.throughput.caption", {"highest_bound_rps": beyond})]
    return (*caption, Finding("chart.throughput.knees")) if knees else tuple(caption)


# --- marks --------------------------------------------------------------------------------


def _lines(every: Sequence[SweepSeries], across: Any) -> Any:
    rows = [(series.name, at, rate) for series in every for at, rate in _rates(series)]
    source = data(("class", "connections", "rate"), rows, words=("class",))
    line = alt.Chart(source, name="measured").mark_line(strokeWidth=2.5)
    return line.encode(x=across, y=_down(every), color=_by_class(every))


def _bounds(every: Sequence[SweepSeries], across: Any) -> list[Any]:
    """Lines, and a dash at each level: a line that is met by what was measured is hidden by it."""
    rows = [
        (series.name, at, bound)
        for series in every
        for at, cells in series.levels.items()
        if (bound := mean(cells, lambda c: c.bound_rps)) is not None
    ]
    source = data(("class", "connections", "rate"), rows, words=("class",))
    look = {"x": across, "y": _down(every), "color": _by_class(every)}
    line = alt.Chart(source, name="bound").mark_line(
        strokeWidth=1.5, strokeDash=[6, 4], opacity=0.8, clip=True
    )
    dash = alt.Chart(source, name="bounds").mark_tick(
        orient="horizontal", size=26, thickness=1.5, opacity=0.8, clip=True
    )
    return [line.encode(**look), dash.encode(**look)]


def _points(every: Sequence[SweepSeries], across: Any) -> Any:
    heads = ("class", "connections", "rate", "bound", "trial", "verdict")
    rows = [
        (series.name, cell.trial.cell.concurrency, finite(cell.throughput_rps),
         finite(cell.bound_rps), cell.trial.number, cell.verdict)
        for series in every
        for cell in series.valid
        if finite(cell.throughput_rps) is not None
    ]  # fmt: skip
    source = data(heads, rows, words=("class", "verdict"))
    points = alt.Chart(source, name="trials").mark_point(
        filled=True, size=90, opacity=1, stroke=var("paper"), strokeWidth=1
    )
    tips = [tip("class"), tip("connections", "d"), tip("rate", ".4~g"), tip("bound", ".4~g"),
            tip("trial", "d"), tip("verdict")]  # fmt: skip
    shapes = {series.name: mark_of(series.number)[1] for series in every}
    shape = by_name(alt.Shape, "class", shapes)
    return points.encode(
        x=across, y=_down(every), color=_by_class(every), shape=shape, tooltip=tips
    )


def _knees(knees: Sequence[SweepSeries], every: Sequence[SweepSeries], across: Any) -> Any:
    rows = [
        (series.name, series.result.knee, max(rate for _, rate in _rates(series)), 0)
        for series in knees
    ]
    source = data(("class", "connections", "rate", "zero"), rows, words=("class",))
    rules = alt.Chart(source, name="knees").mark_rule(strokeDash=[2, 3], strokeWidth=2)
    tips = [tip("class"), tip("connections", ".1f", Finding("chart.knee_connections"))]
    return rules.encode(
        x=across, y=_down(every, "zero"), y2="rate:Q", color=_by_class(every), tooltip=tips
    )


# --- in words -----------------------------------------------------------------------------


def _rows(series: SweepSeries) -> list[tuple[str, ...]]:
    def rate(value: float | None) -> str:
        known = finite(value)
        return MISSING if known is None else amount(known)

    return [
        (series.name, str(c.trial.cell.concurrency), rate(c.throughput_rps), rate(c.bound_rps),
         c.verdict)
        for c in series.closed
    ]  # fmt: skip


def _growth(series: SweepSeries) -> Finding:
    (least, first), *more = _rates(series)
    most, last = more[-1] if more else (None, None)
    knee = finite(series.result.knee)
    return Finding(
        "chart.throughput.growth",
        {
            "name": series.name,
            "rate_rps": first,
            "connections": least,
            "last_rps": last,
            "last_connections": most,
            "knee": None if knee is None else round(knee, 1),  # nobody believes more decimals
        },
    )
