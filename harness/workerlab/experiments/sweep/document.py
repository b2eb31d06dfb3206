"""What a sweep shows: the results of the analysis as findings, tables and notes."""

from collections.abc import Iterator, Sequence

from msgspec.structs import asdict, replace

from workerlab.analysis.cell_targets import target_kept, targets_of_series
from workerlab.analysis.class_findings import class_finding
from workerlab.analysis.phases import phases_of
from workerlab.analysis.verdict import was_left_out
from workerlab.experiments.reading import report_of
from workerlab.experiments.sweep.findings import (
    CellsNote,
    affected_cells,
    by_cause,
    overhead_finding,
)
from workerlab.experiments.sweep.tables import sweep_tables
from workerlab.model import SWEEP, CellResult, Document, Report
from workerlab.notes import ClientsLinger, FlagIgnored, ServerCoresBound, SettingIgnored
from workerlab.numbers.units import counted, fill, listed
from workerlab.report.values import (
    NUMERIC_SETTINGS,
    Names,
    by_series,
    in_force_instead,
    load_tool,
    serving_software,
    setting_text,
)
from workerlab.run_store import Run

# Notes of the plan that also matter to readers of the results
KEPT = {kind.__name__ for kind in (SettingIgnored, FlagIgnored, ClientsLinger, ServerCoresBound)}


def document(run: Run) -> Document:
    sweep = sweep_document(report_of(run))
    notes = (note for note in run.plan.notes if note.code in KEPT)
    return replace(sweep, notes=(*sweep.notes, *notes))


def sweep_document(report: Report) -> Document:
    """The document of `report`, which holds all cells of the sweep, in plan order."""
    names = Names(report.cells)
    measured = tuple(cell for cell in report.cells if not was_left_out(cell))
    cells_of = by_series(measured)
    groups = tuple(group for group in report.classes if cells_of.get(group.series))
    targets = [
        targets_of_series(
            cells_of[group.series], names.series(group), name_trials=names.several_trials
        )
        for group in groups
    ]
    phases = {facts.key: phases_of(facts) for facts in report.facts}
    cell_notes = [(note, cell) for cell in report.cells for note in dict.fromkeys(cell.notes)]
    findings = [
        finding
        for group, target_findings in zip(groups, targets, strict=True)
        for finding in (
            class_finding(group, cells_of[group.series], phases, name=names.series(group)),
            *target_findings,
        )
    ]
    cells_notes = [
        CellsNote(names.places(cells), note, trials=trials)
        for note, cells, trials in by_cause(cell_notes)
    ]
    return Document(
        **{**asdict(report), "notes": (*cells_notes, *report.notes)},
        kind=SWEEP,
        title=title(report, names),
        findings=(*findings, *overhead_finding(report), *affected_cells(report, names)),
        tables=tuple(sweep_tables(replace(report, cells=measured, classes=groups), names)),
        valid=all(cell.verdict != "invalid" for cell in report.cells),
        target_kept=target_kept(targets),
        phases=phases,
    )


# --- the title ----------------------------------------------------------------------------


def title(report: Report, names: Names) -> str:
    """What all cells have in common: settings, app, load."""
    cells = report.cells
    if not cells:
        return "No trial has completed."
    sleeps = {cell.sleep_s for cell in cells}
    classes_by_app: dict[str, dict[str, None]] = {}
    for cell in cells:
        classes_by_app.setdefault(cell.app, {})[cell.server.worker_class] = None
    single = len(classes_by_app) == 1
    apps = [
        f"app {app}" if single else f"app {app} ({', '.join(classes)})"
        for app, classes in classes_by_app.items()
    ]
    values = {
        "settings": list(_constant_settings(cells, names)),
        "apps": apps,
        "sleep_s": (sleeps.pop() if len(sleeps) == 1 else None) or None,
        "served": serving_software(report.environment, (cell.server for cell in cells)),
    }
    return fill(
        "{settings:, }; {apps:list}[[, which sleeps {sleep_s:duration}]][[, served by {served}]].",
        values,
    )


def _constant_settings(cells: Sequence[CellResult], names: Names) -> Iterator[str]:
    first = cells[0].trial.cell
    threaded = [cell for cell in cells if cell.worker_class.threaded(cell.server)]
    threads = {cell.server.threads for cell in threaded}
    for name in (*NUMERIC_SETTINGS, "cpu_s", "cores"):
        value = getattr(first.server, name)
        if name == "threads" and len(threads) == 1:
            classes = list(dict.fromkeys(cell.worker_class.name for cell in threaded))
            yield f"{counted(threads.pop(), 'thread')} each in {listed(classes)}"
        elif name == "worker_connections" and all(
            "worker_connections" in cell.worker_class.ignores for cell in cells
        ):
            continue
        elif name != "threads" and name not in names.settings and value is not None:
            yield setting_text(name, value, in_force_instead(name, cells))
    if not names.tools_vary:
        processes = first.processes if not names.processes_vary else 1
        yield f"load by {load_tool(replace(first, processes=processes))}"
    if all(cell.trial.cell.keepalive for cell in cells):
        yield "connections kept alive"
    yield counted(max(cell.trial.number for cell in cells), "trial/trials each")
