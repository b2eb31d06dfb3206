"""The number of lone requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import repeat
from statistics import fmean, stdev

import pytest

from workerlab.server.warmup import (
    MAX_LONE,
    MAX_LONE_ERROR,
    MAX_TOTAL_LONE_S,
    MIN_LONE,
    are_sufficient,
)


def lone_times(next_s: Callable[[], float], *, bundled: bool = False) -> list[float]:
    lone_s: list[float] = []
    while not are_sufficient(lone_s, bundled=bundled):
        lone_s.append(next_s())
    return lone_s


@pytest.mark.parametrize(
    ("bundled", "seconds", "count"),
    [
        (True, 1.0, 1), (True, 0.5, 1), (True, 0.2, 3), (True, 0.001, 5),
        (False, 20.0, MIN_LONE), (False, 1.0, MIN_LONE), (False, 0.125, 4),
        (False, 0.001, MAX_LONE),
    ],
)  # fmt: skip
def test_lone_requests_take_half_a_second_and_are_at_least_three_unless_the_app_is_bundled(
    bundled: bool, seconds: float, count: int
) -> None:
    assert len(lone_times(repeat(seconds).__next__, bundled=bundled)) == count


@pytest.mark.parametrize("mean_s", [0.005, 0.05, 0.5, 5.0])
@pytest.mark.parametrize("seed", range(20))
def test_requests_are_repeated_until_their_mean_is_precise_or_time_is_up(
    mean_s: float, seed: int
) -> None:
    generator = random.Random(seed)
    lone_s = lone_times(lambda: generator.expovariate(1 / mean_s))
    error = stdev(lone_s) / len(lone_s) ** 0.5 / fmean(lone_s)
    assert len(lone_s) == MAX_LONE or sum(lone_s) >= MAX_TOTAL_LONE_S or error <= MAX_LONE_ERROR
    assert MIN_LONE <= len(lone_s) <= MAX_LONE
    assert len(lone_s) == MIN_LONE or sum(lone_s[:-1]) < MAX_TOTAL_LONE_S
