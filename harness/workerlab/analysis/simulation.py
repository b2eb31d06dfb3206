"""Simulates a schedule of requests, which wait and compute, on a server that was not measured, and
predicts their response times.

If requests only wait, the result equals that of the Kiefer-Wolfowitz recursion to the last digit.
The simulation adds three properties of workers that plain slots do not have:

- **Accepting.** Either any free slot takes a request from the kernel's queue; or a worker accepts
  it immediately, and it waits there for a slot even while another worker idles (`accepts_ahead`).
- **The GIL.** Threads of a worker compute in turns of 5 ms, the interval at which Python switches
  threads. An event loop runs one piece after the other, and accepts only between two rounds: one
  connection or, if it accepts ahead, all in the queue.
- **The cores.** All workers share `cores`; each worker with work to do gets an equal share.

Equal shares need no small time steps: the clock `work` runs as fast as each worker computes, so a
turn ends at a fixed time on it, however many other turns begin or end meanwhile: O(n log n).
Rejected: processor sharing among threads. Turns approach it if requests compute for much longer
than 5 ms. But with processor sharing, 5 ms of CPU on a GIL that is busy half of the time would hold
a slot for 10 ms instead of 7.5, and slots would seem full.

Not modelled: the kernel's scheduler, whose turns of a few milliseconds are not equal shares; the
time to wake up a thread; the order in which a request computes and waits. A loop computes one part
of a request's CPU time before its wait and the rest after it; threads compute all of it before.

`predict` simulates `draws` schedules of requests, each from a bootstrap sample: the measured
requests, drawn with replacement. The result is the median and the range of each figure over the
draws. The range is wide if the sample has too few long requests to show how frequent they are.

For a class that accepts ahead, the range also covers how unevenly its workers accept. A connection
wakes all of them, and the first one on a core gets it. Of 4 gthread workers one got 1.0 to 1.9
times its equal share and another 0.03 to 0.65 times; of 3, once 2.1 and 0.3. The favoured worker
changes within a load, so equal totals may hide unequal shares. Loops, which accept only when they
have nothing else to do, stayed between 0.6 and 1.4. So the odds of the draws go from equal to
`UNFAIR_ODDS` in equal steps; the middle odds predicted the p95 of gthread with 2 and 4 workers
best. Rejected, because the results stay within that range: odds that change every second, and
giving the next connection to the worker that has just accepted one.

Before a request waits, a loop does Gunicorn's work of accepting and parsing it (`FIRST_S`); apps
compute after the wait. That work cannot move to another, idle loop. For loops that accept ahead,
the draws vary the first part from twice `FIRST_S` to 0.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from statistics import median

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from workerlab.model.evidence import Summary
from workerlab.model.plan import Server, WorkerClass
from workerlab.model.result import Needs, RequestNeed
from workerlab.numbers.samples import quantile, summarise

FIRST_S = 0.0006  # CPU of gevent and uvicorn before the app is called
UNFAIR_ODDS = 0.25  # lowest odds of a worker relative to the worker before it
UNFAIR_LOOP_ODDS = 0.6  # likewise for loops


class Layout(Struct, frozen=True):
    """A simulated server; None: unlimited. `slots`: per worker. `accepts_ahead`: a worker accepts
    more requests than it has slots, up to `max_accepted` if it has threads. `gap_s`: how long a
    request holds its slot in addition to waiting, computing and blocking. `outside_s`: time of each
    response outside any slot. `max_in_flight`: requests that all workers together may process at
    the same time (a pool). `fairness`: odds that a worker accepts first, relative to the worker
    before it; 1: all are equally likely. `cpu_before_wait_s`: CPU time of a request in a loop
    before its wait, limited to half of its CPU time."""

    workers: int
    slots: int | None = 1
    accepts_ahead: bool = False
    max_accepted: float = math.inf
    loop: bool = False
    cores: float = math.inf
    gap_s: float = 0.0
    outside_s: float = 0.0
    max_in_flight: int | None = None
    fairness: float = 1.0
    cpu_before_wait_s: float = math.inf


class Worker(Struct, eq=False):
    """A worker's slots, queue and GIL."""

    free_slots: float
    free_accepts: float  # further requests that it may accept
    odds: float  # of accepting first, relative to other workers
    queue: deque[int] = field(default_factory=deque)  # accepted requests without a slot
    # (request, seconds left); the first has the GIL
    computing: deque[tuple[int, float]] = field(default_factory=deque)
    busy: bool = False  # the loop runs something and does not accept
    batch: deque[int] = field(default_factory=deque)  # requests of this round of the loop
    ready: list[int] = []  # requests of the next round


