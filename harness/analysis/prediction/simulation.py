"""A schedule of requests, some of which wait and some compute, played on a server that does not
exist yet.

Where requests only wait, this is the recursion of Kiefer and Wolfowitz, and gives the same to the
last digit. What is added are the three things that make a worker more than a number of slots:

- **Who takes a request.** Either any free slot, from the kernel's queue; or a worker accepts it at
  once, and there it waits for a slot even while another worker idles (`hoards`).
- **The GIL.** Threads of a worker share one core of Python between them: processor sharing, which
  Python approximates by taking turns of 5 ms. An event loop serves one piece after the other, and
  accepts only between two rounds of them: one connection, or, if it hoards, all there are.
- **The cores.** All workers together have `cores`; each that has work to do gets its equal part.

Processor sharing with equal parts needs no small steps: `work` is a clock that runs at the speed at
which a lone thread of any worker computes, and a worker with n busy threads has a clock of its own
that runs n times as slowly. A thread ends at a fixed moment of its worker's clock, so that an
arrival moves one entry per worker and not each thread's: O(n log n).

Left out: the kernel's scheduler, whose turns of some milliseconds are not equal parts; how long it
takes to wake up a thread; a request's own order of computing and waiting. A loop computes one half
of a request's CPU before it waits and the other after; threads compute it all before.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import Random

from msgspec import Struct

from harness.model import RequestNeed


class Layout(Struct, frozen=True):
    """A server as the simulation sees it. `slots` per worker, None: unlimited. `gap_s`: how much
    longer than its answer takes a request holds its slot. `beside_s`: of each response, outside any
    slot. `max_in_flight`: requests that get on at once in all workers together (a pool)."""

    workers: int
    slots: int | None = 1
    hoards: bool = False
    loop: bool = False
    cores: float = math.inf
    gap_s: float = 0.0
    beside_s: float = 0.0
    max_in_flight: int | None = None


def simulate(
    arrivals_s: Sequence[float], requests: Sequence[RequestNeed], layout: Layout, rng: Random
) -> list[float]:
    """Seconds that each request takes, by arrival; `arrivals_s` in ascending order. `rng` deals."""
    if len(arrivals_s) != len(requests):
        raise ValueError(f"{len(arrivals_s)} arrivals of {len(requests)} requests")
    kind = _Loops if layout.loop else _Threads
    return kind(arrivals_s, requests, layout, rng).run()


class _Worker:
    """Its slots and its GIL. `work`: its own clock of Python, which `at` says when it was right on
    the server's; `version` marks the entry of the server's heap that counts."""

    __slots__ = ("at", "batch", "busy", "free", "jobs", "queue", "ready", "version", "work")

    def __init__(self, slots: float) -> None:
        self.free = slots
        self.queue: deque[int] = deque()  # accepted, without a slot
        self.jobs: list[tuple[float, int]] = []  # heap: when its clock says that each is done
        self.work = self.at = 0.0
        self.version = 0
        self.busy = False  # the loop is, and does not accept
        self.batch: deque[int] = deque()  # of this round of the loop
        self.ready: list[int] = []  # of its next one


class _Simulation:
    def __init__(
        self,
        arrivals_s: Sequence[float],
        requests: Sequence[RequestNeed],
        layout: Layout,
        rng: Random,
    ) -> None:
        self.arrivals_s, self.requests, self.layout, self.rng = arrivals_s, requests, layout, rng
        slots = math.inf if layout.slots is None else layout.slots
        self.workers = [_Worker(slots) for _ in range(layout.workers)]
        self.kernel: deque[int] = deque()  # not accepted yet
        self.of: list[_Worker] = [self.workers[0]] * len(requests)  # who serves it
        self.responses_s = [math.nan] * len(requests)
        self.now_s = 0.0
        self.timers: list[tuple[float, int, Callable[[int], None], int]] = []
        self.order = count()
        self.work, self.running = 0.0, 0  # a lone thread's clock; those that want a core
        self.ends: list[tuple[float, int, int, _Worker | None, int]] = []  # of work, by that clock
        permits = layout.max_in_flight
        self.permits = math.inf if permits is None else permits
        self.without: deque[int] = deque()  # have a slot and no permit
        self.waited: set[int] = set()  # requests of a loop, in their second half

    def run(self) -> list[float]:
        """Event after event: whatever is due next is an arrival, a timer or an end of work."""
        arrivals_s, timers, number, total = self.arrivals_s, self.timers, 0, len(self.arrivals_s)
        while True:
            arrival_s = arrivals_s[number] if number < total else math.inf
            timer_s = timers[0][0] if timers else math.inf
            end_s = self._end_of_work_s() if self.running else math.inf
            if end_s <= timer_s and end_s <= arrival_s:
                if end_s == math.inf:
                    return self.responses_s
                self._finish_work(end_s)
            elif timer_s <= arrival_s:
                self._pass(timer_s)
                _, _, then, request = heapq.heappop(timers)
                then(request)
            else:
                self._pass(arrival_s)
                self.arrive(number)
                number += 1

    # --- cores ---

    def _speed(self) -> float:
        return min(1.0, self.layout.cores / self.running)

    def _pass(self, until_s: float) -> None:
        if self.running:
            self.work += (until_s - self.now_s) * self._speed()
        self.now_s = until_s

    def _end_of_work_s(self) -> float:
        ends = self.ends
        while (worker := ends[0][3]) is not None and ends[0][2] != worker.version:
            heapq.heappop(ends)
        return self.now_s + max(0.0, ends[0][0] - self.work) / self._speed()

    def _finish_work(self, at_s: float) -> None:
        self.work, _, _, worker, request = heapq.heappop(self.ends)
        self.now_s = at_s
        if worker is None:
            self.running -= 1
        else:
            worker.work, _ = heapq.heappop(worker.jobs)
            worker.at = self.work
            self._renew(worker)
            self.running -= not worker.jobs
        self.worked(request) if worker is not None else self.worked_beside(request)

    def compute(self, request: int, cpu_s: float) -> None:
        """With the GIL of its worker, and whoever else wants it."""
        worker = self.of[request]
        if worker.jobs:
            worker.work += (self.work - worker.at) / len(worker.jobs)
        else:
            self.running += 1
        worker.at = self.work
        heapq.heappush(worker.jobs, (worker.work + cpu_s, request))
        self._renew(worker)

    def compute_beside(self, request: int, cpu_s: float) -> None:
        """Without the GIL."""
        self.running += 1
        heapq.heappush(self.ends, (self.work + cpu_s, next(self.order), 0, None, request))

    def _renew(self, worker: _Worker) -> None:
        worker.version += 1
        if worker.jobs:
            end, request = worker.jobs[0]
            at = self.work + (end - worker.work) * len(worker.jobs)
            heapq.heappush(self.ends, (at, next(self.order), worker.version, worker, request))

    # --- what is common to threads and loops ---

    def after(self, delay_s: float, then: Callable[[int], None], request: int) -> None:
        heapq.heappush(self.timers, (self.now_s + delay_s, next(self.order), then, request))

    def admit(self, request: int) -> None:
        if self.permits > 0:
            self.permits -= 1
            self.begin(request)
        else:
            self.without.append(request)

    def answer(self, request: int) -> None:
        took_s = self.now_s - self.arrivals_s[request]
        self.responses_s[request] = took_s + self.layout.beside_s
        self.permits += 1
        if self.without:
            self.admit(self.without.popleft())
        if self.layout.gap_s:
            self.after(self.layout.gap_s, self.release, request)
        else:
            self.release(request)

    def arrive(self, request: int) -> None:
        raise NotImplementedError

    def begin(self, request: int) -> None:
        raise NotImplementedError

    def worked(self, request: int) -> None:
        raise NotImplementedError

    def worked_beside(self, request: int) -> None:
        raise NotImplementedError

    def release(self, request: int) -> None:
        raise NotImplementedError


class _Threads(_Simulation):
    """Each slot is a thread, or a process of its own."""

    def arrive(self, request: int) -> None:
        if self.layout.hoards:
            worker = self.rng.choice(self.workers)
            worker.queue.append(request)
            self._serve(worker, worker.queue)
            return
        self.kernel.append(request)
        if len(self.kernel) == 1 and (free := [one for one in self.workers if one.free]):
            self._serve(self.rng.choice(free), self.kernel)

    def _serve(self, worker: _Worker, queue: deque[int]) -> None:
        while worker.free and queue:
            worker.free -= 1
            request = queue.popleft()
            self.of[request] = worker
            self.admit(request)

    def begin(self, request: int) -> None:
        if cpu_s := self.requests[request].cpu_s:
            self.compute(request, cpu_s)
        else:
            self.worked(request)

    def worked(self, request: int) -> None:
        if cpu_s := self.requests[request].nogil_s:
            self.compute_beside(request, cpu_s)
        else:
            self.worked_beside(request)

    def worked_beside(self, request: int) -> None:
        need = self.requests[request]
        self.after(need.wait_s + need.blocked_s, self.answer, request)

    def release(self, request: int) -> None:
        worker = self.of[request]
        worker.free += 1
        self._serve(worker, worker.queue if self.layout.hoards else self.kernel)


class _Loops(_Simulation):
    """Each worker is an event loop: what computes or blocks in it, with the GIL or without, holds
    up all its requests."""

    def arrive(self, request: int) -> None:
        self.kernel.append(request)
        idle = [one for one in self.workers if one.free and not one.busy]
        if idle:
            self._poll(self.rng.choice(idle))

    def _poll(self, worker: _Worker) -> None:
        """The next rounds of the loop, until one takes time or there is nothing to do."""
        worker.busy = True
        while True:
            if not worker.batch:
                self._accept(worker)
                worker.batch.extend(worker.ready)
                worker.ready.clear()
            if not worker.batch:
                worker.busy = False
                return
            if self._takes_time(worker.batch.popleft()):
                return

    def _accept(self, worker: _Worker) -> None:
        most = len(self.kernel) if self.layout.hoards else min(1, len(self.kernel))
        for _ in range(most):
            if not worker.free:
                return
            worker.free -= 1
            request = self.kernel.popleft()
            self.of[request] = worker
            self.admit(request)

    def begin(self, request: int) -> None:
        self._resume(request)

    def _resume(self, request: int) -> None:
        worker = self.of[request]
        worker.ready.append(request)
        if not worker.busy:
            self._poll(worker)

    def _takes_time(self, request: int) -> bool:
        """Whether the loop is now busy with it."""
        need = self.requests[request]
        cpu_s = need.cpu_s + need.nogil_s
        if cpu_s:
            self.compute(request, cpu_s / 2 if need.wait_s else cpu_s)
        elif need.blocked_s and request not in self.waited:
            self.after(need.blocked_s, self._unblocked, request)
        else:
            self._done(request)
            return False
        return True

    def worked(self, request: int) -> None:
        blocked_s = self.requests[request].blocked_s
        if blocked_s and request not in self.waited:
            self.after(blocked_s, self._unblocked, request)
        else:
            self._unblocked(request)

    def _unblocked(self, request: int) -> None:
        self._done(request)
        self._poll(self.of[request])

    def _done(self, request: int) -> None:
        """With this half of what it needs of the loop."""
        wait_s = self.requests[request].wait_s
        if request in self.waited or not wait_s:
            self.answer(request)
        else:
            self.waited.add(request)
            self.after(wait_s, self._resume, request)

    def release(self, request: int) -> None:
        worker = self.of[request]
        worker.free += 1
        if self.kernel and not worker.busy:
            self._poll(worker)
