"""Full accept queues: SYN retransmissions, the kernel's counters, connections never accepted."""

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
from workerlab.model.result import Result, TrialResult
from workerlab.report.values import text
from workerlab.server.worker_classes import class_named

STEPS = (1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0)


@pytest.mark.parametrize(
    ("connects_s", "steps_s", "expected"),
    [
        ([], STEPS, {}),
        ([0.0, 0.2, 0.9979], STEPS, {}),
        ([0.998, 1.0, 1.24], STEPS, {1.0: 3}),
        ([1.26, 1.9], STEPS, {}),
        ([1.031, 1.027, 2.05, 7.1, 11.2], STEPS, {1.0: 2, 2.0: 1, 7.0: 1, 11.0: 1}),
        ([1.05, 1.099], (1.0, 1.1), {1.0: 1, 1.1: 1}),
        ([1.0], (), {}),
    ],
)
def test_connect_times_are_counted_at_syn_steps(
    connects_s: list[float], steps_s: tuple[float, ...], expected: dict[float, int]
) -> None:
    assert at_steps(connects_s, steps_s) == expected


@given(st.lists(st.floats(0, 30)), st.sets(st.floats(0.01, 30)).map(sorted))
def test_no_connection_counts_at_two_steps(connects_s: list[float], steps_s: list[float]) -> None:
    assert sum(at_steps(connects_s, steps_s).values()) <= len(connects_s)


def test_late_connections_with_drops_show_a_full_accept_queue() -> None:
    cell = cell_of(overflow_trial())
    assert cell.verdict == "saturated"
    diagnosis = cell.diagnosis
    assert isinstance(diagnosis, FullAcceptQueue)
    counters = {"ListenOverflows": 40, "ListenDrops": 41, "TCPSynRetrans": 15}
    for finding in (findings_by_code(cell.reason)["HandshakesDropped"], diagnosis):
        assert finding.values["counters"] == counters
        assert finding.values["steps"] == SynSteps(((1.0, 12), (2.0, 3)))
    assert (diagnosis.longest, diagnosis.limit) == (3, 2)
    assert BACKLOG_MOVES_WAIT in diagnosis.advice
    assert cell.counters.syn_retransmits == 15
    assert (cell.accept_queue_max, cell.accept_queue_limit) == (3, 2)


def half_open(trial: TrialData, count: int) -> TrialData:
    """The same trial if `count` of the waiting connections are established only for the client."""
    queue = tuple(replace(s, length=max(0, s.length - count)) for s in trial.observations.queue)
    connections = tuple(
        replace(s, server={"ESTABLISHED": max(0, s.client["ESTABLISHED"] - count)})
        for s in trial.observations.connections
    )
    return with_observations(trial, queue=queue, connections=connections)


def test_half_open_connections_count_as_waiting_in_the_accept_queue() -> None:
    """Only if the queue overflowed; otherwise their time is unattributed."""
    whole = evidence(SMALL, 16, delay_s=0.3)
    trial = half_open(whole, 5)
    dropped = replace(trial, measurement=overflow_trial().measurement)
    cell = cell_of(with_observations(dropped, counters=DROPS))
    expected_s = cell_of(whole).breakdown.accept_queue_s
    assert cell.breakdown.accept_queue_s == pytest.approx(expected_s, rel=0.01)
    source = "queue length and half-open connections, by Little's law"
    assert cell.breakdown.sources["accept_queue"] == source
    assert findings_by_code(cell.diagnosis)["FullAcceptQueue"].half_open == 5
    assert cell_of(trial).breakdown.unattributed_s == pytest.approx(5 / (2 / 0.3), rel=0.01)


DROP_CODES = {
    "HandshakesDropped", "DropsSuspected", "SynSteps", "FullAcceptQueue", "LikelyFullAcceptQueue",
}  # fmt: skip


