"""The open model: what arrivals at a rate do to a server whose capacity is known, 40 requests/s."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import derived, evidence, noted, ns, saying, seeing, server
from tests.builders.noise import noisy
from tests.builders.open_model import opened
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.checks import contradictions
from workerlab.analysis.diagnosis.cpu import CoresTaken
from workerlab.analysis.growth import growth
from workerlab.analysis.open_model import (
    BacklogFilledConnections,
    BacklogGrew,
    FewerAnswered,
    KeepsUp,
    LateForPause,
    Offered,
    RequestsDue,
    ToolTooSlow,
    capacity_of,
    verdict_of_offered,
)
from workerlab.analysis.stall import PauseDuringLoad
from workerlab.model import Arrivals, CellResult, Measurement, Pause, Rate, Report, Summary
from workerlab.report.html.figure import spec
from workerlab.report.html.page import figures
from workerlab.report.html.pictures import picture
from workerlab.report.sweep_document import sweep_document
from workerlab.report.values import text

LEVELS = (1, 2, 4, 8, 16)
CAPACITY = 40.0
SECONDS = st.none() | st.floats(0, 1e3)


@cache
def closed_loop() -> list[TrialData]:
    return [evidence(connections=at, tool="fast", delay_s=0.1) for at in LEVELS]


def run(*trials: TrialData) -> Report:
    return analyse("run", {}, [*closed_loop(), *trials])


def cell(report: Report) -> CellResult:
    (only,) = [one for one in report.cells if one.trial.cell.rate is not None]
    return only


def share(of: float, **more: object) -> TrialData:
    return opened(Rate(share=of), of * CAPACITY, **more)  # type: ignore[arg-type]


def test_below_capacity_all_comes_out() -> None:
    found = cell(run(share(0.5)))
    assert found.verdict == "below capacity"
    assert type(found.reason) is KeepsUp
    assert found.reason.values["asked_rps"] == 20
    assert found.reason.values["p50_s"] == pytest.approx(0.1)
    assert found.throughput_rps == pytest.approx(20, rel=0.01)
    assert (found.asked_rps, found.sent_rps, found.unsent) == (20, pytest.approx(20), 0)
    assert found.response.max == pytest.approx(0.1)
    assert found.generator_bound is False


def test_at_capacity_evenly_spaced_arrivals_meet_no_queue() -> None:
    found = cell(run(share(1.0)))
    assert found.verdict == "at capacity"
    assert found.response.p95 == pytest.approx(0.1)


def test_above_capacity_the_backlog_grows() -> None:
    found = cell(run(opened(Rate(rps=60), 60)))
    assert found.verdict == "saturated"
    assert type(found.reason) is BacklogGrew
    rates = [found.reason.values[name] for name in ("asked_rps", "done_rps", "grows_rps")]
    assert rates == pytest.approx([60, 40, 20], rel=0.01)
    # 60 a second for 10 s are served in 15 s: the last waits 5
    assert found.response.max == pytest.approx(5, rel=0.05)


def test_a_full_load_tool_is_not_to_blame_where_the_server_is() -> None:
    found = cell(run(opened(Rate(rps=60), 60, connections=20)))
    assert found.verdict == "saturated"
    assert found.unsent
    assert found.sent_rps == pytest.approx(60 * (600 - found.unsent) / 600)
    assert type(found.reason) is BacklogFilledConnections
    assert found.reason.values["connections"] == 20
    assert found.reason.values["unsent"] == found.unsent


def test_a_slow_load_tool_is_told_from_a_slow_server() -> None:
    found = cell(run(opened(Rate(rps=36), 36, tool_s=0.05)))  # 20 a second at best
    assert found.verdict == "generator-bound"
    assert found.generator_bound
    assert found.bound_reasons == (found.reason,)
    assert type(found.reason) is ToolTooSlow
    assert found.reason.values["tool"] == "fast"
    assert found.reason.values["sent_rps"] == pytest.approx(20, rel=0.01)


@given(st.floats(1, 200), st.floats(0, 0.1), st.integers(1, 50))
def test_less_than_asked_is_always_said(rate: float, tool_s: float, connections: int) -> None:
    trial = opened(Rate(rps=rate), rate, tool_s=tool_s, connections=connections)
    found = cell(analyse("run", {}, [trial]))
    if found.verdict != "invalid" and (found.sent_rps or 0.0) < 0.99 * (found.due_rps or 0.0):
        assert found.verdict in ("saturated", "generator-bound")
        assert found.reason.values["unsent"] == found.unsent


@pytest.mark.parametrize("share_of", [0.5, 0.9, 0.95])
def test_no_backlog_grows_below_capacity_however_requests_arrive(share_of: float) -> None:
    """At random, 10 s each: every sixth ends with more under way than it began with."""
    for seed in range(20):
        found = cell(run(share(share_of, seed=seed)))
        assert type(found.reason) is KeepsUp, seed


@pytest.mark.parametrize("kind", ["sync", "uvicorn"])
@pytest.mark.parametrize("share_of", [0.95, 0.98])
def test_a_burst_is_no_growth(share_of: float, kind: str) -> None:
    """Neither where slots are measured, nor where the trend has to tell: of 16 slots in the app."""
    asked, slots = server(kind, 4), 4 if kind == "sync" else 16
    for seed in range(20):
        rate = share_of * slots / 0.1
        trial = opened(Rate(rps=rate), rate, asked=asked, slots=slots, seed=seed)
        found = cell(analyse("run", {}, [trial]))
        assert type(found.reason) is KeepsUp, seed


def test_what_comes_out_is_judged_by_what_was_due() -> None:
    """A schedule that has a tenth less than the rate, by chance, lacks nothing."""
    few = min(range(200), key=lambda seed: opened(Rate(rps=8), 8, seed=seed).measurement.sent or 0)  # type: ignore[union-attr]
    trial = opened(Rate(rps=8), 8, seed=few)
    found = cell(run(trial))
    assert trial.measurement is not None
    assert trial.measurement.sent is not None
    assert trial.measurement.sent < 60  # of 80
    assert found.verdict == "below capacity"
    assert found.due_rps == found.sent_rps == trial.measurement.sent / 10
    assert found.reason.values["due_rps"] == found.due_rps
    assert (found.asked_rps, found.unsent) == (8, 0)


def test_a_small_overload_of_what_nobody_measures_is_seen_all_the_same() -> None:
    hidden = server("uvicorn", 4)
    seen = [
        cell(run(opened(Rate(rps=176), 176, asked=hidden, slots=16, seed=seed, duration_s=20.0)))
        for seed in range(4)
    ]
    assert {one.verdict for one in seen} == {"saturated"}


@pytest.mark.parametrize("kind", ["even", "poisson"])
def test_when_requests_were_due_and_how_late_they_were_sent_is_noted(kind: Arrivals) -> None:
    trial = share(0.5, tool_s=0.001, seed=1)
    assert trial.record is not None
    record = replace(trial.record, arrivals=kind, schedule=70_001)
    found = cell(run(replace(trial, record=record)))
    (note,) = [each for each in found.notes if isinstance(each, RequestsDue)]
    assert note.due == round(10 * (found.due_rps or 0.0))
    assert note.lag_p95_s == found.lag.p95
    assert ("70001" in text(note)) is (kind == "poisson")
    assert (found.arrivals, found.schedule) == (kind, 70_001)


@pytest.mark.parametrize("seed", range(5))
def test_a_backlog_that_grows_is_seen_through_chance(seed: int) -> None:
    found = cell(run(share(1.5, seed=seed)))
    assert found.verdict == "saturated"
    assert found.reason.values["full"] == "with all slots taken"
    assert found.reason.values["done_rps"] == pytest.approx(40, rel=0.02)
    assert found.reason.values["grows_rps"] == pytest.approx(20, rel=0.05)


def test_service_times_that_vary_hide_a_small_growth() -> None:
    words = {cell(run(share(1.05, seed=seed, vary=True))).verdict for seed in range(8)}
    assert words <= {"saturated", "inconclusive", "at capacity"}
    below = [cell(run(share(0.9, seed=seed, vary=True))) for seed in range(8)]
    assert not [one for one in below if one.verdict == "saturated"]


def test_growth_in_a_short_load_may_be_chance() -> None:
    found = cell(run(opened(Rate(rps=60), 60, duration_s=5.0)))
    assert found.verdict == "inconclusive"
    assert type(found.reason) is FewerAnswered
    assert "10.0 s or more" in text(found.reason)


@pytest.mark.parametrize("tool_s", [0.0, 0.05])
def test_whoever_is_late_while_others_have_the_cores_is_not_to_blame(tool_s: float) -> None:
    """The backlog grows, or the load tool sends less than it should."""
    trial = opened(Rate(rps=45), 45, tool_s=tool_s)
    found = cell(run(noisy(trial, server_wait=0.8, tool_wait=0.4, others=1.2)))
    assert found.verdict == "inconclusive"
    assert isinstance(found.reason, CoresTaken)
    assert not found.generator_bound


@pytest.mark.parametrize(
    ("still", "why"),
    [((7.4, 9.9), "late on average"), ((8.0, 10.4), "not sent)")],
)
def test_whoever_is_late_for_the_machine_stood_still_is_not_to_blame(
    still: tuple[float, float], why: str
) -> None:
    trial = opened(Rate(rps=20), 20, still=still)
    accused = cell(run(trial))
    assert (accused.verdict, type(accused.reason)) == ("generator-bound", ToolTooSlow)
    assert why in str(accused.reason)
    pause = Pause(ns(still[0] + 0.08), ns(still[1]))
    found = cell(run(seeing(trial, pauses=(pause,))))
    assert (found.verdict, type(found.reason)) == ("inconclusive", LateForPause)
    assert not found.generator_bound
    assert still[1] - still[0] <= found.reason.values["pause"].paused_s + 0.4 <= 10
    assert "for up to 2" in text(found.reason)
    assert PauseDuringLoad in map(type, found.notes)


def test_a_backlog_of_a_pause_is_no_growth_and_one_of_an_overload_is() -> None:
    """Of 40 requests/s; 38 leave room for 2 more, which takes long to make up for a pause."""
    pauses = (Pause(ns(7.08), ns(8.5)),)
    trial = opened(Rate(rps=38), 38, still=(7.0, 8.5))
    assert type(cell(run(trial)).reason) is not KeepsUp
    found = cell(run(seeing(trial, pauses=pauses)))
    assert (found.verdict, type(found.reason)) == ("inconclusive", LateForPause)
    found = cell(
        run(seeing(opened(Rate(rps=60), 60, still=(7.0, 7.5)), pauses=(Pause(ns(7.08), ns(7.5)),)))
    )
    assert (found.verdict, type(found.reason)) == ("saturated", BacklogGrew)


def test_a_short_pause_explains_no_load_tool_that_is_slow_all_the_time() -> None:
    pause = Pause(ns(3.0), ns(3.2))
    slow = cell(run(seeing(opened(Rate(rps=36), 36, tool_s=0.05), pauses=(pause,))))
    assert slow.verdict == "generator-bound"
    for seconds, told in ((0.2, True), (0.0, False)):
        pauses = (Pause(ns(3.0), ns(3.0 + seconds)),) if seconds else ()
        kept = cell(run(seeing(share(0.5), pauses=pauses)))
        assert kept.verdict == "below capacity"
        assert (PauseDuringLoad in map(type, kept.notes)) is told


def test_who_would_not_keep_up_without_them_either_is_saturated() -> None:
    """Of 40 requests/s that are done, a tenth of a response is lost: 45 could have been."""
    found = cell(run(noisy(opened(Rate(rps=60), 60), server_wait=0.4, others=1.2)))
    assert found.verdict == "saturated"
    assert {finding.code for finding in found.findings} == {"BacklogGrew", "CoresTaken"}


def test_who_keeps_up_beside_other_programs_does_so() -> None:
    found = cell(run(noisy(share(0.5), server_wait=0.4, others=1.2)))
    assert found.core_wait is not None
    assert found.core_wait.by_programs
    assert found.verdict == "below capacity"


def test_where_nothing_measured_is_full_the_trend_decides() -> None:
    """No slots to be full: 4 at once, whatever holds the others up."""
    hidden = server("uvicorn", 4)
    for load, word in ((0.5, "below capacity"), (0.9, "below capacity"), (1.5, "saturated")):
        found = cell(run(opened(Rate(rps=load * 40), load * 40, asked=hidden, seed=3)))
        assert found.verdict == word
    assert found.reason.values["full"] == ""
    assert found.reason.values["grows_rps"] == pytest.approx(20, rel=0.4)


# --- a pool inside the app: its requests begin at once, and queue in their spans ------------------


def pool(share_of: float, *, slots: int = 4, **more: object) -> TrialData:
    """Of uvicorn, which has no slots; `slots` are those of the pool, each for 0.1 s."""
    asked = server("uvicorn", 1)
    rate = share_of * slots / 0.1
    return opened(Rate(rps=rate), rate, asked=asked, slots=slots, pool=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("slots", [1, 3, 24])
@pytest.mark.parametrize("share_of", [1.05, 1.2, 1.5])
def test_an_overloaded_pool_gives_its_limit(share_of: float, slots: int) -> None:
    """Whole spans gave 20 % more than it can do: those at the end are longer."""
    trial = pool(share_of, slots=slots)
    found, limit = cell(run(trial)), slots / 0.1
    assert found.throughput_rps == pytest.approx(limit, rel=0.03)
    assert found.throughput_half_rps is not None
    assert found.throughput_half_rps <= 0.03 * limit
    done = growth(derived(trial))
    assert done is not None
    assert done.done_rps == pytest.approx(limit, rel=0.03)


@pytest.mark.parametrize("share_of", [0.5, 0.9, 1.2])
def test_a_pool_whose_service_varies_gives_what_the_client_had(share_of: float) -> None:
    for seed in range(5):
        trial = pool(share_of, slots=8, seed=seed, vary=True)
        facts, found = derived(trial), cell(run(trial))
        assert facts.window is not None
        ends = [ns(one.start_s + (one.end_s or 0.0)) for one in facts.measurement.timings]
        had = sum(facts.window.opens_ns < end <= facts.window.closes_ns for end in ends)
        assert found.throughput_rps == pytest.approx(had / facts.window.length_s, rel=0.01)


def test_of_the_whole_load_littles_law_holds() -> None:
    """Until the last answer, which comes after the last request was sent."""
    found, trial = cell(run(pool(1.5))), pool(1.5)
    assert trial.measurement is not None
    in_flight_s = sum(one.end_s or 0.0 for one in trial.measurement.timings)
    mean_in_flight = in_flight_s / trial.measurement.duration_s
    assert found.whole_rps == pytest.approx(trial.measurement.rps)
    assert (found.whole_rps or 0.0) * (found.response.mean or 0.0) == pytest.approx(mean_in_flight)


def test_a_throughput_that_the_client_did_not_have_is_caught() -> None:
    """Of its own requests/s, over a longer time, nothing follows but their number."""
    trial = pool(1.5)
    assert contradictions(derived(trial)) == []
    assert trial.measurement is not None
    late = [replace(one, end_s=(one.end_s or 0.0) * 2) for one in trial.measurement.timings]
    (found,) = contradictions(derived(saying(trial, timings=tuple(late))))
    assert found.code == "SteadyAnswersUnlikeWorkers"
    assert found.values["completed"] == pytest.approx(40 * found.values["length_s"], abs=1)
    assert found.values["answers"] < 0.8 * found.values["completed"]
    assert text(found)


@given(
    st.builds(
        Offered,
        tool=st.just("fast"),
        connections=st.integers(1, 10_000),
        asked_rps=st.floats(0.01, 1e6),
        done_rps=st.floats(0, 1e6),
        measurement=st.builds(
            Measurement,
            requests=st.integers(0, 10**9),
            duration_s=st.floats(0, 1e6),
            response=st.builds(Summary, mean=SECONDS, p50=SECONDS, p95=SECONDS, max=SECONDS),
            lag=st.builds(Summary, mean=SECONDS),
            sent=st.none() | st.integers(0, 10**9),
            unsent=st.none() | st.integers(0, 10**9),
        ),
        capacity_rps=st.none() | st.floats(0.01, 1e6),
        generator_cores=st.none() | st.floats(0, 8),
    )
)
def test_what_did_not_come_out_is_never_below_capacity(seen: Offered) -> None:
    word, reason = verdict_of_offered(seen)
    assert text(reason)
    assert word != "invalid"
    if word in ("below capacity", "at capacity"):
        assert seen.done_rps >= 0.97 * seen.asked_rps


# --- beside the closed loop -----------------------------------------------------------------


def test_open_cells_do_not_change_what_the_closed_ones_say() -> None:
    alone, beside = run(), run(share(0.5), opened(Rate(rps=60), 60))
    assert tuple(c for c in beside.cells if c.trial.cell.rate is None) == alone.cells
    assert beside.classes == alone.classes
    assert beside.overhead == alone.overhead


def test_the_capacity_is_that_of_the_closed_loop() -> None:
    report = run(share(0.5), opened(Rate(rps=60), 60))
    assert capacity_of(report, cell(run(share(0.5))).trial.cell) == pytest.approx(40, rel=0.01)
    other = replace(share(0.5).trial.cell, keepalive=True)
    assert capacity_of(report, other) is None


def test_a_capacity_that_was_not_reached_is_called_so() -> None:
    few = [evidence(connections=at, tool="fast", delay_s=0.1) for at in (1, 2)]
    found = cell(analyse("run", {}, [*few, share(0.25)]))
    assert "SharesOfHighest" in noted(found)
    assert "SharesOfHighest" not in noted(cell(run(share(0.5))))


def test_the_chart_has_every_believed_cell() -> None:
    document = sweep_document(run(share(0.5)))
    (figure,) = [one for one in figures(document) if one.name == "loops-sync"]
    assert [row[0] for row in figure.rows] == [
        *(f"closed, {at} conn." for at in LEVELS),
        "open, 50%",
    ]
    assert spec(figure.panes[0])
    assert picture(figure)
    assert not [one for one in figures(sweep_document(run())) if one.name.startswith("loops-")]


def test_pictures_of_a_cell_at_a_rate_are_named_by_it() -> None:
    report = analyse("run", {}, [share(0.5)])
    names = {one.name.rpartition("-rate-")[2] for one in figures(sweep_document(report))}
    assert "50pc" in names
