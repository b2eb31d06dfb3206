"""Knee and verdicts of one series stand in one sentence, and do not contradict each other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from tests.builders.analysis import evidence, gthread
from tests.builders.noise import noisy
from tests.builders.open_model import opened
from workerlab.analysis import analyse
from workerlab.analysis.cells import closed_result
from workerlab.analysis.facts import Facts, facts_of
from workerlab.analysis.knee import (
    IN_STEP,
    NO_SIGN_OF_ROOM,
    WITHIN_CHANCE,
    Knee,
    KneeAbove,
    KneeAtLeast,
    KneeUnknown,
    LastStep,
    ToolLimitFrom,
)
from workerlab.analysis.series import R0, Series
from workerlab.analysis.series_result import (
    REPEAT,
    KneeBetween,
    KneeDoubtful,
    RoomBeyond,
    class_result,
    final_knee,
)
from workerlab.finding import Finding, Note
from workerlab.model import CellResult, Rate, Verdict
from workerlab.report.sweep_document import sweep_document
from workerlab.report.values import text


def series(*levels: int, bound: Mapping[str, tuple[Finding, ...]] | None = None) -> Series:
    """Of a sync server with 4 slots, that takes a second for each request."""
    trials = [evidence(connections=n, tool="fast") for n in levels]
    facts = [one for trial in trials if isinstance(one := facts_of(trial), Facts)]
    key = trials[0].cell.series
    return Series(key, trials, R0(1.0, 0.0), facts, (), (), tool_limits=bound or {})


def judged(of: Series, words: Mapping[int, Verdict]) -> list[CellResult]:
    cells = (closed_result(facts, of) for facts in of.closed)
    return [replace(one, verdict=words[one.trial.cell.concurrency]) for one in cells]


def knee(of: Series, **words: Verdict) -> Knee:
    return final_knee(of, judged(of, {int(name[1:]): word for name, word in words.items()}))


def test_a_saturated_level_asks_for_no_more_connections() -> None:
    report = analyse("dealt", {}, [gthread(8), gthread(16)])
    (found,) = report.classes
    assert [cell.verdict for cell in report.cells] == ["below capacity", "saturated"]
    note = found.knee_note
    assert isinstance(note, KneeBetween)
    assert note.least < note.most == found.slots_configured
    sentence = text(sweep_document(report).findings[0])
    assert "saturated from 16 connections on" in sentence
    assert "add 32" not in sentence


def test_between_what_throughput_shows_and_the_lowest_saturated_level() -> None:
    found = knee(series(1, 3), c1="below capacity", c3="saturated")
    note = found.note
    assert isinstance(note, KneeBetween)
    assert found.connections is None
    assert note.least == pytest.approx(3.0, rel=0.05)
    assert note.most == pytest.approx(3.5, abs=0.5)  # level, or slots if below
    assert note.step is not None
    assert (note.step.verb, note.step.meaning) == ("grew", "")
    assert str(note).startswith("between 3 and 3: throughput grew by ")
    assert note.short == "3 to 3"


def test_growth_from_a_level_that_waits_already_is_no_sign_of_room() -> None:
    found = knee(series(1, 3), c1="saturated", c3="saturated")
    assert isinstance(found.note, KneeBetween)
    assert found.note.step is not None
    assert found.note.step.meaning == NO_SIGN_OF_ROOM


def test_growth_within_chance_is_no_growth() -> None:
    of = series(2, 4)
    wide = series(2, 4)
    wide.__dict__["relative_halves"] = {2: 0.8, 4: 0.8}
    for cells_of, meaning, advice in ((of, "", "add"), (wide, WITHIN_CHANCE, REPEAT)):
        # Without the rule of a level at which nothing waits
        slow = Series(cells_of.key, cells_of.trials, R0(0.5, 0.0), cells_of.closed, (), ())
        slow.__dict__.update({"relative_halves": cells_of.relative_halves})
        found = knee(slow, c2="below capacity", c4="below capacity")
        assert isinstance(found.note, KneeAtLeast)
        assert isinstance(found.note.why, LastStep)
        assert (found.note.why.meaning, found.note.advice) == (meaning, advice)


def test_what_others_disturbed_shows_no_knee() -> None:
    trials = [evidence(connections=n, tool="fast") for n in (2, 4, 8)]
    words: dict[str, Verdict] = {"c2": "below capacity", "c4": "at capacity", "c8": "saturated"}

    def found(*disturbed: int) -> Knee:
        seen = [
            noisy(one, server_wait=0.8, others=1.8)
            if one.trial.cell.concurrency in disturbed else one
            for one in trials
        ]  # fmt: skip
        facts = [one for trial in seen if isinstance(one := facts_of(trial), Facts)]
        return knee(Series(seen[0].cell.series, seen, R0(1.0, 0.0), facts, (), ()), **words)

    assert found().connections is not None
    assert found(2).connections == found().connections  # the others show it
    for disturbed in ((8,), (2, 4, 8)):
        doubtful = found(*disturbed)
        assert doubtful.connections is None
        assert isinstance(doubtful.note, KneeDoubtful)
        assert "other programs took the cores" in str(doubtful.note)
        assert doubtful.note.short == "inconclusive"


def test_a_throughput_that_is_hardly_known_shows_no_knee() -> None:
    of = series(2, 4, 8)
    of.__dict__["relative_halves"] = {2: 0.0, 4: 0.0, 8: 0.3}
    found = knee(of, c2="below capacity", c4="at capacity", c8="saturated")
    assert str(found.note) == (
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
        IN_STEP,
        None,
    )  # higher levels were tried
    assert str(knee(of, c2="inconclusive", c4="inconclusive", c8="inconclusive").note) == (
        "unknown: every cell is inconclusive"
    )


def test_the_level_is_one_that_a_cell_reports() -> None:
    of = series(4, 8)
    cells = judged(of, {4: "at capacity", 8: "saturated"})
    assert class_result(of, cells).level_rps == max(cell.throughput_rps or 0 for cell in cells)
    stalled = [replace(cell, throughput_rps=1.41) for cell in cells]
    assert class_result(of, stalled).knee == pytest.approx(4.0, rel=0.05)
    assert class_result(of, stalled).level_rps is None


def test_a_level_beyond_the_knee_that_had_room() -> None:
    found = knee(series(4, 8), c4="at capacity", c8="below capacity")
    assert isinstance(found.note, KneeUnknown)
    assert isinstance(found.note.reason, RoomBeyond)
    assert found.note.reason.connections == 8


def test_what_the_load_tool_held_up_asks_for_no_more_either() -> None:
    of = series(2, 4, 8)
    tool = {of.closed[2].key: (Note("it was busy"),)}
    limited = series(2, 4, 8, bound=tool)
    found = knee(limited, c2="below capacity", c4="at capacity", c8="generator-bound")
    assert isinstance(found.note, KneeAtLeast)
    assert found.note.tool_limit == ToolLimitFrom(8, "fast")
    assert (found.note.why, found.note.add) == (IN_STEP, None)


def test_cells_at_a_rate_may_tell_what_closed_ones_do_not() -> None:
    report = analyse("rates", {}, [evidence(connections=8, tool="fast", delay_s=0.1),
                                   opened(Rate(rps=20), 20.0)])  # fmt: skip
    cells = [
        replace(one, verdict="inconclusive") if one.trial.cell.rate is None else one
        for one in report.cells
    ]
    sentence = text(sweep_document(replace(report, cells=tuple(cells))).findings[0])
    assert "every cell of the closed loop is inconclusive" in sentence
