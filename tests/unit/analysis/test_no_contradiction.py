"""No sentence contradicts a number of its own cell: over all recorded runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.builders.runs import ARCHIVES, recorded
from workerlab import run_store
from workerlab.analysis.breakdown import NOTHING_WAITED
from workerlab.analysis.verdict import SlotsFilled
from workerlab.experiments.reading import report_of
from workerlab.finding import Finding
from workerlab.model import CellResult
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


def cells_of(name: str) -> list[CellResult]:
    run = run_store.load(recorded(name))
    return list(report_of(run).cells) if run.plan.kind in LOAD_COMMANDS else []


@pytest.mark.parametrize("name", ARCHIVES)
def test_no_sentence_contradicts_a_number_of_its_cell(name: str) -> None:
    for cell in cells_of(name):
        parts = cell.breakdown
        waited_s = (parts.accept_queue_s or 0.0) + (parts.in_worker_s or 0.0)
        for finding in within((cell.reason, cell.findings)):
            sentence, where = text(finding), (cell.trial.key, text(finding))
            if "nothing wait" in sentence or "no request wait" in sentence:
                assert waited_s <= MAX_WAIT_SHARE * (parts.response_s or 1.0), where
            if finding == NOTHING_WAITED:
                assert None not in (parts.accept_queue_s, parts.in_worker_s), where
            if isinstance(finding, SlotsFilled) and finding.verb == "filled":
                assert (cell.occupancy or 1.0) >= MIN_FILLED_OCCUPANCY, where
