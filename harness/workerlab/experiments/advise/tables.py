"""Tables and charts of `advise`.

Tables: the candidates and their launches; on the page each candidate links to its launches.

Charts: the response time of the target against the cost of candidates, expected and measured; then
the highest rate of each. Candidates with an expected time of more than MAX_LIMIT_RATIO times the
limit are counted, not drawn: they cannot keep up, and their times depend on the length of the load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.target import value_of
from workerlab.experiments.advise.result import AdviseResult, Row, candidate_of
from workerlab.experiments.advise.standing import Standing, TermBound
from workerlab.experiments.advise.study import meets_target
from workerlab.model.plan import Server
from workerlab.model.result import Chart, ChartSeries, Column, Level, Look, Mark, Table
from workerlab.numbers.units import fill
from workerlab.report.tables import route_table
from workerlab.report.values import figure_of, table
from workerlab.slo import Metric, Term

MAX_ROWS = 12  # candidates in the first table
LAUNCHES_ANCHOR, CANDIDATE_ANCHOR = "launches-{}", "candidate-{}"  # with the key of a server
SHORT_NOTE = "[[{more:# more candidate} with --explain.]]"
NOTE = (
    "Expected: simulated from the needs of a request, with a separate schedule of arrivals; missing"
    " if slots or cores cannot serve the rate, since waiting then grows for as long as the load"
    " lasts. Bound: the next launch is predicted to stay within it (97.5 %)."
)
CANDIDATE = Column("candidate", "text", value=lambda item: candidate_of(item.server))
SCHEDULE = Column(
    "schedule",
    "count",
    meaning="launches with the same number had the same arrivals",
)
RATES = (
    Column(
        "expected_highest_rps",
        heading="forecast up to req/s",
        meaning="the highest rate at which the target is expected to be met",
        value=attrgetter("expected.highest_rps"),
    ),
    Column(
        "highest_rps",
        heading="met up to req/s",
        meaning="the highest measured rate at which it was met, below any that failed",
        value=attrgetter("reach.passing_rps"),
    ),
    Column(
        "failing_rps",
        heading="missed at req/s",
        meaning="the lowest rate shown to miss it, or else the lowest at which a launch missed it",
        value=attrgetter("broken_rps"),
    ),
)


def tables(result: AdviseResult) -> Iterator[Table]:
    """The most relevant candidates, all candidates, all launches, and for a mix of routes each
    route at the target's rate."""
    if not result.rows:
        return
    rows, first_rows = sorted_rows(result), notable_rows(result)[:MAX_ROWS]
    anchors = [CANDIDATE_ANCHOR.format(row.server.key) for row in rows]
    links = [anchor(result, row.server) for row in rows]
    yield replace(
        table("Candidates", _columns(result), first_rows, NOTE),
        short_note=fill(SHORT_NOTE, {"more": len(rows) - len(first_rows) or None}),
        links=tuple(anchor(result, row.server) for row in first_rows),
    )
    yield replace(
        table("All candidates", _columns(result, ranges=True), rows),
        detailed=True,
        anchors=tuple(anchors),
        links=tuple("" if link in anchors else link for link in links),
    )
    if result.study.launches:
        yield _launches(result, rows)
    schedule_column = replace(SCHEDULE, value=lambda cell: cell.trial.cell.schedule)
    mixed = [launch.result for launch in result.launches if launch.result.routes]
    yield from route_table(mixed, [schedule_column])


# --- the term, its metric and the rows ------------------------------------------------------------


def time_term(result: AdviseResult) -> Term | None:
    """The term whose values are shown: the first one on a time; None if there is none."""
    return next((term for term in result.search.terms if term.kind == "time"), None)


def metric_of(result: AdviseResult) -> Metric:
    term = time_term(result)
    return term.metric if term else "p95"


def bound_of(standing: Standing, term: Term | None) -> TermBound | None:
    """The measured bound of the term; None if there is none."""
    return next((bound for bound in standing.bounds if bound.term == term), None)


def sorted_rows(result: AdviseResult) -> list[Row]:
    """The rows in the order of the search."""
    order = {server.key: position for position, server in enumerate(result.search.order)}
    return sorted(result.rows, key=lambda row: order.get(row.server.key, len(order)))


def notable_rows(result: AdviseResult) -> list[Row]:
    """The candidates with a valid launch, the best of each class, and the rule of thumb for classes
    that serve one request per worker."""
    rows, rule_of_thumb = sorted_rows(result), result.limits.rule_of_thumb
    best = {row.server.variant: row for row in reversed(rows)}
    return [
        row
        for row in rows
        if result.study.launches_of(row.server)
        or row is best[row.server.variant]
        or (row.server.workers == rule_of_thumb and row.server.threads == 1
            and row.server.worker_class in ("sync", "tornado"))
    ]  # fmt: skip


# --- links on the page ----------------------------------------------------------------------------


