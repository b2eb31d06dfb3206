"""Whether the whole machine stood still: a thread of the lab that was to sleep until a moment went
on much later, although it waited for no core and its process hardly ran.

A host stops its guests for a copy or for a move to another machine, a laptop is closed, a container
is frozen. No counter of a thread has that time, and steal has it only on some hosts. To all else
that is measured it looks like a call that sleeps in the server, or like a load tool that is late.
Where other threads of this process computed meanwhile, or waited for a core, they may have had the
GIL, and that is no pause. Somebody who stops this process alone (Ctrl-Z) looks the same from inside
it.
"""

import os
from threading import Event
from time import monotonic_ns, process_time_ns, thread_time_ns

from workerlab.model import Pause
from workerlab.server.inside.heartbeat import SCHEDSTAT, Others, counted_ns

LEAST_NS = 50_000_000  # far more than a timer is late on a machine that is merely busy
COMPUTED = 0.1  # of the time in question, by all threads of this process


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
        self._others_computed_ns = process_time_ns() - thread_time_ns()

    def close(self) -> None:
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._others.close()

    def sleep(self, stop: Event, seconds: float) -> Pause | None:
        """Until `stop` is set, or for so long: the pause by which that became longer, if any."""
        if self._schedstat is None:
            stop.wait(seconds)
            return None
        _, queued_ns = counted_ns(self._schedstat)
        computed_ns, due_ns = process_time_ns(), monotonic_ns() + round(seconds * 1e9)
        stop.wait(seconds)
        ran_ns, now_queued_ns = counted_ns(self._schedstat)
        late_ns = monotonic_ns() - due_ns - (now_queued_ns - queued_ns)
        others_ns = self._others_queued_ns()
        if not ran_ns or others_ns is None:  # the kernel does not count, or not yet
            return None
        if process_time_ns() - computed_ns > COMPUTED * late_ns or late_ns - others_ns < LEAST_NS:
            return None
        return Pause(due_ns, due_ns + late_ns)

    def _others_queued_ns(self) -> int | None:
        """How long other threads waited for a core since the last call. None if one that computed
        has ended: it may have waited all the time."""
        computed_ns = process_time_ns() - thread_time_ns()
        since_ns = computed_ns - self._others_computed_ns
        self._others_computed_ns = computed_ns
        return self._others.queued_ns(since_ns)
