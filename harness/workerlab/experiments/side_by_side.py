"""Runs trials in parallel, each in its own thread; the calling thread writes their records.

    begin, if the CPU budget allows ─► start, one server at a time ─► warm up ─► wait until none
        starts ─► lone requests and load ─► record, unless the cores were too busy meanwhile

`jobs` keeps the CPU budget; `StartupBarrier` orders the starts. Starting a server takes all cores
for a moment, so servers start one at a time. Trials that begin together are measured once the last
of their servers is up, APART_S from each other: otherwise all would send and answer requests at the
same moment.

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
from workerlab.experiments.jobs import Jobs
from workerlab.experiments.trial import Task
from workerlab.experiments.trial import run as run_trial
from workerlab.model import Fault, Record, Trial
from workerlab.observe.cpu import Lab
from workerlab.observe.observations import read_observations
from workerlab.server.process import Guarded
from workerlab.server.running import Turn

APART_S = 0.1


class Cancelled(BaseException):
    """The lab is ending. Not an Exception, which a handler might swallow."""


class StartupBarrier:
    """Orders the starts of servers, and begins the measurements once no server is starting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._announced: set[str] = set()  # starting, or about to
        self._starting = ""
        self._measured: set[str] = set()
        self._up: dict[str, Guarded] = {}
        self._next_s = 0.0  # when the next trial may be measured
        self.ended = False

    @property
    def loaded(self) -> bool:
        """Whether a trial is being measured; the start of a server would disturb it."""
        return bool(self._measured)

    def announce(self, key: str) -> None:
        with self._changed:
            self._announced.add(key)

    def begin(self, key: str) -> None:
        with self._changed:
            self._wait(lambda: not self._starting)
            self._starting = key

    def started(self, key: str, process: Guarded) -> None:
        with self._changed:
            self._up[key] = process
        self.look()  # `end` may have run just before this and missed the process

    def calm(self, key: str) -> None:
        with self._changed:
            self._done(key)
            self._wait(lambda: not self._announced)
            now_s = time.monotonic()
            self._next_s = max(now_s, self._next_s) + APART_S
            pause_s = self._next_s - APART_S - now_s
            self._measured.add(key)
            self._changed.wait_for(lambda: self.ended, pause_s)
            self.look()

    def leave(self, key: str) -> None:
        """The trial has ended, successfully or not."""
        with self._changed:
            self._done(key)
            self._measured.discard(key)
            self._up.pop(key, None)

    def look(self, *_: object) -> None:
        """Raises Cancelled if the lab has ended."""
        if self.ended:
            raise Cancelled

    def end(self) -> None:
        with self._changed:
            self.ended = True
            for process in self._up.values():
                process.abandon()
            self._changed.notify_all()

    def _done(self, key: str) -> None:
        self._announced.discard(key)
        self._starting = "" if self._starting == key else self._starting
        self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self.ended or condition())
        self.look()


class JobSlot(Turn):
    """The turn of one trial at the barrier."""

    def __init__(self, gate: StartupBarrier, key: str) -> None:
        self._gate, self._key = gate, key

    def begin(self) -> None:
        self._gate.begin(self._key)

    def started(self, process: Guarded) -> None:
        self._gate.started(self._key, process)

    def look(self) -> None:
        self._gate.look()

    def calm(self) -> float:
        began = time.monotonic()
        self._gate.calm(self._key)
        return time.monotonic() - began


LOOK_S = 0.25  # how often to check whether another trial fits
SWITCH_S = 0.0005  # for `sys.setswitchinterval`; a tenth of the default
INTERRUPTED = Fault("interrupted", "stopped before it was finished")

Begin = Callable[[Trial, Turn, Lab], Task | None]


class TrialOutcome(Struct, frozen=True):
    """The Record of a trial, and the cores that the whole lab used meanwhile."""

    record: Record
    cores: float


