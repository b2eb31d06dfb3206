"""The document of a sweep: the results of the analysis as findings, tables and notes; the overhead
of the run; and the cells that are invalid, inconclusive or disturbed, with the reasons."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import asdict, replace

from workerlab.analysis import overhead
from workerlab.analysis.cell_targets import target_met, targets_of_series
from workerlab.analysis.class_findings import class_finding
from workerlab.analysis.diagnosis.cpu import Disturbance
from workerlab.analysis.phases import phases_of
from workerlab.analysis.trials import conclusive, grouped, valid_results
from workerlab.analysis.verdict import was_left_out
from workerlab.experiments.reading import report_of
from workerlab.experiments.sweep.tables import sweep_tables
from workerlab.finding import Answer, Finding, Note, Placement
from workerlab.model.evidence import RouteResult
from workerlab.model.result import SWEEP, Document, Invalid, Report, Result, TrialResult
from workerlab.notes import ClientsLinger, FlagIgnored, LeftOut, ServerCoresBound, SettingIgnored
from workerlab.numbers.units import counted, fill, format_duration, listed
from workerlab.report.values import (
    NUMERIC_SETTINGS,
    Names,
    by_series,
    finite,
    in_force_instead,
    load_tool,
    serving_software,
    setting_text,
)
from workerlab.run_store import Run

# Notes of the plan that also matter to readers of the results
RESULT_NOTES = {
    kind.__name__ for kind in (SettingIgnored, FlagIgnored, ClientsLinger, ServerCoresBound)
}


def document(run: Run) -> Document:
    sweep = sweep_document(report_of(run))
    notes = (note for note in run.plan.notes if note.code in RESULT_NOTES)
    return replace(sweep, notes=(*sweep.notes, *notes))


def sweep_document(report: Report) -> Document:
    """The document of `report`, which has all cells of the sweep, in plan order."""
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
        CellsNote(names.cells_text(cells), note, trials=trials)
        for note, cells, trials in grouped_by_cause(cell_notes)
    ]
    return Document(
        **{**asdict(report), "notes": (*cells_notes, *report.notes)},
        kind=SWEEP,
        title=title(report, names),
        findings=(*findings, *overhead_finding(report), *affected_cells(report, names)),
        tables=tuple(sweep_tables(replace(report, cells=measured, classes=groups), names)),
        valid=not any(isinstance(cell, Invalid) for cell in report.cells),
        target_kept=target_met(targets),
        phases=phases,
    )


# --- the title ------------------------------------------------------------------------------------


def title(report: Report, names: Names) -> str:
    """The settings, app and load that all cells have in common."""
    cells = report.cells
    if not cells:
        return "No trial has completed."
    sleeps = {cell.sleep_s for cell in cells}
    by_app = grouped(cells, lambda cell: cell.app)
    apps = [
        f"app {app}" if len(by_app) == 1 else f"app {app} ({', '.join(classes)})"
        for app, app_cells in by_app.items()
        for classes in [dict.fromkeys(cell.server.worker_class for cell in app_cells)]
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


def _constant_settings(cells: Sequence[TrialResult], names: Names) -> Iterator[str]:
    first = cells[0].trial.cell
    threaded_cells = [cell for cell in cells if cell.worker_class.threaded(cell.server)]
    threads = {cell.server.threads for cell in threaded_cells}
    for name in (*NUMERIC_SETTINGS, "cpu_s", "cores"):
        value = getattr(first.server, name)
        if name == "threads" and len(threads) == 1:
            classes = list(dict.fromkeys(cell.worker_class.name for cell in threaded_cells))
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


# --- the overhead of the run, and cells that failed -----------------------------------------------

TRIAL_DETAIL = "detail"  # a value specific to one trial, ignored when causes are compared
STAGE_NAMES = {"start": "start", "warmup": "warm-up", "stop": "stop"}


class Overhead(Answer):
    """Overhead:[[ the load took {factor:.3f} times the ideal (no idle slot).]]
    [[ Start, warm-up and stop took {setup_s:duration} per cell.]]"""

    factor: float | None
    setup_s: float | None

    @property
    def placement(self) -> Placement:
        return "costs"


def overhead_finding(report: Report) -> Iterator[Overhead]:
    """The duration of the load relative to the ideal, and the setup time per cell; nothing if both
    are unknown."""
    factor = finite(report.overhead)
    stages = {name: time_s for name, value in report.setup_s.items()
              if (time_s := finite(value)) is not None}  # fmt: skip
    if factor is None and not stages:
        return
    medians = ", ".join(f"{STAGE_NAMES[name]} {format_duration(s)}" for name, s in stages.items())
    cells_of = grouped(report.cells, lambda cell: cell.server.worker_class)
    # Per class, since an uneven distribution of requests leaves slots idle in some classes
    by_class = [
        f"{name} {class_factor:.3f}"
        for name, cells in cells_of.items()
        if (class_factor := finite(overhead(cells))) is not None
    ]
    yield Overhead(
        factor=factor,
        setup_s=sum(stages.values()) if stages else None,
        evidence=(
            *([Note(f"load time over the ideal: {', '.join(by_class)}")] if by_class[1:] else []),
            *([Note(f"medians per cell: {medians}")] if stages else []),
        ),
    )


class AffectedCells(Answer):
    """{state}: {cells}: {reason:sentence}[[ (These figures are for {example}.)]]"""

    state: Literal["Invalid", "Inconclusive", "Disturbed"]
    cells: str
    reason: Finding
    example: str | None = None  # set if other cells have different figures

    @property
    def placement(self) -> Placement:
        return "invalid" if self.state == "Invalid" else "findings"


class CellsNote(Answer):
    """{cells}: {note}"""

    cells: str
    note: Finding


Causes = Iterable[tuple[Finding, TrialResult]]


def affected_cells(report: Report, names: Names) -> Iterator[Answer]:
    """An answer per cause: for invalid or inconclusive cells, failing routes and disturbed cells. A
    disturbed cell whose verdict is inconclusive is listed only as inconclusive."""
    reasons = {
        verdict: [(cell.reason, cell) for cell in report.cells if cell.verdict == verdict]
        for verdict in ("invalid", "inconclusive")
    }
    valid = valid_results(report.cells)
    disturbed = [
        (finding, cell)
        for cell in filter(conclusive, valid)
        for finding in cell.findings
        if isinstance(finding, Disturbance)
    ]
    for reason, cells, trials in grouped_by_cause(reasons["invalid"]):
        if all(map(was_left_out, cells)):
            classes = dict.fromkeys(names.series(cell.trial.cell) for cell in cells)
            yield LeftOut(tuple(classes), reason, trials=trials)
        else:
            yield AffectedCells("Invalid", names.cells_text(cells), reason, trials=trials)
    yield from answers_by_kind("Inconclusive", reasons["inconclusive"], names)
    yield from failing_routes(valid, names)
    yield from answers_by_kind("Disturbed", disturbed, names)


def answers_by_kind(
    state: Literal["Inconclusive", "Disturbed"], causes: Causes, names: Names
) -> Iterator[AffectedCells]:
    """One answer per kind of cause, with the figures of its first cell or, for a disturbance, of
    the cell that was disturbed most."""
    causes = tuple(causes)
    for reason, cells, trials in grouped_by_cause(causes, key=lambda cause: cause.code):
        same_kind = [(cause, cell) for cause, cell in causes if cause.code == reason.code]
        reason, worst = max(same_kind, key=lambda pair: getattr(pair[0], "share", 0.0))
        example = names.cells_text([worst]) if len(cells) > 1 else None
        yield AffectedCells(state, names.cells_text(cells), reason, example, trials=trials)


def grouped_by_cause(
    causes: Causes, key: Callable[[Finding], str] = lambda cause: repr(_comparable(cause))
) -> Iterator[tuple[Finding, list[TrialResult], tuple[str, ...]]]:
    """(cause, cells, trial keys) for each distinct `key`; the cause is that of the first cell."""
    for pairs in grouped(causes, lambda pair: key(pair[0])).values():
        cells = [cell for _, cell in pairs]
        yield pairs[0][0], cells, tuple(cell.trial.key for cell in cells)


def _comparable(value: Any) -> Any:
    """`value` without details of a single trial, such as the path of a log."""
    if isinstance(value, Finding):
        return value.code, _comparable(value.values)
    if isinstance(value, Mapping):
        return {name: _comparable(inner) for name, inner in value.items() if name != TRIAL_DETAIL}
    return tuple(map(_comparable, value)) if isinstance(value, tuple) else value


class FailingRoute(Answer):
    """{cells}: {failed} of {requests:# request} to {route} failed
    [[, with status {statuses:list}]][[ ({causes:counts})]][[: {answer}]]"""

    cells: str
    route: str
    failed: int
    requests: int
    statuses: tuple[str, ...]
    causes: Mapping[str, int]  # except statuses
    answer: str | None  # first lines of an unexpected body


def failing_routes(cells: Iterable[Result], names: Names) -> Iterator[FailingRoute]:
    """One finding per route and combination of statuses and causes."""
    failures = (
        (name, cell, route) for cell in cells for name, route in cell.routes.items() if route.failed
    )

    def kind(failure: tuple[str, Result, RouteResult]) -> tuple[str, ...]:
        name, _, route = failure
        return (name, *sorted(route.statuses), "", *sorted(route.errors))

    for (name, *_), same_kind in grouped(failures, kind).items():
        _, cells_of_route, routes = zip(*same_kind, strict=True)
        causes = sum((Counter(route.errors) for route in routes), Counter[str]())
        del causes["status"]  # covered by `statuses`
        yield FailingRoute(
            cells=names.cells_text(cells_of_route),
            route=name,
            failed=sum(route.failed for route in routes),
            requests=sum(route.requests for route in routes) + causes.total(),
            statuses=tuple(sorted({status for route in routes for status in route.statuses})),
            causes=dict(causes),
            answer=next(filter(None, (route.answer for route in routes)), None),
            trials=tuple(cell.trial.key for cell in cells_of_route),
        )
