"""From the directory of a run, whichever command made it, to its Document.

A run says in its plan what kind it is. A new kind: its pure analysis in its experiment, and a line
in KINDS that says how its raw files become what that analysis takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from harness import run_store as store
from harness.experiments.bottleneck import document as bottleneck
from harness.experiments.generators import document as generators
from harness.experiments.ladder import document as ladder
from harness.experiments.ladder.configurations import from_details
from harness.experiments.limits import document as limits
from harness.experiments.reading import report_of, trial_data
from harness.model import Document, Finding, Report, Text, UsageError
from harness.plan import Plan, from_json, grid
from harness.report.document import SWEEP, of_sweep


def kind_of(directory: Path) -> str:
    """The command that made a run. Raises UsageError when `directory` is not one."""
    return str(store.load(directory).plan.get("kind", SWEEP))


def document_of(directory: Path) -> Document:
    """What a run has to show. Raises UsageError when `directory` is not one, or of a kind that is
    not known here."""
    run = store.load(directory)
    kind = str(run.plan.get("kind", SWEEP))
    if kind not in KINDS:
        raise UsageError(f"{run.name} is a run of `{kind}`; known are {', '.join(KINDS)}")
    return KINDS[kind](run)


def _sweep(run: store.Run) -> Document:
    return of_sweep(report_of(run.directory))


def _generators(run: store.Run) -> Document:
    plan, data = from_json(run.plan), trial_data(run.directory)
    return generators.study(run.name, run.environment, plan, data)


def _limits(run: store.Run) -> Document:
    plan, data = from_json(run.plan), trial_data(run.directory)
    return limits.study(run.name, run.environment, plan, data)


def _bottleneck(run: store.Run) -> Document:
    report = report_of(run.directory)
    return bottleneck.study(report, _notes(from_json(run.plan), report))


def _ladder(run: store.Run) -> Document:
    plan, report = from_json(run.plan), report_of(run.directory)
    return ladder.study(report, from_details(plan), _notes(plan, report))


def _notes(plan: Plan, report: Report) -> tuple[Text, ...]:
    """Of the plan, and whether it was carried out."""
    missing = len(grid(plan)) - len(report.cells)
    values = {"trials": missing, "command": plan.kind, "run": report.run}
    return (*plan.notes, *([Finding("note.unfinished", values)] if missing else []))


KINDS: Mapping[str, Callable[[store.Run], Document]] = {
    SWEEP: _sweep,
    "generators": _generators,
    "limits": _limits,
    "bottleneck": _bottleneck,
    "ladder": _ladder,
}
