"""The needs of a request, measured in one trial: how long it waits, computes, blocks and holds its
slot. Also the server's memory and the time it takes to boot.

    hold = wait + CPU + blocked + gap           how long the slot is taken
    R    = hold + waiting for a slot + outside  outside: no slot is held (connect, transfer)

The trial has `Cell.inside` "needs". The recommended load is a closed loop of 4 connections on 2
workers of one thread each. With one slot per worker, a request then always waits, so the gap is
measured; many requests arrive per second, so the CPU use of idle workers hardly matters; two
workers show how much memory each adds; and few requests share a worker at a time, so they hardly
wait for each other inside the app. At a low rate, the gap is that of lone requests.

CPU time per request is the CPU time of all workers during the load, less what they would have used
idle (at their rate before the load: an event loop's heartbeat is 1 % of a core), divided by the
number of requests. It includes everything: parsing, threads of libraries, programs that the app
ran. The probe measures the CPU time of each request where the worker class allows it
(`server/inside/costs.py`); the rest, such as Gunicorn's own part, is spread evenly over requests.

A request's wait is its span minus its CPU time and its time ready to run without a core, both
measured per request; on a loop, its span minus all of its steps. But requests in one worker also
wait for each other. For the loop, the probe measures that time, and it is subtracted. For the GIL,
or for a class without this measurement, it is computed by the formula of `core_wait` (one station
and a delay) from the number of requests in the worker, and split in proportion to each request's
CPU time (evenly on a loop). If it is a large share, the wait is uncertain, and a note says so.

The share of computing that needs no GIL (`nogil_share_by_route`) is 1 - (share of time with the GIL
held) / (share of time in which requests computed or were ready to), both while a request was in the
app. A thread that loses its core still holds the GIL, so both include the wait for a core. GIL
samples miss holds of less than 0.3 ms. An app that computes in short bursts, for example between
database queries, would seem never to hold it, so there is no result for bursts of less than a
millisecond on average. The share is unused if a worker has more than one request at a time, because
any of them may hold the GIL.

Rejected: the spans of lone requests, which are few and of one route; the formula for loops, where
two connections may take turns and never wait for each other.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import sqrt
from statistics import fmean

from msgspec import Struct
from msgspec.structs import replace

from workerlab.analysis.core_wait import fitted_delay_s, is_disturbed
from workerlab.analysis.diagnosis.failing import MOSTLY_SUCCESSES, wrong_statuses
from workerlab.analysis.diagnosis.loop import BLOCKED_BY_LATE_SHARE, MIN_LATE_BEATS, loop_use
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, Intervals, Period, per_second, states, values_of
from workerlab.analysis.slots import overhead_s, queued_gap_s
from workerlab.analysis.trials import grouped
from workerlab.finding import Finding, Findings, Note
from workerlab.model.evidence import Span, SpanCost, WorkersSample
from workerlab.model.plan import Route
from workerlab.model.result import Memory, Needs, RequestNeed

MAX_SAMPLED_REQUESTS = 5000
MIN_SUCCESS_SHARE = 0.5  # of the responses; with fewer successes, needs are unknown
MIN_IDLE_S = 0.3  # of samples before the load, to know the CPU use of idle workers
MIN_BLOCKED_S = 0.0005  # per request, if measured; less may be due to clocks and interrupts
# It is uncertain how long a request would have waited alone if other requests delayed it for a
# larger share of its time in the app, or if its loop (or GIL) was busy for a larger share of the
# time, with more requests in its worker on average
MAX_DELAY_SHARE = 0.1
BUSY_LOOP_SHARE = 0.8
MAX_ALONE_REQUESTS = 1.2
MIN_PIECE_S = 0.001  # mean CPU time per piece; below it, GIL samples are inconclusive
MIN_EXPECTED_LOOKS = 30  # GIL samples in which the GIL should be held
# Of the computing time; the share with the GIL held plus two standard errors must be below it
MAX_HELD_SHARE = 0.7


class Cost(Struct, frozen=True):
    """Means per request, in seconds: the workers' CPU time, and the time in which they were ready
    to run without a core."""

    cpu_s: float
    core_wait_s: float


NO_REQUESTS = Note("no request was seen in the app")
NO_CPU = Note("Worker CPU was not measured, so the needs of a request are unknown")
NO_MEMORY = Note("Worker memory was not measured, so the memory of a server is unknown")


class RequestsFailed(Finding):
    """{failed:percent} of its requests failed[[ ({causes:counts})]]
    [[, with status {statuses:list}]]"""

    worker_class: str
    failed: float
    causes: Mapping[str, int] | None  # by the load tool
    statuses: tuple[str, ...] | None


class FailuresInMean(RequestsFailed):
    """{worker_class}: in the load that the forecast is derived from, {failed:percent} of the
    requests failed[[ ({causes:counts})]]; they count like successes"""


class ForecastUncertain(Finding):
    """The forecast for {classes:list} is uncertain: it is derived from a load in which requests in
    the same worker delayed each other, so it is not known exactly how long each would wait alone.
    Measured results are not affected"""

    classes: tuple[str, ...]


class GapFromLoneRequests(Finding):
    """{worker_class}: too few requests waited for a slot, so the time that a slot is held in
    addition to the time in the app is estimated from lone requests"""

    worker_class: str


@once
def needs_of(facts: Facts) -> Needs | Finding:
    """The needs of this trial's requests, or the reason why they are unknown."""
    spans, failure_notes = facts.success_spans, Findings()
    # Failures load the server, too
    if spans is None and facts.outcome.success_share >= MIN_SUCCESS_SHARE:
        spans = facts.finished
        if facts.outcome.success_share < MOSTLY_SUCCESSES:
            failure_notes = (_failures(FailuresInMean, facts),)
    spans = [span for span in spans or () if span.end_ns is not None]
    if not spans:
        mostly_failed = facts.outcome.success_share < MIN_SUCCESS_SHARE
        return _failures(RequestsFailed, facts) if mostly_failed else NO_REQUESTS
    cost = _cost(facts)
    if cost is None:
        return NO_CPU
    gap_s, notes = _gap(facts)
    notes = (*failure_notes, *notes)
    lone_overhead_s = overhead_s(facts)
    times = _app_times(facts, spans, cost, lone_overhead_s if gap_s is None else gap_s)
    # CPU per request outside the app
    outside_s = max(0.0, cost.cpu_s - fmean(time.cpu_s for time in times))
    delay_s, is_certain = _delay(spans, times, loop=facts.worker_class.loop)
    if not is_certain:
        notes = (*notes, ForecastUncertain((facts.cell.server.variant,)))
    memory = _memory(facts)
    if memory is None:
        notes = (*notes, NO_MEMORY)
    return Needs(
        trial=facts.key,
        requests=_requests(facts, spans, times, outside_s, delay_s),
        gap_s=max(0.0, (gap_s or 0.0) - outside_s),
        beside_s=max(0.0, lone_overhead_s - max(gap_s or 0.0, outside_s)),
        start_s=facts.record.start_s,
        memory=memory,
        notes=notes,
        cpu_by_request=any(span.cost is not None for span in spans),
        disturbed=is_disturbed(facts),
    )


