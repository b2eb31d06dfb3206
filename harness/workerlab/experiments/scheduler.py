"""Runs the trials of all commands, each in its own thread; the calling thread writes their records.

    begin, if the CPU budget allows ─► start, one server at a time ─► warm up ─► wait until none
        starts ─► lone requests and load ─► record, unless the cores were too busy meanwhile

A trial that must run alone is a batch of one. `jobs` decides what runs in parallel and keeps the
CPU budget; `StartupBarrier` orders the starts. Starting a server takes all cores for a moment, so
servers start one at a time. Trials that begin together are measured once the last of their servers
is up, at intervals of MIN_APART_S: otherwise all would send requests at the same moment.

The interpreter switches threads every half millisecond; otherwise the time of a lone request would
include the time of other threads.

An interrupt or an error in the lab ends all trials: their servers are killed, and their threads
raise Cancelled as soon as they wait. Each trial gets a line in the run's files when it begins, so
after a kill at any moment the unfinished trials are known, and run again on resume.
"""

import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from workerlab import run_store
from workerlab.errors import EnvironmentProblem
from workerlab.experiments.jobs import MAX_JOBS, JobPlanner
from workerlab.experiments.trial import INTERRUPTED
from workerlab.model.evidence import Fault, Record
from workerlab.model.plan import Plan, Trial
from workerlab.observe.cpu import Lab
from workerlab.server.process import Guarded
from workerlab.server.running import Cancelled, StartupTurn
from workerlab.terminal import interrupt

MIN_APART_S = 0.1  # between the starts of two measurements
FIT_CHECK_S = 0.25  # between checks whether another trial fits
SWITCH_INTERVAL_S = 0.0005  # for `sys.setswitchinterval`; a tenth of the default


