"""Tracks the place of each request in flight, from three sources. Does no I/O.

    the client    when it began, connected, and was answered or failed
    the probe     when its connection was accepted, when it was in the app, and in which worker
    the kernel    how many connections are in the accept queue

A request that is connected but not in the app is in the accept queue, or a worker has accepted it.
The probe reports an accept only when the request enters the app, so even in a finished trial it is
known only for requests that entered the app. Otherwise the length of the accept queue decides: the
queue is first in, first out, so it contains the latest arrivals. The others are inferred to be
IN_WORKER, in an unknown worker, or CONNECTING, because a full queue drops handshakes.

A request is in flight while its client waits. An abandoned one is tracked until it leaves the app.

A finished trial can be replayed (`trace`). If the load tool gives requests an id, each is matched
with its span. For other tools, requests in the app are shown one by one, the others as a number.
"""

import math
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence, Set
from heapq import nsmallest
from itertools import takewhile
from operator import attrgetter, itemgetter
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS, Intervals, Period
from workerlab.model.evidence import Span, Timing
from workerlab.numbers.samples import quantile

CONNECTING, QUEUED, IN_WORKER, IN_APP, ANSWERED, FAILED = range(6)
MIN_RECENT_S = 2.0  # the shortest default window of rate and quantiles
ANSWERS_KEPT_S = 40.0  # older ones are discarded
MAX_ALL_DRAWN = 600  # requests; if more are in flight, only some of the waiting ones are drawn
MS_NS = 1e6
GAVE_UP = "gave_up"  # cause: the client closed the connection before the response
EVENT_ORDER = tuple("bckasxef")  # kinds of events, in their order within a nanosecond
BEGUN, CONNECTED, REUSED, ACCEPTED, APP_ENTERED, APP_LEFT, SUCCEEDED, FAILURE = EVENT_ORDER


class Event(NamedTuple):
    """`kind`: one of the above; REUSED: sent on a kept-alive connection. `pid`: that of the worker;
    `cause`: that of a FAILURE; `accept_ns`: time of an accept reported with APP_ENTERED, else 0."""

    at_ns: int
    kind: str
    number: int
    pid: int = 0
    cause: str = ""
    accept_ns: int = 0


class Move(NamedTuple):
    """A request moves to a place. `worker`: its number; None: no worker, or an unknown one."""

    number: int
    place: int
    worker: int | None
    at_ns: int


class TracedRequest(Struct):
    """A request in flight, or abandoned. Times are 0 if they are unknown or still to come."""

    number: int
    begun_ns: int
    place: int = CONNECTING
    worker: int | None = None
    connected_ns: int = 0
    reused: bool = False  # whether an earlier request used its connection
    accepted_ns: int = 0
    app_entered_ns: int = 0
    app_left_ns: int = 0
    drawn: bool = True
    abandoned: bool = False  # whether its client gave up while the server still serves it

    @property
    def waits_for_a_worker(self) -> bool:
        """Whether its connection is new, established, and not reported as accepted."""
        accept_known = self.accepted_ns or self.app_entered_ns
        return self.connected_ns > 0 and not (self.reused or accept_known)


class ClientAnswer(NamedTuple):
    """`app_ns`: when the request entered and left the app, `end_ns` if unknown. `parts_ns`: its
    time in connect, accept queue, worker and app; None unless all are known."""

    end_ns: int
    response_s: float
    app_ns: tuple[int, int]
    parts_ns: tuple[int, int, int, int] | None = None


class PlacesSample(Struct, frozen=True):
    """Figures of a window that ends now, with times in seconds. None: no response in the window."""

    rps: float | None  # 0 without a response in the window; None before the first response
    # Response time of all requests in flight in the window, by Little's law. None if a client gave
    # up in the window, or if the load has run for less than this mean
    mean: float | None
    p50: float | None
    p95: float | None
    failed: int  # since the server started
    answered: int  # since the server started
    under_way: int  # requests in flight
    causes: dict[str, int] = {}  # failed requests by cause
    left: int = 0  # tracked requests of the previous load
    settled: bool = True  # whether the window has its full length and `left` is 0


