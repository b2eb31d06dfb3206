"""Drift and slow starts are found where service times change, and rarely elsewhere."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.builders.analysis import (
    NS,
    SYNC,
    derived,
    diagnosis_of,
    diagnosis_types,
    evidence,
    server,
    with_observations,
    with_record,
)
from tests.builders.noise import noisy
from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.diagnosis.drift import (
    LOOK_FOR_GROWTH,
    Drift,
    SlowFirst,
    count_slow_first,
    drift,
    drift_of,
)
from workerlab.analysis.diagnosis.shared import Shared
from workerlab.model.evidence import Pause

SEEDS = 200
STEADY: dict[str, Callable[[random.Random], float]] = {
    "sleeping": lambda chance: 0.05 + chance.random() / 1000,
    "exponential": lambda chance: chance.expovariate(20),
    "bimodal": lambda chance: 0.5 if chance.random() < 0.1 else 0.02,
    "heavy": lambda chance: 0.02 * chance.paretovariate(1.3),
    "log-normal": lambda chance: chance.lognormvariate(-3, 1.5),
}


def series(kind: str, seed: int, requests: int) -> list[float]:
    chance = random.Random(f"{kind} {seed}")
    return [STEADY[kind](chance) for _ in range(requests)]


@pytest.mark.parametrize("kind", STEADY)
@pytest.mark.parametrize("requests", [80, 320])
def test_random_service_times_rarely_count_as_change(kind: str, requests: int) -> None:
    """|z| >= 3 alone has a false alarm rate of 0.27 %, that is 3 of 200 in less than 2 % of runs;
    both conditions together have fewer."""
    drifts = sum(drift_of(series(kind, seed, requests)) is not None for seed in range(SEEDS))
    slow = sum(count_slow_first(series(kind, seed, requests)) > 0 for seed in range(SEEDS))
    assert drifts <= 2
    assert slow <= 2


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_drift_is_always_found(factor: float) -> None:
    for seed in range(20):
        times_s = [
            time_s * factor ** (n / 160) for n, time_s in enumerate(series("sleeping", seed, 160))
        ]
        assert (drift_of(times_s).z > 0) == (factor > 1)
        assert count_slow_first(times_s) == 0


def test_a_drift_needs_32_requests_and_a_change_of_a_tenth() -> None:
    assert drift_of([1 + i / 31 for i in range(31)]) is None
    assert drift_of([1 + i / 2000 for i in range(160)]) is None
    assert drift_of([1 + i / 1000 for i in range(160)]) is not None


@pytest.mark.parametrize("count", [5, 8, 30])
def test_a_slow_start_is_always_found(count: int) -> None:
    for seed in range(20):
        times_s = series("sleeping", seed, 160)
        times_s[:count] = (3 * time_s for time_s in times_s[:count])
        assert count_slow_first(times_s) == pytest.approx(count, abs=count / 4)


def test_a_slow_start_has_at_least_five_requests_and_may_include_a_fast_one() -> None:
    assert count_slow_first([*[1.05] * 4, *[0.05, 0.051] * 80]) == 0
    # For example because a pool already has one connection
    assert count_slow_first([0.05, *[1.05] * 7, *[0.05] * 232]) == 8


SLOW_START = evidence(SYNC, 8, rounds=20, delays=lambda number: 2.0 if 1 <= number <= 8 else 0.1)


def test_drift_and_slow_first_requests_are_diagnosed() -> None:
    drifting = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.1 + number / 400)
    diagnosis = diagnosis_of(Drift, drifting)
    assert diagnosis.last_s > 2 * diagnosis.first_s
    assert diagnosis.advice == (LOOK_FOR_GROWTH,)
    assert diagnosis_types(SLOW_START)[:1] == [SlowFirst]
    assert not {Drift, Shared} & set(diagnosis_types(SLOW_START))


def test_a_pause_at_the_start_is_not_a_slow_start() -> None:
    began_ns = SLOW_START.spans.spans[1].start_ns
    pause = Pause(began_ns + NS // 10, began_ns + 4 * NS)
    assert SlowFirst not in diagnosis_types(with_observations(SLOW_START, pauses=(pause,)))


def test_waits_for_a_core_that_delayed_lone_requests_most_are_no_drift() -> None:
    """While other programs run, 20 ms of CPU take 44 ms first, 75 ms last, and 80 ms alone."""
    trial = evidence(
        server(workers=1), 8, rounds=20, delay_s=0.08, delays=lambda number: 0.04 + number / 5000
    )
    assert drift(derived(trial)) is not None
    noise = noisy(trial, server_cores=0.36, server_wait=0.64, others=1.6)
    facts = derived(with_record(noise, lone_s=(0.08, 0.09)))
    assert core_wait(facts).share_lost < 0.01, "nothing waited, compared with slow lone requests"
    assert drift(facts) is None


def test_a_very_short_load_shows_no_drift() -> None:
    short = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.001 + number / 40_000)
    assert derived(short).window is not None
    assert Drift not in diagnosis_types(short)


@pytest.mark.parametrize(
    ("typical_s", "server_cores", "drifts"),
    [(0.1, 0.1, False), (0.3, 0.1, True), (0.3, 0.8, False)],
)
def test_while_other_programs_run_only_the_fastest_requests_show_a_drift(
    typical_s: float, server_cores: float, drifts: bool
) -> None:
    """In less than a second all requests may wait for a core, and if they compute, even the fastest
    take longer."""

    def delay_s(number: int) -> float:
        step = (0, 1, 2, 4, 3, 5, 6, 7)[min(7, number * 8 // 200)]
        return typical_s * (1.4 - 0.05 * step)

    quiet = evidence(SYNC, 4, rounds=50, delay_s=typical_s, delays=delay_s, tool="fast")
    others = 1.8 - server_cores
    busy = noisy(quiet, server_cores=server_cores, server_wait=0.8, others=others)
    assert (drift(derived(busy)) is not None) == drifts
    assert drift(derived(quiet)) is not None