def _failures(kind: type[RequestsFailed], facts: Facts) -> RequestsFailed:
    return kind(
        worker_class=facts.cell.server.variant,
        failed=1 - facts.outcome.success_share,
        causes=dict(facts.outcome.errors) or None,
        statuses=tuple(map(str, sorted(wrong_statuses(facts)))) or None,
    )


# --- CPU ------------------------------------------------------------------------------------------


def _cost(facts: Facts) -> Cost | None:
    """CPU and core wait per request; None if the workers' CPU was not sampled before and during the
    load, or no request ended."""
    samples, load_start_ns = facts.observations.workers, facts.spans[0].start_ns
    before = [sample for sample in samples if sample.at_ns <= load_start_ns]
    if not before or len(samples) == len(before):
        return None
    first, last = before[-1], samples[-1]
    served = Intervals.of(facts.data.spans.spans).completed(Period(first.at_ns, last.at_ns))
    idle_cpu_s = _idle_cores(before) * (last.at_ns - first.at_ns) / NS
    if served <= 0:
        return None
    server_waits = values_of(facts.observations.processes, "server_wait_s")
    waits_before_s = [wait_s for at_ns, wait_s in server_waits if at_ns <= load_start_ns]
    core_wait_s = server_waits[-1][1] - waits_before_s[-1] if waits_before_s else 0.0
    return Cost(
        cpu_s=max(0.0, _used_cpu_s(first, last) - idle_cpu_s) / served,
        core_wait_s=max(0.0, core_wait_s) / served,
    )