def _run_in_thread(task: Task, gate: StartupBarrier) -> TrialOutcome:
    records: list[Record] = []
    try:
        record = run_trial(replace(task, watch=gate.look), records.append)
    except Cancelled:
        record = records[-1]
    finally:
        gate.leave(task.key)
    if gate.ended and record.fault:  # of any kind: the server may have been killed
        record = replace(record, fault=INTERRUPTED)
    return TrialOutcome(record, lab_cores(read_observations(task.directory).processes))


@contextlib.contextmanager
def switching(interval_s: float) -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


class ParallelTrials:
    """Runs a batch of trials in parallel. `begin(trial, turn, lab)` returns the task, or None after
    recording that the trial cannot run; `keep(record)` stores a record; `ended(trial, record)`
    handles it. All three are called in the thread that calls `run`."""

    def __init__(
        self,
        jobs: Jobs,
        begin: Begin,
        keep: Callable[[Record], None],
        ended: Callable[[Trial, Record], None],
    ) -> None:
        self._jobs, self._begin, self._keep, self._ended = jobs, begin, keep, ended
        self._gate, self._lab, self._room = StartupBarrier(), Lab(), jobs.room()
        self._running: dict[Future[TrialOutcome], Trial] = {}
        self._beside: dict[str, set[str]] = defaultdict(set)

    def run(self, batch: Sequence[Trial]) -> list[tuple[Trial, float]]:
        """Returns the trials to repeat alone, each with the cores used meanwhile."""
        waiting, to_repeat = list(batch), list[tuple[Trial, float]]()
        with ThreadPoolExecutor(len(batch)) as pool, switching(SWITCH_S):
            try:
                while waiting or self._running:
                    self._fill(waiting, pool)
                    done, _ = wait(self._running, LOOK_S if waiting else None, FIRST_COMPLETED)
                    for future in done:
                        to_repeat += self._end(self._running.pop(future), future.result())
            except BaseException:
                self._gate.end()
                pool.shutdown(wait=True)
                self._keep_the_rest()
                raise
        return to_repeat

    def _fill(self, waiting: list[Trial], pool: ThreadPoolExecutor) -> None:
        """Begin every trial that fits, in order."""
        begun = []
        for trial in tuple(waiting):
            cores, now_s = self._jobs.cores(trial) or 0.0, time.monotonic()
            if self._room.fits(cores, now_s, loaded=self._gate.loaded):
                waiting.remove(trial)
                task = self._begin(trial, JobSlot(self._gate, trial.key), self._lab)
                if task is not None:
                    self._room.enter(trial.key, cores, now_s, loaded=self._gate.loaded)
                    self._gate.announce(trial.key)
                    begun.append((trial, task))
        # Submitted once all are announced, as none may be measured before the last is up
        for trial, task in begun:
            for other in self._running.values():
                self._beside[trial.key].add(other.key)
                self._beside[other.key].add(trial.key)
            self._running[pool.submit(_run_in_thread, task, self._gate)] = trial

    def _end(self, trial: Trial, outcome: TrialOutcome) -> Iterable[tuple[Trial, float]]:
        self._room.leave(trial.key)
        if not outcome.record.fault and self._crowded(trial, outcome.cores):
            yield trial, outcome.cores
        else:
            record = self._with_parallel(trial, outcome.record)
            self._keep(record)
            self._ended(trial, record)

    def _crowded(self, trial: Trial, cores: float) -> bool:
        return bool(self._beside[trial.key]) and cores > self._jobs.most_cores

    def _with_parallel(self, trial: Trial, record: Record) -> Record:
        return replace(record, beside=tuple(sorted(self._beside[trial.key])))

    def _keep_the_rest(self) -> None:
        """Record the trials that were running when all were stopped."""
        for future, trial in self._running.items():
            with contextlib.suppress(Exception):  # the disk may be full
                self._keep(self._with_parallel(trial, future.result().record))
