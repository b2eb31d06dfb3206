"""The knee and the capacity: numbers where they can be defended, reasons elsewhere."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from workerlab.analysis.knee import (
    IN_STEP,
    NO_LEVEL_BELOW,
    ONE_LEVEL,
    STILL_GROWING,
    KneeAbove,
    KneeAtLeast,
    KneeNote,
    KneeUnknown,
    LastStep,
    LevelsOff,
    Sample,
    SlotsAllTaken,
    ToolLimitFrom,
    capacity,
    knee,
)


@pytest.mark.parametrize(
    ("levels", "slots", "number", "kind", "values"),
    [
        ({4: 4.0, 8: 4.0, 16: 4.0}, 4, 4.0, LevelsOff, {"below": 8, "highest": 16, "gain": 0}),
        ({4: 3.98, 8: 3.97, 16: 3.99}, 4, 3.99, LevelsOff, {}),
        ({8: 4.0, 16: 4.0}, 4, 4.0, LevelsOff, {}),
        ({4: 4.0, 8: 8.0, 16: 16.0}, 4000, None, KneeAbove, {"highest": 16}),
        ({4: 4.0, 8: 8.0, 16: 15.9}, 4000, None, KneeAbove, {"highest": 16}),
        ({4: 4.0, 16: 15.5}, None, None, KneeAbove, {"remark": "no limit found up to 16"}),
        (
            *({4: 4.0, 8: 6.0}, 6, None, KneeAtLeast),
            {"least": 6.0, "below": 4, "highest": 8, "gain": 0.5, "add": 16},
        ),
        ({4: 4.0, 6: 5.0}, 5, None, KneeAtLeast, {"least": 5.0, "gain": 0.25}),
        ({4: 4.0, 6: 4.1}, 4, 4.1, LevelsOff, {}),
        ({8: 4.0}, 4, 4.0, SlotsAllTaken, {"highest": 8, "slots": 4}),
        ({2: 2.0, 8: 4.0}, 4, 4.0, SlotsAllTaken, {"highest": 8, "slots": 4}),
        ({8: 4.0}, None, None, KneeAtLeast, {"least": 4.0, "add": 16, "why": ONE_LEVEL}),
        ({5: 4.0}, 4, None, KneeAtLeast, {"least": 4.0}),
        ({2: 2.0, 8: 4.0}, None, None, KneeAtLeast, {"least": 4.0, "below": 2, "gain": 1.0}),
        ({1: 1.0, 2: 2.0, 16: 5.9}, 8, None, KneeAtLeast, {"least": 5.9, "below": 2}),
        ({2: 1.92, 4: 2.0}, 2, 2.0, LevelsOff, {}),
        ({4: 4.0}, 4, None, KneeAtLeast, {"least": 4, "add": 8, "why": IN_STEP}),
        ({1: 1.0, 2: 2.0, 4: 4.0}, 4, None, KneeAtLeast, {"why": IN_STEP}),
        ({8: 8.0}, 4, None, KneeAbove, {"highest": 8, "slots": 4}),
        # falls under overload: what it once gave is its limit
        ({4: 4.0, 8: 3.0}, 4, 4.0, LevelsOff, {"gain": 0.0}),
        ({4: 0.0, 8: 1.0}, 4, None, KneeAtLeast, {"least": 1.0, "gain": None}),
        ({}, 4, None, KneeUnknown, {}),
        # slots that were all taken, of which more than one connection each would wait
        ({2: 2.0, 4: 3.7}, 4, None, KneeAtLeast, {"below": 2}),
    ],
)
def test_knee(
    levels: dict[int, float],
    slots: int | None,
    number: float | None,
    kind: type[KneeNote],
    values: dict[str, float | str | None],
) -> None:
    """`values`: of the note, or of the last step in it."""
    estimate = knee(levels, 1.0, slots, slots_filled=kind is SlotsAllTaken)
    assert estimate.connections == (None if number is None else pytest.approx(number))
    assert type(estimate.note) is kind
    why = estimate.note.values.get("why")
    noted = {**estimate.note.values, **(why.values if isinstance(why, LastStep) else {})}
    for name, value in values.items():
        assert noted[name] == (pytest.approx(value, abs=0.01) if type(value) is float else value)


@pytest.mark.parametrize(
    ("levels", "slots", "sentence", "short"),
    [
        ({}, 4, "unknown: no valid cell", "unknown"),
        (
            {2: 2.0, 8: 4.0}, None,
            "at least 4: throughput still grew by 100 % from 2 to 8 connections; add 16 or more",
            "at least 4",
        ),
        (
            {4: 4.0}, 4,
            "at least 4: throughput grows in proportion to connections up to the number of slots;"
            " add 8 or more",
            "at least 4",
        ),
        ({4: 4.0, 16: 15.5}, None, "> 16: no limit found up to 16", "> 16"),
        ({8: 8.0}, 4, "> 8, although 4 slots are configured", "> 8"),
    ],
)  # fmt: skip
def test_a_knee_that_is_not_a_number_has_a_short_form(
    levels: dict[int, float], slots: int | None, sentence: str, short: str
) -> None:
    note = knee(levels, 1.0, slots).note
    assert (str(note), note.short) == (sentence, short)
    later = replace(note, tool_limit=ToolLimitFrom(16, "ab"))
    assert str(later) == f"{sentence}; from 16 connections on ab is the limit, not the server"
    assert later.short == short


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
    assert str(found.note)
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


LAUNCHES = "at least 3 trials"


@pytest.mark.parametrize(
    ("levels", "trials", "wants"),
    [
        ([8, 16], 3, "a level of at most 2"),
        ([1, 2], 3, "a level of at least 4"),
        ([2, 8], 2, LAUNCHES),
        ([4], 1, f"{LAUNCHES} and a level of at most 2 and a level of at least 8"),
    ],
)
def test_capacity_says_what_is_missing(levels: list[int], trials: int, wants: str) -> None:
    found = capacity(noisy(1, 4, levels, trials, 0.0), 1.0, flat=True)
    assert (found.rps, found.ci95) == (None, None)
    assert found.note == f"an interval needs {wants}"


def test_no_capacity_while_throughput_grows() -> None:
    found = capacity(noisy(1, 4, [2, 8], 3, 0.0), 1.0, flat=False)
    assert (found.rps, found.note) == (None, STILL_GROWING)


def test_one_slot_has_no_level_below_it() -> None:
    found = capacity(noisy(1, 1, [4, 8], 3, 0.0), 1.0, flat=True)
    assert found.note == NO_LEVEL_BELOW


def test_welch_as_in_a_worked_example() -> None:
    # Two samples of log rates with the variances of 3 trials each: df = 2.18, so t of 2 degrees.
    above = [Sample(8, n, math.exp(x)) for n, x in enumerate((1.38, 1.39, 1.40), 1)]
    below = [Sample(1, n, math.exp(x)) for n, x in enumerate((-0.002, 0.0, 0.002), 1)]
    found = capacity(above + below, 1.0, flat=True)
    half = 4.303 * math.sqrt((0.0001 + 0.000004) / 3)
    assert found.ci95 == pytest.approx((math.exp(1.39 - half), math.exp(1.39 + half)))
