"""The analysis of a run. It does no I/O: the same trials give the same report.

    TrialData ─► Facts (one trial by itself) ─► checks ─┬─► invalid, with the reasons
                                                        └─► its Series: R0 ─► the load tool's
        limits ─► verdicts, knee, capacity ─► Result: numbers and diagnosis of each cell

A series has one server, one load tool with a number of processes, and connections kept alive or
not; R0 belongs to the server, whatever the tool. Limits of the load tool are found before the knee,
because trials that it limited show nothing about the server's knee.

Verdicts do not depend on the knee, with one exception: without slots, only the knee shows that
cells in which nothing waits are at capacity. So all other verdicts come first, then the knee from
the conclusive trials, then the verdicts of these cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from workerlab.analysis.cell_targets import with_targets
from workerlab.analysis.cells import closed_result, invalid_result
from workerlab.analysis.checks import contradictions
from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.facts import Facts, TrialData
from workerlab.analysis.knee import (
    Capacity,
    Knee,
    capacity_of,
    doubts_of,
    is_flat,
    knee_of,
    max_closed_rps,
)
from workerlab.analysis.load_tool import with_tool_limits
from workerlab.analysis.open_model import best_rps, open_result
from workerlab.analysis.series import (
    R0,
    REACHED_SHARE,
    UNKNOWN_R0,
    Series,
    lone_r0_by_server,
    r0_under_load,
)
from workerlab.analysis.trials import (
    Replicates,
    by_level,
    conclusive,
    grouped,
    valid_results,
)
from workerlab.analysis.verdict import Judgements, apply_knee, verdict_of_closed
from workerlab.finding import Finding, Note
from workerlab.model.plan import Cell
from workerlab.model.result import ClassResult, Invalid, Report, Result, TrialResult
from workerlab.notes import Unfinished
from workerlab.numbers.intervals import TRIALS
from workerlab.slo import Term

__all__ = ["TrialData", "analyse"]

SETUP_PHASES = ("start", "warmup", "stop")


def analyse(
    run: str,
    environment: Mapping[str, object],
    trials: Sequence[TrialData],
    *,
    run_argument: str = "",
    terms: Sequence[Term] = (),
) -> Report:
    """The report of a run. `trials`: all planned trials, in plan order; a note counts the
    unfinished ones (no record, or interrupted). Series are in the order of their first trial, their
    closed cells by concurrency and trial number, then their open cells by rate. `run_argument`: the
    run in suggested commands; "": its name. `terms`: the target to judge the cells by; (): none."""
    finished = [trial for trial in trials if not unfinished(trial)]
    lone_r0 = lone_r0_by_server(finished)
    checked_series = [
        _series(key, members, lone_r0[key.server])
        for key, members in grouped(finished, lambda trial: trial.cell.series).items()
    ]
    all_conclusions = tuple(map(conclusions_of, with_tool_limits(checked_series, environment)))
    by_series = [(conclusions, _cells(conclusions, terms)) for conclusions in all_conclusions]
    cells = tuple(cell for _, series_cells in by_series for cell in series_cells)
    valid = (facts for conclusions in all_conclusions for facts in conclusions.series.valid)
    replicates = Replicates(tuple(finished))
    return Report(
        run=run,
        environment=environment,
        overhead=overhead(cells),
        cells=cells,
        classes=tuple(class_result(*conclusions_and_cells) for conclusions_and_cells in by_series),
        setup_s={phase: replicates.median(f"record.{phase}_s") for phase in SETUP_PHASES},
        notes=tuple(_notes(run_argument or run, sum(map(unfinished, trials)), all_conclusions)),
        facts=tuple(
            min(cell_facts, key=lambda facts: facts.data.trial.number)
            for cell_facts in grouped(valid, lambda facts: facts.cell).values()
        ),
    )


def unfinished(trial: TrialData) -> bool:
    return trial.record is None or trial.record.interrupted


def _series(key: Cell, trials: Sequence[TrialData], lone_r0: R0 | None) -> Series:
    valid: list[Facts] = []
    rejected: list[Invalid] = []
    for trial in trials:
        facts = trial.facts
        reasons = contradictions(facts) if isinstance(facts, Facts) else [facts]
        if not reasons and lone_r0 is None:
            reasons = [Note("no lone request was timed, so there is nothing to compare with")]
        if reasons:
            rejected.append(invalid_result(trial, reasons))
        elif isinstance(facts, Facts):
            valid.append(facts)
    closed = [facts for facts in valid if not facts.open_model]
    at_rate = [facts for facts in valid if facts.open_model]
    r0, notes = r0_under_load(lone_r0, closed) if lone_r0 else (UNKNOWN_R0, ())
    return Series(key, trials, r0, closed, at_rate, rejected, notes)


def _cells(conclusions: Conclusions, terms: Sequence[Term]) -> list[TrialResult]:
    """The results of a series, in order; those at a rate depend on the closed cells."""
    series, is_capacity = conclusions.series, conclusions.knee.connections is not None
    closed = [
        closed_result(facts, series, *conclusions.judgements[facts.key]) for facts in series.closed
    ]
    highest_rps = conclusions.capacity.rps or best_rps(closed)
    at_rate = [open_result(facts, highest_rps, is_capacity=is_capacity) for facts in series.at_rate]
    cells: list[TrialResult] = sorted([*series.invalid, *closed, *at_rate], key=_sort_key)
    return with_targets(terms, cells, series.valid) if terms else cells


def _sort_key(cell: TrialResult) -> tuple[bool, float, int, int]:
    """Closed-loop cells by connections, then open-model cells by rate."""
    planned = cell.trial.cell
    rate, asked_rps = planned.rate, cell.asked_rps if isinstance(cell, Result) else None
    arrivals = 0.0 if rate is None else asked_rps or rate.rps or rate.share or 0.0
    return rate is not None, arrivals, planned.concurrency, cell.trial.number


def overhead(cells: Iterable[TrialResult]) -> float | None:
    """Load time / ideal time, each summed over the valid cells whose load is a fixed number of
    requests and whose load tool was not the limit; None without such cells."""
    fixed_loads = [
        cell
        for cell in valid_results(cells)
        if cell.ideal_s is not None and not cell.generator_bound
    ]
    load_s, ideal_s = (Replicates(tuple(fixed_loads)).total(name) for name in ("load_s", "ideal_s"))
    return load_s / ideal_s if load_s is not None and ideal_s else None


# --- series ---------------------------------------------------------------------------------------


class Conclusions(NamedTuple):
    """Conclusions from the valid closed trials of a series."""

    series: Series
    judgements: Judgements
    knee: Knee
    capacity: Capacity


def conclusions_of(series: Series) -> Conclusions:
    judgements = {facts.key: verdict_of_closed(facts, series) for facts in series.closed}
    knee = knee_of(series, judgements)
    return Conclusions(
        series=series,
        judgements=apply_knee(series, judgements, knee.connections),
        knee=knee,
        capacity=capacity_of(series, knee),
    )


def class_result(conclusions: Conclusions, cells: Iterable[TrialResult]) -> ClassResult:
    """The result of a series. `cells`: those of this series. The most telling cell is the valid
    closed one that falls furthest below its bound, because other settings can recover that; if none
    does, the one with the most connections. Among equal ones, the first trial counts. Trials in
    doubt (`doubts_of`) count only if there are no others."""
    closed = [cell for cell in valid_results(cells) if cell.trial.cell.rate is None]
    series, knee, capacity = conclusions.series, conclusions.knee, conclusions.capacity
    doubts = doubts_of(series, series.closed)
    certain = [cell for cell in closed if cell.trial.key not in doubts] or closed
    most_telling = max(certain, key=_telling_rank, default=None)
    return ClassResult(
        server=series.key.server,
        tool=series.key.tool,
        slots_configured=series.slots,
        slots_measured=max((facts.max_in_app for facts in series.closed), default=None),
        capacity_rps=capacity.rps,
        capacity_ci95=capacity.ci95,
        knee=knee.connections,
        knee_note=knee.note,
        level_rps=_level_rps(knee, closed),
        knee_predicted=_predicted_knee(series),
        keepalive=series.key.keepalive,
        processes=series.key.processes,
        diagnosis=most_telling.diagnosis if most_telling else None,
        diagnosed_trial=most_telling.trial.key if most_telling else None,
        worker_class=series.trials[0].worker_class,
    )


def _predicted_knee(series: Series) -> float | None:
    """The knee predicted from the app's known wait and CPU time, without Gunicorn's own CPU time;
    None if a time or the number of cores is unknown."""
    server, cores = series.key.server, max((facts.cores or 0 for facts in series.closed), default=0)
    wait_s, cpu_s = server.app.sleep_s, server.cpu_s
    if wait_s is None or cpu_s is None or not cores:
        return None
    bound = max_closed_rps(server.workers, series.slots, cores, wait_s, cpu_s)
    return None if bound is None else bound * (wait_s + cpu_s)


def _telling_rank(cell: Result) -> tuple[float, int, int]:
    """The lost share of the bound, the connections, and the negated trial number."""
    reached_share = cell.throughput_rps / cell.bound_rps if cell.bound_rps else 1.0
    recoverable = not isinstance(cell.diagnosis, Diagnosis) or cell.diagnosis.shows_loss
    lost_share = (
        round(1 - reached_share, 2) if reached_share < REACHED_SHARE and recoverable else 0.0
    )
    return lost_share, cell.trial.cell.concurrency, -cell.trial.number


def _level_rps(knee: Knee, cells: Iterable[Result]) -> float | None:
    """The throughput at which the series levels off, as reported by its cells (a stalled cell
    reports that of its whole load); None if it does not level off."""
    levels = {
        level: Replicates(tuple(trials)).median("throughput_rps") or 0.0
        for level, trials in by_level(filter(conclusive, cells)).items()
    }
    max_rps = max(levels.values(), default=0.0)
    flat = knee.rps is not None and max_rps >= REACHED_SHARE * knee.rps and is_flat(levels)
    return max_rps if flat else None


# --- notes ----------------------------------------------------------------------------------------


class RanSideBySide(Finding):
    """{cells:# trial} ran side by side, because sleeping requests leave cores idle; --jobs 1 runs
    them one after the other"""

    cells: int


class CapacityNeedsTrials(Finding):
    """capacity with its interval needs at least {needed} trials (--trials {needed}) and levels on
    both sides of the knee"""

    needed: int


class NoCapacity(Finding):
    """no capacity for {worker_class} with {tool}: {why}"""

    worker_class: str
    tool: str
    why: str


class DealtInOneLaunch(Finding):
    """kept-alive connections stay with the worker that accepted them, and each launch distributes
    them anew: the throughput of {worker_classes:list} is that of a single launch; its interval
    needs --trials {needed}"""

    worker_classes: tuple[str, ...]
    needed: int  # trials

    prominence = "notes"


def _notes(run: str, trials_left: int, conclusions: Sequence[Conclusions]) -> Iterable[Finding]:
    """Notes on unfinished trials, trials side by side, and missing capacity (one note for a sweep
    without repeated trials, else one per series)."""
    if trials_left:
        yield Unfinished(trials_left, command="sweep", run=run)
    all_series = [each.series for each in conclusions]
    parallel = [facts for series in all_series for facts in series.valid if facts.record.beside]
    if parallel:
        yield RanSideBySide(len(parallel))
    numbers = [facts.data.trial.number for series in all_series for facts in series.closed]
    if numbers and max(numbers) == 1:
        yield CapacityNeedsTrials(TRIALS)
        # The variation within a load does not show how each launch distributes connections
        uneven_classes = dict.fromkeys(
            series.key.server.worker_class
            for series in all_series
            if series.closed
            and series.key.keepalive
            and series.trials[0].worker_class.accepts_first
        )
        if uneven_classes:
            yield DealtInOneLaunch(tuple(uneven_classes), needed=TRIALS)
        return
    for series, _, _, capacity in conclusions:
        if series.closed and capacity.rps is None:
            yield NoCapacity(series.key.server.worker_class, series.key.tool, why=capacity.note)
