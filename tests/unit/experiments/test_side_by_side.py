"""Trials in threads of their own: who waits for whom, what is on file, and how all of them end.
Their tasks have no server: the gate and the parallel trials are what is tested."""

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
    found = [threading.Thread(target=one, daemon=True) for one in work]
    for one in found:
        one.start()
    return found


def test_servers_start_one_after_the_other_and_are_measured_together() -> None:
    gate, starting, most, measured = StartupBarrier(), list[str](), list[int](), list[str]()

    def start(key: str) -> None:
        turn = BarrierStartupTurn(gate, key)
        turn.wait_to_start()
        starting.append(key)
        most.append(len(starting))
        time.sleep(0.01)
        starting.remove(key)
        turn.wait_to_measure()
        assert not starting
        measured.append(key)

    for key in "abcd":
        gate.announce(key)
    assert not gate.measuring
    for one in threads(*(lambda key=key: start(key) for key in "abcd")):
        one.join(HANGS_S)
    assert max(most) == 1
    assert sorted(measured) == list("abcd")
    assert gate.measuring
    for key in "abcd":
        gate.leave(key)
    assert not gate.measuring


def test_what_does_not_start_is_not_waited_for() -> None:
    gate = StartupBarrier()
    gate.announce("a")
    gate.announce("b")
    BarrierStartupTurn(gate, "a").wait_to_start()
    turn = BarrierStartupTurn(gate, "b")
    (waiting,) = threads(lambda: [turn.wait_to_start(), turn.wait_to_measure()])
    gate.leave("a")
    waiting.join(HANGS_S)
    assert gate.measuring


@pytest.mark.parametrize("wait", ["wait_to_start", "wait_to_measure"])
def test_the_end_reaches_whoever_waits(wait: str) -> None:
    gate, ended = StartupBarrier(), threading.Event()
    gate.announce("a")
    BarrierStartupTurn(gate, "a").wait_to_start()

    def other() -> None:
        with pytest.raises(Cancelled):
            getattr(BarrierStartupTurn(gate, "b"), wait)()
        ended.set()

    (waiting,) = threads(other)
    gate.end_all()
    assert ended.wait(HANGS_S)
    waiting.join(HANGS_S)
    with pytest.raises(Cancelled):
        gate.raise_if_ended()


# --- parallel trials ------------------------------------------------------------------------


class Bench:
    """Parallel trials that do nothing but `step`, which stands for a server that starts and
    more."""

    def __init__(self, place: Path, step: Step, **changes: Any) -> None:
        self.place, self.step = place, step
        cells = product((SERVER,), ("ab",), (4, 8, 16))
        self.plan: Plan = plan(cells, **{"jobs": None, **changes})
        self.todo = trials(self.plan)
        self.kept: list[Record] = []
        self.ended: list[str] = []
        self.writers: set[int] = set()

    def keep(self, record: Record) -> None:
        self.writers.add(threading.get_ident())
        self.kept.append(record)

    def run(self, cores: int = 2) -> list[tuple[Trial, float]]:
        jobs = JobScheduler(self.plan, cores, requested_rps, drops_known=True)
        parallel = ParallelTrials(
            jobs, self._begin, self.keep, lambda trial, _: self.ended.append(trial.key)
        )
        return parallel.run(self.todo)

    def _begin(self, one: Trial, turn: StartupTurn, _lab: object) -> Task:
        @contextmanager
        def up() -> Iterator[Any]:
            turn.wait_to_start()
            self.step(one, turn)
            raise TrialFailed("server", "there is none")
            yield

        def unused(*_: object) -> Any:
            raise AssertionError

        return Task(one.key, self.place / one.key, up, unused, unused)


def calm(_one: Trial, turn: StartupTurn) -> None:
    turn.wait_to_measure()


def test_one_thread_writes_and_each_knows_who_ran_beside_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, calm)
    assert bench.run() == []
    keys = {one.key for one in bench.todo}
    assert {one.key for one in bench.kept} == set(bench.ended) == keys
    assert bench.writers == {threading.get_ident()}
    for record in bench.kept:
        assert set(record.beside) == keys - {record.key}


def test_no_more_at_once_than_there_is_room_for(tmp_path: Path) -> None:
    running, most, lock = list[str](), list[int](), threading.Lock()

    def step(one: Trial, turn: StartupTurn) -> None:
        with lock:
            running.append(one.key)
            most.append(len(running))
        turn.wait_to_measure()
        with lock:
            running.remove(one.key)

    bench = Bench(tmp_path, step, jobs=2)
    bench.run()
    assert max(most) <= 2
    assert len(bench.kept) == 3


def used(cores: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "lab_cores", lambda _: cores)


@pytest.mark.parametrize(("cores", "again"), [(0.6, False), (0.7, True)])
def test_what_the_cores_were_too_busy_for_runs_again(
    cores: float, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a third of two cores. What failed is no measurement that others could disturb."""
    used(cores, monkeypatch)
    monkeypatch.setattr(side_by_side, "run_trial", _well)
    bench = Bench(tmp_path, calm)
    expected = [(one.key, cores) for one in bench.todo] if again else []
    assert sorted((one.key, used_cores) for one, used_cores in bench.run()) == sorted(expected)
    assert len(bench.kept) == (0 if again else 3)


def _well(task: Task, keep: Callable[[Record], None]) -> Record:
    keep(record := Record(task.key, None))
    return record


def test_what_failed_does_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used(2.0, monkeypatch)
    bench = Bench(tmp_path, calm)
    assert bench.run() == []
    assert {one.fault and one.fault.kind for one in bench.kept} == {"server"}


@pytest.mark.parametrize("error", [Stopped(2), EnvironmentProblem("the disk is full")])
def test_whatever_ends_the_lab_ends_all_of_them(tmp_path: Path, error: BaseException) -> None:
    """One is through; the others hang in what only the end of all ends."""
    through = threading.Event()

    def step(one: Trial, turn: StartupTurn) -> None:
        if one.cell.concurrency == 4:
            through.set()
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
        if len(bench.kept) == 1:
            raise error

    bench.keep = stopping  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        bench.run()
    assert through.is_set()
    first, *others = bench.kept
    assert first.fault == Fault("server", "there is none")
    assert [one.fault for one in others] == [INTERRUPTED] * 2


def test_a_full_disk_hides_nothing(tmp_path: Path) -> None:
    """What cannot be written as all end is no error of its own."""
    bench = Bench(tmp_path, calm)

    def full(_: Record) -> None:
        raise OSError("no space left")

    bench.keep = full  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no space left"):
        bench.run()


def test_what_cannot_run_is_passed_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path, calm)
    begin = bench._begin

    def some(one: Trial, turn: StartupTurn, lab: object) -> Task | None:
        return None if one.cell.concurrency == 8 else begin(one, turn, lab)

    bench._begin = some  # type: ignore[method-assign, assignment]
    bench.run()
    assert {one.key for one in bench.kept} == {
        one.key for one in bench.todo if one.cell.concurrency != 8
    }
