"""The scheduler: the order in which servers start, what runs in parallel, the records, and how all
trials end. No server runs: the startup barrier and the threads are tested."""

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
from workerlab.errors import EnvironmentProblem
from workerlab.experiments.jobs import JobPlanner
from workerlab.experiments.scheduler import (
    INTERRUPTED,
    BarrierStartupTurn,
    StartupBarrier,
    TrialSource,
    execute,
)
from workerlab.model.evidence import Fault, Record
from workerlab.model.plan import Plan, Trial
from workerlab.observe.cpu import Lab
from workerlab.plan import product, trials
from workerlab.run_store import Writer, create, load
from workerlab.server.running import Cancelled, StartupTurn
from workerlab.terminal.interrupt import Stopped

HANGS_S = 30.0  # a bound for hanging


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


# --- trials of a run ------------------------------------------------------------------------


Outcome = Fault | None


class Bench(TrialSource):
    """A run whose trials only do `step`, in place of a server's start and load."""

    def __init__(
        self,
        directory: Path,
        step: Callable[[Trial, StartupTurn], Outcome],
        used_cores: float = 0.0,
        **changes: Any,
    ) -> None:
        bench_plan: Plan = plan(
            product((SERVER,), ("ab",), (4, 8, 16)), **{"jobs": None, **changes}
        )
        jobs = JobPlanner(bench_plan, 2, lambda _: None, drops_known=True)
        super().__init__(directory / "run", bench_plan, jobs)
        create(self.directory, bench_plan, {})
        self.step, self.cores_used = step, used_cores
        self.todo, self.running_counts = trials(bench_plan), list[int]()
        self.alone, self.learned, self.shown = list[bool](), list[str](), list[str]()
        self._running, self._lock = set[str](), threading.Lock()

    def prepare(
        self, trial: Trial, turn: StartupTurn, lab: Lab | None
    ) -> Callable[[], Record] | Fault:
        def run() -> Record:
            with self._lock:
                self._running.add(trial.key)
                self.running_counts.append(len(self._running))
            try:
                turn.wait_to_start()
                return Record(trial.key, self.step(trial, turn))
            except Cancelled:
                return Record(trial.key, INTERRUPTED)
            finally:
                with self._lock:
                    self._running.remove(trial.key)

        self.alone.append(lab is None)
        return run

    def used_cores(self, trial: Trial) -> float:
        return self.cores_used

    def on_result(self, trial: Trial, record: Record) -> None:
        self.learned.append(trial.key)

    def run(self) -> list[Record]:
        execute(self, self.todo, self.display)
        return self.records

    @property
    def records(self) -> list[Record]:
        return list(load(self.directory).records.values())

    @contextmanager
    def display(self, *_: object) -> Iterator[Any]:
        yield self

    def begin(self, trial: Trial) -> None:
        self.shown.append(trial.key)

    def watch(self, server: object, observer: object) -> None: ...

    def end(self, trial: Trial, record: Record) -> None:
        self.shown.append(f"{trial.key} ended")


def calm(_trial: Trial, turn: StartupTurn) -> Outcome:
    turn.wait_to_measure()
    return None


@pytest.mark.parametrize(("jobs", "at_once"), [(None, 3), (2, 2), (1, 1)])
def test_trials_run_in_parallel_as_far_as_jobs_allow(
    tmp_path: Path, jobs: int | None, at_once: int
) -> None:
    bench = Bench(tmp_path, calm, jobs=jobs)
    records = bench.run()
    keys = {trial.key for trial in bench.todo}
    assert {record.key for record in records} == set(bench.learned) == keys
    assert all(record.fault is None for record in records)
    assert max(bench.running_counts) <= at_once
    assert bench.alone == [jobs == 1] * 3
    if jobs == 1:
        in_order = [word for key in bench.learned for word in (key, f"{key} ended")]
        assert bench.shown == in_order
    if jobs is None:
        for record in records:
            assert set(record.beside) == keys - {record.key}


