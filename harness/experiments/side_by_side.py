"""Runs trials at the same time, each in a thread of its own; they are written down by one.

    begin, where there is room ─► starts, when no other does ─► warm ─► waits until none starts
        ─► lone requests and load ─► ended: kept, unless the cores were too busy meanwhile

Their threads take turns at the interpreter every half millisecond, or the seconds of a lone request
would be those of others' threads, too. They are measured from moments a little apart: else all of
them would be answered, and ask again, at once.

To start takes all the cores for a moment, so servers start one after the other, and those that
begin together are loaded when the last of them is up. While others are under load a server starts
only where the cores have room for that (`jobs`).

What ends the lab ends all of them: their servers are killed, and what they wait for raises Ended.
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

from harness.analysis.samples import lab_cores
from harness.experiments import trial
from harness.experiments.jobs import Jobs
from harness.model import Fault, Record, Trial
from harness.observe.cpu import Lab
from harness.observe.observations import read_observations
from harness.server.process import Guarded
from harness.server.running import Turn

LOOK_S = 0.25  # whether there is room for another one now
SWITCH_S = 0.0005  # as in `sys.setswitchinterval`, whose default is ten times that
APART_S = 0.1
INTERRUPTED = Fault("interrupted", "stopped before it was finished")

Begin = Callable[[Trial, Turn, Lab], trial.Task | None]


class Ended(BaseException):
    """The lab ends, and this trial with it. Not an Exception: nothing may swallow it."""


class Gate:
    """Who starts, and who is measured."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._announced: set[str] = set()  # they start, or will
        self._starting = ""
        self._measured: set[str] = set()
        self._up: dict[str, Guarded] = {}
        self._next_s = 0.0  # when the next one may be measured
        self.ended = False

    @property
    def loaded(self) -> bool:
        """Whether somebody is measured, whom the start of another one would disturb."""
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
        self.look()  # what comes up as all end was not among those that were ended

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
        """Whatever became of it."""
        with self._changed:
            self._done(key)
            self._measured.discard(key)
            self._up.pop(key, None)

    def look(self, *_: object) -> None:
        """Whether to go on: raises Ended where not."""
        if self.ended:
            raise Ended

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


class Place(Turn):
    """Of one trial at the gate."""

    def __init__(self, gate: Gate, key: str) -> None:
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


class Lane(Struct, frozen=True):
    """What became of a trial: its Record, and the cores that the whole lab used meanwhile."""

    record: Record
    cores: float


def _lane(task: trial.Task, gate: Gate) -> Lane:
    kept: list[Record] = []
    try:
        record = trial.run(replace(task, watch=gate.look), kept.append)
    except Ended:
        record = kept[-1]
    finally:
        gate.leave(task.key)
    if gate.ended and record.fault:  # of whatever kind: a server that was killed
        record = replace(record, fault=INTERRUPTED)
    return Lane(record, lab_cores(read_observations(task.directory).processes))


@contextlib.contextmanager
def switching(interval_s: float) -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(interval_s)
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)


class Lanes:
    """`begin(one, turn, lab)`: what there is to run; None where nothing is, which is on file then.
    `keep(record)` puts one on file, `ended(one, record)` learns of it. All of them are called by
    the thread that calls `run`."""

    def __init__(
        self,
        jobs: Jobs,
        begin: Begin,
        keep: Callable[[Record], None],
        ended: Callable[[Trial, Record], None],
    ) -> None:
        self._jobs, self._begin, self._keep, self._ended = jobs, begin, keep, ended
        self._gate, self._lab, self._room = Gate(), Lab(), jobs.room()
        self._running: dict[Future[Lane], Trial] = {}
        self._beside: dict[str, set[str]] = defaultdict(set)

    def run(self, batch: Sequence[Trial]) -> list[tuple[Trial, float]]:
        """Returns those that are to run again, alone, and how many cores were used meanwhile."""
        waiting, again = list(batch), list[tuple[Trial, float]]()
        with ThreadPoolExecutor(len(batch)) as pool, switching(SWITCH_S):
            try:
                while waiting or self._running:
                    self._fill(waiting, pool)
                    done, _ = wait(self._running, LOOK_S if waiting else None, FIRST_COMPLETED)
                    for one in done:
                        again += self._end(self._running.pop(one), one.result())
            except BaseException:
                self._gate.end()
                pool.shutdown(wait=True)
                self._keep_the_rest()
                raise
        return again

    def _fill(self, waiting: list[Trial], pool: ThreadPoolExecutor) -> None:
        """Begin all that there is room for, in their order."""
        begun = []
        for one in tuple(waiting):
            cores, now_s = self._jobs.cores(one) or 0.0, time.monotonic()
            if self._room.fits(cores, now_s, loaded=self._gate.loaded):
                waiting.remove(one)
                task = self._begin(one, Place(self._gate, one.key), self._lab)
                if task is not None:
                    self._room.enter(one.key, cores, now_s, loaded=self._gate.loaded)
                    self._gate.announce(one.key)
                    begun.append((one, task))
        for one, task in begun:  # all of them are announced before the first is up
            for other in self._running.values():
                self._beside[one.key].add(other.key)
                self._beside[other.key].add(one.key)
            self._running[pool.submit(_lane, task, self._gate)] = one

    def _end(self, one: Trial, lane: Lane) -> Iterable[tuple[Trial, float]]:
        self._room.leave(one.key)
        if not lane.record.fault and self._crowded(one, lane.cores):
            yield one, lane.cores
        else:
            record = self._told(one, lane.record)
            self._keep(record)
            self._ended(one, record)

    def _crowded(self, one: Trial, cores: float) -> bool:
        return bool(self._beside[one.key]) and cores > self._jobs.most_cores

    def _told(self, one: Trial, record: Record) -> Record:
        return replace(record, beside=tuple(sorted(self._beside[one.key])))

    def _keep_the_rest(self) -> None:
        """Of what had ended when all were ended, and how far the others had come."""
        for future, one in self._running.items():
            with contextlib.suppress(Exception):  # the disk may be full, which is why they end
                self._keep(self._told(one, future.result().record))
