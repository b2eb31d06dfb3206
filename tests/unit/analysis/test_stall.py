"""The whole load beside its steady window, and stalls: idle slots while clients wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as changed

from tests.builders.analysis import (
    DROPS,
    NS,
    SMALL,
    SYNC,
    derived,
    evidence,
    gthread,
    judged,
    noted,
    saying,
    seeing,
    server,
    with_spans,
)
from tests.builders.runs import recorded
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.slots import (
    BACKLOG_MOVES_WAIT,
    FullAcceptQueue,
    IdleWhileClientsWait,
)
from workerlab.analysis.stall import in_flight_integral_s, stalled, whole_load
from workerlab.analysis.verdict import SlotsIdled
from workerlab.experiments.reading import trial_data
from workerlab.model import CellResult, Pause
from workerlab.report.sweep_document import sweep_document
from workerlab.report.values import text
from workerlab.run_store import load

LATE_S = 12.0


def late(
    trial: TrialData, count: int, *, accepted: bool = False, late_s: float | None = None
) -> TrialData:
    """The last requests reach the app long after all others, as if their packets had been dropped.
    `accepted`: their workers wait for the client's bytes meanwhile. `late_s`: all by so much."""
    spans, said = list(trial.spans.spans), trial.measurement
    assert said is not None
    for place in range(len(spans) - count, len(spans)):
        one = spans[place]
        assert one.end_ns is not None
        assert one.accept_ns is not None
        by = round((LATE_S + place if late_s is None else late_s) * NS)
        accept_ns = one.accept_ns if accepted else one.accept_ns + by
        spans[place] = changed(
            one, start_ns=one.start_ns + by, end_ns=one.end_ns + by, accept_ns=accept_ns
        )
    last_s = (max(one.end_ns or 0 for one in spans) - spans[0].start_ns) / NS
    rps = len(spans) / last_s
    ended = replace(trial.record, load_end_ns=(spans[-1].end_ns or 0) + NS // 100)
    slow = changed(said.response, mean=last_s * count / len(spans) + 1, max=last_s)
    whole = saying(trial, duration_s=last_s, rps=rps, response=slow, connects_s=(1.02,) * 3)
    return replace(with_spans(whole, spans), record=ended)


def stall_of(cell: CellResult) -> IdleWhileClientsWait:
    assert isinstance(cell.diagnosis, IdleWhileClientsWait)
    return cell.diagnosis


@pytest.mark.parametrize("accepted", [False, True])
def test_a_stall_is_the_headline(accepted: bool) -> None:
    """Also where a worker accepted what it then waits for: its slot serves nothing."""
    trial = seeing(late(evidence(SMALL, 16, delay_s=0.3), 2, accepted=accepted), counters=DROPS)
    cell = judged(trial)
    facts = derived(trial)
    assert facts.rps == pytest.approx(2 / 0.3)
    assert cell.throughput_rps == cell.whole_rps
    assert cell.whole_rps == pytest.approx(80 / (facts.load_s - 0.3), rel=0.01)
    found = stall_of(cell)
    assert found.stall.idle_s == pytest.approx(LATE_S + 80, abs=1)
    assert found.steady_rps == pytest.approx(2 / 0.3)
    assert FullAcceptQueue in map(type, cell.findings)


def test_a_machine_that_stands_still_is_no_stall() -> None:
    trial = seeing(late(evidence(SMALL, 16, delay_s=0.3), 2), counters=DROPS)
    *_, last, _, late_one = trial.spans.spans
    assert last.end_ns is not None
    assert stalled(derived(trial)) is not None
    pause = Pause(last.end_ns, late_one.start_ns)
    assert stalled(derived(seeing(trial, pauses=(pause,)))) is None


def test_slots_that_a_blocked_loop_leaves_idle_are_no_stall_beside_a_pause() -> None:
    """They are idle all the time: that the machine stood still must not make them the reason."""
    trial = evidence(server("gevent", 2), 6, delay_s=0.3, slots=[1, 1])
    before = derived(trial)
    assert stalled(before) is None
    trial = late(trial, 2, late_s=before.load_s)
    *_, last, late_one, _ = trial.spans.spans
    assert last.end_ns is not None
    assert stalled(derived(trial)) is not None
    pause = Pause(last.end_ns, late_one.start_ns)
    assert stalled(derived(seeing(trial, pauses=(pause,)))) is None


def test_no_longer_backlog_is_advised_where_the_queue_holds_every_connection() -> None:
    short = stall_of(judged(late(evidence(SMALL, 16, delay_s=0.3), 2)))
    assert short.advice == ("a --backlog of 16 or more would prevent the drops",)
    long = stall_of(judged(late(evidence(replace(SMALL, backlog=16), 16, delay_s=0.3), 2)))
    assert long.advice == ()


def test_all_that_is_told_of_a_stall_is_of_the_whole_load() -> None:
    """Slots that stood idle were not busy, and the steady part's interval is of another rate."""
    trial = seeing(late(evidence(SMALL, 16, delay_s=0.3), 2), counters=DROPS)
    cell, found = judged(trial), stall_of(judged(trial))
    idle = found.stall.idle_s / found.stall.load_s
    assert cell.occupancy is not None
    assert cell.occupancy < 1 - idle / 2  # one slot of two idles at least
    assert cell.throughput_half_rps is None
    assert isinstance(cell.reason, SlotsIdled)
    assert cell.reason.idle_s == found.stall.idle_s
    advice = {words for finding in cell.findings for words in finding.values["advice"]}
    assert "a --backlog of 16 or more would prevent the drops" in advice
    assert BACKLOG_MOVES_WAIT not in advice  # it would be told otherwise in one breath
    document = sweep_document(analyse("stall", {}, [trial]))
    assert text(document.tables[1].title).endswith("mean of the whole load")
    assert "levels off" not in text(document.findings[0])
    both = sweep_document(analyse("both", {}, [evidence(SMALL, 4, delay_s=0.3), trial]))
    assert text(both.tables[1].title).endswith("(the whole load where it stalled)")


def test_breakdown_of_a_stall_is_of_the_whole_load() -> None:
    trial = late(evidence(SMALL, 16, delay_s=0.3), 2)
    facts = derived(seeing(trial, counters=DROPS))
    cell = judged(seeing(trial, counters=DROPS))
    whole = whole_load(facts)
    assert whole is not None
    mean_s = in_flight_integral_s(facts, whole) / whole.completed
    assert cell.breakdown.response_s == pytest.approx(mean_s)
    assert mean_s > 16 / facts.rps * 1.05


def test_without_the_kernels_evidence_it_must_be_worse() -> None:
    """Than 0.7 of the steady throughput; between, it is noted."""
    bad = late(evidence(SYNC, 8, delay_s=0.3), 2)
    assert stalled(derived(bad)) is not None
    some = with_spans(bad, evidence(SYNC, 8, delay_s=0.3).spans.spans)
    assert stalled(derived(some)) is None


def test_a_long_tail_of_the_app_is_no_stall() -> None:
    """The last request takes as long as all others: it is in the app, and that is noted."""
    trial = evidence(SYNC, 8, delays=lambda number: 10.0 if number == 40 else 1.0)
    cell = judged(trial)
    assert stalled(derived(trial)) is None
    assert noted(cell)["SlowerAsAWhole"].values["whole_rps"] == cell.whole_rps
    assert cell.throughput_rps == pytest.approx(4.0)


def test_uneven_dealing_is_no_stall() -> None:
    assert stalled(derived(gthread(16))) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 16), st.sampled_from(["sync", "eventlet", "gthread"]))
