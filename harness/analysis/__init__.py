"""What a run means. Pure: evidence in, report out; the same evidence gives the same report.

    TrialData ─► Facts (one trial by itself) ─► witnesses ─┬─► invalid, with the reason
                                                          └─► R0 of its group ─► the load tool's
        limits ─► knee, capacity of its group ─► verdict of each cell

A group is one server one load tool and its processes, connections kept
alive or not; R0 belongs to the server, whatever the tool. Whether the load tool was the limit is
asked before the knee: what it held up says nothing of the server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from harness.analysis.cells import invalid, result
from harness.analysis.checks import contradictions
from harness.analysis.evidence import TrialData
from harness.analysis.facts import Facts, look
from harness.analysis.load_tool import Judgement
from harness.analysis.open_model import best_rps, open_result
from harness.analysis.r0 import at_most, lone_s, slower_alone
from harness.analysis.series import Group
from harness.analysis.suspects import judgements
from harness.analysis.timeline import views
from harness.model import CellResult, ClassResult, Record, Report, Server
from harness.numbers.intervals import TRIALS

__all__ = ["TrialData", "analyse"]

CONTRADICTED = 1.05  # how much longer than the load proves a lone response may seem
SETUP = ("start", "warmup", "stop")


def analyse(run: str, environment: Mapping[str, object], trials: Sequence[TrialData]) -> Report:
    """The report of a run. `trials`: what was planned, in the order of the plan.

    Groups appear in the order of their first trial, their cells by concurrency and trial, those of
    the open model last and by rate.
    Trials without a record are unfinished: they are not in the report but for a note.
    """
    done = [trial for trial in trials if trial.record is not None]
    classes: list[ClassResult] = []
    cells: list[CellResult] = []
    lone = {server: lone_s(_of(done, server)) for server in _servers(done)}
    heard = [_hear(members, lone) for members in _grouped(done)]
    judged = judgements([group for group, _, _ in heard], environment)
    bound = frozenset(key for key, one in judged.items() if one.bound)
    groups = [replace(group, bound=group.keys & bound) for group, _, _ in heard]
    for group, (_, doubtful, notes) in zip(groups, heard, strict=True):
        found = [*doubtful, *_results(group, judged, notes)]
        classes.append(group.result(found))
        cells.extend(sorted(found, key=_place))
    return Report(
        run=run,
        environment=environment,
        overhead=_overhead(cells),
        cells=tuple(cells),
        classes=tuple(classes),
        setup_s=_setup([trial.record for trial in done if trial.record is not None]),
        notes=(*_unfinished(len(trials) - len(done)), *_capacity_notes(groups)),
        timelines=views(facts for group in groups for facts in (*group.valid, *group.opened)),
    )


def _hear(
    members: Sequence[TrialData], lone: Mapping[Server, float | None]
) -> tuple[Group, list[CellResult], tuple[str, ...]]:
    """One group with the trials that are believed, a cell for each of the others, and notes on the
    whole group."""
    asked = members[0].trial.cell
    alone = lone[asked.server]
    cells: list[CellResult] = []
    valid: list[Facts] = []
    opened: list[Facts] = []
    for trial in members:
        facts = look(trial)
        reasons = [facts] if isinstance(facts, str) else contradictions(facts)
        if not reasons and alone is None:
            reasons = ["no lone request was timed, so there is nothing to compare with"]
        if reasons:
            cells.append(invalid(trial, "; ".join(reasons)))
        elif isinstance(facts, Facts):
            (valid if trial.trial.cell.rate is None else opened).append(facts)
    proven = None if alone is None else at_most(valid)
    notes: tuple[str, ...] = ()
    if alone is not None and proven is not None and alone > CONTRADICTED * proven:
        notes = (slower_alone(alone, proven),)
        alone = proven
    group = Group(
        *(asked.server, asked.tool, asked.keepalive, members, valid, alone, asked.processes),
        opened=opened,
    )
    return group, cells, notes


def _results(
    group: Group, judged: Mapping[str, Judgement], notes: tuple[str, ...]
) -> Iterable[CellResult]:
    """The cells of the trials that are believed, those at a rate in the light of the others."""
    if group.lone_s is None:
        return
    knee, capacity = group.knee(), group.capacity().rps
    closed = [
        result(facts, group.lone_s, knee, judged[facts.evidence.trial.key], notes)
        for facts in group.valid
    ]
    yield from closed
    most, reached = capacity or best_rps(closed), knee.connections is not None
    yield from (open_result(facts, most, reached=reached) for facts in group.opened)


def _place(cell: CellResult) -> tuple[bool, float, int, int]:
    """The closed loop by connections, then the open model by rate."""
    asked = cell.trial.cell
    rate = asked.rate
    how_much = 0.0 if rate is None else cell.asked_rps or rate.rps or rate.share or 0.0
    return rate is not None, how_much, asked.concurrency, cell.trial.number


def _servers(trials: Iterable[TrialData]) -> list[Server]:
    return list(dict.fromkeys(trial.trial.cell.server for trial in trials))


def _of(trials: Iterable[TrialData], server: Server) -> list[TrialData]:
    return [trial for trial in trials if trial.trial.cell.server == server]


def _grouped(trials: Iterable[TrialData]) -> list[list[TrialData]]:
    """Trials by (what serves, tool, processes, keep-alive), in the order in which these first
    appear."""
    groups: dict[tuple[Server, str, int, bool], list[TrialData]] = {}
    for trial in trials:
        cell = trial.trial.cell
        key = cell.server, cell.tool, cell.processes, cell.keepalive
        groups.setdefault(key, []).append(trial)
    return list(groups.values())


def _overhead(cells: Iterable[CellResult]) -> float | None:
    """Load time / ideal time, summed over the valid cells of tools that count requests and kept
    up with the server."""
    pairs = [
        (cell.load_s, cell.ideal_s)
        for cell in cells
        if cell.load_s is not None and cell.ideal_s is not None and not cell.generator_bound
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