@pytest.mark.parametrize(
    ("cores", "fault", "again"),
    [(0.6, None, False), (0.7, None, True), (2.0, Fault("server", "it died"), False)],
)
def test_trials_on_busy_cores_run_again_alone(
    cores: float, fault: Outcome, again: bool, tmp_path: Path
) -> None:
    """The limit is a third of two cores. A failed one does not run again."""
    bench = Bench(tmp_path, lambda *_: fault, used_cores=cores)
    records = bench.run()
    assert [record.again_cores for record in records] == [cores if again else None] * 3
    assert [record.fault for record in records] == [fault] * 3
    assert bench.alone == [False] * 3 + [True] * 3 * again
    assert len(bench.learned) == 3


@pytest.mark.parametrize("error", [Stopped(2), EnvironmentProblem("the disk is full")])
@pytest.mark.parametrize("jobs", [None, 1])
def test_an_error_that_ends_the_lab_ends_all_trials(
    tmp_path: Path, error: BaseException, jobs: int | None
) -> None:
    """One trial has ended; the others wait until all are ended, and what they saw is discarded."""
    first_ended = threading.Event()

    def step(trial: Trial, turn: StartupTurn) -> Outcome:
        if trial.cell.concurrency != 4:
            turn.wait_to_measure()
            first_ended.wait(HANGS_S)
            until(lambda: _ends(turn), "the end")
        return Fault("server", "it was killed")

    def _ends(turn: StartupTurn) -> bool:
        try:
            turn.sleep(0.01)
            turn.watch(None, None)
        except Cancelled:
            return True
        return False

    bench = Bench(tmp_path, step, jobs=jobs)

    def on_result(trial: Trial, record: Record) -> None:
        first_ended.set()
        raise error

    bench.on_result = on_result
    with pytest.raises(type(error)):
        bench.run()
    by_level = {trial.cell.concurrency: trial.key for trial in bench.todo}
    faults = {record.key: record.fault for record in bench.records}
    assert faults.pop(by_level[4]) == Fault("server", "it was killed")
    assert list(faults.values()) == [INTERRUPTED] * (2 if jobs is None else 0)


def test_a_trial_that_ended_before_the_interrupt_is_not_lost(tmp_path: Path) -> None:
    """The signal comes while the record of another is written; both have ended well."""
    all_ended = threading.Barrier(3)

    def step(_trial: Trial, turn: StartupTurn) -> Outcome:
        turn.wait_to_measure()
        all_ended.wait(HANGS_S)
        return None

    bench = Bench(tmp_path, step)

    def on_result(*_: object) -> None:
        raise Stopped(2)

    bench.on_result = on_result
    with pytest.raises(Stopped):
        bench.run()
    assert [record.fault for record in bench.records] == [None] * 3


def test_a_record_is_written_once_when_an_interrupt_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = Writer.ended, list[str]()

    def ended(writer: Writer, record: Record) -> None:
        written.append(record.key)
        write(writer, record)
        if len(written) == 1:
            raise Stopped(2)

    monkeypatch.setattr(Writer, "ended", ended)
    with pytest.raises(Stopped):
        Bench(tmp_path, calm).run()
    assert len(written) == len(set(written)) == 3


def test_a_full_disk_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda *_: Fault("storage", "no space left"), jobs=1)
    with pytest.raises(EnvironmentProblem, match="no space left"):
        bench.run()
    assert len(bench.learned) == 1


def test_trials_that_cannot_run_are_recorded_and_skipped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, calm)
    prepare, why = bench.prepare, Fault("unavailable", "not installed")
    bench.prepare = lambda trial, turn, lab: (
        why if trial.cell.concurrency == 8 else prepare(trial, turn, lab)
    )
    faults = {record.key: record.fault for record in bench.run()}
    assert faults == {
        trial.key: why if trial.cell.concurrency == 8 else None for trial in bench.todo
    }
    assert len(bench.learned) == 2  # nothing is known of the one that was not launched
