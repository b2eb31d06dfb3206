"""A response time by where it was spent, a stacked bar per level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.model import CellResult, Chart, Document, Finding, Series
from harness.numbers.units import format_duration
from harness.report.html.bars import Upright
from harness.report.html.charts import chart_figure
from harness.report.html.figures import Figure, unit
from harness.report.html.series import SweepSeries, mean
from harness.report.values import PARTS

SEEN = 0.005  # of the axis: a shorter part is thinner than a line

Parts = dict[str, float | None]  # seconds, by part; the whole as "response"


def longest_s(document: Document) -> float:
    """The highest bar of the run."""
    return max((_height(_parts([cell])) for cell in document.cells), default=0.0)


def _height(parts: Parts) -> float:
    positive = sum(parts[part] or 0.0 for part in PARTS if (parts[part] or 0.0) > 0)
    return max(positive, parts["response"] or 0.0)


def _parts(cells: Sequence[CellResult]) -> Parts:
    def seconds(cell: CellResult, part: str) -> float | None:
        value: float | None = getattr(cell.breakdown, f"{part}_s")
        return value

    return {
        part: mean(cells, lambda c, part=part: seconds(c, part))  # type: ignore[misc]
        for part in ("response", *PARTS)
    }


def breakdown(series: SweepSeries, longest_s: float) -> Figure | None:
    """The mean response time by where it was spent, a bar per level. `longest_s`: of the run, so
    that series can be compared."""
    every = {at: _parts(cells) for at, cells in series.levels.items()}
    levels = {at: parts for at, parts in every.items() if parts["response"] is not None}
    if not levels:
        return None
    name, factor = unit(longest_s)
    chart = Chart(
        title=Finding("chart.breakdown", {"name": series.name}),
        x_title=Finding("chart.connections"),
        y_title=Finding("chart.mean_response", {"unit": name}),
        series=tuple(_series(part, levels, factor) for part in PARTS),
        form="stacked",
        names=tuple(map(str, levels)),
    )
    labels = [format_duration(parts["response"]) for parts in levels.values()]
    top = longest_s * factor * 1.08
    figure = chart_figure(chart, f"waiting-{series.slug}", Upright(top, labels))
    return figure and _worded(figure, series, levels, longest_s)


def _series(part: str, levels: dict[int, Parts], factor: float) -> Series:
    seconds = [parts[part] for parts in levels.values()]
    points = [(at, one * factor) for at, one in enumerate(seconds) if one is not None]
    return Series(Finding(f"part.{part}"), tuple(points))


def _worded(
    figure: Figure, series: SweepSeries, levels: dict[int, Parts], longest_s: float
) -> Figure:
    known, short, missing = _by_length(levels, SEEN * longest_s)
    exact = all(cell.breakdown.exact for cell in series.valid)
    longest = max((abs(parts[one] or 0.0) for one in short for parts in levels.values()), default=0)
    seen = {f"part.{part}" for part in known}
    return replace(
        figure,
        heading=series.name,
        caption=(
            Finding("chart.breakdown.exact" if exact else "chart.breakdown.estimated"),
            *([Finding("chart.breakdown.short", {"longest_s": longest, "parts": _named(short)})]
              if short else []),
            *([Finding("chart.breakdown.missing", {"parts": _named(missing)})] if missing else []),
        ),
        alternative=(
            Finding("chart.breakdown.mean", {"name": series.name}),
            *(_spent(at, parts) for at, parts in levels.items()),
        ),
        legend=tuple(
            key
            for key in figure.legend
            if isinstance(key.label, Finding) and key.label.code in seen
        ),
        heads=(
            Finding("chart.connections"), Finding("chart.response"), *_named(PARTS)
        ),
        rows=tuple(
            (str(at), *map(format_duration, parts.values())) for at, parts in levels.items()
        ),
    )  # fmt: skip


def _by_length(
    levels: dict[int, Parts], shortest_s: float
) -> tuple[list[str], list[str], list[str]]:
    """The parts that a bar shows, those too short to be seen, and those without a source."""
    known, short, missing = list[str](), list[str](), list[str]()
    for part in PARTS:
        seconds = [abs(one) for parts in levels.values() if (one := parts[part]) is not None]
        kind = missing if not seconds else known if max(seconds) >= shortest_s else short
        kind.append(part)
    return known, short, missing


def _named(parts: Sequence[str]) -> tuple[Finding, ...]:
    return tuple(Finding(f"part.{part}") for part in parts)


def _spent(at: int, parts: Parts) -> Finding:
    spent = tuple(
        Finding("chart.breakdown.part", {"part": Finding(f"part.{part}"), "time_s": seconds})
        for part in PARTS
        if (seconds := parts[part]) is not None
    )
    values = {"connections": at, "response_s": parts["response"], "parts": spent}
    return Finding("chart.breakdown.spent", values)
