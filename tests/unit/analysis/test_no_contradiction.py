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

NOTHING, ALL = 0.02, 0.95  # of the response; of the slots
LOADED = ("sweep", "advise", "compare", "demo", "ladder")


def within(value: Any) -> Iterator[Finding]:
    """A finding and all that it is made of."""
    if isinstance(value, Finding):
        yield value
        for inner in value.values.values():
            yield from within(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from within(inner)


def told(cell: CellResult) -> list[Finding]:
    return [*within(cell.reason), *within(cell.findings)]


def cells_of(name: str) -> list[CellResult]:
    run = run_store.load(recorded(name))
    return list(report_of(run).cells) if run.plan.kind in LOADED else []


@pytest.mark.parametrize("name", ARCHIVES)
def test_nothing_is_said_to_wait_only_where_hardly_anything_did(name: str) -> None:
    for cell in cells_of(name):
        parts = cell.breakdown
        waited_s = (parts.accept_queue_s or 0.0) + (parts.in_worker_s or 0.0)
        for reason in told(cell):
            words = text(reason)
            if "nothing wait" in words or "no request wait" in words:
                assert waited_s <= NOTHING * (parts.response_s or 1.0), (cell.trial.key, words)
            if reason == NOTHING_WAITED:
                assert None not in (parts.accept_queue_s, parts.in_worker_s), cell.trial.key
            if isinstance(reason, SlotsFilled) and reason.verb == "filled":
                assert (cell.occupancy or 1.0) >= ALL, (cell.trial.key, words)