def _used_cpu_s(first: WorkersSample, last: WorkersSample) -> float:
    """CPU seconds between the samples, of the workers present in both."""
    return sum(last.cpu_s[pid] - cpu_s for pid, cpu_s in first.cpu_s.items() if pid in last.cpu_s)


def _idle_cores(before: Sequence[WorkersSample]) -> float:
    """Cores that idle workers use; 0 if they were sampled too briefly before the load."""
    first, last = before[0], before[-1]
    length_s = (last.at_ns - first.at_ns) / NS
    return _used_cpu_s(first, last) / length_s if length_s >= MIN_IDLE_S else 0.0


class CpuUnderLoad(Struct, frozen=True):
    """CPU seconds per request under a heavy load. `server_s`: of the server; `load_s`: of the load
    tool and of interrupts (where the kernel counts them), which use the same cores; None if the
    tool's CPU time was not sampled."""

    server_s: float
    load_s: float | None


def cpu_under_load(facts: Facts) -> CpuUnderLoad | None:
    """CPU time per request in the steady window; None if it was not sampled or too many requests
    failed. Under a light load each request wakes its worker; under a heavy load, one wake-up often
    serves multiple requests."""
    window = facts.window
    if window is None or not window.rps or facts.outcome.success_share < MOSTLY_SUCCESSES:
        return None
    samples = window.select(facts.observations.processes)
    server, tool, interrupts = (  # cores
        per_second(samples, name) for name in ("server_cpu_s", "tool_cpu_s", "host_irq_s")
    )
    if server is None:
        return None
    load_s = None if tool is None else (tool + (interrupts or 0.0)) / window.rps
    return CpuUnderLoad(server / window.rps, load_s)


def with_cpu(needs: Needs, cpu: CpuUnderLoad | None) -> Needs:
    """The needs with this mean CPU time per request; None: unchanged. The difference is subtracted
    equally from each request, because concurrency saves CPU time in Gunicorn, not in the app."""
    if cpu is None:
        return needs
    saved_s = fmean(need.cpu_s for need in needs.requests) - cpu.server_s
    requests = (replace(need, cpu_s=max(0.0, need.cpu_s - saved_s)) for need in needs.requests)
    return replace(needs, requests=tuple(requests), load_s=cpu.load_s)


# --- per request ----------------------------------------------------------------------------------


class AppTime(Struct, frozen=True, gc=False):
    """How a request spent its time in the app, in seconds. `held_up_s`: delayed by other requests
    on its loop; None if unknown."""

    length_s: float
    cpu_s: float
    core_wait_s: float  # ready to run
    blocked_s: float
    held_up_s: float | None = None

    @property
    def busy_s(self) -> float:
        """Upper bound of the time for which it held the loop or the GIL."""
        return min(self.length_s, self.cpu_s + self.core_wait_s + self.blocked_s)

    @property
    def waited_s(self) -> float:
        """How long it waited for other requests of its worker or for anything else."""
        return self.length_s - self.busy_s


