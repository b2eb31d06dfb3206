"""A full accept queue: SYN retransmissions, the kernel's counters, connections never accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import (
    DROPS,
    NS,
    SMALL,
    cell_of,
    evidence,
    findings_by_code,
    notes_by_code,
    overflow_trial,
    server,
    with_measurement,
    with_observations,
    with_record,
    with_spans,
)
from workerlab.analysis import TrialData
from workerlab.analysis.diagnosis.failing import Failing
from workerlab.analysis.diagnosis.slots import (
    BACKLOG_MOVES_WAIT,
    FullAcceptQueue,
    LikelyFullAcceptQueue,
)
from workerlab.analysis.handshakes import OWN_SOCKET, DropsSuspected, SynSteps, at_steps
from workerlab.model.evidence import Counters
from workerlab.model.result import Result
from workerlab.report.values import text
from workerlab.server.worker_classes import class_named

STEPS = (1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0)


@pytest.mark.parametrize(
    ("connects", "expected"),
    [
        ([], {}),
        ([0.0, 0.2, 0.9979], {}),
        ([0.998, 1.0, 1.24], {1.0: 3}),
        ([1.26, 1.9], {}),
        ([1.031, 1.027, 2.05, 7.1, 11.2], {1.0: 2, 2.0: 1, 7.0: 1, 11.0: 1}),
    ],
)
def test_connect_times_are_counted_at_syn_steps(
    connects: list[float], expected: dict[float, int]
) -> None:
    assert at_steps(connects, STEPS) == expected


def test_syn_steps_do_not_overlap() -> None:
    assert at_steps([1.05, 1.099], (1.0, 1.1)) == {1.0: 1, 1.1: 1}
    assert at_steps([1.0], ()) == {}


@given(st.lists(st.floats(0, 30)), st.sets(st.floats(0.01, 30)).map(sorted))
def test_no_connection_counts_at_two_steps(connects: list[float], steps: list[float]) -> None:
    assert sum(at_steps(connects, steps).values()) <= len(connects)


def test_late_connections_with_drops_show_a_full_accept_queue() -> None:
    cell = cell_of(overflow_trial())
    assert cell.verdict == "saturated"
    verdict = findings_by_code(cell.reason)["HandshakesDropped"]
    diagnosis = cell.diagnosis
    assert isinstance(diagnosis, FullAcceptQueue)
    counters = {"ListenOverflows": 40, "ListenDrops": 41, "TCPSynRetrans": 15}
    for finding in (verdict, diagnosis):
        assert finding.values["counters"] == counters
        assert finding.values["steps"] == SynSteps(((1.0, 12), (2.0, 3)))
    assert (diagnosis.longest, diagnosis.limit) == (3, 2)
    assert BACKLOG_MOVES_WAIT in diagnosis.advice
    assert (cell.counters.syn_retransmits, cell.accept_queue_max) == (15, 3)
    assert cell.accept_queue_limit == 2


def half_open(trial: TrialData, count: int) -> TrialData:
    """`count` of the waiting connections are established for the client alone."""
    queue = tuple(replace(s, length=max(0, s.length - count)) for s in trial.observations.queue)
    connections = tuple(
        replace(s, server={"ESTABLISHED": max(0, s.client["ESTABLISHED"] - count)})
        for s in trial.observations.connections
    )
    return with_observations(trial, queue=queue, connections=connections)


def test_half_open_connections_count_as_waiting_in_the_accept_queue() -> None:
    """Only if the queue overflowed; otherwise their time is unattributed."""
    trial = evidence(SMALL, 16, delay_s=0.3)
    expected_s = cell_of(trial).breakdown.accept_queue_s
    trial = half_open(trial, 5)
    dropped = replace(trial, measurement=overflow_trial().measurement)
    cell = cell_of(with_observations(dropped, counters=DROPS))
    assert cell.breakdown.accept_queue_s == pytest.approx(expected_s, rel=0.01)
    source = "queue length and half-open connections, by Little's law"
    assert cell.breakdown.sources["accept_queue"] == source
    assert findings_by_code(cell.diagnosis)["FullAcceptQueue"].half_open == 5
    without_drops = cell_of(trial).breakdown
    assert (without_drops.unattributed_s or 0) == pytest.approx(5 / (2 / 0.3), rel=0.01)


DROP_CODES = {
    "HandshakesDropped", "DropsSuspected", "SynSteps", "FullAcceptQueue", "LikelyFullAcceptQueue",
}  # fmt: skip


def shows_drops(cell: Result) -> bool:
    codes = findings_by_code(cell.reason).keys() | findings_by_code(cell.diagnosis).keys()
    return not codes.isdisjoint(DROP_CODES)


def test_drops_of_others_in_the_namespace_are_not_this_servers() -> None:
    cell = cell_of(overflow_trial(connects_s=(0.001,) * 5, queue_length=2))
    assert not shows_drops(cell)
    assert notes_by_code(cell)["CountersOfOthers"].values["counters"]["ListenOverflows"] == 40
    # Late connections, but the kernel dropped nothing
    assert not shows_drops(cell_of(overflow_trial(counters=Counters(0, 0, 0, 0))))


def beside_another_trial(trial: TrialData) -> TrialData:
    """The same trial while another one ran."""
    return with_record(trial, beside=("another",))


def test_beside_other_trials_only_the_servers_own_drops_count() -> None:
    """The counters of the namespace include those of the other trials."""
    cell = cell_of(beside_another_trial(overflow_trial(counters=replace(DROPS, socket_drops=7))))
    diagnosis = cell.diagnosis
    assert isinstance(diagnosis, FullAcceptQueue)
    assert diagnosis.counters == {"sk_drops": 7}
    assert diagnosis.where == OWN_SOCKET
    assert cell.counters == Counters(socket_drops=7)
    quiet = cell_of(beside_another_trial(overflow_trial(counters=replace(DROPS, socket_drops=0))))
    assert not shows_drops(quiet)
    assert "CountersOfOthers" not in notes_by_code(quiet)
    of_namespace = cell_of(beside_another_trial(overflow_trial()))
    assert "DropsSuspected" in findings_by_code(of_namespace.reason)


def test_drops_of_the_servers_own_sockets_decide() -> None:
    """Late connections have another cause if the server's own sockets dropped nothing."""
    assert not shows_drops(cell_of(overflow_trial(counters=replace(DROPS, socket_drops=0))))
    assert shows_drops(cell_of(overflow_trial(counters=replace(DROPS, socket_drops=40))))


