"""Runs trials in parallel, each in its own thread; the calling thread writes their records.

    begin, if the CPU budget allows ─► start, one server at a time ─► warm up ─► wait until none
        starts ─► lone requests and load ─► record, unless the cores were too busy meanwhile

`jobs` keeps the CPU budget; `StartupBarrier` orders the starts. Starting a server takes all cores
for a moment, so servers start one at a time. Trials that begin together are measured once the last
of their servers is up, MIN_APART_S from each other: otherwise all would send and answer requests at
the same moment.

The interpreter switches threads every half millisecond; otherwise the time of a lone request would
include that of other threads.

An interrupt or an error of the lab ends all trials: their servers are killed, and their threads
raise Cancelled as soon as they wait.
"""

import contextlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.samples import lab_cores
from workerlab.experiments.jobs import JobScheduler
from workerlab.experiments.trial import Task
from workerlab.experiments.trial import run as run_trial
from workerlab.model import Fault, Record, Trial
from workerlab.observe.cpu import Lab
from workerlab.observe.observations import read_observations
from workerlab.server.process import Guarded
from workerlab.server.running import StartupTurn

MIN_APART_S = 0.1  # between the starts of two measurements


class Cancelled(BaseException):
    """The lab is ending. Not an Exception, which a handler might swallow."""