def _app_times(
    facts: Facts, spans: Sequence[Span], cost: Cost, max_outside_s: float
) -> tuple[AppTime, ...]:
    """The times of each request. A request without measured CPU time gets the mean. If none was
    measured, that is the workers' CPU time per request less `max_outside_s`, the most that Gunicorn
    can have used outside the app."""
    measured_s = [span.cost.cpu_ns / NS for span in spans if span.cost is not None]
    mean_cpu_s = fmean(measured_s) if measured_s else max(0.0, cost.cpu_s - max_outside_s)
    mean_wait_s = cost.core_wait_s * (mean_cpu_s / cost.cpu_s if cost.cpu_s > 0 else 1.0)
    asleep_s = [slept_s for span in spans if (slept_s := _asleep_s(span.cost)) is not None]
    loop_blocks = bool(asleep_s) and fmean(asleep_s) >= MIN_BLOCKED_S
    mean_blocked_s = 0.0 if asleep_s else _blocked_s(facts, len(spans))

    def app_time(span: Span) -> AppTime:
        length_s, span_cost = ((span.end_ns or 0) - span.start_ns) / NS, span.cost
        if span_cost is None:
            return AppTime(length_s, mean_cpu_s, mean_wait_s, mean_blocked_s)
        return AppTime(
            length_s,
            cpu_s=span_cost.cpu_ns / NS,
            core_wait_s=span_cost.queued_ns / NS,
            blocked_s=(_asleep_s(span_cost) or 0.0) if loop_blocks else mean_blocked_s,
            held_up_s=None if span_cost.steps_ns is None else span_cost.held_up_ns / NS,
        )

    return tuple(map(app_time, spans))


def _asleep_s(cost: SpanCost | None) -> float | None:
    """How long its steps neither computed nor waited for a core; None if it has no steps."""
    if cost is None or cost.steps_ns is None:
        return None
    return max(0, cost.steps_ns - cost.cpu_ns - cost.queued_ns) / NS


def _delay(spans: Sequence[Span], times: Sequence[AppTime], *, loop: bool) -> tuple[float, bool]:
    """The mean time that a request waited for other requests in its worker, and whether the time
    that it would have waited alone is certain. A loop without a core delays all its requests;
    threads wait for cores independently."""
    held_up_s = [time.held_up_s for time in times if time.held_up_s is not None]
    if held_up_s:
        share = fmean(held_up_s) / max(fmean(time.length_s for time in times), 1 / NS)
        return fmean(held_up_s), share <= MAX_DELAY_SHARE
    wait_s = 0.0 if loop else fmean(time.core_wait_s for time in times)
    length_s = fmean(time.length_s for time in times) - wait_s
    busy_s = max(0.0, fmean(time.busy_s for time in times) - wait_s)
    if length_s <= 0:
        return 0.0, True
    count = mean_in_worker(spans)
    delay_s = max(0.0, length_s - busy_s - fitted_delay_s(busy_s, count, length_s))
    # A loop that is always busy hides how long its requests wait for anything else
    always_busy = count > MAX_ALONE_REQUESTS and count * busy_s > BUSY_LOOP_SHARE * length_s
    return delay_s, not always_busy and delay_s <= MAX_DELAY_SHARE * length_s


