"""Service times that change during a load: real changes, and false alarms."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    SYNC,
    derived,
    diagnosis_of,
    diagnosis_types,
    evidence,
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
        times = series("sleeping", seed, 160)
        changing = [time_s * factor ** (i / 160) for i, time_s in enumerate(times)]
        change = drift_of(changing)
        assert (change.z > 0) == (factor > 1)
        assert count_slow_first(changing) == 0


def test_a_drift_needs_32_requests_and_a_change_of_a_tenth() -> None:
    assert drift_of([1 + i / 31 for i in range(31)]) is None
    assert drift_of([1 + i / 2000 for i in range(160)]) is None
    assert drift_of([1 + i / 1000 for i in range(160)]) is not None


@pytest.mark.parametrize("first", [5, 8, 30])
def test_slow_at_first_is_always_found(first: int) -> None:
    for seed in range(20):
        times = series("sleeping", seed, 160)
        slow = [time_s * (3 if i < first else 1) for i, time_s in enumerate(times)]
        assert count_slow_first(slow) == pytest.approx(first, abs=first / 4)


def test_slow_at_first_allows_one_fast_request() -> None:
    """For example because a pool already has one connection."""
    assert count_slow_first([0.05, *[1.05] * 7, *[0.05] * 232]) == 8


def test_four_slow_requests_are_too_few() -> None:
    assert count_slow_first([*[1.05] * 4, *[0.05, 0.051] * 80]) == 0


def test_drift_and_slow_first_requests_are_diagnosed() -> None:
    drifting = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.1 + number / 400)
    diagnosis = diagnosis_of(Drift, drifting)
    assert diagnosis.last_s > 2 * diagnosis.first_s
    assert diagnosis.advice == (LOOK_FOR_GROWTH,)
    slow = evidence(SYNC, 8, rounds=20, delays=lambda number: 2.0 if 1 <= number <= 8 else 0.1)
    assert diagnosis_types(slow)[:1] == [SlowFirst]
    assert not {Drift, Shared} & set(diagnosis_types(slow))


def test_requests_slow_because_of_a_pause_are_not_slow_at_first() -> None:
    slow = evidence(SYNC, 8, rounds=20, delays=lambda number: 2.0 if 1 <= number <= 8 else 0.1)
    first = slow.spans.spans[1]
    pause = Pause(first.start_ns + NS // 10, first.start_ns + 4 * NS)
    assert SlowFirst not in diagnosis_types(with_observations(slow, pauses=(pause,)))


def test_lone_requests_that_waited_longest_show_no_drift() -> None:
    """Beside other programs 20 ms of CPU take 44 ms at first, 75 ms at last, and 80 ms alone."""
    server = replace(SYNC, workers=1)
    trial = evidence(server, 8, rounds=20, delay_s=0.08, delays=lambda number: 0.04 + number / 5000)
    assert drift(derived(trial)) is not None
    noise = noisy(trial, server_cores=0.36, server_wait=0.64, others=1.6)
    facts = derived(with_record(noise, lone_s=(0.08, 0.09)))
    wait = core_wait(facts)
    assert wait.share_lost < 0.01, "compared with the slow lone requests nothing waited"
    assert drift(facts) is None


def test_a_very_short_load_shows_no_drift() -> None:
    short = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.001 + number / 40_000)
    assert derived(short).window is not None
    assert Drift not in diagnosis_types(short)


@pytest.mark.parametrize(
    ("typical_s", "server_cores", "drifts"),
    [(0.1, 0.1, False), (0.3, 0.1, True), (0.3, 0.8, False)],
)
def test_beside_other_programs_only_the_fastest_requests_show_a_drift(
    typical_s: float, server_cores: float, drifts: bool
) -> None:
    """In less than a second all requests may wait for a core, and if they compute, even the fastest
    take longer."""

    def drifting(number: int) -> float:
        step = (0, 1, 2, 4, 3, 5, 6, 7)[min(7, number * 8 // 200)]
        return typical_s * (1.4 - 0.05 * step)

    trial = evidence(SYNC, 4, rounds=50, delay_s=typical_s, delays=drifting, tool="fast")
    load = {"server_wait": 0.8, "others": 1.8 - server_cores}
    change = drift(derived(noisy(trial, server_cores=server_cores, **load)))
    assert (change is not None) == drifts
    assert drift(derived(trial)) is not None
