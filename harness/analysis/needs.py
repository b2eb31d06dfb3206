"""What a request needs of a worker, from one trial: how long it waits, computes, blocks and holds
its slot; what the server needs of memory; how long it takes to boot.

    hold = wait + CPU + blocked + gap           what takes a slot away from others
    R    = hold + waiting for a slot + beside

The trial is one with `Cell.inside` "needs". The load to take: a closed loop of a few connections
more than a *small* number of slots (sync: 2 workers, 4 connections; gthread: 2 workers of 1 or 2
threads, as many connections as slots and 2; a class with a loop: 2 workers, 4 connections). Then
there is always somebody who waits, so the gap is measured; there are many requests a second, so
what idle workers compute is little of theirs; and few requests are in one worker at once, so that
they hardly wait for each other inside the app. At a low rate the gap is that of lone requests.

CPU is what all workers used from the load's begin to its end, less what they used per second while
they idled before it (an event loop's heartbeat is 1 % of a core), divided by the requests. It has
everything: parsing, threads of libraries, programs that the app ran. Of a single request the probe
knows the CPU where its class can tell it; the rest, Gunicorn's own part, is added evenly.

What a request waits for is what of its span is left. Requests that are in one worker at once wait
for each other to compute, as all wait for a core: that is no need. How much it was follows from
how many they were, by the formula of `core_wait` (one station and a delay beside it): it is taken
off in proportion to what each computed. Rejected: the lone requests' spans, which are few and of
one route.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from harness.analysis.core_wait import elsewhere_s
from harness.analysis.event_loop import loop_use
from harness.analysis.facts import Facts, once
from harness.analysis.failures import MOSTLY, success_spans
from harness.analysis.holding import queued_gap_s
from harness.analysis.occupancy import overhead_s
from harness.analysis.samples import NS
from harness.analysis.window import completions, ended
from harness.model import Finding, Memory, Needs, RequestNeed, Span, WorkersSample

MOST = 5000  # requests of the sample
IDLE_LEAST_S = 0.3  # before the load, to say what an idle worker computes
BLOCKED, LATE = 0.01, 3  # of the time, and beats: less is not said to be blocked


class Cost(Struct, frozen=True):
    """Means per request, in seconds: CPU of the workers, and how long they were ready to run and
    had no core."""

    cpu_s: float
    core_wait_s: float


@once
def needs_of(facts: Facts) -> Needs | Finding:
    """Or why it cannot be said."""
    spans = success_spans(facts)
    if spans is None and facts.outcome.success >= MOSTLY:
        spans = facts.finished
    spans = [span for span in spans or () if span.end_ns is not None]
    if not spans:
        return Finding("needs.no_requests")
    cost = _cost(facts)
    if cost is None:
        return Finding("needs.no_cpu")
    gap_s, notes = _gap(facts)
    overhead = overhead_s(facts)
    own_s = _own_s(spans, cost, gap_s or overhead)
    outside_s = max(0.0, cost.cpu_s - fmean(own_s))  # of its CPU, not in its span
    return Needs(
        trial=facts.key,
        requests=_requests(facts, spans, own_s, cost, outside_s),
        gap_s=max(0.0, (gap_s or 0.0) - outside_s),
        beside_s=max(0.0, overhead - max(gap_s or 0.0, outside_s)),
        start_s=facts.record.start_s,
        memory=_memory(facts),
        notes=notes,
    )


# --- CPU ------------------------------------------------------------------------------------------


def _cost(facts: Facts) -> Cost | None:
    """None where the CPU of the workers was not seen."""
    samples, begins_ns = facts.seen.workers, facts.spans[0].start_ns
    before = [one for one in samples if one.at_ns <= begins_ns]
    if not before or len(samples) == len(before):
        return None
    first, last = before[-1], samples[-1]
    served = completions(ended(facts.data.spans.spans, None), first.at_ns, last.at_ns)
    idle_s = _idle(before) * (last.at_ns - first.at_ns) / NS
    if served <= 0:
        return None
    waits = [
        (one.at_ns, one.server_wait_s)
        for one in facts.seen.processes
        if one.server_wait_s is not None
    ]
    unloaded = [waited_s for at_ns, waited_s in waits if at_ns <= begins_ns]
    core_wait_s = waits[-1][1] - unloaded[-1] if unloaded else 0.0
    return Cost(
        cpu_s=max(0.0, _used_s(first, last) - idle_s) / served,
        core_wait_s=max(0.0, core_wait_s) / served,
    )


def _used_s(first: WorkersSample, last: WorkersSample) -> float:
    return sum(last.cpu_s[pid] - cpu_s for pid, cpu_s in first.cpu_s.items() if pid in last.cpu_s)


def _idle(before: Sequence[WorkersSample]) -> float:
    """Cores that the workers use when nobody asks."""
    first, last = before[0], before[-1]
    length_s = (last.at_ns - first.at_ns) / NS
    return _used_s(first, last) / length_s if length_s >= IDLE_LEAST_S else 0.0


def _own_s(spans: Sequence[Span], cost: Cost, outside_s: float) -> list[float]:
    """CPU of each inside its span. Where it is not known of each, it is the mean: at least all but
    what Gunicorn can have used while the request was not in the app."""
    known = [span.cpu_ns for span in spans if span.cpu_ns is not None]
    if len(known) == len(spans):
        return [cpu_ns / NS for cpu_ns in known]
    return [max(0.0, cost.cpu_s - outside_s)] * len(spans)


# --- one by one -----------------------------------------------------------------------------------


def _requests(
    facts: Facts, spans: Sequence[Span], own_s: Sequence[float], cost: Cost, outside_s: float
) -> tuple[RequestNeed, ...]:
    held_s = [((span.end_ns or 0) - span.start_ns) / NS for span in spans]
    mean_s, own_mean_s, blocked_s = fmean(held_s), fmean(own_s), _blocked_s(facts, len(spans))
    inside = own_mean_s / cost.cpu_s if cost.cpu_s > 0 else 1.0
    station_s = own_mean_s + blocked_s + inside * cost.core_wait_s
    wait_s = elsewhere_s(station_s, under_way(spans), mean_s)
    lost_s = max(0.0, mean_s - own_mean_s - blocked_s - wait_s)  # to each other, and to cores

    def need(span: Span, length_s: float, cpu_s: float) -> RequestNeed:
        lost = lost_s * (cpu_s / own_mean_s if own_mean_s > 0 else 1.0)
        return RequestNeed(
            wait_s=max(0.0, length_s - cpu_s - blocked_s - lost),
            cpu_s=cpu_s + outside_s,
            blocked_s=blocked_s,
        )

    every = max(1, -(-len(spans) // MOST))
    chosen = list(zip(spans, held_s, own_s, strict=True))[::every]
    return tuple(need(*one) for one in chosen)


def under_way(spans: Sequence[Span]) -> float:
    """How many requests, itself included, a request was in its worker with, on average over its
    time there: the integral of N squared over that of N."""
    by_worker: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        if span.end_ns is not None:
            by_worker[span.pid] += [(span.start_ns, 1), (span.end_ns, -1)]
    area = squares = 0
    for moments in by_worker.values():
        moments.sort()
        count, since = 0, moments[0][0]
        for at_ns, change in moments:
            area += count * (at_ns - since)
            squares += count * count * (at_ns - since)
            count, since = count + change, at_ns
    return max(1.0, squares / area) if area else 1.0


def _blocked_s(facts: Facts, requests: int) -> float:
    """Per request, in a call that held up the loop; 0 where there is no evidence."""
    use = loop_use(facts)
    if use is None or use.worst.blocked < BLOCKED or use.worst.late < LATE:
        return 0.0
    blocked = sum(one.blocked * one.observed_s for one in use.workers)
    return blocked / max(1.0, facts.window.completed if facts.window else requests)


# --- beside ---------------------------------------------------------------------------------------


def _gap(facts: Facts) -> tuple[float | None, tuple[Finding, ...]]:
    """How much longer than its span a request holds a slot; None where there are no slots."""
    if facts.slots is None:
        return None, ()
    measured_s = queued_gap_s(facts)
    if measured_s is not None:
        return measured_s, ()
    return overhead_s(facts), (Finding("needs.gap_alone"),)


def _memory(facts: Facts) -> Memory | None:
    """None where it was not seen."""
    samples = facts.seen.memory
    if not samples or not samples[-1].private_bytes:
        return None
    private = samples[-1].private_bytes
    total = sum(private.values())
    shared = max(0, samples[-1].pss_bytes - total)
    return Memory(shared, round(total / len(private)), len(private))
