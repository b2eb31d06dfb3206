"""Runs of every command: how they are read and resumed, what is refused, and how they end."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.plan import plan
from workerlab import run_store
from workerlab.cli import main
from workerlab.errors import UsageError
from workerlab.experiments import EXPERIMENTS, add_options, evaluate, setup_of
from workerlab.experiments.reading import document_of, find_run
from workerlab.experiments.runner import exit_code
from workerlab.model.evidence import Fault, Record
from workerlab.model.plan import Load, NullServer
from workerlab.model.result import Document
from workerlab.plan import null_cell, null_plan


def run_of(command: str, parent: Path) -> Path:
    directory = parent / f"a-{command}"
    run_store.create(directory, plan(kind=command), {})
    return directory


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_an_experiment_has_its_own_functions(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = f"workerlab.experiments.{command}"
    assert setup_of(command).__module__ == f"{room}.command"
    monkeypatch.setattr(f"{room}.options.add_options", lambda parser: parser.set_defaults(x=room))
    add_options(command, parser := argparse.ArgumentParser())
    assert parser.parse_args([]).x == room
    monkeypatch.setattr(f"{room}.document.document", lambda run: (room, run))
    run = run_store.load(run_of(command, tmp_path))
    assert evaluate(run) == (room, run)


def test_only_runs_of_known_commands_are_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a run of `future`; known commands: sweep, generators"):
        document_of(run_of("future", tmp_path))
    with pytest.raises(UsageError, match="is not a run directory"):
        document_of(tmp_path)


def test_cells_that_never_ran_are_not_valid(tmp_path: Path) -> None:
    load = Load(concurrency=10, requests=100, duration_s=1.0, deadline_s=9.0, timed=True)
    cells = [null_cell(tool, NullServer(), tool, load) for tool in ("fast", "threads")]
    details = {"server_core": 1, "keepalive": True}
    run = tmp_path / "a-run"
    run_store.create(run, null_plan("generators", cells, details=details), {"cores": 2})
    document = document_of(run)
    assert (document.kind, document.run, document.valid) == ("generators", "a-run", False)
    (note,) = document.notes
    assert note.values["unfinished"] == 2
    assert (find_run(note.values["run"]) / "run.json").is_file()


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_a_run_is_resumed_by_the_command_that_made_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {maker: run_of(maker, tmp_path) for maker in EXPERIMENTS if maker != command}
    before = sorted(tmp_path.rglob("*"))
    for maker, directory in runs.items():
        line = refused([command, "--resume", str(directory)], capsys)
        assert f"is a run of `{maker}`" in line
        assert line.endswith(f"{maker} --resume {directory}")
        line = refused([command, "--resume", str(directory), "--out", "x"], capsys)
        assert "--resume takes a run and no other arguments" in line
    assert sorted(tmp_path.rglob("*")) == before


ALLOWED = {
    "sweep": " but --fail-on-slo, --jobs",
    "advise": " but --budget",
    "compare": " but --budget",
    "ladder": " but --mongo-url, --postgres-url, --redis-url, --trials",
}


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_a_resumed_run_takes_no_option_that_changes_its_plan(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = run_of(command, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    line = refused([command, "--resume", str(directory), "--out", "x"], capsys)
    allowed = ALLOWED.get(command, "")
    assert f"--resume takes a run and no other arguments{allowed}: its plan is saved" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_an_option_that_is_off_changes_a_plan_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["generators", "--resume", str(run_of("generators", tmp_path)), "--keepalive", "off"]
    assert "--resume takes a run and no other arguments" in refused(argv, capsys)


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_a_directory_that_is_no_run_is_not_resumed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is not a run" in refused([command, "--resume", str(tmp_path)], capsys)


@pytest.mark.parametrize(
    ("kinds", "valid", "code"),
    [((), True, 0), ((), False, 1), (("tool",), False, 1), (("tool", "unavailable"), False, 3)],
)
def test_the_exit_code_depends_on_faults_and_the_target(
    kinds: tuple[str, ...], valid: bool, code: int, tmp_path: Path
) -> None:
    directory = run_of("sweep", tmp_path)
    with run_store.appending(directory) as writer:
        for kind in kinds:
            writer.ended(Record(kind, Fault(kind, "why")))
    document = Document("a", {}, kind="sweep", title="title", findings=(), tables=(), valid=valid)
    assert exit_code(directory, document) == code
    missed = replace(document, target_kept=False)
    assert exit_code(directory, missed) == (code or 4)
    assert exit_code(directory, missed, fail_on_slo=False) == code