def test_without_counters_a_full_accept_queue_is_likely() -> None:
    cell = cell_of(overflow_trial(counters=None))
    likely = DropsSuspected(2.03)
    assert findings_by_code(cell.reason)["DropsSuspected"] == likely
    assert cell.diagnosis == LikelyFullAcceptQueue(
        sharing="16 connections share 2 slots",
        waiting=findings_by_code(cell.diagnosis)["LikelyFullAcceptQueue"].waiting,
        drops=likely,
        advice=(BACKLOG_MOVES_WAIT, class_named("sync").advice),
    )


def lost(trial: TrialData, count: int) -> TrialData:
    """The last requests never reached a worker."""
    return with_spans(trial, trial.spans.spans[:-count])


def test_requests_of_ab_that_reached_no_worker_were_never_accepted() -> None:
    trial = lost(overflow_trial(), 3)
    cell = cell_of(trial)
    assert (cell.verdict, cell.requests, cell.failed) == ("saturated", 78, 3)
    assert cell.errors == {"never_accepted": 3}
    assert findings_by_code(cell.diagnosis)["FullAcceptQueue"].never_accepted == 3
    assert Failing not in map(type, cell.findings)  # FullAcceptQueue already names them
    assert cell.waiting.mean is None
    never = {"tool": "ab", "requests": 3}
    assert notes_by_code(cell)["TimesOfNeverAccepted"].values == never


