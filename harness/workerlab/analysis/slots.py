"""How much of a server's slots was taken: requests in them / slots, over the steady window.

Throughput against slots / R0 says the same on average, but R0 comes from few lone requests, and
where service times vary so does that ratio: of 35 cells at 1 to 4 times as many connections as
slots it judged 11 wrongly, occupancy none.

A slot is held for longer than the app runs: to accept, to parse, to answer. What that takes is the
response of a lone request less its span. Two spans that follow each other in one slot at no greater
distance are taken to have held it in between, so that a slot which answers in a hundredth of a
millisecond is not called idle while it accepts and parses.

How much longer than in the app a request holds its slot: the gap between the end of a span and
the start of the next one in the same slot, while requests waited for it.

To close the connection, accept the next one and parse its request takes a worker about a
millisecond. Taken from lone requests (R0 - S) it would contain what holds no slot: the client's
connect, the transfer, the load tool. Of a slot that takes a hundred requests a second and is busy
for 90 % of the time, half of a millisecond too much is half of the waiting.

A gap counts where all slots of its worker were taken until that end, and where the request that
began next waited already: its client had been connected, or it had been accepted, or the accept
queue was seen with somebody in it both before and after. Ends and starts are matched in their
order: the slot that is freed first takes the request that has waited longest. It is the median of
the gaps: a few are longer, because other programs had the core.

Kept-alive connections stay with the worker that accepted them, so how they are dealt bounds the
throughput: worker i serves at most min(connections, slots of one worker) at once.

How much of what requests compute needs no GIL: 1 - (part of the time in which the GIL was held)
/ (part of the time in which they computed, or were ready to), both while a request was in the app.

Who holds the GIL and loses its core holds it all the same, so waiting for a core is on both sides.
A look sees no hold of less than 0.3 ms. An app that computes in short pieces, between queries of a
database for instance, would look as if it never held it: nothing is said where a piece lasts less
than a millisecond on average. Nor is anything said where several requests were in one worker at
once, for any of them may have held it.

Slots that idle in one worker while requests wait in another: what the dealing costs.

Some classes accept more than they serve, and chance, or a kept connection, decides whose queue a
request stands in. Asked is what was seen, not what follows from R0: how many slots on average stood
idle in workers that had nothing to begin, while requests waited in workers whose slots were taken.
It is uneven where that is a twentieth of the slots in use or more, at whatever throughput. Or no
slot idles, and yet twice as many kept connections share the slots of one worker as of another and
have to wait: of eight on two loops that are blocked, seven take turns and one is served at once.

    each request on its own connection   moment by moment: accepted and not begun, per worker
    kept connections                     on average: connections of a worker beyond its slots, and
                                         slots idle beside those of the busiest worker

A slot counts as taken until what a lone request takes beside its span has passed: accepting and
parsing are no idleness. Kept connections are compared by averages since they stay where they are,
and since it is not known which of them has a request at a moment; in a closed loop each has one. A
loop that serves one request at a time has one slot. A sync worker accepts nothing before it has
answered, and where requests wait in the kernel's queue (gevent, too) nothing is found."""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import sqrt
from operator import itemgetter
from statistics import median

from msgspec import Struct

from workerlab.analysis.batches import precision
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, Window
from workerlab.model import ConnectionSample, Span, SpanCost

FULL = 0.95  # from here on all slots are taken


@once
def occupancy(facts: Facts) -> float | None:
    """0 to 1; None where there are no slots configured, or no steady part."""
    return None if facts.window is None else taken(facts, facts.window)


def taken(facts: Facts, window: Window) -> float | None:
    """The same of any part of the load."""
    slots = facts.slots
    if not slots:
        return None
    closes = window.closes_ns
    taken_s = window.inside_s((one.start_ns, one.end_ns or closes) for one in facts.spans)
    capable_s = slots * window.length_s
    if taken_s < FULL * capable_s and facts.connections >= FULL * slots:
        taken_s += window.inside_s(_between(facts, round(overhead_s(facts) * NS)))
    return min(1.0, facts.parallel / slots, taken_s / capable_s)


@once
def overhead_s(facts: Facts) -> float:
    """How much longer a lone request took than its span; 0 where that is not known."""
    lone_s, alone = facts.record.lone_s, _alone(facts)
    if len(alone) < len(lone_s):
        return 0.0
    beside = [
        response_s - (span.end_ns - span.start_ns) / NS
        for response_s, span in zip(lone_s, alone, strict=True)
        if span.end_ns is not None
    ]
    return max(0.0, median(beside)) if beside else 0.0


