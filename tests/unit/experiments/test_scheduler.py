"""The scheduler: the order in which servers start, the trials that run in parallel, their records,
and how all trials end. Only the startup barrier and the threads are tested, without a server."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.builders.conditions import until
from tests.builders.plan import plan
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
from workerlab.model.plan import Trial
from workerlab.observe.cpu import Lab
from workerlab.plan import trials
from workerlab.run_store import Writer, create, load
from workerlab.server.running import Cancelled, StartupTurn
from workerlab.terminal import interrupt
from workerlab.terminal.interrupt import Stopped

HANGS_S = 30.0  # a test that waits longer hangs


def in_thread(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


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
    for thread in [in_thread(partial(start, key)) for key in "abcd"]:
        thread.join(HANGS_S)
    assert max(starting_counts) == 1
    assert sorted(measured) == list("abcd")
    assert barrier.measuring
    for key in "abcd":
        barrier.leave(key)
    assert not barrier.measuring


def test_a_trial_that_has_left_delays_no_other() -> None:
    barrier = StartupBarrier()
    barrier.announce("a")
    barrier.announce("b")
    BarrierStartupTurn(barrier, "a").wait_to_start()
    turn = BarrierStartupTurn(barrier, "b")
    thread = in_thread(lambda: [turn.wait_to_start(), turn.wait_to_measure()])
    barrier.leave("a")
    thread.join(HANGS_S)
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

    thread = in_thread(other)
    barrier.end_all()
    assert ended.wait(HANGS_S)
    thread.join(HANGS_S)
    with pytest.raises(Cancelled):
        barrier.raise_if_ended()


# --- trials of a run ------------------------------------------------------------------------


class RunWithoutServers(TrialSource):
    """A run of three trials that only call `step`, which returns their fault."""

    def __init__(
        self,
        directory: Path,
        step: Callable[[Trial, StartupTurn], Fault | None],
        *,
        jobs: int | None = None,
        used_cores: float = 0.0,
    ) -> None:
        sweep = plan(jobs=jobs)
        planner = JobPlanner(sweep, 2, lambda _: None, drops_known=True)
        super().__init__(directory / "run", sweep, planner)
        create(self.directory, sweep, {})
        self.step, self.cores_used = step, used_cores
        self.todo, self.running_counts = trials(sweep), list[int]()
        self.alone, self.result_keys, self.display_calls = list[bool](), list[str](), list[str]()
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
        self.result_keys.append(trial.key)

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
        self.display_calls.append(trial.key)

    def watch(self, server: object, observer: object) -> None: ...

    def end(self, trial: Trial, record: Record) -> None:
        self.display_calls.append(f"{trial.key} ended")


def succeed(_trial: Trial, turn: StartupTurn) -> None:
    turn.wait_to_measure()


@pytest.mark.parametrize(("jobs", "at_once"), [(None, 3), (2, 2), (1, 1)])
def test_trials_run_in_parallel_as_far_as_jobs_allow(
    tmp_path: Path, jobs: int | None, at_once: int
) -> None:
    run = RunWithoutServers(tmp_path, succeed, jobs=jobs)
    records = run.run()
    keys = {trial.key for trial in run.todo}
    assert {record.key for record in records} == set(run.result_keys) == keys
    assert all(record.fault is None for record in records)
    assert max(run.running_counts) <= at_once
    assert run.alone == [jobs == 1] * 3
    if jobs == 1:
        in_order = [call for key in run.result_keys for call in (key, f"{key} ended")]
        assert run.display_calls == in_order
    if jobs is None:
        for record in records:
            assert set(record.beside) == keys - {record.key}


@pytest.mark.parametrize(
    ("cores", "fault", "is_repeated"),
    [(0.6, None, False), (0.7, None, True), (2.0, Fault("server", "it died"), False)],
)
def test_trials_on_busy_cores_are_repeated_alone(
    cores: float, fault: Fault | None, is_repeated: bool, tmp_path: Path
) -> None:
    """The limit is a third of two cores. A failed trial is not repeated."""
    run = RunWithoutServers(tmp_path, lambda *_: fault, used_cores=cores)
    records = run.run()
    assert [record.again_cores for record in records] == [cores if is_repeated else None] * 3
    assert [record.fault for record in records] == [fault] * 3
    assert run.alone == [False] * 3 + [True] * 3 * is_repeated
    assert len(run.result_keys) == 3


@pytest.mark.parametrize("error", [Stopped(2), EnvironmentProblem("the disk is full")])
@pytest.mark.parametrize("jobs", [None, 1])
def test_an_error_that_ends_the_lab_ends_all_trials(
    tmp_path: Path, error: BaseException, jobs: int | None
) -> None:
    """One trial has ended; the others wait until all are ended, and their faults are discarded."""
    first_ended, killed = threading.Event(), Fault("server", "it was killed")

    def step(trial: Trial, turn: StartupTurn) -> Fault:
        if trial.cell.concurrency != 4:
            turn.wait_to_measure()
            first_ended.wait(HANGS_S)
            until(lambda: is_cancelled(turn), "the end")
        return killed

    def is_cancelled(turn: StartupTurn) -> bool:
        try:
            turn.sleep(0.01)
            turn.watch(None, None)
        except Cancelled:
            return True
        return False

    def on_result(trial: Trial, record: Record) -> None:
        first_ended.set()
        raise error

    run = RunWithoutServers(tmp_path, step, jobs=jobs)
    run.on_result = on_result
    with pytest.raises(type(error)):
        run.run()
    (first_key,) = (trial.key for trial in run.todo if trial.cell.concurrency == 4)
    faults = {record.key: record.fault for record in run.records}
    assert faults.pop(first_key) == killed
    assert list(faults.values()) == [INTERRUPTED] * (2 if jobs is None else 0)


def test_a_trial_that_ended_before_the_interrupt_is_not_lost(tmp_path: Path) -> None:
    """The signal arrives while the record of another trial is written; all have succeeded."""
    all_ended = threading.Barrier(3)

    def step(_trial: Trial, turn: StartupTurn) -> None:
        turn.wait_to_measure()
        all_ended.wait(HANGS_S)

    def on_result(*_: object) -> None:
        raise Stopped(2)

    run = RunWithoutServers(tmp_path, step)
    run.on_result = on_result
    with pytest.raises(Stopped):
        run.run()
    assert [record.fault for record in run.records] == [None] * 3


def test_a_record_is_written_once_when_an_interrupt_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, keys = Writer.ended, list[str]()

    def ended(writer: Writer, record: Record) -> None:
        keys.append(record.key)
        write(writer, record)
        if len(keys) == 1:
            raise Stopped(2)

    monkeypatch.setattr(Writer, "ended", ended)
    with pytest.raises(Stopped):
        RunWithoutServers(tmp_path, succeed).run()
    assert len(keys) == len(set(keys)) == 3


@pytest.fixture
def _signal_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in interrupt.SIGNALS}
    interrupt.install()
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signal_handlers")
def test_no_thread_is_left_if_a_signal_arrives_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, threads = threading.Thread.start, list[threading.Thread]()

    def start_with_signal(thread: threading.Thread) -> None:
        start(thread)
        threads.append(thread)
        signal.raise_signal(signal.SIGTERM)

    def step(_trial: Trial, turn: StartupTurn) -> None:
        try:
            turn.sleep(HANGS_S)
        except Cancelled:
            time.sleep(0.3)  # a server takes time to end
            raise

    monkeypatch.setattr(threading.Thread, "start", start_with_signal)
    run = RunWithoutServers(tmp_path, step)
    with pytest.raises(Stopped):
        run.run()
    assert [thread.is_alive() for thread in threads] == [False]
    assert INTERRUPTED in [record.fault for record in run.records]


def test_a_full_disk_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    run = RunWithoutServers(tmp_path, lambda *_: Fault("storage", "no space left"), jobs=1)
    with pytest.raises(EnvironmentProblem, match="no space left"):
        run.run()
    assert len(run.result_keys) == 1


def test_trials_that_cannot_run_are_recorded_and_skipped(tmp_path: Path) -> None:
    run = RunWithoutServers(tmp_path, succeed)
    prepare, fault = run.prepare, Fault("unavailable", "not installed")
    unavailable = run.todo[1].key
    run.prepare = lambda trial, turn, lab: (
        fault if trial.key == unavailable else prepare(trial, turn, lab)
    )
    faults = {record.key: record.fault for record in run.run()}
    assert faults == {trial.key: None for trial in run.todo} | {unavailable: fault}
    assert len(run.result_keys) == 2  # a trial that was not launched has no result
