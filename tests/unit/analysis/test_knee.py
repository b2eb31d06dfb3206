"""The knee and the capacity: numbers where the data allows, reasons elsewhere."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders.analysis import evidence
from workerlab.analysis.knee import (
    NO_LEVEL_BELOW,
    ONE_LEVEL,
    PROPORTIONAL,
    Knee,
    KneeAbove,
    KneeAtLeast,
    KneeNote,
    KneeUnknown,
    LastStep,
    LevelsOff,
    SlotsAllTaken,
    ToolLimitFrom,
    TrialRate,
    capacity,
    knee_by_levels,
)
from workerlab.analysis.series import R0, Series

TRIAL = evidence(connections=1, rounds=1)


def knee(
    levels: dict[int, float], lone_s: float, slots: int | None, *, slots_filled: bool = False
) -> Knee:
    """The knee of exact rates by level, without verdicts."""
    series = Series(TRIAL.cell.series, [TRIAL], R0(lone_s, None), (), (), ())
    series.__dict__.update(
        levels=levels,
        relative_halves=dict.fromkeys(levels, 0.0),
        slots=slots,
        slots_filled=slots_filled,
    )
    return knee_by_levels(series, {}, highest_tried=max(levels, default=0))


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
        ({4: 4.0}, 4, None, KneeAtLeast, {"least": 4, "add": 8, "why": PROPORTIONAL}),
        ({1: 1.0, 2: 2.0, 4: 4.0}, 4, None, KneeAtLeast, {"why": PROPORTIONAL}),
        ({8: 8.0}, 4, None, KneeAbove, {"highest": 8, "slots": 4}),
        # falls under overload: the best rate is its limit
        ({4: 4.0, 8: 3.0}, 4, 4.0, LevelsOff, {"gain": 0.0}),
        ({}, 4, None, KneeUnknown, {}),
        # all slots were busy, but throughput still grows
        ({2: 2.0, 4: 3.7}, 4, None, KneeAtLeast, {"below": 2}),
    ],
)
def test_the_knee_follows_from_the_rates_of_the_levels(
    levels: dict[int, float],
    slots: int | None,
    number: float | None,
    kind: type[KneeNote],
    values: dict[str, float | str | None],
) -> None:
    """`values`: of the note, or of its last step."""
    estimate = knee(levels, 1.0, slots, slots_filled=kind is SlotsAllTaken)
    assert estimate.connections == pytest.approx(number)
    assert type(estimate.note) is kind
    why = estimate.note.values.get("why")
    details = {**estimate.note.values, **(why.values if isinstance(why, LastStep) else {})}
    for name, value in values.items():
        assert details[name] == (pytest.approx(value, abs=0.01) if type(value) is float else value)


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
    limited = replace(note, tool_limit=ToolLimitFrom(16, "ab"))
    assert str(limited) == f"{sentence}; from 16 connections on ab is the limit, not the server"
    assert limited.short == short


@given(
    st.dictionaries(st.integers(1, 500), st.floats(1e-3, 1e5), max_size=6),
    st.floats(1e-5, 10),
    st.none() | st.integers(1, 4000),
)
def test_a_knee_is_finite_and_has_a_sentence(
    levels: dict[int, float], lone_s: float, slots: int | None
) -> None:
    estimate = knee(levels, lone_s, slots)
    assert str(estimate.note)
    assert estimate.connections is None or math.isfinite(estimate.connections)


def trial_rates(
    levels: list[int], trials: int, *, slots: int = 4, noise: float = 0.0, seed: int = 1
) -> list[TrialRate]:
    chance = random.Random(seed)
    return [
        TrialRate(level, trial, min(level, slots) * math.exp(chance.gauss(0, noise)))
        for level in levels
        for trial in range(1, trials + 1)
    ]


def test_capacity_intervals_cover_the_true_value() -> None:
    hits = 0
    for seed in range(400):
        low, high = capacity(trial_rates([1, 2, 8, 16], 3, noise=0.02, seed=seed), 1.0).ci95
        hits += low <= 4 <= high
    assert 0.92 <= hits / 400 <= 0.995


@pytest.mark.parametrize(
    ("slots", "levels", "trials", "note"),
    [
        (4, [8, 16], 3, "an interval needs a level of at most 2"),
        (4, [1, 2], 3, "an interval needs a level of at least 4"),
        (4, [2, 8], 2, "an interval needs at least 3 trials"),
        (4, [4], 1, "an interval needs at least 3 trials and a level of at most 2"
         " and a level of at least 8"),
        (1, [4, 8], 3, NO_LEVEL_BELOW),
    ],
)  # fmt: skip
def test_capacity_names_what_an_interval_needs(
    slots: int, levels: list[int], trials: int, note: str
) -> None:
    estimate = capacity(trial_rates(levels, trials, slots=slots), 1.0)
    assert (estimate.rps, estimate.ci95, estimate.note) == (None, None, note)


def test_the_interval_of_capacity_follows_welch() -> None:
    # Two samples of 3 log rates: 2.18 degrees of freedom, so Student's t of 2
    above = [TrialRate(8, n, math.exp(x)) for n, x in enumerate((1.38, 1.39, 1.40), 1)]
    below = [TrialRate(1, n, math.exp(x)) for n, x in enumerate((-0.002, 0.0, 0.002), 1)]
    estimate = capacity(above + below, 1.0)
    half = 4.303 * math.sqrt((0.0001 + 0.000004) / 3)
    assert estimate.ci95 == pytest.approx((math.exp(1.39 - half), math.exp(1.39 + half)))
