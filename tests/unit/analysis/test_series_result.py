"""The knee and the verdicts of a series do not contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from tests.builders.analysis import derived, evidence, report_of
from tests.builders.noise import noisy
from tests.builders.open_model import open_trial
from workerlab.analysis import Conclusions, TrialData, class_result
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


def sync_series(*levels: int) -> Series:
    """The series of a sync server with 4 slots and a service time of 1 s."""
    return series_of([evidence(connections=n, tool="fast") for n in levels])


def series_of(trials: list[TrialData]) -> Series:
    return Series(trials[0].cell.series, trials, R0(1.0, 0.0), list(map(derived, trials)), (), ())


def disturbed(trial: TrialData) -> TrialData:
    return noisy(trial, server_wait=0.8, others=1.8)


def judgements_of(series: Series, verdicts: Mapping[int, Verdict]) -> Judgements:
    return {facts.key: (verdicts[facts.connections], Note("")) for facts in series.closed}


def knee(series: Series, **verdicts: Verdict) -> Knee:
    """`verdicts`: by level, such as c8."""
    by_level = {int(name[1:]): verdict for name, verdict in verdicts.items()}
    return knee_of(series, judgements_of(series, by_level))


def test_the_knee_is_below_the_lowest_saturated_level() -> None:
    estimate = knee(sync_series(1, 3), c1="below capacity", c3="saturated")
    note = estimate.note
    assert isinstance(note, KneeBetween)
    assert estimate.connections is None
    assert note.least == pytest.approx(3.0, rel=0.05)
    assert note.most == pytest.approx(3.5, abs=0.5)  # the lower of level and slots
    assert (note.step.verb, note.step.meaning) == ("grew", "")
    assert str(note).startswith("between 3 and 3: throughput grew by ")
    assert note.short == "3 to 3"


def test_growth_from_a_saturated_level_shows_no_spare_capacity() -> None:
    note = knee(sync_series(1, 3), c1="saturated", c3="saturated").note
    assert isinstance(note, KneeBetween)
    assert note.step.meaning == NO_SPARE_CAPACITY


@pytest.mark.parametrize(
    ("relative_half", "meaning", "advice"),
    [(0.0, "", "add"), (0.8, NOT_SIGNIFICANT, REPEAT_OR_ADD)],
)
def test_growth_within_the_intervals_is_no_growth(
    relative_half: float, meaning: str, advice: str
) -> None:
    # A faster lone response, so that both levels wait
    series = replace(sync_series(2, 4), r0=R0(0.5, 0.0))
    series.__dict__["relative_halves"] = {2: relative_half, 4: relative_half}
    judgements = judgements_of(series, {2: "below capacity", 4: "below capacity"})
    note = knee_by_levels(series, judgements, highest_tried=4).note
    assert isinstance(note, KneeAtLeast)
    assert isinstance(note.why, LastStep)
    assert (note.why.meaning, note.advice) == (meaning, advice)


@pytest.mark.parametrize(
    ("levels", "connections"), [((), 4), ((2,), 4), ((8,), None), ((2, 4, 8), None)]
)
def test_disturbed_levels_show_no_knee(levels: tuple[int, ...], connections: int | None) -> None:
    trials = {n: evidence(connections=n, tool="fast") for n in (2, 4, 8)}
    series = series_of([disturbed(trial) if n in levels else trial for n, trial in trials.items()])
    estimate = knee(series, c2="below capacity", c4="at capacity", c8="saturated")
    assert estimate.connections == connections
    if connections is None:
        assert isinstance(estimate.note, KneeDoubtful)
        assert "lost to other programs" in str(estimate.note)
        assert estimate.note.short == "inconclusive"


@pytest.mark.parametrize(("relative_half", "note"), [(0.2, KneeAtLeast), (1.8, KneeDoubtful)])
def test_a_disturbed_level_of_imprecise_throughput_is_inconclusive(
    relative_half: float, note: type[Finding]
) -> None:
    series = series_of([disturbed(evidence(connections=4, tool="fast"))])
    series.__dict__["relative_halves"] = {4: relative_half}
    assert isinstance(knee(series, c4="at capacity").note, note)


def test_there_is_no_capacity_without_a_knee() -> None:
    trials = [evidence(connections=n, tool="fast", trial=k) for n in (1, 8, 16) for k in (1, 2, 3)]
    (quiet,) = report_of(*trials).classes
    assert quiet.capacity_ci95 == pytest.approx((4.0, 4.0), rel=0.05)
    report = report_of(*map(disturbed, trials))
    (group,) = report.classes
    assert (group.knee, group.capacity_rps, group.capacity_ci95) == (None, None, None)
    (note,) = report.notes
    assert str(note).startswith("no capacity for sync with fast: the knee is inconclusive: at 1, 8")


def test_an_imprecise_throughput_shows_no_knee() -> None:
    series = sync_series(2, 4, 8)
    series.__dict__["relative_halves"] = {2: 0.0, 4: 0.0, 8: 0.3}
    note = knee(series, c2="below capacity", c4="at capacity", c8="saturated").note
    assert str(note) == "inconclusive: at 8 connections the throughput is known only to ± 30 %"


def test_an_inconclusive_level_is_ignored() -> None:
    series = sync_series(2, 4, 8)
    estimate = knee(series, c2="below capacity", c4="inconclusive", c8="inconclusive")
    assert estimate.connections is None
    assert isinstance(estimate.note, KneeAbove)
    note = knee(series, c2="below capacity", c4="at capacity", c8="inconclusive").note
    assert isinstance(note, KneeAtLeast)
    assert (note.why, note.add) == (PROPORTIONAL, None)  # higher levels were tried
    note = knee(series, c2="inconclusive", c4="inconclusive", c8="inconclusive").note
    assert str(note) == "unknown: every cell is inconclusive"


def test_the_level_is_a_throughput_of_one_of_the_cells() -> None:
    series = sync_series(4, 8)
    judgements = judgements_of(series, {4: "at capacity", 8: "saturated"})
    conclusions = Conclusions(series, judgements, knee_of(series, judgements), Capacity())
    cells = [closed_result(facts, series, *judgements[facts.key]) for facts in series.closed]
    level_rps = class_result(conclusions, cells).level_rps
    assert level_rps == max(cell.throughput_rps for cell in cells)
    stalled = class_result(conclusions, [replace(cell, throughput_rps=1.41) for cell in cells])
    assert stalled.knee == pytest.approx(4.0, rel=0.05)
    assert stalled.level_rps is None


def test_spare_capacity_beyond_the_knee_makes_it_unknown() -> None:
    note = knee(sync_series(4, 8), c4="at capacity", c8="below capacity").note
    assert isinstance(note, KneeUnknown)
    assert isinstance(note.reason, RoomBeyond)
    assert note.reason.connections == 8


def test_a_generator_bound_level_advises_no_more_connections() -> None:
    series = sync_series(2, 4, 8)
    limited = replace(series, tool_limits={series.closed[2].key: (Note("it was busy"),)})
    note = knee(limited, c2="below capacity", c4="at capacity", c8="generator-bound").note
    assert isinstance(note, KneeAtLeast)
    assert note.tool_limit == ToolLimitFrom(8, "fast")
    assert (note.why, note.add) == (PROPORTIONAL, None)


def test_a_class_with_only_inconclusive_closed_cells_is_named() -> None:
    closed = evidence(connections=8, tool="fast", delay_s=0.1)
    report = report_of(closed, open_trial(Rate(rps=20), 20.0))
    cells = tuple(
        replace(cell, verdict="inconclusive") if cell.trial.cell.rate is None else cell
        for cell in report.cells
    )
    sentence = text(sweep_document(replace(report, cells=cells)).findings[0])
    assert "every cell of the closed loop is inconclusive" in sentence
