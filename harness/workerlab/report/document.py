"""The Document of a sweep: what analysis found, put into findings, tables and notes."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from workerlab import finding
from workerlab.analysis.cell_targets import target_kept, targets_of_series
from workerlab.analysis.class_findings import class_finding
from workerlab.analysis.diagnosis.cpu import Disturbance
from workerlab.model import CellResult, Document, Finding, Report
from workerlab.report.messages import text
from workerlab.report.naming import AMOUNTS, Names, by_series, not_taken, served, setting
from workerlab.report.route_table import failing_routes
from workerlab.report.sweep_tables import sweep_tables
from workerlab.report.values import finite

SWEEP = "sweep"
KIND = attrgetter("code")
OWN = "detail"  # a value that is a trial's own: it makes no cause another one


def of_sweep(report: Report) -> Document:
    """`report`: of all the cells of a sweep, in the order of the plan."""
    names, cells_of = Names(report.cells), by_series(report.cells)
    targets = [
        targets_of_series(
            cells_of.get(group.series, []), names.series(group), name_trials=names.trials
        )
        for group in report.classes
    ]
    phases = {one.key: one.phases for one in report.timelines}
    reasons = {
        word: [(cell.reason, cell) for cell in report.cells if cell.verdict == word]
        for word in ("invalid", "inconclusive")
    }
    notes = [(note, cell) for cell in report.cells for note in dict.fromkeys(cell.notes)]
    return Document(
        run=report.run,
        kind=SWEEP,
        title=title(report, names),
        environment=report.environment,
        findings=(
            *(
                one
                for group, target in zip(report.classes, targets, strict=True)
                for one in (
                    class_finding(
                        group,
                        cells_of.get(group.series, []),
                        phases,
                        name=names.series(group),
                    ),
                    *target,
                )
            ),
            *_costs(report),
            *_once("cells.invalid", reasons["invalid"], names, _cause),
            *_once("cells.inconclusive", reasons["inconclusive"], names, KIND),
            *failing_routes(report.cells, names),
            *_once("cells.disturbed", _disturbed(report), names, KIND),
        ),
        tables=tuple(sweep_tables(report, names)),
        notes=(*_once("cells.note", notes, names, _cause), *report.notes),
        valid=all(cell.verdict != "invalid" for cell in report.cells),
        target_kept=target_kept(targets),
        cells=report.cells,
        classes=report.classes,
        timelines=report.timelines,
        overhead=report.overhead,
        setup_s=report.setup_s,
    )


def _disturbed(report: Report) -> Iterable[tuple[Disturbance, CellResult]]:
    """Cells that have a verdict although others took cores: their figures are told with that."""
    for cell in report.cells:
        for one in cell.findings if cell.verdict != "inconclusive" else ():
            if isinstance(one, Disturbance):
                yield one, cell


# --- the title ----------------------------------------------------------------------------


def title(report: Report, names: Names) -> Finding:
    """What is the same in all cells, told once."""
    cells = report.cells
    if not cells:
        return Finding("sweep.empty")
    sleeps = {cell.sleep_s for cell in cells}
    classes_by_app: dict[str, dict[str, None]] = {}
    for cell in cells:
        classes_by_app.setdefault(cell.app, {})[cell.trial.cell.server.worker_class] = None
    apps = [
        Finding("sweep.app", {"app": app, "classes": tuple(of) if len(classes_by_app) > 1 else ()})
        for app, of in classes_by_app.items()
    ]
    values = {
        "settings": tuple(_constants(cells, names)),
        "apps": tuple(apps),
        "sleep_s": (sleeps.pop() if len(sleeps) == 1 else None) or None,
        "served": served(report.environment, (cell.trial.cell.server for cell in cells)),
    }
    return Finding("sweep.title", values)


def _constants(cells: Sequence[CellResult], names: Names) -> Iterable[Finding]:
    first = cells[0].trial.cell
    threaded = [cell for cell in cells if cell.worker_class.threaded(cell.trial.cell.server)]
    threads = {cell.trial.cell.server.threads for cell in threaded}
    for name in (*AMOUNTS, "cpu_s", "cores"):
        value = getattr(first.server, name)
        if name == "threads" and len(threads) == 1:
            classes = tuple(dict.fromkeys(cell.worker_class.name for cell in threaded))
            yield Finding("setting.threads_each", {"n": threads.pop(), "classes": classes})
        elif name == "worker_connections" and all(
            "worker_connections" in cell.worker_class.ignores for cell in cells
        ):
            continue
        elif name != "threads" and name not in names.settings and value is not None:
            yield setting(name, value, not_taken(name, cells))
    if not names.tools:
        processes = first.processes if first.processes > 1 and not names.processes else None
        yield Finding("setting.load", {"tool": first.tool, "processes": processes})
    if all(cell.trial.cell.keepalive for cell in cells):
        yield Finding("setting.kept_alive")
    yield setting("trials", max(cell.trial.number for cell in cells))


# --- what the run cost, what is invalid, what else there is to know ---------------------------


def _costs(report: Report) -> Iterable[Finding]:
    """How much longer than ideal the load took, and what a cell costs beside it."""
    factor = finite(report.overhead)
    each = {name: v for name, value in report.setup_s.items() if (v := finite(value)) is not None}
    evidence = []
    if classes := _overheads(report.cells):
        evidence.append(Finding("overhead.by_class", {"classes": classes}))
    if each:
        stages = tuple(Finding(f"setup.{name}", {"seconds": v}) for name, v in each.items())
        evidence.append(Finding("setup.stages", {"stages": stages}))
    values = {"factor": factor, "beside_s": sum(each.values()) if each else None}
    if factor is not None or each:
        code = "sweep.overhead" if factor is not None else "sweep.setup"
        yield Finding(code, values, evidence=tuple(evidence))


def _overheads(cells: Iterable[CellResult]) -> tuple[Finding, ...]:
    """The factor of each class: where connections are dealt unevenly, slots idle by nature."""
    times: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        load_s, ideal_s = finite(cell.load_s), finite(cell.ideal_s)
        if load_s is not None and ideal_s and not cell.generator_bound:
            times.setdefault(cell.trial.cell.server.worker_class, []).append((load_s, ideal_s))
    factors = {
        name: sum(t for t, _ in mine) / sum(t for _, t in mine) for name, mine in times.items()
    }
    return tuple(
        Finding("overhead.of_class", {"worker_class": name, "factor": factor})
        for name, factor in factors.items()
        if len(factors) > 1 and finite(factor) is not None
    )


def _once(
    code: str,
    causes: Iterable[tuple[finding.Finding, CellResult]],
    names: Names,
    by: Callable[[finding.Finding], Hashable],
) -> Iterable[Finding]:
    """Every cause once, with the cells it is about and the numbers of the first: by kind, or `by`
    what is not a trial's own, such as the file to look into."""
    about: dict[Hashable, list[tuple[finding.Finding, CellResult]]] = {}
    for cause, cell in causes:
        about.setdefault(by(cause), []).append((cause, cell))
    for same in about.values():
        cells = [cell for _, cell in same]
        one = names.places(cells[:1]) if by is KIND and len(cells) > 1 else None
        values = {"cells": names.places(cells), "text": same[0][0], "one": one}
        yield Finding(code, values, tuple(cell.trial.key for cell in cells))


def _cause(cause: finding.Finding) -> Hashable:
    return cause.code, text(_shared(cause))


def _shared(value: Any) -> Any:
    """Without what is a trial's own."""
    if isinstance(value, Finding):
        return replace(value, values=_shared(value.values))
    if isinstance(value, finding.StoredFinding):
        return value
    if isinstance(value, finding.Finding):
        inner = {name: None if name == OWN else _shared(its) for name, its in value.values.items()}
        return replace(value, **inner)
    if isinstance(value, Mapping):
        return {name: _shared(inner) for name, inner in value.items() if name != OWN}
    return tuple(map(_shared, value)) if isinstance(value, tuple) else value
