"""The knee and the capacity: numbers where they can be defended, reasons elsewhere."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workerlab.analysis.knee import Sample, capacity, knee
from workerlab.report.messages import text


@pytest.mark.parametrize(
    ("levels", "slots", "number", "code", "values"),
    [
        ({4: 4.0, 8: 4.0, 16: 4.0}, 4, 4.0, "levels_off", {"below": 8, "highest": 16, "gain": 0}),
        ({4: 3.98, 8: 3.97, 16: 3.99}, 4, 3.99, "levels_off", {}),
        ({8: 4.0, 16: 4.0}, 4, 4.0, "levels_off", {}),
        ({4: 4.0, 8: 8.0, 16: 16.0}, 4000, None, "above", {"highest": 16}),
        ({4: 4.0, 8: 8.0, 16: 15.9}, 4000, None, "above", {"highest": 16}),
        ({4: 4.0, 16: 15.5}, None, None, "no_limit", {"highest": 16}),
        (
            *({4: 4.0, 8: 6.0}, 6, None, "still_gains"),
            {"least": 6.0, "below": 4, "highest": 8, "gain": 0.5, "add": 16},
        ),
        ({4: 4.0, 6: 5.0}, 5, None, "still_gains", {"least": 5.0, "gain": 0.25}),
        ({4: 4.0, 6: 4.1}, 4, 4.1, "levels_off", {}),
        ({8: 4.0}, 4, 4.0, "all_slots_busy", {"highest": 8, "slots": 4}),
        ({2: 2.0, 8: 4.0}, 4, 4.0, "all_slots_busy", {"highest": 8, "slots": 4}),
        ({8: 4.0}, None, None, "one_level", {"least": 4.0, "add": 16}),
        ({5: 4.0}, 4, None, "one_level", {"least": 4.0}),
        ({2: 2.0, 8: 4.0}, None, None, "still_gains", {"least": 4.0, "below": 2, "gain": 1.0}),
        ({1: 1.0, 2: 2.0, 16: 5.9}, 8, None, "still_gains", {"least": 5.9, "below": 2}),
        ({2: 1.92, 4: 2.0}, 2, 2.0, "levels_off", {}),
        ({4: 4.0}, 4, None, "no_wait_with_all_slots", {"highest": 4, "add": 8}),
        ({1: 1.0, 2: 2.0, 4: 4.0}, 4, None, "no_wait_with_all_slots", {}),
        ({8: 8.0}, 4, None, "above_slots", {"highest": 8, "slots": 4}),
        # falls under overload: what it once gave is its limit
        ({4: 4.0, 8: 3.0}, 4, 4.0, "levels_off", {"gain": 0.0}),
        ({4: 0.0, 8: 1.0}, 4, None, "still_gains", {"least": 1.0, "gain": None}),
        ({}, 4, None, "no_cell", {}),
        # slots that were all taken, of which more than one connection each would wait
        ({2: 2.0, 4: 3.7}, 4, None, "still_gains", {}),
    ],
)
def test_knee(
    levels: dict[int, float],
    slots: int | None,
    number: float | None,
    code: str,
    values: dict[str, float],
) -> None:
    found = knee(levels, 1.0, slots, full=code == "all_slots_busy")
    assert found.connections == (None if number is None else pytest.approx(number))
    assert found.note.code == f"knee.{code}"
    for name, value in values.items():
        known = value if value is None else pytest.approx(value, abs=0.01)
        assert found.note.values[name] == known


def test_knee_without_a_lone_response_is_unknown() -> None:
    assert knee({4: 4.0}, None, 4).connections is None


@given(
    st.dictionaries(st.integers(1, 500), st.floats(0, 1e5), max_size=6),
    st.none() | st.floats(1e-5, 10),
    st.none() | st.integers(1, 4000),
)
def test_knee_is_finite_and_has_a_sentence(
    levels: dict[int, float], lone_s: float | None, slots: int | None
) -> None:
    found = knee(levels, lone_s, slots)
    assert text(found.note)
    assert found.connections is None or math.isfinite(found.connections)


def noisy(seed: int, slots: int, levels: list[int], trials: int, noise: float) -> list[Sample]:
    source = random.Random(seed)
    return [
        Sample(level, trial, min(level, slots) * math.exp(source.gauss(0, noise)))
        for level in levels
        for trial in range(1, trials + 1)
    ]


def test_capacity_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(400):
        found = capacity(noisy(seed, 4, [1, 2, 8, 16], 3, 0.02), 1.0, flat=True)
        assert found.ci95 is not None
        hits += found.ci95[0] <= 4 <= found.ci95[1]
    assert 0.92 <= hits / 400 <= 0.995


def test_capacity_without_noise_is_exact() -> None:
    found = capacity(noisy(1, 4, [2, 8], 3, 0.0), 1.0, flat=True)
    assert found.rps == pytest.approx(4.0)
    assert found.ci95 == pytest.approx((4.0, 4.0))


@pytest.mark.parametrize(
    ("levels", "trials", "wants"),
    [
        ([8, 16], 3, "a level of at most 2"),
        ([1, 2], 3, "a level of at least 4"),
        ([2, 8], 2, "at least 3 trials"),
        ([4], 1, "at least 3 trials and a level of at most 2 and a level of at least 8"),
    ],
)
def test_capacity_says_what_is_missing(levels: list[int], trials: int, wants: str) -> None:
    found = capacity(noisy(1, 4, levels, trials, 0.0), 1.0, flat=True)
    assert (found.rps, found.ci95) == (None, None)
    assert found.note == f"an interval needs {wants}"


def test_no_capacity_while_throughput_grows() -> None:
    found = capacity(noisy(1, 4, [2, 8], 3, 0.0), 1.0, flat=False)
    assert (found.rps, found.note) == (None, "throughput did not stop growing")


def test_one_slot_has_no_level_below_it() -> None:
    found = capacity(noisy(1, 1, [4, 8], 3, 0.0), 1.0, flat=True)
    assert found.note == "no number of connections is below the knee"


def test_welch_as_in_a_worked_example() -> None:
    # Two samples of log rates with the variances of 3 trials each: df = 2.18, so t of 2 degrees.
    above = [Sample(8, n, math.exp(x)) for n, x in enumerate((1.38, 1.39, 1.40), 1)]
    below = [Sample(1, n, math.exp(x)) for n, x in enumerate((-0.002, 0.0, 0.002), 1)]
    found = capacity(above + below, 1.0, flat=True)
    half = 4.303 * math.sqrt((0.0001 + 0.000004) / 3)
    assert found.ci95 == pytest.approx((math.exp(1.39 - half), math.exp(1.39 + half)))
