"""A full accept queue: steps of a repeated SYN, the kernel's counters, what was never accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as changed

from tests.builders.analysis import (
    DROPS,
    NS,
    SMALL,
    dropping,
    every,
    evidence,
    judged,
    noted,
    recording,
    saying,
    seeing,
    server,
    with_spans,
)
from workerlab.analysis import TrialData
from workerlab.analysis.diagnosis.service import Failing
from workerlab.analysis.diagnosis.slots import (
    BACKLOG_MOVES_WAIT,
    FullAcceptQueue,
    LikelyFullAcceptQueue,
)
from workerlab.analysis.handshakes import OWN_SOCKET, DropsSuspected, SynSteps, at_steps
from workerlab.model import CellResult, Counters
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
def test_steps(connects: list[float], expected: dict[float, int]) -> None:
    assert at_steps(connects, STEPS) == expected


def test_a_step_ends_where_the_next_begins() -> None:
    assert at_steps([1.05, 1.099], (1.0, 1.1)) == {1.0: 1, 1.1: 1}
    assert at_steps([1.0], ()) == {}


@given(st.lists(st.floats(0, 30)), st.sets(st.floats(0.01, 30)).map(sorted))
def test_no_connection_stands_at_two_steps(connects: list[float], steps: list[float]) -> None:
    assert sum(at_steps(connects, steps).values()) <= len(connects)


def test_the_connect_spike_is_measured() -> None:
    cell = judged(dropping())
    assert cell.verdict == "saturated"
    verdict = every(cell.reason)["HandshakesDropped"]
    diagnosis = cell.diagnosis
    assert isinstance(diagnosis, FullAcceptQueue)
    for found in (verdict, diagnosis):
        counters = {"ListenOverflows": 40, "ListenDrops": 41, "TCPSynRetrans": 15}
        assert found.values["counters"] == counters
        steps = SynSteps(((1.0, 12), (2.0, 3)))
        assert found.values["steps"] == steps
    assert (diagnosis.longest, diagnosis.limit) == (3, 2)
    assert BACKLOG_MOVES_WAIT in diagnosis.advice
    assert (cell.counters.syn_retransmits, cell.accept_queue_max) == (15, 3)
    assert cell.accept_queue_limit == 2


def half_open(trial: TrialData, count: int) -> TrialData:
    """So many of the waiting connections are known to the client alone."""
    queue = tuple(replace(s, length=max(0, s.length - count)) for s in trial.observations.queue)
    connections = tuple(
        replace(s, server={"ESTABLISHED": max(0, s.client["ESTABLISHED"] - count)})
        for s in trial.observations.connections
    )
    return seeing(trial, queue=queue, connections=connections)


def test_connections_that_only_the_client_has_wait_as_in_the_queue() -> None:
    """What the breakdown would otherwise leave unexplained, and only where a queue overflowed."""
    trial = evidence(SMALL, 16, delay_s=0.3)
    whole = judged(trial)
    drops = half_open(trial, 5)
    counted = replace(seeing(drops, counters=DROPS), measurement=dropping().measurement)
    dropped = judged(counted)
    assert dropped.breakdown.accept_queue_s == pytest.approx(
        whole.breakdown.accept_queue_s, rel=0.01
    )
    assert (
        dropped.breakdown.sources["accept_queue"]
        == "queue length and half-open connections, by Little's law"
    )
    assert every(dropped.diagnosis)["FullAcceptQueue"].half_open == 5
    quiet = judged(drops)
    assert (quiet.breakdown.unattributed_s or 0) == pytest.approx(5 / (2 / 0.3), rel=0.01)


DROPS_SHOWN = {
    "HandshakesDropped", "DropsSuspected", "SynSteps", "FullAcceptQueue", "LikelyFullAcceptQueue",
}  # fmt: skip


def shows_drops(cell: CellResult) -> bool:
    codes = every(cell.reason).keys() | every(cell.diagnosis).keys()
    return any(code in DROPS_SHOWN for code in codes)


def test_drops_of_others_in_the_namespace_are_not_this_servers() -> None:
    cell = judged(dropping(connects_s=(0.001,) * 5, longest=2))
    assert not shows_drops(cell)
    assert noted(cell)["CountersOfOthers"].values["counters"]["ListenOverflows"] == 40
    # late, but this kernel dropped nothing
    assert not shows_drops(judged(dropping(counters=Counters(0, 0, 0, 0))))


def beside(trial: TrialData) -> TrialData:
    """The same, while another trial ran."""
    return recording(trial, beside=("another",))


def test_beside_other_trials_a_servers_own_sockets_say_what_it_dropped() -> None:
    """Whatever the namespace counts, which is theirs, too."""
    cell = judged(beside(dropping(counters=replace(DROPS, socket_drops=7))))
    diagnosis = cell.diagnosis
    assert isinstance(diagnosis, FullAcceptQueue)
    assert diagnosis.counters == {"sk_drops": 7}
    assert diagnosis.where == OWN_SOCKET
    assert cell.counters == Counters(socket_drops=7)
    quiet = judged(beside(dropping(counters=replace(DROPS, socket_drops=0))))
    assert not shows_drops(quiet)
    assert "CountersOfOthers" not in noted(quiet)


def test_where_nobody_knows_whose_drops_it_were_it_is_likely() -> None:
    assert "DropsSuspected" in every(judged(beside(dropping())).reason)


def test_alone_its_own_sockets_decide_as_well() -> None:
    """Beside other programs that drop: what was late was so for another reason."""
    assert not shows_drops(judged(dropping(counters=replace(DROPS, socket_drops=0))))
    assert shows_drops(judged(dropping(counters=replace(DROPS, socket_drops=40))))


def test_without_counters_it_is_likely() -> None:
    cell = judged(dropping(counters=None))
    likely = DropsSuspected(2.03)
    assert every(cell.reason)["DropsSuspected"] == likely
    assert cell.diagnosis == LikelyFullAcceptQueue(
        sharing="16 connections share 2 slots",
        waiting=every(cell.diagnosis)["LikelyFullAcceptQueue"].waiting,
        drops=likely,
        advice=(BACKLOG_MOVES_WAIT, class_named("sync").advice),
    )


def lost(trial: TrialData, count: int) -> TrialData:
    """The workers never saw the last requests."""
    return with_spans(trial, trial.spans.spans[:-count])


def test_what_ab_calls_complete_and_no_worker_saw_was_never_accepted() -> None:
    trial = lost(dropping(), 3)
    cell = judged(trial)
    assert (cell.verdict, cell.requests, cell.failed) == ("saturated", 78, 3)
    assert cell.errors == {"never_accepted": 3}
    assert every(cell.diagnosis)["FullAcceptQueue"].never_accepted == 3
    assert Failing not in map(type, cell.findings)  # said once
    assert cell.waiting.mean is None
    never = {"tool": "ab", "requests": 3}
    assert noted(cell)["TimesOfNeverAccepted"].values == never


def test_what_the_server_answered_itself_is_not_counted_twice() -> None:
    """A 500 for a connection on which no request came has no span; it is one failure, not two."""
    cell = judged(saying(lost(dropping(), 4), errors={"non_2xx": 4}, failed=4))
    assert (cell.verdict, cell.errors, cell.failed) == ("saturated", {"non_2xx": 4}, 4)
    assert cell.throughput_rps == pytest.approx(judged(dropping()).throughput_rps, rel=0.05)


@pytest.mark.parametrize("counters", [None, Counters(), Counters(0, 0, 9, 0)])
def test_without_drops_it_stays_a_contradiction(counters: Counters | None) -> None:
    cell = judged(seeing(lost(dropping(), 3), counters=counters))
    assert cell.verdict == "invalid"
    assert every(cell.reason)["CountsDiffer"].values["differ"] == 3


def test_drops_excuse_nothing_else() -> None:
    assert "CountsDiffer" in every(judged(saying(dropping(), requests=80)).reason)
    assert judged(lost(saying(dropping(), rps=60.0), 3)).verdict == "invalid"


def failing(trial: TrialData, number: int, **errors: Any) -> TrialData:
    """The python generator's request `number` and those after it failed, as `errors` says."""
    said = trial.measurement
    assert said is not None
    timings = list(said.timings)
    for place, cause in enumerate(
        (cause for cause, count in errors.items() for _ in range(count)), number
    ):
        timings[place] = changed(timings[place], end_s=None, status=None, cause=cause)
    failed = sum(errors.values())
    counted = {"requests": said.requests - failed, "failed": failed, "errors": errors}
    return saying(trial, timings=tuple(timings), rps=None, **counted)


