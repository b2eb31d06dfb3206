"""A trial as it can be replayed: where each of its requests was at each moment (`places`), by its
client, the probe and the kernel. If the load tool names its requests, each is matched with its
span. For other tools, only requests in the app are shown one by one, and those that wait as a
number.
"""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from operator import attrgetter

from msgspec import Struct

from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS
from workerlab.model import Server, Timing
from workerlab.report.player.places import IN_APP, Event, Move, Places

STEP_NS = 50_000_000  # between two looks at the queue, as in the live lesson
SAMPLED = 5  # steps between samples
SEEN_NS = 1_000_000  # shorter waits are not shown
MS_NS = 1e6


class Trace(Struct, frozen=True):
    """Where each request of a trial was at each moment, to be played. `moves`: (request, place,
    its worker's number or None, ms since the load began), ascending in time; `samples`: (ms,
    answers/s, mean and p95 of the response in seconds, accept queue, requests under way). Where
    the clients did not name their requests (`named`) only what was in the app is known one by
    one."""

    server: Server
    slots: int | None
    accepts_first: bool
    length_ms: float  # of the part shown
    moves: tuple[tuple[int, int, int | None, float], ...]
    samples: tuple[
        tuple[float, float | None, float | None, float | None, int | None, int | None], ...
    ]
    named: bool = True
    whole: bool = True  # the part shown is the whole load


Sample = tuple[float, float | None, float | None, float | None, int | None, int | None]


def trace(facts: Facts, most: int) -> Trace | None:
    """The replay of the first `most` requests, up to the start of the next; None if none was
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
        places.worker(pid)
    moves, samples = _played(facts, places, events, until_ns)
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


def _played(
    facts: Facts, places: Places, events: list[Event], until_ns: int
) -> tuple[list[Move], list[Sample]]:
    """The moves and samples, step by step as if watched live."""
    queue, moves, samples = facts.data.observations.queue, list[Move](), list[Sample]()
    at_ns, length, limit, event, look, step = facts.started_ns, None, None, 0, 0, 0
    if queue:  # its length is known before the first connection is established
        places.settle(at_ns, queue[0].length, queue[0].limit)
    while at_ns < until_ns:
        at_ns, step, first = min(at_ns + STEP_NS, until_ns), step + 1, event
        while event < len(events) and events[event].at_ns <= at_ns:
            event += 1
        places.hear(events[first:event])
        while look < len(queue) and queue[look].at_ns <= at_ns:
            length, limit, look = queue[look].length, queue[look].limit, look + 1
        places.settle(at_ns, length, limit)
        moves += places.moves()
        if step % SAMPLED == 0:
            seen = places.sample(at_ns)
            figures = (seen.rps, seen.mean, seen.p95, length, seen.under_way)
            samples.append((_ms(facts, at_ns), *figures))
    return moves, samples


def _first_timings(facts: Facts, most: int) -> tuple[list[Timing], int]:
    """The first requests by start, and until when these are all; none if the load tool did not name
    them or the app did not see the names."""
    origin_ns, every = facts.measurement.origin_ns, facts.measurement.timings
    if origin_ns is None:
        return [], facts.ended_ns
    first = nsmallest(most + 1, every, key=attrgetter("start_s"))
    inside = {span.request_id for span in facts.spans[: most + 1]} - {None}
    if inside.isdisjoint(timing.request_id for timing in first):
        return [], facts.ended_ns
    if len(first) > most:
        return first[:most], origin_ns + round(first[most].start_s * NS)
    return first, facts.ended_ns


def _events(facts: Facts, timings: Sequence[Timing], most: int) -> Iterator[Event]:
    """`timings`: of the replayed requests; empty if they cannot be matched with spans."""
    numbers = {one.request_id: number for number, one in enumerate(timings, 1)}
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
        elif span.start_ns - accepted_ns.get(number, span.start_ns) >= SEEN_NS:
            yield Event(accepted_ns[number], "a", number, span.pid)
        yield Event(span.start_ns, "s", number, span.pid)
        if span.end_ns is not None:
            yield Event(span.end_ns, "x" if timings else "e", number, span.pid)


def _timed(facts: Facts, timings: Sequence[Timing]) -> dict[int, int]:
    """When new connections were accepted, by the number of their request, if the probe timed it."""
    numbers = {one.request_id: number for number, one in enumerate(timings, 1) if not one.reused}
    return {
        numbers[span.request_id]: span.accept_ns
        for span in facts.spans
        if span.accept_ns is not None and span.request_id in numbers
    }


def _of_client(facts: Facts, one: Timing, number: int) -> Iterator[Event]:
    begun_ns = (facts.measurement.origin_ns or 0) + round(one.start_s * NS)
    yield Event(begun_ns, "b", number)
    if one.reused:
        yield Event(begun_ns, "k", number)
    elif one.connect_s is not None:
        yield Event(begun_ns + round(one.connect_s * NS), "c", number)
    ended_ns = facts.ended_ns if one.end_s is None else begun_ns + round(one.end_s * NS)
    yield Event(ended_ns, "e" if one.cause is None and one.end_s is not None else "f", number)
