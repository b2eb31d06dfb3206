"""Trials that fail one check each: the cell is invalid, names both numbers, and has no results."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    SYNC,
    cell_of,
    evidence,
    findings_by_code,
    gthread,
    server,
    with_measurement,
    with_record,
    with_spans,
)
from tests.builders.noise import noisy
from workerlab.analysis import TrialData
from workerlab.analysis.facts import outcome
from workerlab.analysis.verdict import TrialInvalid
from workerlab.load.ab import AB
from workerlab.load.wrk import WRK
from workerlab.model.evidence import Fault, Span, Spans, Summary
from workerlab.model.result import Invalid, Result

BASE = evidence(SYNC, 8)  # 41 requests in 11 s
TIMED = evidence(SYNC, 8, timed=True)


def mean(seconds: float) -> Summary:
    return replace(BASE.measurement.response, mean=seconds)


NEVER_REACHED = {"unmatched": "never reached the app", "seen": 41}
UNKNOWN_TO_CLIENT = {"unmatched": "unknown to the client", "seen": 41}


def base(**changes: Any) -> TrialData:
    return with_measurement(BASE, **changes)


def timed(**changes: Any) -> TrialData:
    return with_measurement(TIMED, **changes)


CASES: dict[str, tuple[TrialData, str, dict[str, Any]]] = {
    "a fault": (with_record(BASE, fault=Fault("server", "worker 101 died under load")),
                "TrialFault", {"reason": "worker 101 died under load"}),
    "no load": (with_record(BASE, load_start_ns=None),
                "Note", {"text": "the load was never started"}),
    "unreadable": (replace(BASE, measurement=None, parse_error="truncated: 'Comp'"), "Note",
                   {"text": "the load tool's output cannot be read: truncated: 'Comp'"}),
    "no output": (replace(BASE, measurement=None), "Note", {"text": "ab wrote no output"}),
    "a full map": (replace(BASE, spans=replace(BASE.spans, full=(103,))),
                   "SpanMapsFull", {"pids": (103,)}),
    "the client counted one more": (base(requests=42), "CountsDiffer",
                                    {**NEVER_REACHED, "tool": "ab", "answered": 42, "differ": 1}),
    "the workers counted one more": (base(requests=40), "CountsDiffer",
                                     {**UNKNOWN_TO_CLIENT, "answered": 40, "differ": 1}),
    "timed, more unanswered than connections": (timed(requests=32), "CountsDiffer",
                                                {**UNKNOWN_TO_CLIENT, "answered": 32}),
    "timed, the client counted one more": (timed(requests=42), "CountsDiffer",
                                           {**NEVER_REACHED, "answered": 42}),
    "a false rate": (base(rps=6.0), "RateUnlikeWorkers",
                     {"tool": "ab", "rps": 6.0, "tool_s": 41 / 6, "workers_s": 11.0}),
    "a rate of 0": (base(rps=0.0), "RateUnlikeWorkers", {"rps": 0.0, "tool_s": None}),
    "timed, a false rate": (timed(rps=6.0), "TimedRateUnlikeWorkers",
                            {"rps": 6.0, "completed": 41, "duration_s": 11.0}),
    "responses that are too long": (base(response=mean(2.5)), "TooManyInFlight",
                                    {"mean_s": 2.5, "in_flight": 2.5 * 41 / 11, "connections": 8}),
    "idle connections": (base(response=mean(1.2)), "ConnectionsIdle",
                         {"in_flight": 1.2 * 41 / 11, "connections": 8}),
    "no success": (base(failed=41, errors={"non_2xx": 41}), "NoSuccess",
                   {"answered": 41, "expected": 200, "causes": {"non_2xx": 41}}),
    "no answer": (base(requests=0, failed=41, errors={"reset": 41}, rps=None), "NothingAnswered",
                  {"causes": {"reset": 41}}),
    "late answers": (timed(exact_mean=False, failed=3, errors={"timeout": 3}), "ResponsesLeftOut",
                     {"responses": 3, "tool": "ab"}),
    "too few rounds": (evidence(SYNC, 8, rounds=1), "TooFewCompleted",
                       {"completed": 8, "in_flight": 8}),
    "no lone request": (with_record(base(lone_s=None), lone_s=()), "Note",
                        {"text": "no lone request was timed, so there is nothing to compare with"}),
    "no spans": (replace(BASE, spans=Spans(())), "CountsDiffer",
                 {**NEVER_REACHED, "answered": 41, "seen": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_contradiction_makes_the_cell_invalid(name: str) -> None:
    trial, code, values = CASES[name]
    cell = cell_of(trial)
    assert isinstance(cell, Invalid)
    assert isinstance(cell.reason, TrialInvalid)
    reported = findings_by_code(cell.reason)[code].values
    for key, value in values.items():
        expected = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
        assert reported[key] == expected
    assert (cell.trial, cell.app, cell.sleep_s) == (trial.trial, trial.app, trial.sleep_s)


@pytest.mark.parametrize(
    "trial",
    [
        BASE,
        TIMED,
        gthread(8),
        gthread(16),
        evidence(server("tornado"), 16, slots=[1] * 4, deal=lambda n: n * n % 4),
        evidence(SYNC, 1),
        evidence(SYNC, 3, delay_s=0.05),
        evidence(SYNC, 16, delays=lambda n: 0.5 + (n * 7 % 5) / 5),
        timed(requests=33),  # the last 8 were left unanswered
        base(response=mean(1.88 - 0.0004)),  # ab rounds to whole milliseconds
        # The first failure may have reached the app, the others did not
        base(requests=40, failed=1, errors={"reset": 1}),
        base(failed=2, errors={"refused": 2}),
        # An inexact mean proves nothing
        base(exact_mean=False, response=mean(99.0)),
        base(response=Summary()),
        base(rps=None),
        # The rate of successes
        base(failed=20, errors={"status": 20}, rps=21 / 11),
        timed(failed=20, errors={"status": 20}, rps=21 / 11),
    ],
)
def test_consistent_trials_are_valid(trial: TrialData) -> None:
    cell = cell_of(trial)
    assert isinstance(cell, Result), cell.reason


def test_failures_are_reported_and_only_successes_counted() -> None:
    cell = cell_of(base(failed=4, errors={"non_2xx": 4}))
    assert cell.verdict == "saturated"
    assert (cell.failed, dict(cell.errors)) == (4, {"non_2xx": 4})
    assert cell.throughput_rps == pytest.approx(4.0 * 37 / 41)
    failures = findings_by_code(cell.reason)["FailedRequests"].values
    assert failures == {"requests": 4, "causes": {"non_2xx": 4}}


REFUSED = {"failed": 41, "errors": {"non_2xx": 41}}


@pytest.mark.parametrize(
    ("good_statuses", "expect_status", "counted"),
    [
        (AB.SUCCESS_STATUSES, 302, REFUSED),
        (WRK.SUCCESS_STATUSES, 404, REFUSED),
        (WRK.SUCCESS_STATUSES, 302, {}),
        (None, 302, {}),
    ],
    ids=["ab, redirect", "wrk, 404", "wrk, redirect", "status counted by the tool"],
)
def test_an_expected_status_is_no_failure(
    good_statuses: range | None, expect_status: int, counted: dict[str, Any]
) -> None:
    statuses = {"expect_status": expect_status, "good_statuses": good_statuses}
    cell = cell_of(replace(base(**counted), **statuses))
    assert (cell.failed, dict(cell.errors)) == (0, {})
    assert cell.throughput_rps == pytest.approx(4.0)


@pytest.mark.parametrize(("tool_wait", "idle"), [(0.05, True), (0.2, False)])
def test_a_tool_that_waits_for_a_core_cannot_keep_its_connections_busy(
    tool_wait: float, idle: bool
) -> None:
    cell = cell_of(noisy(base(response=mean(1.2)), tool_wait=tool_wait))
    assert ("ConnectionsIdle" in findings_by_code(cell.reason)) == idle


def test_an_unexpected_success_is_a_failure() -> None:
    measurement = base(failed=30, errors={"non_2xx": 30}).measurement
    counts = outcome(measurement, 302, AB.SUCCESS_STATUSES)
    assert (counts.failed, counts.wrong, dict(counts.errors)) == (11, 11, {"unexpected_2xx": 11})
    assert outcome(BASE.measurement, 302, AB.SUCCESS_STATUSES).success_share == 0


def test_a_span_that_never_ended_is_no_contradiction_in_a_timed_load() -> None:
    *others, last = TIMED.spans.spans
    hung = Span(last.pid, last.start_ns, None)
    cell = cell_of(with_spans(timed(requests=40), [*others, hung]))
    assert cell.verdict == "saturated"
    assert cell.throughput_rps == pytest.approx(4.0, rel=0.02)
