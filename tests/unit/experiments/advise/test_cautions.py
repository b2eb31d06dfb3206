"""What launches show that no target asks for: at a rate, and also of an app that computes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.builders.analysis import SYNC, derived, evidence
from workerlab.experiments.advise.answers import cautions


def launch(slower: float) -> Any:
    """Of which each request takes a little longer than the one before."""
    made = evidence(SYNC, 8, rounds=10, delays=lambda number: 0.1 + number * slower)
    return SimpleNamespace(facts=derived(made), due=81)


def told(*launches: Any) -> list[str]:
    return [str(answer) for answer in cautions(launches, 50.0)]


def test_an_app_that_grows_slower_is_told() -> None:
    steady, slower = launch(0.0), launch(0.0025)
    assert told(steady, steady, steady) == []
    assert told(steady, steady, slower) == []
    (caution,) = told(steady, slower, slower)
    assert caution.startswith("Service times drift: 1")
    assert caution.endswith("; seen in 2 of 3 launches.")
