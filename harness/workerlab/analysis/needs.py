"""What a request needs of a worker, from one trial: how long it waits, computes, blocks and holds
its slot; how much memory the server needs; how long it takes to boot.

    hold = wait + CPU + blocked + gap           how long the slot is taken
    R    = hold + waiting for a slot + beside   beside: holds no slot (connect, transfer)

The trial has `Cell.inside` "needs". The recommended load is a closed loop of two connections more
than a *small* number of slots. For a WSGI app, sync with 2 workers and 4 connections shows most;
for a class with a loop, use 2 workers and 4 connections as well. Then some request always waits for
a slot, so the gap is measured; there are many requests a second, so the CPU of idle workers is a
small part; two workers show how much memory each adds; and few requests share a worker at a time,
so they hardly wait for each other inside the app. At a low rate, the gap is that of lone requests.

CPU is what all workers used from the beginning of the load to its end, less what they used per
second while idle before it (an event loop's heartbeat is 1 % of a core), divided by the requests.
It includes everything: parsing, threads of libraries, programs that the app ran. The probe measures
the CPU of each request where the worker class allows it (`server/inside/costs.py`); the rest, such
as Gunicorn's own part, is spread evenly over the requests.

A request's wait is its span minus its CPU time and its time ready to run without a core, both
measured per request; on a loop, its span minus all of its steps. But requests in one worker also
wait for each other. For the loop, the probe measures that time, and it is subtracted. For the GIL,
or for a class without such a clock, it is computed by the formula of `core_wait` (one station and a
delay) from the number of requests in the worker, and split by each request's CPU (evenly on a
loop). If it is a large share, the wait is uncertain, and a note says so.

Rejected: the spans of lone requests, which are few and of one route; the formula for loops, where
two connections that take turns never meet.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.core_wait import elsewhere_s
from workerlab.analysis.event_loop import loop_use
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.failures import MOSTLY_SUCCESSES, success_spans, wrong_statuses
from workerlab.analysis.samples import NS, completions, ended, per_second
from workerlab.analysis.slots import beside_gil, overhead_s, queued_gap_s
from workerlab.finding import Finding, Note
from workerlab.model import (
    Memory,
    Needs,
    RequestNeed,
    Route,
    Span,
    SpanCost,
    WorkersSample,
)

MAX_SAMPLED_REQUESTS = 5000  # requests in the sample
MIN_SUCCESS_SHARE = 0.5  # of the answers: with fewer successes, needs are unknown
MIN_IDLE_S = 0.3  # sampled before the load, for the CPU of idle workers
MIN_BLOCKED_SHARE, MIN_LATE_BEATS = 0.01, 3  # of the time; with less, nothing is blocked
MIN_BLOCKED_S = 0.0005  # per request, if measured: less may be clocks and interrupts
# How long a request would have waited alone is uncertain if others account for more than
# MAX_CERTAIN_SHARE of its time in the app, or if over ALONE_IN_FLIGHT requests kept a loop (or
# GIL) busy for over BUSY_LOOP_SHARE of it
MAX_CERTAIN_SHARE, BUSY_LOOP_SHARE, ALONE_IN_FLIGHT = 0.1, 0.8, 1.2


class Cost(Struct, frozen=True):
    """Means per request, in seconds: CPU of the workers, and how long they were ready to run and
    had no core."""

    cpu_s: float
    core_wait_s: float


NO_REQUESTS = Note("no request was seen in the app")
NO_CPU = Note("Worker CPU was not measured, so the needs of a request are unknown")
NO_MEMORY = Note("Worker memory is unknown: this system does not report shared memory")


class RequestsFailed(Finding):
    """{failed:percent} of its requests were not answered as expected[[ ({causes:counts})]]
    [[, with status {statuses:list}]]"""

    worker_class: str
    failed: float
    causes: Mapping[str, int] | None  # by the load tool
    statuses: tuple[str, ...] | None


class FailuresInMean(RequestsFailed):
    """{worker_class}: {failed:percent} of the requests that show what one needs failed
    [[ ({causes:counts})]], and are in the mean"""


class ForecastUncertain(Finding):
    """The forecast for {classes:list} is uncertain: in the load that it is made from, requests in
    one worker kept each other waiting, and how long each waits by itself is not known. What was
    launched does not rest on it"""

    classes: tuple[str, ...]


class GapFromLoneRequests(Finding):
    """{worker_class}: no request waited for a slot, so how long one is held beside the app is taken
    from lone requests"""

    worker_class: str


@once
def needs_of(facts: Facts) -> Needs | Finding:
    """What the requests of this trial need, or why that is unknown."""
    spans, failure_notes = success_spans(facts), tuple[Finding, ...]()
    if spans is None and facts.outcome.success >= MIN_SUCCESS_SHARE:  # failures use the server, too
        spans = facts.finished
        if facts.outcome.success < MOSTLY_SUCCESSES:
            failure_notes = (_failures(FailuresInMean, facts),)
    spans = [span for span in spans or () if span.end_ns is not None]
    if not spans:
        mostly_failed = facts.outcome.success < MIN_SUCCESS_SHARE
        return _failures(RequestsFailed, facts) if mostly_failed else NO_REQUESTS
    cost = _cost(facts)
    if cost is None:
        return NO_CPU
    gap_s, notes = _gap(facts)
    notes = (*failure_notes, *notes)
    overhead = overhead_s(facts)
    parts = _parts(facts, spans, cost, overhead if gap_s is None else gap_s)
    # CPU per request outside the app
    outside_s = max(0.0, cost.cpu_s - fmean(part.cpu_s for part in parts))
    crowd = _crowd(spans, parts, loop=facts.data.worker_class.loop)
    if not crowd.certain:
        notes = (*notes, ForecastUncertain((facts.cell.server.variant,)))
    memory = _memory(facts)
    if memory is None:
        notes = (*notes, NO_MEMORY)
    return Needs(
        trial=facts.key,
        requests=_requests(facts, spans, parts, outside_s, crowd.lost_s),
        gap_s=max(0.0, (gap_s or 0.0) - outside_s),
        beside_s=max(0.0, overhead - max(gap_s or 0.0, outside_s)),
        start_s=facts.record.start_s,
        memory=memory,
        notes=notes,
        each=any(span.cost is not None for span in spans),
    )


def _failures(kind: type[RequestsFailed], facts: Facts) -> RequestsFailed:
    return kind(
        worker_class=facts.cell.server.variant,
        failed=1 - facts.outcome.success,
        causes=dict(facts.outcome.errors) or None,
        statuses=tuple(map(str, sorted(wrong_statuses(facts)))) or None,
    )


# --- CPU ------------------------------------------------------------------------------------------


def _cost(facts: Facts) -> Cost | None:
    """CPU and core wait per request; None if the workers' CPU was not sampled."""
    samples, begins_ns = facts.seen.workers, facts.spans[0].start_ns
    before = [sample for sample in samples if sample.at_ns <= begins_ns]
    if not before or len(samples) == len(before):
        return None
    first, last = before[-1], samples[-1]
    served = completions(ended(facts.data.spans.spans, None), first.at_ns, last.at_ns)
    idle_s = _idle(before) * (last.at_ns - first.at_ns) / NS
    if served <= 0:
        return None
    waits = [
        (sample.at_ns, sample.server_wait_s)
        for sample in facts.seen.processes
        if sample.server_wait_s is not None
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
    """Cores that idle workers use; 0 if they were sampled too briefly before the load."""
    first, last = before[0], before[-1]
    length_s = (last.at_ns - first.at_ns) / NS
    return _used_s(first, last) / length_s if length_s >= MIN_IDLE_S else 0.0


class Crowded(Struct, frozen=True):
    """CPU seconds per request under a heavy load. `cpu_s`: the server's; `beside_s`: those of the
    load tool and of interrupts (where the kernel counts them), which use the same cores; None if
    the tool's CPU was not sampled."""

    cpu_s: float
    beside_s: float | None


def crowded(facts: Facts) -> Crowded | None:
    """CPU per request in the steady window; None if it was not sampled or too many requests failed.
    Under a light load each request wakes its worker; under a heavy one several share a wake-up."""
    window = facts.window
    if window is None or not window.rps or facts.outcome.success < MOSTLY_SUCCESSES:
        return None
    samples = [sample for sample in facts.seen.processes if window.contains(sample.at_ns)]
    server, tool, interrupts = (
        per_second((sample.at_ns, getattr(sample, name)) for sample in samples)
        for name in ("server_cpu_s", "tool_cpu_s", "host_irq_s")
    )
    if server is None:
        return None
    beside_s = None if tool is None else (tool + (interrupts or 0.0)) / window.rps
    return Crowded(server / window.rps, beside_s)


def with_crowd(needs: Needs, many: Crowded | None) -> Needs:
    """The needs with this mean CPU per request; None: unchanged. The difference is subtracted
    equally from each request, since concurrency saves CPU in Gunicorn, not in the app."""
    if many is None:
        return needs
    saved_s = fmean(need.cpu_s for need in needs.requests) - many.cpu_s
    requests = (replace(need, cpu_s=max(0.0, need.cpu_s - saved_s)) for need in needs.requests)
    return replace(needs, requests=tuple(requests), load_s=many.beside_s)


# --- per request ----------------------------------------------------------------------------------


class NeedPart(Struct, frozen=True, gc=False):
    """How one request spent its time in the app, in seconds. `queued_s`: ready to run without a
    core; `held_up_s`: delayed by others on its loop, None if unknown."""

    length_s: float
    cpu_s: float
    queued_s: float
    blocked_s: float
    held_up_s: float | None = None

    @property
    def busy_s(self) -> float:
        """How long it held the loop or the GIL, at most."""
        return min(self.length_s, self.cpu_s + self.queued_s + self.blocked_s)

    @property
    def left_s(self) -> float:
        """How long it waited, for other requests of its worker or for anything else."""
        return self.length_s - self.busy_s


def _parts(
    facts: Facts, spans: Sequence[Span], cost: Cost, outside_s: float
) -> tuple[NeedPart, ...]:
    """What each request used. One without measured CPU gets the mean; if none has any, that is the
    workers' CPU per request less the most that Gunicorn can have used outside the app."""
    measured_s = [span.cost.cpu_ns / NS for span in spans if span.cost is not None]
    mean_s = fmean(measured_s) if measured_s else max(0.0, cost.cpu_s - outside_s)
    queued_s = cost.core_wait_s * (mean_s / cost.cpu_s if cost.cpu_s > 0 else 1.0)
    asleep_s = [slept_s for span in spans if (slept_s := _asleep_s(span.cost)) is not None]
    blocks = bool(asleep_s) and fmean(asleep_s) >= MIN_BLOCKED_S
    blocked_s = 0.0 if asleep_s else _blocked_s(facts, len(spans))

    def part(span: Span) -> NeedPart:
        length_s, span_cost = ((span.end_ns or 0) - span.start_ns) / NS, span.cost
        if span_cost is None:
            return NeedPart(length_s, mean_s, queued_s, blocked_s)
        own_s = (_asleep_s(span_cost) or 0.0) if blocks else blocked_s
        held_up_s = None if span_cost.steps_ns is None else span_cost.held_up_ns / NS
        return NeedPart(length_s, span_cost.cpu_ns / NS, span_cost.queued_ns / NS, own_s, held_up_s)

    return tuple(map(part, spans))


def _asleep_s(cost: SpanCost | None) -> float | None:
    """How long its steps neither computed nor waited for a core; None if it has no steps."""
    if cost is None or cost.steps_ns is None:
        return None
    return max(0, cost.steps_ns - cost.cpu_ns - cost.queued_ns) / NS


class Crowd(Struct, frozen=True):
    """`lost_s`: mean time that a request waited for others in its worker. `certain`: whether that
    shows how long it would have waited alone."""

    lost_s: float
    certain: bool


def _crowd(spans: Sequence[Span], parts: Sequence[NeedPart], *, loop: bool) -> Crowd:
    """How long requests waited for others. A loop without a core delays all its requests; threads
    wait independently."""
    held_up_s = [part.held_up_s for part in parts if part.held_up_s is not None]
    if held_up_s:
        share = fmean(held_up_s) / max(fmean(part.length_s for part in parts), 1 / NS)
        return Crowd(fmean(held_up_s), certain=share <= MAX_CERTAIN_SHARE)
    aside_s = 0.0 if loop else fmean(part.queued_s for part in parts)
    length_s = fmean(part.length_s for part in parts) - aside_s
    busy_s = max(0.0, fmean(part.busy_s for part in parts) - aside_s)
    if length_s <= 0:
        return Crowd(0.0, certain=True)
    count = under_way(spans)
    lost_s = max(0.0, length_s - busy_s - elsewhere_s(busy_s, count, length_s))
    # A loop that is always busy hides how long its requests wait for anything else
    full = count > ALONE_IN_FLIGHT and count * busy_s > BUSY_LOOP_SHARE * length_s
    return Crowd(lost_s, certain=not full and lost_s <= MAX_CERTAIN_SHARE * length_s)


def _requests(
    facts: Facts, spans: Sequence[Span], parts: Sequence[NeedPart], outside_s: float, lost_s: float
) -> tuple[RequestNeed, ...]:
    loop = facts.data.worker_class.loop
    mean_s, routes = fmean(part.cpu_s for part in parts), facts.cell.server.app.mix

    def need(span: Span, part: NeedPart) -> RequestNeed:
        even = loop or mean_s <= 0
        held_up_s = part.held_up_s
        if held_up_s is None:
            held_up_s = lost_s if even else lost_s * part.cpu_s / mean_s
        nogil_s = part.cpu_s * nogil_shares.get(span.cost.route if span.cost else None, 0.0)
        return RequestNeed(
            wait_s=max(0.0, part.left_s - held_up_s),
            cpu_s=part.cpu_s - nogil_s + outside_s,
            nogil_s=nogil_s,
            blocked_s=part.blocked_s,
            route=_route(span, routes, route_by_id),
        )

    nogil_shares = beside_gil(spans) if under_way(spans) < ALONE_IN_FLIGHT else {}
    identified = (timing for timing in facts.measurement.timings if timing.request_id is not None)
    route_by_id = {timing.request_id: timing.route for timing in identified} if routes else {}
    step = -(-len(spans) // MAX_SAMPLED_REQUESTS)
    return tuple(map(need, spans[::step], parts[::step]))


def _route(span: Span, mix: Sequence[Route], asked: Mapping[str | None, int | None]) -> str:
    """The label of the route that the client recorded, else the one that the app saw, which does
    not distinguish two routes of one path."""
    number = asked.get(span.request_id)
    if number is None and span.cost is not None:
        number = span.cost.route
    return mix[number].label if mix and number is not None else ""


def under_way(spans: Sequence[Span]) -> float:
    """Mean number of requests in a worker as its requests see it, themselves included: the integral
    of N squared over that of N."""
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
    """Seconds per request in calls that held up the loop; 0 without evidence, or if the class
    serves one request at a time, so blocking delays no other."""
    use = None if facts.data.worker_class.slots == "one" else loop_use(facts)
    if use is None or use.worst.blocked < MIN_BLOCKED_SHARE or use.worst.late < MIN_LATE_BEATS:
        return 0.0
    blocked = sum(worker.blocked * worker.observed_s for worker in use.workers)
    return blocked / max(1.0, facts.window.completed if facts.window else requests)


# --- gap and memory -------------------------------------------------------------------------------


def _gap(facts: Facts) -> tuple[float | None, tuple[Finding, ...]]:
    """How much longer than its span a request holds a slot; None if there are no slots."""
    if facts.slots is None:
        return None, ()
    measured_s = queued_gap_s(facts)
    if measured_s is not None:
        return measured_s, ()
    return overhead_s(facts), (GapFromLoneRequests(facts.cell.server.worker_class),)


def _memory(facts: Facts) -> Memory | None:
    """The server's memory; None if it was not sampled."""
    samples = facts.seen.memory
    if not samples or not samples[-1].private_bytes:
        return None
    private = samples[-1].private_bytes
    total = sum(private.values())
    shared = max(0, samples[-1].pss_bytes - total)
    return Memory(shared, round(total / len(private)), len(private))
