"""The document of a sweep: findings with their numbers, names of cells, tables."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    evidence,
    gthread,
    server,
    with_cell,
    with_keepalive,
    with_measurement,
    with_observations,
)
from tests.builders.document import answer, column, names, table
from tests.builders.open_model import closed_loop, open_trial, share
from tests.builders.sweep import affected, common
from workerlab.analysis import DealtInOneLaunch, TrialData, analyse, open_closed
from workerlab.analysis.class_findings import NoValidCell, SeriesLimits
from workerlab.analysis.diagnosis.slots import WaitingForSlots
from workerlab.experiments.sweep.document import sweep_document
from workerlab.experiments.sweep.tables import side_by_side
from workerlab.model.plan import Rate
from workerlab.model.result import Document
from workerlab.report.text import render
from workerlab.report.values import text


def sweep(*trials: TrialData) -> Document:
    return sweep_document(analyse("run", {}, trials))


# --- classes --------------------------------------------------------------------------------


def test_estimated_parts_are_marked_as_estimates() -> None:
    """Even without --explain, and if both tables are shown as one."""
    timed = evidence(SYNC, 8, tool="fast", timed=True)
    document = sweep(with_measurement(replace(timed, can_trace=True), timings=()))
    assert [cell.breakdown.exact for cell in document.cells] == [False]
    for width in (None, 80):
        output = render(document, width=width)
        assert " ".join(output.split()).count("only with a ramp or mix, so each part is") == 1
    assert "each part is an estimate" not in render(common())


def test_a_row_without_parts_gives_the_reason() -> None:
    trial = evidence(SYNC, 8)
    queue = (replace(sample, length=sample.length + 1) for sample in trial.observations.queue)
    document = sweep(with_observations(trial, queue=tuple(queue)))
    why = "the parts add up to 2.25 s, more than the response of 2.00 s, so they are left out"
    for output in (render(document), render(document, width=80), render(document, explain=True)):
        assert why in " ".join(output.split())
    assert "Exact" not in render(document, explain=True)


def test_each_class_has_its_limits() -> None:
    sync, eventlet = common().findings[:2]
    assert isinstance(sync, SeriesLimits)
    assert isinstance(eventlet, SeriesLimits)
    assert (sync.knee, sync.level_rps) == (4.0, pytest.approx(4, rel=0.01))
    assert sync.saturated_from == 8
    assert isinstance(sync.why, WaitingForSlots)
    assert sync.why.sharing == "16 connections share 4 slots"
    assert eventlet.knee is None
    assert eventlet.slots == "4000 slots, at most 16 used"
    assert text(eventlet.knee_note) == "> 16"
    assert sync.trials == tuple(c.trial.key for c in common().cells[:3])


def test_a_class_without_a_valid_cell_is_named() -> None:
    broken = replace(evidence(SYNC, 4), parse_error="half a line")
    assert answer(sweep(broken), NoValidCell).name == "sync"


def test_settings_that_differ_are_in_the_names() -> None:
    document = sweep(*(evidence(server("sync", workers), n) for workers in (2, 4) for n in (4, 8)))
    series_names = [finding.values["name"] for finding in document.findings[:2]]
    assert series_names == ["sync (2 workers)", "sync (4 workers)"]
    assert "workers" in names(table(document, "Cells"))
    assert text(document.title).startswith("backlog 2048, load by ab, 1 trial; ")


def test_tool_processes_are_in_the_names_if_they_differ() -> None:
    two = with_cell(gthread(8), processes=2)
    both, alone = sweep(gthread(8), two), sweep(two)
    assert "tool_processes" in names(table(both, "Cells"))
    assert text(both.findings[1].values["name"]) == "gthread (ab with 2 processes)"
    assert "load by ab with 2 processes" in text(alone.title)


# --- the run --------------------------------------------------------------------------------


def test_a_single_invalid_trial_is_named() -> None:
    trials = [evidence(SYNC, n, trial=number) for n in (4, 8) for number in (1, 2)]
    trials[3] = replace(trials[3], parse_error="half a line")
    (invalid,) = affected(sweep(*trials), "Invalid")
    assert invalid.cells == "sync at 8 (trial 2)"


def test_an_empty_sweep_has_a_title_only() -> None:
    document = sweep()
    assert document.title == "No trial has completed."
    assert (document.findings, document.tables, document.valid) == ((), (), True)


# --- tables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delays_s", "unit"),
    [((0.004, 0.004), "ms"), ((1.04, 1.04), "s"), ((0.0627, 1.04), "ms"), ((0.3, 0.4), "ms"),
     ((0.45, 0.6), "s")],
)  # fmt: skip
def test_the_unit_of_times_keeps_their_digits(delays_s: tuple[float, float], unit: str) -> None:
    """At 8 connections on 4 slots a response takes twice as long."""
    trials = [evidence(SYNC, 4 * n, delay_s=delay_s) for n, delay_s in enumerate(delays_s, 1)]
    document = sweep(*trials)
    assert table(document, "Cells").unit == unit
    assert {table.unit for table in document.tables} == {unit, "ms", ""}


# --- closed and open ------------------------------------------------------------------------


def test_cells_at_a_rate_follow_their_closed_counterparts() -> None:
    report = analyse("run", {}, [*closed_loop(), share(0.5), share(1.0)])
    cells = [result.trial.cell for result in side_by_side(report.cells)]
    rows = [(cell.concurrency, cell.rate) for cell in cells]
    assert rows == [(2, None), (8, Rate(share=0.5)), (4, None), (8, Rate(share=1.0))]
    document = sweep_document(report)
    loads = ["closed, 2 conn.", "open, 50%", "closed, 4 conn.", "open, 100%"]
    assert column(table(document, "Closed and open"), "load") == loads
    assert len(table(document, "Cells").rows) == 5


def outcomes(document: Document) -> list[Any]:
    loads = document.findings[0].evidence
    return [load.outcome for load in loads if isinstance(load, open_closed.OpenLoad)]


def test_single_trials_are_not_compared() -> None:
    """Identical trials were once reported to take 1.44 and 2.15 times as long."""
    over = open_trial(Rate(rps=60), 60)
    document = sweep(*closed_loop(), share(0.5), share(1.0), over)
    half, full, over_capacity = outcomes(document)
    assert {type(half), type(full), type(over_capacity)} == {open_closed.BesideClosed}
    assert half.why == full.why == open_closed.OneTrialEach(3)
    assert isinstance(over_capacity.why, open_closed.Backlog)
    assert over_capacity.why.clients == 4
    assert str(open_closed.OneTrialEach(3)) in text(table(document, "Closed and open").note)


def repeated(rate: Rate, *trials: dict[str, float]) -> list[TrialData]:
    """Trials of the closed loop at 4 connections on 4 slots, and trials at this rate with these
    changes."""
    numbers = range(1, len(trials) + 1)
    return [
        *(evidence(connections=4, tool="fast", trial=number, delay_s=0.1 + 0.001 * number)
          for number in numbers),
        *(open_trial(rate, rate.rps or 0.0, level=4, trial=number, **changes)
          for number, changes in zip(numbers, trials, strict=True)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("delays_s", "kind", "longer"),
    [
        ((0.101, 0.103, 0.102), open_closed.ResponsesAgree, ""),
        ((0.05, 0.1, 0.2), open_closed.TooCloseToCall, ""),  # single trials differ by a factor of 2
        ((0.19, 0.2, 0.21), open_closed.ResponsesDiffer, "Open"),
        ((0.049, 0.05, 0.051), open_closed.ResponsesDiffer, "Closed"),
    ],
)
def test_loads_differ_if_the_interval_over_trials_excludes_1(
    delays_s: tuple[float, ...], kind: type, longer: str
) -> None:
    trials = repeated(Rate(rps=15), *({"delay_s": delay_s} for delay_s in delays_s))
    (outcome,) = outcomes(sweep(*trials))
    assert (type(outcome.why), outcome.launches) == (kind, 3)
    ratio = outcome.why.ratio
    assert ratio.low <= ratio.value <= ratio.high
    if isinstance(outcome.why, open_closed.ResponsesDiffer):
        assert outcome.why.longer == longer
        assert outcome.why.wait_s is None  # the app takes longer, not a queue


def test_inconclusive_trials_are_not_compared() -> None:
    report = analyse("run", {}, repeated(Rate(rps=15), *({"delay_s": 0.1},) * 3))
    cells = tuple(
        replace(cell, verdict="inconclusive")
        if cell.trial.number > 1 and cell.trial.cell.rate is None else cell
        for cell in report.cells
    )  # fmt: skip
    (outcome,) = outcomes(sweep_document(replace(report, cells=cells)))
    assert outcome.why == open_closed.TooFewConclusiveTrials(3, 1)


def test_the_waits_show_the_cause_of_a_difference() -> None:
    """Two slots serve 1 % less than 19 requests/s, so a queue of two grows in 10 s."""
    trials = repeated(Rate(rps=19), *({"slots": 2, "delay_s": s} for s in (0.1064, 0.1065, 0.1066)))
    (outcome,) = outcomes(sweep(*trials))
    assert isinstance(outcome.why, open_closed.ResponsesDiffer)
    assert outcome.why.longer == "Open"
    assert outcome.why.wait_s > 5 * outcome.why.other_wait_s


def test_a_backlog_in_some_trials_is_not_a_backlog_of_the_load() -> None:
    trials = repeated(Rate(rps=30), *({"delay_s": delay_s} for delay_s in (0.1, 0.1, 0.2)))
    document = sweep(*trials)
    (outcome,) = outcomes(document)
    assert not isinstance(outcome.why, open_closed.Backlog)
    assert column(table(document, "Closed and open"), "trial") == [1, 2, 3, 1, 2, 3]


def test_without_a_closed_cell_nothing_is_compared() -> None:
    document = sweep(share(0.5))
    assert outcomes(document) == [open_closed.NoClosedCell(pytest.approx(0.1), None)]
    assert table(document, "Closed and open").rows


# --- intervals ------------------------------------------------------------------------------


def test_a_varying_throughput_has_its_interval() -> None:
    """Service times are 0.1 to 1.9 s in random order."""
    chance = random.Random(3)
    varying = evidence(rounds=20, delays=lambda _: chance.uniform(0.1, 1.9))
    cells = table(sweep(varying, evidence(server("gevent"), 8)), "Cells")
    gevent, sync = sorted(column(cells, "throughput_half_rps"))
    assert gevent == pytest.approx(0.0, abs=1e-6)
    assert 0.01 * 4 < sync < 4


@pytest.mark.parametrize(
    ("trials", "noted_classes"),
    [
        ([with_keepalive(gthread(8))], ("gthread",)),
        ([gthread(8)], ()),  # each request may reach another worker
        ([with_keepalive(evidence(connections=8))], ()),  # sync closes them
        ([with_keepalive(gthread(8, trial=number)) for number in (1, 2, 3)], ()),
    ],
)
def test_keepalive_connections_of_a_single_launch_are_noted(
    trials: list[TrialData], noted_classes: tuple[str, ...]
) -> None:
    notes = [note for note in sweep(*trials).notes if isinstance(note, DealtInOneLaunch)]
    assert [note.worker_classes for note in notes] == [noted_classes] * bool(noted_classes)
