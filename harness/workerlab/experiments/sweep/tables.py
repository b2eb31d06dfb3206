"""The tables of a sweep: cells, where the time goes, kept-alive connections, closed and open loop,
ab's own figures, and classes. `report/tables.py` has the table of a mix's routes.

To add a column, add an entry to CLOSED_COLUMNS, RATE_COLUMNS or another tuple below: a `Column`
with heading, meaning and value or, for a key of the JSON output, a `column`, which takes all three
from `report/keys.py`.

The closed-loop tables exclude open-model cells: their connections are not kept busy, and neither
knee nor bound applies to them.

The first table has no column for waiting, although the JSON output has the figure. It is a mean
over all requests, including the ramp-up (0.88 s if each request waits 1.00 s once the load is
steady), and would contradict the second table, whose parts are means over the steady part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter

from msgspec.structs import replace

from workerlab.analysis.breakdown import PartsEstimated, PartsExceedResponse
from workerlab.analysis.cell_targets import target_of
from workerlab.analysis.diagnosis.slots import (
    FullAcceptQueue,
    IdleWhileClientsWait,
    LikelyFullAcceptQueue,
    part_of_load,
)
from workerlab.analysis.open_closed import models_note, open_and_closed
from workerlab.analysis.trials import conclusive, valid_results
from workerlab.model.evidence import AbTimes
from workerlab.model.result import (
    ClassResult,
    Column,
    Invalid,
    Report,
    Result,
    Table,
    TrialResult,
    Value,
)
from workerlab.numbers.units import amount
from workerlab.report.keys import JsonAb, JsonClass, JsonSplit, column, keys_of
from workerlab.report.tables import response_column, route_table, unit_of
from workerlab.report.values import (
    PARTS,
    Names,
    by_series,
    figure_of,
    finite,
    is_in_force,
    joined_table,
    load_of,
    table,
)

AB_TOTAL_COLUMNS = tuple(column(name, of=JsonAb) for name in JsonAb.__struct_fields__)
AB_TIME_OF = Column(
    "time_of",
    "text",
    heading="time",
    meaning="connect: until connected; processing: from then until the response ended; waiting:"
    " from the request until the first byte; whole ms, all requests including the lone first",
    value=str,
)
AB_TIME_COLUMNS = tuple(
    Column(f"{name}_s", "seconds", value=attrgetter(name)) for name in AbTimes.__struct_fields__
)


def ab_tables(cells: Iterable[Result], leading: Sequence[Column]) -> Iterator[Table]:
    """ab's totals and connection times. `leading`: the columns that identify a cell."""
    reports = [(cell, cell.ab) for cell in cells if cell.ab is not None]
    options = {"keys": len(leading), "detailed": True}
    yield joined_table("What ab printed", [leading, AB_TOTAL_COLUMNS], reports, **options)
    yield joined_table(
        "Connection times as ab printed them",
        [leading, [AB_TIME_OF], AB_TIME_COLUMNS],
        ((cell, kind, times) for cell, report in reports for kind, times in report.times.items()),
        unit="ms",
        **options,
    )


TABLE_TIMES = ("response.p50", "response.p95", "response.p99", "response.max", "at_rate.lag.p95")

Cells = Sequence[TrialResult]
Columns = Sequence[Column]


def sweep_tables(report: Report, names: Names) -> Iterator[Table]:
    """All tables that have rows."""
    valid = valid_results(report.cells)
    closed = [cell for cell in report.cells if cell.trial.cell.rate is None]
    leading = leading_columns(names, CONCURRENCY_COLUMN)
    targets = [TARGET_COLUMN] if any(cell.target for cell in valid) else []
    mix_cells = [cell for cell in valid if cell.routes]
    load = (
        LOAD_COLUMN
        if any(cell.trial.cell.rate is not None for cell in mix_cells)
        else CONCURRENCY_COLUMN
    )
    tables = (
        *(
            replace(cell_table, keys=len(leading) - 1 - names.several_trials)
            for cell_table in (
                cells_table(closed, [*leading, *result_columns(closed), *targets]),
                breakdown_table(closed, leading),
                keepalive_table(closed, leading),
                models_table(
                    report.cells, [*leading_columns(names, LOAD_COLUMN), *RATE_COLUMNS, *targets]
                ),
            )
        ),
        *route_table(mix_cells, leading_columns(names, load)),
        *ab_tables(valid_results(closed), leading),
        class_table(report.classes, names),
    )
    return (sweep_table for sweep_table in tables if sweep_table.rows)


def time_unit(cells: Cells) -> str:
    """The unit of all times in the tables of these cells, as in `unit_of`."""
    paths = (*TABLE_TIMES, *(f"breakdown.{part}_s" for part in PARTS))
    times_of_cells = [[finite(figure_of(cell, path)) for path in paths] for cell in cells]
    return unit_of([[abs(time_s) for time_s in times if time_s] for times in times_of_cells])


# --- columns that identify a cell -----------------------------------------------------------


CONCURRENCY_COLUMN = column("concurrency")
LOAD_COLUMN = Column("load", "text", value=load_of)
KEEPALIVE_COLUMN = column(
    "keepalive", value=lambda cell: "on" if cell.trial.cell.keepalive else "off"
)