class Places:
    """Tracks requests from place to place. `accepts_first`: whether the class accepts connections
    before it has a slot for them. `accept_timed`: the requests whose accept will be reported.
    `slots`: maximum number of requests in the app at once; None: unlimited or unknown."""

    def __init__(
        self, *, accepts_first: bool, slots: int | None = None, accept_timed: Set[int] = frozenset()
    ) -> None:
        self._accepts_first, self._slots, self._accept_timed = accepts_first, slots, accept_timed
        self._requests: dict[int, TracedRequest] = {}  # tracked requests by number
        self._leaving: dict[int, TracedRequest] = {}  # drawn in the app until `_release`
        self._early_events: dict[int, list[Event]] = {}  # app events reported before BEGUN
        self._worker_numbers: dict[int, int] = {}  # by pid
        self._moves: list[Move] = []
        self._answers: deque[ClientAnswer] = deque()
        self._newest_number = 0
        self._previous_not_queued = 0  # as counted by the last `infer_queue`
        self.answered = self.failed = self._abandoned = 0
        self._wasted_ns: deque[int] = deque()  # when abandoned requests left the app
        self._last_gave_up_ns = 0
        self._causes: Counter[str] = Counter()
        self._counts = [0] * (FAILED + 1)  # requests at each place
        self.draw_interval = 1  # every n-th new request is drawn
        self.recent_s = MIN_RECENT_S  # the default window of `sample`
        self._queue_limit: int | None = None  # the last one that the kernel reported
        self._load_start_ns: int | None = None  # or when the last leftover request ended
        self._newest_of_previous_load = 0
        self._leftover = 0  # tracked requests of the previous load

    @property
    def in_flight(self) -> int:
        """The number of requests whose clients wait for a response."""
        return len(self._requests) - self._abandoned

    @property
    def counts(self) -> list[int]:
        """The numbers of requests in connect, accept queue, worker and app, with abandoned ones."""
        return self._counts[:ANSWERED]

    @property
    def drawn_one_in(self) -> int:
        """Like `draw_interval`, but at least 2 unless all tracked requests are drawn."""
        some_hidden = any(not request.drawn for request in self._requests.values())
        return max(self.draw_interval, 1 + some_hidden)

    def start_load(self, now_ns: int) -> None:
        """Start a new load. Tracked requests of the previous one are counted as left over."""
        self._newest_of_previous_load, self._leftover = self._newest_number, len(self._requests)
        if self._load_start_ns is not None:
            self._load_start_ns = now_ns

    def worker_number(self, pid: int) -> int:
        """The number of the worker, from 0 in the order of the first calls."""
        return self._worker_numbers.setdefault(pid, len(self._worker_numbers))

    def process(self, events: Iterable[Event]) -> None:
        """Process the events of one poll, given in any order."""
        for event in sorted(events, key=lambda event: (event.at_ns, EVENT_ORDER.index(event.kind))):
            if event.kind == BEGUN:
                self._begin(event)
            elif (request := self._requests.get(event.number)) is not None:
                self._advance(event, request)
            elif event.kind in (APP_ENTERED, APP_LEFT) and event.number > self._newest_number:
                self._early_events.setdefault(event.number, []).append(event)

    def _begin(self, event: Event) -> None:
        at_ns, number = event.at_ns, event.number
        self.draw_interval, self._newest_number = 1 + len(self._requests) // MAX_ALL_DRAWN, number
        self._load_start_ns = self._load_start_ns or at_ns
        request = TracedRequest(number, at_ns, drawn=number % self.draw_interval == 0)
        self._requests[number] = request
        self._counts[CONNECTING] += 1
        self._move(at_ns, request, CONNECTING)
        for early_event in self._early_events.pop(number, ()):
            self._advance(early_event, request)

    def _advance(self, event: Event, request: TracedRequest) -> None:
        at_ns, kind = event.at_ns, event.kind
        if kind in (CONNECTED, REUSED):
            request.connected_ns, request.reused = at_ns, kind == REUSED
            if request.place == CONNECTING and (request.reused or not self._queue_full):
                self._move(at_ns, request, IN_WORKER if request.reused else QUEUED)
        elif kind == ACCEPTED:
            request.worker, request.accepted_ns = self.worker_number(event.pid), at_ns
            self._move(at_ns, request, IN_WORKER)
        elif kind == APP_ENTERED:
            if not request.app_entered_ns:  # else it is a repetition, reported with the end
                request.worker, request.app_entered_ns = self.worker_number(event.pid), at_ns
                self._release(at_ns, request.worker)
                request.accepted_ns = request.accepted_ns or event.accept_ns
                request.drawn = request.drawn or self._counts[IN_APP] < MAX_ALL_DRAWN
                self._move(at_ns, request, IN_APP)
        elif kind == APP_LEFT:
            request.app_left_ns = at_ns
            self._leaving[request.number] = request
            if request.abandoned:
                self._abandoned -= 1
                self._wasted_ns.append(at_ns)
                self._remove(at_ns, request, FAILED)
        else:
            self._end(event, request)

    @property
    def _queue_full(self) -> bool:
        """Whether the accept queue is full; the kernel admits one more than its limit."""
        return self._queue_limit is not None and self._counts[QUEUED] > self._queue_limit

    def _end(self, event: Event, request: TracedRequest) -> None:
        at_ns, succeeded = event.at_ns, event.kind == SUCCEEDED
        if event.cause == GAVE_UP:
            self._last_gave_up_ns = at_ns
        if event.cause == GAVE_UP and request.place != CONNECTING and not request.app_left_ns:
            request.abandoned = True
            self._abandoned += 1
        else:
            self._remove(at_ns, request, ANSWERED if succeeded else FAILED)
        if succeeded:
            self.answered += 1
            left_ns, response_s = request.app_left_ns or at_ns, (at_ns - request.begun_ns) / NS
            app_ns = (request.app_entered_ns or at_ns, left_ns)
            parts_ns = _parts_ns(request, left_ns)
            self._answers.append(ClientAnswer(at_ns, response_s, app_ns, parts_ns))
        else:
            self.failed += 1
            self._causes[event.cause] += 1

    def _remove(self, at_ns: int, request: TracedRequest, place: int) -> None:
        self._move(at_ns, request, place)
        self._leaving.pop(request.number, None)
        del self._requests[request.number]
        if self._leftover and request.number <= self._newest_of_previous_load:
            self._leftover -= 1
            if not self._leftover:
                self._load_start_ns = at_ns + 1

    def _move(self, at_ns: int, request: TracedRequest, place: int) -> None:
        self._counts[request.place] -= 1
        self._counts[place] += 1
        request.place = place
        if request.drawn:
            self._moves.append(Move(request.number, place, request.worker, at_ns))

    def _release(self, at_ns: int, worker: int | None = None) -> None:
        """Move requests that have left the app (of that worker) out of the picture of the app:
        their slots are free, whether or not they are answered."""
        for number, request in tuple(self._leaving.items()):
            if worker in (None, request.worker):
                del self._leaving[number]
                self._move(at_ns, request, IN_WORKER)

    # --- inference -------------------------------------------------------------------------------

    def infer_queue(self, now_ns: int, queue_length: int | None, limit: int | None = None) -> None:
        """Infer which connected requests are QUEUED, IN_WORKER or CONNECTING (the kernel dropped
        the handshake). If `queue_length` is None (unknown), they stay. `limit`: the queue's."""
        self._release(now_ns)
        if queue_length is None:
            return
        waiting = [request for request in self._requests.values() if request.waits_for_a_worker]
        waiting.sort(key=attrgetter("connected_ns", "number"))
        self._queue_limit = limit
        not_queued = max(0, len(waiting) - queue_length)
        # If a class accepts only when a slot is free, requests wait in a worker only for a moment
        accepted = not_queued if self._accepts_first else min(not_queued, self._previous_not_queued)
        self._previous_not_queued = not_queued
        # At most one request per free slot waits in a worker. If the queue is or was full, the
        # kernel has dropped the last packet of the latest handshakes: these connections are
        # established only on the client's side
        was_full = not self._accepts_first and limit is not None and queue_length >= limit
        free_slots, dropped = len(waiting), 0
        if not self._accepts_first and self._slots is not None:
            free_slots = max(0, self._slots - self._counts[IN_APP])
        if was_full:
            dropped = max(accepted, not_queued - free_slots)
        elif limit is not None:
            dropped = max(0, accepted - free_slots)
            accepted -= dropped
        queue_room = math.inf if limit is None else limit + 1
        for index, request in enumerate(waiting):
            place = QUEUED if queue_room else CONNECTING
            if index >= len(waiting) - dropped:
                place = CONNECTING
            elif accepted and not was_full and request.number not in self._accept_timed:
                accepted, place = accepted - 1, IN_WORKER
            queue_room -= place == QUEUED
            if request.place != place:
                self._move(now_ns, request, place)

    # --- output ----------------------------------------------------------------------------------

    def take_moves(self) -> list[Move]:
        """The moves since the last call, in order of time; they are not returned again."""
        moves, self._moves = self._moves, []
        return sorted(moves, key=lambda move: move.at_ns)

    def snapshot(self, at_ns: int) -> list[Move]:
        """Moves for a new viewer: the start of each drawn request, and its place at `at_ns`."""
        drawn = [request for request in self._requests.values() if request.drawn]
        return [
            *(Move(request.number, CONNECTING, None, request.begun_ns) for request in drawn),
            *(
                Move(request.number, request.place, request.worker, at_ns)
                for request in drawn
                if request.place
            ),
        ]

    def sample(self, now_ns: int, window_s: float | None = None) -> PlacesSample:
        """Figures of the window that ends now. `window_s`: its length, at most ANSWERS_KEPT_S;
        None: `recent_s`. The window never begins before the load."""
        window_ns = int((window_s or self.recent_s) * NS)
        window_start_ns = max(now_ns - window_ns, self._load_start_ns or 0)
        while self._answers and self._answers[0].end_ns < now_ns - ANSWERS_KEPT_S * NS:
            self._answers.popleft()
        while self._wasted_ns and self._wasted_ns[0] < now_ns - ANSWERS_KEPT_S * NS:
            self._wasted_ns.popleft()
        answers = self.answers_since(window_start_ns)
        times_s = sorted(answer.response_s for answer in answers)
        p50_s, p95_s = (quantile(times_s, q) if times_s else None for q in (0.5, 0.95))
        window = Period(window_start_ns, now_ns)
        rps = self._rps(answers, window)
        mean_s = None
        if rps and self._last_gave_up_ns < window_start_ns:  # else abandoned requests distort it
            mean_s = self._mean_in_flight(answers, window) / rps
        if mean_s and mean_s * NS > now_ns - (self._load_start_ns or 0):
            mean_s = None  # too early: hardly any request that took so long can have ended
        totals = (self.failed, self.answered, self.in_flight, dict(self._causes))
        settled = not self._leftover and now_ns - window_start_ns >= window_ns
        return PlacesSample(rps, mean_s, p50_s, p95_s, *totals, self._leftover, settled)

    def answers_since(self, since_ns: int) -> list[ClientAnswer]:
        """The answers since then, the latest first."""
        return list(takewhile(lambda answer: answer.end_ns >= since_ns, reversed(self._answers)))

    def _mean_in_flight(self, answers: Sequence[ClientAnswer], window: Period) -> float:
        """The mean number of requests in flight in the window. `answers`: all answers in it."""
        intervals_ns = [
            (answer.end_ns - round(answer.response_s * NS), answer.end_ns) for answer in answers
        ]
        in_flight = self._requests_in_flight()
        intervals_ns += [(request.begun_ns, window.closes_ns) for request in in_flight]
        return Intervals(intervals_ns).inside_s(window) / window.length_s

    def oldest_s(self, now_ns: int) -> float:
        """The age of the oldest request in flight; 0 if there is none."""
        ages_s = ((now_ns - request.begun_ns) / NS for request in self._requests_in_flight())
        return max(ages_s, default=0.0)

    def _requests_in_flight(self) -> list[TracedRequest]:
        return [request for request in self._requests.values() if not request.abandoned]

    def wasted_count(self, since_ns: int) -> int:
        """The number of requests that left the app since then, after their clients had given up."""
        return sum(at_ns >= since_ns for at_ns in self._wasted_ns)

    def _rps(self, answers: Sequence[ClientAnswer], window: Period) -> float | None:
        """Requests per second; None before the first response. Completions come in batches, so each
        request counts by the share of its time in the app that lies in the window, as in `samples`;
        one that is still in the app is assumed to take the median time."""
        if window.length_s <= 0 or not answers:
            return 0.0 if self.answered else None
        stays_ns = [answer.app_ns for answer in answers]
        typical_ns = round(median(left_ns - entered_ns for entered_ns, left_ns in stays_ns))
        in_app = [request for request in self._requests_in_flight() if request.place == IN_APP]
        entered_ns = [request.app_entered_ns for request in in_app]
        stays_ns += [(at_ns, max(window.closes_ns, at_ns + typical_ns)) for at_ns in entered_ns]
        return Intervals(stays_ns).per_second(window)


