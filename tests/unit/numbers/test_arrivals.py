"""Schedules of requests: evenly spaced, or a reproducible Poisson process."""

from __future__ import annotations

import pytest

from workerlab.numbers.schedule import NS, schedule

FIRST = [44_050_706, 218_210_373, 230_928_447, 317_923_443, 421_175_797]


def test_even_arrivals_are_spaced_evenly() -> None:
    assert list(schedule("even", 4, 1.3)) == [0, 250e6, 500e6, 750e6, 1000e6, 1250e6]
    assert len(schedule("even", 4, 1.25)) == 5  # none is due at the very end
    assert schedule("even", 4, 2, seed=7) == schedule("even", 4, 2)


def test_the_same_seed_gives_the_same_schedule_in_every_python() -> None:
    assert list(schedule("poisson", 10, 0.5, 10_001)) == pytest.approx(FIRST, abs=1)
    assert schedule("poisson", 10, 60, 10_001) == schedule("poisson", 10, 60, 10_001)
    assert schedule("poisson", 10, 60, 10_001) != schedule("poisson", 10, 60, 10_002)


def test_a_schedule_extends_with_duration_and_scales_with_rate() -> None:
    short, long = schedule("poisson", 20, 5, 3), schedule("poisson", 20, 50, 3)
    assert short == long[: len(short)]
    twice = schedule("poisson", 40, 25, 3)
    assert [2 * ns for ns in twice] == pytest.approx(list(long), abs=2)


@pytest.mark.parametrize("kind", ["even", "poisson"])
def test_all_moments_are_within_the_load_and_in_order(kind: str) -> None:
    moments = list(schedule(kind, 333.3, 3.7, 5))
    assert moments == sorted(moments)
    assert moments[0] >= 0
    assert moments[-1] < 3.7 * NS
    assert sorted(ns for i in range(3) for ns in moments[i::3]) == moments


def test_unknown_arrivals_are_rejected() -> None:
    with pytest.raises(ValueError, match="unknown arrivals 'odd'"):
        schedule("odd", 1, 1)
