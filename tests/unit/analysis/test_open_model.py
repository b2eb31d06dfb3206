"""Arrivals at a rate, on a server with a known capacity of 40 requests/s."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    derived,
    evidence,
    notes_by_code,
    ns,
    report_of,
    server,
    with_measurement,
    with_observations,
    with_record,
)
from tests.builders.noise import noisy
from tests.builders.open_model import closed_loop, open_trial, share
from workerlab.analysis import TrialData
from workerlab.analysis.checks import contradictions
from workerlab.analysis.diagnosis.cpu import CoresTaken
from workerlab.analysis.facts import Facts
from workerlab.analysis.growth import growth
from workerlab.analysis.open_model import (
    BacklogFilledConnections,
    BacklogGrew,
    FewerAnswered,
    KeepsUp,
    LateForPause,
    OfferedLoad,
    RequestsDue,
    ToolTooSlow,
    capacity_of,
    verdict_of_offered,
)
from workerlab.analysis.samples import Window
from workerlab.analysis.stall import PauseDuringLoad
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model.evidence import Measurement, Pause, Summary
from workerlab.model.plan import Arrivals, Rate
from workerlab.model.result import Invalid, Report, TrialResult, ValidVerdict
from workerlab.report.html.figure import spec
from workerlab.report.html.page import figures, picture
from workerlab.report.values import text

UVICORN = server("uvicorn", 4)  # no slots configured
SECONDS = st.none() | st.floats(0, 1e3)


def run(*trials: TrialData) -> Report:
    return report_of(*closed_loop(), *trials)


def cell(report: Report) -> TrialResult:
    """The only cell at a rate."""
    (only,) = [result for result in report.cells if result.trial.cell.rate is not None]
    return only


def paused(trial: TrialData, from_s: float, until_s: float) -> TrialData:
    """The same trial with an observed pause of the machine."""
    return with_observations(trial, pauses=(Pause(ns(from_s), ns(until_s)),))


def test_below_capacity_all_arrivals_are_served() -> None:
    result = cell(run(share(0.5)))
    assert (result.verdict, result.generator_bound) == ("below capacity", False)
    assert type(result.reason) is KeepsUp
    assert (result.reason.asked_rps, result.reason.p50_s) == (20, pytest.approx(0.1))
    assert "a lone one" not in text(result.reason)
    assert result.throughput_rps == pytest.approx(20, rel=0.01)
    rates = result.at_rate
    assert (rates.asked_rps, rates.sent_rps, rates.unsent) == (20, pytest.approx(20), 0)
    assert result.response.max == pytest.approx(0.1)


def test_above_capacity_the_backlog_grows() -> None:
    result = cell(run(open_trial(Rate(rps=60), 60)))
    assert result.verdict == "saturated"
    assert type(result.reason) is BacklogGrew
    rates = [result.reason.asked_rps, result.reason.done_rps, result.reason.grows_rps]
    assert rates == pytest.approx([60, 40, 20], rel=0.01)
    # 60 per second for 10 s are served in 15 s, so the last waits 5 s
    assert result.response.max == pytest.approx(5, rel=0.05)


def test_a_load_tool_without_free_connections_does_not_excuse_the_server() -> None:
    result = cell(run(open_trial(Rate(rps=60), 60, connections=20)))
    assert result.verdict == "saturated"
    unsent = result.at_rate.unsent
    assert unsent
    assert result.at_rate.sent_rps == pytest.approx(60 * (600 - unsent) / 600)
    assert type(result.reason) is BacklogFilledConnections
    assert (result.reason.connections, result.reason.unsent) == (20, unsent)


def test_a_slow_load_tool_makes_a_cell_generator_bound() -> None:
    result = cell(run(open_trial(Rate(rps=36), 36, tool_s=0.05)))  # 20 a second at best
    assert (result.verdict, result.generator_bound) == ("generator-bound", True)
    assert result.bound_reasons == (result.reason,)
    assert type(result.reason) is ToolTooSlow
    assert (result.reason.tool, result.reason.sent_rps) == ("fast", pytest.approx(20, rel=0.01))


@given(st.floats(1, 200), st.floats(0, 0.1), st.integers(1, 50))
def test_unsent_requests_are_always_reported(rate: float, tool_s: float, connections: int) -> None:
    trial = open_trial(Rate(rps=rate), rate, tool_s=tool_s, connections=connections)
    result = cell(report_of(trial))
    if isinstance(result, Invalid):
        return
    rates = result.at_rate
    if rates.sent_rps < 0.99 * rates.due_rps:
        assert result.verdict in ("saturated", "generator-bound")
        assert result.reason.values["unsent"] == rates.unsent


@pytest.mark.parametrize("share_of", [0.5, 0.9, 0.95, 0.98])
def test_random_arrivals_below_capacity_show_no_growing_backlog(share_of: float) -> None:
    """Poisson arrivals for 10 s: one load in six ends with more in flight than it began with."""
    for seed in range(20):
        assert type(cell(run(share(share_of, seed=seed))).reason) is KeepsUp, seed


@pytest.mark.parametrize("rate_rps", [152.0, 156.8])
def test_bursts_near_an_unknown_capacity_are_not_a_growing_backlog(rate_rps: float) -> None:
    """The app serves 160 requests/s in 16 slots that are not configured, so the trend decides."""
    for seed in range(20):
        trial = open_trial(Rate(rps=rate_rps), rate_rps, settings=UVICORN, slots=16, seed=seed)
        assert type(cell(report_of(trial)).reason) is KeepsUp, seed


def test_throughput_is_compared_with_the_requests_due() -> None:
    trials = (open_trial(Rate(rps=8), 8, seed=seed) for seed in range(200))
    trial = min(trials, key=lambda trial: trial.measurement.sent)
    sent = trial.measurement.sent
    assert sent < 60  # of 80
    result = cell(run(trial))
    assert result.verdict == "below capacity"
    rates = result.at_rate
    assert rates.due_rps == rates.sent_rps == sent / 10
    assert result.reason.values["due_rps"] == rates.due_rps
    assert (rates.asked_rps, rates.unsent) == (8, 0)


def test_a_small_overload_is_found_without_measured_slots() -> None:
    for seed in range(4):
        load = {"settings": UVICORN, "slots": 16, "duration_s": 20.0, "seed": seed}
        assert cell(run(open_trial(Rate(rps=176), 176, **load))).verdict == "saturated"


@pytest.mark.parametrize("kind", ["even", "poisson"])
def test_a_note_gives_the_schedule_and_the_lag(kind: Arrivals) -> None:
    trial = with_record(share(0.5, tool_s=0.001, seed=1), arrivals=kind, schedule=70_001)
    result = cell(run(trial))
    (note,) = [note for note in result.notes if isinstance(note, RequestsDue)]
    rates = result.at_rate
    assert note.due == round(10 * rates.due_rps)
    assert note.lag_p95_s == rates.lag.p95
    assert ("70001" in text(note)) is (kind == "poisson")
    assert (rates.arrivals, rates.schedule) == (kind, 70_001)


@pytest.mark.parametrize("seed", range(5))
def test_a_growing_backlog_is_found_with_random_arrivals(seed: int) -> None:
    result = cell(run(share(1.5, seed=seed)))
    assert result.verdict == "saturated"
    assert result.reason.full == "with all slots taken"
    assert result.reason.done_rps == pytest.approx(40, rel=0.02)
    assert result.reason.grows_rps == pytest.approx(20, rel=0.05)


def test_varying_service_times_may_hide_a_small_growth() -> None:
    above = {cell(run(share(1.05, seed=seed, vary=True))).verdict for seed in range(8)}
    assert above <= {"saturated", "inconclusive", "at capacity"}
    below = {cell(run(share(0.9, seed=seed, vary=True))).verdict for seed in range(8)}
    assert "saturated" not in below


def test_growth_in_a_short_load_is_inconclusive() -> None:
    result = cell(run(open_trial(Rate(rps=60), 60, duration_s=5.0)))
    assert result.verdict == "inconclusive"
    assert type(result.reason) is FewerAnswered
    assert "10.0 s or more" in text(result.reason)


def test_a_mostly_waiting_response_is_compared_with_a_lone_one() -> None:
    """At 38 of 40 requests/s the server never catches up with a backlog of half a second."""
    result = cell(run(open_trial(Rate(rps=38), 38, still=(1.0, 1.5))))
    assert result.verdict == "at capacity"
    assert "on average, a lone one 100 ms" in text(result.reason)
    result = cell(run(open_trial(Rate(rps=38), 38, settings=UVICORN, still=(1.0, 2.5))))
    assert (result.verdict, type(result.reason)) == ("inconclusive", FewerAnswered)
    sentence = text(result.reason)
    assert "no growing backlog" not in sentence
    assert "a lone one 100 ms, but the requests in flight did not rise steadily" in sentence


@pytest.mark.parametrize("tool_s", [0.0, 0.05])
def test_delays_are_inconclusive_while_other_programs_use_the_cores(tool_s: float) -> None:
    """The backlog grows, or the load tool sends too few requests."""
    trial = open_trial(Rate(rps=45), 45, tool_s=tool_s)
    result = cell(run(noisy(trial, server_wait=0.8, tool_wait=0.4, others=1.2)))
    assert (result.verdict, result.generator_bound) == ("inconclusive", False)
    assert isinstance(result.reason, CoresTaken)


@pytest.mark.parametrize(
    ("still", "why"), [((7.4, 9.9), "late on average"), ((8.0, 10.4), "not sent)")]
)
def test_delays_caused_by_a_pause_are_inconclusive(still: tuple[float, float], why: str) -> None:
    trial = open_trial(Rate(rps=20), 20, still=still)
    result = cell(run(trial))
    assert (result.verdict, type(result.reason)) == ("generator-bound", ToolTooSlow)
    assert why in str(result.reason)
    result = cell(run(paused(trial, still[0] + 0.08, still[1])))
    assert (result.verdict, type(result.reason)) == ("inconclusive", LateForPause)
    assert not result.generator_bound
    assert still[1] - still[0] <= result.reason.pause.paused_s + 0.4 <= 10
    assert "for up to 2" in text(result.reason)
    assert PauseDuringLoad in map(type, result.notes)


def test_a_backlog_left_by_a_pause_is_not_an_overload() -> None:
    """At 38 of 40 requests/s the backlog of a pause shrinks slowly."""
    trial = open_trial(Rate(rps=38), 38, still=(7.0, 8.5))
    assert type(cell(run(trial)).reason) is not KeepsUp
    result = cell(run(paused(trial, 7.08, 8.5)))
    assert (result.verdict, type(result.reason)) == ("inconclusive", LateForPause)
    result = cell(run(paused(open_trial(Rate(rps=60), 60, still=(7.0, 7.5)), 7.08, 7.5)))
    assert (result.verdict, type(result.reason)) == ("saturated", BacklogGrew)


def test_a_short_pause_does_not_excuse_a_slow_load_tool() -> None:
    slow = open_trial(Rate(rps=36), 36, tool_s=0.05)
    assert cell(run(paused(slow, 3.0, 3.2))).verdict == "generator-bound"
    for trial, noted in ((paused(share(0.5), 3.0, 3.2), True), (share(0.5), False)):
        result = cell(run(trial))
        assert result.verdict == "below capacity"
        assert (PauseDuringLoad in map(type, result.notes)) is noted


def test_an_overload_is_saturated_despite_other_programs() -> None:
    """Without the loss of a tenth of each response, the server would do 45 instead of 40
    requests/s."""
    result = cell(run(noisy(open_trial(Rate(rps=60), 60), server_wait=0.4, others=1.2)))
    assert result.verdict == "saturated"
    assert {finding.code for finding in result.findings} == {"BacklogGrew", "CoresTaken"}


def test_a_server_that_keeps_up_despite_other_programs_is_below_capacity() -> None:
    result = cell(run(noisy(share(0.5), server_wait=0.4, others=1.2)))
    assert result.core_wait.disturbed_by_programs
    assert result.verdict == "below capacity"


def test_without_slots_the_trend_decides() -> None:
    """No configured slots, but only 4 requests are served at once."""
    for rps, verdict in ((20, "below capacity"), (36, "below capacity"), (60, "saturated")):
        result = cell(run(open_trial(Rate(rps=rps), rps, settings=UVICORN, seed=3)))
        assert result.verdict == verdict
    assert result.reason.full == ""
    assert result.reason.grows_rps == pytest.approx(20, rel=0.4)


# --- a pool inside the app: requests start at once, and queue in their spans ----------------------


def pool(share_of: float, *, slots: int = 4, **more: object) -> TrialData:
    """A pool in a uvicorn server; each request holds one of its `slots` for 0.1 s."""
    settings, rate = server("uvicorn", 1), share_of * slots / 0.1
    return open_trial(Rate(rps=rate), rate, settings=settings, slots=slots, pool=True, **more)


@pytest.mark.parametrize("slots", [1, 3, 24])
@pytest.mark.parametrize("share_of", [1.05, 1.2, 1.5])
def test_the_throughput_of_an_overloaded_pool_is_its_limit(share_of: float, slots: int) -> None:
    """Whole spans would give 20 % too much, because the last ones are longer."""
    trial, limit_rps = pool(share_of, slots=slots), slots / 0.1
    result = cell(run(trial))
    assert result.throughput_rps == pytest.approx(limit_rps, rel=0.03)
    assert result.throughput_half_rps <= 0.03 * limit_rps
    assert growth(derived(trial)).done_rps == pytest.approx(limit_rps, rel=0.03)


@pytest.mark.parametrize("share_of", [0.5, 0.9, 1.2])
def test_the_throughput_of_a_varying_pool_is_that_of_the_client(share_of: float) -> None:
    for seed in range(5):
        trial = pool(share_of, slots=8, seed=seed, vary=True)
        facts, result = derived(trial), cell(run(trial))
        ends = [ns(timing.start_s + timing.end_s) for timing in facts.measurement.timings]
        answered = sum(facts.window.opens_ns < end <= facts.window.closes_ns for end in ends)
        assert result.throughput_rps == pytest.approx(answered / facts.window.length_s, rel=0.01)


def test_littles_law_holds_over_the_whole_load() -> None:
    trial = pool(1.5)
    result, client = cell(run(trial)), trial.measurement
    assert result.whole_rps == pytest.approx(client.rps)
    mean_in_flight = sum(timing.end_s for timing in client.timings) / client.duration_s
    assert result.whole_rps * result.response.mean == pytest.approx(mean_in_flight)


def test_a_throughput_above_the_clients_responses_is_a_contradiction() -> None:
    trial = pool(1.5)
    assert contradictions(derived(trial)) == []
    late = (replace(timing, end_s=timing.end_s * 2) for timing in trial.measurement.timings)
    (result,) = contradictions(derived(with_measurement(trial, timings=tuple(late))))
    assert result.code == "SteadyAnswersUnlikeWorkers"
    assert result.completed == pytest.approx(40 * result.length_s, abs=1)
    assert result.answers < 0.8 * result.completed
    assert text(result)


AT_HALF_CAPACITY = share(0.5)


@given(
    measurement=st.builds(
        Measurement,
        requests=st.integers(0, 10**9),
        duration_s=st.floats(0, 1e6),
        response=st.builds(Summary, mean=SECONDS, p50=SECONDS, p95=SECONDS, max=SECONDS),
        lag=st.builds(Summary, mean=SECONDS),
        sent=st.none() | st.integers(0, 10**9),
        unsent=st.none() | st.integers(0, 10**9),
    ),
    connections=st.integers(1, 10_000),
    asked_rps=st.floats(0.01, 1e6),
    done_rps=st.floats(0, 1e6),
    capacity_rps=st.none() | st.floats(0.01, 1e6),
)
def test_a_rate_that_is_not_reached_is_never_below_capacity(
    measurement: Measurement,
    connections: int,
    asked_rps: float,
    done_rps: float,
    capacity_rps: float | None,
) -> None:
    record = {"planned_connections": connections, "asked_rps": asked_rps}
    data = with_record(AT_HALF_CAPACITY, **record, planned_duration_s=None)
    facts = Facts(data, data.record, measurement, started_ns=0, ended_ns=0)
    facts.__dict__["steady"] = Window(0, NS, done_rps)
    verdict, reason = verdict_of_offered(OfferedLoad(facts, capacity_rps))
    assert text(reason)
    assert verdict in get_args(ValidVerdict)
    if verdict in ("below capacity", "at capacity"):
        assert done_rps >= 0.97 * asked_rps


# --- together with the closed loop ----------------------------------------------------------


def test_open_cells_do_not_change_the_closed_ones() -> None:
    closed, both = run(), run(share(0.5), open_trial(Rate(rps=60), 60))
    assert tuple(c for c in both.cells if c.trial.cell.rate is None) == closed.cells
    assert (both.classes, both.overhead) == (closed.classes, closed.overhead)


def test_the_capacity_is_that_of_the_closed_loop() -> None:
    report, planned = run(share(0.5), open_trial(Rate(rps=60), 60)), share(0.5).cell
    assert capacity_of(report, planned) == pytest.approx(40, rel=0.01)
    assert capacity_of(report, replace(planned, keepalive=True)) is None


def test_shares_of_a_capacity_not_reached_are_noted() -> None:
    few = [evidence(connections=at, tool="fast", delay_s=0.1) for at in (1, 2)]
    result = cell(report_of(*few, share(0.25)))
    assert "SharesOfHighest" in notes_by_code(result)
    assert "SharesOfHighest" not in notes_by_code(cell(run(share(0.5))))


def test_shares_of_an_inconclusive_capacity_are_not_at_capacity() -> None:
    disturbed = [noisy(trial, server_wait=0.8, others=1.8) for trial in closed_loop()]
    result = cell(report_of(*disturbed, share(1.0)))
    assert result.verdict == "below capacity"
    assert "SharesOfHighest" in notes_by_code(result)


def test_figures_show_every_valid_cell_and_name_its_rate() -> None:
    alone = figures(sweep_document(report_of(share(0.5))))
    assert "50pc" in {figure.name.rpartition("-rate-")[2] for figure in alone}
    drawn = figures(sweep_document(run(share(0.5))))
    (figure,) = [figure for figure in drawn if figure.name == "loops-sync"]
    closed = [f"closed, {connections} conn." for connections in (1, 2, 4, 8, 16)]
    assert [row[0] for row in figure.rows] == [*closed, "open, 50%"]
    assert spec(figure.panes[0])
    assert picture(figure)
    without_rates = figures(sweep_document(run()))
    assert not [figure for figure in without_rates if figure.name.startswith("loops-")]