class StartupBarrier:
    """Orders the starts of servers, and begins the measurements once no server is starting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._announced: set[str] = set()  # starting, or about to
        self._starting = ""  # key of a trial, or ""
        self._measuring: set[str] = set()
        self._processes: dict[str, Guarded] = {}
        self._next_measurement_s = 0.0  # when the next measurement may begin
        self.ended = False

    @property
    def measuring(self) -> bool:
        """Whether a trial is being measured; the start of a server would disturb it."""
        return bool(self._measuring)

    def announce(self, key: str) -> None:
        """The trial will start a server: no measurement begins before it is up."""
        with self._changed:
            self._announced.add(key)

    def wait_to_start(self, key: str) -> None:
        """Wait until no other server is starting. Raises Cancelled."""
        with self._changed:
            self._wait(lambda: not self._starting)
            self._starting = key

    def started(self, key: str, process: Guarded) -> None:
        with self._changed:
            self._processes[key] = process
        self.raise_if_ended()  # `end_all` may have missed the process

    def wait_to_measure(self, key: str) -> None:
        """Wait until no server is starting and the next measurement may begin. Raises Cancelled."""
        with self._changed:
            self._leave_start(key)
            self._wait(lambda: not self._announced)
            now_s = time.monotonic()
            self._next_measurement_s = max(now_s, self._next_measurement_s) + MIN_APART_S
            pause_s = self._next_measurement_s - MIN_APART_S - now_s
            self._measuring.add(key)
            self._changed.wait_for(lambda: self.ended, pause_s)
            self.raise_if_ended()

    def leave(self, key: str) -> None:
        """The trial has ended, successfully or not."""
        with self._changed:
            self._leave_start(key)
            self._measuring.discard(key)
            self._processes.pop(key, None)

    def raise_if_ended(self, *_: object) -> None:
        """Raises Cancelled if the lab has ended."""
        if self.ended:
            raise Cancelled

    def end_all(self) -> None:
        """Kill all servers; threads that wait raise Cancelled."""
        with self._changed:
            self.ended = True
            for process in self._processes.values():
                process.abandon()
            self._changed.notify_all()

    def _leave_start(self, key: str) -> None:
        self._announced.discard(key)
        self._starting = "" if self._starting == key else self._starting
        self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.ended or condition())
        self.raise_if_ended()


class BarrierStartupTurn(StartupTurn):
    """The turn of one trial at the barrier."""

    def __init__(self, barrier: StartupBarrier, key: str) -> None:
        self._barrier, self._key = barrier, key

    def wait_to_start(self) -> None:
        self._barrier.wait_to_start(self._key)

    def started(self, process: Guarded) -> None:
        self._barrier.started(self._key, process)

    def raise_if_ended(self) -> None:
        self._barrier.raise_if_ended()

    def wait_to_measure(self) -> float:
        began_s = time.monotonic()
        self._barrier.wait_to_measure(self._key)
        return time.monotonic() - began_s


FIT_CHECK_S = 0.25  # after which to check again whether another trial fits
SWITCH_INTERVAL_S = 0.0005  # for `sys.setswitchinterval`; a tenth of the default
INTERRUPTED = Fault("interrupted", "stopped before it was finished")

Begin = Callable[[Trial, StartupTurn, Lab], Task | None]


class TrialOutcome(Struct, frozen=True):
    """The Record of a trial, and the mean number of cores that the lab used meanwhile."""

    record: Record
    cores: float


def _run_in_thread(task: Task, barrier: StartupBarrier) -> TrialOutcome:
    records: list[Record] = []
    try:
        record = run_trial(replace(task, watch=barrier.raise_if_ended), records.append)
    except Cancelled:
        record = records[-1]
    finally:
        barrier.leave(task.key)
    if barrier.ended and record.fault:  # of any kind: the server may have been killed
        record = replace(record, fault=INTERRUPTED)
    return TrialOutcome(record, lab_cores(read_observations(task.directory).processes))


@contextlib.contextmanager
def switch_interval(interval_s: float) -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


class ParallelTrials:
    """Runs a batch of trials in parallel. `begin(trial, turn, lab)` returns the task, or None after
    recording that the trial cannot run; `keep(record)` stores a record; `finish(trial, record)` is
    called after that. All three are called in the thread that calls `run`."""

    def __init__(
        self,
        scheduler: JobScheduler,
        begin: Begin,
        keep: Callable[[Record], None],
        finish: Callable[[Trial, Record], None],
    ) -> None:
        self._scheduler, self._begin, self._keep, self._finish = scheduler, begin, keep, finish
        self._barrier, self._lab, self._budget = StartupBarrier(), Lab(), scheduler.budget()
        self._running: dict[Future[TrialOutcome], Trial] = {}
        self._beside: dict[str, set[str]] = defaultdict(set)  # keys of other trials, by key

    def run(self, batch: Sequence[Trial]) -> list[tuple[Trial, float]]:
        """Run all. Returns the trials to repeat alone, each with the cores used meanwhile."""
        waiting, to_repeat = list(batch), list[tuple[Trial, float]]()
        with ThreadPoolExecutor(len(batch)) as pool, switch_interval(SWITCH_INTERVAL_S):
            try:
                while waiting or self._running:
                    self._begin_fitting(waiting, pool)
                    done, _ = wait(self._running, FIT_CHECK_S if waiting else None, FIRST_COMPLETED)
                    for future in done:
                        to_repeat += self._end(self._running.pop(future), future.result())
            except BaseException:
                self._barrier.end_all()
                pool.shutdown(wait=True)
                self._record_unfinished()
                raise
        return to_repeat

    def _begin_fitting(self, waiting: list[Trial], pool: ThreadPoolExecutor) -> None:
        """Begin every trial that fits, in order."""
        begun = []
        for trial in tuple(waiting):
            cores, now_s = self._scheduler.cores(trial) or 0.0, time.monotonic()
            if self._budget.fits(cores, now_s, loaded=self._barrier.measuring):
                waiting.remove(trial)
                task = self._begin(trial, BarrierStartupTurn(self._barrier, trial.key), self._lab)
                if task is not None:
                    self._budget.enter(trial.key, cores, now_s, loaded=self._barrier.measuring)
                    self._barrier.announce(trial.key)
                    begun.append((trial, task))
        # Submitted once all are announced, as none may be measured before the last is up
        for trial, task in begun:
            for other in self._running.values():
                self._beside[trial.key].add(other.key)
                self._beside[other.key].add(trial.key)
            self._running[pool.submit(_run_in_thread, task, self._barrier)] = trial

    def _end(self, trial: Trial, outcome: TrialOutcome) -> Iterable[tuple[Trial, float]]:
        self._budget.leave(trial.key)
        if not outcome.record.fault and self._exceeds_cores(trial, outcome.cores):
            yield trial, outcome.cores
        else:
            record = self._with_beside(trial, outcome.record)
            self._keep(record)
            self._finish(trial, record)

    def _exceeds_cores(self, trial: Trial, cores: float) -> bool:
        return bool(self._beside[trial.key]) and cores > self._scheduler.max_cores

    def _with_beside(self, trial: Trial, record: Record) -> Record:
        return replace(record, beside=tuple(sorted(self._beside[trial.key])))

    def _record_unfinished(self) -> None:
        """Record the trials that were running when all were stopped."""
        for future, trial in self._running.items():
            with contextlib.suppress(Exception):  # the disk may be full
                self._keep(self._with_beside(trial, future.result().record))
