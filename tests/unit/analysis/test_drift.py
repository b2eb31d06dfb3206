"""Service times that change: what is found, and how often chance is taken for it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.builders.analysis import (
    NS,
    SYNC,
    derived,
    diagnosed,
    evidence,
    kinds,
    recording,
    seeing,
)
from tests.builders.noise import noisy
from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.diagnosis.service import (
    LOOK_FOR_GROWTH,
    Drift,
    Shared,
    SlowFirst,
    count_slow_first,
    drift,
    drift_of,
)
from workerlab.model import Pause

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
def test_chance_is_no_change(kind: str, requests: int) -> None:
    """|z| >= 3 alone gives 0.27 %, that is 3 of 200 in less than one of 50 times; both tests
    together, and slowness of one in 100,000, give fewer."""
    drifts = sum(drift_of(series(kind, seed, requests)) is not None for seed in range(SEEDS))
    slow = sum(count_slow_first(series(kind, seed, requests)) > 0 for seed in range(SEEDS))
    assert drifts <= 2
    assert slow <= 2


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_drift_is_always_found(factor: float) -> None:
    for seed in range(20):
        times = series("sleeping", seed, 160)
        changing = [one * factor ** (i / 160) for i, one in enumerate(times)]
        found = drift_of(changing)
        assert found is not None
        assert (found.z > 0) == (factor > 1)
        assert count_slow_first(changing) == 0


def test_a_drift_takes_enough_requests_and_a_tenth() -> None:
    assert drift_of([1 + i / 31 for i in range(31)]) is None
    assert drift_of([1 + i / 2000 for i in range(160)]) is None
    assert drift_of([1 + i / 1000 for i in range(160)]) is not None


@pytest.mark.parametrize("first", [5, 8, 30])
def test_slow_at_first_is_always_found(first: int) -> None:
    for seed in range(20):
        times = series("sleeping", seed, 160)
        slow = [time_s * (3 if i < first else 1) for i, time_s in enumerate(times)]
        assert count_slow_first(slow) == pytest.approx(first, abs=first / 4)


def test_one_of_the_first_may_be_fast() -> None:
    """A pool has one connection already."""
    assert count_slow_first([0.05, *[1.05] * 7, *[0.05] * 232]) == 8


def test_four_slow_requests_are_an_accident() -> None:
    assert count_slow_first([*[1.05] * 4, *[0.05, 0.051] * 80]) == 0


def test_of_a_trial() -> None:
    drifting = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.1 + number / 400)
    diagnosis = diagnosed(Drift, drifting)
    assert diagnosis.last_s > 2 * diagnosis.first_s
    assert diagnosis.advice == (LOOK_FOR_GROWTH,)
    slow = evidence(SYNC, 8, rounds=20, delays=lambda number: 2.0 if 1 <= number <= 8 else 0.1)
    assert kinds(slow)[:1] == [SlowFirst]
    assert not {Drift, Shared} & set(kinds(slow))


def test_what_a_machine_took_that_stood_still_is_not_slow_at_first() -> None:
    slow = evidence(SYNC, 8, rounds=20, delays=lambda number: 2.0 if 1 <= number <= 8 else 0.1)
    first = slow.spans.spans[1]
    pause = Pause(first.start_ns + NS // 10, first.start_ns + 4 * NS)  # of sync's 8, 4 wait
    assert SlowFirst not in kinds(seeing(slow, pauses=(pause,)))


def test_lone_requests_that_waited_longest_hide_no_waiting() -> None:
    """20 ms of CPU beside other programs took 44 ms at first, 75 at last, and 80 of lone ones."""
    server = replace(SYNC, workers=1)
    trial = evidence(server, 8, rounds=20, delay_s=0.08, delays=lambda number: 0.04 + number / 5000)
    assert drift(derived(trial)) is not None
    noise = noisy(trial, server_cores=0.36, server_wait=0.64, others=1.6)
    seen = derived(recording(noise, lone_s=(0.08, 0.09)))
    waited = core_wait(seen)
    assert waited is not None
    assert waited.taken < 0.01, "as if nothing had waited"
    assert drift(seen) is None


def test_a_moment_of_load_says_nothing() -> None:
    short = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.001 + number / 40_000)
    assert derived(short).window is not None
    assert Drift not in kinds(short)


@pytest.mark.parametrize(
    ("typical_s", "server_cores", "seen"), [(0.1, 0.1, False), (0.3, 0.1, True), (0.3, 0.8, False)]
)
def test_beside_others_the_fastest_of_a_second_show_a_drift(
    typical_s: float, server_cores: float, seen: bool
) -> None:
    """Of less than a second all may have waited for a core; and where requests compute, others make
    that take longer even for the fastest."""

    def drifting(number: int) -> float:
        step = (0, 1, 2, 4, 3, 5, 6, 7)[min(7, number * 8 // 200)]  # each above the other is more
        return typical_s * (1.4 - 0.05 * step)

    trial = evidence(SYNC, 4, rounds=50, delay_s=typical_s, delays=drifting, tool="fast")
    crowd = {"server_wait": 0.8, "others": 1.8 - server_cores}
    found = drift(derived(noisy(trial, server_cores=server_cores, **crowd)))
    assert (found is not None) == seen
    assert drift(derived(trial)) is not None