def leading_columns(names: Names, load: Column) -> list[Column]:
    """Columns that identify a cell. Settings that never vary are in the title instead."""
    return [
        column("worker_class"),
        *(column(name, value=partial(_setting, name)) for name in names.settings),
        *([column("tool")] if names.tools_vary else []),
        *([column("tool_processes")] if names.processes_vary else []),
        *([KEEPALIVE_COLUMN] if names.keepalive_varies else []),
        load,
        *([column("trial")] if names.several_trials else []),
    ]


def _setting(name: str, cell: TrialResult) -> Value:
    """The requested value, followed by the effective one if it differs."""
    requested: int | str = getattr(cell.server, name)
    if is_in_force(name, cell):
        return requested
    in_force = cell.in_force[name]
    return f"{requested} ({'ignored' if in_force is None else f'{in_force} effective'})"


# --- results --------------------------------------------------------------------------------


def slots(result: Result | Invalid | ClassResult) -> Value:
    """The number of slots, "unlimited" or "not known"; None for an invalid cell."""
    if isinstance(result, Invalid):
        return None
    if result.slots_configured is not None:
        return result.slots_configured
    return "unlimited" if result.worker_class.slots_known else "not known"


CLOSED_COLUMNS = (
    column("slots_configured", 1, slots),
    column("slots_measured", 1),
    column("occupancy", 5),
    column("throughput_rps"),
    column("throughput_half_rps", 2),
    column("bound_rps", 4),
    # Only if handshakes were dropped: see `has_dropped_handshakes`
    Column(
        "mean_s",
        "seconds",
        meaning="mean response time while the load is steady, by Little's law; if the load"
        " stalled, over the whole load",
        value="breakdown.response_s",
    ),
    response_column("p50", "response time"),
    response_column("p95", "response time", 3),
    response_column("max", "response time", 2),
    column("failed", 1),
    column("verdict"),
)
TARGET_COLUMN = column("target", value=target_of)
MIN_HALF_WIDTH_SHARE = 0.01  # of a throughput: a narrower interval is not worth a column
DROP_FINDINGS = (FullAcceptQueue, IdleWhileClientsWait, LikelyFullAcceptQueue)
GENERATOR_BOUND_NOTE = (
    "generator-bound: the load tool is or may be the limit, so the server may be faster than"
    " measured."
)


def result_columns(cells: Cells) -> list[Column]:
    """CLOSED_COLUMNS without the columns that carry no information for these cells."""
    valid = valid_results(cells)
    is_informative = {
        "occupancy": any(cell.occupancy is not None for cell in valid),
        "throughput_half_rps": any(map(is_uncertain, valid)),
        "mean_s": any(map(has_dropped_handshakes, valid)),
    }
    return [col for col in CLOSED_COLUMNS if is_informative.get(col.name, True)]


def is_uncertain(cell: Result) -> bool:
    """Whether the cell's throughput has an interval that is worth showing."""
    rps, half_rps = cell.throughput_rps, cell.throughput_half_rps
    return half_rps is not None and MIN_HALF_WIDTH_SHARE * rps < half_rps < float("inf")


def has_dropped_handshakes(cell: Result) -> bool:
    """Whether handshakes were dropped; means include the time until a repeat, medians do not."""
    return any(isinstance(finding, DROP_FINDINGS) for finding in cell.findings)


def cells_table(cells: Cells, columns: Columns) -> Table:
    is_bound = any(cell.verdict == "generator-bound" for cell in cells)
    note = GENERATOR_BOUND_NOTE if is_bound else ""
    return table("Cells", columns, cells, note, unit=time_unit(cells), terminal="untitled")


# --- where the time goes --------------------------------------------------------------------

RESPONSE_MEAN = Column(
    "response_mean_s", "seconds", 2, heading="response", value="breakdown.response_s"
)
PART_COLUMNS = tuple(
    Column(
        f"{part}_s",
        "seconds",
        part == "transfer",
        heading=key.heading,
        meaning=key.meaning,
        value=f"breakdown.{part}_s",
    )
    for part, key in keys_of(JsonSplit).items()
)


def breakdown_table(closed: Cells, leading: Columns) -> Table:
    cells = [cell for cell in valid_results(closed) if cell.breakdown.response_s is not None]
    mixed = len({cell.breakdown.exact for cell in cells}) > 1
    columns = [*leading, RESPONSE_MEAN, *PART_COLUMNS, *([column("split_exact")] if mixed else [])]
    note, why = sources_of(cells)
    return table(
        f"Where the time goes, mean of {part_of_load(cells)}",
        columns,
        cells,
        note,
        unit=time_unit(closed),
        short_note=why and f"Where the time goes: {why}",
        terminal="beside",
    )


