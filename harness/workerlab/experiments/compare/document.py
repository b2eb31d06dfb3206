"""What `workerlab compare` shows: for each class and load, whether B differs, in what, and which
part of the response changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from workerlab.bundled import label_of
from workerlab.experiments.budget import used_s
from workerlab.experiments.compare.charts import charts
from workerlab.experiments.compare.findings import (
    MetricChange,
    RunDifference,
    RunsDiffer,
    answer_of,
    limits_answer,
)
from workerlab.experiments.compare.gate import Limit
from workerlab.experiments.compare.pairs import CompareRequest, GroupChanges, compared, to_go_on_s
from workerlab.experiments.document import table
from workerlab.experiments.reading import as_argument, notes_of
from workerlab.finding import Finding
from workerlab.model import Column, Document, Table
from workerlab.numbers.formats import counted, fill, listed
from workerlab.report.naming import served
from workerlab.run_store import Run

CHANGE = (
    "Change: B as times A; of a part of the response, and of failed requests, the difference as a"
    " share of A's response, or of the requests."
)
OF_PAIRS = (
    f"{CHANGE} Low, high: its interval over the pairs of launches; those of a class and load hold"
    " together in 95 of 100 comparisons, whenever they stop. None is shown that spans more than a"
    " factor of 100."
)
OF_SAVED_RUNS = (
    f"{CHANGE} Low, high: its interval over the launches of both runs; all of them hold together in"
    " 95 of 100 comparisons. None is shown that spans more than a factor of 100."
)


class InvalidLaunch(Finding):
    """Left out[[{with_pair}]]: a launch of {side}: {reason}"""

    side: str
    reason: Finding
    trial: str  # its key
    with_pair: str


def document(run: Run) -> Document:
    plan, groups = CompareRequest.of(run.plan), compared(run)
    return comparison(
        groups,
        title=title_of(plan, groups, run),
        runs=(run, run),
        at_least=plan.at_least,
        strict=plan.strict,
    )


def comparison(
    groups: Sequence[GroupChanges],
    title: str,
    runs: tuple[Run, Run],
    at_least: float,
    differences: Sequence[RunDifference] | None = None,
    *,
    strict: bool,
) -> Document:
    """Of pairs of launches from one run, or of two saved runs, whose other `differences` come
    first."""
    run, paired = runs[0], differences is None
    next_step = go_on(groups, run) if paired else "Sweeps with more --trials would tell more."
    invalid = list(invalid_launches(groups, paired=paired))
    answers = [
        answer_of(
            group,
            at_least=at_least,
            launches=launches_of(group),
            next_step=next_step if group.goes_on or not paired else "",
        )
        for group in groups
    ]
    return Document(
        run=run.name,
        kind="compare",
        title=title,
        environment=run.environment,
        findings=(
            *([RunsDiffer(tuple(differences))] if differences else ()),
            *answers,
            *limits_answer(groups),
        ),
        tables=tuple(tables(groups, paired=paired)),
        charts=tuple(charts(groups, runs)),
        notes=(*notes_of(run), *invalid),
        valid=any(group.pairs for group in groups) and not invalid,
        exit_code=exit_code(groups, strict=strict),
    )


def invalid_launches(groups: Sequence[GroupChanges], *, paired: bool) -> Iterator[InvalidLaunch]:
    for group in groups:
        for side, launch in group.left_out:
            yield InvalidLaunch(
                side=side,
                reason=launch.reason,
                trial=launch.trial.key,
                with_pair=", with its pair" if paired else "",
            )


def exit_code(groups: Sequence[GroupChanges], *, strict: bool) -> int | None:
    """The exit code by the limits and the valid launches; None without limits or without valid
    launches."""
    outcomes = {outcome for group in groups for _, outcome in group.outcomes}
    if "exceeded" in outcomes:
        return 4
    if strict and "inconclusive" in outcomes:
        return 5
    return 0 if outcomes and all(group.pairs for group in groups) else None


def launches_of(group: GroupChanges) -> str:
    if group.launches is None:
        return f"{counted(len(group.pairs), 'pair')} of launches"
    a, b = group.launches
    of_a = counted(a, "launch/launches")
    return f"{of_a} of each" if a == b else f"{of_a} of A and {b} of B"


def go_on(groups: Sequence[GroupChanges], run: Run) -> str:
    """The command options that continue the run; "" if every group is decided."""
    needed_s = to_go_on_s(run, groups)
    if needed_s is None:
        return ""
    whole_s = needed_s + sum(map(used_s, run.records.values()))
    minutes = math.ceil(1.1 * whole_s / 60)
    return f"Go on with --resume {as_argument(run)} --budget {minutes}m."


def title_of(plan: CompareRequest, groups: Sequence[GroupChanges], run: Run) -> str:
    a, b = (words or "without that" for words in plan.words)
    cells = [cell for group in groups for cell in (group.group.a, group.group.b)]
    apps = {label_of(cell.server.app) for cell in cells}
    values = {
        "a": a,
        "b": b,
        "app": next(iter(apps)) if len(apps) == 1 else None,
        "served": served(run.environment, (cell.server for cell in cells)),
        "tools": listed(list(dict.fromkeys(cell.tool for cell in cells))),
    }
    app = fill("[[app {app}]][[, served by {served}]]; ", values) if values["app"] else ""
    return fill("A: {a}; B: {b}; {app}load by {tools}", {**values, "app": app})


def outcome_text(group: GroupChanges, limit: Limit) -> str:
    """The measurement of the limit's metric."""
    changes = [change for change in group.changes if change.metric.name == limit.metric]
    return str(MetricChange.of(changes[0])) if changes else "not measured"


def tables(groups: Sequence[GroupChanges], *, paired: bool) -> Iterator[Table]:
    rows = [
        (group, change, MetricChange.of(change)) for group in groups for change in group.changes
    ]
    columns = (
        Column("group", "text", heading="class and load", value=lambda row: str(row[0].name)),
        Column("metric", "text", value=lambda row: row[2].metric),
        Column("a", "text", value=lambda row: row[2].a_text),
        Column("b", "text", value=lambda row: row[2].b_text),
        Column("change", "text", value=lambda row: written(row[2], row[2].change)),
        Column("low", "text", value=lambda row: written(row[2], row[2].low)),
        Column("high", "text", value=lambda row: written(row[2], row[2].high)),
        Column("pairs" if paired else "launches", "count", value=lambda row: row[1].n),
        Column("word", "text", heading="verdict", value=lambda row: row[1].word),
    )
    if rows:
        yield table("A and B", columns, rows, OF_PAIRS if paired else OF_SAVED_RUNS)


def written(change: MetricChange, value: float | None) -> str | None:
    """A ratio as a factor, anything else in points."""
    if value is None:
        return None
    return change.written(value) if change.kind == "ratio" else fill("{v:change}", {"v": value})
