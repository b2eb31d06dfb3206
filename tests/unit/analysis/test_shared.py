"""Shared resources: found if all requests slow each other down, not if some are always slow."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from tests.builders.analysis import (
    cell_of,
    diagnosis_of,
    diagnosis_types,
    evidence,
    report_of,
    server,
    with_lone,
    with_observations,
)
from tests.unit.analysis.test_drift import STEADY
from workerlab.analysis import TrialData
from workerlab.analysis.diagnosis.cpu import BusyMachine
from workerlab.analysis.diagnosis.shared import Shared, SharingEvidence
from workerlab.analysis.diagnosis.slots import WaitingForSlots
from workerlab.model.evidence import ProcessSample
from workerlab.model.result import Result


def trial(delays: Callable[[int], float], lone_s: tuple[float, ...]) -> TrialData:
    settings = server("gevent", 2)
    return with_lone(evidence(settings, 8, rounds=20, delay_s=0.05, delays=delays), lone_s)


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
        draw = partial(STEADY[kind], random.Random(f"{kind} {lone} {seed}"))
        lone_s = tuple(draw() for _ in range(lone))
        cell = cell_of(trial(lambda _, draw=draw: draw(), lone_s))
        if isinstance(cell, Result):
            valid += 1
            wrong += Shared in map(type, cell.findings)
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
    trials = (evidence(server(worker_class), n, rounds=40, delays=delays) for n, delays in levels)
    return list(report_of(*(with_lone(trial, (0.05,) * 5) for trial in trials)).cells)


def mostly_fast(mean_s: float) -> Callable[[int], float]:
    """Service times that mostly equal a lone one, so their ranks are inconclusive."""
    chance, fast_share = random.Random("lucky"), 0.55
    slow_s = 0.05 + (mean_s - 0.05) / (1 - fast_share)
    return lambda _: 0.05 if chance.random() < fast_share else slow_s


def evidence_of(cell: Result) -> SharingEvidence:
    (shared,) = [finding for finding in cell.findings if isinstance(finding, Shared)]
    return shared.longer


def test_service_times_are_compared_with_fewer_connections() -> None:
    low, high = cells_at("gevent", (2, mostly_fast(0.05)), (16, mostly_fast(0.275)))
    assert Shared not in map(type, low.findings)
    diagnosis = evidence_of(high)
    assert (diagnosis.fewer, diagnosis.more) == (2, None)
    assert diagnosis.others_s == pytest.approx(0.05, rel=0.01)


def test_no_more_throughput_with_free_slots_is_sharing() -> None:
    low, high = cells_at("sync", (2, mostly_fast(0.1)), (8, mostly_fast(0.2)))
    assert (low.verdict, high.verdict) == ("saturated", "saturated")
    assert (evidence_of(low).more, evidence_of(high).fewer) == (8, 2)


@pytest.mark.parametrize("kind", STEADY)
def test_varying_service_times_at_several_levels_are_not_sharing(kind: str) -> None:
    def is_wrong(seed: int) -> bool:
        chance = random.Random(f"{kind} {seed}")
        levels = [(connections, lambda _: STEADY[kind](chance)) for connections in (2, 16)]
        findings = [finding for cell in cells_at("gevent", *levels) for finding in cell.findings]
        return any(isinstance(finding, Shared) and finding.longer.fewer for finding in findings)

    assert sum(map(is_wrong, range(10))) <= 1


def test_more_slots_are_not_advised_if_each_is_held_longer() -> None:
    for delays, advised in ((mostly_fast(0.275), False), (lambda _: 0.05, True)):
        (cell,) = cells_at("sync", (16, delays))
        (waiting,) = [finding for finding in cell.findings if isinstance(finding, WaitingForSlots)]
        assert bool(waiting.advice) is advised