def _parts_ns(request: TracedRequest, left_ns: int) -> tuple[int, int, int, int] | None:
    """The time in each place; None unless all are known and the connection is new. A client may see
    the connection established only after a worker has accepted it."""
    accepted_ns, entered_ns = request.accepted_ns, request.app_entered_ns
    if request.reused or not (request.connected_ns and accepted_ns and entered_ns):
        return None
    connected_ns = min(request.connected_ns, accepted_ns)
    return (
        connected_ns - request.begun_ns,
        accepted_ns - connected_ns,
        entered_ns - accepted_ns,
        left_ns - entered_ns,
    )


MoveRow = tuple[int, int, int | None, float]


def as_rows(moves: Sequence[Move], origin_ns: int) -> tuple[MoveRow, ...]:
    """The moves as (request, place, worker number or None, ms since `origin_ns`), for the page."""
    return tuple((m.number, m.place, m.worker, as_ms(m.at_ns, origin_ns)) for m in moves)


def as_ms(at_ns: int, origin_ns: int) -> float:
    return round((at_ns - origin_ns) / MS_NS, 1)


# --- a finished trial -----------------------------------------------------------------------------

STEP_NS = 50_000_000  # between two calls of `infer_queue`, as on the live page
STEPS_PER_SAMPLE = 5
MIN_SHOWN_WAIT_NS = 1_000_000  # shorter waits in a worker are not shown

