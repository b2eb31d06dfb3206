"""No sentence contradicts a number of its own cell: over all recorded runs."""

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


def rests_on_nothing(result: Result) -> bool:
    """Whether it has a verdict although others took the cores, and not all slots were taken."""
    wait, load = result.core_wait, result.trial.cell
    disturbed = wait is not None and wait.precludes_verdict and load.concurrency > 1
    filled = (result.occupancy or 0.0) >= FULL_OCCUPANCY
    return disturbed and load.rate is None and not filled and result.verdict != "inconclusive"


@pytest.mark.parametrize("name", ARCHIVES)
def test_no_sentence_contradicts_a_number_of_its_cell(name: str) -> None:
    report = report_on(name)
    for result in valid_results(report.cells):
        parts = result.breakdown
        assert not rests_on_nothing(result), (result.trial.key, result.verdict)
        waited_s = (parts.accept_queue_s or 0.0) + (parts.in_worker_s or 0.0)
        for finding in within((result.reason, result.findings)):
            sentence, where = text(finding), (result.trial.key, text(finding))
            if "nothing wait" in sentence or "no request wait" in sentence:
                assert waited_s <= MAX_WAIT_SHARE * (parts.response_s or 1.0), where
            if finding == NOTHING_WAITED:
                assert None not in (parts.accept_queue_s, parts.in_worker_s), where
            if isinstance(finding, SlotsFilled) and finding.verb == "filled":
                assert (result.occupancy or 1.0) >= MIN_FILLED_OCCUPANCY, where
    for finding in sweep_document(report).findings:
        if isinstance(finding, SeriesLimits):
            closed = (result for result in report.cells if result.trial.cell.rate is None)
            of_class = [result for result in closed if result.trial.key in finding.trials]
            assert finding.because in (None, getattr(finding.why, "below_slots", None)), text(
                finding
            )
            levels = [c.trial.cell.concurrency for c in of_class if c.verdict == "saturated"]
            assert finding.saturated_from == min(levels, default=None), text(finding)


def test_a_class_has_one_cause() -> None:
    """The cell with the most connections cannot tell what a lower one shows."""
    busy = BusyMachine(connections=8, rps=4.0, how="its 2 cores were 100 % busy", advice=())
    unknown = Unexplained(
        connections=16, response_s=4.0, lone_s=1.0, service_s=None, waiting=None, busy=0.75
    )
    findings = {4: (), 8: (busy,), 16: (unknown,)}
    cells = [
        replace(cell(trial("sync", n)), findings=diagnoses) for n, diagnoses in findings.items()
    ]
    cells[-1] = replace(cells[-1], diagnosis=unknown)
    sync = replace(group("sync", knee=2.0), diagnosed_trial=cells[-1].trial.key)
    report = Report("by-hand", {}, None, tuple(cells), (sync,), {})
    (sentence,) = [
        text(item) for item in sweep_document(report).findings if item.code == "SeriesLimits"
    ]
    assert "(CPU is the limit)" in sentence
    assert "The machine is the limit: 8 connections" in sentence
    assert "unknown" not in sentence
