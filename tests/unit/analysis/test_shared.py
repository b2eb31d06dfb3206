"""What requests share: found where all are slower together, not where some are slow anyway."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from harness.analysis import TrialData
from harness.model import ProcessSample
from tests.builders.analysis import evidence, judged, recording, saying, seeing, server
from tests.unit.analysis.test_drift import STEADY

ASYNC = server("gevent", 2)


def trial(delays: Callable[[int], float], lone_s: tuple[float, ...]) -> TrialData:
    made = evidence(ASYNC, 8, rounds=20, delay_s=0.05, delays=delays)
    return recording(saying(made, lone_s=None), lone_s=lone_s)


def codes(made: TrialData) -> list[str]:
    return [one.code for one in judged(made).findings]


def test_a_lock_makes_all_of_them_slow() -> None:
    made = trial(lambda number: 0.2 + number % 3 / 1000, (0.05, 0.051, 0.05, 0.052, 0.05))
    found = judged(made).diagnosis
    assert found is not None
    assert found.code == "diagnosis.shared"
    assert found.values["service_s"] == pytest.approx(0.201, rel=0.01)
    assert found.values["lone_s"] == pytest.approx(0.052)


@pytest.mark.parametrize("kind", STEADY)
@pytest.mark.parametrize("lone", [1, 3, 5, 20])
def test_what_varies_by_itself_shares_nothing(kind: str, lone: int) -> None:
    """Where loads and lone requests are alike, in 1 % of the cases at most, of 50 in 2."""
    wrong = 0
    for seed in range(50):
        chance = random.Random(f"{kind} {lone} {seed}")
        alone = tuple(STEADY[kind](chance) for _ in range(lone))
        wrong += "diagnosis.shared" in codes(trial(lambda _, c=chance: STEADY[kind](c), alone))
    assert wrong <= 2


def test_who_computes_shares_the_cpu() -> None:
    made = trial(lambda number: 0.2, (0.05,) * 5)
    busy = tuple(
        ProcessSample(one.at_ns, at_s * 1.9, 0.0, at_s * 2.0, None, None)
        for one in made.observations.processes
        for at_s in ((one.at_ns - made.observations.processes[0].at_ns) / 1e9,)
    )
    found = codes(seeing(made, processes=busy))
    assert "diagnosis.shared" not in found
    assert "diagnosis.busy_machine" in found
