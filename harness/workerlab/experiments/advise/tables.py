"""The tables of `advise`: its candidates, and the launches that were made of them, to which each
candidate leads on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from msgspec.structs import replace

from workerlab.analysis.target import value_of
from workerlab.experiments.advise.result import AdviseResult, Row, candidate_of
from workerlab.experiments.advise.standing import Standing, TermBound
from workerlab.experiments.advise.study import holds
from workerlab.experiments.document import table
from workerlab.model import Column, Server, Table
from workerlab.numbers.formats import fill
from workerlab.report.route_table import route_table
from workerlab.report.sweep_tables import unit_of
from workerlab.slo import Metric, Term

ROWS = 12  # candidates in the first table
SHORT_NOTE = "[[{more:# more candidate} with --explain.]]"
NOTE = (
    "Expected: simulated from what a request needs, at the arrivals of a schedule of its own."
    " Bound: what the next launch is predicted to stay within (97.5 %)."
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
        meaning="the highest rate at which the target is expected to hold",
        value=attrgetter("expected.highest_rps"),
    ),
    Column(
        "highest_rps",
        heading="holds up to req/s",
        meaning="the highest rate that was measured to hold it, below any that broke it",
        value=attrgetter("reach.last"),
    ),
    Column(
        "failing_rps",
        heading="breaks at req/s",
        meaning="the lowest rate that was shown to break it, else at which a launch broke it",
        value=attrgetter("broken_rps"),
    ),
)


def tables(result: AdviseResult) -> Iterator[Table]:
    """Those that tell the most, all, and what was launched; of a mix, what became of each route in
    the launches at the target's rate."""
    if not result.rows:
        return
    rows, first = ordered(result), telling_rows(result)[:ROWS]
    launched = _launched(result)
    yield replace(
        table("Candidates", _columns(result), first, NOTE),
        short_note=fill(SHORT_NOTE, {"more": len(rows) - len(first) or None}),
        links=tuple(anchor(result, row.server) for row in first),
    )
    yield replace(
        table("All candidates", _columns(result, ranges=True), rows),
        detailed=True,
        anchors=tuple(_anchor_of_candidate(row.server) for row in rows),
        links=tuple(
            _anchor_of_launches(row.server) if row.server in launched else "" for row in rows
        ),
    )
    if result.study.launches:
        yield _launches(result, rows)
    of_cell = replace(SCHEDULE, value=lambda cell: cell.trial.cell.schedule)
    mixed = [launch.cell for launch in result.launches if launch.cell.routes]
    yield from route_table(mixed, [of_cell], unit_of)


# --- what is shown --------------------------------------------------------------------------------


def time_term(result: AdviseResult) -> Term | None:
    """Whose values are shown: the first about a time."""
    return next((term for term in result.search.terms if term.kind == "time"), None)


def metric_of(result: AdviseResult) -> Metric:
    term = time_term(result)
    return term.metric if term else "p95"


def bound_of(standing: Standing, term: Term | None) -> TermBound | None:
    """What launches showed of that term."""
    return next((bound for bound in standing.bounds if bound.term == term), None)


def ordered(result: AdviseResult) -> list[Row]:
    """Those first that the search tries first."""
    order = {server.key: place for place, server in enumerate(result.search.order())}
    return sorted(result.rows, key=lambda row: order.get(row.server.key, len(order)))


def telling_rows(result: AdviseResult) -> list[Row]:
    """Those that were tried, the rule of thumb, and the best of each class."""
    best: dict[str, Row] = {}
    for row in (rows := ordered(result)):
        best.setdefault(row.server.variant, row)
    thumb = result.limits.thumb
    return [
        row
        for row in rows
        if result.study.of(row.server)
        or row is best[row.server.variant]
        or (row.server.workers == thumb and row.server.threads == 1
            and row.server.worker_class in ("sync", "tornado"))
    ]  # fmt: skip


# --- where a candidate leads ----------------------------------------------------------------------


def anchor(result: AdviseResult, server: Server) -> str:
    """To its launches, or where it has none to its row among all."""
    launched = server in _launched(result)
    return _anchor_of_launches(server) if launched else _anchor_of_candidate(server)


def _launched(result: AdviseResult) -> set[Server]:
    return {launch.server for launch in result.study.launches}


def _anchor_of_launches(server: Server) -> str:
    return f"launches-{server.key}"


def _anchor_of_candidate(server: Server) -> str:
    return f"candidate-{server.key}"


# --- candidates -----------------------------------------------------------------------------------


def _columns(result: AdviseResult, *, ranges: bool = False) -> Iterator[Column]:
    """`ranges`: with those of what is expected: how unevenly workers accept, and which requests
    come, is chance."""
    term, metric = time_term(result), metric_of(result)

    def time_column(name: str, value: Callable[[Row], float | None]) -> Column:
        return Column(f"{name}_{metric}_s", "seconds", value=value)

    def expected(name: str, which: str) -> Column:
        return time_column(name, attrgetter(f"expected.{which}.{metric}"))

    def measured(name: str, which: str) -> Column:
        return time_column(name, lambda row: getattr(bound_of(row.standing, term), which, None))

    yield CANDIDATE
    yield Column(
        "memory_bytes",
        "bytes",
        meaning="of the master and all workers, shared pages counted once",
        value=attrgetter("expected.memory_bytes"),
    )
    yield expected("expected", "central")
    if ranges:
        yield from (expected("least", "low"), expected("most", "high"))
    yield from (measured("measured", "mean"), measured("bound", "bound"))
    yield Column("launches", "count", value=lambda row: row.launches or None)
    yield from RATES
    yield Column("status", "text")


# --- launches -------------------------------------------------------------------------------------


def _launches(result: AdviseResult, rows: Sequence[Row]) -> Table:
    """By candidate, those of one by rate and schedule."""
    order = {row.server: place for place, row in enumerate(rows)}
    launches = sorted(
        result.study.launches,
        key=lambda launch: (order.get(launch.server, len(order)), launch.rps, launch.schedule),
    )
    columns = _launch_columns(metric_of(result), result.search.terms)
    servers = [launch.server for launch in launches]
    anchors = (
        _anchor_of_launches(server) if server not in servers[:place] else ""
        for place, server in enumerate(servers)
    )
    launched = table("Launches", columns, launches)
    return replace(launched, detailed=True, anchors=tuple(anchors))


def _launch_columns(metric: Metric, terms: Sequence[Term]) -> tuple[Column, ...]:
    outcome = {True: "kept", False: "broken"}
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
            value=attrgetter("cell.lag.p95"),
        ),
        Column(
            "kept",
            "text",
            heading="target",
            meaning="what this launch made of the target",
            value=lambda launch: outcome[holds(launch, terms)] if launch.facts else None,
        ),
        Column("verdict", "text", value=attrgetter("cell.verdict")),
        Column("void", "text", heading="discarded", meaning="why it says nothing of the candidate"),
    )
