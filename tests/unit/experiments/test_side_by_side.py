"""Trials in parallel threads: the order of their starts, their records, and how all of them end.
No server runs: the startup barrier and the parallel trials are tested."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.builders.conditions import until
from tests.builders.plan import SERVER, plan
from workerlab.experiments import side_by_side
from workerlab.experiments.execution import requested_rps
from workerlab.experiments.jobs import JobScheduler
from workerlab.experiments.side_by_side import (
    INTERRUPTED,
    BarrierStartupTurn,
    Cancelled,
    ParallelTrials,
    StartupBarrier,
)
from workerlab.experiments.trial import Task
from workerlab.model import EnvironmentProblem, Fault, Plan, Record, Trial
from workerlab.plan import product, trials
from workerlab.server.running import StartupTurn, TrialFailed
from workerlab.terminal.interrupt import Stopped

HANGS_S = 30.0  # a bound for hanging

Step = Callable[[Trial, StartupTurn], None]


def threads(*work: Callable[[], object]) -> list[threading.Thread]:
    started = [threading.Thread(target=target, daemon=True) for target in work]
    for thread in started:
        thread.start()
    return started


def test_servers_start_one_after_the_other_and_are_measured_together() -> None:
    barrier = StartupBarrier()
    starting, starting_counts, measured = list[str](), list[int](), list[str]()

    def start(key: str) -> None:
        turn = BarrierStartupTurn(barrier, key)
        turn.wait_to_start()
        starting.append(key)
        starting_counts.append(len(starting))
        time.sleep(0.01)
        starting.remove(key)
        turn.wait_to_measure()
        assert not starting
        measured.append(key)

    for key in "abcd":
        barrier.announce(key)
    assert not barrier.measuring
    for thread in threads(*(lambda key=key: start(key) for key in "abcd")):
        thread.join(HANGS_S)
    assert max(starting_counts) == 1
    assert sorted(measured) == list("abcd")
    assert barrier.measuring
    for key in "abcd":
        barrier.leave(key)
    assert not barrier.measuring


def test_a_trial_that_has_left_is_not_waited_for() -> None:
    barrier = StartupBarrier()
    barrier.announce("a")
    barrier.announce("b")
    BarrierStartupTurn(barrier, "a").wait_to_start()
    turn = BarrierStartupTurn(barrier, "b")
    (waiting,) = threads(lambda: [turn.wait_to_start(), turn.wait_to_measure()])
    barrier.leave("a")
    waiting.join(HANGS_S)
    assert barrier.measuring


@pytest.mark.parametrize("wait", ["wait_to_start", "wait_to_measure"])
def test_waiting_trials_are_cancelled_at_the_end(wait: str) -> None:
    barrier, ended = StartupBarrier(), threading.Event()
    barrier.announce("a")
    BarrierStartupTurn(barrier, "a").wait_to_start()

    def other() -> None:
        with pytest.raises(Cancelled):
            getattr(BarrierStartupTurn(barrier, "b"), wait)()
        ended.set()

    (waiting,) = threads(other)
    barrier.end_all()
    assert ended.wait(HANGS_S)
    waiting.join(HANGS_S)
    with pytest.raises(Cancelled):
        barrier.raise_if_ended()


# --- parallel trials ------------------------------------------------------------------------


class Bench:
    """Parallel trials that only run `step`, in place of a server's start and load."""

    def __init__(self, directory: Path, step: Step, **changes: Any) -> None:
        self.directory, self.step = directory, step
        cells = product((SERVER,), ("ab",), (4, 8, 16))
        self.plan: Plan = plan(cells, **{"jobs": None, **changes})
        self.todo = trials(self.plan)
        self.records: list[Record] = []
        self.ended: list[str] = []
        self.writers: set[int] = set()

    def keep(self, record: Record) -> None:
        self.writers.add(threading.get_ident())
        self.records.append(record)

    def run(self, cores: int = 2) -> list[tuple[Trial, float]]:
        jobs = JobScheduler(self.plan, cores, requested_rps, drops_known=True)
        parallel = ParallelTrials(
            jobs, self._begin, self.keep, lambda trial, _: self.ended.append(trial.key)
        )
        return parallel.run(self.todo)

    def _begin(self, trial: Trial, turn: StartupTurn, _lab: object) -> Task:
        @contextmanager
        def up() -> Iterator[Any]:
            turn.wait_to_start()
            self.step(trial, turn)
            raise TrialFailed("server", "there is none")
            yield

        def unused(*_: object) -> Any:
            raise AssertionError

        return Task(trial.key, self.directory / trial.key, up, unused, unused)