def shows_drops(cell: Result) -> bool:
    codes = findings_by_code(cell.reason).keys() | findings_by_code(cell.diagnosis).keys()
    return not codes.isdisjoint(DROP_CODES)


def test_drops_of_others_in_the_namespace_do_not_count() -> None:
    cell = cell_of(overflow_trial(connects_s=(0.001,) * 5, queue_length=2))
    assert not shows_drops(cell)
    assert notes_by_code(cell)["CountersOfOthers"].values["counters"]["ListenOverflows"] == 40
    # Late connections, but the kernel dropped nothing
    assert not shows_drops(cell_of(overflow_trial(counters=Counters(0, 0, 0, 0))))


def test_during_other_trials_only_the_servers_own_drops_count() -> None:
    """The counters of the namespace include those of the other trials."""

    def parallel_cell(socket_drops: int | None) -> TrialResult:
        trial = overflow_trial(counters=replace(DROPS, socket_drops=socket_drops))
        return cell_of(with_record(trial, beside=("another",)))

    cell = parallel_cell(7)
    assert isinstance(cell.diagnosis, FullAcceptQueue)
    assert (cell.diagnosis.counters, cell.diagnosis.where) == ({"sk_drops": 7}, OWN_SOCKET)
    assert cell.counters == Counters(socket_drops=7)
    quiet = parallel_cell(0)
    assert not shows_drops(quiet)
    assert "CountersOfOthers" not in notes_by_code(quiet)
    assert "DropsSuspected" in findings_by_code(parallel_cell(None).reason)


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
    """The same trial if the last requests never reached a worker."""
    return with_spans(trial, trial.spans.spans[:-count])


def test_requests_of_ab_that_reached_no_worker_were_never_accepted() -> None:
    trial = lost(overflow_trial(), 3)
    cell = cell_of(trial)
    assert (cell.verdict, cell.requests, cell.failed) == ("saturated", 78, 3)
    assert cell.errors == {"never_accepted": 3}
    assert findings_by_code(cell.diagnosis)["FullAcceptQueue"].never_accepted == 3
    assert Failing not in map(type, cell.findings)  # FullAcceptQueue already names them
    assert cell.waiting.mean is None
    note = notes_by_code(cell)["TimesOfNeverAccepted"]
    assert note.values == {"tool": "ab", "requests": 3}


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
    cell = cell_of(with_measurement(overflow_trial(), requests=80))
    assert "CountsDiffer" in findings_by_code(cell.reason)
    assert cell_of(lost(with_measurement(overflow_trial(), rps=60.0), 3)).verdict == "invalid"


def failing(trial: TrialData, number: int, **errors: Any) -> TrialData:
    """The same trial if requests from `number` on fail. `errors`: how many, by cause."""
    timings = list(trial.measurement.timings)
    causes = [cause for cause, count in errors.items() for _ in range(count)]
    for index, cause in enumerate(causes, number):
        timings[index] = replace(timings[index], end_s=None, status=None, cause=cause)
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
    """If others send all requests before it is established, no response includes its time."""
    response = overflow_trial().measurement.response
    short = replace(response, mean=response.mean / 8)
    for counters, idle in ((Counters(0, 0, 0, 0), True), (DROPS, False)):
        cell = cell_of(with_measurement(overflow_trial(counters=counters), response=short))
        assert ("ConnectionsIdle" in findings_by_code(cell.reason)) == idle


def test_drops_are_found_without_configured_slots() -> None:
    trial = evidence(server("asgi"), 8)
    spans = (replace(span, end_ns=span.end_ns - NS // 4) for span in trial.spans.spans)
    queue = tuple(replace(sample, length=3, limit=2) for sample in trial.observations.queue)
    full = with_observations(with_spans(trial, spans), counters=DROPS, queue=queue)
    cell = cell_of(with_measurement(full, connects_s=(1.02,) * 3))
    assert (cell.verdict, cell.reason.code) == ("saturated", "BelowPossible")
    assert "no limit configured" in text(cell.reason)
