"""When a comparison ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from workerlab.analysis.comparison import METRICS, Change
from workerlab.experiments.compare import options
from workerlab.experiments.compare.pairs import Group, GroupChanges
from workerlab.model import Cell, Server

CELL = Cell(Server("sync", 1, 1, 2048, 1000), "fast", 1)
SAME = [Change(one, 4, 1.0, 1.0, 1.0, 0.99, 1.01, "same") for one in METRICS]


def compared(unknown: Sequence[str], *outcomes: options.Outcome) -> GroupChanges:
    found = [
        replace(one, word="inconclusive") if one.metric.name in unknown else one for one in SAME
    ]
    limit = options.Limit("response_p95_s", True, 0.1, "p95>+10%")
    return GroupChanges(Group(CELL, CELL), (), found, (), [(limit, each) for each in outcomes])


@pytest.mark.parametrize("unknown", [(), ("start_s", "stop_s")])
def test_it_ends_when_all_that_is_measured_of_requests_is_known(unknown: Sequence[str]) -> None:
    assert compared(unknown).decided
    assert not compared([*unknown, "cpu_s"]).decided


def test_with_limits_it_ends_when_they_are_known() -> None:
    assert compared(["cpu_s"], "kept", "exceeded").decided
    assert not compared((), "kept", "inconclusive").decided
