"""Which run is a study, and of what."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import run_store as store
from harness.experiments.points import point_to_json
from harness.experiments.studies import KINDS, document_of, kind_of
from harness.model import UsageError
from tests.unit.experiments.test_generators import PLAN, shot


def run(place: Path, plan: dict[str, object]) -> Path:
    directory = place / "a-run"
    store.create(directory, plan, {"cores": 2})
    return directory


def test_a_run_that_says_nothing_is_a_sweep(tmp_path: Path) -> None:
    directory = run(tmp_path, {})
    assert kind_of(directory) == "sweep"


def test_a_kind_of_another_version_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a-run is a run of `future`; known are sweep, generators"):
        document_of(run(tmp_path, {"kind": "future"}))


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        kind_of(tmp_path)


def test_points_that_never_ran_are_not_valid(tmp_path: Path) -> None:
    points = [point_to_json(shot(tool).point) for tool in ("fast", "threads")]
    found = document_of(run(tmp_path, {"kind": "generators", **PLAN, "points": points}))
    assert (found.kind, found.run, found.valid) == ("generators", "a-run", False)
    assert sum("was not measured: it was not run" in note for note in found.notes) == 2
    assert "generators" in KINDS
