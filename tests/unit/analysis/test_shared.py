"""What requests share: found where all are slower together, not where some are slow anyway."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.builders.analysis import diagnosed, evidence, kinds, recording, saying, seeing, server
from tests.unit.analysis.test_drift import STEADY
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.cpu import BusyMachine
from workerlab.analysis.diagnosis.service import Shared, SharingEvidence
from workerlab.analysis.diagnosis.slots import WaitingForSlots
from workerlab.model import CellResult, ProcessSample

ASYNC = server("gevent", 2)
LUCKY = 0.55


def trial(delays: Callable[[int], float], lone_s: tuple[float, ...]) -> TrialData:
    made = evidence(ASYNC, 8, rounds=20, delay_s=0.05, delays=delays)
    return recording(saying(made, lone_s=None), lone_s=lone_s)


def test_a_lock_makes_all_of_them_slow() -> None:
    made = trial(lambda number: 0.2 + number % 3 / 1000, (0.05, 0.051, 0.05, 0.052, 0.05))
    diagnosis = diagnosed(Shared, made)
    assert diagnosis.service_s == pytest.approx(0.201, rel=0.01)
    assert diagnosis.lone_s == pytest.approx(0.05)


@pytest.mark.parametrize("kind", STEADY)
@pytest.mark.parametrize("lone", [1, 5, 20])
def test_what_varies_by_itself_shares_nothing(kind: str, lone: int) -> None:
    """Where loads and lone requests are alike, in 1 % of the cases at most, of 25 in 1."""
    wrong = 0
    for seed in range(25):
        chance = random.Random(f"{kind} {lone} {seed}")
        alone = tuple(STEADY[kind](chance) for _ in range(lone))
        wrong += Shared in kinds(trial(lambda _, c=chance: STEADY[kind](c), alone))
    assert wrong <= 1


def test_who_computes_shares_the_cpu() -> None:
    made = trial(lambda number: 0.2, (0.05,) * 5)
    busy = tuple(
        ProcessSample(one.at_ns, at_s * 1.9, 0.0, at_s * 2.0, None, None)
        for one in made.observations.processes
        for at_s in ((one.at_ns - made.observations.processes[0].at_ns) / 1e9,)
    )
    diagnosis = kinds(seeing(made, processes=busy))
    assert Shared not in diagnosis
    assert BusyMachine in diagnosis


# --- by other levels ------------------------------------------------------------------------------


def swept(worker_class: str, *levels: tuple[int, Callable[[int], float]]) -> list[CellResult]:
    """Lone requests of 50 ms; where so many connections are, of so many seconds each."""
    trials = [
        saying(evidence(server(worker_class), n, rounds=40, delays=delays), lone_s=None)
        for n, delays in levels
    ]
    recorded = [recording(one, lone_s=(0.05,) * 5) for one in trials]
    return list(analyse("run", {}, recorded).cells)


def lucky(mean_s: float) -> Callable[[int], float]:
    """Most requests are as fast as a lone one, so that ranks say nothing."""
    chance = random.Random("lucky")
    slow_s = 0.05 + (mean_s - 0.05) / (1 - LUCKY)
    return lambda _: 0.05 if chance.random() < LUCKY else slow_s


def longer(cell: CellResult) -> SharingEvidence:
    (found,) = [finding for finding in cell.findings if isinstance(finding, Shared)]
    return found.longer


def test_longer_than_with_fewer_connections() -> None:
    few, many = swept("gevent", (2, lucky(0.05)), (16, lucky(0.275)))
    assert Shared not in map(type, few.findings)
    diagnosis = longer(many)
    assert (diagnosis.fewer, diagnosis.more) == (2, None)
    assert diagnosis.others_s == pytest.approx(0.05, rel=0.01)


def test_no_more_throughput_although_slots_are_free() -> None:
    """Whoever has 4 slots and gets as much with 2 connections shares something else."""
    few, many = swept("sync", (2, lucky(0.1)), (8, lucky(0.2)))
    assert many.verdict == "saturated"
    assert few.verdict == "saturated"
    assert longer(few).more == 8
    assert longer(many).fewer == 2


@pytest.mark.parametrize("kind", STEADY)
def test_other_levels_of_what_varies_by_itself_show_nothing(kind: str) -> None:
    wrong = 0
    for seed in range(10):
        chance = random.Random(f"{kind} {seed}")
        drawn = lambda _, c=chance: STEADY[kind](c)  # noqa: E731
        cells = swept("gevent", (2, drawn), (16, drawn))
        wrong += any(
            isinstance(finding, Shared) and finding.longer.fewer
            for cell in cells
            for finding in cell.findings
        )
    assert wrong <= 1


def test_more_slots_are_not_advised_where_each_is_held_for_longer() -> None:
    """Without a cause that anything shows, and without an advice that may be wrong."""
    (cell,) = swept("sync", (16, lucky(0.275)))
    (waiting,) = [finding for finding in cell.findings if isinstance(finding, WaitingForSlots)]
    assert waiting.advice == ()
    (plain,) = swept("sync", (16, lambda _: 0.05))
    (waiting,) = [finding for finding in plain.findings if isinstance(finding, WaitingForSlots)]
    assert waiting.advice
