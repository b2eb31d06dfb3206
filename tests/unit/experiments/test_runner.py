"""New and resumed runs of every command: what is refused, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders.plan import plan
from workerlab import run_store
from workerlab.cli import main
from workerlab.experiments import EXPERIMENTS
from workerlab.experiments.runner import exit_code
from workerlab.model.evidence import Fault, Record
from workerlab.model.result import Document


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
def test_a_run_is_resumed_by_the_command_that_made_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {maker: run_of(maker, tmp_path) for maker in EXPERIMENTS if maker != command}
    before = sorted(tmp_path.rglob("*"))
    for maker, directory in runs.items():
        line = refused([command, "--resume", str(directory)], capsys)
        assert f"is a run of `{maker}`" in line
        assert line.endswith(f"{maker} --resume {directory}")
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