def anchor(result: AdviseResult, server: Server) -> str:
    """The link to a candidate's launches, or to its row among all candidates if it has none."""
    has_launches = any(launch.server == server for launch in result.study.launches)
    return (LAUNCHES_ANCHOR if has_launches else CANDIDATE_ANCHOR).format(server.key)


# --- candidates -----------------------------------------------------------------------------------


def _columns(result: AdviseResult, *, ranges: bool = False) -> Iterator[Column]:
    """The columns of candidates. `ranges`: include the range of the expected time, which depends on
    how unevenly workers accept connections and on which requests arrive."""
    term, metric = time_term(result), metric_of(result)

    def time_column(name: str, value: Callable[[Row], float | None]) -> Column:
        return Column(f"{name}_{metric}_s", "seconds", value=value)

    def measured_column(name: str, field: str) -> Column:
        return time_column(name, lambda row: getattr(bound_of(row.standing, term), field, None))

    yield CANDIDATE
    yield Column(
        "memory_bytes",
        "bytes",
        meaning="of the master and all workers, shared pages counted once",
        value=attrgetter("expected.memory_bytes"),
    )
    summaries = {"expected": "central", **({"least": "low", "most": "high"} if ranges else {})}
    for name, summary in summaries.items():
        yield time_column(name, attrgetter(f"expected.{summary}.{metric}"))
    yield from (measured_column("measured", "mean"), measured_column("bound", "bound"))
    yield Column("launches", "count", value=lambda row: row.launches or None)
    yield from RATES
    yield Column("status", "text")


# --- launches -------------------------------------------------------------------------------------


def _launches(result: AdviseResult, rows: Sequence[Row]) -> Table:
    """All launches, by candidate, rate and schedule."""
    order = {row.server: position for position, row in enumerate(rows)}
    launches = sorted(
        result.study.launches,
        key=lambda launch: (order.get(launch.server, len(order)), launch.rps, launch.schedule),
    )
    columns = _launch_columns(metric_of(result), result.search.terms)
    anchors = [LAUNCHES_ANCHOR.format(launch.server.key) for launch in launches]
    anchors = ["" if name in anchors[:row] else name for row, name in enumerate(anchors)]
    return replace(table("Launches", columns, launches), detailed=True, anchors=tuple(anchors))


def _launch_columns(metric: Metric, terms: Sequence[Term]) -> tuple[Column, ...]:
    outcome = {True: "met", False: "missed"}
    return (
        CANDIDATE,
        Column("rate_rps", heading="at req/s", value=attrgetter("rps")),
        SCHEDULE,
        Column("requests", "count", meaning="requests that were due", value=attrgetter("due")),
        Column("failed", "count"),
        Column(
            f"measured_{metric}_s",
            "seconds",
            value=lambda launch: value_of(metric, launch.requests),
        ),
        Column(
            "lag_p95_s",
            "seconds",
            heading="lag",
            meaning="how late requests were sent, 95th percentile",
            value=lambda launch: figure_of(launch.cell, "at_rate.lag.p95"),
        ),
        Column(
            "kept",
            "text",
            heading="target",
            meaning="whether this launch met the target",
            value=lambda launch: outcome[meets_target(launch, terms)] if launch.facts else None,
        ),
        Column("verdict", "text", value=attrgetter("cell.verdict")),
        Column(
            "void",
            "text",
            heading="discarded",
            meaning="why it does not count",
            value=attrgetter("discard_reason"),
        ),
    )


MAX_LIMIT_RATIO = 10  # expected times above this multiple of the limit are not drawn
MAX_LINEAR_RATIO = 8.0  # highest over lowest value: with more, an axis is logarithmic
MB = 2**20
MAX_RATE_ROWS = 8  # candidates whose highest rates are shown
MIN_BAR_SHARE = 0.1  # of the highest rate: shorter bars are only in the table
CHART_NOTE = (
    "At the target's rate. Each point is a candidate and links to its launches or, without any, to"
    " its row among all candidates. Whiskers: the expected range; for measured points, up to the"
    " bound that the next launch is predicted to stay within (97.5 %).[[ Not shown, because over"
    " {times} times the limit is expected: {far:# candidate}.]][[ Not shown, because their slots or"
    " cores cannot serve this rate: {beyond:# candidate}.]][[ Not shown, because their memory is"
    " unknown: {unknown:# candidate}.]]"
)
RATES_NOTE = (
    "A rate at which the target was met says nothing about higher ones, unless a rate at which it"
    " was missed is shown next to it."
)


def charts(result: AdviseResult) -> Iterator[Chart]:
    yield from _plane(result)
    yield from _rates(result)


# --- response time against cost -------------------------------------------------------------------


Range = tuple[float | None, float | None, float | None]  # a time and the ends of its whisker, s


