"""Each witness contradicted on purpose: the cell is invalid, says both numbers, and shows none."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from harness.analysis import TrialData, analyse
from harness.analysis.outcomes import outcome
from harness.model import CellResult, Fault, Measurement, Record, Span, Spans, Summary
from tests.builders.analysis import SYNC, evidence, gthread, server


def said(base: TrialData) -> Measurement:
    assert base.measurement is not None
    return base.measurement


def recorded(base: TrialData) -> Record:
    assert base.record is not None
    return base.record


def judged(trial: TrialData) -> CellResult:
    return analyse("r", {}, [trial]).cells[0]


def saying(base: TrialData, **changes: Any) -> TrialData:
    return replace(base, measurement=replace(said(base), **changes))


def recording(base: TrialData, **changes: Any) -> TrialData:
    return replace(base, record=replace(recorded(base), **changes))


BASE = evidence(SYNC, 8)  # 41 requests, 8 to 11.25 s
TIMED = evidence(SYNC, 8, timed=True)


def mean(seconds: float) -> Summary:
    return replace(said(BASE).response, mean=seconds)


CASES = {
    "a fault": (
        recording(BASE, fault=Fault("server", "worker 101 died under the load")),
        ["worker 101 died"],
    ),
    "no load": (recording(BASE, load_start_ns=None), ["never started"]),
    "unreadable": (
        replace(BASE, measurement=None, parse_error="truncated: 'Comp'"),
        ["cannot be read: truncated"],
    ),
    "no output": (replace(BASE, measurement=None), ["left no output"]),
    "a full map": (
        replace(BASE, spans=replace(BASE.spans, full=(103,))),
        ["more requests than the span maps hold (worker 103)"],
    ),
    "the client counted one more": (
        saying(BASE, requests=42),
        ["42 answers", "41 requests", "1 never reached the app"],
    ),
    "the workers counted one more": (
        saying(BASE, requests=40),
        ["40 answers", "41 requests", "1 are unknown to the client"],
    ),
    "timed, more than connections left over": (saying(TIMED, requests=32), ["32", "41"]),
    "timed, the client counted one more": (saying(TIMED, requests=42), ["42", "41"]),
    "a false rate": (saying(BASE, rps=6.0), ["ab says 6.0 requests/s (6.8 s in all)", "11.0 s"]),
    "a rate of 0": (saying(BASE, rps=0.0), ["ab says 0 requests/s"]),
    "timed, a false rate": (saying(TIMED, rps=6.0), ["6.0 requests/s", "41 requests in its 11.0"]),
    "responses that are too long": (
        saying(BASE, response=mean(2.5)),
        ["2.5 s per response", "9.3 requests in flight on 8 connections: impossible"],
    ),
    "idle connections": (
        saying(BASE, response=mean(1.2)),
        ["did not keep 8 connections busy", "4.5 requests in flight"],
    ),
    "no success": (
        saying(BASE, failed=41, errors={"non_2xx": 41}),
        ["none of the 41 answers was the expected 200 (non_2xx: 41)"],
    ),
    "no answer": (
        saying(BASE, requests=0, failed=41, errors={"reset": 41}, rps=None),
        ["no request was answered (reset: 41)"],
    ),
    "late answers": (
        saying(TIMED, exact_mean=False, failed=3, errors={"timeout": 3}),
        ["3 responses came after ab's timeout"],
    ),
    "too few rounds": (evidence(SYNC, 8, rounds=1), ["too few", "more rounds"]),
    "no lone request": (
        recording(saying(BASE, lone_s=None), lone_s=()),
        ["no lone request was timed"],
    ),
    "no spans": (replace(BASE, spans=Spans(())), ["41 answers", "0 requests"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_contradiction_makes_the_cell_invalid(name: str) -> None:
    trial, words = CASES[name]
    cell = judged(trial)
    assert cell.verdict == "invalid"
    for word in words:
        assert word in cell.reason
    empty = CellResult(cell.trial, cell.app, cell.sleep_s, "invalid", cell.reason)
    assert dataclasses.replace(cell, notes=()) == dataclasses.replace(
        empty, worker_class=trial.worker_class
    )


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
        saying(TIMED, requests=33),  # one batch of 8 was left unanswered
        saying(BASE, response=mean(1.88 - 0.0004)),  # ab rounds to whole milliseconds
        saying(BASE, requests=40, failed=1, errors={"reset": 1}),  # it may have reached the app
        saying(BASE, failed=2, errors={"refused": 2}),  # it may not
        saying(BASE, exact_mean=False, response=mean(99.0)),  # synthetic samples prove nothing
        saying(BASE, response=Summary()),
        saying(BASE, rps=None),
        saying(BASE, failed=20, errors={"status": 20}, rps=21 / 11),  # a rate of successes
        saying(TIMED, failed=20, errors={"status": 20}, rps=21 / 11),
    ],
)
def test_honest_trials_are_believed(trial: TrialData) -> None:
    cell = judged(trial)
    assert cell.verdict != "invalid", cell.reason


def test_failures_are_shown_and_only_successes_counted() -> None:
    cell = judged(saying(BASE, failed=4, errors={"non_2xx": 4}))
    assert cell.verdict == "saturated"
    assert (cell.failed, dict(cell.errors)) == (4, {"non_2xx": 4})
    assert cell.throughput_rps == pytest.approx(4.0 * 37 / 41)
    assert cell.reason.endswith("; 4 failed (non_2xx: 4)")


def test_an_expected_redirect_is_no_failure() -> None:
    redirected = replace(saying(BASE, failed=41, errors={"non_2xx": 41}), expect_status=302)
    cell = judged(redirected)
    assert (cell.failed, dict(cell.errors)) == (0, {})
    assert cell.throughput_rps == pytest.approx(4.0)


def test_an_unexpected_success_is_a_failure() -> None:
    found = outcome(replace(said(BASE), failed=30, errors={"non_2xx": 30}), 302)
    assert (found.failed, found.wrong, dict(found.errors)) == (11, 11, {"unexpected_2xx": 11})
    assert outcome(said(BASE), 302).success == 0


def test_a_span_that_never_ended_is_no_contradiction_in_a_timed_load() -> None:
    spans = TIMED.spans.spans
    hung = (*spans[:-1], Span(spans[-1].pid, spans[-1].start_ns, None))
    cell = judged(saying(replace(TIMED, spans=Spans(hung)), requests=40))
    assert cell.verdict == "saturated"
    assert cell.throughput_rps == pytest.approx(4.0, rel=0.02)