def test_errors_answered_by_the_server_are_counted_once() -> None:
    """A 500 for a connection on which no request came has no span; it is one failure, not two."""
    cell = cell_of(with_measurement(lost(overflow_trial(), 4), errors={"non_2xx": 4}, failed=4))
    assert (cell.verdict, cell.errors, cell.failed) == ("saturated", {"non_2xx": 4}, 4)
    assert cell.throughput_rps == pytest.approx(cell_of(overflow_trial()).throughput_rps, rel=0.05)


@pytest.mark.parametrize("counters", [None, Counters(), Counters(0, 0, 9, 0)])
def test_without_drops_missing_spans_are_a_contradiction(counters: Counters | None) -> None:
    cell = cell_of(with_observations(lost(overflow_trial(), 3), counters=counters))
    assert cell.verdict == "invalid"
    assert findings_by_code(cell.reason)["CountsDiffer"].values["differ"] == 3


def test_drops_excuse_no_other_contradiction() -> None:
    assert "CountsDiffer" in findings_by_code(
        cell_of(with_measurement(overflow_trial(), requests=80)).reason
    )
    assert cell_of(lost(with_measurement(overflow_trial(), rps=60.0), 3)).verdict == "invalid"


def failing(trial: TrialData, number: int, **errors: Any) -> TrialData:
    """From request `number` on, as many requests fail as `errors` says, by cause."""
    timings = list(trial.measurement.timings)
    causes = [cause for cause, count in errors.items() for _ in range(count)]
    for place, cause in enumerate(causes, number):
        timings[place] = replace(timings[place], end_s=None, status=None, cause=cause)
    succeeded = trial.measurement.requests - len(causes)
    counted = {"requests": succeeded, "failed": len(causes), "errors": errors}
    return with_measurement(trial, timings=tuple(timings), rps=None, **counted)


def test_failed_requests_with_an_id_but_no_span_were_never_accepted() -> None:
    trial = failing(overflow_trial("fast"), 78, reset=3)
    assert cell_of(trial).errors == {"reset": 3}  # the workers saw all three
    assert cell_of(lost(trial, 2)).errors == {"reset": 1, "never_accepted": 2}
    cell = cell_of(lost(trial, 3))
    assert (cell.verdict, cell.failed) == ("saturated", 3)
    assert cell.errors == {"never_accepted": 3}
    quiet = with_observations(trial, counters=Counters(0, 0, 0, 0))
    assert cell_of(lost(quiet, 3)).errors == {"reset": 3}


def test_resets_that_ab_reports_twice_are_counted_once() -> None:
    errors = {"read": 3, "exception": 3, "non_2xx": 1}
    cell = cell_of(with_measurement(lost(overflow_trial(), 3), failed=4, errors=errors))
    assert (cell.failed, cell.errors) == (4, {"never_accepted": 3, "non_2xx": 1})
    # A worker that never gets the request answers with an error itself
    assert Failing not in map(type, cell.findings)
    assert cell.breakdown.transfer_s is None  # ab's means include connections never accepted
    assert cell.breakdown.connect_s is not None


def test_connections_that_retransmit_their_syn_are_not_idle() -> None:
    """If all requests are sent before it is established, no response includes its time."""
    trial = overflow_trial()
    brief = replace(trial.measurement.response, mean=(trial.measurement.response.mean or 0.0) / 8)
    none = with_observations(trial, counters=Counters(0, 0, 0, 0))
    assert "ConnectionsIdle" in findings_by_code(
        cell_of(with_measurement(none, response=brief)).reason
    )
    assert "ConnectionsIdle" not in findings_by_code(
        cell_of(with_measurement(trial, response=brief)).reason
    )


def test_drops_are_found_without_configured_slots() -> None:
    trial = evidence(server("asgi"), 8)
    spans = (replace(span, end_ns=(span.end_ns or 0) - NS // 4) for span in trial.spans.spans)
    queue = tuple(replace(sample, length=3, limit=2) for sample in trial.observations.queue)
    full = with_observations(with_spans(trial, spans), counters=DROPS, queue=queue)
    cell = cell_of(with_measurement(full, connects_s=(1.02,) * 3))
    assert (cell.verdict, cell.reason.code) == ("saturated", "BelowPossible")
    assert "no limit configured" in text(cell.reason)
