"""The tables of `advise`: its candidates, and the launches that were made of them, to which each
candidate leads on the page."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from workerlab.analysis.target import value_of
from workerlab.experiments.advise.result import Result, Row, name_of
from workerlab.experiments.advise.standing import Bound, Standing
from workerlab.experiments.advise.study import Launch, holds
from workerlab.experiments.document import Field, table
from workerlab.model import Column, Finding, Server, Table
from workerlab.report.route_table import route_table
from workerlab.report.sweep_tables import unit_of
from workerlab.slo import Metric, Term

ROWS = 12  # candidates in the first table
SCHEDULE = Column("schedule", "count", value=lambda cell: cell.trial.cell.schedule)


def tables(result: Result) -> Iterable[Table]:
    """Those that tell the most, all, and what was launched; of a mix, what became of each route in
    the launches at the target's rate."""
    if not result.rows:
        return
    rows, telling = ordered(result), telling_rows(result)[:ROWS]
    launched = _launched(result)
    fields = _fields(result)
    title = Finding("advise.table.candidates")
    note = Finding("advise.table.note", {"more": len(rows) - len(telling) or None})
    yield replace(
        table(title, fields, telling, note),
        links=tuple(anchor(result, row.server) for row in telling),
    )
    yield replace(
        table(Finding("advise.table.all"), [*fields[:3], *_range(result), *fields[3:]], rows),
        anchors=tuple(_anchor_of_candidate(row.server) for row in rows),
        links=tuple(
            _anchor_of_launches(row.server) if row.server in launched else "" for row in rows
        ),
    )
    if result.study.launches:
        yield _launches(result, rows)
    mixed = [one.cell for one in result.launches if one.cell.routes]
    yield from route_table(mixed, [SCHEDULE], unit_of)


# --- what is shown --------------------------------------------------------------------------------


def time_term(result: Result) -> Term | None:
    """Whose values are shown: the first about a time."""
    return next((one for one in result.search.terms if one.kind == "time"), None)


def metric_of(result: Result) -> Metric:
    term = time_term(result)
    return term.metric if term else "p95"


def bound_of(standing: Standing, term: Term | None) -> Bound | None:
    """What launches showed of that term."""
    return next((one for one in standing.bounds if one.term == str(term)), None)


def ordered(result: Result) -> list[Row]:
    """Those first that the search tries first."""
    order = {server.key: place for place, server in enumerate(result.search.order())}
    return sorted(result.rows, key=lambda row: order.get(row.server.key, len(order)))


def telling_rows(result: Result) -> list[Row]:
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


def anchor(result: Result, server: Server) -> str:
    """To its launches, or where it has none to its row among all."""
    launched = server in _launched(result)
    return _anchor_of_launches(server) if launched else _anchor_of_candidate(server)


def _launched(result: Result) -> set[Server]:
    return {one.server for one in result.study.launches}


def _anchor_of_launches(server: Server) -> str:
    return f"launches-{server.key}"


def _anchor_of_candidate(server: Server) -> str:
    return f"candidate-{server.key}"


# --- candidates -----------------------------------------------------------------------------------


def _fields(result: Result) -> Sequence[Field]:
    term, metric = time_term(result), metric_of(result)

    def shown(row: Row, name: str) -> float | None:
        bound = bound_of(row.standing, term)
        return getattr(bound, name) if bound else None

    return (
        ("candidate", "text", lambda row: name_of(row.server)),
        ("memory_bytes", "bytes", lambda row: row.expected.memory_bytes),
        (f"expected_{metric}_s", "seconds", lambda row: getattr(row.expected.central, metric)),
        (f"measured_{metric}_s", "seconds", lambda row: shown(row, "mean")),
        (f"bound_{metric}_s", "seconds", lambda row: shown(row, "bound")),
        ("launches", "count", lambda row: row.launches or None),
        ("expected_highest_rps", "number", lambda row: row.expected.highest_rps),
        ("highest_rps", "number", lambda row: row.reach.last),
        ("failing_rps", "number", lambda row: row.broken_rps),
        ("status", "text", lambda row: row.status),
    )


def _range(result: Result) -> Sequence[Field]:
    """Of what is expected: how unevenly workers accept, and which requests come, is chance."""
    metric = metric_of(result)
    return (
        (f"least_{metric}_s", "seconds", lambda row: getattr(row.expected.low, metric)),
        (f"most_{metric}_s", "seconds", lambda row: getattr(row.expected.high, metric)),
    )


# --- launches -------------------------------------------------------------------------------------


def _launches(result: Result, rows: Sequence[Row]) -> Table:
    """By candidate, those of one by rate and schedule."""
    order = {row.server: place for place, row in enumerate(rows)}
    every = sorted(
        result.study.launches,
        key=lambda one: (order.get(one.server, len(order)), one.rps, one.schedule),
    )
    fields = _launch_fields(metric_of(result), result.search.terms)
    servers = [one.server for one in every]
    anchors = [
        _anchor_of_launches(server) if server not in servers[:place] else ""
        for place, server in enumerate(servers)
    ]
    made = table(Finding("advise.table.launches"), fields, every)
    return replace(made, anchors=tuple(anchors))


def _launch_fields(metric: Metric, terms: Sequence[Term]) -> Sequence[Field]:
    def value(one: Launch) -> float | None:
        return value_of(metric, one.requests)

    def kept(one: Launch) -> Finding | None:
        if one.facts is None:
            return None
        return Finding("advise.kept" if holds(one, terms) else "advise.broke")

    return (
        ("candidate", "text", lambda one: name_of(one.server)),
        ("rate_rps", "number", lambda one: one.rps),
        ("schedule", "count", lambda one: one.schedule),
        ("requests", "count", lambda one: one.due),
        ("failed", "count", lambda one: one.failed),
        (f"measured_{metric}_s", "seconds", value),
        ("lag_p95_s", "seconds", lambda one: one.cell.lag.p95),
        ("kept", "text", kept),
        ("verdict", "text", lambda one: one.cell.verdict),
        ("void", "text", lambda one: one.void),
    )  # fmt: skip
