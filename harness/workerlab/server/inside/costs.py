"""Measures, inside the worker, how much CPU time each request uses: an extended probe for "needs"
trials (`Cell.inside`). Stdlib only, syntax of Python 3.10, loaded like the probe.

    sync, gthread        each request has a thread: its CPU clock and run-queue time, from the call
                         to the app until the body is closed
    asgi, uvicorn        a coroutine runs in steps, from one await to the next, and nothing else
                         runs on the loop's thread meanwhile: the same clocks at both ends of each
                         step, and the wall clock
    gevent, eventlet     the same from one switch of greenlets to the next, traced by greenlet
    tornado (WSGI)       the loop's thread, while it calls the app

The rest of a step's time, beyond its CPU time and its wait for a core, was spent blocked or waiting
for the GIL. A step that begins just after another request's step was held up by that step. It
became ready at an unknown moment between the end of its request's previous step (or when the loop
was last idle, if that was later) and its start; half of that period is counted, or all of it if the
request yielded without waiting for anything. Work that a request hands to other threads, tasks or
greenlets is not counted here, but in the CPU of the whole worker.

Work without the GIL (compression, hashes, arithmetic on arrays) runs in parallel with other
threads. To estimate it, a thread samples whether the GIL is held. It misses holds of less than 0.3
ms, so the probe also counts how often the thread of a request gave up its core.

Each worker owns a second map, `costs-PID-K.map`: the n-th record belongs to the n-th span. All this
costs about 20 microseconds per request, and as much per step. That would distort other
measurements, so other trials use the plain probe alone.

Rejected: wider spans (each trial would pay for them), sys.setprofile (ten times the cost), wrapping
the loop's call_soon to measure the time between awaits (uvloop does not call it from Python).
"""

from __future__ import annotations

import os
import resource

# The originals, even if gevent or eventlet patch threading
from _thread import _local, start_new_thread
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from time import monotonic_ns as now
from time import sleep
from time import thread_time_ns as cpu_ns
from typing import Any, ClassVar
from urllib.parse import unquote

from . import probe
from .maps import (
    COSTS,
    FIRST,
    GIL_HELD,
    GIL_SAMPLES,
    HEADER_BYTES,
    HELD_UP,
    QUEUED,
    ROUTE,
    SCRATCH,
    SLEPT,
    SPANS,
    STEPS,
    create_cells,
    scratch,
)
from .waits import SCHEDSTAT, queued_ns

RUSAGE_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)  # not on macOS
# Samples are rare, because a sampling thread that loses its core keeps the GIL. With core and GIL
# free, it wakes up 0.1 ms late
SAMPLE_INTERVAL_S, MIN_GIL_DELAY_NS = 0.025, 300_000
MAX_BUSY_GAP_NS = 1_000_000  # between two steps of a busy loop; after a longer gap, it was idle

Key = tuple[str, str, str]  # method, path, query

# This worker's map of costs, as 64-bit integers; scratch memory while nothing is recorded
cells: memoryview[int] = scratch(HEADER_BYTES + COSTS.record.size)
routes: Mapping[Key, int] = {}
counters: Any = None
step_timer: Any = None
in_app: set[int] = set()  # offsets of the cost records of requests that run in threads


def start(directory: str, capacity: int, pairs: Sequence[Sequence[str]]) -> None:
    """Record the costs of all requests from now on. `pairs`: (method, path) of each route."""
    global cells, routes, counters, step_timer
    routes, counters, step_timer = {}, ThreadCounters(), StepTimer()
    for number, (method, path) in reversed(list(enumerate(pairs, 1))):
        plain, _, query = path.partition("?")
        routes[method, unquote(plain, "latin-1"), query] = number
    cells = create_cells(directory, COSTS, capacity)
    os.register_at_fork(after_in_child=stop)


def stop() -> None:
    """Stop recording in children that the app forks, as in the probe."""
    global cells
    cells = scratch(cells.nbytes)


