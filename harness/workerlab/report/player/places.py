"""Tracks the place of each request in flight, from three sources. Does no I/O.

    the client    when it began, when its connection was established, when it was answered or failed
    the probe     when its connection was accepted, when it was in the app, and in which worker
    the kernel    how many connections are in the accept queue

A request whose connection is established, but which is not in the app, is in the accept queue or
has been accepted and waits in a worker. The probe reports an accept only when the request enters
the app, so in a finished trial it is known for all requests that did. In a running trial, the
length of the accept queue decides: as it is first in, first out, the latest arrivals are in it. The
others are inferred to be IN_WORKER, in an unknown worker.

A finished trial can be replayed (`trace`). If the load tool gives requests an id, each is matched
with its span. For other tools, only requests in the app are shown individually, and those that wait
as a number.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from heapq import nsmallest
from itertools import takewhile
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS, completions
from workerlab.model import Server, Timing
from workerlab.numbers.samples import quantile

CONNECTING, QUEUED, IN_WORKER, IN_APP, ANSWERED, FAILED = range(6)
RECENT_S = 2.0  # the window of rate and quantiles, at least
ANSWERS_KEPT_S = 40.0  # how long answers are kept
DRAWN = 600  # requests drawn at once; beyond that, only a part of those that wait
MS_NS = 1e6
ORDER = "bckasxef"  # of events at the same nanosecond
GAVE_UP = "gave_up"  # a cause: the client closed the connection before the answer


class Event(NamedTuple):
    """`kind`: b, c, k, e, f as the load reports them (`load/generators/live.py`), f with its
    `cause`; a: the worker `pid` accepted its connection; s, x: the request entered or left its app.
    `accept_ns`: of the accept, if it is reported with s."""

    at_ns: int
    kind: str
    number: int
    pid: int = 0
    cause: str = ""
    accept_ns: int = 0


class Move(NamedTuple):
    """`worker`: None if the request is in none, or in an unknown one."""

    number: int
    place: int
    worker: int | None
    at_ns: int


class TracedRequest(Struct):
    """`accepted_ns`: as the probe reports it. `app_ns`, `left_ns`: when it entered and left the
    app; 0: not yet. A request that has left it waits for its answer."""

    begun_ns: int
    place: int = CONNECTING
    worker: int | None = None
    connected_ns: int = 0
    reused: bool = False  # its connection is kept alive from an earlier request
    accepted_ns: int = 0
    app_ns: int = 0
    left_ns: int = 0
    drawn: bool = True
    abandoned: bool = False  # its client gave up, but the server still serves it

    @property
    def waits_for_a_worker(self) -> bool:
        """Whether its connection is new and established, and no accept has been reported."""
        return self.connected_ns > 0 and not (self.reused or self.accepted_ns or self.app_ns)


class ClientAnswer(NamedTuple):
    """`app`: when it entered and left the app. `parts`: nanoseconds in connect, accept queue,
    worker and app, if all are known."""

    end_ns: int
    response_s: float
    app: tuple[int, int]
    parts: tuple[int, int, int, int] | None = None


class PlacesSample(Struct, frozen=True):
    """Figures of the latest answers; times in seconds. None: there was no answer."""

    rps: float | None
    # Response time of all requests in flight in the window, by Little's law. None if a client gave
    # up in the window, or as long as the load is younger than this mean
    mean: float | None
    p50: float | None
    p95: float | None
    failed: int  # since the beginning
    answered: int  # since the beginning
    under_way: int
    causes: dict[str, int] = {}  # failed requests by cause
    left: int = 0  # requests of the previous load still in flight
    settled: bool = True  # all answers in the window are of this load


class Places:
    """Tracks requests from place to place. `accepts_first`: the class accepts connections before
    it has a slot for them. `timed`: the requests whose accept will be reported. `slots`: most
    requests in the app at once; None: unlimited or unknown."""

    def __init__(
        self, *, accepts_first: bool, slots: int | None = None, timed: Set[int] = frozenset()
    ) -> None:
        self._accepts_first, self._slots, self._timed = accepts_first, slots, timed
        self._requests: dict[int, TracedRequest] = {}
        self._leaving = set[int]()  # have left the app, but are drawn in it until `_release`
        self._early: dict[int, list[Event]] = {}  # app events reported before the client's b
        self._workers: dict[int, int] = {}  # worker numbers, by pid
        self._moves: list[Move] = []
        self._recent: deque[ClientAnswer] = deque()
        self._newest = 0  # number of the newest request
        self._before = 0  # connections that seemed to wait in workers at the last `infer_queue`
        self.answered = self.failed = self._abandoned = 0
        self._wasted: deque[int] = deque()  # when abandoned requests left the app
        self._gave_up_ns = 0  # when a client last gave up
        self._causes: Counter[str] = Counter()
        self._at = [0] * (FAILED + 1)  # requests at each place
        self.every = 1  # one request in this many is drawn
        self.recent_s = RECENT_S
        self._limit: int | None = None  # of the accept queue, as last reported by the kernel
        self._opens_ns: int | None = None  # since when all answers are of this load
        self._mark = 0  # the newest request of the previous load
        self.left = 0  # requests of the previous load that are in flight

    @property
    def under_way(self) -> int:
        """Requests whose client waits for an answer."""
        return len(self._requests) - self._abandoned

    @property
    def counts(self) -> list[int]:
        """Requests in connect, accept queue, worker and app, including abandoned ones."""
        return self._at[:ANSWERED]

    @property
    def drawn_of(self) -> int:
        """As `every`, but at least 2 until all requests in flight are drawn."""
        return max(self.every, 1 + any(not request.drawn for request in self._requests.values()))

    def start_load(self, now_ns: int) -> None:
        """Start a new load: requests of the previous one are counted as `left`."""
        self._mark, self.left = self._newest, len(self._requests)
        if self._opens_ns is not None:
            self._opens_ns = now_ns

    def worker_number(self, pid: int) -> int:
        return self._workers.setdefault(pid, len(self._workers))

    def process(self, events: Iterable[Event]) -> None:
        """Process the events of one poll, given in any order."""
        for event in sorted(events, key=lambda event: (event.at_ns, ORDER.index(event.kind))):
            if event.kind == "b":
                self._begin(event)
            elif (request := self._requests.get(event.number)) is not None:
                self._advance(event, request)
            elif event.kind in "sx" and event.number > self._newest:
                self._early.setdefault(event.number, []).append(event)

    def _begin(self, event: Event) -> None:
        self.every, self._newest = 1 + len(self._requests) // DRAWN, event.number
        self._opens_ns = self._opens_ns or event.at_ns
        request = TracedRequest(event.at_ns, drawn=event.number % self.every == 0)
        self._requests[event.number] = request
        self._at[CONNECTING] += 1
        self._move(event, request, CONNECTING)
        for early in self._early.pop(event.number, ()):
            self._advance(early, request)

    def _advance(self, event: Event, request: TracedRequest) -> None:
        if event.kind in "ck":
            request.connected_ns, request.reused = event.at_ns, event.kind == "k"
            if request.place == CONNECTING and (request.reused or not self._full):
                self._move(event, request, IN_WORKER if request.reused else QUEUED)
        elif event.kind == "a":
            request.worker, request.accepted_ns = self.worker_number(event.pid), event.at_ns
            self._move(event, request, IN_WORKER)
        elif event.kind == "s":
            if not request.app_ns:  # else it is reported again, with its end
                request.worker, request.app_ns = self.worker_number(event.pid), event.at_ns
                self._release(event.at_ns, request.worker)
                request.accepted_ns = request.accepted_ns or event.accept_ns
                request.drawn = request.drawn or self._at[IN_APP] < DRAWN
                self._move(event, request, IN_APP)
        elif event.kind == "x":
            request.left_ns = event.at_ns
            self._leaving.add(event.number)
            if request.abandoned:
                self._abandoned -= 1
                self._wasted.append(event.at_ns)
                self._remove(event, request, FAILED)
        else:
            self._end(event, request)

    @property
    def _full(self) -> bool:
        """Whether the accept queue is full; the kernel admits one more than its limit."""
        return self._limit is not None and self._at[QUEUED] > self._limit

    def _end(self, event: Event, request: TracedRequest) -> None:
        fine = event.kind == "e"
        if event.cause == GAVE_UP:
            self._gave_up_ns = event.at_ns
        if event.cause == GAVE_UP and request.place != CONNECTING and not request.left_ns:
            request.abandoned = True
            self._abandoned += 1
        else:
            self._remove(event, request, ANSWERED if fine else FAILED)
        if fine:
            self.answered += 1
            at_ns, left_ns = event.at_ns, request.left_ns or event.at_ns
            in_app = (request.app_ns or at_ns, left_ns)
            response_s = (at_ns - request.begun_ns) / NS
            self._recent.append(ClientAnswer(at_ns, response_s, in_app, _parts(request, left_ns)))
        else:
            self.failed += 1
            self._causes[event.cause] += 1

    def _remove(self, event: Event, request: TracedRequest, place: int) -> None:
        self._move(event, request, place)
        self._leaving.discard(event.number)
        del self._requests[event.number]
        if self.left and event.number <= self._mark:
            self.left -= 1
            if not self.left:
                self._opens_ns = event.at_ns + 1

    def _move(self, event: Event, request: TracedRequest, place: int) -> None:
        self._at[request.place] -= 1
        self._at[place] += 1
        request.place = place
        if request.drawn:
            self._moves.append(Move(event.number, place, request.worker, event.at_ns))

    def _release(self, at_ns: int, worker: int | None = None) -> None:
        """Move requests that have left the app (of that worker) out of it: their slot is free,
        whether or not they are answered."""
        for number in tuple(self._leaving):
            if worker in (None, (request := self._requests[number]).worker):
                self._leaving.discard(number)
                self._move(Event(at_ns, "", number), request, IN_WORKER)

    # --- inference -------------------------------------------------------------------------------

    def infer_queue(self, now_ns: int, queue: int | None, limit: int | None = None) -> None:
        """Infer which requests are in the accept queue. `queue`: its length, None: unknown."""
        self._release(now_ns)
        if queue is None:
            return
        waiting = [
            (request.connected_ns, number, request)
            for number, request in self._requests.items()
            if request.waits_for_a_worker
        ]
        self._limit = limit
        beyond = max(0, len(waiting) - queue)
        # If a class accepts only when it has a slot, requests are in between only for a moment
        steady = beyond if self._accepts_first else min(beyond, self._before)
        self._before = beyond
        # At most as many can be in between as there are free slots. If the queue is or was full,
        # the kernel has dropped the last packet of the latest handshakes: these connections are
        # established for the client only
        full = not self._accepts_first and limit is not None and queue >= limit
        free, lost = len(waiting), 0
        if not self._accepts_first and self._slots is not None:
            free = max(0, self._slots - self._at[IN_APP])
        if full:
            steady = lost = max(steady, beyond - free)
        elif limit is not None:
            lost = max(0, steady - free)
            steady -= lost
        room = math.inf if limit is None else limit + 1
        for index, (_, number, request) in enumerate(sorted(waiting)):
            place = QUEUED if room else CONNECTING
            if index >= len(waiting) - lost:
                place = CONNECTING
            elif steady and not full and number not in self._timed:
                steady, place = steady - 1, IN_WORKER
            room -= place == QUEUED
            if request.place != place:
                self._move(Event(now_ns, "", number), request, place)

    # --- output ----------------------------------------------------------------------------------

    def moves(self) -> list[Move]:
        """The moves since the last call, in order of time."""
        moves, self._moves = self._moves, []
        return sorted(moves, key=lambda move: move.at_ns)

    def snapshot(self, at_ns: int) -> list[Move]:
        """The drawn requests in flight, when they began and where they are, for a new viewer."""
        drawn = [(number, request) for number, request in self._requests.items() if request.drawn]
        return [
            *(Move(number, CONNECTING, None, request.begun_ns) for number, request in drawn),
            *(
                Move(number, request.place, request.worker, at_ns)
                for number, request in drawn
                if request.place
            ),
        ]

    def sample(self, now_ns: int, over_s: float | None = None) -> PlacesSample:
        """Figures of the latest answers. `over_s`: the window in seconds, at most
        ANSWERS_KEPT_S; None: `recent_s`."""
        over_ns = int((over_s or self.recent_s) * NS)
        opens_ns = max(now_ns - over_ns, self._opens_ns or 0)
        while self._recent and self._recent[0].end_ns < now_ns - ANSWERS_KEPT_S * NS:
            self._recent.popleft()
        while self._wasted and self._wasted[0] < now_ns - ANSWERS_KEPT_S * NS:
            self._wasted.popleft()
        answers = self.latest(opens_ns)
        times_s = sorted(answer.response_s for answer in answers)
        p50, p95 = (quantile(times_s, q) if times_s else None for q in (0.5, 0.95))
        rps = self._rps(answers, opens_ns, now_ns)
        mean = None
        if rps and self._gave_up_ns < opens_ns:  # else abandoned requests distort it
            mean = self._under_way_s(answers, opens_ns, now_ns) / rps
        if mean and mean * NS > now_ns - (self._opens_ns or 0):
            mean = None  # too early: few requests that long can have been answered
        totals = (self.failed, self.answered, self.under_way, dict(self._causes))
        settled = not self.left and now_ns - opens_ns >= over_ns
        return PlacesSample(rps, mean, p50, p95, *totals, self.left, settled)

    def latest(self, since_ns: int) -> list[ClientAnswer]:
        """The answers since then, latest first."""
        return list(takewhile(lambda answer: answer.end_ns >= since_ns, reversed(self._recent)))

    def _under_way_s(self, answers: Sequence[ClientAnswer], opens_ns: int, closes_ns: int) -> float:
        """Mean number of requests in flight."""
        begun = [
            (answer.end_ns - round(answer.response_s * NS), answer.end_ns) for answer in answers
        ]
        begun += [(request.begun_ns, closes_ns) for request in self._awaited()]
        inside = sum(until - max(since, opens_ns) for since, until in begun)
        return inside / (closes_ns - opens_ns)

    def oldest_s(self, now_ns: int) -> float:
        """The age of the oldest request in flight; 0 if there is none."""
        return max(((now_ns - r.begun_ns) / NS for r in self._awaited()), default=0.0)

    def _awaited(self) -> list[TracedRequest]:
        return [request for request in self._requests.values() if not request.abandoned]

    def wasted(self, since_ns: int) -> int:
        """How many requests have left the app since then, after their clients had given up."""
        return sum(at_ns >= since_ns for at_ns in self._wasted)

    def _rps(self, answers: Sequence[ClientAnswer], opens_ns: int, closes_ns: int) -> float | None:
        """Requests per second. Each counts by the part of its time in the app that lies in the
        window, as in `samples`, since completions come in batches; one that is still in the app is
        assumed to take the median time."""
        if closes_ns <= opens_ns or not answers:
            return 0.0 if self.answered else None
        typical_ns = median(until - since for since, until in (answer.app for answer in answers))
        in_app_ns = [request.app_ns for request in self._awaited() if request.place == IN_APP]
        counted = [answer.app for answer in answers]
        counted += [(app_ns, max(closes_ns, app_ns + round(typical_ns))) for app_ns in in_app_ns]
        return completions(counted, opens_ns, closes_ns) * NS / (closes_ns - opens_ns)


def _parts(request: TracedRequest, left_ns: int) -> tuple[int, int, int, int] | None:
    """Nanoseconds in each place; None unless all are known and the connection is new. A client may
    learn that it is connected after a worker has accepted the connection."""
    accepted_ns, app_ns = request.accepted_ns, request.app_ns
    if request.reused or not (request.connected_ns and accepted_ns and app_ns):
        return None
    connected_ns = min(request.connected_ns, accepted_ns)
    return (
        connected_ns - request.begun_ns,
        accepted_ns - connected_ns,
        app_ns - accepted_ns,
        left_ns - app_ns,
    )


def as_rows(moves: Sequence[Move], origin_ns: int) -> list[list[float | int | None]]:
    """The moves as rows for the page, times in milliseconds since `origin_ns`."""
    return [[m.number, m.place, m.worker, round((m.at_ns - origin_ns) / MS_NS, 1)] for m in moves]


# --- a finished trial -----------------------------------------------------------------------------

STEP_NS = 50_000_000  # between two readings of the queue, as in the live lesson
STEPS_PER_SAMPLE = 5  # steps between samples
MIN_SHOWN_NS = 1_000_000  # shorter waits are not shown


TraceSample = tuple[float, float | None, float | None, float | None, int | None, int | None]


class Trace(Struct, frozen=True):
    """Where each request of a trial was at each moment, for replay. `moves`: (request, place, its
    worker's number or None, ms since the load began), ascending in time; `samples`: (ms, answers/s,
    mean and p95 of the response in seconds, accept queue, requests in flight). `named`: clients
    gave requests an id; if not, only requests in the app can be shown individually."""

    server: Server
    slots: int | None
    accepts_first: bool
    length_ms: float  # of the part shown
    moves: tuple[tuple[int, int, int | None, float], ...]
    samples: tuple[TraceSample, ...]
    named: bool = True
    whole: bool = True  # whether all of the load is shown


def trace(facts: Facts, most: int) -> Trace | None:
    """The replay of the first `most` requests, until the next one starts; None if no request was
    seen."""
    timings, until_ns = _first_timings(facts, most)
    named = bool(timings)
    if not named and len(facts.spans) > most:
        until_ns = facts.spans[most].start_ns
    events = sorted(_events(facts, timings, most), key=lambda event: event.at_ns)
    if not events:
        return None
    accepts_first, timed = facts.data.worker_class.accepts_first, set(_timed(facts, timings))
    places = Places(accepts_first=accepts_first, slots=facts.slots, timed=timed)
    for pid in facts.per_worker:
        places.worker_number(pid)
    moves, samples = _replay(facts, places, events, until_ns)
    if not named:  # arrivals and response times are unknown
        moves = [move for move in moves if move.place >= IN_APP]
        samples = [(at_ms, rps, None, None, queue, None) for at_ms, rps, _, _, queue, _ in samples]
    return Trace(
        server=facts.cell.server,
        slots=facts.slots,
        accepts_first=accepts_first,
        length_ms=_ms(facts, until_ns),
        moves=tuple(
            (move.number, move.place, move.worker, _ms(facts, move.at_ns)) for move in moves
        ),
        samples=tuple(samples),
        named=named,
        whole=until_ns >= facts.ended_ns,
    )


def _ms(facts: Facts, at_ns: int) -> float:
    """Milliseconds since the load began."""
    return round((at_ns - facts.started_ns) / MS_NS, 1)


def _replay(
    facts: Facts, places: Places, events: list[Event], until_ns: int
) -> tuple[list[Move], list[TraceSample]]:
    """The moves and samples, in steps as in a live view."""
    queue, moves, samples = facts.data.observations.queue, list[Move](), list[TraceSample]()
    at_ns, length, limit, next_event, reading, step = facts.started_ns, None, None, 0, 0, 0
    if queue:  # its length is known before the first connection is established
        places.infer_queue(at_ns, queue[0].length, queue[0].limit)
    while at_ns < until_ns:
        at_ns, step, first = min(at_ns + STEP_NS, until_ns), step + 1, next_event
        while next_event < len(events) and events[next_event].at_ns <= at_ns:
            next_event += 1
        places.process(events[first:next_event])
        while reading < len(queue) and queue[reading].at_ns <= at_ns:
            length, limit, reading = queue[reading].length, queue[reading].limit, reading + 1
        places.infer_queue(at_ns, length, limit)
        moves += places.moves()
        if step % STEPS_PER_SAMPLE == 0:
            sample = places.sample(at_ns)
            figures = (sample.rps, sample.mean, sample.p95, length, sample.under_way)
            samples.append((_ms(facts, at_ns), *figures))
    return moves, samples


def _first_timings(facts: Facts, most: int) -> tuple[list[Timing], int]:
    """The first `most` requests by start, and the start of the next one, or the end of the load.
    No requests if the load tool gave them no id or the app did not see the ids."""
    origin_ns, timings = facts.measurement.origin_ns, facts.measurement.timings
    if origin_ns is None:
        return [], facts.ended_ns
    first = nsmallest(most + 1, timings, key=attrgetter("start_s"))
    inside = {span.request_id for span in facts.spans[: most + 1]} - {None}
    if inside.isdisjoint(timing.request_id for timing in first):
        return [], facts.ended_ns
    if len(first) > most:
        return first[:most], origin_ns + round(first[most].start_s * NS)
    return first, facts.ended_ns


def _events(facts: Facts, timings: Sequence[Timing], most: int) -> Iterator[Event]:
    """`timings`: of the replayed requests; empty if they cannot be matched with spans."""
    numbers = {timing.request_id: number for number, timing in enumerate(timings, 1)}
    accepted_ns = _timed(facts, timings)
    for timing in timings:
        yield from _of_client(facts, timing, numbers[timing.request_id])
    spans = facts.spans if timings else facts.spans[:most]
    for place, span in enumerate(spans, 1):
        number = numbers.get(span.request_id) if timings else place
        if number is None:
            continue
        if not timings:
            yield Event(span.start_ns, "b", number)
        elif span.start_ns - accepted_ns.get(number, span.start_ns) >= MIN_SHOWN_NS:
            yield Event(accepted_ns[number], "a", number, span.pid)
        yield Event(span.start_ns, "s", number, span.pid)
        if span.end_ns is not None:
            yield Event(span.end_ns, "x" if timings else "e", number, span.pid)


def _timed(facts: Facts, timings: Sequence[Timing]) -> dict[int, int]:
    """When new connections were accepted, by request number, if the probe timed it; nanoseconds."""
    numbers = {
        timing.request_id: number for number, timing in enumerate(timings, 1) if not timing.reused
    }
    return {
        numbers[span.request_id]: span.accept_ns
        for span in facts.spans
        if span.accept_ns is not None and span.request_id in numbers
    }


def _of_client(facts: Facts, timing: Timing, number: int) -> Iterator[Event]:
    begun_ns = (facts.measurement.origin_ns or 0) + round(timing.start_s * NS)
    yield Event(begun_ns, "b", number)
    if timing.reused:
        yield Event(begun_ns, "k", number)
    elif timing.connect_s is not None:
        yield Event(begun_ns + round(timing.connect_s * NS), "c", number)
    ended_ns = facts.ended_ns if timing.end_s is None else begun_ns + round(timing.end_s * NS)
    yield Event(ended_ns, "e" if timing.cause is None and timing.end_s is not None else "f", number)