def test_a_named_request_that_no_worker_heard_of_was_never_accepted() -> None:
    trial = failing(dropping("fast"), 78, reset=3)
    assert judged(trial).errors == {"reset": 3}  # the workers saw all three
    assert judged(lost(trial, 2)).errors == {"reset": 1, "never_accepted": 2}
    cell = judged(lost(trial, 3))
    assert (cell.verdict, cell.failed) == ("saturated", 3)
    assert cell.errors == {"never_accepted": 3}
    quiet = seeing(trial, counters=Counters(0, 0, 0, 0))
    assert judged(lost(quiet, 3)).errors == {"reset": 3}


def test_a_reset_that_ab_goes_on_after_is_counted_once() -> None:
    errors = {"read": 3, "exception": 3, "non_2xx": 1}
    cell = judged(saying(lost(dropping(), 3), failed=4, errors=errors))
    assert (cell.failed, cell.errors) == (4, {"never_accepted": 3, "non_2xx": 1})
    # A worker that waited in vain for a request answers it by itself
    assert Failing not in map(type, cell.findings)
    assert cell.breakdown.transfer_s is None  # ab's means hold what was never accepted
    assert cell.breakdown.connect_s is not None


def test_a_connection_that_is_tried_again_is_not_idle() -> None:
    """Where the requests are used up before it is there, no response has its time."""
    trial = dropping()
    assert trial.measurement is not None
    brief = replace(trial.measurement.response, mean=(trial.measurement.response.mean or 0.0) / 8)
    none = seeing(trial, counters=Counters(0, 0, 0, 0))
    assert "ConnectionsIdle" in every(judged(saying(none, response=brief)).reason)
    assert "ConnectionsIdle" not in every(judged(saying(trial, response=brief)).reason)


def test_drops_of_a_server_without_a_number_of_slots_can_be_told() -> None:
    """Although throughput is what lone requests allow."""
    trial = evidence(server("asgi"), 8)
    spans = (changed(span, end_ns=(span.end_ns or 0) - NS // 4) for span in trial.spans.spans)
    queue = tuple(replace(sample, length=3, limit=2) for sample in trial.observations.queue)
    full = seeing(with_spans(trial, spans), counters=DROPS, queue=queue)
    cell = judged(saying(full, connects_s=(1.02,) * 3))
    assert (cell.verdict, cell.reason.code) == ("saturated", "BelowPossible")
    assert "no limit configured" in text(cell.reason)
