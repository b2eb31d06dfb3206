"""The parts of the response time: traced request by request where possible, else estimated.

They are exact if requests carry ids and their accepts are timed:

    sent ── connect ── connected ── accept queue ── accepted ── in worker ── app called ── service
        ── app done ── transfer ── last byte

A request on a reused connection spends no time in connect or in the accept queue: it waits in the
worker from the moment it is sent. Each moment is clamped between the one before it and the last
byte: a worker may accept before the client detects that it is connected, and close its span after
the client has the response. With dropped handshakes, `accept queue` begins when the connection is
established on the client's side, so the kernel's retransmissions are part of it.

Otherwise they are estimated; each part has its own source, or is missing:

    response      N/X, by the response time law (Denning & Buzen 1978) without think time; for a
                  whole load, the mean number of requests in flight replaces N
    connect       the client's connect times, over the whole load
    accept queue  the kernel's queue, sampled: mean length / X (Little 1961); if it overflowed,
                  plus half-open connections (established on the client's side only)
    in worker     accepts timed in the workers; else, by Little's law, the accepted connections
                  that hold unread bytes
    service       spans
    transfer      the client: last byte - first byte, over the whole load

N includes connections that are stuck in a handshake; their repeated SYNs count as `connect` once
they are established. Two known errors: a request that a worker has read but not started is in no
queue (with kept-alive connections, it is missing from `in worker`); time in which an app sends
while it still computes counts as both service and transfer. Both errors show in `unattributed`,
which is never spread over the other parts. Parts that add up to more than the response are
withheld: at least one of them is wrong (a queue was sampled too rarely, or a span ended late
because other programs used the core).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from workerlab.analysis.core_wait import core_wait
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.handshakes import half_open
from workerlab.analysis.samples import NS, Intervals, Window
from workerlab.analysis.stall import reported_part, requests_in_flight
from workerlab.finding import Finding, Findings, Note
from workerlab.model.evidence import Span, Timing
from workerlab.model.result import Breakdown

CLOCK_TOLERANCE_NS = 1_000_000  # between clocks of client and worker
MAX_FAILED_SHARE = 0.05  # of the responses; more failures would distort the means
MIN_WAIT_SHARE = 0.02  # of the response time; less waiting counts as none
# Of the response time; parts that exceed it by more are withheld. Connect times cover the whole
# load, which differs from the steady part once the accept queue overflows
MAX_EXCESS_SHARE, MAX_OVERFLOWED_EXCESS_SHARE = 0.1, 0.25
MIN_QUEUE_SAMPLES = 5  # required for a mean
MIN_CONNECTION_SAMPLES = 3  # likewise
ACCEPT_SOURCE = "accept timed in the workers"
SPANS_SOURCE = "the workers' spans"
EXACT_SOURCES = {
    "connect": "the client",
    "accept_queue": ACCEPT_SOURCE,
    "in_worker": "accept and start timed in the workers",
    "service": SPANS_SOURCE,
    "transfer": "spans and the client",
}

# The six moments of a request, and start and end of its span, in nanoseconds
Moments = tuple[Sequence[int], tuple[int, int]]
Part = tuple[float, str]  # seconds and source
NotedBreakdown = tuple[Breakdown, Findings]  # with notes on what it excludes


class PartsEstimated(Finding):
    """{tool} traces every request of a --duration load only with a ramp or mix, so each part is an
    estimate"""

    tool: str


class FailuresLeftOut(Finding):
    """the breakdown excludes {requests:# request} that failed"""

    requests: int


class NoBreakdownOfFailures(Finding):
    """no breakdown: {share:percent} of the responses were failures, and it is unknown which
    requests failed"""

    share: float


class PartsExceedResponse(Finding):
    """the parts add up to {parts_s:duration}, more than the response of {response_s:duration}, so
    they are left out[[; other programs used {others_cores:.2f} of {cores:# core}]]"""

    parts_s: float
    response_s: float
    others_cores: float | None  # if they can be the cause
    cores: int | None


@once
def breakdown(facts: Facts) -> NotedBreakdown:
    """Means over the part of the load that the cell reports (its steady window, or the whole load
    if it stalled), with notes on what they exclude."""
    window = reported_part(facts)
    parts, notes = _steady_parts(facts) if window is facts.window else _breakdown_of(facts, window)
    response_s, excess_s = parts.response_s, -(parts.unattributed_s or 0.0)
    max_share = MAX_OVERFLOWED_EXCESS_SHARE if facts.overflowed else MAX_EXCESS_SHARE
    if response_s is None or excess_s <= max_share * response_s:
        return parts, notes
    wait = core_wait(facts)
    programs = wait if wait is not None and wait.disturbed_by_programs else None
    exceeds = PartsExceedResponse(
        parts_s=response_s + excess_s,
        response_s=response_s,
        others_cores=programs.others_cores if programs else None,
        cores=programs.cores if programs else None,
    )
    return Breakdown(response_s=response_s), (exceeds,)


@once
def _steady_parts(facts: Facts) -> NotedBreakdown:
    return _breakdown_of(facts, facts.steady_part)


def _breakdown_of(facts: Facts, window: Window) -> NotedBreakdown:
    if (exact := _exact_breakdown(facts, window)) is not None:
        return exact
    if (failed_share := 1 - facts.outcome.success_share) > MAX_FAILED_SHARE:
        return Breakdown(), (NoBreakdownOfFailures(failed_share),)
    untraced = facts.data.can_trace and not facts.measurement.timings
    parts = {name: part for name, part_of in ESTIMATES.items() if (part := part_of(facts, window))}
    in_flight: float = facts.connections
    if window is not facts.window:  # fewer than N towards the end of the whole load
        in_flight = requests_in_flight(facts).inside_s(window) / window.length_s
    estimate = _from_parts(in_flight / window.rps, parts, exact=False)
    return estimate, (PartsEstimated(facts.tool),) if untraced else ()


@once
def mean_in_server(facts: Facts) -> float | None:
    """Mean number of requests in the accept queue, in the workers and in the app over the steady
    window (Little 1961); None if one of these is unknown. Parts are used even if they add up to
    more than the response: those requests may be overestimated, but are not in the load tool."""
    steady, _ = _steady_parts(facts)
    parts_s = (steady.accept_queue_s, steady.in_worker_s, steady.service_s)
    return None if None in parts_s else facts.rps * sum(part_s or 0.0 for part_s in parts_s)


class RequestsWaited(Finding):
    """requests waited for {wait_s:duration} of {response_s:duration}"""

    wait_s: float
    response_s: float


NOTHING_WAITED = Note("nothing waited")
NO_WAIT_SEEN = Note("no wait was observed")


def wait_finding(facts: Facts) -> RequestsWaited | Note:
    """How long requests waited in the accept queue and in the worker, by the cell's breakdown; else
    a note that nothing waited or, if a part is unknown, that no wait was observed."""
    parts, _ = breakdown(facts)
    wait_s = (parts.accept_queue_s or 0.0) + (parts.in_worker_s or 0.0)
    response_s = parts.response_s or 0.0
    if response_s and wait_s >= MIN_WAIT_SHARE * response_s:
        return RequestsWaited(wait_s, response_s)
    measured = None not in (parts.response_s, parts.accept_queue_s, parts.in_worker_s)
    return NOTHING_WAITED if measured else NO_WAIT_SEEN


def slot_use(facts: Facts) -> dict[str, Any]:
    """How many slots the connections used at once, and how long requests waited."""
    return {
        "connections": facts.connections,
        "used": facts.max_in_app,
        "slots": facts.slots,
        "limit": facts.limit_note,
        "waited": wait_finding(facts),
    }


# --- exact --------------------------------------------------------------------------------


def _exact_breakdown(facts: Facts, window: Window) -> NotedBreakdown | None:
    """The exact breakdown of successes, with a note on excluded failures; None if some request of
    the window was not traced."""
    traced = _traced_moments(facts, window)
    successes = list(filter(None, traced))
    spans = Intervals([span for _, span in successes])
    completed = spans.last(facts.tail_ns).completed(window)
    if completed <= 0:
        return None

    def mean_s(begins: int, ends: int) -> float:
        between = [(moments[begins], moments[ends]) for moments, _ in successes]
        return Intervals(between).inside_s(window) / completed

    parts = {
        name: (mean_s(number, number + 1), source)
        for number, (name, source) in enumerate(EXACT_SOURCES.items())
    }
    failures = len(traced) - len(successes)
    notes = (FailuresLeftOut(failures),) if failures else ()
    return _from_parts(mean_s(0, 5), parts, exact=True), notes


def _traced_moments(facts: Facts, window: Window) -> Sequence[Moments | None]:
    """The moments of each request that overlaps the window, None for a failed request; empty if
    some request was not traced. The end of a failed request is unknown, so it counts if it began
    before the window closed."""
    traced = list[Moments | None]()
    by_id = {span.request_id: span for span in facts.spans if span.request_id is not None}
    for timing, sent, end in facts.timed_requests():
        if sent >= window.closes_ns or (end is not None and end <= window.opens_ns):
            continue
        moments, span = None, by_id.get(timing.request_id or "")
        if timing.cause is None:
            moments = _moments(timing, span, sent, end) if span and end else None
            if moments is None:
                return ()
        traced.append(moments)
    return traced


def _from_parts(response_s: float, parts: Mapping[str, Part], *, exact: bool) -> Breakdown:
    return Breakdown(
        response_s=response_s,
        **{f"{name}_s": part_s for name, (part_s, _) in parts.items()},
        unattributed_s=response_s - sum(part_s for part_s, _ in parts.values()),
        exact=exact,
        sources={name: source for name, (_, source) in parts.items()},
    )


def _moments(timing: Timing, span: Span, sent: int, end: int) -> Moments | None:
    """A request's moments; None if one is missing or the span starts outside the client's times."""
    in_time = sent - CLOCK_TOLERANCE_NS <= span.start_ns <= end + CLOCK_TOLERANCE_NS
    if span.accept_ns is None or not in_time:
        return None
    app_done = end if span.end_ns is None else span.end_ns
    connected = accepted = sent
    if not timing.reused:
        connected = sent + round((timing.connect_s or 0.0) * NS)
        accepted = max(connected, span.accept_ns)
    moments = [sent]
    for moment in (connected, accepted, span.start_ns, app_done, end):
        moments.append(min(max(moment, moments[-1]), end))
    return moments, (span.start_ns, app_done)


# --- estimated ----------------------------------------------------------------------------


def _connect(facts: Facts, _window: Window) -> Part | None:
    """Mean time to connect per request: on a kept-alive connection only the first one connects."""
    times_s = facts.measurement.connects_s
    if not times_s:
        return None
    per_request_s = sum(times_s) / max(len(times_s), facts.measurement.requests)
    return per_request_s, "the client, over the whole load"


def _accept_queue(facts: Facts, window: Window) -> Part | None:
    observed = facts.observations
    mean_length = window.mean_level(observed.queue, "length", MIN_QUEUE_SAMPLES)
    if mean_length is None:
        return None
    mean_half_open = 0.0
    if facts.overflowed:
        mean_half_open = (
            window.mean_level(observed.connections, half_open, MIN_CONNECTION_SAMPLES) or 0.0
        )
    addition = " and half-open connections" if mean_half_open else ""
    wait_s = (mean_length + mean_half_open) / window.rps
    return wait_s, f"queue length{addition}, by Little's law"


def _in_worker(facts: Facts, window: Window) -> Part | None:
    """Mean wait in the worker, by accept times if each connection carried one request (sync keeps
    none alive, even if the load tool requests keep-alive), else by unread bytes."""
    accepts, requests = facts.accepts
    if requests >= len(facts.spans) and not (facts.cell.keepalive and accepts < requests):
        part = window if facts.data.fixed_count else _until_last_accept(facts, window)
        if part is not None:
            waits = Intervals([(span.accept_ns or 0, span.start_ns) for span in facts.spans])
            return waits.inside_s(part) / part.completed, ACCEPT_SOURCE
    # If the class reads requests early, they may wait although no bytes are unread
    if facts.worker_class.unmeasured:
        return None
    connections = facts.observations.connections
    unread = window.mean_level(connections, "unread", MIN_CONNECTION_SAMPLES)
    return None if unread is None else (unread / window.rps, "unread requests, by Little's law")


def _until_last_accept(facts: Facts, window: Window) -> Window | None:
    """The window, cut off at the earliest of the workers' last accepts of a started request:
    requests accepted before it were all started. After a load of fixed duration, some accepted
    requests are never started, and their wait is unknown. None if the cut precedes the window."""
    by_worker = facts.spans_by_worker.values()
    last_ns = (max(span.accept_ns or 0 for span in spans) for spans in by_worker)
    closes_ns = min(window.closes_ns, *last_ns)
    return replace(window, closes_ns=closes_ns) if closes_ns > window.opens_ns else None


def _service(facts: Facts, window: Window) -> Part:
    """Mean time in the app. A request that never ended counts to the end of the window."""
    served_s = Intervals.of(facts.spans, window.closes_ns).inside_s(window)
    return served_s / window.completed, SPANS_SOURCE


def _transfer(facts: Facts, _window: Window) -> Part | None:
    """Mean time to transfer a response. None on kept-alive connections: some of ab's requests there
    end only when the server closes the connection (first byte after 0.3 s, end after 2.0 s), which
    is not transfer. None if ab's means include requests that were never accepted, which end without
    a first byte."""
    measured = facts.measurement
    first_s, last_s = measured.first_byte.mean, measured.response.mean
    if facts.cell.keepalive or measured.requests != facts.outcome.answered:
        return None
    if first_s is None or last_s is None or not measured.exact_mean:
        return None
    return max(0.0, last_s - first_s), "the client's first and last byte, over the whole load"


ESTIMATES: dict[str, Callable[[Facts, Window], Part | None]] = {
    "connect": _connect,
    "accept_queue": _accept_queue,
    "in_worker": _in_worker,
    "service": _service,
    "transfer": _transfer,
}