AT_NS = attrgetter("at_ns")
TimedRequest = tuple[Timing, int, int | None]  # as in `Facts.timed_requests`
TraceSample = tuple[float, float | None, float | None, float | None, int | None, int | None]


class Trace(Struct, frozen=True):
    """The places of all requests of a trial over time, for replay. `moves`: from `as_rows`, since
    the load began, in order of time; `samples`: (ms, responses/s, mean and p95 of the response time
    in seconds, accept queue, requests in flight). `named`: whether clients gave requests an id; if
    not, only requests in the app can be shown one by one."""

    length_ms: float  # length of the period shown
    moves: tuple[MoveRow, ...]
    samples: tuple[TraceSample, ...]
    named: bool
    whole: bool  # whether all of the load is shown


def trace(facts: Facts, max_requests: int) -> Trace | None:
    """The trace of the first `max_requests` requests, until the next one starts; None if no request
    was recorded."""
    timed_requests, until_ns = _first_timed(facts, max_requests)
    named = bool(timed_requests)
    spans = facts.spans if named else facts.spans[:max_requests]
    if len(spans) < len(facts.spans):
        until_ns = facts.spans[max_requests].start_ns
    numbers = {timing.request_id: number for number, (timing, _, _) in enumerate(timed_requests, 1)}
    connecting = {timing.request_id for timing, _, _ in timed_requests if not timing.reused}
    accepted_ns = {
        numbers[span.request_id]: span.accept_ns
        for span in spans
        if span.accept_ns is not None and span.request_id in connecting
    }
    events: list[Event] = []
    for index, request in enumerate(timed_requests, 1):
        events += _client_events(request, index, facts.ended_ns)
    for index, span in enumerate(spans, 1):
        number = numbers.get(span.request_id) if named else index
        if number is not None:
            events += app_events(span, number, accepted_ns.get(number), named=named)
    if not events:
        return None
    accepts_first = facts.data.worker_class.accepts_first
    places = Places(accepts_first=accepts_first, slots=facts.slots, accept_timed=accepted_ns.keys())
    for pid in facts.requests_per_worker:
        places.worker_number(pid)
    moves, samples = _replay(facts, places, sorted(events, key=AT_NS), until_ns)
    if not named:  # arrival and response times are unknown
        moves = [move for move in moves if move.place >= IN_APP]
        samples = [(at_ms, rps, None, None, queue, None) for at_ms, rps, _, _, queue, _ in samples]
    return Trace(
        length_ms=as_ms(until_ns, facts.started_ns),
        moves=as_rows(moves, facts.started_ns),
        samples=tuple(samples),
        named=named,
        whole=until_ns >= facts.ended_ns,
    )