def cost_of(place: int, key: Key) -> int:
    """The place of a request's costs, given that of its span. Writes the route there."""
    if place == SCRATCH:
        return SCRATCH  # SCRATCH + ROUTE is in the first record
    cost = FIRST + COSTS.cells * ((place - FIRST) // SPANS.cells)
    cells[cost + ROUTE] = routes.get(key, 0)
    return cost


def begin_wsgi(environ: Mapping[str, Any]) -> tuple[int, int]:
    """Record the start. Returns (place of the request's span, place of its costs)."""
    try:
        port = int(environ["REMOTE_PORT"])
    except (KeyError, ValueError):
        port = 0
    place = probe.begin(port, environ.get(probe.NAME_KEY, ""))
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    key = environ.get("REQUEST_METHOD", ""), path, environ.get("QUERY_STRING", "")
    return place, cost_of(place, key)


# --- clocks -----------------------------------------------------------------------------------


class ThreadCounters(_local):
    """The kernel's counters of this thread."""

    def __init__(self) -> None:
        try:
            self.handle = os.open(SCHEDSTAT, os.O_RDONLY)
        except OSError:  # this system does not count it
            self.handle = -1

    def queued_ns(self) -> int:
        """Nanoseconds that the thread has waited for a core."""
        return queued_ns(self.handle) if self.handle >= 0 else 0

    def voluntary_switches(self) -> int:
        """The number of times that the thread has given up its core."""
        return 0 if RUSAGE_THREAD is None else resource.getrusage(RUSAGE_THREAD).ru_nvcsw


def sample_gil(own: ThreadCounters, current_cells: memoryview[int]) -> None:
    """Sample, in a thread of its own, whether another thread holds the GIL: a thread that wakes up
    must take it, so delays beyond waiting for a core mean that it was held."""
    while cells is current_cells:
        waited, began = own.queued_ns(), now()
        sleep(SAMPLE_INTERVAL_S)
        late = now() - began - round(SAMPLE_INTERVAL_S * 1e9) - (own.queued_ns() - waited)
        for cost in list(in_app):
            current_cells[cost + GIL_SAMPLES] += 1
            current_cells[cost + GIL_HELD] += late > MIN_GIL_DELAY_NS


class ThreadClock:
    """Times a request that has a thread of its own."""

    __slots__ = ("cost", "cpu", "queued", "slept")

    def __init__(self, cost: int) -> None:
        self.slept = counters.voluntary_switches()
        if cost != SCRATCH:
            in_app.add(cost)
        self.cost, self.queued, self.cpu = cost, counters.queued_ns(), cpu_ns()

    def stop(self) -> None:
        in_app.discard(self.cost)
        if self.cost != SCRATCH:
            cells[self.cost + SLEPT] = counters.voluntary_switches() - self.slept
        cells[self.cost] = cpu_ns() - self.cpu
        cells[self.cost + QUEUED] = counters.queued_ns() - self.queued


class StepTimer:
    """Times requests whose steps take turns on the loop of this worker."""

    def __init__(self) -> None:
        self.last: Any = None  # the clock of the last step
        self.since = 0  # when the loop last became busy
        self.ended = self.queued = 0  # of the last step: its end, and the run-queue time then
        self.cpu = self.wall = self.waited = 0  # at the start of the current step

    def begin(self, clock: Any) -> None:
        """Begin a step of `clock`. It became ready when its previous step ended, or at an unknown
        time while the loop was busy with other steps."""
        self.cpu, self.wall, self.waited = cpu_ns(), now(), counters.queued_ns()
        if self.wall - self.ended - (self.waited - self.queued) > MAX_BUSY_GAP_NS:
            self.since = self.wall
        elif clock is not self.last and clock.ended:
            between = self.wall - max(clock.ended, self.since)
            cells[clock.cost + HELD_UP] += between if clock.ready else between // 2

    def end(self, clock: Any) -> None:
        # Read `now` last: otherwise a wait for a core after it would count in the queue time but
        # not in the step
        cpu, waited, wall = cpu_ns(), counters.queued_ns(), now()
        cells[clock.cost] += cpu - self.cpu
        cells[clock.cost + QUEUED] += waited - self.waited
        cells[clock.cost + STEPS] += wall - self.wall
        self.last, self.queued, self.ended = clock, waited, wall
        clock.ended = wall


class GreenletClock:
    """Times a request that has a greenlet of its own, in a shared thread."""

    __slots__ = ("cost", "ended", "greenlet")
    ready = False  # whether it can continue at once is unknown
    current: Callable[[], Any]
    clocks: ClassVar[dict[Any, GreenletClock]] = {}  # by greenlet, while it serves a request

    def __init__(self, cost: int) -> None:
        self.cost, self.ended = cost, 0
        self.greenlet = GreenletClock.current()
        GreenletClock.clocks[self.greenlet] = self
        step_timer.begin(self)

    def stop(self) -> None:
        GreenletClock.clocks.pop(self.greenlet, None)
        if GreenletClock.current() is self.greenlet:
            step_timer.end(self)

    @classmethod
    def install(cls) -> None:
        """Trace the switches of this thread from now on."""
        greenlet: Any = __import__("greenlet")

        def on_switch(event: str, between: tuple[Any, Any]) -> None:
            if event in ("switch", "throw"):
                origin, target = between
                if (clock := cls.clocks.get(origin)) is not None:
                    step_timer.end(clock)
                if (clock := cls.clocks.get(target)) is not None:
                    step_timer.begin(clock)

        cls.current = staticmethod(greenlet.getcurrent)
        greenlet.settrace(on_switch)


class Steps:
    """Runs a coroutine step by step, and times each step."""

    __slots__ = ("coroutine", "cost", "ended", "ready")

    def __init__(self, awaitable: Awaitable[Any], cost: int) -> None:
        self.coroutine: Generator[Any, Any, Any] = awaitable.__await__()
        self.cost, self.ended, self.ready = cost, 0, False

    def __await__(self) -> Steps:
        return self

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self.step(self.coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self.step(self.coroutine.throw, *error)

    def close(self) -> None:
        self.coroutine.close()

    def step(self, resume: Callable[..., Any], *values: Any) -> Any:
        step_timer.begin(self)
        try:
            waits_for = resume(*values)
            self.ready = waits_for is None  # asyncio: runs again in the next iteration
            return waits_for
        finally:
            step_timer.end(self)


# --- around the app ---------------------------------------------------------------------------


class Body(probe.TimedBody):
    """A WSGI body that also stops the clock when the server closes it."""

    __slots__ = ("clock",)

    def __init__(self, body: Any, place: int, clock: Any) -> None:
        super().__init__(body, place)
        self.clock = clock

    def mark(self) -> None:
        self.clock.stop()
        probe.end(self.place)


def clock_for(*, greenlets: bool) -> Any:
    """Install and return the class of clock for a worker's WSGI requests. `greenlets`: each request
    has one."""
    if greenlets:
        GreenletClock.install()
        return GreenletClock
    return ThreadClock


def wrap_wsgi(app: Any, handled: tuple[object, ...], clock_kind: Any) -> Any:
    """Like `probe.wrap_wsgi`, but the app is timed, too; what the server sends by itself is not."""
    if clock_kind is ThreadClock:
        start_new_thread(sample_gil, (counters, cells))

    def probed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        place, cost = begin_wsgi(environ)
        clock = clock_kind(cost)
        try:
            body = app(environ, start_response)
        except BaseException:
            clock.stop()
            probe.end(place)
            raise
        wrapper = environ.get("wsgi.file_wrapper")
        if any(body is marker for marker in handled) or (
            isinstance(wrapper, type) and isinstance(body, wrapper)
        ):
            clock.stop()
            return probe.timed_body(body, place, environ, handled)
        return Body(body, place, clock)

    return probed


def probe_container(container: Any) -> Any:
    """Like `probe.probe_container`, but the app is timed, too."""
    app = container.wsgi_application

    def timed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        query = environ.get("QUERY_STRING", "")
        key = environ.get("REQUEST_METHOD", ""), environ.get("PATH_INFO", ""), query
        clock = ThreadClock(cost_of(probe.latest, key))
        try:
            return app(environ, start_response)
        finally:
            clock.stop()

    container.wsgi_application = timed
    return probe.probe_container(container)


def wrap_asgi(app: Any) -> Any:
    """Like `probe.wrap_asgi`, but each step is timed, too."""

    async def timed(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        path, query = scope.get("path", ""), scope.get("query_string", b"").decode("latin-1")
        # The path is UTF-8 in ASGI, Latin-1 in WSGI
        key = scope.get("method", ""), path.encode().decode("latin-1"), query
        await Steps(app(scope, receive, send), cost_of(probe.latest, key))

    return probe.wrap_asgi(timed)
