"""In all recorded runs, no sentence contradicts a number of its own cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders.html import cell, group, trial
from tests.builders.runs import ARCHIVES, recorded
from workerlab import run_store
from workerlab.analysis.breakdown import NOTHING_WAITED
from workerlab.analysis.class_findings import SeriesLimits
from workerlab.analysis.diagnosis.cpu import BusyMachine
from workerlab.analysis.diagnosis.slots import Unexplained
from workerlab.analysis.slots import FULL_OCCUPANCY
from workerlab.analysis.trials import valid_results
from workerlab.analysis.verdict import SlotsFilled
from workerlab.experiments.reading import report_of
from workerlab.experiments.sweep.document import sweep_document
from workerlab.finding import Finding
from workerlab.model.result import Report, Result
from workerlab.report.values import text

MAX_WAIT_SHARE = 0.02  # of the response
MIN_FILLED_OCCUPANCY = 0.95
LOAD_COMMANDS = ("sweep", "advise", "compare", "demo", "ladder")


def within(value: Any) -> Iterator[Finding]:
    """All findings in a value, nested ones included."""
    if isinstance(value, Finding):
        yield value
        for inner in value.values.values():
            yield from within(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from within(inner)


def report_on(name: str) -> Report:
    run = run_store.load(recorded(name))
    return report_of(run) if run.plan.kind in LOAD_COMMANDS else Report("", {}, None, (), (), {})


def has_unfounded_verdict(result: Result) -> bool:
    """Whether it has a verdict although other programs used the cores, and a slot was free."""
    wait, load = result.core_wait, result.trial.cell
    disturbed = wait is not None and wait.precludes_verdict and load.concurrency > 1
    filled = (result.occupancy or 0.0) >= FULL_OCCUPANCY
    return disturbed and load.rate is None and not filled and result.verdict != "inconclusive"


@pytest.mark.parametrize("name", ARCHIVES)
def test_no_sentence_contradicts_a_number_of_its_cell(name: str) -> None:
    report = report_on(name)
    for result in valid_results(report.cells):
        parts = result.breakdown
        assert not has_unfounded_verdict(result), (result.trial.key, result.verdict)
        waited_s = (parts.accept_queue_s or 0.0) + (parts.in_worker_s or 0.0)
        for finding in within((result.reason, result.findings)):
            sentence, where = text(finding), (result.trial.key, text(finding))
            if "nothing wait" in sentence or "no request wait" in sentence:
                assert waited_s <= MAX_WAIT_SHARE * (parts.response_s or 1.0), where
            if finding == NOTHING_WAITED:
                assert None not in (parts.accept_queue_s, parts.in_worker_s), where
            if isinstance(finding, SlotsFilled) and finding.verb == "filled":
                assert (result.occupancy or 1.0) >= MIN_FILLED_OCCUPANCY, where
    closed = [result for result in report.cells if result.trial.cell.rate is None]
    for finding in sweep_document(report).findings:
        if isinstance(finding, SeriesLimits):
            assert finding.because in (None, getattr(finding.why, "below_slots", None)), finding
            saturated_levels = [
                result.trial.cell.concurrency
                for result in closed
                if result.trial.key in finding.trials and result.verdict == "saturated"
            ]
            assert finding.saturated_from == min(saturated_levels, default=None), finding


def test_a_class_has_one_cause() -> None:
    """A lower level shows the cause; the highest one does not."""
    busy = BusyMachine(connections=8, rps=4.0, how="its 2 cores were 100 % busy", advice=())
    unknown = Unexplained(
        connections=16, response_s=4.0, lone_s=1.0, service_s=None, waiting=None, busy=0.75
    )
    four, eight, sixteen = (cell(trial("sync", connections)) for connections in (4, 8, 16))
    eight = replace(eight, findings=(busy,))
    sixteen = replace(sixteen, findings=(unknown,), diagnosis=unknown)
    sync = replace(group("sync", knee=2.0), diagnosed_trial=sixteen.trial.key)
    report = Report("by-hand", {}, None, (four, eight, sixteen), (sync,), {})
    (sentence,) = [
        text(item) for item in sweep_document(report).findings if item.code == "SeriesLimits"
    ]
    assert "(CPU is the limit)" in sentence
    assert "The machine is the limit: 8 connections" in sentence
    assert "unknown" not in sentence
