"""R0 of a mix: the mean over rounds of lone requests, weighted by route."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.analysis import evidence, with_measurement
from workerlab.analysis.series import lone_r0_by_server


def test_mean_and_interval_of_r0_are_over_weighted_rounds() -> None:
    data = evidence(connections=4, tool="fast")
    rounds = (0.01, 1.0, 0.03, 1.4, 0.02, 1.2)
    record = replace(data.record, lone_s=rounds, lone_weights=(0.9, 0.1))
    # The tool's own first request is of one route only, so it does not count
    r0 = lone_r0_by_server([replace(with_measurement(data, lone_s=0.01), record=record)])[
        data.cell.server
    ]
    means = [0.109, 0.167, 0.138]
    assert r0.seconds == pytest.approx(sum(means) / 3)
    assert 0 < r0.half_s < 0.1