class Events:
    """The events of a simulated load."""

    turn_s = 0.005  # for which a thread may keep the GIL (sys.getswitchinterval)

    def __init__(
        self,
        arrivals_s: Sequence[float],
        requests: Sequence[RequestNeed],
        layout: Layout,
        rng: Random,
    ) -> None:
        self.arrivals_s, self.requests, self.layout, self.rng = arrivals_s, requests, layout, rng
        slots = math.inf if layout.slots is None else layout.slots
        if slots == 1:  # no other thread of the worker waits for the GIL
            self.turn_s = math.inf
        accepts = max(slots, layout.max_accepted) if layout.accepts_ahead else slots
        odds = (layout.fairness**number for number in range(layout.workers))
        self.workers = [Worker(slots, accepts, weight) for weight in odds]
        self.kernel_queue: deque[int] = deque()  # requests not accepted yet
        self.worker_of: list[Worker] = [self.workers[0]] * len(requests)  # by request
        self.responses_s = [math.nan] * len(requests)
        self.now_s = 0.0
        self.timers: list[tuple[float, int, Callable[[int], None], int]] = []
        self.tiebreak = count()  # of events at the same time
        self.work, self.running = 0.0, 0  # the clock of computing, and how many compute
        # Ends of turns on that clock; without the GIL (no worker), ends of a request's work
        self.ends: list[tuple[float, int, Worker | None, int]] = []
        permits = layout.max_in_flight
        self.permits = math.inf if permits is None else permits
        self.without_permit: deque[int] = deque()  # requests with a slot
        self.began_wait: set[int] = set()  # requests of a loop whose wait has begun

    def run(self) -> list[float]:
        """Process all events in order: arrivals, timers and ends of work. Returns the response
        times."""
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
                self._advance(timer_s)
                _, _, callback, request = heapq.heappop(timers)
                callback(request)
            else:
                self._advance(arrival_s)
                self.arrive(number)
                number += 1

    # --- cores ---

    def _speed(self) -> float:
        return min(1.0, self.layout.cores / self.running)

    def _advance(self, until_s: float) -> None:
        if self.running:
            self.work += (until_s - self.now_s) * self._speed()
        self.now_s = until_s

    def _end_of_work_s(self) -> float:
        return self.now_s + max(0.0, self.ends[0][0] - self.work) / self._speed()

    def _finish_work(self, at_s: float) -> None:
        self.work, _, worker, request = heapq.heappop(self.ends)
        self.now_s = at_s
        if worker is None:
            self.running -= 1
            self.on_computed_without_gil(request)
            return
        request, left_s = worker.computing.popleft()
        if left_s > self.turn_s:
            worker.computing.append((request, left_s - self.turn_s))
        if worker.computing:
            self._take_turn(worker)
        else:
            self.running -= 1
        if left_s <= self.turn_s:
            self.on_computed(request)

    def compute(self, request: int, cpu_s: float) -> None:
        """Compute with the worker's GIL, in turns with its other requests."""
        worker = self.worker_of[request]
        worker.computing.append((request, cpu_s))
        if len(worker.computing) == 1:
            self.running += 1
            self._take_turn(worker)

    def compute_without_gil(self, request: int, cpu_s: float) -> None:
        self.running += 1
        heapq.heappush(self.ends, (self.work + cpu_s, next(self.tiebreak), None, request))

    def _take_turn(self, worker: Worker) -> None:
        request, left_s = worker.computing[0]
        end = self.work + min(left_s, self.turn_s)
        heapq.heappush(self.ends, (end, next(self.tiebreak), worker, request))

    # --- common to threads and loops ---

    def call_after(self, delay_s: float, callback: Callable[[int], None], request: int) -> None:
        heapq.heappush(self.timers, (self.now_s + delay_s, next(self.tiebreak), callback, request))

    def admit(self, request: int) -> None:
        if self.permits > 0:
            self.permits -= 1
            self.begin(request)
        else:
            self.without_permit.append(request)

    def respond(self, request: int) -> None:
        took_s = self.now_s - self.arrivals_s[request]
        self.responses_s[request] = took_s + self.layout.outside_s
        self.permits += 1
        if self.without_permit:
            self.admit(self.without_permit.popleft())
        self.release(request)

    def choose(self, workers: list[Worker]) -> Worker:
        """The worker that accepts first, chosen at random by the workers' odds."""
        if len(workers) == 1:
            return workers[0]
        return self.rng.choices(workers, [worker.odds for worker in workers])[0]

    def arrive(self, request: int) -> None:
        raise NotImplementedError

    def begin(self, request: int) -> None:
        raise NotImplementedError

    def on_computed(self, request: int) -> None:
        raise NotImplementedError

    def on_computed_without_gil(self, request: int) -> None:
        need = self.requests[request]
        self.call_after(need.wait_s + need.blocked_s + self.layout.gap_s, self.respond, request)

    def release(self, request: int) -> None:
        raise NotImplementedError


