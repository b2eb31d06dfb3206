"""The tables of a sweep: cells, where the time goes, kept connections, closed and open, classes.

Cells of the open model stand in no table of the closed loop: their connections are not kept busy,
and neither knee nor bound applies to them.

The first table has no column for waiting, although the JSON has the figure: it is a mean over all
requests, the ramp-up included (0.88 s where each request waits 1.00 s once the load is steady), and
would contradict the second, whose parts are means of the steady part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.model import CellResult, ClassResult, Column, Finding, Report, Table, Value
from harness.report.naming import SETTINGS, Names
from harness.report.open_closed import side_by_side
from harness.report.values import PARTS, finite

FINE_S = 0.010  # shorter times are not given in seconds, however long the longest are

Cells = Sequence[CellResult]
Source = tuple[Column, Callable[[CellResult], Value]]


def sweep_tables(report: Report, names: Names) -> Iterable[Table]:
    """Those that have rows."""
    closed = [cell for cell in report.cells if cell.trial.cell.rate is None]
    which = _leading(closed, names)
    keys = len(which) - 1 - names.trials
    for title, sources, cells, note in (
        ("table.cells", which + RESULTS, closed, _lower_bound(closed)),
        ("table.breakdown", *_breakdown(closed, which)),
        ("table.keepalive", *_keepalive(closed, which)),
        ("table.open", *_open(report.cells, names)),
    ):
        if cells:
            columns = tuple(column for column, _ in sources)
            rows = tuple(tuple(value(cell) for _, value in sources) for cell in cells)
            unit = time_unit(report.cells if title == "table.open" else closed)
            yield Table(Finding(title), columns, rows, note, keys, unit)
    if report.classes:
        rows = tuple((names.series(one), *_class(one)) for one in report.classes)
        yield Table(Finding("table.classes"), CLASSES, rows)


def time_unit(cells: Cells) -> str:
    """One for all times: seconds as soon as anything takes one, unless others are too short."""
    longest = max((finite(cell.response.max) or 0.0 for cell in cells), default=0.0)
    fine = any((finite(cell.response.p50) or FINE_S) < FINE_S for cell in cells)
    return "s" if longest >= 1 and not fine else "ms"


# --- which cell -----------------------------------------------------------------------------


def _leading(cells: Cells, names: Names) -> list[Source]:
    """Settings that never vary are told in the title."""
    sources: list[Source] = [
        (Column("worker_class", form="text"), lambda c: c.trial.cell.server.worker_class)
    ]
    sources += [(Column(name, form="count"), _setting(name)) for name in names.settings]
    if names.tools:
        sources.append((Column("tool", form="text"), lambda c: c.trial.cell.tool))
    if names.processes:
        sources.append((Column("tool_processes", form="count"), lambda c: c.trial.cell.processes))
    if names.keepalive:
        sources.append((Column("keepalive", form="text"), _kept))
    sources.append((Column("concurrency", form="count"), lambda c: c.trial.cell.concurrency))
    if names.trials:
        sources.append((Column("trial", form="count"), lambda c: c.trial.number))
    return sources


def _setting(name: str) -> Callable[[CellResult], Value]:
    return lambda cell: SETTINGS[name](cell.trial.cell.server)


def _kept(cell: CellResult) -> str:
    return "on" if cell.trial.cell.keepalive else "off"


# --- what came out --------------------------------------------------------------------------


def slots(of: CellResult | ClassResult) -> Value:
    if of.slots_configured is not None:
        return of.slots_configured
    if isinstance(of, CellResult) and of.verdict == "invalid":
        return None
    return Finding("value.unlimited" if of.worker_class.slots_known else "value.unknown")


RESULTS: list[Source] = [
    (Column("slots_configured", form="count", expendable=1), slots),
    (Column("slots_measured", form="count"), lambda c: c.slots_measured),
    (Column("throughput_rps"), lambda c: c.throughput_rps),
    (Column("bound_rps", expendable=4), lambda c: c.bound_rps),
    (Column("response_p50_s", form="seconds"), lambda c: c.response.p50),
    (Column("response_p95_s", form="seconds", expendable=3), lambda c: c.response.p95),
    (Column("response_max_s", form="seconds", expendable=2), lambda c: c.response.max),
    (Column("failed", form="count"), lambda c: c.failed),
    (Column("verdict", form="text"), lambda c: c.verdict),
]


def _lower_bound(cells: Cells) -> Finding | None:
    bound = any(cell.verdict == "generator-bound" for cell in cells)
    return Finding("note.lower_bound") if bound else None


# --- where the time goes --------------------------------------------------------------------


def _breakdown(cells: Cells, which: list[Source]) -> tuple[list[Source], Cells, Finding | None]:
    known = [cell for cell in cells if cell.breakdown.response_s is not None]
    response = Column("response_mean_s", form="seconds", expendable=2)
    sources: list[Source] = [*which, (response, lambda c: c.breakdown.response_s)]
    sources += [_part(name) for name in PARTS]
    if len({cell.breakdown.exact for cell in known}) > 1:
        sources.append((Column("exact", form="text"), lambda c: c.breakdown.exact))
    return sources, known, _sources_of(known)


def _part(name: str) -> Source:
    def value(cell: CellResult) -> float | None:
        seconds: float | None = getattr(cell.breakdown, f"{name}_s")
        return seconds

    return Column(f"{name}_s", form="seconds", expendable=int(name == "transfer")), value


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
    return Finding(f"breakdown.{'mixed' if mixed else 'estimated'}", {"parts": tuple(each)})


# --- kept connections, and a rate -----------------------------------------------------------


def _keepalive(cells: Cells, which: list[Source]) -> tuple[list[Source], Cells, Finding | None]:
    kept = [cell for cell in cells if cell.trial.cell.keepalive and cell.verdict != "invalid"]
    sources: list[Source] = [
        *which,
        (Column("connections_per_worker", form="text"), _dealt),
        (Column("bound_rps"), lambda c: c.bound_rps),
        (Column("split_prediction_rps"), lambda c: c.split_prediction_rps),
        (Column("measured_rps"), lambda c: c.throughput_rps),
    ]
    return sources, kept, None


def _dealt(cell: CellResult) -> str | None:
    counts = (cell.connections_per_worker or {}).values()
    return ", ".join(str(count) for count in sorted(counts, reverse=True)) or None


def _open(cells: Cells, names: Names) -> tuple[list[Source], Cells, Finding | None]:
    """Which load, what was asked, sent and answered, and how long that took."""
    load: Source = (Column("load", form="text"), load_of)
    which = [load if one.name == "concurrency" else (one, of) for one, of in _leading(cells, names)]
    due: list[Source] = [
        (Column(f"response_{name}_s", form="seconds", expendable=rank), _response(name))
        for name, rank in (("p50", 0), ("p95", 0), ("p99", 3), ("max", 2))
    ]
    sources: list[Source] = [
        *which,
        (Column("asked_rps", expendable=4), lambda c: c.asked_rps),
        (Column("sent_rps"), lambda c: c.sent_rps),
        (Column("throughput_rps"), lambda c: c.throughput_rps),
        *due,
        (Column("lag_p95_s", form="seconds", expendable=1), lambda c: c.lag.p95),
        (Column("verdict", form="text"), lambda c: c.verdict),
    ]
    return sources, side_by_side(cells), Finding("note.closed_and_open")


def load_of(cell: CellResult) -> Finding:
    """'closed, 4 conn.', 'open, 80%', 'open, 200/s'."""
    asked = cell.trial.cell
    if asked.rate is None:
        return Finding("value.closed", {"connections": asked.concurrency})
    unit = "" if asked.rate.share is not None else "/s"
    return Finding("value.open", {"rate": f"{asked.rate.label}{unit}"})


def _response(name: str) -> Callable[[CellResult], Value]:
    def value(cell: CellResult) -> float | None:
        seconds: float | None = getattr(cell.response, name)
        return seconds

    return value


# --- classes --------------------------------------------------------------------------------

CLASSES = (
    Column("series", form="text"),
    Column("slots_configured", form="count"),
    Column("slots_measured", form="count"),
    Column("capacity_rps"),
    Column("capacity_ci95_rps", form="text"),
    Column("knee", form="text"),
)


def _class(group: ClassResult) -> tuple[Value, ...]:
    interval = group.capacity_ci95
    bounds = None if interval is None else {"low": interval[0], "high": interval[1]}
    knee: Value = group.knee_note or None
    if group.knee is not None:
        knee = round(group.knee, 1)
    return (
        slots(group),
        group.slots_measured,
        group.capacity_rps,
        None if bounds is None else Finding("value.interval", bounds),
        knee,
    )
