"""The charts of `advise`: what candidates cost against the response time that the target is about,
expected beside measured; then up to which rate each goes.

Candidates of which more than MAX_TIMES_LIMIT times the limit is expected are counted, not drawn:
they cannot keep up, and how long their requests take is a matter of how long the load lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from workerlab.experiments.advise.result import AdviseResult, Row, candidate_of
from workerlab.experiments.advise.tables import (
    anchor,
    bound_of,
    metric_of,
    telling_rows,
    time_term,
)
from workerlab.model import Chart, ChartSeries, Level, Look, Mark, Server
from workerlab.numbers.formats import fill
from workerlab.slo import Metric, Term

MAX_TIMES_LIMIT = 10  # that are drawn
LOGARITHMIC_SPREAD = 8.0  # highest over lowest: from there on an axis is logarithmic
MB = 2**20
COLOURS = {"expected_rps": "prediction", "holds_rps": "measured", "breaks_rps": "connect"}
RATES = 8  # candidates whose highest rates are shown
SLIVER = 0.1  # of the highest: no bar shows less beside it, the table does
NOTE = (
    "At the rate of the target. Each point is a candidate and leads to its launches, or where it"
    " has none to its row among all candidates. Whiskers: the range that is expected; of what was"
    " measured, up to what the next launch is predicted to stay within (97.5 %).[[ Not shown, as"
    " more than {times} times the limit is expected: {far:# candidate}.]][[ Not shown, as their"
    " memory is not known: {unknown:# candidate}.]]"
)
RATES_NOTE = (
    "A rate that was measured to hold says nothing of higher ones, unless the rate at which the"
    " target breaks stands beside it."
)


def charts(result: AdviseResult) -> Iterator[Chart]:
    yield from _plane(result)
    yield from _rates(result)


# --- what it costs, and what it does --------------------------------------------------------------


class Plane(Struct, frozen=True):
    """`memory`: whether that is what candidates cost, else workers; `factor`: how many units of the
    response times are a second."""

    result: AdviseResult
    term: Term | None
    metric: Metric
    memory: bool
    factor: float

    def expected_s(self, row: Row) -> float | None:
        expected_s: float | None = getattr(row.expected.central, self.metric)
        return expected_s

    def cost(self, server: Server) -> float | None:
        if not self.memory:
            return float(server.workers)
        used = self.result.search.expected[server.key].memory_bytes
        return None if used is None else used / MB

    def far(self, row: Row) -> bool:
        expected_s = self.expected_s(row)
        if self.term is None or expected_s is None:
            return False
        return expected_s > MAX_TIMES_LIMIT * self.term.limit


def _plane(result: AdviseResult) -> Iterator[Chart]:
    """Where anything is known."""
    term, rows = time_term(result), result.rows
    memory = any(row.expected.memory_bytes is not None for row in rows)
    unit, factor = ("s", 1.0) if term and term.limit >= 1 else ("ms", 1e3)
    metric = metric_of(result)
    plane = Plane(result, term, metric, memory=memory, factor=factor)
    series = tuple(each for each in _series(plane) if each.points)
    if not series:
        return
    left_out = {
        "times": MAX_TIMES_LIMIT,
        "far": sum(map(plane.far, rows)) or None,
        "unknown": sum(plane.cost(row.server) is None for row in rows) or None,
    }
    yield Chart(
        title=f"{metric} response time against {'memory' if memory else 'workers'}",
        x_title="memory, MB" if memory else "workers",
        y_title=f"{metric} response time, {unit}",
        series=series,
        log=_logarithmic(series),
        note=fill(NOTE, left_out),
        form="scatter",
        level=Level(f"target: {term}", term.limit * factor) if term else None,
    )


def _series(plane: Plane) -> Iterator[ChartSeries]:
    """What was measured stands on what was expected."""
    rows, result = plane.result.rows, plane.result
    near = [row for row in rows if not plane.far(row)]
    chosen = result.server if result.word == "recommended" else None
    yield _points("expected", ("prediction", "circle"), plane, near, _expected)
    others = [row for row in rows if row.server != chosen]
    yield _points("measured", ("measured", "square"), plane, others, _measured)
    if chosen is not None:
        name = f"recommended, measured: {candidate_of(chosen)}"
        own = [row for row in rows if row.server == chosen]
        yield _points(name, ("service", "diamond"), plane, own, _measured)


Range = tuple[float | None, float | None, float | None]  # a time, its whisker: seconds
RangeOf = Callable[[Plane, Row], Range]


def _expected(plane: Plane, row: Row) -> Range:
    low, high = (getattr(end, plane.metric) for end in (row.expected.low, row.expected.high))
    return plane.expected_s(row), low, high


def _measured(plane: Plane, row: Row) -> Range:
    """The whisker ends where one further launch in 40 does."""
    bound = bound_of(row.standing, plane.term)
    return (bound.mean, bound.mean, bound.bound) if bound else (None, None, None)


def _points(
    name: str, look: Look, plane: Plane, rows: Sequence[Row], range_of: RangeOf
) -> ChartSeries:
    points, marks = [], []
    for row in rows:
        (time_s, *ends_s), cost = range_of(plane, row), plane.cost(row.server)
        if time_s is None or cost is None:
            continue
        points.append((cost, time_s * plane.factor))
        low, high = (None if end is None else end * plane.factor for end in ends_s)
        marks.append(Mark(candidate_of(row.server), low, high, anchor(plane.result, row.server)))
    return ChartSeries(name, tuple(points), tuple(marks), look)


def _logarithmic(series: Iterable[ChartSeries]) -> tuple[bool, bool]:
    """Which axes are."""
    points = [point for each in series for point in each.points]
    x, y = ([point[axis] for point in points] for axis in (0, 1))
    return _spread(x), _spread(y)


def _spread(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > LOGARITHMIC_SPREAD * min(values)


# --- up to which rate -----------------------------------------------------------------------------


def _rates(result: AdviseResult) -> Iterator[Chart]:
    """Of those that were tried and the best of each class, where a bar could show something that
    was measured."""
    rows = [row for row in telling_rows(result) if row.expected.highest_rps][:RATES]
    rates = {
        ("expected to hold up to", "prediction"): [row.expected.highest_rps for row in rows],
        ("measured to hold at", "measured"): [row.reach.last for row in rows],
        ("measured to break at", "connect"): [row.broken_rps for row in rows],
    }
    values = [rps for column in rates.values() for rps in column if rps]
    least_rps = SLIVER * max(values, default=0.0)
    series = [
        ChartSeries(
            name,
            tuple((float(at), rps) for at, rps in enumerate(column) if rps and rps > least_rps),
            look=(colour, "circle"),
        )
        for (name, colour), column in rates.items()
    ]
    if any(each.points for each in series[1:]):
        yield Chart(
            title="Highest rate that keeps the target",
            x_title="candidate",
            y_title="requests/s",
            series=tuple(each for each in series if each.points),
            note=RATES_NOTE,
            form="bars",
            names=tuple(candidate_of(row.server) for row in rows),
        )
