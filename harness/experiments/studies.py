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
from harness.experiments.ladder.configurations import configurations_of
from harness.experiments.limits import document as limits
from harness.experiments.limits.demonstrations import read_demonstrations
from harness.experiments.points import read_shots
from harness.experiments.reading import report_of
from harness.model import Document, UsageError
from harness.plan import from_json
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
    return generators.study(run.name, run.environment, run.plan, read_shots(run))


def _limits(run: store.Run) -> Document:
    shots, shown = read_shots(run), read_demonstrations(run)
    return limits.study(run.name, run.environment, run.plan, shots, shown)


def _bottleneck(run: store.Run) -> Document:
    return bottleneck.study(report_of(run.directory))


def _ladder(run: store.Run) -> Document:
    plan = from_json(run.plan)
    return ladder.study(report_of(run.directory), configurations_of(plan), plan.notes)


KINDS: Mapping[str, Callable[[store.Run], Document]] = {
    SWEEP: _sweep,
    "generators": _generators,
    "limits": _limits,
    "bottleneck": _bottleneck,
    "ladder": _ladder,
}