class TrialSource:
    """Prepares the trials of a plan and receives their records. `jobs`: determines their order,
    costs and durations. The function that `prepare` returns and `used_cores` run in threads of the
    trials; all other methods are called in the thread that calls `execute`."""

    def __init__(self, directory: Path, plan: Plan, jobs: JobPlanner) -> None:
        self.directory, self.plan, self.jobs = directory, plan, jobs

    def unfinished(self) -> list[Trial]:
        """Trials without a valid result, in the order of execution."""
        raise NotImplementedError

    def predict(self, trial: Trial) -> float | None:
        """The predicted seconds of the trial; 0 if it will not be launched, None while unknown."""
        return self.jobs.predict(trial)

    def next_batch(self, todo: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
        """The trials to run now, and the rest; see `JobPlanner.next_batch`."""
        return self.jobs.next_batch(todo)

    def prepare(
        self, trial: Trial, turn: StartupTurn, lab: Lab | None
    ) -> Callable[[], Record] | Fault:
        """Returns a function that runs the trial, or a Fault. `lab`: None if it runs alone."""
        raise NotImplementedError

    def used_cores(self, trial: Trial) -> float:
        """The mean number of cores that the lab used during the trial."""
        return 0.0

    def on_result(self, trial: Trial, record: Record) -> None:
        """Update what later trials depend on. Raises EnvironmentProblem if none can run."""


# Shows progress: begin(trial), then watch(server, observer) repeatedly, in the thread of the trial,
# then end(trial, record)
Display = Callable[[TrialSource, Sequence[Trial]], AbstractContextManager[Any]]


def execute(source: TrialSource, todo: Sequence[Trial], display: Display) -> None:
    """Run `todo`, and record each trial when it ends.

    Raises Stopped on a signal, EnvironmentProblem if the disk is not writable or a load host is
    missing.
    """
    with (
        run_store.appending(source.directory) as writer,
        display(source, todo) as screen,
        switch_interval(SWITCH_INTERVAL_S),
    ):
        while todo:
            batch, todo = source.next_batch(todo)
            for trial, cores in Batch(source, writer, screen, batch).run():
                Batch(source, writer, screen, [trial], parallel_cores=cores).run()


@contextlib.contextmanager
def switch_interval(interval_s: float) -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


class StartupBarrier:
    """Orders the starts of servers, and begins the measurements once no server is starting."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.announced: set[str] = set()  # keys of trials that start a server, or are about to
        self.starting = ""  # key of a trial, or ""
        self.measured: set[str] = set()
        self.processes: dict[str, Guarded] = {}
        self.next_measurement_s = 0.0  # earliest time of the next measurement
        self.ended = False

    @property
    def measuring(self) -> bool:
        """Whether a trial is being measured; the start of a server would disturb it."""
        return bool(self.measured)

    def announce(self, key: str) -> None:
        """Announce that the trial will start a server: no measurement begins before that is up."""
        with self.changed:
            self.announced.add(key)

    def wait(
        self, condition: Callable[[], bool] = lambda: False, timeout_s: float | None = None
    ) -> None:
        """Wait for the condition. Raises Cancelled as soon as the lab ends."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended or condition(), timeout_s)
            self.raise_if_ended()

    def leave_start(self, key: str) -> None:
        self.announced.discard(key)
        self.starting = "" if self.starting == key else self.starting
        self.changed.notify_all()

    def leave(self, key: str) -> None:
        """Release a trial that has ended, successfully or not."""
        with self.changed:
            self.leave_start(key)
            self.measured.discard(key)
            self.processes.pop(key, None)

    def raise_if_ended(self) -> None:
        """Raises Cancelled if the lab has ended."""
        if self.ended:
            raise Cancelled

    def end_all(self) -> None:
        """Kill all servers, and make waiting threads raise Cancelled."""
        with self.changed:
            self.ended = True
            for process in self.processes.values():
                process.abandon()
            self.changed.notify_all()


class BarrierStartupTurn(StartupTurn):
    """The turn of one trial at the barrier. `on_watch(server, observer)` draws the progress."""

    def __init__(
        self,
        barrier: StartupBarrier,
        key: str,
        on_watch: Callable[[Any, Any], None] = lambda _server, _observer: None,
    ) -> None:
        self._barrier, self._key, self._on_watch = barrier, key, on_watch

    def wait_to_start(self) -> None:
        """Wait until no other server is starting."""
        with self._barrier.changed:
            self._barrier.wait(lambda: not self._barrier.starting)
            self._barrier.starting = self._key

    def started(self, process: Guarded) -> None:
        with self._barrier.changed:
            self._barrier.processes[self._key] = process
        self.raise_if_ended()  # `end_all` may have missed the process

    def raise_if_ended(self) -> None:
        self._barrier.raise_if_ended()

    def sleep(self, seconds: float) -> None:
        self._barrier.wait(timeout_s=seconds)

    def wait_to_measure(self) -> float:
        """Wait until no server is starting and the next measurement may begin."""
        began_s, barrier = time.monotonic(), self._barrier
        with barrier.changed:
            barrier.leave_start(self._key)
            barrier.wait(lambda: not barrier.announced)
            now_s = time.monotonic()
            begins_s = max(now_s, barrier.next_measurement_s)
            barrier.next_measurement_s = begins_s + MIN_APART_S
            barrier.measured.add(self._key)
            self.sleep(begins_s - now_s)
        return time.monotonic() - began_s

    def watch(self, server: Any, observer: Any) -> None:
        self.raise_if_ended()
        self._on_watch(server, observer)


class TrialOutcome(Struct, frozen=True):
    """The Record of a trial, and the mean number of cores that the lab used meanwhile."""

    record: Record
    cores: float


class Batch:
    """Trials that run in parallel, or a single trial. `parallel_cores`: if this repeats a trial,
    the cores used when it ran in parallel."""

    def __init__(
        self,
        source: TrialSource,
        writer: run_store.Writer,
        screen: Any,
        batch: Sequence[Trial],
        *,
        parallel_cores: float | None = None,
    ) -> None:
        self._source, self._writer, self._screen = source, writer, screen
        self._waiting, self._parallel_cores = list(batch), parallel_cores
        self._lab = Lab() if len(batch) > 1 else None
        self._barrier, self._budget = StartupBarrier(), source.jobs.budget()
        self._running: dict[Future[TrialOutcome], Trial] = {}
        self._parallel_keys: dict[str, set[str]] = defaultdict(set)  # of other trials, by key
        self._to_repeat: list[tuple[Trial, float]] = []

    def run(self) -> list[tuple[Trial, float]]:
        """Run all trials. Returns those to repeat alone, each with the cores used meanwhile."""
        with ThreadPoolExecutor(MAX_JOBS) as pool:
            try:
                while self._waiting or self._running:
                    self._begin_fitting(pool)
                    timeout_s = FIT_CHECK_S if self._waiting else None
                    for future in wait(self._running, timeout_s, FIRST_COMPLETED).done:
                        self._end(future)
            except BaseException:
                self._barrier.end_all()
                pool.shutdown(wait=True)
                self._record_unfinished()
                raise
        return self._to_repeat

    def _begin_fitting(self, pool: ThreadPoolExecutor) -> None:
        """Begin every trial that fits, in order."""
        new_trials = []
        for trial in tuple(self._waiting):
            cores, now_s = self._source.jobs.cores(trial) or 0.0, time.monotonic()
            if self._budget.fits(cores, now_s, loaded=self._barrier.measuring):
                self._waiting.remove(trial)
                run_trial = self._begin(trial)
                if run_trial is not None:
                    self._budget.enter(trial.key, cores, now_s, loaded=self._barrier.measuring)
                    self._barrier.announce(trial.key)
                    new_trials.append((trial, run_trial))
        # Submitted once all are announced, because none may be measured before the last one is up
        for trial, run_trial in new_trials:
            for other in self._running.values():
                self._parallel_keys[trial.key].add(other.key)
                self._parallel_keys[other.key].add(trial.key)
            with interrupt.delayed():
                self._running[pool.submit(self._run_in_thread, trial, run_trial)] = trial

    def _begin(self, trial: Trial) -> Callable[[], Record] | None:
        """Record the start and return a function that runs the trial, or record the Fault."""
        self._screen.begin(trial)
        turn = BarrierStartupTurn(self._barrier, trial.key, self._screen.watch)
        run_or_fault = self._source.prepare(trial, turn, self._lab)
        if isinstance(run_or_fault, Fault):
            record = Record(trial.key, run_or_fault)
            self._writer.ended(record)
            self._screen.end(trial, record)
            return None
        self._writer.began(trial.key)
        return run_or_fault

    def _run_in_thread(self, trial: Trial, run_trial: Callable[[], Record]) -> TrialOutcome:
        try:
            record = run_trial()
        finally:
            self._barrier.leave(trial.key)
        if self._barrier.ended and record.fault:  # of any kind: the server may have been killed
            record = replace(record, fault=INTERRUPTED)
        return TrialOutcome(record, self._source.used_cores(trial) if self._lab else 0.0)

    def _end(self, future: Future[TrialOutcome]) -> None:
        trial, outcome = self._running[future], future.result()
        self._budget.leave(trial.key)
        if self._must_repeat(trial, outcome):
            self._to_repeat.append((trial, outcome.cores))
            del self._running[future]
            return
        record = self._store(trial, outcome.record)
        del self._running[future]  # not before: after an interrupt, `_record_unfinished` needs it
        self._source.on_result(trial, record)
        self._screen.end(trial, record)
        if record.fault and record.fault.kind == "storage":
            raise EnvironmentProblem(record.fault.reason)

    def _must_repeat(self, trial: Trial, outcome: TrialOutcome) -> bool:
        """Whether the cores were too busy while other trials ran in parallel."""
        is_busy = outcome.cores > self._source.jobs.max_cores
        return not outcome.record.fault and bool(self._parallel_keys[trial.key]) and is_busy

    def _store(self, trial: Trial, record: Record) -> Record:
        beside = tuple(sorted(self._parallel_keys[trial.key]))
        record = replace(record, beside=beside, again_cores=self._parallel_cores)
        self._writer.ended(record)
        return record

    def _record_unfinished(self) -> None:
        """Record the trials that were running when all were stopped. The file decides which of them
        have no record, because an interrupt may come right after a record was written."""
        records = run_store.load(self._source.directory).records
        for future, trial in self._running.items():
            if records[trial.key].fault == run_store.NOT_FINISHED:
                with contextlib.suppress(Exception):  # the disk may be full
                    outcome = future.result()
                    if not self._must_repeat(trial, outcome):
                        self._store(trial, outcome.record)
