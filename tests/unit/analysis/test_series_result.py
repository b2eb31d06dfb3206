"""Knee and verdicts of one series do not contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from tests.builders.analysis import derived, evidence
from tests.builders.noise import noisy
from tests.builders.open_model import open_trial
from workerlab.analysis import Conclusions, TrialData, analyse, class_result
from workerlab.analysis.cells import closed_result
from workerlab.analysis.knee import (
    NO_SPARE_CAPACITY,
    NOT_SIGNIFICANT,
    PROPORTIONAL,
    REPEAT_OR_ADD,
    Capacity,
    Knee,
    KneeAbove,
    KneeAtLeast,
    KneeBetween,
    KneeDoubtful,
    KneeUnknown,
    LastStep,
    RoomBeyond,
    ToolLimitFrom,
    knee_by_levels,
    knee_of,
)
from workerlab.analysis.series import R0, Series
from workerlab.analysis.verdict import Judgements
from workerlab.experiments.sweep.document import sweep_document
from workerlab.finding import Finding, Note
from workerlab.model.plan import Rate
from workerlab.model.result import Verdict
from workerlab.report.values import text


def series(*levels: int, bound: Mapping[str, tuple[Finding, ...]] | None = None) -> Series:
    """The series of a sync server with 4 slots and a service time of 1 s."""
    return series_of([evidence(connections=n, tool="fast") for n in levels], bound)


def series_of(
    trials: list[TrialData], bound: Mapping[str, tuple[Finding, ...]] | None = None
) -> Series:
    closed = list(map(derived, trials))
    key = trials[0].cell.series
    return Series(key, trials, R0(1.0, 0.0), closed, (), (), tool_limits=bound or {})


def judged(of: Series, verdicts: Mapping[int, Verdict]) -> Judgements:
    return {facts.key: (verdicts[facts.connections], Note("")) for facts in of.closed}


def knee(of: Series, **verdicts: Verdict) -> Knee:
    """`verdicts`: by level, such as c8."""
    by_level = {int(name[1:]): verdict for name, verdict in verdicts.items()}
    return knee_of(of, judged(of, by_level))


def test_the_knee_is_below_the_lowest_saturated_level() -> None:
    estimate = knee(series(1, 3), c1="below capacity", c3="saturated")
    note = estimate.note
    assert isinstance(note, KneeBetween)
    assert estimate.connections is None
    assert note.least == pytest.approx(3.0, rel=0.05)
    assert note.most == pytest.approx(3.5, abs=0.5)  # the lower of level and slots
    assert (note.step.verb, note.step.meaning) == ("grew", "")
    assert str(note).startswith("between 3 and 3: throughput grew by ")
    assert note.short == "3 to 3"


def test_growth_from_a_saturated_level_is_no_sign_of_room() -> None:
    estimate = knee(series(1, 3), c1="saturated", c3="saturated")
    assert isinstance(estimate.note, KneeBetween)
    assert estimate.note.step.meaning == NO_SPARE_CAPACITY


def test_growth_within_the_intervals_is_no_growth() -> None:
    for relative_half, meaning, advice in ((0.0, "", "add"), (0.8, NOT_SIGNIFICANT, REPEAT_OR_ADD)):
        base = series(2, 4)
        # A faster lone response, so that both levels wait
        slow = Series(base.key, base.trials, R0(0.5, 0.0), base.closed, (), ())
        slow.__dict__["relative_halves"] = {2: relative_half, 4: relative_half}
        judgements = judged(slow, {2: "below capacity", 4: "below capacity"})
        note = knee_by_levels(slow, judgements, highest_tried=4).note
        assert isinstance(note, KneeAtLeast)
        assert isinstance(note.why, LastStep)
        assert (note.why.meaning, note.advice) == (meaning, advice)


def test_disturbed_levels_show_no_knee() -> None:
    trials = [evidence(connections=n, tool="fast") for n in (2, 4, 8)]

    def disturbed_knee(*disturbed: int) -> Knee:
        some_noisy = [
            noisy(trial, server_wait=0.8, others=1.8)
            if trial.trial.cell.concurrency in disturbed else trial
            for trial in trials
        ]  # fmt: skip
        of = series_of(some_noisy)
        return knee(of, c2="below capacity", c4="at capacity", c8="saturated")

    assert disturbed_knee(2).connections == disturbed_knee().connections == 4
    for disturbed in ((8,), (2, 4, 8)):
        doubtful = disturbed_knee(*disturbed)
        assert doubtful.connections is None
        assert isinstance(doubtful.note, KneeDoubtful)
        assert "lost to other programs" in str(doubtful.note)
        assert doubtful.note.short == "inconclusive"


@pytest.mark.parametrize(("relative_half", "note"), [(0.2, KneeAtLeast), (1.8, KneeDoubtful)])
def test_a_disturbed_level_of_unknown_throughput_grows_by_nothing(
    relative_half: float, note: type[Finding]
) -> None:
    of = series_of([noisy(evidence(connections=4, tool="fast"), server_wait=0.8, others=1.8)])
    of.__dict__["relative_halves"] = {4: relative_half}
    assert isinstance(knee(of, c4="at capacity").note, note)


def test_there_is_no_capacity_without_a_knee() -> None:
    trials = [evidence(connections=n, tool="fast", trial=k) for n in (1, 8, 16) for k in (1, 2, 3)]
    (quiet,) = analyse("quiet", {}, trials).classes
    assert quiet.capacity_ci95 == pytest.approx((4.0, 4.0), rel=0.05)
    report = analyse(
        "disturbed", {}, [noisy(trial, server_wait=0.8, others=1.8) for trial in trials]
    )
    (group,) = report.classes
    assert (group.knee, group.capacity_rps, group.capacity_ci95) == (None, None, None)
    (note,) = report.notes
    assert str(note).startswith("no capacity for sync with fast: the knee is inconclusive: at 1, 8")


def test_an_imprecise_throughput_shows_no_knee() -> None:
    of = series(2, 4, 8)
    of.__dict__["relative_halves"] = {2: 0.0, 4: 0.0, 8: 0.3}
    estimate = knee(of, c2="below capacity", c4="at capacity", c8="saturated")
    assert str(estimate.note) == (
        "inconclusive: at 8 connections the throughput is known only to ± 30 %"
    )


def test_an_inconclusive_level_is_not_counted() -> None:
    of = series(2, 4, 8)
    assert knee(of, c2="below capacity", c4="at capacity", c8="saturated").connections is not None
    estimate = knee(of, c2="below capacity", c4="inconclusive", c8="inconclusive")
    assert estimate.connections is None
    assert isinstance(estimate.note, KneeAbove)
    estimate = knee(of, c2="below capacity", c4="at capacity", c8="inconclusive")
    assert isinstance(estimate.note, KneeAtLeast)
    assert (estimate.note.why, estimate.note.add) == (
        PROPORTIONAL,
        None,
    )  # higher levels were tried
    assert str(knee(of, c2="inconclusive", c4="inconclusive", c8="inconclusive").note) == (
        "unknown: every cell is inconclusive"
    )


def test_the_level_is_a_throughput_of_one_of_the_cells() -> None:
    of = series(4, 8)
    judgements = judged(of, {4: "at capacity", 8: "saturated"})
    concluded = Conclusions(of, judgements, knee_of(of, judgements), Capacity())
    cells = [closed_result(facts, of, *judgements[facts.key]) for facts in of.closed]
    level_rps = class_result(concluded, cells).level_rps
    assert level_rps == max(cell.throughput_rps or 0 for cell in cells)
    stalled = [replace(cell, throughput_rps=1.41) for cell in cells]
    assert class_result(concluded, stalled).knee == pytest.approx(4.0, rel=0.05)
    assert class_result(concluded, stalled).level_rps is None


def test_room_beyond_the_knee_makes_it_unknown() -> None:
    estimate = knee(series(4, 8), c4="at capacity", c8="below capacity")
    assert isinstance(estimate.note, KneeUnknown)
    assert isinstance(estimate.note.reason, RoomBeyond)
    assert estimate.note.reason.connections == 8


def test_a_generator_bound_level_advises_no_more_connections() -> None:
    of = series(2, 4, 8)
    tool = {of.closed[2].key: (Note("it was busy"),)}
    limited = series(2, 4, 8, bound=tool)
    estimate = knee(limited, c2="below capacity", c4="at capacity", c8="generator-bound")
    assert isinstance(estimate.note, KneeAtLeast)
    assert estimate.note.tool_limit == ToolLimitFrom(8, "fast")
    assert (estimate.note.why, estimate.note.add) == (PROPORTIONAL, None)


def test_inconclusive_closed_cells_beside_rates_are_named() -> None:
    report = analyse("rates", {}, [evidence(connections=8, tool="fast", delay_s=0.1),
                                   open_trial(Rate(rps=20), 20.0)])  # fmt: skip
    cells = [
        replace(cell, verdict="inconclusive") if cell.trial.cell.rate is None else cell
        for cell in report.cells
    ]
    sentence = text(sweep_document(replace(report, cells=tuple(cells))).findings[0])
    assert "every cell of the closed loop is inconclusive" in sentence