def _replay(
    facts: Facts, places: Places, events: list[Event], until_ns: int
) -> tuple[list[Move], list[TraceSample]]:
    """The moves and samples, inferred in the same steps as on the live page."""
    readings, moves, samples = facts.data.observations.queue, list[Move](), list[TraceSample]()
    if readings:  # the limit must be known before the first connection is established
        places.infer_queue(facts.started_ns, readings[0].length, readings[0].limit)
    steps_ns = (*range(facts.started_ns + STEP_NS, until_ns, STEP_NS), until_ns)
    processed, length, limit = 0, None, None
    for step, at_ns in enumerate(steps_ns, 1):
        event_count = bisect_right(events, at_ns, key=AT_NS)
        places.process(events[processed:event_count])
        processed, reading_count = event_count, bisect_right(readings, at_ns, key=AT_NS)
        for reading in readings[reading_count - 1 : reading_count]:  # the latest, if any
            length, limit = reading.length, reading.limit
        places.infer_queue(at_ns, length, limit)
        moves += places.take_moves()
        if step % STEPS_PER_SAMPLE == 0:
            sample = places.sample(at_ns)
            figures = (sample.rps, sample.mean, sample.p95, length, sample.under_way)
            samples.append((as_ms(at_ns, facts.started_ns), *figures))
    return moves, samples


