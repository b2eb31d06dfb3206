"""Runs trials at the same time, each in a thread of its own; they are written down by one.

    begin, where there is room ─► starts, when no other does ─► warm ─► waits until none starts
        ─► lone requests and load ─► ended: kept, unless the cores were too busy meanwhile

Their threads take turns at the interpreter every half millisecond, or the seconds of a lone request
would be those of others' threads, too. Who waits for whom: `gate`; what there is room for: `room`.
What ends the lab ends all of them.
"""

import contextlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.samples import lab_cores
from workerlab.experiments import trial
from workerlab.experiments.gate import Ended, Gate, Place
from workerlab.experiments.jobs import Jobs
from workerlab.model import Fault, Record, Trial
from workerlab.observe.cpu import Lab
from workerlab.observe.observations import read_observations
from workerlab.server.running import Turn

LOOK_S = 0.25  # whether there is room for another one now
SWITCH_S = 0.0005  # as in `sys.setswitchinterval`, whose default is ten times that
INTERRUPTED = Fault("interrupted", "stopped before it was finished")

Begin = Callable[[Trial, Turn, Lab], trial.Task | None]


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