def _alone(facts: Facts) -> Sequence[Span]:
    """The spans of the lone requests. These are the last of the warm-up, one after the other;
    where some of them failed, those that began when the others had been sent."""
    lone_s, until_ns = facts.record.lone_s, facts.record.lone_end_ns or facts.started_ns
    before = [one for one in facts.data.spans.spans if one.start_ns < until_ns]
    before.sort(key=lambda span: span.start_ns)
    if not facts.record.lone_begun_ns:
        return before[-len(lone_s) :] if lone_s else ()
    times = zip(facts.record.lone_begun_ns, lone_s, strict=True)
    sent = [(begun_ns, begun_ns + round(took_s * NS)) for begun_ns, took_s in times]
    starts = [one.start_ns for one in before]
    found = ((bisect_left(starts, since), until) for since, until in sent)
    return [before[at] for at, until in found if at < len(before) and starts[at] <= until]


def slot_changes(
    facts: Facts, *, closes_ns: int, beside_ns: int
) -> Iterator[tuple[int, int, int, int]]:
    """When, in which worker, and by how many there are more in slots, and accepted before that.
    `beside_ns`: how long a slot is held after its span."""
    for span in facts.spans:
        yield span.start_ns, span.pid, 1, 0
        yield (span.end_ns or closes_ns) + beside_ns, span.pid, -1, 0
        if span.accept_ns is not None and not facts.cell.keepalive:
            yield min(span.accept_ns, span.start_ns), span.pid, 0, 1
            yield span.start_ns, span.pid, 0, -1


def _between(facts: Facts, most_ns: int) -> Iterator[tuple[int, int]]:
    """Where a span begins no later than that after another one of its worker has ended: from the
    one to the other. It takes the slot that became free last."""
    if most_ns <= 0:
        return
    for own in facts.spans_by_worker.values():
        ends = sorted(span.end_ns for span in own if span.end_ns is not None)
        free, number = list[int](), 0
        for span in own:
            while number < len(ends) and ends[number] <= span.start_ns:
                free.append(ends[number])
                number += 1
            if free and span.start_ns - (ended := free.pop()) <= most_ns:
                yield ended, span.start_ns


MIN_GAPS = 8  # gaps, for their median
NEAR_NS = 150_000_000  # two samples of the accept queue that tell of a moment between them


@once
def queued_gap_s(facts: Facts) -> float | None:
    """Seconds; None where there are no slots, or hardly anybody waited for one."""
    slots = facts.data.worker_class.slots_per_worker(facts.cell.server)
    if slots is None:
        return None
    waited = _Waited(facts)
    by_worker: dict[int, list[Span]] = defaultdict(list)
    for span in facts.spans:
        by_worker[span.pid].append(span)
    gaps_ns = [
        span.start_ns - freed_ns
        for spans in by_worker.values()
        for freed_ns, span in _successors(spans, slots)
        if waited.since(span, freed_ns)
    ]
    return median(gaps_ns) / NS if len(gaps_ns) >= MIN_GAPS else None


def _successors(spans: Sequence[Span], slots: int) -> Iterator[tuple[int, Span]]:
    """Of one worker, by start: where all its slots had been taken, when one of them became free and
    who took it."""
    ends = sorted(span.end_ns for span in spans if span.end_ns is not None)
    freed, ended = deque[int](), 0
    for begun, span in enumerate(spans):
        while ended < len(ends) and ends[ended] <= span.start_ns:
            if begun - ended >= slots:  # as many were under way until then
                freed.append(ends[ended])
            ended += 1
        if freed:
            yield freed.popleft(), span


class _Waited:
    """Whether a request was there before a slot became free."""

    def __init__(self, facts: Facts) -> None:
        origin_ns = facts.measurement.origin_ns
        self._arrived_ns: dict[str | None, int] = {
            one.request_id: origin_ns + round((one.start_s + (one.connect_s or 0.0)) * NS)
            for one in facts.measurement.timings
            if origin_ns is not None and one.request_id is not None
        }
        self._queue = facts.seen.queue
        self._at_ns = [one.at_ns for one in self._queue]

    def since(self, span: Span, freed_ns: int) -> bool:
        if span.accept_ns is not None and span.accept_ns <= freed_ns:
            return True
        if (arrived_ns := self._arrived_ns.get(span.request_id)) is not None:
            return arrived_ns <= freed_ns
        before, after = bisect_right(self._at_ns, freed_ns) - 1, bisect_left(self._at_ns, freed_ns)
        if before < 0 or after >= len(self._queue):
            return False
        near = self._at_ns[after] - self._at_ns[before] <= NEAR_NS
        return near and min(self._queue[before].length, self._queue[after].length) > 0


