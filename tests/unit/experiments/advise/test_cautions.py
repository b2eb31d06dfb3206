"""Cautions that launches give beyond the target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.builders.analysis import SYNC, derived, evidence
from workerlab.experiments.advise.answers import cautions


def launch(slower: float) -> Any:
    """A launch in which each request takes `slower` seconds longer than the one before."""
    data = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.1 + number * slower)
    return SimpleNamespace(facts=derived(data), due=81)


def cautions_of(*launches: Any) -> list[str]:
    return [str(answer) for answer in cautions(launches, 50.0)]


def test_an_app_that_grows_slower_is_reported() -> None:
    steady, slower = launch(0.0), launch(0.0025)
    assert cautions_of(steady, steady, steady) == []
    assert cautions_of(steady, steady, slower) == []
    (caution,) = cautions_of(steady, slower, slower)
    assert caution.startswith("Service times drift: 1")
    assert caution.endswith("; seen in 2 of 3 launches.")