class Loops(Events):
    """Workers with an event loop: computing or blocking, with or without the GIL, delays all
    requests of the worker."""

    turn_s = math.inf

    def arrive(self, request: int) -> None:
        self.kernel_queue.append(request)
        idle = [worker for worker in self.workers if worker.free_slots and not worker.busy]
        if idle:
            self._poll(self.choose(idle))

    def _poll(self, worker: Worker) -> None:
        """Run rounds of the loop until a request takes time or there is nothing to do."""
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

    def _accept(self, worker: Worker) -> None:
        waiting = len(self.kernel_queue)
        for _ in range(waiting if self.layout.accepts_ahead else min(1, waiting)):
            if not worker.free_slots:
                return
            worker.free_slots -= 1
            request = self.kernel_queue.popleft()
            self.worker_of[request] = worker
            self.admit(request)

    def begin(self, request: int) -> None:
        """Begin the request, or resume it after its wait, in the next round."""
        worker = self.worker_of[request]
        worker.ready.append(request)
        if not worker.busy:
            self._poll(worker)

    def _takes_time(self, request: int) -> bool:
        """Start the next piece of the request. Returns whether it keeps the loop busy."""
        need = self.requests[request]
        cpu_s = self._next_s(request)
        if cpu_s:
            self.compute(request, cpu_s)
        elif need.blocked_s and request not in self.began_wait:
            self.call_after(need.blocked_s, self._on_unblocked, request)
        else:
            self._end_piece(request)
            return False
        return True

    def _next_s(self, request: int) -> float:
        """CPU time of the next piece: before or after the wait."""
        need = self.requests[request]
        cpu_s = need.cpu_s + need.nogil_s
        if not need.wait_s + self.layout.gap_s:
            return cpu_s
        first_s = min(cpu_s / 2, self.layout.cpu_before_wait_s)
        return cpu_s - first_s if request in self.began_wait else first_s

    def on_computed(self, request: int) -> None:
        blocked_s = self.requests[request].blocked_s
        if blocked_s and request not in self.began_wait:
            self.call_after(blocked_s, self._on_unblocked, request)
        else:
            self._on_unblocked(request)

    def _on_unblocked(self, request: int) -> None:
        self._end_piece(request)
        self._poll(self.worker_of[request])

    def _end_piece(self, request: int) -> None:
        """Respond to the request, or begin its wait, after a piece."""
        wait_s = self.requests[request].wait_s + self.layout.gap_s
        if request in self.began_wait or not wait_s:
            self.respond(request)
        else:
            self.began_wait.add(request)
            self.call_after(wait_s, self.begin, request)

    def release(self, request: int) -> None:
        worker = self.worker_of[request]
        worker.free_slots += 1
        if self.kernel_queue and not worker.busy:
            self._poll(worker)


LONG_COMPUTING_S = 0.002  # an idle process wakes up and accepts within this time


class Threads(Events):
    """Workers with threads, for which the requests that a worker accepts may wait."""

    def arrive(self, request: int) -> None:
        accepting = [worker for worker in self.workers if worker.free_accepts]
        if not accepting:
            self.kernel_queue.append(request)
            return
        prompt = [worker for worker in accepting if not self._computes_for_long(worker)]
        self._accept(self.choose(prompt or accepting), request)

    def _computes_for_long(self, worker: Worker) -> bool:
        """Whether the worker computes for long and is therefore slow to accept, which needs the
        GIL. Gunicorn's own short computing does not count: a worker that has just accepted is
        awake, and if two workers get two connections within half a millisecond, both go to the same
        worker in two of three cases."""
        computing = worker.computing
        return bool(computing) and self.requests[computing[0][0]].cpu_s > LONG_COMPUTING_S

    def _accept(self, worker: Worker, request: int) -> None:
        worker.free_accepts -= 1
        self.worker_of[request] = worker
        if worker.free_slots:
            worker.free_slots -= 1
            self.admit(request)
        else:
            worker.queue.append(request)

    def begin(self, request: int) -> None:
        if cpu_s := self.requests[request].cpu_s:
            self.compute(request, cpu_s)
        else:
            self.on_computed(request)

    def on_computed(self, request: int) -> None:
        if cpu_s := self.requests[request].nogil_s:
            self.compute_without_gil(request, cpu_s)
        else:
            self.on_computed_without_gil(request)

    def release(self, request: int) -> None:
        worker = self.worker_of[request]
        worker.free_accepts += 1
        if worker.queue:
            self.admit(worker.queue.popleft())
        else:
            worker.free_slots += 1
        if self.kernel_queue:
            self._accept(worker, self.kernel_queue.popleft())


