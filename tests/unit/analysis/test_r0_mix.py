"""R0 of a mix: rounds of lone requests, each with the mean of its routes by weight."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.builders.analysis import evidence, saying
from workerlab.analysis.series import lone_r0_by_server


def test_rounds_are_what_its_mean_and_interval_are_of() -> None:
    data = evidence(connections=4, tool="fast")
    assert data.record is not None
    rounds = (0.01, 1.0, 0.03, 1.4, 0.02, 1.2)
    record = replace(data.record, lone_s=rounds, lone_weights=(0.9, 0.1))
    # The tool's own first request is of one route, and says nothing of the others
    found = lone_r0_by_server([replace(saying(data, lone_s=0.01), record=record)])[data.cell.server]
    assert found is not None
    means = [0.109, 0.167, 0.138]
    assert found.seconds == pytest.approx(sum(means) / 3)
    assert found.half_s is not None
    assert 0 < found.half_s < 0.1
