"""Whole runs of ideal servers: the results of each worker class."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    cell_of,
    evidence,
    gthread,
    notes_by_code,
    report_of,
    server,
    verdicts,
    with_lone,
    with_measurement,
    with_record,
)
from workerlab.analysis import CapacityNeedsTrials, NoCapacity
from workerlab.analysis.series import lone_r0_by_server
from workerlab.analysis.verdict import BelowPossible, DealtUnevenly, MostInApp, SlotsShared
from workerlab.model.evidence import Fault, Summary
from workerlab.model.plan import Server
from workerlab.notes import Unfinished

LEVELS = (4, 8, 16)


def test_sync_is_saturated_beyond_its_workers() -> None:
    report = report_of(*(evidence(SYNC, level) for level in LEVELS))
    assert [cell.throughput_rps for cell in report.cells] == pytest.approx([4.0] * 3)
    assert [cell.response.p50 for cell in report.cells] == pytest.approx([1, 2, 4])
    assert verdicts(report) == ["at capacity", "saturated", "saturated"]
    reason = report.cells[1].reason
    assert isinstance(reason, SlotsShared)
    assert (reason.connections, reason.slots) == (8, 4)
    assert (reason.wait_s, reason.response_s) == pytest.approx((1.0, 2.0))
    (group,) = report.classes
    assert group.knee == pytest.approx(4.0)
    assert (group.slots_configured, group.slots_measured) == (4, 4)
    assert report.overhead == pytest.approx(1.0, abs=0.01)
    assert report.setup_s == {"start": 0.4, "warmup": 1.1, "stop": 0.1}


def test_gthread_is_limited_by_uneven_dealing() -> None:
    report = report_of(*(gthread(level) for level in LEVELS))
    assert report.classes[0].slots_measured == 8
    last = report.cells[2]
    assert last.verdict == "saturated"
    assert last.throughput_rps < 0.9 * 8
    assert isinstance(last.reason, BelowPossible)
    assert last.reason.why == DealtUnevenly((33, 24, 16, 8))


def test_blocking_in_an_async_app_limits_the_measured_slots() -> None:
    report = report_of(*(evidence(server("uvicorn"), level, slots=[4]) for level in LEVELS))
    (group,) = report.classes
    assert (group.slots_configured, group.slots_measured) == (None, 4)
    assert group.knee == pytest.approx(4.0)
    reason = report.cells[1].reason
    assert isinstance(reason, BelowPossible)
    assert reason.why == MostInApp("where up to", 4, limit="no limit configured")
    report = report_of(*(evidence(server("gevent"), level, slots=[4]) for level in LEVELS))
    reason = report.cells[1].reason
    assert isinstance(reason, BelowPossible)
    assert reason.why == MostInApp("because at most", 4, slots=4000)


def test_waiting_is_response_minus_service() -> None:
    """Its percentiles need timed requests and equal service times."""
    cell = cell_of(evidence(SYNC, 8))
    assert cell.waiting.mean == pytest.approx(cell.response.mean - 1.0)
    assert cell.waiting.p50 is None
    assert cell_of(evidence(SYNC, 8, tool="fast")).waiting.p50 == pytest.approx(1.0)
    uneven = cell_of(evidence(SYNC, 8, tool="fast", delays=lambda n: 0.5 + n % 2)).waiting
    assert uneven.p50 is None
    assert uneven.mean is not None


@pytest.mark.parametrize(("mean_s", "expected"), [(0.9996, 0.0), (0.99, None)])
def test_a_negative_wait_is_rounding_or_missing(mean_s: float, expected: float | None) -> None:
    response = Summary(mean_s, 1.0, 1.0, 1.0, 1.0)
    cell = cell_of(with_measurement(evidence(SYNC, 4), response=response))
    assert cell.waiting.mean == expected
    assert ("WaitingNegative" in notes_by_code(cell)) == (expected is None)


def test_wrk_has_its_waiting_from_littles_law() -> None:
    trial = evidence(SYNC, 8, tool="wrk", timed=True)
    cell = cell_of(with_measurement(trial, exact_mean=False))
    assert cell.waiting.mean == pytest.approx(1.0, rel=0.01)
    assert cell.ideal_s is None
    assert report_of(trial).overhead is None


def test_a_lone_response_slower_than_the_load_is_not_used() -> None:
    four, *others = (
        with_lone(evidence(SYNC, level), (lone_s,))
        for level, lone_s in ((4, 1.2), (8, 4.0), (16, 4.0))
    )
    cell = cell_of(four)
    assert notes_by_code(cell)["SlowerAlone"].lone_s == pytest.approx(1.2)
    assert cell.throughput_rps is not None
    assert cell.bound_rps == pytest.approx(cell.throughput_rps)
    report = report_of(four, *others)
    assert verdicts(report) == ["at capacity", "saturated", "saturated"]
    assert report.classes[0].knee == pytest.approx(4, rel=0.02)


def test_r0_of_a_mix_is_the_mean_over_rounds_weighted_by_route() -> None:
    trial = evidence(connections=4, tool="fast")
    # The tool's own first request is of one route only, so it does not count
    trial = with_record(
        with_measurement(trial, lone_s=0.01),
        lone_s=(0.01, 1.0, 0.03, 1.4, 0.02, 1.2),
        lone_weights=(0.9, 0.1),
    )
    r0 = lone_r0_by_server([trial])[trial.cell.server]
    assert r0.seconds == pytest.approx((0.109 + 0.167 + 0.138) / 3)
    assert 0 < r0.half_s < 0.1


def test_a_level_is_not_saturated_while_throughput_grows() -> None:
    """Uneven dealing makes requests wait below the knee, but throughput still grows."""
    settings = Server("gthread", 4, 2, 2048, 1000)
    trials = [evidence(settings, n, slots=[slots]) for n, slots in ((8, 5), (16, 6), (32, 6))]
    assert verdicts(report_of(*trials)) == ["below capacity", "saturated", "saturated"]


def test_the_lone_response_is_the_median_over_all_trials_of_a_server() -> None:
    trials = [evidence(SYNC, level) for level in LEVELS]
    trials[0] = with_record(trials[0], lone_s=(9.0,))
    broken = with_record(trials[0], fault=Fault("answer", "500"), lone_s=(0.001,) * 99)
    report = report_of(*trials, broken)
    assert report.cells[-1].bound_rps == pytest.approx(4.0)


def test_order_is_by_series_then_level_then_trial() -> None:
    first, gevent = evidence(SYNC, 8, trial=2), evidence(server("gevent"), 4)
    report = report_of(first, gevent, evidence(SYNC, 4), evidence(SYNC, 8))
    assert [
        (trial.cell.server.worker_class, trial.cell.concurrency, trial.number)
        for trial in (cell.trial for cell in report.cells)
    ] == [("sync", 4, 1), ("sync", 8, 1), ("sync", 8, 2), ("gevent", 4, 1)]
    assert len(report.classes) == 2


def test_unfinished_trials_are_noted_and_left_out() -> None:
    interrupted = with_record(evidence(SYNC, 16), fault=Fault("interrupted", "stopped"))
    report = report_of(evidence(SYNC, 4), replace(evidence(SYNC, 8), record=None), interrupted)
    assert len(report.cells) == 1
    assert Unfinished(2, command="sweep", run="run") in report.notes
    assert report_of().cells == ()


def test_missing_capacity_is_noted() -> None:
    assert report_of(evidence(SYNC, 4)).notes == (CapacityNeedsTrials(3),)
    repeated = [evidence(SYNC, level, trial=n) for level in (4, 8) for n in (1, 2, 3)]
    (note,) = report_of(*repeated).notes
    assert isinstance(note, NoCapacity)
    assert note.why == "an interval needs a level of at most 2"


@settings(max_examples=25)
@given(
    workers=st.integers(1, 9),
    levels=st.sets(st.integers(1, 40), min_size=1, max_size=3),
    delay_s=st.sampled_from([0.02, 0.2, 1.0]),
    rounds=st.integers(2, 5),
)
def test_ideal_servers_are_valid_and_stay_within_their_bound(
    workers: int, levels: set[int], delay_s: float, rounds: int
) -> None:
    settings = server("sync", workers)
    report = report_of(*(evidence(settings, n, delay_s=delay_s, rounds=rounds) for n in levels))
    for cell in report.cells:
        n = cell.trial.cell.concurrency
        assert cell.throughput_rps <= cell.bound_rps * 1.01
        assert cell.slots_measured == min(n, workers)
        expected = "saturated" if workers / n < 0.95 else "at capacity"
        assert cell.verdict == ("below capacity" if n < 0.95 * workers else expected)