def test_a_server_that_always_serves_is_no_stall(connections: int, worker_class: str) -> None:
    facts = derived(evidence(server(worker_class), connections))
    whole = whole_load(facts)
    assert whole is not None
    assert stalled(facts) is None
    assert whole.rps >= 0.89 * facts.rps  # a last round may not fill all slots
    assert in_flight_integral_s(facts, whole) <= connections * whole.length_s * 1.001


@pytest.mark.parametrize("name", ["overflow", "overflow-ab"])
def test_recorded_overflows_stalled(name: str) -> None:
    run = load(recorded(name))
    report = analyse(name, run.environment, trial_data(run))
    full = [cell for cell in report.cells if cell.trial.cell.server.backlog == 2]
    stalls = [cell for cell in full if isinstance(cell.diagnosis, IdleWhileClientsWait)]
    assert [cell.trial.cell.concurrency for cell in stalls] == [8, 16][-len(stalls) :]
    for cell in stalls:
        stall = stall_of(cell)
        assert stall.whole_rps is not None
        assert stall.whole_rps < 0.75 * stall.steady_rps
        assert stall.counters is not None
        assert stall.counters["ListenOverflows"] > 0
    long = [cell for cell in report.cells if cell.trial.cell.server.backlog > 2]
    assert all((cell.whole_rps or 0) >= 0.98 * (cell.throughput_rps or 0) for cell in long)


def law(trial: TrialData) -> tuple[float, float]:
    """Of the whole load, a lone first request apart: requests in flight by the workers' spans and
    the closed loop, and by the client's throughput and mean response (Little 1961)."""
    untold = saying(trial, timings=())  # so that what is under way follows from the spans alone
    facts, said = derived(untold), derived(trial).measurement
    whole = whole_load(facts)
    assert whole is not None
    assert said.response.mean is not None
    alone = 1 if trial.lone_first else 0
    count = said.requests - alone
    lone_s = (said.lone_s or said.response.mean) * alone
    mean_s = (said.response.mean * said.requests - lone_s) / count
    return in_flight_integral_s(facts, whole) / whole.length_s, whole.rps * mean_s


@pytest.mark.parametrize("name", ["good", "lesson", "overflow", "rates", "tools", "trials"])
def test_littles_law_holds_over_the_whole_load(name: str) -> None:
    run, asked = load(recorded(name)), 0
    for trial in trial_data(run):
        closed = trial.trial.cell.rate is None and trial.fixed_count
        if closed and not derived(trial).outcome.failed:
            by_spans, by_client = law(trial)
            assert by_client == pytest.approx(by_spans, rel=0.05), trial.trial.key
            asked += 1
    assert asked >= 2


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 16), st.floats(0.02, 2.0), st.sampled_from(["sync", "eventlet"]))
def test_littles_law_of_an_ideal_server(connections: int, delay_s: float, name: str) -> None:
    by_spans, by_client = law(evidence(server(name), connections, delay_s=delay_s))
    assert by_client == pytest.approx(by_spans, rel=0.01)
