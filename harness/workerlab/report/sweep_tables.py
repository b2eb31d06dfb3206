"""The tables of a sweep: cells, where time goes, kept connections, closed and open, ab, classes.

Cells of the open model stand in no table of the closed loop: their connections are not kept busy,
and neither knee nor bound applies to them.

The first table has no column for waiting, although the JSON has the figure: it is a mean over all
requests, the ramp-up included (0.88 s where each request waits 1.00 s once the load is steady), and
would contradict the second, whose parts are means of the steady part.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter

from workerlab.analysis.cell_targets import target_of
from workerlab.analysis.diagnosis.slots import (
    FullAcceptQueue,
    IdleWhileClientsWait,
    LikelyFullAcceptQueue,
)
from workerlab.analysis.open_closed import one_trial, pairs
from workerlab.model import CellResult, ClassResult, Column, Finding, Form, Report, Table, Value
from workerlab.report.ab_tables import ab_tables
from workerlab.report.naming import AMOUNTS, Names, by_series, taken
from workerlab.report.route_table import route_table
from workerlab.report.values import PARTS, finite, part_of_load

EXACT_S = 0.2  # in seconds with two decimals, a shorter time is off by more than 2.5 %
SURE = 0.01  # of a throughput: an interval so narrow is not worth a column
SMALL = 0.01  # of the longest time of its row: nobody asks for the digits of less
TIMES = ("response.p50", "response.p95", "response.p99", "response.max", "lag.p95")

Cells = Sequence[CellResult]
Source = tuple[Column, Callable[[CellResult], Value]]


def sweep_tables(report: Report, names: Names) -> Iterable[Table]:
    """Those that have rows."""
    closed = [cell for cell in report.cells if cell.trial.cell.rate is None]
    which = _leading(closed, names)
    keys = len(which) - 1 - names.trials
    bound = any(cell.verdict == "generator-bound" for cell in closed)
    slotted = any(cell.occupancy is not None for cell in closed)
    unsure = any(_unsure(cell) for cell in closed)
    judged = [TARGET] if any(cell.target for cell in report.cells) else []
    dropped = any(isinstance(finding, DROPPED) for cell in closed for finding in cell.findings)
    shown = {OCCUPANCY: slotted, HALF: unsure, MEAN: dropped}
    results = [column for column in RESULTS if shown.get(column, True)]
    for title, sources, cells, note in (
        (
            "table.cells",
            which + results + judged,
            closed,
            Finding("note.lower_bound") if bound else None,
        ),
        ("table.breakdown", *_breakdown(closed, which)),
        ("table.keepalive", *_keepalive(closed, which)),
        ("table.open", *_open(report.cells, names, judged)),
    ):
        if cells:
            columns = tuple(column for column, _ in sources)
            rows = tuple(tuple(value(cell) for _, value in sources) for cell in cells)
            unit = time_unit(report.cells if title == "table.open" else closed)
            part = {"part": part_of_load(cells)} if title == "table.breakdown" else {}
            yield Table(Finding(title, part), columns, rows, note, keys, unit)
    mixed = [cell for cell in report.cells if cell.routes]
    of_load = source("load", "text", 0, load_of)
    leading = [of_load if one[0].name == "concurrency" else one for one in _leading(mixed, names)]
    opened = any(cell.trial.cell.rate is not None for cell in mixed)
    yield from route_table(mixed, leading if opened else _leading(mixed, names), unit_of)
    yield from (table for table in ab_tables(closed, which) if table.rows)
    if report.classes:
        ratios = RATIOS if any(one.knee_predicted for one in report.classes) else ()
        rows = tuple(
            (names.series(one), *_class(one), *_per_worker(one)[: len(ratios)])
            for one in report.classes
        )
        yield Table(Finding("table.classes"), CLASSES + ratios, rows)


def time_unit(cells: Cells) -> str:
    """One for all times: seconds where one is that long and none that counts loses digits by it."""
    return unit_of([_times(cell) for cell in cells])


def unit_of(every: list[list[float]]) -> str:
    """Of the times of each row."""
    longest = max((time_s for times in every for time_s in times), default=0.0)
    lost = any(SMALL * max(times) <= time_s < EXACT_S for times in every for time_s in times)
    return "s" if longest >= 1 and not lost else "ms"


def _times(cell: CellResult) -> list[float]:
    """Seconds: what tables show of a cell."""
    values = (attrgetter(*TIMES)(cell)), (getattr(cell.breakdown, f"{part}_s") for part in PARTS)
    return [abs(known) for one in chain(*values) if (known := finite(one))]


# --- which cell -----------------------------------------------------------------------------


def source(
    name: str,
    form: Form = "number",
    expendable: int = 0,
    value: Callable[[CellResult], Value] | None = None,
) -> Source:
    """A column, and its `value` of a cell: else what a cell has of that name."""
    return Column(name, form, expendable), value or attrgetter(name)


def _leading(cells: Cells, names: Names) -> list[Source]:
    """Settings that never vary are told in the title."""
    asked, server = "trial.cell", "trial.cell.server"
    optional: tuple[tuple[bool, str, Form, Callable[[CellResult], Value]], ...] = (
        (names.tools, "tool", "text", attrgetter(f"{asked}.tool")),
        (names.processes, "tool_processes", "count", attrgetter(f"{asked}.processes")),
        (names.keepalive, "keepalive", "text", lambda c: "on" if c.trial.cell.keepalive else "off"),
        (True, "concurrency", "count", attrgetter(f"{asked}.concurrency")),
        (names.trials, "trial", "count", attrgetter("trial.number")),
    )
    return [
        source("worker_class", "text", 0, attrgetter(f"{server}.worker_class")),
        *(
            source(name, "count" if name in AMOUNTS else "text", 0, partial(_setting, name))
            for name in names.settings
        ),
        *(source(name, form, 0, value) for wanted, name, form, value in optional if wanted),
    ]


def _setting(name: str, cell: CellResult) -> Value:
    """As asked for, and what the server has where that is something else."""
    asked: int | str = getattr(cell.trial.cell.server, name)
    if taken(name, cell):
        return asked
    has = cell.in_force[name]
    code = "value.ignored" if has is None else "value.in_force"
    return Finding(code, {"n": asked, "in_force": has})


# --- what came out --------------------------------------------------------------------------


def slots(of: CellResult | ClassResult) -> Value:
    if of.slots_configured is not None:
        return of.slots_configured
    if isinstance(of, CellResult) and of.verdict == "invalid":
        return None
    return Finding("value.unlimited" if of.worker_class.slots_known else "value.unknown")


OCCUPANCY = source("occupancy", "percent", 5)


def _unsure(cell: CellResult) -> bool:
    rate, half = finite(cell.throughput_rps), finite(cell.throughput_half_rps)
    return rate is not None and half is not None and half > SURE * rate


HALF = source("throughput_half_rps", expendable=2)
# Beside the median, which dropped handshakes make shorter and not the waiting
MEAN = source("mean_s", "seconds", 0, attrgetter("breakdown.response_s"))
DROPPED = (FullAcceptQueue, LikelyFullAcceptQueue, IdleWhileClientsWait)
RESULTS = [
    source("slots_configured", "count", 1, slots),
    source("slots_measured", "count", 1),
    OCCUPANCY,
    source("throughput_rps"),
    HALF,
    source("bound_rps", expendable=4),
    MEAN,
    source("response_p50_s", "seconds", 0, attrgetter("response.p50")),
    source("response_p95_s", "seconds", 3, attrgetter("response.p95")),
    source("response_max_s", "seconds", 2, attrgetter("response.max")),
    source("failed", "count", 1),
    source("verdict", "text"),
]
TARGET = source("target", "text", 0, target_of)


# --- where the time goes --------------------------------------------------------------------


def _breakdown(cells: Cells, which: list[Source]) -> tuple[list[Source], Cells, Finding | None]:
    known = [cell for cell in cells if cell.breakdown.response_s is not None]
    sources = [
        *which,
        source("response_mean_s", "seconds", 2, attrgetter("breakdown.response_s")),
        *(
            source(f"{p}_s", "seconds", p == "transfer", attrgetter(f"breakdown.{p}_s"))
            for p in PARTS
        ),
    ]
    if len({cell.breakdown.exact for cell in known}) > 1:
        sources.append(source("exact", "text", 0, attrgetter("breakdown.exact")))
    return sources, known, _sources_of(known)


def _sources_of(cells: Cells) -> Finding:
    """Exact, or estimated, and what each part is from."""
    estimated = [cell for cell in cells if not cell.breakdown.exact]
    if not estimated:
        return Finding("breakdown.exact")
    sources: dict[str, dict[Finding, None]] = {}
    for cell in estimated:
        for part, source in cell.breakdown.sources.items():
            sources.setdefault(part, {})[source] = None
    each = [
        Finding("breakdown.part", {"part": Finding(f"part.{part}"), "sources": tuple(of)})
        for part, of in sources.items()
    ]
    mixed = len(estimated) < len(cells)
    why = (
        note for cell in estimated for note in cell.notes if note.code == "breakdown.not_followed"
    )
    values = {"parts": tuple(each), "why": next(why, None)}
    return Finding(f"breakdown.{'mixed' if mixed else 'estimated'}", values)


# --- kept connections, and a rate -----------------------------------------------------------


def _keepalive(cells: Cells, which: list[Source]) -> tuple[list[Source], Cells, Finding | None]:
    kept = [cell for cell in cells if cell.trial.cell.keepalive and cell.verdict != "invalid"]
    sources = [
        *which,
        source("connections_per_worker", "text", 0, _dealt),
        source("bound_rps"),
        source("split_prediction_rps"),
        source("measured_rps", value=attrgetter("throughput_rps")),
    ]
    return sources, kept, None


def _dealt(cell: CellResult) -> str | None:
    counts = (cell.connections_per_worker or {}).values()
    return ", ".join(str(count) for count in sorted(counts, reverse=True)) or None


def _open(
    cells: Cells, names: Names, judged: list[Source]
) -> tuple[list[Source], Cells, Finding | None]:
    """Which load, what was asked, sent and answered, and how long that took."""
    load = source("load", "text", 0, load_of)
    which = [load if one[0].name == "concurrency" else one for one in _leading(cells, names)]
    sources = [
        *which,
        source("asked_rps", expendable=4),
        source("sent_rps"),
        source("throughput_rps"),
        *(
            source(f"response_{name}_s", "seconds", rank, attrgetter(f"response.{name}"))
            for name, rank in (("p50", 0), ("p95", 0), ("p99", 3), ("max", 2))
        ),
        source("lag_p95_s", "seconds", 1, attrgetter("lag.p95")),
        source("failed", "count", 2),
        source("verdict", "text"),
        *judged,
    ]
    return sources, side_by_side(cells), closed_and_open(cells)


def side_by_side(cells: Sequence[CellResult]) -> list[CellResult]:
    """The open cells by series, each after its counterpart; those that are inconclusive last."""
    rows: dict[str, CellResult] = {}
    for series in by_series(cells).values():
        inconclusive = [
            cell for cell in series if cell.trial.cell.rate and cell.verdict == "inconclusive"
        ]
        compared = [
            cell
            for opened, closed in pairs(series)
            for cell in (*(closed.valid if closed else ()), *opened.valid)
        ]
        rows |= {cell.trial.key: cell for cell in (*compared, *inconclusive)}
    return list(rows.values())


def arrivals(cells: Iterable[CellResult]) -> Finding | None:
    """How they came; None where cells differ."""
    kinds = {cell.arrivals for cell in cells if cell.arrivals is not None}
    return Finding(f"arrivals.{kinds.pop()}") if len(kinds) == 1 else None


def closed_and_open(cells: Cells) -> Finding:
    values = {"arrivals": arrivals(cells), "one_trial": one_trial(cells)}
    return Finding("note.closed_and_open", values)


def load_of(cell: CellResult) -> Finding:
    """'closed, 4 conn.', 'open, 80%', 'open, 200/s'."""
    asked = cell.trial.cell
    if asked.rate is None:
        return Finding("value.closed", {"connections": asked.concurrency})
    unit = "" if asked.rate.share is not None else "/s"
    return Finding("value.open", {"rate": f"{asked.rate.label}{unit}"})


# --- classes --------------------------------------------------------------------------------

CLASSES = (
    Column("series", form="text"),
    Column("slots_configured", form="count"),
    Column("slots_measured", form="count"),
    Column("capacity_rps"),
    Column("capacity_ci95_rps", form="text"),
    Column("knee", form="text"),
)
RATIOS = (Column("knee_per_worker"), Column("knee_per_worker_predicted"))


def _class(group: ClassResult) -> tuple[Value, ...]:
    low, high = group.capacity_ci95 or (None, None)
    return (
        slots(group),
        group.slots_measured,
        group.capacity_rps,
        None if low is None else Finding("value.interval", {"low": low, "high": high}),
        group.knee_note.short if group.knee is None else round(group.knee, 1),
    )


def _per_worker(group: ClassResult) -> list[float | None]:
    knees = (group.knee, group.knee_predicted)
    return [None if knee is None else knee / group.server.workers for knee in knees]
