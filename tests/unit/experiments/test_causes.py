"""A failure is repeated no more than necessary, printed once, and does not count as a result."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from tests.builders.analysis import evidence, with_observations
from tests.builders.plan import plan
from tests.builders.runs import recorded
from workerlab import run_store
from workerlab.cli import main
from workerlab.experiments.budget import BudgetProgress
from workerlab.experiments.calibration import disturbance
from workerlab.experiments.jobs import JobPlanner
from workerlab.experiments.load_trials import Unavailable
from workerlab.experiments.reading import find_run
from workerlab.model.evidence import Fault, ProcessSample, Record
from workerlab.model.plan import App, Cell, Server, Trial
from workerlab.terminal import progress
from workerlab.terminal.progress import Progress, describe

ONE_BY_ONE = JobPlanner(plan(jobs=1), 2, lambda _: None, drops_known=True).left_s
NO_FLASK = "the server did not boot: ModuleNotFoundError: No module named 'flask'"


def make_trial(worker_class: str, target: str = "shop:app", connections: int = 4) -> Trial:
    return Trial(Cell(Server(worker_class, 4, 1, 64, 10, app=App(target)), "ab", connections), 1)


def failed(trial: Trial, reason: str = NO_FLASK) -> Record:
    return Record(trial.key, Fault("unavailable", reason))


def test_an_app_that_fails_to_boot_is_tried_under_two_classes() -> None:
    unavailable = Unavailable(plan())
    first, second, third = (make_trial(name) for name in ("sync", "gthread", "gevent"))
    unavailable.store_fault(first, failed(first))
    assert unavailable.why_not(make_trial("sync", connections=8)) == NO_FLASK
    assert unavailable.why_not(second) is None  # it may be the class
    unavailable.store_fault(second, failed(second))
    assert unavailable.why_not(second) == NO_FLASK
    assert unavailable.why_not(third) == (
        "not launched: the app failed to start under sync and gthread for the same reason"
    )
    assert unavailable.why_not(make_trial("gevent", "other:app")) is None


def test_different_faults_do_not_rule_out_other_classes() -> None:
    unavailable = Unavailable(plan())
    for name in ("gevent", "tornado"):
        trial = make_trial(name)
        unavailable.store_fault(trial, failed(trial, f"{name} is missing"))
    assert unavailable.why_not(make_trial("sync")) is None


def test_a_repeated_fault_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    todo = [make_trial("sync", connections=n) for n in (4, 8, 16)]
    with Progress(todo, lambda _: None, ONE_BY_ONE) as display:
        for trial, file in zip(todo, "abc", strict=True):
            display.begin(trial)
            fault = Fault("answer", "GET / answered 400: Bad Host", f"its log: {file}")
            display.end(trial, Record(trial.key, fault))
    output = capsys.readouterr().err
    assert " 0 s left" not in output
    assert output.count("invalid: GET / answered 400\n") == 1
    assert output.count("invalid, for the same reason") == 2


def test_skipped_trials_add_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    trial, skipped = make_trial("sync"), make_trial("gevent")
    predicted_s = {trial.key: 10.0, skipped.key: 0.0}
    with Progress([trial, skipped], lambda t: predicted_s[t.key], ONE_BY_ONE, lambda _: 5.0):
        pass
    assert capsys.readouterr().err == "2 cells (1 cannot run), about 10 s to 18 s\n"
    with Progress([skipped], lambda _: 0.0, ONE_BY_ONE):
        pass
    assert capsys.readouterr().err == "1 cell (1 cannot run)\n"


def lines(display: Progress) -> list[str]:
    """The lines that it draws on a terminal."""
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(display)
    return console.export_text().splitlines()


def test_parallel_trials_are_each_shown(capsys: pytest.CaptureFixture[str]) -> None:
    todo = [make_trial("sync", connections=n) for n in (4, 8, 16)]
    running_keys = list[set[str]]()

    def left_s(_: object, left: Sequence[Trial], running: Mapping[str, float]) -> float:
        running_keys.append(set(running))
        return 10.0 * len(left)

    with Progress(todo, lambda _: 10.0, left_s) as display:
        for trial in todo:
            display.begin(trial)
        assert running_keys[0] == set()
        first, *rows = lines(display)
        assert "0 of 3 cells done, 30 s left" in first
        assert [row.split("s  ")[1].strip() for row in rows] == [describe(trial) for trial in todo]
        display.end(todo[1], Record(todo[1].key, None))
        first, *rows = lines(display)
        assert "1 of 3 cells done, 20 s left" in first
        assert not any(describe(todo[1]) in row for row in rows)
        assert len(rows) == 2
    assert running_keys[-1] == {todo[0].key, todo[2].key}
    announced, done = capsys.readouterr().err.splitlines()
    assert announced == "3 cells, about 30 s"
    assert done.startswith("[1/3] ")
    assert done.endswith("20 s left")


def test_a_part_of_a_run_shows_the_budget_and_does_not_count_its_own_cells() -> None:
    """Most launches of `advise` are such a part, and each would show "0 of 1 cell"."""
    trial = make_trial("sync")
    display = BudgetProgress([trial], lambda _: 10.0, lambda: 130.0)
    display.begin(trial)
    first, row = lines(display)
    assert first.strip("━ ") == "2m 10s of the budget left"
    assert row.split("s  ")[1] == describe(trial)


def test_the_time_left_is_estimated_from_ended_trials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now_s)
    todo = [make_trial("sync", connections=n) for n in range(4, 12)]

    def predict(_: Trial) -> float | None:
        return 1.0 if now_s else None  # unknown until the first trial has ended

    with Progress(todo, predict, ONE_BY_ONE, lambda _: 30.0) as display:
        for trial in todo[:4]:
            display.begin(trial)
            now_s += 15.0
            display.end(trial, Record(trial.key, None))
    announced, first, *others = capsys.readouterr().err.splitlines()
    assert announced == "8 cells; time left unknown until the app has responded"
    assert first == "[1/8] sync with 4 workers, ab at 4: done in 15.0 s, 48 s to 3m 17s left"
    assert others[-1].endswith("done in 15.0 s, 41 s to 1m 25s left")  # four such trials: 1m 00s


def test_report_skips_newer_runs_without_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(recorded("good"), tmp_path / "good")
    for number, records in enumerate(([], [failed(make_trial("sync"))]), 1):
        directory = tmp_path / f"failed-{number}"
        run_store.create(directory, plan(), {})
        with run_store.appending(directory) as writer:
            for record in records:
                writer.ended(record)
        later = (tmp_path / "good" / "run.json").stat().st_mtime + number
        os.utime(directory / "run.json", (later, later))
    assert find_run(str(tmp_path)).name == "failed-2"  # the one to resume
    assert find_run(str(tmp_path), measured=True).name == "good"
    assert main(["report", str(tmp_path), "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert "failed-2 is newer, but has no results" in err
    assert out.count("\n") > 1
    shutil.rmtree(tmp_path / "good")
    assert find_run(str(tmp_path), measured=True).name == "failed-2"


@pytest.mark.parametrize(
    ("others", "wait", "disturbed"),
    [
        (0.0, 0.0, False),
        (0.0, 0.5, False),  # the tool's own processes compete
        (0.4, 0.0, False),
        (0.4, 0.01, False),  # the tool still had a core
        (0.4, 0.2, True),
        (0.4, None, True),  # the kernel does not report waits, so the cores decide
    ],
)
def test_a_tool_is_disturbed_only_if_it_waited_for_others(
    others: float, wait: float | None, disturbed: bool
) -> None:
    """During a second in which the tool and its server use 0.8 cores each."""
    samples = tuple(
        ProcessSample(round(1e9 * s), 0.8 * s, 0.8 * s, (1.6 + others) * s, None, None,
                      tool_wait_s=None if wait is None else wait * s)
        for s in (0.0, 1.0)
    )  # fmt: skip
    data = with_observations(evidence(), processes=samples)
    assert disturbance(data) == (pytest.approx(others) if disturbed else None)
