"""Detects pauses of the whole machine: a sleeping thread of the lab wakes up much too late,
although it waited for no core and its process hardly ran.

Hosts stop their guests for a snapshot or a migration, laptops are closed, containers are frozen. No
counter of a thread includes that time, and steal includes it only on some hosts; undetected, it
would look like a call that sleeps in the server, or like a late load tool. Time in which other
threads of this process computed, or waited for a core, is no pause: they may have held the GIL.
Stopping only this process (Ctrl-Z) looks the same from inside. Between two sleeps the thread reads
the kernel's tables, which takes long on a busy machine: time in which it neither computed nor
waited for a core is a pause as well, if it is longer than such a read may block.
"""

import os
from threading import Event, Thread
from time import monotonic_ns, process_time_ns, sleep, thread_time_ns

from msgspec import Struct

from workerlab.model.evidence import Pause
from workerlab.server.inside.waits import SCHEDSTAT, OtherThreads, counted_ns

MIN_PAUSE_NS = 50_000_000  # far above the delay of timers on a busy machine
MIN_AWAKE_PAUSE_NS = 200_000_000  # between two sleeps
MAX_OTHERS_SHARE = 0.1  # of a pause: CPU time of other threads of this process
TICK_S = 0.02  # of the thread that watches while another is blocked


class PauseMoment(Struct, frozen=True):
    """Readings of CLOCK_MONOTONIC, the thread's wait for a core, its CPU, and that of all
    threads."""

    at_ns: int
    queued_ns: int
    computed_ns: int
    all_computed_ns: int


class Pauses:
    """Finds pauses of the thread that creates it; none if the kernel does not count how long
    threads wait for a core."""

    def __init__(self) -> None:
        try:
            self._schedstat: int | None = os.open(SCHEDSTAT, os.O_RDONLY)
        except OSError:  # another system
            self._schedstat = None
        else:
            self._others = OtherThreads()
            self._wake = self._moment(counted_ns(self._schedstat)[1])
        self._others_computed_ns = process_time_ns() - thread_time_ns()

    def close(self) -> None:
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._others.close()

    def sleep(self, stop: Event, seconds: float) -> Pause | None:
        """Sleep for `seconds`, or until `stop` is set. Returns the pause in that time, or since the
        last call, if any."""
        if self._schedstat is None:
            stop.wait(seconds)
            return None
        last_wake, start = self._wake, self._moment(counted_ns(self._schedstat)[1])
        stop.wait(seconds)
        ran_ns, queued_ns = counted_ns(self._schedstat)
        self._wake = self._moment(queued_ns)
        others_ns = self._others_queued_ns()
        if not ran_ns or others_ns is None:  # the kernel does not count, or not yet
            return None
        planned_ns = round(seconds * 1e9)
        due_ns, late_ns = start.at_ns + planned_ns, _paused_ns(start, self._wake, planned_ns)
        awake_ns, late = _paused_ns(last_wake, start), late_ns - others_ns >= MIN_PAUSE_NS
        if awake_ns - others_ns >= MIN_AWAKE_PAUSE_NS:
            return Pause(start.at_ns - awake_ns, due_ns + late_ns if late else start.at_ns)
        return Pause(due_ns, due_ns + late_ns) if late else None

    def _moment(self, queued_ns: int) -> PauseMoment:
        return PauseMoment(monotonic_ns(), queued_ns, thread_time_ns(), process_time_ns())

    def _others_queued_ns(self) -> int | None:
        """How long other threads waited for a core since the last call. None if one of them ended
        after computing: it may have waited all the time."""
        computed_ns = process_time_ns() - thread_time_ns()
        since_ns = computed_ns - self._others_computed_ns
        self._others_computed_ns = computed_ns
        return self._others.queued_ns(since_ns)


def _paused_ns(start: PauseMoment, end: PauseMoment, planned_ns: int = 0) -> int:
    """Time beyond `planned_ns` in which the thread neither ran nor waited for a core; 0 if other
    threads computed so much that they may have held the GIL."""
    own_ns = end.computed_ns - start.computed_ns
    waited_ns = end.queued_ns - start.queued_ns + own_ns
    paused_ns = end.at_ns - start.at_ns - planned_ns - waited_ns
    others_ns = end.all_computed_ns - start.all_computed_ns - own_ns
    return paused_ns if others_ns <= MAX_OTHERS_SHARE * paused_ns else 0


class PauseWatch:
    """A context manager: a thread looks for pauses every `tick_s` while the caller is blocked."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._stop, self._watching = Event(), Event()
        self._pauses: list[Pause] = []
        self._checked_ns = monotonic_ns()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PauseWatch":
        self._thread.start()
        self._watching.wait()  # or an immediate pause would be missed
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def paused_since(self, since_ns: int) -> bool:
        """Whether the machine was paused after this time of CLOCK_MONOTONIC."""
        now_ns = monotonic_ns()
        while self._checked_ns < now_ns - MIN_PAUSE_NS and self._thread.is_alive():
            sleep(TICK_S)  # the pause may have stopped the watching thread, too
        return any(pause.to_ns > since_ns for pause in tuple(self._pauses))

    def _watch(self) -> None:
        try:
            pauses = Pauses()
        finally:
            self._watching.set()
        try:
            while not self._stop.is_set():
                pause = pauses.sleep(self._stop, self._tick_s)
                if pause is not None:
                    self._pauses.append(pause)
                self._checked_ns = monotonic_ns()
        finally:
            pauses.close()
