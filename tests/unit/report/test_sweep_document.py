"""What a sweep's document says: codes and numbers, names of cells, tables."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    evidence,
    gthread,
    server,
    with_keepalive,
    with_measurement,
)
from tests.builders.open_model import open_trial
from tests.builders.sweep import common, everything
from workerlab.analysis import DealtInOneLaunch, TrialData, analyse
from workerlab.analysis.class_findings import NoValidCell, SeriesLimits
from workerlab.analysis.diagnosis.slots import WaitingForSlots
from workerlab.analysis.open_closed import (
    Backlog,
    BesideClosed,
    NoClosedCell,
    OneTrialEach,
    OpenLoad,
    ResponsesAgree,
    ResponsesDiffer,
    TooCloseToCall,
    TooFewConclusiveTrials,
    counterpart,
)
from workerlab.analysis.trials import by_cell
from workerlab.finding import Finding
from workerlab.model import Document, Label, Rate, Table
from workerlab.report.sweep_document import AffectedCells, CellsNote, Overhead, sweep_document
from workerlab.report.sweep_tables import side_by_side
from workerlab.report.text import render
from workerlab.report.values import text

CAPACITY = 40.0


def sweep(*trials: TrialData) -> Document:
    return sweep_document(analyse("run", {}, trials))


def closed_loop() -> list[TrialData]:
    return [evidence(connections=at, tool="fast", delay_s=0.1) for at in (1, 2, 4, 8, 16)]


def share(of: float) -> TrialData:
    return open_trial(Rate(share=of), of * CAPACITY)


def finding(document: Document, code: str) -> Finding:
    (only,) = [one for one in document.findings if isinstance(one, Finding) and one.code == code]
    return only


def table(document: Document, title: str) -> Table:
    (only,) = [table for table in document.tables if text(table.title).startswith(title)]
    return only


def invalid_cells(document: Document) -> list[AffectedCells]:
    every = [finding for finding in document.findings if isinstance(finding, AffectedCells)]
    return [each for each in every if each.state == "Invalid"]


def column(of: Table, name: str) -> list[Any]:
    place = [one.name for one in of.columns].index(name)
    return [row[place] for row in of.rows]


def names(of: Table) -> list[str]:
    return [one.name for one in of.columns]


# --- classes --------------------------------------------------------------------------------


def test_that_parts_are_estimates_is_said_beside_them() -> None:
    """Not only when the run starts, or with --explain; also where both tables stand as one."""
    timed = evidence(SYNC, 8, tool="fast", timed=True)
    trial = with_measurement(replace(timed, can_follow=True), timings=())
    document = sweep_document(analyse("timed", {}, [trial]))
    assert [cell.breakdown.exact for cell in document.cells] == [False]
    for width in (None, 80):
        shown = render(document, width=width)
        assert " ".join(shown.split()).count("only with a ramp or mix, so each part is") == 1
    assert "each part is an estimate" not in render(common())


def test_where_a_class_stops() -> None:
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


def test_a_class_without_a_valid_cell() -> None:
    broken = replace(evidence(SYNC, 4), parse_error="half a line")
    (conclusion,) = [one for one in sweep(broken).findings if isinstance(one, NoValidCell)]
    assert conclusion.name == "sync"


def test_settings_that_differ_are_in_the_names() -> None:
    trials = [evidence(server("sync", workers), n) for workers in (2, 4) for n in (4, 8)]
    document = sweep(*trials)
    assert [finding.values["name"] for finding in document.findings[:2]] == [  # type: ignore[union-attr]
        "sync (2 workers)",
        "sync (4 workers)",
    ]
    assert "workers" in names(table(document, "Cells"))
    assert text(document.title).startswith("backlog 2048, load by ab, 1 trial; ")


def test_the_processes_of_a_tool_are_told_where_they_differ() -> None:
    base = gthread(8)
    two = replace(base, trial=replace(base.trial, cell=replace(base.trial.cell, processes=2)))
    both, alone = sweep(base, two), sweep(two)
    assert "tool_processes" in names(table(both, "Cells"))
    assert text(both.findings[1].values["name"]) == "gthread (ab with 2 processes)"  # type: ignore[union-attr]
    assert "load by ab with 2 processes" in text(alone.title)


# --- the run --------------------------------------------------------------------------------


def test_overhead_by_class_is_evidence() -> None:
    (overhead,) = [one for one in common().findings if isinstance(one, Overhead)]
    assert overhead.factor == pytest.approx(common().overhead)
    by_class, _ = overhead.evidence
    assert re.fullmatch(r"load time, times the ideal: sync \S+, eventlet \S+", str(by_class))


def test_invalid_cells_and_notes_once_with_their_places() -> None:
    document = everything()
    (invalid,) = invalid_cells(document)
    assert len(invalid.trials) == 1
    about = {str(each.note): each for each in document.notes if isinstance(each, CellsNote)}
    assert about["load 3.9: close programs"].cells.startswith("tornado")
    assert not document.valid


def test_a_trial_is_named_where_others_of_its_level_are_not_meant() -> None:
    trials = [evidence(SYNC, n, trial=number) for n in (4, 8) for number in (1, 2)]
    trials[3] = replace(trials[3], parse_error="half a line")
    (invalid,) = invalid_cells(sweep(*trials))
    assert invalid.cells == "sync at 8 (trial 2)"


def test_an_empty_sweep() -> None:
    document = sweep()
    assert document.title == "No trial has completed."
    assert (document.findings, document.tables, document.valid) == ((), (), True)


# --- tables ---------------------------------------------------------------------------------


def test_tables_have_what_can_differ() -> None:
    cells = table(common(), "Cells")
    assert names(cells)[:3] == ["worker_class", "concurrency", "slots_configured"]
    assert (cells.keys, cells.unit) == (1, "s")
    assert column(cells, "verdict") == [cell.verdict for cell in common().cells]
    assert column(table(common(), "Capacity of each class"), "knee")[0] == 4.0


def test_times_are_in_one_unit() -> None:
    quick = sweep(*(evidence(SYNC, n, delay_s=0.004) for n in (2, 4)))
    assert {one.unit for one in quick.tables} == {"ms", ""}


@pytest.mark.parametrize(
    ("delays_s", "unit"),
    [((1.04, 1.04), "s"), ((0.0627, 1.04), "ms"), ((0.3, 0.4), "ms"), ((0.45, 0.6), "s")],
)
def test_no_time_loses_digits_by_its_unit(delays_s: tuple[float, float], unit: str) -> None:
    """At 8 connections on 4 slots a response takes twice as long."""
    slow = [
        evidence(server("sync"), 4 * (1 + place), delay_s=s) for place, s in enumerate(delays_s)
    ]
    assert table(sweep(*slow), "Cells").unit == unit


def test_unlimited_slots_are_not_missing() -> None:
    (slots,) = column(table(sweep(evidence(server("asgi"), 4)), "Cells"), "slots_configured")
    assert slots == "unlimited"


def test_kept_connections_by_worker() -> None:
    trial = with_keepalive(
        evidence(server("gthread", 2, 2), 8, slots=[2, 2], deal=lambda number: number % 2)
    )
    (counts,) = column(table(sweep(trial), "Kept-alive connections"), "connections_per_worker")
    assert counts is None or set(counts) <= set("0123456789, ")


# --- closed and open ------------------------------------------------------------------------


def test_cells_at_a_rate_stand_beside_their_counterparts() -> None:
    report = analyse("run", {}, [*closed_loop(), share(0.5), share(1.0)])
    rows = [(one.trial.cell.concurrency, one.trial.cell.rate) for one in side_by_side(report.cells)]
    assert rows == [(2, None), (8, Rate(share=0.5)), (4, None), (8, Rate(share=1.0))]
    document = sweep_document(report)
    assert column(table(document, "Closed and open"), "load") == [
        *("closed, 2 conn.", "open, 50%", "closed, 4 conn.", "open, 100%")
    ]
    assert len(table(document, "Cells").rows) == 5


def outcomes(document: Document) -> list[Any]:
    evidence = document.findings[0].evidence
    return [load.outcome for load in evidence if isinstance(load, OpenLoad)]


def _code(one: Label) -> str:
    return one.code if isinstance(one, Finding) else ""


def test_one_trial_is_not_compared() -> None:
    """Identical trials were told to take 1.44 and 2.15 times as long."""
    over = open_trial(Rate(rps=60), 60)
    document = sweep(*closed_loop(), share(0.5), share(1.0), over)
    half, full, over_capacity = outcomes(document)
    assert {type(half), type(full), type(over_capacity)} == {BesideClosed}
    assert half.why == full.why == OneTrialEach(3)
    assert isinstance(over_capacity.why, Backlog)
    assert over_capacity.why.clients == 4
    assert str(OneTrialEach(3)) in text(table(document, "Closed and open").note)


def repeated(rate: Rate, *trials: dict[str, float]) -> list[TrialData]:
    """Trials of the closed loop at 4 connections on 4 slots and of this rate, with other service
    times each."""
    closed = [evidence(connections=4, tool="fast", trial=number, delay_s=0.1 + 0.001 * number)
              for number, _ in enumerate(trials, 1)]  # fmt: skip
    return closed + [
        open_trial(rate, rate.rps or 0.0, level=4, trial=number, **changes)  # type: ignore[arg-type]
        for number, changes in enumerate(trials, 1)
    ]


@pytest.mark.parametrize(
    ("delays_s", "kind", "longer"),
    [
        ((0.101, 0.103, 0.102), ResponsesAgree, ""),
        ((0.05, 0.1, 0.2), TooCloseToCall, ""),  # one by one they would differ by half or twice
        ((0.19, 0.2, 0.21), ResponsesDiffer, "Open"),
        ((0.049, 0.05, 0.051), ResponsesDiffer, "Closed"),
    ],
)
def test_loads_differ_where_the_interval_over_trials_says_so(
    delays_s: tuple[float, ...], kind: type, longer: str
) -> None:
    trials = repeated(Rate(rps=15), *({"delay_s": one} for one in delays_s))
    (outcome,) = outcomes(sweep(*trials))
    assert (type(outcome.why), outcome.launches) == (kind, 3)
    ratio = outcome.why.ratio
    assert ratio.low <= ratio.value <= ratio.high
    if isinstance(outcome.why, ResponsesDiffer):
        assert outcome.why.longer == longer
        assert outcome.why.wait_s is None  # it is the app that takes longer, not a queue


def test_trials_that_tell_nothing_are_not_compared() -> None:
    report = analyse("run", {}, repeated(Rate(rps=15), *({"delay_s": 0.1},) * 3))
    cells = tuple(
        replace(one, verdict="inconclusive")
        if one.trial.number > 1 and one.trial.cell.rate is None else one
        for one in report.cells
    )  # fmt: skip
    (outcome,) = outcomes(sweep_document(replace(report, cells=cells)))
    assert outcome.why == TooFewConclusiveTrials(3, 1)


def test_a_cause_is_named_where_the_waits_show_it() -> None:
    """Two slots serve 1 % less than 19 a second: a queue grows, of two requests in 10 s."""
    trials = repeated(Rate(rps=19), *({"slots": 2, "delay_s": s} for s in (0.1064, 0.1065, 0.1066)))
    (outcome,) = outcomes(sweep(*trials))
    assert isinstance(outcome.why, ResponsesDiffer)
    assert outcome.why.longer == "Open"
    assert outcome.why.wait_s is not None
    assert outcome.why.other_wait_s is not None
    assert outcome.why.wait_s > 5 * outcome.why.other_wait_s


def test_a_verdict_of_some_trials_is_not_that_of_the_load() -> None:
    trials = repeated(Rate(rps=30), *({"delay_s": one} for one in (0.1, 0.1, 0.2)))
    (outcome,) = outcomes(sweep(*trials))
    assert not isinstance(outcome.why, Backlog)
    rows = table(sweep(*trials), "Closed and open")
    assert column(rows, "trial") == [1, 2, 3, 1, 2, 3]


def test_without_a_closed_cell_there_is_nothing_to_compare_with() -> None:
    report = analyse("run", {}, [share(0.5)])
    (open_trial,) = by_cell(report.cells).values()
    assert counterpart(open_trial, report.cells) is None
    (outcome,) = outcomes(sweep_document(report))
    assert outcome == NoClosedCell(pytest.approx(0.1), None)
    assert table(sweep_document(report), "Closed and open").rows


# --- how well it is known -------------------------------------------------------------------


def varying(connections: int = 8) -> TrialData:
    """Service times of 0.1 to 1.9 s, in no order that a batch would even out."""
    chance = random.Random(3)
    return evidence(connections=connections, rounds=20, delays=lambda _: chance.uniform(0.1, 1.9))


def test_a_throughput_that_varies_has_its_interval_beside_it() -> None:
    cells = table(sweep(varying(), evidence(server("gevent"), 8)), "Cells")
    gevent, sync = sorted(column(cells, "throughput_half_rps"))
    assert gevent == pytest.approx(0.0, abs=1e-6)
    assert 0.01 * 4 < sync < 4


def test_a_throughput_that_does_not_needs_no_column() -> None:
    assert "throughput_half_rps" not in names(table(common(), "Cells"))


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        ([with_keepalive(gthread(8))], ("gthread",)),
        ([gthread(8)], ()),  # each request may go to another worker
        ([with_keepalive(evidence(connections=8))], ()),  # sync closes them
        ([with_keepalive(gthread(8, trial=number)) for number in (1, 2, 3)], ()),
    ],
)
def test_kept_connections_of_one_launch_say_so(
    trials: list[TrialData], told: tuple[str, ...]
) -> None:
    notes = [note.values for note in sweep(*trials).notes if isinstance(note, DealtInOneLaunch)]
    assert [one["worker_classes"] for one in notes] == [told] * bool(told)