class Plane(Struct, frozen=True):
    """The chart of response time against cost. `is_memory`: the cost is memory in MB instead of the
    number of workers; `factor`: from seconds to the unit of the response times."""

    result: AdviseResult
    term: Term | None
    metric: Metric
    is_memory: bool
    factor: float

    def cost(self, row: Row) -> float | None:
        if not self.is_memory:
            return float(row.server.workers)
        used_bytes = row.expected.memory_bytes
        return None if used_bytes is None else used_bytes / MB

    def expected(self, row: Row) -> Range:
        """The median; the whisker is the range."""
        central_s, low_s, high_s = (
            getattr(summary, self.metric)
            for summary in (row.expected.central, row.expected.low, row.expected.high)
        )
        return central_s, low_s, high_s

    def measured(self, row: Row) -> Range:
        """The mean; the whisker ends at the prediction bound, which one launch in 40 exceeds."""
        bound = bound_of(row.standing, self.term)
        return (bound.mean, bound.mean, bound.bound) if bound else (None, None, None)

    def is_far(self, row: Row) -> bool:
        expected_s, *_ = self.expected(row)
        limit_s = self.term.limit if self.term else math.inf
        return expected_s is not None and expected_s > MAX_LIMIT_RATIO * limit_s

    def points(
        self, name: str, look: Look, rows: Iterable[Row], times_of: Callable[[Row], Range]
    ) -> ChartSeries:
        points, marks = [], []
        for row in rows:
            (time_s, *ends_s), cost = times_of(row), self.cost(row)
            if time_s is not None and cost is not None:
                points.append((cost, time_s * self.factor))
                low, high = (None if end_s is None else end_s * self.factor for end_s in ends_s)
                link = anchor(self.result, row.server)
                marks.append(Mark(candidate_of(row.server), low, high, link))
        return ChartSeries(name, tuple(points), tuple(marks), look)

    def series(self) -> Iterator[ChartSeries]:
        """Expected points first, so that measured ones are drawn over them."""
        result = self.result
        near = (row for row in result.rows if not self.is_far(row))
        yield self.points("expected", ("prediction", "circle"), near, self.expected)
        recommended = result.server if result.outcome == "recommended" else None
        others = (row for row in result.rows if row.server != recommended)
        yield self.points("measured", ("measured", "square"), others, self.measured)
        if recommended is not None:
            name = f"recommended, measured: {candidate_of(recommended)}"
            recommended_row = (row for row in result.rows if row.server == recommended)
            yield self.points(name, ("service", "diamond"), recommended_row, self.measured)


def _plane(result: AdviseResult) -> Iterator[Chart]:
    """The chart of response time against cost, if it has any points."""
    term, rows, metric = time_term(result), result.rows, metric_of(result)
    is_memory = any(row.expected.memory_bytes is not None for row in rows)
    unit, factor = ("s", 1.0) if term and term.limit >= 1 else ("ms", 1e3)
    plane = Plane(result, term, metric, is_memory=is_memory, factor=factor)
    series = tuple(chart_series for chart_series in plane.series() if chart_series.points)
    if not series:
        return
    points = [point for chart_series in series for point in chart_series.points]
    x, y = (0 < MAX_LINEAR_RATIO * min(axis) < max(axis) for axis in zip(*points, strict=True))
    counts = {
        "times": MAX_LIMIT_RATIO,
        "far": sum(map(plane.is_far, rows)) or None,
        "beyond": sum(plane.expected(row)[0] is None for row in rows) or None,
        "unknown": sum(plane.cost(row) is None for row in rows) or None,
    }
    yield Chart(
        title=f"{metric} response time against {'memory' if is_memory else 'workers'}",
        x_title="memory, MB" if is_memory else "workers",
        y_title=f"{metric} response time, {unit}",
        series=series,
        log=(x, y),
        note=fill(CHART_NOTE, counts),
        form="scatter",
        level=Level(f"target: {term}", term.limit * factor) if term else None,
    )


# --- highest rates --------------------------------------------------------------------------------


def _rates(result: AdviseResult) -> Iterator[Chart]:
    """The highest rates, expected and measured, of the launched candidates and the best of each
    class; no chart if no measured bar would be visible."""
    rows = [row for row in notable_rows(result) if row.expected.highest_rps][:MAX_RATE_ROWS]
    rates = {
        ("expected: met up to", "prediction"): [row.expected.highest_rps or 0.0 for row in rows],
        ("measured: met at", "measured"): [row.reach.passing_rps or 0.0 for row in rows],
        ("measured: missed at", "connect"): [row.broken_rps or 0.0 for row in rows],
    }
    min_rps = MIN_BAR_SHARE * max(chain(*rates.values()), default=0.0)
    series = [
        ChartSeries(
            name,
            tuple((float(x), rps) for x, rps in enumerate(column) if rps > min_rps),
            look=(colour, "circle"),
        )
        for (name, colour), column in rates.items()
    ]
    if any(bars.points for bars in series[1:]):
        yield Chart(
            title="Highest rate that meets the target",
            x_title="candidate",
            y_title="requests/s",
            series=tuple(bars for bars in series if bars.points),
            note=RATES_NOTE,
            form="bars",
            names=tuple(candidate_of(row.server) for row in rows),
        )