def simulate(
    arrivals_s: Sequence[float], requests: Sequence[RequestNeed], layout: Layout, rng: Random
) -> list[float]:
    """Response times in seconds, in order of arrival. `arrivals_s`: ascending. `rng` chooses which
    worker accepts. Raises ValueError unless there is one request per arrival."""
    if len(arrivals_s) != len(requests):
        raise ValueError(f"{len(arrivals_s)} arrivals, but {len(requests)} requests")
    events = Loops if layout.loop else Threads
    return events(arrivals_s, requests, layout, rng).run()


# --- prediction -----------------------------------------------------------------------------------


class Prediction(Struct, frozen=True):
    """Response times of a load: the median, minimum and maximum of each figure over the draws."""

    central: Summary
    low: Summary
    high: Summary


def predict(
    server: Server,
    worker_class: WorkerClass,
    needs: Needs,
    arrivals_s: Sequence[float],
    *,
    cores: float = math.inf,
    max_in_flight: int | None = None,
    draws: int = 5,
    seed: int = 1,
) -> Prediction:
    """The predicted response times. `arrivals_s`: ascending. `cores`: those available to the
    workers, without the load tool's share. The same seed gives the same prediction. Raises
    ValueError without measured requests, arrivals or draws."""
    if not (needs.requests and arrivals_s and draws > 0):
        raise ValueError("a prediction needs measured requests, arrivals and at least one draw")
    layout = layout_of(server, worker_class, needs, cores, max_in_flight)
    summaries = []
    sample = _adapted_requests(needs, worker_class)
    for number in range(draws):
        rng = Random(f"{seed}-{number}")
        resampled = rng.choices(sample, k=len(sample))
        requests = rng.choices(resampled, k=len(arrivals_s))
        unevenness = number / (draws - 1) if draws > 1 else 0.5
        uneven = with_unevenness(layout, worker_class, unevenness)
        summaries.append(_summary(sorted(simulate(arrivals_s, requests, uneven, rng))))
    return Prediction(*(_over_draws(summaries, statistic) for statistic in (median, min, max)))


def layout_of(
    server: Server, worker_class: WorkerClass, needs: Needs, cores: float, max_in_flight: int | None
) -> Layout:
    in_loop = _blocks_loop(worker_class)
    return Layout(
        workers=server.workers * server.instances,
        slots=None if in_loop else worker_class.slots_per_worker(server),
        accepts_ahead=worker_class.accepts_first,
        max_accepted=server.worker_connections if worker_class.slots == "threads" else math.inf,
        loop=worker_class.loop or in_loop,
        cores=cores,
        gap_s=0.0 if in_loop else needs.gap_s,
        outside_s=needs.beside_s,
        max_in_flight=max_in_flight,
    )


def with_unevenness(layout: Layout, worker_class: WorkerClass, unevenness: float) -> Layout:
    """The layout if workers accept evenly (0), as unevenly as possible (1), or in between."""
    lowest_odds = UNFAIR_LOOP_ODDS if layout.loop else UNFAIR_ODDS
    if not worker_class.accepts_first:
        return replace(layout, cpu_before_wait_s=FIRST_S)
    fairness = 1 - (1 - lowest_odds) * unevenness
    return replace(layout, fairness=fairness, cpu_before_wait_s=2 * FIRST_S * (1 - unevenness))


def _blocks_loop(worker_class: WorkerClass) -> bool:
    """Whether the loop itself runs the app, so its waits block the loop: a class with one slot per
    worker that accepts more requests than that (tornado)."""
    return worker_class.accepts_first and worker_class.slots == "one"


def _adapted_requests(needs: Needs, worker_class: WorkerClass) -> Sequence[RequestNeed]:
    if not _blocks_loop(worker_class):
        return needs.requests
    return [
        replace(need, wait_s=0.0, blocked_s=need.blocked_s + need.wait_s + needs.gap_s)
        for need in needs.requests
    ]


def _summary(ordered_s: Sequence[float]) -> Summary:
    return replace(Summary(*summarise(ordered_s)), p90=quantile(ordered_s, 0.90))


def _over_draws(draws: Sequence[Summary], statistic: Callable[[Sequence[float]], float]) -> Summary:
    figures = zip(*map(astuple, draws), strict=True)
    return Summary(*(None if None in values else statistic(values) for values in figures))
