"""The whole load compared with its steady window, and stalls: idle slots while clients wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    DROPS,
    NS,
    SMALL,
    SYNC,
    cell_of,
    derived,
    evidence,
    notes_by_code,
    report_of,
    server,
    with_measurement,
    with_observations,
    with_record,
    with_spans,
)
from tests.builders.runs import recorded
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.slots import (
    BACKLOG_MOVES_WAIT,
    FullAcceptQueue,
    IdleWhileClientsWait,
)
from workerlab.analysis.stall import requests_in_flight, stalled, whole_load
from workerlab.analysis.verdict import SlotsIdled
from workerlab.experiments.reading import trial_data
from workerlab.experiments.sweep.document import sweep_document
from workerlab.model.evidence import Pause
from workerlab.model.result import Result
from workerlab.report.values import text
from workerlab.run_store import load

LATE_S = 12.0


def late(
    trial: TrialData, count: int, *, accepted: bool = False, late_s: float | None = None
) -> TrialData:
    """The last requests reach the app long after all others, as if their packets had been dropped.
    `accepted`: their workers accepted them in time. `late_s`: the delay of each."""
    spans = list(trial.spans.spans)
    for number in range(len(spans) - count, len(spans)):
        span = spans[number]
        delay_ns = round((LATE_S + number if late_s is None else late_s) * NS)
        spans[number] = replace(
            span,
            start_ns=span.start_ns + delay_ns,
            end_ns=span.end_ns + delay_ns,
            accept_ns=span.accept_ns + (0 if accepted else delay_ns),
        )
    last_s = (max(span.end_ns for span in spans) - spans[0].start_ns) / NS
    mean_s = last_s * count / len(spans) + 1
    return with_measurement(
        with_record(with_spans(trial, spans), load_end_ns=spans[-1].end_ns + NS // 100),
        duration_s=last_s,
        rps=len(spans) / last_s,
        response=replace(trial.measurement.response, mean=mean_s, max=last_s),
        connects_s=(1.02,) * 3,
    )


def with_drops(*, accepted: bool = False) -> TrialData:
    """A stall while the kernel dropped packets."""
    trial = late(evidence(SMALL, 16, delay_s=0.3), 2, accepted=accepted)
    return with_observations(trial, counters=DROPS)


def stall_of(cell: Result) -> IdleWhileClientsWait:
    assert isinstance(cell.diagnosis, IdleWhileClientsWait)
    return cell.diagnosis


@pytest.mark.parametrize("accepted", [False, True])
def test_a_stall_is_the_diagnosis(accepted: bool) -> None:
    """Even if a worker has accepted the connection and its slot waits for the request."""
    trial = with_drops(accepted=accepted)
    cell, facts = cell_of(trial), derived(trial)
    assert facts.rps == pytest.approx(2 / 0.3)
    assert cell.throughput_rps == cell.whole_rps
    assert cell.whole_rps == pytest.approx(80 / (facts.load_s - 0.3), rel=0.01)
    diagnosis = stall_of(cell)
    assert diagnosis.stall.idle_s == pytest.approx(LATE_S + 80, abs=1)
    assert diagnosis.steady_rps == pytest.approx(2 / 0.3)
    assert FullAcceptQueue in map(type, cell.findings)


def test_a_pause_of_the_machine_is_not_a_stall() -> None:
    trial = with_drops()
    *_, last_in_time, _, last = trial.spans.spans
    assert stalled(derived(trial)) is not None
    pause = Pause(last_in_time.end_ns, last.start_ns)
    assert stalled(derived(with_observations(trial, pauses=(pause,)))) is None


def test_slots_idle_because_of_a_blocked_loop_are_not_a_stall_with_a_pause() -> None:
    trial = evidence(server("gevent", 2), 6, delay_s=0.3, slots=[1, 1])
    before = derived(trial)
    assert stalled(before) is None
    trial = late(trial, 2, late_s=before.load_s)
    *_, last_in_time, first_late, _ = trial.spans.spans
    assert stalled(derived(trial)) is not None
    pause = Pause(last_in_time.end_ns, first_late.start_ns)
    assert stalled(derived(with_observations(trial, pauses=(pause,)))) is None


def test_a_longer_backlog_is_advised_only_if_the_queue_is_too_short() -> None:
    for backlog, advice in ((2, ("a --backlog of 16 or more would prevent the drops",)), (16, ())):
        trial = late(evidence(replace(SMALL, backlog=backlog), 16, delay_s=0.3), 2)
        assert stall_of(cell_of(trial)).advice == advice


def test_all_results_of_a_stall_are_of_the_whole_load() -> None:
    """Idle slots lower the occupancy, and the interval of the steady part does not apply."""
    trial = with_drops()
    cell, facts = cell_of(trial), derived(trial)
    stall = stall_of(cell).stall
    idle = stall.idle_s / stall.load_s
    assert cell.occupancy < 1 - idle / 2  # at least one slot of two idles
    assert cell.throughput_half_rps is None
    assert isinstance(cell.reason, SlotsIdled)
    assert cell.reason.idle_s == stall.idle_s
    advice = {item for finding in cell.findings for item in finding.values["advice"]}
    assert "a --backlog of 16 or more would prevent the drops" in advice
    assert BACKLOG_MOVES_WAIT not in advice  # it would contradict the other advice
    whole = whole_load(facts)
    mean_s = requests_in_flight(facts).inside_s(whole) / whole.completed
    assert cell.breakdown.response_s == pytest.approx(mean_s)
    assert mean_s > 16 / facts.rps * 1.05


def test_a_document_says_where_results_are_of_the_whole_load() -> None:
    trial = with_drops()
    document = sweep_document(report_of(trial))
    assert text(document.tables[1].title).endswith("mean of the whole load")
    assert "levels off" not in text(document.findings[0])
    both = sweep_document(report_of(evidence(SMALL, 4, delay_s=0.3), trial))
    assert text(both.tables[1].title).endswith("(the whole load where it stalled)")


def test_without_kernel_counters_only_a_severe_stall_counts() -> None:
    """The whole load must then be below 0.7 of the steady throughput."""
    trial = evidence(SYNC, 8, delay_s=0.3)
    severe = late(trial, 2)
    assert stalled(derived(severe)) is not None
    assert stalled(derived(with_spans(severe, trial.spans.spans))) is None


def test_a_long_request_in_the_app_is_not_a_stall() -> None:
    trial = evidence(SYNC, 8, delays=lambda number: 10.0 if number == 40 else 1.0)
    cell = cell_of(trial)
    assert stalled(derived(trial)) is None
    assert notes_by_code(cell)["SlowerAsAWhole"].whole_rps == cell.whole_rps
    assert cell.throughput_rps == pytest.approx(4.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 16), st.sampled_from(["sync", "eventlet", "gthread"]))
def test_a_server_that_always_serves_does_not_stall(connections: int, worker_class: str) -> None:
    facts = derived(evidence(server(worker_class), connections))
    whole = whole_load(facts)
    assert stalled(facts) is None
    assert whole.rps >= 0.89 * facts.rps  # a last round may not fill all slots
    assert requests_in_flight(facts).inside_s(whole) <= connections * whole.length_s * 1.001


@pytest.mark.parametrize("name", ["overflow", "overflow-ab"])
def test_recorded_overflows_are_stalls(name: str) -> None:
    run = load(recorded(name))
    report = analyse(name, run.environment, trial_data(run))
    full = [cell for cell in report.cells if cell.trial.cell.server.backlog == 2]
    stalls = [cell for cell in full if isinstance(cell.diagnosis, IdleWhileClientsWait)]
    assert [cell.trial.cell.concurrency for cell in stalls] == [8, 16][-len(stalls) :]
    for cell in stalls:
        stall = stall_of(cell)
        assert stall.whole_rps < 0.75 * stall.steady_rps
        assert stall.counters["ListenOverflows"] > 0
    long = [cell for cell in report.cells if cell.trial.cell.server.backlog > 2]
    assert all((cell.whole_rps or 0) >= 0.98 * (cell.throughput_rps or 0) for cell in long)


def in_flight_twice(trial: TrialData) -> tuple[float, float]:
    """Requests in flight over the whole load without a lone first request: by the workers' spans
    and the closed loop, and by the client's throughput and mean response (Little 1961)."""
    untimed = with_measurement(trial, timings=())  # so only the spans count
    facts, client = derived(untimed), derived(trial).measurement
    whole = whole_load(facts)
    lone_s = (client.lone_s or client.response.mean) * trial.lone_first
    total_s = client.response.mean * client.requests - lone_s
    mean_s = total_s / (client.requests - trial.lone_first)
    return requests_in_flight(facts).inside_s(whole) / whole.length_s, whole.rps * mean_s


@pytest.mark.parametrize("name", ["good", "lesson", "overflow", "rates", "tools", "trials"])
def test_littles_law_holds_over_the_whole_load(name: str) -> None:
    run, checked = load(recorded(name)), 0
    for trial in trial_data(run):
        closed = trial.trial.cell.rate is None and trial.fixed_count
        if closed and not derived(trial).outcome.failed:
            by_spans, by_client = in_flight_twice(trial)
            assert by_client == pytest.approx(by_spans, rel=0.05), trial.trial.key
            checked += 1
    assert checked >= 2
