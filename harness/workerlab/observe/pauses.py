"""Whether the whole machine stood still: a thread of the lab that was to sleep until a moment went
on much later, although it waited for no core and its process hardly ran.

A host stops its guests for a copy or for a move to another machine, a laptop is closed, a container
is frozen. No counter of a thread has that time, and steal has it only on some hosts. To all else
that is measured it looks like a call that sleeps in the server, or like a load tool that is late.
Where other threads of this process computed meanwhile, or waited for a core, they may have had the
GIL, and that is no pause. Somebody who stops this process alone (Ctrl-Z) looks the same from inside
it. Between two sleeps the thread looks at the kernel's tables, which takes long on a busy machine:
what it neither computed nor waited for a core then is a pause as well, if it is longer than a table
or a file may block a thread.
"""

import os
from threading import Event, Thread
from time import monotonic_ns, process_time_ns, sleep, thread_time_ns

from msgspec import Struct

from workerlab.model import Pause
from workerlab.server.inside.heartbeat import SCHEDSTAT, Others, counted_ns

LEAST_NS = 50_000_000  # far more than a timer is late on a machine that is merely busy
LEAST_AWAKE_NS = 200_000_000
COMPUTED = 0.1  # of the time in question, by other threads of this process
TICK_S = 0.02  # of the thread that watches while another is blocked


class Moment(Struct, frozen=True):
    """Of the thread: CLOCK_MONOTONIC; what it and all threads computed and it waited for a core."""

    at_ns: int
    queued_ns: int
    computed_ns: int
    all_computed_ns: int


class Pauses:
    """Belongs to the thread that makes it. Finds none where the kernel does not say how long a
    thread waits for a core."""

    def __init__(self) -> None:
        try:
            self._schedstat: int | None = os.open(SCHEDSTAT, os.O_RDONLY)
        except OSError:  # another system
            self._schedstat = None
        else:
            self._others = Others()
            self._woke = self._moment(counted_ns(self._schedstat)[1])
        self._others_computed_ns = process_time_ns() - thread_time_ns()

    def close(self) -> None:
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._others.close()

    def sleep(self, stop: Event, seconds: float) -> Pause | None:
        """Until `stop` is set, or for so long: the pause by which that became longer, or the time
        since the last call, if any."""
        if self._schedstat is None:
            stop.wait(seconds)
            return None
        woke, begun = self._woke, self._moment(counted_ns(self._schedstat)[1])
        stop.wait(seconds)
        ran_ns, queued_ns = counted_ns(self._schedstat)
        self._woke = self._moment(queued_ns)
        others_ns = self._others_queued_ns()
        if not ran_ns or others_ns is None:  # the kernel does not count, or not yet
            return None
        planned_ns = round(seconds * 1e9)
        due_ns, late_ns = begun.at_ns + planned_ns, _still_ns(begun, self._woke, planned_ns)
        awake_ns, late = _still_ns(woke, begun), late_ns - others_ns >= LEAST_NS
        if awake_ns - others_ns >= LEAST_AWAKE_NS:
            return Pause(begun.at_ns - awake_ns, due_ns + late_ns if late else begun.at_ns)
        return Pause(due_ns, due_ns + late_ns) if late else None

    def _moment(self, queued_ns: int) -> Moment:
        return Moment(monotonic_ns(), queued_ns, thread_time_ns(), process_time_ns())

    def _others_queued_ns(self) -> int | None:
        """How long other threads waited for a core since the last call. None if one that computed
        has ended: it may have waited all the time."""
        computed_ns = process_time_ns() - thread_time_ns()
        since_ns = computed_ns - self._others_computed_ns
        self._others_computed_ns = computed_ns
        return self._others.queued_ns(since_ns)


def _still_ns(begun: Moment, ended: Moment, planned_ns: int = 0) -> int:
    """Beyond what was planned, in which the thread neither ran nor waited for a core; 0 where other
    threads computed so much that they may have had the GIL."""
    own_ns = ended.computed_ns - begun.computed_ns
    waited_ns = ended.queued_ns - begun.queued_ns + own_ns
    still_ns = ended.at_ns - begun.at_ns - planned_ns - waited_ns
    others_ns = ended.all_computed_ns - begun.all_computed_ns - own_ns
    return still_ns if others_ns <= COMPUTED * still_ns else 0


class PauseWatch:
    """As a context manager: a thread that looks for pauses while another one is blocked, every
    `tick_s`. It watches once the context is entered."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._stop, self._watching = Event(), Event()
        self._pauses: list[Pause] = []
        self._looked_ns = monotonic_ns()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PauseWatch":
        self._thread.start()
        self._watching.wait()  # or a pause that follows at once would be missed
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def stood_still(self, since_ns: int) -> bool:
        """Whether the machine did, after this moment of CLOCK_MONOTONIC."""
        now_ns = monotonic_ns()
        while self._looked_ns < now_ns - LEAST_NS and self._thread.is_alive():
            sleep(TICK_S)  # it may have been in the middle of a pause, too
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
                self._looked_ns = monotonic_ns()
        finally:
            pauses.close()
