"""The heartbeat of the worker's event loop: records how late a timer fires, and why. Stdlib only,
syntax of Python 3.10, loaded like the probe.

A beat is a timer, every 20 ms, of the loop that serves the requests: that of asyncio, uvloop, or
the hub of gevent or eventlet. A loop that is held up runs its timers late. The app is not always
the cause: the loop's thread may have computed, waited for a core that another program used, or for
the GIL that another thread held. So each beat records what the kernel counted since the last one,
for this thread (CPU, and waiting for a core) and for all other threads of the process. Time that
these do not explain was spent asleep in a call: the loop was blocked.

After a late beat the next is due in 1 ms. Only the delay of a beat can be attributed to a blocking
call: the loop may have slept in its own poll until the beat was due. With 20 ms between beats, most
of the blocking of a loop that blocks repeatedly would not be attributed.

Records are a ring in a shared map, like the probe's spans: they survive the worker's death, and
keep the last part of a long load. Rejected: a sleeping greenlet (unlike one of gevent's
unreferenced timers, it changes how a worker ends and how deadlocks are detected), a thread that
samples the loop's stack (it must wait for the GIL itself), asyncio's debug mode (it times
callbacks, but neither CPU nor waits, and slows them all).
"""

from __future__ import annotations

import os
from os import pread
from time import monotonic_ns as now
from time import process_time_ns, thread_time_ns

from .families import Loop, Schedule
from .maps import BEATS, Ring
from .waits import SCHEDSTAT, OtherThreads, counted_ns, counts_waits

RECORDS = 1 << 15  # ten minutes of a free loop, at least two of a blocked one
INTERVAL_NS, LATE_INTERVAL_NS = 20_000_000, 1_000_000
LATE_NS = 3_000_000
OTHERS_CPU_NS = 50_000  # if other threads used more CPU than this, their waits are read


class Heart:
    """Beats from `begin` on, which must be called on the loop."""

    due = 0  # when the next beat is due; 0: not begun

    def __init__(self, ring: Ring, schedule: Schedule, interval_ns: int = INTERVAL_NS) -> None:
        self.ring, self.schedule, self.interval_ns = ring, schedule, interval_ns
        self.stopped = False

    def begin(self) -> None:
        self.schedstat = os.open(SCHEDSTAT, os.O_RDONLY)
        self.others = OtherThreads()
        # Forked children inherit the map, and with gevent its timers
        os.register_at_fork(after_in_child=self.stop)
        self.unread_cpu = 0  # of other threads, since they were last read
        self.at, self.cpu, self.process_cpu = now(), thread_time_ns(), process_time_ns()
        self.core_wait = counted_ns(self.schedstat)[1]
        self.due = now() + self.interval_ns
        self.schedule(self.interval_ns / 1e9, self.beat)

    def stop(self) -> None:
        self.stopped = True

    def beat(self) -> None:
        """Write the record of this beat, and schedule the next."""
        if self.stopped:
            return
        at, cpu, process_cpu = now(), thread_time_ns(), process_time_ns()
        core_wait = int(pread(self.schedstat, 64, 0).split(None, 2)[1])
        late, length, own, others_wait = at - self.due, at - self.at, cpu - self.cpu, 0
        others_cpu = process_cpu - self.process_cpu - own
        self.unread_cpu += others_cpu
        if others_cpu > OTHERS_CPU_NS:
            queued_ns, self.unread_cpu = self.others.queued_ns(self.unread_cpu), 0
            others_wait = length if queued_ns is None else queued_ns  # None: possibly all the time
        waited = core_wait - self.core_wait
        self.ring.write(at, length, late, own, waited, others_cpu, others_wait)
        self.at, self.cpu, self.process_cpu, self.core_wait = at, cpu, process_cpu, core_wait
        delay_ns = LATE_INTERVAL_NS if late > LATE_NS else self.interval_ns
        self.due = now() + delay_ns
        self.schedule(delay_ns / 1e9, self.beat)


def start(loop: Loop | None, directory: str, interval_ns: int = INTERVAL_NS) -> Heart | None:
    """Start beating on this loop. None without one, or if the kernel does not count waits. Raises
    OSError if the disk is full."""
    if loop is None or not counts_waits():
        return None
    heart = Heart(Ring(directory, BEATS, RECORDS), loop.schedule, interval_ns)
    loop.call_soon(heart.begin)
    return heart