REFUTED = 1.05  # times the prediction: R0 is no more precise
SAMPLES = 3  # of fewer, one at the window's edge (connections are closing) would be half


@once
def kept_connections(facts: Facts) -> Mapping[int, int] | None:
    """Connections by worker pid, from the kernel's table, else from the accepts of the requests
    served meanwhile; None where none are kept, or nobody looked."""
    if not facts.cell.keepalive or facts.window is None:
        return None
    held = held_by(facts.seen.connections, facts.record.worker_pids, facts.window)
    return _accepted(facts, facts.window) if held is None else held


def held_by(
    samples: Sequence[ConnectionSample], pids: Sequence[int], window: Window
) -> Mapping[int, int] | None:
    """How many connections each worker held: its median in the window; None where it was not seen
    often enough."""
    inside = [one for one in samples if window.contains(one.at_ns)]
    if len(inside) < SAMPLES:
        return None
    return {
        pid: round(median(one.per_worker.get(pid, 0) for one in inside)) for pid in sorted(pids)
    }


def _accepted(facts: Facts, steady: Window) -> Mapping[int, int] | None:
    opens, closes = steady.opens_ns, steady.closes_ns
    served = [
        span
        for span in facts.spans
        if span.start_ns < closes and (span.end_ns or closes) > max(opens, span.start_ns)
    ]
    if not served or any(span.accept_ns is None for span in served):
        return None
    accepts = {(span.pid, span.accept_ns) for span in served}
    counts = Counter(pid for pid, _ in accepts)
    return {pid: counts[pid] for pid in sorted({*facts.record.worker_pids, *counts})}


def predicted_rps(facts: Facts, lone_s: float, bound_rps: float) -> float | None:
    """Requests/s: the slots that the dealing lets work, over R0. Each worker's count is a median of
    its own, so their sum may be more than there are connections: never above the bound. None where
    the load gave more, by its interval, too: then the connections were not dealt like this."""
    kept = kept_connections(facts)
    if kept is None or not sum(kept.values()):
        return None
    each = facts.data.worker_class.slots_per_worker(facts.cell.server)
    working = sum(held if each is None else min(held, each) for held in kept.values())
    found_rps, measured = min(working / lone_s, bound_rps), precision(facts).throughput_rps
    if measured is not None and measured.mean - measured.half > REFUTED * found_rps:
        return None
    return found_rps


PIECE_S = 0.001
MIN_EXPECTED_LOOKS = 30  # looks that should have found it held
MAX_PART_OF_COMPUTING = (
    0.7  # of that time: more than that, with two standard errors, is no evidence
)


def beside_gil(spans: Sequence[Span]) -> Mapping[int | None, float]:
    """By route: the part of its CPU, where it is significant."""
    by_route: dict[int | None, list[tuple[Span, SpanCost]]] = defaultdict(list)
    for span in spans:
        if span.cost is not None and span.cost.looks:
            by_route[span.cost.route].append((span, span.cost))
    shares = {route: _share(costs) for route, costs in by_route.items()}
    return {route: share for route, share in shares.items() if share > 0}


def _share(costs: Sequence[tuple[Span, SpanCost]]) -> float:
    looks, held = sum(cost.looks for _, cost in costs), sum(cost.held for _, cost in costs)
    cpu_s = sum(cost.cpu_ns for _, cost in costs) / NS
    lasted_s = sum((span.end_ns or span.start_ns) - span.start_ns for span, _ in costs) / NS
    pieces = sum(1 + cost.slept for _, cost in costs)
    computing = (cpu_s + sum(cost.queued_ns for _, cost in costs) / NS) / max(lasted_s, 1 / NS)
    if cpu_s / pieces < PIECE_S or looks * computing < MIN_EXPECTED_LOOKS:
        return 0.0
    held_share = held / looks
    error = sqrt(max(held_share, 1 / looks) * (1 - held_share) / looks)
    significant = held_share + 2 * error < MAX_PART_OF_COMPUTING * computing
    return 1 - held_share / computing if significant else 0.0