def sources_of(cells: Sequence[Result]) -> tuple[str, str]:
    """A note, and only its reasons; each may be "". The note says which rows are exact, what
    the source of each part of the other rows is, and why they are estimates or have no parts."""
    cells_with_parts = [cell for cell in cells if cell.breakdown.unattributed_s is not None]
    estimated_cells = [cell for cell in cells_with_parts if not cell.breakdown.exact]
    sources: dict[str, dict[str, None]] = {}
    for cell in estimated_cells:
        for part, source in cell.breakdown.sources.items():
            sources.setdefault(PARTS[part], {})[str(source)] = None
    parts = ", ".join(f"{part} ({' or '.join(names)})" for part, names in sources.items())
    reasons = {
        note.code: f"{note}."
        for cell in reversed(cells)  # the first cell's reason of each kind
        for note in cell.notes
        if isinstance(note, PartsEstimated | PartsExceedResponse)
    }
    why = " ".join(reasons.values())
    exact, others = "Exact", "Estimates"
    if 0 < len(estimated_cells) < len(cells_with_parts):
        exact, others = "Exact rows", "Other rows are estimates"
    sentences = (
        f"{exact}: every request was traced from the client into the app.",
        f"{others} from separate sources: {parts}.",
        why,
    )
    applies = (len(estimated_cells) < len(cells_with_parts), bool(estimated_cells), bool(why))
    return " ".join(compress(sentences, applies)), why


# --- kept-alive connections, open model -----------------------------------------------------


def keepalive_table(closed: Cells, leading: Columns) -> Table:
    cells = [cell for cell in valid_results(closed) if cell.trial.cell.keepalive]
    columns = [
        *leading,
        Column("connections_per_worker", "text", value=_connection_counts),
        column("bound_rps"),
        column("split_prediction_rps"),
        Column("measured_rps", value="throughput_rps"),
    ]
    title = "Kept-alive connections stay with the worker that accepted them"
    return table(title, columns, cells, unit=time_unit(closed), detailed=True)


def _connection_counts(cell: Result) -> str | None:
    """'5, 3', in descending order; None if unknown."""
    counts = (cell.connections_per_worker or {}).values()
    return ", ".join(str(count) for count in sorted(counts, reverse=True)) or None


RESPONSE_SINCE_DUE = "response time; in the open model, since the request was due"
RATE_COLUMNS = (
    column("asked_rps", 4),
    replace(
        column("sent_rps"),
        meaning="requests sent per second; with Poisson arrivals, the number due is random",
    ),
    column("throughput_rps"),
    response_column("p50", RESPONSE_SINCE_DUE),
    response_column("p95", RESPONSE_SINCE_DUE),
    response_column("p99", RESPONSE_SINCE_DUE, 3),
    response_column("max", RESPONSE_SINCE_DUE, 2),
    Column(
        "lag_p95_s",
        "seconds",
        1,
        heading="lag",
        meaning="how late requests were sent, 95th percentile",
        value="at_rate.lag.p95",
    ),
    column("failed", 2),
    column("verdict"),
)


def models_table(cells: Cells, columns: Columns) -> Table:
    """The load, the rates requested, sent and served, and the response times of each cell."""
    title = "Closed and open: the same server under N clients, and under arrivals at a rate"
    note = models_note(cells, cells)
    return table(title, columns, side_by_side(cells), note, unit=time_unit(cells))


def side_by_side(cells: Cells) -> list[Result]:
    """The open cells of each series after their closed counterparts; inconclusive ones last."""
    rows: dict[str, Result] = {}
    for series in by_series(cells).values():
        inconclusive = [
            cell for cell in valid_results(series) if cell.trial.cell.rate and not conclusive(cell)
        ]
        compared = [
            cell
            for at_rate, closed in open_and_closed(series)
            for cell in (*(closed.valid if closed else ()), *at_rate.valid)
        ]
        rows |= {cell.trial.key: cell for cell in (*compared, *inconclusive)}
    return list(rows.values())


# --- classes --------------------------------------------------------------------------------


def _interval(group: ClassResult) -> str | None:
    """'118 to 121'; None if unknown."""
    limits = group.capacity_ci95
    return None if limits is None else " to ".join(map(amount, limits))


def _knee(group: ClassResult) -> Value:
    """The connections at the knee, or why there is no knee."""
    return group.knee_note.short if group.knee is None else round(group.knee, 1)


def _per_worker(name: str, group: ClassResult) -> float | None:
    knee: float | None = getattr(group, name)
    return None if knee is None else knee / group.server.workers


CLASS_COLUMNS = (
    column("slots_configured", value=slots),
    column("slots_measured"),
    column("capacity_rps", of=JsonClass),
    Column("capacity_ci95_rps", "text", heading="95 % interval", value=_interval),
    Column("knee", "text", value=_knee),
)
KNEE_COLUMNS = (
    Column("knee_per_worker", value=partial(_per_worker, "knee")),
    replace(
        column("knee_predicted", value=partial(_per_worker, "knee_predicted"), of=JsonClass),
        name="knee_per_worker_predicted",
    ),
)


def class_table(groups: Sequence[ClassResult], names: Names) -> Table:
    columns = (
        Column("series", "text", heading="class", value=names.series),
        *CLASS_COLUMNS,
        *(KNEE_COLUMNS if any(group.knee_predicted for group in groups) else ()),
    )
    return table("Capacity of each class", columns, groups, detailed=True)
