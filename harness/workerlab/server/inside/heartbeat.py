"""Heartbeat of the worker's event loop: a timer every 20 ms, how late it fires, and why. Stdlib
only, syntax of Python 3.10, loaded like the probe.

A beat is a timer of the loop that serves the requests: that of asyncio, uvloop, or the hub of
gevent or eventlet. A loop that is held up runs its timers late. The app is not always the cause:
the loop's thread may have computed, waited for a core that another program used, or for the GIL
that another thread held. So each beat records what the kernel counted since the last one, for this
thread (CPU, and waiting for a core) and for all others of the process. Time that these do not
explain was spent asleep in a call: the loop was blocked.

After a late beat the next is due in 1 ms. Only the delay of a beat can be attributed to a blocking
call, as the loop may have slept in its own poll until the beat was due. With 20 ms between beats,
most of the blocking of a loop that blocks repeatedly would not be attributed.

Records are a ring in a shared map, like the probe's spans: they survive the worker's death, and of
a long load the last part is kept. Rejected: a sleeping greenlet (unlike one of gevent's
unreferenced timers, it changes how a worker ends and how deadlocks are detected), a thread that
samples the loop's stack (it must wait for the GIL itself), asyncio's debug mode (it times
callbacks, but neither CPU nor waits, and slows them all).
"""

from __future__ import annotations

import contextlib
import contextvars
import mmap
import os
import sys
from collections.abc import Callable
from os import pread
from time import monotonic_ns as now
from time import process_time_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from .maps import BEATS, HEADER_BYTES
from .waits import SCHEDSTAT, Others, available, counted_ns

if TYPE_CHECKING:  # slow to import, and without it there is no asyncio loop
    import asyncio

RECORD = BEATS.record
pack_into = RECORD.pack_into
RECORDS = 1 << 15  # ten minutes of a free loop, at least two of a blocked one
EVERY_NS, SOON_NS = 20_000_000, 1_000_000
LATE_NS = 3_000_000
OTHERS_CPU_NS = 50_000  # CPU of other threads, above which each of them is read

After = Callable[[float, Callable[[], None]], object]  # (seconds, callback), on the loop


class Heart:
    """Beats from `begin` on, which must be called on the loop."""

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
        # Forked children inherit the map, and with gevent its timers
        os.register_at_fork(after_in_child=self.stop)
        self.unseen = 0  # CPU of others since they were read
        self.at, self.cpu, self.process = now(), thread_time_ns(), process_time_ns()
        self.queued = counted_ns(self.schedstat)[1]
        self.due = now() + self.every_ns
        self.after(self.every_ns / 1e9, self.beat)

    def stop(self) -> None:
        self.stopped = True

    def beat(self) -> None:
        """Write the record of this beat, and schedule the next. Inlined, as it runs fifty times a
        second."""
        if self.stopped:
            return
        at, cpu, process = now(), thread_time_ns(), process_time_ns()
        queued = int(pread(self.schedstat, 64, 0).split(None, 2)[1])
        late, length, own, others_wait = at - self.due, at - self.at, cpu - self.cpu, 0
        others_cpu = process - self.process - own
        self.unseen += others_cpu
        if others_cpu > OTHERS_CPU_NS:
            queued_ns, self.unseen = self.others.queued_ns(self.unseen), 0
            others_wait = length if queued_ns is None else queued_ns  # None: possibly all the time
        place, waited = self.place, queued - self.queued
        pack_into(self.shared, place, at, length, late, own, waited, others_cpu, others_wait)
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
    """Start beating on the loop of this worker; called inside a request. None if it has no loop, or
    the kernel does not count waits. `create`: creates the map, for `records`."""
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
    """Timers that do not keep gevent's loop alive."""
    import gevent

    loop = gevent.get_hub().loop
    last: Any = None

    def after(delay_s: float, call: Callable[[], None]) -> None:
        nonlocal last
        if last is not None:
            last.close()
        last = loop.timer(delay_s, ref=False)
        last.start(call, update=True)  # else it counts from the loop's last update

    return after


def asyncio_loop(worker: Any) -> asyncio.AbstractEventLoop | None:
    """The loop that runs this request; tornado's own if it runs the app in threads."""
    with contextlib.suppress(KeyError, RuntimeError):
        loop: asyncio.AbstractEventLoop = sys.modules["asyncio"].get_running_loop()
        return loop
    return getattr(getattr(worker, "ioloop", None), "asyncio_loop", None)


def asyncio_timers(loop: asyncio.AbstractEventLoop) -> After:
    """Timers in an empty context, or each would keep that of the first request."""
    context = contextvars.Context()

    def after(delay_s: float, call: Callable[[], None]) -> None:
        loop.call_later(delay_s, call, context=context)

    return after
