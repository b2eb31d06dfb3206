"""A trial as it can be played: where each request was at each moment, by what its client, the probe
and the kernel said of it (`places`).

Where the load tool names its requests, client and span of one are known to be one. Of other tools
only what was in the app is shown request by request, and what waits as a number.
"""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from operator import attrgetter

from workerlab.analysis.facts import Facts
from workerlab.analysis.places import IN_APP, Event, Move, Places
from workerlab.analysis.samples import NS
from workerlab.model import Timing, Trace

STEP_NS = 50_000_000  # between two looks at the queue, as in the live lesson
SAMPLED = 5  # steps
SEEN_NS = 1_000_000  # what lasts shorter is not shown
MS_NS = 1e6

Sample = tuple[float, float | None, float | None, float | None, int | None, int | None]


def trace(facts: Facts, most: int) -> Trace | None:
    """Of the first requests, `most` of them, up to where the next one comes; None where none was
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
    if not named:  # when they came, and how long they took for their clients, is not known
        moves = [one for one in moves if one.place >= IN_APP]
        samples = [(at_ms, rps, None, None, queue, None) for at_ms, rps, _, _, queue, _ in samples]
    return Trace(
        server=facts.cell.server,
        slots=facts.slots,
        accepts_first=accepts_first,
        length_ms=_ms(facts, until_ns),
        moves=tuple((one.number, one.place, one.worker, _ms(facts, one.at_ns)) for one in moves),
        samples=tuple(samples),
        named=named,
        whole=until_ns >= facts.ended_ns,
    )


def _ms(facts: Facts, at_ns: int) -> float:
    """Since the load began."""
    return round((at_ns - facts.started_ns) / MS_NS, 1)


def _played(
    facts: Facts, places: Places, events: list[Event], until_ns: int
) -> tuple[list[Move], list[Sample]]:
    """Step by step, as if it were watched."""
    queue, moves, samples = facts.data.observations.queue, list[Move](), list[Sample]()
    at_ns, length, limit, event, look, step = facts.started_ns, None, None, 0, 0, 0
    if queue:  # what it holds is known before the first connection is up
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
    """In the order in which they came, and up to when that is all; none where the clients did not
    name them, or the app was not told."""
    origin_ns, every = facts.measurement.origin_ns, facts.measurement.timings
    if origin_ns is None:
        return [], facts.ended_ns
    first = nsmallest(most + 1, every, key=attrgetter("start_s"))
    inside = {span.request_id for span in facts.spans[: most + 1]} - {None}
    if inside.isdisjoint(one.request_id for one in first):
        return [], facts.ended_ns
    if len(first) > most:
        return first[:most], origin_ns + round(first[most].start_s * NS)
    return first, facts.ended_ns


def _events(facts: Facts, timings: Sequence[Timing], most: int) -> Iterator[Event]:
    """`timings`: of the requests that are played; none where nothing tells which span is whose."""
    numbers = {one.request_id: number for number, one in enumerate(timings, 1)}
    accepted_ns = _timed(facts, timings)
    for one in timings:
        yield from _of_client(facts, one, numbers[one.request_id])
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
    """When the new connections were accepted, by the number of their request, where the probe tells
    it."""
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
