"""Failed and shed requests, and results that count only successes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    cell_of,
    derived,
    diagnosis_of,
    diagnosis_types,
    evidence,
    notes_by_code,
    server,
    with_failures,
    with_measurement,
    with_spans,
)
from tests.builders.open_model import open_trial
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.failing import Failing, Shedding, success_response
from workerlab.analysis.open_closed import OpenVerdict, comparisons
from workerlab.analysis.open_model import ArrivalsRefused
from workerlab.model.evidence import Summary
from workerlab.model.plan import Rate

SUCCESS_INTERVAL = 4  # one request of four succeeds
QUICK_S = 0.001


def answering(status: int, tool: str = "fast", *, quick: bool = True) -> TrialData:
    """Three of four requests get this status, immediately or after the usual time."""
    trial = evidence(server("gevent"), 8, tool=tool, delay_s=0.1)

    def fails(number: int) -> bool:
        return number % SUCCESS_INTERVAL > 0

    if quick:
        quick_ns = round(QUICK_S * NS)
        spans = (
            replace(span, end_ns=span.start_ns + quick_ns) if fails(number) else span
            for number, span in enumerate(trial.spans.spans)
        )
        trial = with_spans(trial, spans)
    trial = with_failures(trial, fails, status=status, end_s=QUICK_S if quick else None)
    return with_measurement(trial, rps=None)


@pytest.mark.parametrize("status", [429, 503])
def test_refusals_are_shedding(status: int) -> None:
    trial = answering(status)
    assert Failing not in diagnosis_types(trial)
    diagnosis = diagnosis_of(Shedding, trial)
    assert diagnosis.statuses == (str(status),)
    assert diagnosis.share == pytest.approx(0.75, abs=0.02)


def test_a_load_with_refusals_has_no_overhead() -> None:
    assert cell_of(answering(503)).ideal_s is None
    assert analyse("shed", {}, [answering(503)]).overhead is None
    assert cell_of(evidence()).ideal_s is not None


def test_another_status_is_a_failure() -> None:
    assert diagnosis_of(Failing, answering(500)).statuses == ("500",)


@pytest.mark.parametrize("causes", [("status", "body"), ("body", "status")])
def test_refusals_are_subtracted_from_their_own_cause(causes: tuple[str, str]) -> None:
    refused, other = causes
    trial = answering(503)
    timings, counts = list(trial.measurement.timings), dict.fromkeys(causes, 0)
    for number, timing in enumerate(timings):
        if timing.cause is not None:
            is_refused = number % (2 * SUCCESS_INTERVAL) < SUCCESS_INTERVAL
            cause, status = (refused, 503) if is_refused else (other, 200)
            timings[number] = replace(timing, cause=cause, status=status)
            counts[cause] += 1
    trial = with_measurement(trial, timings=tuple(timings), errors=counts)
    (failing,) = (item for item in cell_of(trial).findings if isinstance(item, Failing))
    assert failing.causes == {other: counts[other]}


def test_without_statuses_quick_failures_are_shedding() -> None:
    assert diagnosis_of(Shedding, answering(503, tool="ab")).tool == "ab"
    assert diagnosis_types(answering(500, tool="ab", quick=False))[0] is Failing


def test_times_are_those_of_successes_or_unknown() -> None:
    facts = derived(answering(503))
    response = success_response(facts)
    assert (response.p50, response.max) == pytest.approx((0.1, 0.1), rel=0.01)
    assert {span.end_ns - span.start_ns for span in facts.success_spans} == {NS // 10}
    trial = answering(503, tool="ab")
    assert success_response(derived(trial)) == Summary()
    assert derived(trial).success_spans is None
    cell = cell_of(trial)
    assert notes_by_code(cell)["FailuresInTimes"].values["other"] == "fast"
    assert cell.breakdown.response_s is None
    assert "NoBreakdownOfFailures" in notes_by_code(cell)


def test_throughput_counts_only_successes() -> None:
    total_rps = cell_of(evidence(server("gevent"), 8, tool="fast", delay_s=0.1)).throughput_rps
    success_rps = cell_of(answering(503)).throughput_rps
    assert success_rps == pytest.approx(total_rps / SUCCESS_INTERVAL, rel=0.35)


def test_a_server_that_refuses_arrivals_is_saturated() -> None:
    trial = open_trial(Rate(rps=30), 30)
    trial = with_failures(trial, lambda number: number % 2 == 1, end_s=QUICK_S)
    report = analyse("run", {}, [evidence(connections=4, tool="fast", delay_s=0.1), trial])
    cell = report.cells[-1]
    assert cell.verdict == "saturated"
    assert type(cell.reason) is ArrivalsRefused
    assert cell.reason.values["share"] == pytest.approx(0.5, abs=0.01)
    assert cell.response.p50 == pytest.approx(0.1)
    (comparison,) = comparisons(report.cells)
    assert isinstance(comparison.outcome, OpenVerdict)  # no backlog
