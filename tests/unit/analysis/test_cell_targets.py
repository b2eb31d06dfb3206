"""Which cells of a sweep meet a target, and which loads cannot show it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    cell_of,
    derived,
    evidence,
    ns,
    server,
    with_failures,
    with_measurement,
    with_observations,
    with_record,
)
from tests.builders.document import answer, column, names
from tests.builders.open_model import open_trial
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.cell_targets import (
    BACKLOG,
    CoresUsedByOthers,
    TargetInTrial,
    TargetKept,
    TargetNotKept,
    TargetOfCell,
    TermsAtLevel,
    TermsBreak,
    ToolWasLimit,
    outcomes,
    requests,
    with_targets,
)
from workerlab.analysis.stall import MachinePause
from workerlab.analysis.target import TermOutcome
from workerlab.experiments.sweep.document import sweep_document
from workerlab.finding import Finding
from workerlab.model.evidence import Pause, Summary
from workerlab.model.plan import Rate, Server
from workerlab.model.result import CoreWait, Document, Result, TrialResult
from workerlab.slo import parse

TARGET = "p95<150ms,errors<5%"


def sweep(*trials: TrialData, target: str = TARGET) -> Document:
    return sweep_document(analyse("run", {}, trials, terms=parse(target)))


def closed(connections: int, settings: Server = SYNC, **changes: Any) -> TrialData:
    """A timed load of fast, 10 requests/s per slot."""
    defaults = {"tool": "fast", "delay_s": 0.1, "rounds": 40, "timed": True}
    return evidence(settings, connections, **{**defaults, **changes})


def results_of(cell: TrialResult) -> list[str]:
    return [outcome.result for outcome in outcomes(cell)]


def conclusions(document: Document) -> list[tuple[type[Finding], str]]:
    """The kind and the axis of each conclusion."""
    return [
        (type(finding), finding.axis)
        for finding in document.findings
        if isinstance(finding, TargetKept | TargetNotKept)
    ]


# --- cells ----------------------------------------------------------------------------------------


def test_a_level_meets_the_target_until_requests_wait_for_slots() -> None:
    cells = sweep(closed(4), closed(8)).cells
    assert [results_of(cell) for cell in cells] == [["met", "met"], ["broken", "met"]]


def test_without_a_target_there_are_no_conclusions_and_no_column() -> None:
    document = sweep_document(analyse("run", {}, [closed(4)]))
    assert document.target_kept is None
    assert not conclusions(document)
    assert not any("target" in names(table) for table in document.tables)


def test_an_invalid_cell_has_no_target_outcome() -> None:
    document = sweep(closed(4), replace(closed(8), measurement=None))
    assert [results_of(cell) for cell in document.cells] == [["met", "met"], []]
    assert column(document.tables[0], "target") == [TargetOfCell("met", ()), None]


def test_errors_are_counted_over_all_trials_of_a_cell() -> None:
    """60 requests can show an error rate below 5 %, 20 cannot; p95 takes 72."""
    cells = sweep(*(closed(4, rounds=5, trial=n) for n in (1, 2, 3))).cells
    assert [results_of(cell) for cell in cells] == [["not shown", "met"]] * 3
    assert {outcomes(cell)[1].requests for cell in cells} == {63}
    (alone,) = sweep(closed(4, rounds=5)).cells
    assert results_of(alone) == ["not shown", "not shown"]


def test_failures_count_as_slower_than_any_limit() -> None:
    """12.5 % fail, so p95 is slower than any limit although they were refused quickly."""
    trial = with_failures(closed(4), lambda number: number % 8 == 0)
    (cell,) = sweep(trial, target="p95<150ms,p50<150ms").cells
    assert results_of(cell) == ["broken", "met"]
    (outcome, _) = outcomes(cell)
    assert outcome.measured == "21 of 161 requests failed, which counts as slower than any limit"


def test_response_times_of_ab_are_used() -> None:
    trial = closed(4, tool="ab", timed=False)
    times_s = tuple(0.1 + n / 10_000 for n in range(trial.measurement.requests))
    trial = with_measurement(trial, responses_s=times_s)
    (cell,) = sweep(trial).cells
    assert requests(derived(trial), cell).times_s == list(times_s)
    assert outcomes(cell)[0].low is not None


def test_a_summary_without_response_times_decides_without_an_interval() -> None:
    """Such as wrk and locust, which give no interval."""
    trial = closed(4, tool="ab", timed=False)
    trial = with_measurement(trial, responses_s=(), response=Summary(p95=0.149))
    (outcome, _) = outcomes(sweep(trial).cells[0])
    assert (outcome.result, outcome.low) == ("met", None)


# --- limits of what a load can show ---------------------------------------------------------------


def outcome_of(cell: Result, trial: TrialData, target: str) -> TermOutcome:
    (judged_cell,) = with_targets(parse(target), [cell], [derived(trial)])
    return outcomes(judged_cell)[0]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("p95<150ms", "not shown"),
        ("p95<50ms", "not shown"),
        ("errors<5%", "not shown"),
        ("rps>=1", "met"),
        ("rps>=1k", "not shown"),
    ],
)
def test_a_limit_of_the_load_tool_only_shows_throughput_targets_met(
    target: str, expected: str
) -> None:
    trial = closed(4)
    outcome = outcome_of(replace(cell_of(trial), generator_bound=True), trial, target)
    assert outcome.result == expected
    if expected == "not shown":
        assert outcome.why == ToolWasLimit("fast")


def test_errors_break_a_target_even_if_the_load_tool_is_the_limit() -> None:
    trial = with_failures(closed(4), lambda number: number % 4 == 0)
    outcome = outcome_of(replace(cell_of(trial), generator_bound=True), trial, "errors<5%")
    assert outcome.result == "broken"


# Other programs cost 30 % of the response time
NOISE = CoreWait(0.3, 0.01, others_cores=1.0, others_share=0.3)


@pytest.mark.parametrize(
    ("connections", "target", "expected"),
    [
        (4, "p95<150ms", "met"),
        (4, "p95<90ms", "not shown"),
        (4, "p95<50ms", "broken"),  # the fastest took 100 ms; others cannot have caused half of it
        (8, "p95<150ms", "not shown"),  # saturated, p95 is 200 ms; others caused 60 ms of it
        (8, "p95<120ms", "broken"),
    ],
)
def test_other_programs_can_excuse_a_broken_target(
    connections: int, target: str, expected: str
) -> None:
    assert NOISE.disturbed
    trial = closed(connections)
    cell = replace(cell_of(trial), core_wait=NOISE)
    assert (cell.verdict == "saturated") == (connections == 8)
    outcome = outcome_of(cell, trial, target)
    assert outcome.result == expected
    assert (outcome.why == CoresUsedByOthers(NOISE.share_lost)) == (expected == "not shown")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("max<150ms", "not shown"),
        ("max<90ms", "broken"),  # even the fastest is slower
        ("max<2s", "met"),
        ("rps>=60", "broken"),
    ],
)
def test_a_target_broken_by_a_pause_is_not_shown_broken(target: str, expected: str) -> None:
    """Four requests of 100 ms took 1 s longer because the machine paused."""
    slow = evidence(SYNC, 4, tool="fast", delays=lambda number: 1.1 if 9 <= number < 13 else 0.1)
    slow = with_record(slow, lone_s=(0.1,))
    trial = with_observations(slow, pauses=(Pause(ns(0.35), ns(1.35)),))
    outcome = outcome_of(cell_of(trial), trial, target)
    assert outcome.result == expected
    if expected == "not shown":
        assert outcome_of(cell_of(slow), slow, target).result == "broken"
        assert isinstance(outcome.why, MachinePause)
        assert "this machine, or the lab, was paused" in str(outcome)


def test_a_growing_backlog_meets_no_response_time_target() -> None:
    """60 requests/s at a capacity of 40: a load of 10 s still answers all within 10 s."""
    trials = closed(4), closed(8), open_trial(Rate(rps=60), 60.0)
    cell = sweep(*trials, target="max<30s").cells[-1]
    assert cell.verdict == "saturated"
    assert outcomes(cell)[0].why == BACKLOG


def test_unsent_requests_count_as_slow() -> None:
    trial = open_trial(Rate(rps=60), 60.0, connections=5)
    cell = sweep(closed(4), closed(8), trial, target="p50<10s").cells[-1]
    unsent = requests(derived(trial), cell).unsent
    assert unsent
    assert unsent == cell.at_rate.unsent == outcomes(cell)[0].unsent


# --- levels ---------------------------------------------------------------------------------------


def test_a_sweep_reports_the_highest_level_met_and_the_first_broken_term() -> None:
    document = sweep(closed(2), closed(4), closed(8), closed(16))
    conclusion = answer(document, TargetKept)
    assert document.target_kept is True
    assert [type(item) for item in conclusion.evidence] == [TargetInTrial] * 4
    assert str(conclusion) == (
        "sync: the highest level that meets p95<150ms,errors<5% is 4 connections. At 8 connections"
        " p95<150ms is missed: p95 200 ms."
    )


@pytest.mark.parametrize(
    ("levels", "target", "last"),
    [
        ((2, 4), TARGET, "the highest measured"),
        ((4,), TARGET, "the only level measured"),
        ((2, 4, 8), "rps>=30,p95<150ms", ""),  # 2 connections reach 20 requests/s; 4 and 8, 40
    ],
)
def test_a_sweep_reports_if_no_higher_level_was_measured(
    levels: tuple[int, ...], target: str, last: str
) -> None:
    conclusion = answer(sweep(*map(closed, levels), target=target), TargetKept)
    assert (conclusion.highest.connections, conclusion.last) == (4, last)
    assert bool(conclusion.beyond) is not bool(last)


def test_no_level_meets_the_target() -> None:
    document = sweep(closed(4), closed(8), target="p95<50ms")
    conclusion = answer(document, TargetNotKept)
    assert (conclusion.axis, conclusion.keeps, document.target_kept) == ("level", "meets", False)
    assert conclusion.beyond[0].level.connections == 4


def test_a_single_level_that_misses_the_target_says_nothing_about_others() -> None:
    short = closed(4, rounds=5)
    for trial, verb in ((closed(8), "does not meet"), (short, "is not shown to meet")):
        conclusion = str(answer(sweep(trial), TargetNotKept))
        assert f"the only level measured {verb} p95<150ms" in conclusion


def test_no_level_is_shown_to_meet_the_target() -> None:
    document = sweep(closed(4, rounds=5), closed(8))
    conclusion = answer(document, TargetNotKept)
    assert (conclusion.axis, conclusion.keeps) == ("level", "is shown to meet")
    assert document.target_kept is False
    assert [type(level) for level in conclusion.beyond] == [TermsAtLevel, TermsBreak]


def test_a_level_meets_the_target_only_if_all_trials_do() -> None:
    slow = closed(4, delay_s=0.2, trial=2)
    conclusion = answer(sweep(closed(2), closed(2, trial=2), closed(4), slow), TargetKept)
    assert conclusion.highest.connections == 2
    (beyond,) = conclusion.beyond
    assert isinstance(beyond, TermsBreak)
    assert (beyond.broken, beyond.trial_count) == (1, 2)
    assert "p95<150ms is missed in 1 of 2 trials: p95 200 ms." in str(conclusion)


def test_cells_at_a_rate_decide_if_there_are_any() -> None:
    """Closed cells only give the capacity."""
    within, beyond = open_trial(Rate(rps=20), 20.0), open_trial(Rate(rps=60), 60.0)
    high = sweep(closed(8), closed(16), within, beyond)
    assert conclusions(high) == [(TargetNotKept, "level"), (TargetKept, "rate")]
    assert high.target_kept is True
    low = sweep(closed(4), closed(8), beyond)
    assert conclusions(low) == [(TargetKept, "level"), (TargetNotKept, "rate")]
    assert low.target_kept is False


def test_every_class_must_meet_the_target() -> None:
    document = sweep(closed(4), closed(4, server("tornado"), delay_s=0.5))
    assert [kind for kind, _ in conclusions(document)] == [TargetKept, TargetNotKept]
    assert document.target_kept is False


def test_a_class_without_a_valid_cell_does_not_meet_the_target() -> None:
    invalid = replace(evidence(server("tornado"), 4, tool="fast"), measurement=None)
    assert sweep(closed(4), invalid).target_kept is False
    assert sweep(invalid).target_kept is None  # the run is invalid anyway and exits with 1