def calm(_one: Trial, turn: StartupTurn) -> None:
    turn.wait_to_measure()


def test_one_thread_writes_records_that_name_the_parallel_trials(tmp_path: Path) -> None:
    bench = Bench(tmp_path, calm)
    assert bench.run() == []
    keys = {trial.key for trial in bench.todo}
    assert {record.key for record in bench.records} == set(bench.ended) == keys
    assert bench.writers == {threading.get_ident()}
    for record in bench.records:
        assert set(record.beside) == keys - {record.key}


def test_no_more_trials_at_once_than_jobs(tmp_path: Path) -> None:
    running, running_counts, lock = list[str](), list[int](), threading.Lock()

    def step(trial: Trial, turn: StartupTurn) -> None:
        with lock:
            running.append(trial.key)
            running_counts.append(len(running))
        turn.wait_to_measure()
        with lock:
            running.remove(trial.key)

    bench = Bench(tmp_path, step, jobs=2)
    bench.run()
    assert max(running_counts) <= 2
    assert len(bench.records) == 3


def set_lab_cores(cores: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "lab_cores", lambda _: cores)


@pytest.mark.parametrize(("cores", "again"), [(0.6, False), (0.7, True)])
def test_trials_on_busy_cores_run_again(
    cores: float, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is a third of two cores."""
    set_lab_cores(cores, monkeypatch)
    monkeypatch.setattr(side_by_side, "run_trial", _succeed)
    bench = Bench(tmp_path, calm)
    expected = [(trial.key, cores) for trial in bench.todo] if again else []
    assert sorted((trial.key, used_cores) for trial, used_cores in bench.run()) == sorted(expected)
    assert len(bench.records) == (0 if again else 3)


def _succeed(task: Task, keep: Callable[[Record], None]) -> Record:
    keep(record := Record(task.key, None))
    return record


def test_failed_trials_do_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_lab_cores(2.0, monkeypatch)
    bench = Bench(tmp_path, calm)
    assert bench.run() == []
    assert {record.fault and record.fault.kind for record in bench.records} == {"server"}


@pytest.mark.parametrize("error", [Stopped(2), EnvironmentProblem("the disk is full")])
def test_an_error_that_ends_the_lab_ends_all_trials(tmp_path: Path, error: BaseException) -> None:
    """One trial has ended; the others wait until all are ended."""
    first_ended = threading.Event()

    def step(trial: Trial, turn: StartupTurn) -> None:
        if trial.cell.concurrency == 4:
            first_ended.set()
            return
        turn.wait_to_measure()
        until(lambda: _ends(turn), "the end")
        raise TrialFailed("server", "it was killed")

    def _ends(turn: StartupTurn) -> bool:
        try:
            turn.raise_if_ended()
        except Cancelled:
            return True
        return False

    bench = Bench(tmp_path, step)
    keep = bench.keep

    def stopping(record: Record) -> None:
        keep(record)
        if len(bench.records) == 1:
            raise error

    bench.keep = stopping
    with pytest.raises(type(error)):
        bench.run()
    assert first_ended.is_set()
    first, *others = bench.records
    assert first.fault == Fault("server", "there is none")
    assert [record.fault for record in others] == [INTERRUPTED] * 2


def test_a_full_disk_raises_its_own_error(tmp_path: Path) -> None:
    """Records that cannot be written at the end raise no further error."""
    bench = Bench(tmp_path, calm)

    def full(_: Record) -> None:
        raise OSError("no space left")

    bench.keep = full
    with pytest.raises(OSError, match="no space left"):
        bench.run()


def test_trials_that_cannot_run_are_skipped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, calm)
    begin = bench._begin

    def begin_others(trial: Trial, turn: StartupTurn, lab: object) -> Task | None:
        return None if trial.cell.concurrency == 8 else begin(trial, turn, lab)

    bench._begin = begin_others
    bench.run()
    assert {record.key for record in bench.records} == {
        trial.key for trial in bench.todo if trial.cell.concurrency != 8
    }
