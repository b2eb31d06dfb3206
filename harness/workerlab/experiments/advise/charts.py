"""The charts of `advise`: what candidates cost against the response time that the target is about,
expected beside measured; then up to which rate each goes.

Candidates of which more than FAR times the limit is expected are counted, not drawn: they cannot
keep up, and how long their requests take is a matter of how long the load lasts.
"""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from workerlab.experiments.advise.result import Result, Row, name_of
from workerlab.experiments.advise.tables import (
    anchor,
    bound_of,
    metric_of,
    telling_rows,
    time_term,
)
from workerlab.model import Chart, Finding, Level, Look, Mark, Series, Server
from workerlab.slo import Metric, Term

FAR = 10.0  # times the limit
WIDE = 8.0  # highest over lowest: from there on an axis is logarithmic
MB = 2**20
COLOURS = {"expected_rps": "prediction", "holds_rps": "measured", "breaks_rps": "connect"}
RATES = 8  # candidates whose highest rates are shown
SLIVER = 0.1  # of the highest: no bar shows less beside it, the table does


def charts(result: Result) -> Iterable[Chart]:
    return (one for one in (_plane(result), _rates(result)) if one is not None)


# --- what it costs, and what it does --------------------------------------------------------------


class Plane(Struct, frozen=True):
    """`memory`: whether that is what candidates cost, else workers; `unit`: of response times, with
    how many of them are a second."""

    result: Result
    term: Term | None
    metric: Metric
    memory: bool
    unit: str
    factor: float

    def expected_s(self, row: Row) -> float | None:
        found: float | None = getattr(row.expected.central, self.metric)
        return found

    def cost(self, server: Server) -> float | None:
        if not self.memory:
            return float(server.workers)
        used = self.result.search.expected[server.key].memory_bytes
        return None if used is None else used / MB

    def far(self, row: Row) -> bool:
        expected_s = self.expected_s(row)
        limit_s = self.term.limit if self.term else None
        return None not in (expected_s, limit_s) and (expected_s or 0) > FAR * (limit_s or 0)


def _plane(result: Result) -> Chart | None:
    """None: nothing is known of any."""
    term = time_term(result)
    memory = any(row.expected.memory_bytes is not None for row in result.rows)
    unit = ("s", 1.0) if term and term.limit >= 1 else ("ms", 1e3)
    plane = Plane(result, term, metric_of(result), memory, *unit)
    series = tuple(one for one in _series(plane) if one.points)
    if not series:
        return None
    cost = "memory" if memory else "workers"
    y_title = Finding("advise.chart.response", {"metric": plane.metric, "unit": plane.unit})
    return Chart(
        Finding("advise.chart", {"metric": plane.metric, "cost": cost}),
        Finding(f"advise.chart.{cost}"),
        y_title,
        series,
        _wide(series),
        Finding("advise.chart.note", _left_out(plane)),
        form="scatter",
        level=_level(plane),
    )


def _level(plane: Plane) -> Level | None:
    if plane.term is None:
        return None
    name = Finding("advise.chart.target", {"term": str(plane.term)})
    return Level(name, plane.term.limit * plane.factor)


def _left_out(plane: Plane) -> dict[str, int | None]:
    rows = plane.result.rows
    far = sum(plane.far(row) for row in rows)
    unknown = sum(plane.cost(row.server) is None for row in rows)
    return {"far": far or None, "unknown": unknown or None, "times": int(FAR)}


def _series(plane: Plane) -> Iterable[Series]:
    """What was measured stands on what was expected."""
    rows, result = plane.result.rows, plane.result
    near = [row for row in rows if not plane.far(row)]
    chosen = result.server if result.word == "recommended" else None
    yield _points(
        Finding("advise.chart.expected"), ("prediction", "circle"), plane, near, _expected
    )
    others = [row for row in rows if row.server != chosen]
    yield _points(
        Finding("advise.chart.measured"), ("measured", "square"), plane, others, _measured
    )
    if chosen is not None:
        name = Finding("advise.chart.recommended", {"candidate": name_of(chosen)})
        recommended = [row for row in rows if row.server == chosen]
        yield _points(name, ("service", "diamond"), plane, recommended, _measured)


Range = tuple[float | None, float | None, float | None]  # a time, its whisker: seconds
Of = Callable[[Plane, Row], Range]


def _expected(plane: Plane, row: Row) -> Range:
    low, high = (getattr(one, plane.metric) for one in (row.expected.low, row.expected.high))
    return plane.expected_s(row), low, high


def _measured(plane: Plane, row: Row) -> Range:
    """The whisker ends where one further launch in 40 does."""
    found = bound_of(row.standing, plane.term)
    return (found.mean, found.mean, found.bound) if found else (None, None, None)


def _points(name: Finding, look: Look, plane: Plane, rows: Sequence[Row], of: Of) -> Series:
    points, marks = [], []
    for row in rows:
        (time_s, *ends_s), cost = of(plane, row), plane.cost(row.server)
        if time_s is None or cost is None:
            continue
        points.append((cost, time_s * plane.factor))
        low, high = (None if end is None else end * plane.factor for end in ends_s)
        marks.append(Mark(name_of(row.server), low, high, anchor(plane.result, row.server)))
    return Series(name, tuple(points), tuple(marks), look)


def _wide(series: Iterable[Series]) -> tuple[bool, bool]:
    """Which axes are logarithmic."""
    points = [point for one in series for point in one.points]
    x, y = ([point[axis] for point in points] for axis in (0, 1))
    return _spread(x), _spread(y)


def _spread(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > WIDE * min(values)


# --- up to which rate -----------------------------------------------------------------------------


def _rates(result: Result) -> Chart | None:
    """Of those that were tried and the best of each class. None: nothing was measured that a bar
    could show."""
    rows = [row for row in telling_rows(result) if row.expected.highest_rps][:RATES]
    values = {
        "expected_rps": [row.expected.highest_rps for row in rows],
        "holds_rps": [row.reach.last for row in rows],
        "breaks_rps": [row.broken_rps for row in rows],
    }
    highest_rps = max((rps for rates in values.values() for rps in rates if rps), default=0.0)
    series = tuple(
        Series(
            Finding(f"advise.chart.{name}"),
            tuple(
                (float(at), rps or 0.0)
                for at, rps in enumerate(rates)
                if (rps or 0) > SLIVER * highest_rps
            ),
            look=(COLOURS[name], "circle"),
        )
        for name, rates in values.items()
    )
    if not any(one.points for one in series[1:]):
        return None
    return Chart(
        Finding("advise.chart.rates"),
        Finding("advise.chart.candidate"),
        Finding("advise.chart.rps"),
        tuple(one for one in series if one.points),
        note=Finding("advise.chart.rates.note"),
        form="bars",
        names=tuple(name_of(row.server) for row in rows),
    )
