"""When a comparison ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from workerlab.experiments.compare import options
from workerlab.experiments.compare.comparison import METRICS, Change
from workerlab.experiments.compare.pairs import Group, GroupChanges
from workerlab.model import Cell, Server

CELL = Cell(Server("sync", 1, 1, 2048, 1000), "fast", 1)
SAME = [Change(metric, 4, 1.0, 1.0, 1.0, 0.99, 1.01, "same") for metric in METRICS]


def compared(inconclusive: Sequence[str], *outcomes: options.Outcome) -> GroupChanges:
    changes = [
        replace(change, word="inconclusive") if change.metric.name in inconclusive else change
        for change in SAME
    ]
    limit = options.Limit("response_p95_s", True, 0.1, "p95>+10%")
    limits = [(limit, outcome) for outcome in outcomes]
    return GroupChanges(Group(CELL, CELL), (), changes, (), limits)


@pytest.mark.parametrize("inconclusive", [(), ("start_s", "stop_s")])
def test_it_ends_when_all_metrics_of_requests_are_decided(inconclusive: Sequence[str]) -> None:
    assert compared(inconclusive).decided
    assert not compared([*inconclusive, "cpu_s"]).decided


def test_with_limits_it_ends_when_they_are_decided() -> None:
    assert compared(["cpu_s"], "kept", "exceeded").decided
    assert not compared((), "kept", "inconclusive").decided
