"""What a run means. Pure: evidence in, report out; the same evidence gives the same report.

    Evidence ─► Facts (one trial by itself) ─► witnesses ─┬─► invalid, with the reason
                                                          └─► R0, knee, capacity of its group
                                                                  └─► verdict of each cell

A group is one server, one load tool, connections kept alive or not; R0 belongs to the server,
whatever the tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from harness.analyse.alone import at_most, lone_s, slower_alone
from harness.analyse.capacity import TRIALS
from harness.analyse.cells import invalid, result
from harness.analyse.classes import Group
from harness.analyse.evidence import Evidence
from harness.analyse.facts import Facts, look
from harness.analyse.views import views
from harness.analyse.witnesses import contradictions
from harness.model import CellResult, ClassResult, Record, Report, Server
from harness.worker_classes import configured_slots

__all__ = ["Evidence", "analyse", "configured_slots"]

CONTRADICTED = 1.05  # how much longer than the load proves a lone response may seem
SETUP = ("start", "warmup", "stop")


def analyse(run: str, environment: Mapping[str, object], trials: Sequence[Evidence]) -> Report:
    """The report of a run. `trials`: what was planned, in the order of the plan.

    Groups appear in the order of their first trial, their cells by concurrency and trial.
    Trials without a record are unfinished: they are not in the report but for a note.
    """
    done = [trial for trial in trials if trial.record is not None]
    groups: list[Group] = []
    classes: list[ClassResult] = []
    cells: list[CellResult] = []
    lone = {server: lone_s(_of(done, server)) for server in _servers(done)}
    for members in _grouped(done):
        group, found = _judge(members, lone)
        groups.append(group)
        classes.append(group.result(found))
        cells.extend(sorted(found, key=lambda c: (c.trial.cell.concurrency, c.trial.number)))
    return Report(
        run=run,
        environment=environment,
        overhead=_overhead(cells),
        cells=tuple(cells),
        classes=tuple(classes),
        setup_s=_setup([trial.record for trial in done if trial.record is not None]),
        notes=(*_unfinished(len(trials) - len(done)), *_capacity_notes(groups)),
        views=views(facts for group in groups for facts in group.valid),
    )


def _judge(
    members: Sequence[Evidence], lone: Mapping[Server, float | None]
) -> tuple[Group, list[CellResult]]:
    """One group and the result of each of its trials."""
    asked = members[0].trial.cell
    alone = lone[asked.server]
    cells: list[CellResult] = []
    valid: list[Facts] = []
    for trial in members:
        facts = look(trial)
        reasons = [facts] if isinstance(facts, str) else contradictions(facts)
        if not reasons and alone is None:
            reasons = ["no lone request was timed, so there is nothing to compare with"]
        if reasons:
            cells.append(invalid(trial, "; ".join(reasons)))
        elif isinstance(facts, Facts):
            valid.append(facts)
    proven = None if alone is None else at_most(valid)
    notes: tuple[str, ...] = ()
    if alone is not None and proven is not None and alone > CONTRADICTED * proven:
        notes = (slower_alone(alone, proven),)
        alone = proven
    group = Group(asked.server, asked.tool, asked.keepalive, members, valid, alone)
    knee = group.knee()
    if alone is not None:
        cells.extend(result(facts, alone, knee, notes) for facts in valid)
    return group, cells


def _servers(trials: Iterable[Evidence]) -> list[Server]:
    return list(dict.fromkeys(trial.trial.cell.server for trial in trials))


def _of(trials: Iterable[Evidence], server: Server) -> list[Evidence]:
    return [trial for trial in trials if trial.trial.cell.server == server]


def _grouped(trials: Iterable[Evidence]) -> list[list[Evidence]]:
    """Trials by (server, tool, keep-alive), in the order in which these first appear."""
    groups: dict[tuple[Server, str, bool], list[Evidence]] = {}
    for trial in trials:
        cell = trial.trial.cell
        groups.setdefault((cell.server, cell.tool, cell.keepalive), []).append(trial)
    return list(groups.values())


def _overhead(cells: Iterable[CellResult]) -> float | None:
    """Load time / ideal time, summed over the valid cells of tools that count requests."""
    pairs = [
        (cell.load_s, cell.ideal_s)
        for cell in cells
        if cell.load_s is not None and cell.ideal_s is not None
    ]
    ideal = sum(pair[1] for pair in pairs)
    return sum(pair[0] for pair in pairs) / ideal if ideal > 0 else None


def _setup(records: Sequence[Record]) -> Mapping[str, float | None]:
    """The median cell's start, warm-up and stop, in seconds."""
    found: dict[str, float | None] = {}
    for name in SETUP:
        values = [getattr(record, f"{name}_s") for record in records]
        known = [float(value) for value in values if value is not None]
        found[name] = median(known) if known else None
    return found


def _unfinished(missing: int) -> Iterable[str]:
    if missing:
        trials = "1 trial is" if missing == 1 else f"{missing} trials are"
        yield f"{trials} not finished: `workerlab sweep --resume RUN` completes the run"


def _capacity_notes(groups: Sequence[Group]) -> Iterable[str]:
    """Why there is no capacity: once for a sweep without repeated trials, else class by class."""
    trials = [facts.evidence.trial.number for group in groups for facts in group.valid]
    if trials and max(trials) == 1:
        yield (
            f"capacity with its interval needs at least {TRIALS} trials (--trials {TRIALS})"
            " and levels on both sides of the knee"
        )
        return
    for group in groups:
        limit = group.capacity()
        if group.valid and limit.rps is None:
            yield f"{group.server.worker_class} by {group.tool}: no capacity, {limit.note}"
