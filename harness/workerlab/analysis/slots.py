"""A server's slots: their occupancy, how long a request holds one, and how evenly they are used.

Occupancy is the mean number of requests in slots / slots, over the steady window. Throughput
divided by slots / R0 is the same on average, but R0 comes from few lone requests, and the ratio
varies with service times: of 35 cells with 1 to 4 times as many connections as slots, it misjudged
11, occupancy none.

A slot is held for longer than the app runs: to accept, to parse, to respond. This overhead is the
response time of a lone request less its span. If the next span in a slot starts within the
overhead, the slot counts as held in between; otherwise a slot with an app of 0.01 ms would seem
idle while it accepts and parses.

The queued gap (`queued_gap_s`) is the time that a request holds its slot outside the app: from the
end of a span to the start of the next one in the same slot, while requests waited for it. A worker
needs about a millisecond to close the connection, accept the next one and parse its request.
Rejected: the gap from lone requests, R0 - S. It includes time in which no slot is held: connect,
transfer and the load tool. For a slot that serves 100 requests/s and is busy 90 % of the time, an
error of half a millisecond is half of the waiting time.

A gap counts if all slots of its worker were taken before it, and the next request was waiting when
it began: its client was connected, it had been accepted, or the accept queue was not empty in the
samples before and after. Ends and starts are matched in order: the slot that is freed first takes
the request that has waited longest. The median is used because a few gaps are longer when other
programs use the core.

Kept-alive connections stay with the worker that accepted them, so their distribution bounds the
throughput: a worker serves at most min(its connections, its slots) at once.

Uneven distribution (`uneven_distribution`) means that slots idle in one worker while requests wait
in another. Some classes accept more requests than they serve, and chance, or a kept-alive
connection, decides in which worker a request waits. The measure is observed, not derived from R0:
the mean number of slots that idled in workers without a request to start while requests waited in
workers whose slots were taken. The distribution is uneven if this is at least 5 % of the usable
slots, at any throughput. It is also uneven if no slot idles, but one worker has at least twice as
many kept-alive connections as another and they have to wait: of eight on two blocked loops, seven
take turns and one is served immediately.

    each request on its own connection   at each moment: accepted and not started, per worker
    kept-alive connections               on average: connections of a worker beyond its slots, and
                                         slots idle compared with the busiest worker

A slot counts as taken until the overhead has passed: accepting and parsing are not idle time.
Kept-alive connections are compared by averages, because they stay with their worker and it is
unknown which of them has a request at a given moment; in a closed loop each has one. A loop that
serves one request at a time has one slot. A sync worker accepts nothing until it has responded.
Requests that wait in the kernel's queue (with gevent, too) do not count.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Literal

from msgspec import Struct

from workerlab.analysis.batches import precision
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, Change, Intervals, Window, states
from workerlab.model.evidence import Span

FULL_OCCUPANCY = 0.95  # at or above it, all slots count as taken


@once
def occupancy(facts: Facts) -> float | None:
    """Occupancy of the steady window, 0 to 1; None without configured slots."""
    return occupancy_in(facts, facts.steady_part)


def all_slots_taken(facts: Facts) -> bool:
    """Whether all slots were taken in the steady window."""
    return (occupancy(facts) or 0.0) >= FULL_OCCUPANCY


def occupancy_in(facts: Facts, window: Window) -> float | None:
    """Occupancy of any part of the load; None without configured slots."""
    slots = facts.slots
    if not slots:
        return None
    taken_s = Intervals.of(facts.spans, window.closes_ns).inside_s(window)
    available_s = slots * window.length_s
    if taken_s < FULL_OCCUPANCY * available_s and facts.connections >= FULL_OCCUPANCY * slots:
        max_gap_ns = round(overhead_s(facts) * NS)
        gaps = (
            (freed_ns, span.start_ns)
            for spans in facts.spans_by_worker.values()
            for freed_ns, span in _successors(spans, latest=True)
        )
        short = [gap for gap in gaps if gap[1] - gap[0] <= max_gap_ns]
        taken_s += Intervals(short).inside_s(window)
    return min(1.0, facts.max_parallel / slots, taken_s / available_s)


@once
def overhead_s(facts: Facts) -> float:
    """The median of (response time less span) of lone requests; 0 if unknown."""
    lone_s, lone_spans = facts.record.lone_s, _lone_spans(facts)
    if len(lone_spans) < len(lone_s):
        return 0.0
    overheads_s = [
        response_s - (span.end_ns - span.start_ns) / NS
        for response_s, span in zip(lone_s, lone_spans, strict=True)
        if span.end_ns is not None
    ]
    return max(0.0, median(overheads_s)) if overheads_s else 0.0


def _lone_spans(facts: Facts) -> Sequence[Span]:
    """The spans of the lone requests: for each, the first span that began during the request. For
    older records, which lack these times, the last spans before the load."""
    record = facts.record
    until_ns = record.lone_end_ns or facts.started_ns
    before = sorted(
        (span for span in facts.data.spans.spans if span.start_ns < until_ns),
        key=attrgetter("start_ns"),
    )
    if not record.lone_begun_ns:
        return before[-len(record.lone_s) :] if record.lone_s else ()
    started = (
        next((span for span in before if 0 <= span.start_ns - begun_ns <= round(took_s * NS)), None)
        for begun_ns, took_s in zip(record.lone_begun_ns, record.lone_s, strict=True)
    )
    return list(filter(None, started))


SlotKey = tuple[Literal["taken", "queued"], int]  # slots taken or waiting requests, by worker


def slot_keys(facts: Facts) -> Sequence[tuple[SlotKey, SlotKey]]:
    """The keys of slots taken and of waiting requests, for each worker."""
    return [(("taken", pid), ("queued", pid)) for pid in facts.requests_per_worker]


def slot_changes(facts: Facts, *, closes_ns: int, held_after_ns: int) -> Iterator[Change[SlotKey]]:
    """Changes in the numbers of slots taken and of requests accepted but not started.
    `held_after_ns`: how long a slot is held after its span."""
    for pid, spans in facts.spans_by_worker.items():
        yield from Intervals.of(spans, closes_ns, held_after_ns).changes(("taken", pid))
        if not facts.cell.keepalive:
            waits = [
                (min(span.accept_ns, span.start_ns), span.start_ns)
                for span in spans
                if span.accept_ns is not None
            ]
            yield from Intervals(waits).changes(("queued", pid))


MIN_GAPS = 8  # required for their median
MAX_SAMPLE_GAP_NS = 150_000_000  # between queue samples; a queue is unknown in a longer gap


@once
def queued_gap_s(facts: Facts) -> float | None:
    """Median seconds that a request holds its slot outside the app; None if slots are unlimited or
    their number is unknown, or if few requests waited."""
    slots = facts.slots_per_worker
    if slots is None:
        return None
    arrivals = _Arrivals(facts)
    gaps_ns = [
        span.start_ns - freed_ns
        for spans in facts.spans_by_worker.values()
        for freed_ns, span in _successors(spans, slots)
        if arrivals.was_waiting(span, freed_ns)
    ]
    return median(gaps_ns) / NS if len(gaps_ns) >= MIN_GAPS else None


def _successors(
    spans: Sequence[Span], slots: int = 0, *, latest: bool = False
) -> Iterator[tuple[int, Span]]:
    """For one worker, when a slot became free after `slots` had been taken, and the span that took
    it. Each span takes the slot freed first, or last if `latest`. `spans`: by start."""
    ends = sorted(span.end_ns for span in spans if span.end_ns is not None)
    freed, ended = deque[int](), 0
    for begun, span in enumerate(spans):
        while ended < len(ends) and ends[ended] <= span.start_ns:
            if begun - ended >= slots:
                freed.append(ends[ended])
            ended += 1
        if freed:
            yield freed.pop() if latest else freed.popleft(), span


class _Arrivals:
    """Arrivals of requests at the server, timed by the client or bounded by the accept queue."""

    def __init__(self, facts: Facts) -> None:
        self._arrived_ns: dict[str | None, int] = {
            timing.request_id: sent_ns + round((timing.connect_s or 0.0) * NS)
            for timing, sent_ns, _ in facts.timed_requests()
            if timing.request_id is not None
        }
        self._queue = facts.observations.queue
        self._at_ns = [sample.at_ns for sample in self._queue]

    def was_waiting(self, span: Span, at_ns: int) -> bool:
        """Whether the request of this span was waiting at this time."""
        if span.accept_ns is not None and span.accept_ns <= at_ns:
            return True
        if (arrived_ns := self._arrived_ns.get(span.request_id)) is not None:
            return arrived_ns <= at_ns
        before, after = bisect_right(self._at_ns, at_ns) - 1, bisect_left(self._at_ns, at_ns)
        if before < 0 or after >= len(self._queue):
            return False
        near = self._at_ns[after] - self._at_ns[before] <= MAX_SAMPLE_GAP_NS
        return near and min(self._queue[before].length, self._queue[after].length) > 0


REFUTED_RATIO = 1.05  # measured / predicted throughput; R0 is no more precise than that
MIN_SAMPLES = 3  # with fewer, one at the window's edge, where connections close, weighs too much


@once
def keepalive_connections(facts: Facts) -> Mapping[int, int] | None:
    """Kept-alive connections by worker pid, by the kernel's table, else by the accepts of requests
    served in the steady window. None without keep-alive, or if neither was observed."""
    if not facts.cell.keepalive:
        return None
    samples = facts.steady_part.select(facts.observations.connections)
    if len(samples) < MIN_SAMPLES:
        return _accepted_connections(facts, facts.steady_part)
    return {
        pid: round(median(sample.per_worker.get(pid, 0) for sample in samples))
        for pid in sorted(facts.record.worker_pids)
    }


def _accepted_connections(facts: Facts, steady: Window) -> Mapping[int, int] | None:
    opens_ns, closes_ns = steady.opens_ns, steady.closes_ns
    served = [
        span
        for span in facts.spans
        if span.start_ns < closes_ns and (span.end_ns or closes_ns) > max(opens_ns, span.start_ns)
    ]
    if not served or any(span.accept_ns is None for span in served):
        return None
    accepts = {(span.pid, span.accept_ns) for span in served}
    counts = Counter(pid for pid, _ in accepts)
    return {pid: counts[pid] for pid in sorted({*facts.record.worker_pids, *counts})}


def predicted_rps(facts: Facts, lone_s: float, bound_rps: float) -> float | None:
    """Requests/s: the slots that the distribution of connections can use / R0. Limited to the
    bound: each worker's count is a separate median, so their sum may exceed the connections. None
    if the measured interval lies above it: then connections were distributed differently."""
    counts = keepalive_connections(facts)
    if counts is None or not sum(counts.values()):
        return None
    slots = facts.slots_per_worker
    usable = sum(n if slots is None else min(n, slots) for n in counts.values())
    allowed_rps, measured = min(usable / lone_s, bound_rps), precision(facts).throughput_rps
    if measured is not None and measured.mean - measured.half > REFUTED_RATIO * allowed_rps:
        return None
    return allowed_rps


MIN_IDLE_SHARE = 0.05  # of the usable slots
MIN_WAITING_CONNECTIONS = 2  # of the worker with the most connections, beyond its slots
MIN_CONNECTIONS_RATIO = 2.0  # most / fewest connections of a worker
MIN_TAKEN_SHARE = 0.9  # of the busiest worker's taken slots; a worker with fewer had free slots


class Distribution(Struct, frozen=True):
    """Uneven distribution over the steady window. `taken`: share of slots in use, by worker pid.
    Either `idle` is set, the mean number of slots that idled while requests waited in other
    workers; or `times`, the ratio of the most to the fewest kept-alive connections of a worker."""

    taken: Mapping[int, float]
    slots: int  # usable: those of all workers, at most the number of connections
    idle: float | None = None
    times: float | None = None


@once
def uneven_distribution(facts: Facts) -> Distribution | None:
    """How unevenly connections are distributed; None if they are even or were not observed."""
    window, worker_slots, pids = facts.steady_part, facts.slots_per_worker, facts.record.worker_pids
    worker_class = facts.worker_class
    if not facts.served_two_at_once and (worker_slots is None or worker_class.loop):
        worker_slots = 1  # no loop ever served two requests at once
    if (
        worker_slots is None
        or len(pids) < 2
        or (worker_class.slots == "one" and not worker_class.accepts_first)
    ):
        return None
    counts = keepalive_connections(facts)
    if facts.cell.keepalive and counts is None:
        return None
    held_after_ns = round(overhead_s(facts) * NS)
    held = {
        pid: Intervals.of(spans, window.closes_ns, held_after_ns).inside_s(window) / window.length_s
        for pid, spans in facts.spans_by_worker.items()
    }
    slots = min(facts.connections, worker_slots * len(pids))
    if counts is not None:
        idle = _idle_on_average(counts, held, worker_slots)
        times = _connections_ratio(counts, worker_slots)
    else:
        idle, times = _idle_by_moments(facts, worker_slots, held_after_ns), None
    taken = {pid: min(1.0, held.get(pid, 0.0) / worker_slots) for pid in pids}
    if idle >= MIN_IDLE_SHARE * slots:
        return Distribution(taken, slots, idle=idle)
    return None if times is None else Distribution(taken, slots, times=times)


def _idle_on_average(
    counts: Mapping[int, int], held: Mapping[int, float], worker_slots: int
) -> float:
    """Slots idle relative to the busiest worker, or waiting connections if these are fewer. `held`:
    the mean number of slots taken, by pid."""
    busiest = max((min(worker_slots, held.get(pid, 0.0)) for pid in counts), default=0.0)
    idle = sum(max(0.0, busiest - held.get(pid, 0.0)) for pid in counts)
    full = [pid for pid in counts if held.get(pid, 0.0) >= MIN_TAKEN_SHARE * busiest]
    waiting = sum(max(0.0, counts[pid] - max(worker_slots, held.get(pid, 0.0))) for pid in full)
    return min(idle, waiting)


def _connections_ratio(counts: Mapping[int, int], worker_slots: int) -> float | None:
    """The ratio of the most to the fewest connections of a worker; None if it is below
    MIN_CONNECTIONS_RATIO or hardly any connection waits."""
    most, least = max(counts.values()), min(counts.values())
    is_uneven = (
        most >= worker_slots + MIN_WAITING_CONNECTIONS
        and most >= MIN_CONNECTIONS_RATIO * max(1, least)
    )
    return most / max(1, least) if is_uneven else None


def _idle_by_moments(facts: Facts, worker_slots: int, held_after_ns: int) -> float:
    """The mean over time of min(idle slots, requests waiting in other workers)."""
    window = facts.steady_part
    changes = slot_changes(facts, closes_ns=window.closes_ns, held_after_ns=held_after_ns)
    idle_ns, workers = 0, slot_keys(facts)
    for length_ns, numbers in states(changes, window):
        waiting = idle = 0
        for taken, queued in workers:
            free, requests = worker_slots - numbers[taken], numbers[queued]
            if free > 0:
                idle += max(0, free - requests)  # slots without a request in their worker
            else:
                waiting += requests
        idle_ns += length_ns * min(waiting, idle)
    return idle_ns / (window.closes_ns - window.opens_ns)
