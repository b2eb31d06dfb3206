"""Each run is read by the experiment that made it."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.builders.plan import plan
from workerlab import run_store as store
from workerlab.errors import UsageError
from workerlab.experiments import EXPERIMENTS, experiment_module
from workerlab.experiments.reading import document_of, find_run
from workerlab.model.plan import Load, NullServer, Plan
from workerlab.plan import null_cell, null_plan


def run(parent: Path, plan: Plan) -> Path:
    directory = parent / "a-run"
    store.create(directory, plan, {"cores": 2})
    return directory


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_all_that_the_runner_needs(name: str) -> None:
    experiment_module(name, "options").add_options(argparse.ArgumentParser())
    assert find_spec(f"workerlab.experiments.{name}.document") is not None
    assert callable(experiment_module(name, "command").setup)


def test_a_run_of_an_unknown_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a run of `future`; known commands: sweep, generators"):
        document_of(run(tmp_path, plan(kind="future")))


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        document_of(tmp_path)


def test_cells_that_never_ran_are_not_valid(tmp_path: Path) -> None:
    load = Load(concurrency=10, requests=100, duration_s=1.0, deadline_s=9.0, timed=True)
    cells = [null_cell(tool, NullServer(), tool, load) for tool in ("fast", "threads")]
    details = {"server_core": 1, "keepalive": True}
    document = document_of(run(tmp_path, null_plan("generators", cells, details=details)))
    assert (document.kind, document.run, document.valid) == ("generators", "a-run", False)
    (note,) = document.notes
    assert note.values["unfinished"] == 2
    assert (find_run(note.values["run"]) / "run.json").is_file()
