"""Whether the worker's event loop is free: a beat every 20 ms on the loop itself, and where the
time of a late one went. One file, stdlib only, syntax of Python 3.10, loaded by path as the probe.

A beat is a timer of the loop that serves the requests: asyncio's, uvloop's, that of gevent's or
eventlet's hub. A loop that is held up comes to its timers late. Being late alone says nothing of
the app: the loop's thread may have computed, or waited for a core that another program had, or for
the GIL that another thread held. So each beat notes what the kernel counted since the beat before,
of this thread (CPU, and time it was ready to run without a core) and of all others of the process.
What these do not explain, the thread has slept in a call: it was blocked.

After a late beat the next one is due in 1 ms. The loop may have slept in its own poll until a beat
was due, so no more is explained by a blocking call than a beat is late; and of a loop that blocks
again and again, 20 ms between beats would leave the most part unexplained.

The records are a ring in a shared map, as the probe's spans are: they survive the worker's death,
and of a load that outlasts it the last part is kept. Rejected: a greenlet that sleeps (a timer of
gevent's that is not counted as work leaves the end of a worker, and the detection of deadlocks, as
they were), a thread that looks at the loop's stack (it must wait for the GIL itself), the debug
mode of asyncio (it times callbacks, but neither CPU nor waits, and slows every one).
"""

from __future__ import annotations

import contextlib
import contextvars
import mmap
import os
import struct
import sys
from collections.abc import Callable
from os import pread
from time import monotonic_ns as now
from time import process_time_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it takes long to import, and where nobody has, no loop of it runs
    import asyncio

MAGIC = b"WLBEATS1"
# All in nanoseconds: when, since the beat before, late; CPU and waiting for a core, of this thread,
# then of the others of the process
RECORD = struct.Struct("<7q")
pack_into = RECORD.pack_into
RECORDS = 1 << 15  # ten minutes of a loop that is free, two at least of one that never is
HEADER_BYTES = 64  # as of every map
EVERY_NS, SOON_NS = 20_000_000, 1_000_000
LATE_NS = 3_000_000
SEEN_NS = 50_000  # CPU of other threads from which on they are looked at one by one
ENDED_NS = 1_000_000  # CPU of threads that have ended from which on they matter
SCHEDSTAT = "/proc/thread-self/schedstat"
TASKS = "/proc/self/task"

After = Callable[[float, Callable[[], None]], object]  # call it in so many seconds, on the loop


def counted_ns(handle: int) -> tuple[int, int]:
    """How long the thread of this open `schedstat` has computed so far (as of the last tick, where
    it runs), and waited for a core."""
    cpu, queued, _ = pread(handle, 64, 0).split()
    return int(cpu), int(queued)


def available() -> bool:
    """Whether this kernel says how long a thread waited for a core; without it a busy machine would
    look like a call that blocks."""
    try:
        with open(SCHEDSTAT, "rb") as file:
            return int(file.read().split()[0]) > 0
    except (OSError, ValueError, IndexError):
        return False


class Others:
    """How long the other threads of this process waited for a core. A thread that holds the GIL and
    has no core holds up the loop without any CPU."""

    def __init__(self) -> None:
        self.own = os.path.basename(os.readlink("/proc/thread-self"))
        self.threads: dict[str, tuple[int, int, int]] = {}  # open schedstat, and what it said last
        self.queued_ns(0)  # or the life so far of a thread would hide one that has ended since

    def close(self) -> None:
        for handle, _, _ in self.threads.values():
            os.close(handle)

    def queued_ns(self, computed_ns: int) -> int | None:
        """Since it was asked last; of a new thread all of it, rather too much than too little.
        `computed_ns`: what all others together computed since then. None where that was not all
        of threads that still live: how long a thread waited ends with it."""
        before, self.threads, total = self.threads, {}, 0
        for name in os.listdir(TASKS):
            if name == self.own:
                continue
            with contextlib.suppress(OSError):  # it has ended
                if name not in before:
                    before[name] = os.open(f"{TASKS}/{name}/schedstat", os.O_RDONLY), 0, 0
                handle, last_cpu, last = before[name]
                cpu, queued = counted_ns(handle)
                total += queued - last
                computed_ns -= cpu - last_cpu
                self.threads[name] = handle, cpu, queued
                del before[name]
        for handle, _, _ in before.values():
            os.close(handle)
        return total if computed_ns <= ENDED_NS else None


