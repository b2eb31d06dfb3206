"""Which run is a study, and of what."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import run_store as store
from harness.experiments.studies import KINDS, document_of, kind_of
from harness.model import Load, NullServer, UsageError
from harness.plan import null_cell, null_plan, to_json

LOAD = Load(concurrency=10, requests=100, duration_s=1.0, deadline_s=9.0, timed=True)


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


def test_cells_that_never_ran_are_not_valid(tmp_path: Path) -> None:
    cells = [null_cell(tool, NullServer(), tool, LOAD) for tool in ("fast", "threads")]
    details = {"server_core": 1, "keepalive": True}
    plan = to_json(null_plan("generators", cells, details=details))
    found = document_of(run(tmp_path, plan))
    assert (found.kind, found.run, found.valid) == ("generators", "a-run", False)
    assert len(found.notes) == 2
    assert "generators" in KINDS