def _first_timed(facts: Facts, max_requests: int) -> tuple[list[TimedRequest], int]:
    """The first `max_requests` requests by start, and the start of the next one or the end of the
    load. There are none if the load tool gave requests no id, or the app received no ids."""
    first = nsmallest(max_requests + 1, facts.timed_requests(), key=itemgetter(1))
    ids_in_app = {span.request_id for span in facts.spans[: max_requests + 1]} - {None}
    if ids_in_app.isdisjoint(timing.request_id for timing, _, _ in first):
        return [], facts.ended_ns
    next_ns = first[max_requests][1] if len(first) > max_requests else facts.ended_ns
    return first[:max_requests], next_ns


def app_events(
    span: Span, number: int, accepted_ns: int | None = None, *, named: bool = True
) -> Iterator[Event]:
    """The events of a request in the app. `accepted_ns`: the accept, if the wait after it may be
    shown. If its client gave it no id (not `named`), it begins and ends with its span."""
    if not named:
        yield Event(span.start_ns, BEGUN, number)
    elif accepted_ns is not None and span.start_ns - accepted_ns >= MIN_SHOWN_WAIT_NS:
        yield Event(accepted_ns, ACCEPTED, number, span.pid)
    accept_ns = span.accept_ns or 0
    yield Event(span.start_ns, APP_ENTERED, number, span.pid, accept_ns=accept_ns)
    if span.end_ns is not None:
        yield Event(span.end_ns, APP_LEFT if named else SUCCEEDED, number, span.pid)


def _client_events(request: TimedRequest, number: int, ended_ns: int) -> Iterator[Event]:
    """The events at the client. A request without a response fails at `ended_ns`, with the load."""
    timing, begun_ns, answered_ns = request
    yield Event(begun_ns, BEGUN, number)
    if timing.reused:
        yield Event(begun_ns, REUSED, number)
    elif timing.connect_s is not None:
        yield Event(begun_ns + round(timing.connect_s * NS), CONNECTED, number)
    succeeded = timing.cause is None and answered_ns is not None
    yield Event(answered_ns or ended_ns, SUCCEEDED if succeeded else FAILURE, number)