def _requests(
    facts: Facts, spans: Sequence[Span], times: Sequence[AppTime], outside_s: float, delay_s: float
) -> tuple[RequestNeed, ...]:
    """The needs of a sample of the requests. `delay_s`: the mean, for those without `held_up_s`."""
    loop = facts.worker_class.loop
    mean_cpu_s, mix = fmean(time.cpu_s for time in times), facts.cell.server.app.mix
    nogil_shares = nogil_share_by_route(spans) if mean_in_worker(spans) < MAX_ALONE_REQUESTS else {}
    timings = facts.measurement.timings if mix else ()
    route_by_id = {timing.request_id: timing.route for timing in timings if timing.request_id}

    def need(span: Span, time: AppTime) -> RequestNeed:
        split_evenly = loop or mean_cpu_s <= 0
        held_up_s = time.held_up_s
        if held_up_s is None:
            held_up_s = delay_s if split_evenly else delay_s * time.cpu_s / mean_cpu_s
        nogil_s = time.cpu_s * nogil_shares.get(span.cost.route if span.cost else None, 0.0)
        return RequestNeed(
            wait_s=max(0.0, time.waited_s - held_up_s),
            cpu_s=time.cpu_s - nogil_s + outside_s,
            nogil_s=nogil_s,
            blocked_s=time.blocked_s,
            route=_route(span, mix, route_by_id),
        )

    step = -(-len(spans) // MAX_SAMPLED_REQUESTS)
    return tuple(map(need, spans[::step], times[::step]))


def nogil_share_by_route(spans: Sequence[Span]) -> Mapping[int | None, float]:
    """The share of CPU time that needs no GIL, by route, if it is significant."""
    costs = ((span, span.cost) for span in spans if span.cost is not None and span.cost.looks)
    by_route = grouped(costs, lambda pair: pair[1].route)
    return {
        route: share
        for route, route_costs in by_route.items()
        if (share := _nogil_share(route_costs)) > 0
    }


def _nogil_share(costs: Sequence[tuple[Span, SpanCost]]) -> float:
    looks, held = sum(cost.looks for _, cost in costs), sum(cost.held for _, cost in costs)
    cpu_s = sum(cost.cpu_ns for _, cost in costs) / NS
    spans_s = sum((span.end_ns or span.start_ns) - span.start_ns for span, _ in costs) / NS
    pieces = sum(1 + cost.slept for _, cost in costs)
    computing = (cpu_s + sum(cost.queued_ns for _, cost in costs) / NS) / max(spans_s, 1 / NS)
    if cpu_s / pieces < MIN_PIECE_S or looks * computing < MIN_EXPECTED_LOOKS:
        return 0.0
    held_share = held / looks
    error = sqrt(max(held_share, 1 / looks) * (1 - held_share) / looks)
    significant = held_share + 2 * error < MAX_HELD_SHARE * computing
    return 1 - held_share / computing if significant else 0.0


def _route(span: Span, mix: Sequence[Route], by_id: Mapping[str, int | None]) -> str:
    """The label of the route that the client recorded, else of the one that the app recorded, which
    does not distinguish two routes with the same path; "" if unknown."""
    index = by_id.get(span.request_id or "")
    if index is None and span.cost is not None:
        index = span.cost.route
    return mix[index].label if mix and index is not None else ""


def mean_in_worker(spans: Sequence[Span]) -> float:
    """Mean number of requests in a worker as seen by its requests, each counting itself: the
    integral of N squared over that of N."""
    changes = chain.from_iterable(Intervals.of([span]).changes(span.pid) for span in spans)
    total = squares = 0
    for length_ns, in_worker in states(changes):
        total += length_ns * in_worker.total()
        squares += length_ns * sum(number * number for number in in_worker.values())
    return max(1.0, squares / total) if total else 1.0


def _blocked_s(facts: Facts, requests: int) -> float:
    """Seconds per request in calls that blocked the loop; 0 without evidence, or if the class
    serves one request at a time, so blocking delays no other request."""
    use = None if facts.worker_class.slots == "one" else loop_use(facts)
    if use is None or use.worst.blocked < BLOCKED_BY_LATE_SHARE or use.worst.late < MIN_LATE_BEATS:
        return 0.0
    blocked_s = sum(worker.blocked * worker.observed_s for worker in use.workers)
    return blocked_s / max(1.0, facts.window.completed if facts.window else requests)


# --- gap and memory -------------------------------------------------------------------------------


def _gap(facts: Facts) -> tuple[float | None, Findings]:
    """How much longer than its span a request holds a slot; None if slots are unlimited."""
    if facts.slots is None:
        return None, ()
    measured_s = queued_gap_s(facts)
    if measured_s is not None:
        return measured_s, ()
    return overhead_s(facts), (GapFromLoneRequests(facts.cell.server.worker_class),)


def _memory(facts: Facts) -> Memory | None:
    """The server's memory; None if its workers' memory was not sampled."""
    samples = facts.observations.memory
    if not samples or not samples[-1].private_bytes:
        return None
    private = samples[-1].private_bytes
    total = sum(private.values())
    shared = max(0, samples[-1].pss_bytes - total)
    return Memory(shared, round(total / len(private)), len(private))