UNEVEN = 0.05  # of the slots that could be in use
WAIT, TIMES = 2, 2.0  # connections beyond the slots of the fullest worker; times the emptiest's
TAKEN = 0.9  # of the busiest worker's slots: below, a worker had room


class Dealing(Struct, frozen=True):
    """Over the steady window, `taken` by worker pid: the part of its slots that was in use.
    `idle`: slots that idled while requests waited in other workers, on average; `times`: as many
    kept connections in the fullest worker as in the emptiest. None where that is even, or
    slots idle."""

    taken: Mapping[int, float]
    slots: int  # that could be in use: of all workers, or as many as there are connections
    idle: float | None = None
    times: float | None = None


@once
def uneven_dealing(facts: Facts) -> Dealing | None:
    """None where it is even, or where it was not seen."""
    window, each = facts.window, _slots_each(facts)
    pids = facts.record.worker_pids
    row = facts.data.worker_class
    if (
        window is None
        or each is None
        or len(pids) < 2
        or (row.slots == "one" and not row.accepts_first)
    ):
        return None
    kept = kept_connections(facts)
    if facts.cell.keepalive and kept is None:
        return None
    held = _held(facts, window)
    slots = min(facts.connections, each * len(pids))
    if facts.cell.keepalive and kept is not None:
        idle, times = _on_average(kept, held, each), _times(kept, each)
    else:
        idle, times = _at_once(facts, window, each), None
    if idle < UNEVEN * slots and times is None:
        return None
    taken = {pid: min(1.0, held.get(pid, 0.0) / each) for pid in pids}
    if idle >= UNEVEN * slots:
        return Dealing(taken, slots, idle=idle)
    return Dealing(taken, slots, times=times)


def _slots_each(facts: Facts) -> int | None:
    """Requests that one worker serves at once: by the settings, or one where its loop was never
    seen to serve two."""
    each = facts.data.worker_class.slots_per_worker(facts.cell.server)
    if each is not None and not facts.data.worker_class.loop:
        return each
    return each if facts.two_at_once else 1


def _held(facts: Facts, window: Window) -> Mapping[int, float]:
    """Mean number of requests in the app of each worker, and what each takes beside it."""
    beside_ns, closes_ns = round(overhead_s(facts) * NS), window.closes_ns
    return {
        pid: window.inside_s(
            (span.start_ns, (span.end_ns or closes_ns) + beside_ns) for span in spans
        )
        / window.length_s
        for pid, spans in facts.spans_by_worker.items()
    }


def _on_average(kept: Mapping[int, int], held: Mapping[int, float], each: int) -> float:
    busiest = max((min(each, held.get(pid, 0.0)) for pid in kept), default=0.0)
    idle = sum(max(0.0, busiest - held.get(pid, 0.0)) for pid in kept)
    full = [pid for pid in kept if held.get(pid, 0.0) >= TAKEN * busiest]
    waiting = sum(max(0.0, kept[pid] - max(each, held.get(pid, 0.0))) for pid in full)
    return min(idle, waiting)


def _times(kept: Mapping[int, int], each: int) -> float | None:
    """How many times as many connections share the slots of the fullest worker; None where that is
    less than twice, or hardly any of them waits."""
    most, least = max(kept.values()), min(kept.values())
    apart = most >= each + WAIT and most >= TIMES * max(1, least)
    return most / max(1, least) if apart else None


def _at_once(facts: Facts, window: Window, each: int) -> float:
    """Idle slots and requests waiting elsewhere, the fewer of both, at every moment."""
    taken, queued = Counter(dict.fromkeys(facts.record.worker_pids, 0)), Counter[int]()
    lost, since = 0, window.opens_ns
    changes = slot_changes(
        facts, closes_ns=window.closes_ns, beside_ns=round(overhead_s(facts) * NS)
    )
    for at, together in groupby(sorted(changes), itemgetter(0)):
        if (until := min(at, window.closes_ns)) > since:
            waiting = sum(queued[pid] for pid, count in taken.items() if count >= each)
            if waiting:
                lost += (until - since) * min(waiting, _room(taken, queued, each))
            since = until
        for _, pid, began, accepted in together:
            taken[pid] += began
            queued[pid] += accepted
    return lost / (window.closes_ns - window.opens_ns)


def _room(taken: Mapping[int, int], queued: Mapping[int, int], each: int) -> int:
    """Slots for which their worker has no request."""
    return sum(max(0, each - count - queued[pid]) for pid, count in taken.items())
