"""What `workerlab ladder` shows: what each thing is worth that makes a web app fast.

The cells are ordinary ones, of any sweep, whose app is that of their rung. See `ladder_steps` for
how launches become one figure, `ladder_limits` for who set the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.experiments.ladder.charts import charts
from harness.experiments.ladder.configurations import Configuration
from harness.experiments.ladder.findings import findings
from harness.experiments.ladder.limits import DISTURBED, others_cores
from harness.experiments.ladder.steps import Ladder, Load, ladder
from harness.experiments.ladder.tables import tables
from harness.model import CellResult, Document, Report
from harness.numbers.intervals import TRIALS

TITLE = "What makes a real web app fast? A blog, one thing less on each rung"


def study(report: Report, rungs: Sequence[Configuration], notes: Sequence[str] = ()) -> Document:
    """`report`: of the run's cells; `rungs`, `notes`: of its plan, with those rungs that cannot be
    run."""
    found = ladder(report.cells, rungs, report.environment)
    invalid = [cell for cell in report.cells if cell.verdict == "invalid"]
    return Document(
        run=report.run,
        kind="ladder",
        title=_title(found),
        environment=report.environment,
        findings=findings(found),
        tables=tables(found),
        charts=charts(found),
        notes=(
            *notes,
            *(f"left out: {rung.title}: {rung.why_not}" for rung in rungs if rung.why_not),
            *(f"{_named(cell, rungs)}: {cell.reason}" for cell in invalid),
            *_few(found),
            *_disturbed(found),
            *_unfinished(report),
        ),
        valid=bool(report.cells) and not invalid,
    )


def _title(found: Ladder) -> str:
    if not found.steps:
        return f"{TITLE}: no launch has been measured."
    loads = ", ".join(load.words for load in found.steps)
    return f"{TITLE}; {loads}."


def _named(cell: CellResult, rungs: Sequence[Configuration]) -> str:
    asked = cell.trial.cell
    titles = [rung.title for rung in rungs if rung.name == asked.server.name]
    load = Load(asked.tool, asked.concurrency).words
    return f"{next(iter(titles), asked.server.name)}, {load}, launch {cell.trial.number}"


def _few(found: Ladder) -> Iterable[str]:
    least = min((len(step.cells) for steps in found.steps.values() for step in steps), default=0)
    if 0 < least < TRIALS:
        yield (
            f"a factor's interval needs at least {TRIALS} launches of each rung"
            f" (--trials {TRIALS}); one has {least}"
        )


def _disturbed(found: Ladder) -> Iterable[str]:
    steps = [step for steps in found.steps.values() for step in steps]
    used = [others for step in steps if (others := others_cores(step, found.cores)) is not None]
    if used and max(used) > DISTURBED:
        times = sum(one > DISTURBED for one in used)
        yield (
            f"other programs used up to {max(used):.2f} cores, more than {DISTURBED:g} in"
            f" {times} of {len(used)} rungs and loads: all is slower there, and launches differ"
            " more; close them and repeat"
        )


def _unfinished(report: Report) -> list[str]:
    return [
        note.replace("sweep --resume", "ladder --resume")
        for note in report.notes
        if "not finished" in note
    ]
