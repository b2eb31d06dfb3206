"""Which cells of a sweep keep a target, and what their loads do not show."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    derived,
    evidence,
    ns,
    recording,
    saying,
    seeing,
    server,
)
from tests.builders.open_model import opened
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
from workerlab.model import CellResult, CoreWait, Document, Pause, Rate, Summary
from workerlab.report.sweep_document import sweep_document
from workerlab.slo import parse

TARGET = "p95<150ms,errors<5%"


def sweep(*trials: TrialData, target: str = TARGET) -> Document:
    return sweep_document(analyse("run", {}, trials, terms=parse(target)))


def closed(connections: int, *, rounds: int = 40, tool: str = "fast", trial: int = 1) -> TrialData:
    return evidence(
        SYNC, connections, tool=tool, delay_s=0.1, rounds=rounds, trial=trial, timed=tool == "fast"
    )


def words(cell: CellResult) -> list[str]:
    return [outcome.result for outcome in outcomes(cell)]


def conclusions(document: Document) -> list[TargetKept | TargetNotKept]:
    return [
        finding for finding in document.findings if isinstance(finding, TargetKept | TargetNotKept)
    ]


def kept(document: Document) -> TargetKept:
    """The only conclusion of a target."""
    (conclusion,) = conclusions(document)
    assert isinstance(conclusion, TargetKept)
    return conclusion


def not_kept(document: Document) -> TargetNotKept:
    (conclusion,) = conclusions(document)
    assert isinstance(conclusion, TargetNotKept)
    return conclusion


def with_failures(trial: TrialData, every: int) -> TrialData:
    """Every so many of its requests answered 503."""
    assert trial.measurement is not None
    timings = tuple(
        replace(one, status=503, cause="non_2xx") if number % every == 0 else one
        for number, one in enumerate(trial.measurement.timings)
    )
    failed = sum(one.cause is not None for one in timings)
    return saying(trial, timings=timings, failed=failed, errors={"non_2xx": failed})


# --- cells ----------------------------------------------------------------------------------------


def test_a_level_within_the_slots_keeps_it_and_one_that_waits_does_not() -> None:
    cells = sweep(closed(4), closed(8)).cells
    assert [words(cell) for cell in cells] == [["met", "met"], ["broken", "met"]]


def test_where_there_is_no_target_nothing_is_said_of_one() -> None:
    document = sweep_document(analyse("run", {}, [closed(4)]))
    assert document.target_kept is None
    assert not conclusions(document)
    assert "target" not in [column.name for table in document.tables for column in table.columns]


def test_an_invalid_cell_keeps_nothing_and_breaks_nothing() -> None:
    document = sweep(closed(4), replace(closed(8), measurement=None))
    assert [words(cell) for cell in document.cells] == [["met", "met"], []]
    place = [column.name for column in document.tables[0].columns].index("target")
    assert [row[place] for row in document.tables[0].rows] == [TargetOfCell("met", ()), None]


def test_errors_are_counted_over_the_trials_of_a_cell() -> None:
    """20 requests each: 60 show that less than 5 % fail, none alone does. p95 takes 72."""
    cells = sweep(*(closed(4, rounds=5, trial=n) for n in (1, 2, 3))).cells
    assert [words(cell) for cell in cells] == [["not shown", "met"]] * 3
    assert {outcomes(cell)[1].requests for cell in cells} == {63}
    (alone,) = sweep(closed(4, rounds=5)).cells
    assert words(alone) == ["not shown", "not shown"]


def test_fast_failures_do_not_help() -> None:
    """Every eighth: 12.5 % are slower than any limit, however quickly they were refused."""
    document = sweep(with_failures(closed(4), 8), target="p95<150ms,p50<150ms")
    assert [words(cell) for cell in document.cells] == [["broken", "met"]]
    (outcome, _) = outcomes(document.cells[0])
    assert outcome.measured == "21 of 161 requests failed, which is slower than any limit"


def test_ab_has_every_response_time_though_it_does_not_say_whose() -> None:
    trial = closed(4, tool="ab")
    assert trial.measurement is not None
    times_s = tuple(0.1 + n / 10_000 for n in range(trial.measurement.requests))
    found = requests(derived(saying(trial, responses_s=times_s)), sweep(trial).cells[0])
    assert found.times_s == list(times_s)
    assert outcomes(sweep(saying(trial, responses_s=times_s)).cells[0])[0].low is not None


def test_a_tool_that_sums_up_is_taken_at_its_word() -> None:
    """As wrk and locust are: there is no interval."""
    trial = saying(closed(4, tool="ab"), responses_s=(), response=Summary(p95=0.149))
    (outcome, _) = outcomes(sweep(trial).cells[0])
    assert (outcome.result, outcome.low) == ("met", None)


# --- what a load does not show --------------------------------------------------------------------


def outcome_of(cell: CellResult, trial: TrialData, target: str) -> TermOutcome:
    (found,) = with_targets(parse(target), [cell], [derived(trial)])
    return outcomes(found)[0]


def plain(trial: TrialData) -> CellResult:
    return analyse("run", {}, [trial]).cells[0]


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
def test_where_the_load_tool_is_the_limit(target: str, expected: str) -> None:
    trial = closed(4)
    found = outcome_of(replace(plain(trial), generator_bound=True), trial, target)
    assert found.result == expected
    if expected == "not shown":
        assert found.why == ToolWasLimit("fast")


def test_errors_are_the_servers_even_where_the_load_tool_is_the_limit() -> None:
    trial = with_failures(closed(4), 4)
    found = outcome_of(replace(plain(trial), generator_bound=True), trial, "errors<5%")
    assert found.result == "broken"


def test_what_is_met_beside_other_programs_is_met_what_is_broken_is_not_shown() -> None:
    """Of a share of 30 % of the response time."""
    noise = CoreWait(0.3, 0.01, others_cores=1.0, others_share=0.3)
    assert noise.disturbed
    trial = closed(4)
    cell = replace(plain(trial), core_wait=noise)
    assert outcome_of(cell, trial, "p95<150ms").result == "met"
    found = outcome_of(cell, trial, "p95<90ms")
    assert (found.result, found.why) == ("not shown", CoresUsedByOthers(noise.taken))
    # The fastest took 100 ms, of which others cannot have taken half
    assert outcome_of(cell, trial, "p95<50ms").result == "broken"


@pytest.mark.parametrize(("limit", "expected"), [("150ms", "not shown"), ("120ms", "broken")])
def test_a_saturated_cell_is_slow_without_other_programs_too(limit: str, expected: str) -> None:
    """p95 is 200 ms, of which others took 60."""
    noise = CoreWait(0.3, 0.01, others_cores=1.0, others_share=0.3)
    trial = closed(8)
    cell = replace(plain(trial), core_wait=noise)
    assert cell.verdict == "saturated"
    assert outcome_of(cell, trial, f"p95<{limit}").result == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("max<150ms", "not shown"),
        ("max<90ms", "broken"),  # so was the fastest
        ("max<2s", "met"),
        ("rps>=60", "broken"),
    ],
)
def test_what_a_pause_broke_is_not_shown_to_be_broken(target: str, expected: str) -> None:
    """Four requests of 100 ms stood still with the machine for one second of one and a half."""
    slow = range(9, 13)
    trial = evidence(SYNC, 4, tool="fast", delays=lambda number: 1.1 if number in slow else 0.1)
    trial = recording(trial, lone_s=(0.1,))
    quiet = outcome_of(plain(trial), trial, target)
    trial = seeing(trial, pauses=(Pause(ns(0.35), ns(1.35)),))
    found = outcome_of(plain(trial), trial, target)
    assert found.result == expected
    if expected == "not shown":
        assert quiet.result == "broken"
        assert isinstance(found.why, MachinePause)
        assert "this machine stood still" in str(found)


def test_a_backlog_that_grows_keeps_no_time_for_long() -> None:
    """60 requests/s at a server of 40: for ten seconds all are answered within ten."""
    trials = closed(4), closed(8), opened(Rate(rps=60), 60.0)
    cell = sweep(*trials, target="max<30s").cells[-1]
    assert cell.verdict == "saturated"
    assert outcomes(cell)[0].why == BACKLOG


def test_what_was_due_and_never_sent_is_slow() -> None:
    trial = opened(Rate(rps=60), 60.0, connections=5)
    cell = sweep(closed(4), closed(8), trial, target="p50<10s").cells[-1]
    assert cell.unsent
    unsent = requests(derived(trial), cell).unsent
    assert unsent == cell.unsent == outcomes(cell)[0].unsent


# --- levels ---------------------------------------------------------------------------------------


def test_the_highest_level_and_what_breaks_first_beyond() -> None:
    document = sweep(closed(2), closed(4), closed(8), closed(16))
    conclusion = kept(document)
    assert (conclusion.axis, conclusion.highest.connections, conclusion.last) == ("level", 4, "")
    (beyond,) = conclusion.beyond
    assert isinstance(beyond, TermsBreak)
    assert (beyond.level.connections, beyond.terms) == (8, ("p95<150ms",))
    assert document.target_kept is True
    assert [type(item) for item in conclusion.evidence] == [TargetInTrial] * 4
    assert str(conclusion) == (
        "sync: the highest level that keeps p95<150ms,errors<5% is 4 connections. At 8 connections"
        " p95<150ms breaks first: p95 200 ms."
    )


def test_the_highest_level_of_all_keeps_it() -> None:
    conclusion = kept(sweep(closed(2), closed(4)))
    assert conclusion.highest.connections == 4
    assert (conclusion.last, conclusion.beyond) == ("the highest measured", ())


def test_no_level_keeps_it() -> None:
    document = sweep(closed(4), closed(8), target="p95<50ms")
    conclusion = not_kept(document)
    assert (conclusion.axis, conclusion.keeps, document.target_kept) == ("level", "keeps", False)
    assert conclusion.beyond[0].level.connections == 4


def test_no_level_is_shown_to_keep_it() -> None:
    document = sweep(closed(4, rounds=5), closed(8))
    conclusion = not_kept(document)
    assert (conclusion.axis, conclusion.keeps) == ("level", "is shown to keep")
    assert document.target_kept is False
    assert [type(level) for level in conclusion.beyond] == [TermsAtLevel, TermsBreak]


def test_a_low_level_may_be_too_slow_for_a_throughput() -> None:
    """2 connections get 20 requests/s, 4 and 8 get 40."""
    conclusion = kept(sweep(closed(2), closed(4), closed(8), target="rps>=30,p95<150ms"))
    assert conclusion.highest.connections == 4


def test_a_level_keeps_it_where_all_trials_do() -> None:
    slow = evidence(SYNC, 4, tool="fast", delay_s=0.2, rounds=40, trial=2, timed=True)
    conclusion = kept(sweep(closed(2), closed(2, trial=2), closed(4), slow))
    assert conclusion.highest.connections == 2
    (beyond,) = conclusion.beyond
    assert isinstance(beyond, TermsBreak)
    assert (beyond.broken, beyond.trial_count) == (1, 2)
    assert "(in 1 of 2 trials)" in str(conclusion)


def test_rates_decide_where_there_are_some() -> None:
    """The closed cells are there for the capacity."""
    kept, broken = opened(Rate(rps=20), 20.0), opened(Rate(rps=60), 60.0)
    high = sweep(closed(8), closed(16), kept, broken)
    assert [(type(conclusion), conclusion.axis) for conclusion in conclusions(high)] == [
        (TargetNotKept, "level"),
        (TargetKept, "rate"),
    ]
    assert high.target_kept is True
    low = sweep(closed(4), closed(8), broken)
    assert [(type(conclusion), conclusion.axis) for conclusion in conclusions(low)] == [
        (TargetKept, "level"),
        (TargetNotKept, "rate"),
    ]
    assert low.target_kept is False


def test_every_class_must_keep_it() -> None:
    slow = evidence(server("tornado"), 4, tool="fast", delay_s=0.5, rounds=40, timed=True)
    document = sweep(closed(4), slow)
    assert [type(conclusion) for conclusion in conclusions(document)] == [TargetKept, TargetNotKept]
    assert document.target_kept is False


def test_a_class_without_a_valid_cell_keeps_nothing() -> None:
    nothing = replace(evidence(server("tornado"), 4, tool="fast"), measurement=None)
    assert sweep(closed(4), nothing).target_kept is False
    assert sweep(nothing).target_kept is None  # and invalid, which exits with 1
