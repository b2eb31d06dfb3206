"""What `workerlab ladder` shows: what each thing is worth that makes a web app fast.

The cells are ordinary ones, of any sweep, on a server that is named like its configuration. See
`steps` for how trials become one figure, `limits` for what limited them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.experiments.ladder.charts import charts
from harness.experiments.ladder.configurations import Configuration, from_details
from harness.experiments.ladder.findings import findings
from harness.experiments.ladder.limits import DISTURBED, others_cores
from harness.experiments.ladder.steps import Ladder, Load, ladder
from harness.experiments.ladder.tables import tables
from harness.experiments.reading import notes_of, report_of
from harness.model import CellResult, Document, Finding, Report, Text
from harness.numbers.intervals import TRIALS
from harness.run_store import Run


def document(run: Run) -> Document:
    report = report_of(run)
    return study(report, from_details(run.plan), notes_of(run))


def study(
    report: Report, configurations: Sequence[Configuration], notes: Sequence[Text] = ()
) -> Document:
    """`report`: of the run's cells; `configurations`, `notes`: of its plan."""
    steps = ladder(report.cells, configurations, report.environment)
    invalid = [cell for cell in report.cells if cell.verdict == "invalid"]
    loads = tuple(load.text for load in steps.steps)
    return Document(
        run=report.run,
        kind="ladder",
        title=Finding("ladder.title", {"loads": loads}) if loads else Finding("ladder.title.empty"),
        environment=report.environment,
        findings=findings(steps),
        tables=tables(steps),
        charts=charts(steps),
        notes=(
            *notes,
            *_left_out(configurations),
            *_invalid(invalid, configurations),
            *_few(steps),
            *_disturbed(steps),
        ),
        valid=bool(report.cells) and not invalid,
    )


def _left_out(configurations: Sequence[Configuration]) -> Iterable[Finding]:
    for one in configurations:
        if one.why_not:
            yield Finding("ladder.left_out", {"configuration": one.text, "why": one.why_not})


def _invalid(
    cells: Sequence[CellResult], configurations: Sequence[Configuration]
) -> Iterable[Finding]:
    by_name = {one.name: one.text for one in configurations}
    for cell in cells:
        asked = cell.trial.cell
        values = {
            "configuration": by_name[asked.server.name],
            "load": Load(asked.tool, asked.concurrency).text,
            "trial": cell.trial.number,
            "reason": cell.reason,
        }
        yield Finding("ladder.invalid", values, (cell.trial.key,))


def _few(ladder: Ladder) -> Iterable[Finding]:
    fewest = min((len(one.cells) for steps in ladder.steps.values() for one in steps), default=0)
    if 0 < fewest < TRIALS:
        yield Finding("ladder.few_trials", {"needed": TRIALS, "fewest": fewest})


def _disturbed(ladder: Ladder) -> Iterable[Finding]:
    steps = [step for steps in ladder.steps.values() for step in steps]
    used = [cores for step in steps if (cores := others_cores(step, ladder.cores)) is not None]
    times = sum(cores > DISTURBED for cores in used)
    if times:
        values = {"most": max(used), "limit": DISTURBED, "times": times, "steps": len(used)}
        yield Finding("ladder.disturbed", values)
