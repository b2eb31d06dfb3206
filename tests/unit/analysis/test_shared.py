"""Shared resources: found if all requests are slower together, not if some are always slow."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.builders.analysis import (
    cell_of,
    diagnosis_of,
    diagnosis_types,
    evidence,
    server,
    with_measurement,
    with_observations,
    with_record,
)
from tests.unit.analysis.test_drift import STEADY
from workerlab.analysis import TrialData, analyse
from workerlab.analysis.diagnosis.cpu import BusyMachine
from workerlab.analysis.diagnosis.shared import Shared, SharingEvidence
from workerlab.analysis.diagnosis.slots import WaitingForSlots
from workerlab.model.evidence import ProcessSample
from workerlab.model.result import Result

ASYNC = server("gevent", 2)
FAST_SHARE = 0.55


def trial(delays: Callable[[int], float], lone_s: tuple[float, ...]) -> TrialData:
    data = evidence(ASYNC, 8, rounds=20, delay_s=0.05, delays=delays)
    return with_record(with_measurement(data, lone_s=None), lone_s=lone_s)


def test_requests_slower_than_lone_ones_share_something() -> None:
    data = trial(lambda number: 0.2 + number % 3 / 1000, (0.05, 0.051, 0.05, 0.052, 0.05))
    diagnosis = diagnosis_of(Shared, data)
    assert diagnosis.service_s == pytest.approx(0.201, rel=0.01)
    assert diagnosis.lone_s == pytest.approx(0.05)


@pytest.mark.parametrize("kind", STEADY)
@pytest.mark.parametrize("lone", [1, 5, 20])
def test_varying_service_times_are_not_sharing(kind: str, lone: int) -> None:
    """Load and lone requests have the same distribution: at most 1 of 25 cases is wrong. Another
    may be invalid, if a long request is the last one."""
    wrong = valid = 0
    for seed in range(25):
        chance = random.Random(f"{kind} {lone} {seed}")
        alone = tuple(STEADY[kind](chance) for _ in range(lone))
        cell = cell_of(trial(lambda _, c=chance: STEADY[kind](c), alone))
        if isinstance(cell, Result):
            valid += 1
            wrong += any(isinstance(finding, Shared) for finding in cell.findings)
    assert wrong <= 1
    assert valid >= 24


def test_computing_requests_share_the_cpu_only() -> None:
    data = trial(lambda number: 0.2, (0.05,) * 5)
    busy = tuple(
        ProcessSample(sample.at_ns, at_s * 1.9, 0.0, at_s * 2.0, None, None)
        for sample in data.observations.processes
        for at_s in ((sample.at_ns - data.observations.processes[0].at_ns) / 1e9,)
    )
    diagnoses = diagnosis_types(with_observations(data, processes=busy))
    assert Shared not in diagnoses
    assert BusyMachine in diagnoses


# --- by other levels ------------------------------------------------------------------------------


def cells_at(worker_class: str, *levels: tuple[int, Callable[[int], float]]) -> list[Result]:
    """Lone requests of 50 ms, and levels of connections with their service times."""
    trials = [
        with_measurement(evidence(server(worker_class), n, rounds=40, delays=delays), lone_s=None)
        for n, delays in levels
    ]
    trials = [with_record(trial, lone_s=(0.05,) * 5) for trial in trials]
    return list(analyse("run", {}, trials).cells)


def mostly_fast(mean_s: float) -> Callable[[int], float]:
    """Service times of which most equal a lone one, so ranks show nothing."""
    chance = random.Random("lucky")
    slow_s = 0.05 + (mean_s - 0.05) / (1 - FAST_SHARE)
    return lambda _: 0.05 if chance.random() < FAST_SHARE else slow_s


def evidence_of(cell: Result) -> SharingEvidence:
    (shared,) = [finding for finding in cell.findings if isinstance(finding, Shared)]
    return shared.longer


def test_service_times_are_compared_with_fewer_connections() -> None:
    few, many = cells_at("gevent", (2, mostly_fast(0.05)), (16, mostly_fast(0.275)))
    assert Shared not in map(type, few.findings)
    diagnosis = evidence_of(many)
    assert (diagnosis.fewer, diagnosis.more) == (2, None)
    assert diagnosis.others_s == pytest.approx(0.05, rel=0.01)


def test_no_more_throughput_with_free_slots_is_sharing() -> None:
    few, many = cells_at("sync", (2, mostly_fast(0.1)), (8, mostly_fast(0.2)))
    assert many.verdict == "saturated"
    assert few.verdict == "saturated"
    assert evidence_of(few).more == 8
    assert evidence_of(many).fewer == 2


@pytest.mark.parametrize("kind", STEADY)
def test_varying_service_times_at_several_levels_are_not_sharing(kind: str) -> None:
    wrong = 0
    for seed in range(10):
        chance = random.Random(f"{kind} {seed}")
        delays = lambda _, c=chance: STEADY[kind](c)  # noqa: E731
        cells = cells_at("gevent", (2, delays), (16, delays))
        wrong += any(
            isinstance(finding, Shared) and finding.longer.fewer
            for cell in cells
            for finding in cell.findings
        )
    assert wrong <= 1


def test_more_slots_are_not_advised_if_each_is_held_longer() -> None:
    for delays, advised in ((mostly_fast(0.275), False), (lambda _: 0.05, True)):
        (cell,) = cells_at("sync", (16, delays))
        (waiting,) = [finding for finding in cell.findings if isinstance(finding, WaitingForSlots)]
        assert bool(waiting.advice) is advised
