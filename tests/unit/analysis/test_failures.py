"""Failures are not work: shed, failed, and what is known of the successes alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as changed

from tests.builders.analysis import (
    NS,
    derived,
    diagnosed,
    evidence,
    judged,
    kinds,
    noted,
    saying,
    server,
    with_spans,
)
from tests.builders.open_model import opened
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.service import Failing, Shedding
from workerlab.analysis.failures import success_response, success_spans
from workerlab.analysis.open_closed import OpenVerdict, comparisons
from workerlab.analysis.open_model import ArrivalsRefused
from workerlab.model import Rate, Summary

EACH = 4  # one of so many succeeds
QUICK_S = 0.001


def answering(status: int, tool: str = "fast", *, quick: bool = True) -> TrialData:
    """All but each fourth request get this status, at once or like the others."""
    trial = evidence(server("gevent"), 8, tool=tool, delay_s=0.1)
    said = trial.measurement
    assert said is not None
    wrong = {place for place in range(len(trial.spans.spans)) if place % EACH}
    if quick:
        by = round(QUICK_S * NS)
        spans = (
            changed(one, end_ns=one.start_ns + by) if place in wrong else one
            for place, one in enumerate(trial.spans.spans)
        )
        trial = with_spans(trial, spans)
    timings = tuple(
        changed(one, status=status, cause="non_2xx", end_s=QUICK_S if quick else one.end_s)
        if place in wrong
        else one
        for place, one in enumerate(said.timings)
    )
    failed = {"failed": len(wrong), "errors": {"non_2xx": len(wrong)}, "rps": None}
    return saying(trial, timings=timings, **failed)


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_is_shedding(status: int) -> None:
    trial = answering(status)
    assert Failing not in kinds(trial)
    diagnosis = diagnosed(Shedding, trial)
    assert diagnosis.statuses == (str(status),)
    assert diagnosis.share == pytest.approx(0.75, abs=0.02)


def test_refusals_take_no_time_that_the_overhead_could_be_of() -> None:
    assert judged(answering(503)).ideal_s is None
    assert analyse("shed", {}, [answering(503)]).overhead is None
    assert judged(evidence()).ideal_s is not None


def test_another_status_is_a_failure() -> None:
    trial = answering(500)
    assert diagnosed(Failing, trial).statuses == ("500",)


def test_a_tool_that_does_not_tell_the_status() -> None:
    """What took hardly any time was refused."""
    shed = answering(503, tool="ab")
    assert diagnosed(Shedding, shed).tool == "ab"
    assert kinds(answering(500, tool="ab", quick=False))[0] is Failing


def test_times_are_of_successes_or_unknown() -> None:
    facts = derived(answering(503))
    assert success_response(facts).p50 == pytest.approx(0.1, rel=0.01)
    assert success_response(facts).max == pytest.approx(0.1, rel=0.01)
    spans = success_spans(facts)
    assert spans is not None
    assert {(one.end_ns or 0) - one.start_ns for one in spans} == {NS // 10}
    mixed = answering(503, tool="ab")
    assert success_response(derived(mixed)) == Summary()
    assert success_spans(derived(mixed)) is None
    note = noted(judged(mixed))["FailuresInTimes"]
    assert note.values["other"] == "fast"
    assert judged(mixed).breakdown.response_s is None
    assert "NoBreakdownOfFailures" in noted(judged(mixed))


def test_without_failures_they_are_the_tools() -> None:
    trial = evidence(server("gevent"), 8)
    facts = derived(trial)
    assert success_response(facts) == facts.measurement.response
    assert success_spans(facts) == facts.finished


def test_throughput_is_of_successes() -> None:
    cell = judged(answering(503))
    whole = evidence(server("gevent"), 8, tool="fast", delay_s=0.1)
    all_rps = judged(whole).throughput_rps
    assert all_rps is not None
    assert cell.throughput_rps == pytest.approx(all_rps / EACH, rel=0.35)


def test_a_server_that_refuses_does_not_keep_up_with_its_rate() -> None:
    trial = opened(Rate(rps=30), 30)
    said = trial.measurement
    assert said is not None
    timings = tuple(
        changed(one, status=503, cause="non_2xx", end_s=QUICK_S) if place % 2 else one
        for place, one in enumerate(said.timings)
    )
    failed = sum(one.cause is not None for one in timings)
    trial = saying(trial, timings=timings, failed=failed, errors={"non_2xx": failed})
    report = analyse("run", {}, [evidence(connections=4, tool="fast", delay_s=0.1), trial])
    found = report.cells[-1]
    assert found.verdict == "saturated"
    assert type(found.reason) is ArrivalsRefused
    assert found.reason.values["share"] == pytest.approx(0.5, abs=0.01)
    assert found.response.p50 == pytest.approx(0.1)
    (compared,) = comparisons(report.cells)
    assert isinstance(compared.outcome, OpenVerdict)  # no backlog