class Heart:
    """Beats from `begin` on, which has to run on the loop."""

    due = 0  # the next beat; 0: it has not begun

    def __init__(
        self, shared: mmap.mmap, records: int, after: After, every_ns: int = EVERY_NS
    ) -> None:
        self.shared, self.after, self.every_ns = shared, after, every_ns
        self.place, self.end = HEADER_BYTES, HEADER_BYTES + records * RECORD.size
        self.stopped = False

    def begin(self) -> None:
        self.schedstat = os.open(SCHEDSTAT, os.O_RDONLY)
        self.others = Others()
        # Children the app forks inherit the map, and gevent's go on with its timers
        os.register_at_fork(after_in_child=self.stop)
        self.unseen = 0  # CPU of others since they were looked at one by one
        self.at, self.cpu, self.process = now(), thread_time_ns(), process_time_ns()
        self.queued = counted_ns(self.schedstat)[1]
        self.due = now() + self.every_ns
        self.after(self.every_ns / 1e9, self.beat)

    def stop(self) -> None:
        self.stopped = True

    def beat(self) -> None:
        """Write what has been since the beat before, and plan the next one. Spelled out flat: it
        comes fifty times a second."""
        if self.stopped:
            return
        at, cpu, process = now(), thread_time_ns(), process_time_ns()
        queued = int(pread(self.schedstat, 64, 0).split(None, 2)[1])
        late, length, own, waits = at - self.due, at - self.at, cpu - self.cpu, 0
        of_others = process - self.process - own
        self.unseen += of_others
        if of_others > SEEN_NS:
            known, self.unseen = self.others.queued_ns(self.unseen), 0
            waits = length if known is None else known  # it may have been all the time
        place, waited = self.place, queued - self.queued
        pack_into(self.shared, place, at, length, late, own, waited, of_others, waits)
        self.place = place + RECORD.size if place + RECORD.size < self.end else HEADER_BYTES
        self.at, self.cpu, self.process, self.queued = at, cpu, process, queued
        delay_ns = SOON_NS if late > LATE_NS else self.every_ns
        self.due = now() + delay_ns
        self.after(delay_ns / 1e9, self.beat)


def start(
    worker: Any,
    create: Callable[[], mmap.mmap],
    records: int = RECORDS,
    every_ns: int = EVERY_NS,
) -> Heart | None:
    """Beat from now on, on the loop that serves this worker; called inside a request. None where
    it has no loop, or where the kernel does not say what a late beat waited for. `create`: the map,
    for so many records."""
    ancestors = {base.__name__ for base in type(worker).__mro__}
    if not available():
        return None
    if "GeventWorker" in ancestors:
        heart = Heart(create(), records, gevent_timers(), every_ns)
        heart.begin()
        return heart
    if "EventletWorker" in ancestors:
        from eventlet.hubs import get_hub

        heart = Heart(create(), records, get_hub().schedule_call_global, every_ns)
        heart.begin()
        return heart
    if loop := asyncio_loop(worker):
        heart = Heart(create(), records, asyncio_timers(loop), every_ns)
        loop.call_soon_threadsafe(heart.begin, context=contextvars.Context())
        return heart
    return None


def gevent_timers() -> After:
    """Timers that gevent does not wait for."""
    import gevent

    loop = gevent.get_hub().loop
    last: Any = None

    def after(delay_s: float, call: Callable[[], None]) -> None:
        nonlocal last
        if last is not None:
            last.close()
        last = loop.timer(delay_s, ref=False)
        last.start(call, update=True)  # or it counts from when the loop last looked at its clock

    return after


def asyncio_loop(worker: Any) -> asyncio.AbstractEventLoop | None:
    """The loop that runs this request; tornado's, if it runs the app in threads."""
    with contextlib.suppress(KeyError, RuntimeError):
        loop: asyncio.AbstractEventLoop = sys.modules["asyncio"].get_running_loop()
        return loop
    return getattr(getattr(worker, "ioloop", None), "asyncio_loop", None)


def asyncio_timers(loop: asyncio.AbstractEventLoop) -> After:
    """In a context of their own: each would keep the request's, in which the first was made."""
    context = contextvars.Context()

    def after(delay_s: float, call: Callable[[], None]) -> None:
        loop.call_later(delay_s, call, context=context)

    return after
