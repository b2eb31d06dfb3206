"""The breakdown of requests that were followed from client to worker, by their ids.

    sent ── connect ── connected ── accept queue ── accepted ── in worker ── app called ── service
        ── app through ── transfer ── last byte

On a connection that was there already there is neither connect nor accept queue: the request
waits in the worker from the moment it is sent. Each moment is taken to be no earlier than the one
before it and no later than the last byte: a worker may accept before the client notices that it
is connected, and close its span after the client has the answer.

Under dropped handshakes `accept queue` begins when the client believes that it is connected,
which the kernel of the server may not: what it repeats then is in this part, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.facts import Facts
from harness.analysis.spans import NS
from harness.analysis.window import Window, share
from harness.model import Breakdown, Finding, Span, Timing

CLOCKS_NS = 1_000_000  # by which a client's and a worker's moments may be out of order
SOURCES = {
    "connect": Finding("source.client"),
    "accept_queue": Finding("source.accept"),
    "in_worker": Finding("source.accept_and_start"),
    "service": Finding("source.spans"),
    "transfer": Finding("source.spans_and_client"),
}


# The six moments of a request, in order, and start and end of its span: nanoseconds
Walk = tuple[Sequence[int], tuple[int, int]]


def exact(facts: Facts, window: Window) -> tuple[Breakdown, tuple[Finding, ...]] | None:
    """With what was left out; None where a success of the window was not followed."""
    origin_ns = facts.measurement.origin_ns
    if origin_ns is None:
        return None
    by_id = {span.request_id: span for span in facts.spans if span.request_id is not None}
    walks, left_out = list[Walk](), 0
    for timing in facts.measurement.timings:
        if not _touches(timing, origin_ns, window):
            continue
        walk = _walk(timing, by_id, origin_ns)
        if walk is not None:
            walks.append(walk)
        elif timing.cause is None:
            return None
        else:
            left_out += 1
    found = _means(walks, window)
    if found is None:
        return None
    return found, (Finding("breakdown.left_out", {"requests": left_out}),) if left_out else ()


def _touches(timing: Timing, origin_ns: int, window: Window) -> bool:
    """Whether any of it lies in the window. When a request failed is not known, so one that had
    begun counts as still there."""
    start_ns = origin_ns + round(timing.start_s * NS)
    if start_ns >= window.closes_ns:
        return False
    return timing.end_s is None or start_ns + round(timing.end_s * NS) > window.opens_ns


def _walk(timing: Timing, by_id: Mapping[str, Span], origin_ns: int) -> Walk | None:
    """None where a moment is missing, or the worker's are not within the client's."""
    span = by_id.get(timing.request_id) if timing.request_id is not None else None
    if span is None or span.accept_ns is None or timing.end_s is None:
        return None
    sent = origin_ns + round(timing.start_s * NS)
    end = sent + round(timing.end_s * NS)
    if not sent - CLOCKS_NS <= span.start_ns <= end + CLOCKS_NS:
        return None
    through = end if span.end_ns is None else span.end_ns
    connected = accepted = sent
    if not timing.reused:
        connected = sent + round((timing.connect_s or 0.0) * NS)
        accepted = max(connected, span.accept_ns)
    moments = [sent]
    for moment in (connected, accepted, span.start_ns, through, end):
        moments.append(min(max(moment, moments[-1]), end))
    return moments, (span.start_ns, through)


def _means(walks: list[Walk], window: Window) -> Breakdown | None:
    """Every part's time inside the window, per request completed in it."""
    opens, closes = window.opens_ns, window.closes_ns
    completed = sum(share(*served, opens, closes) for _, served in walks)
    if completed <= 0:
        return None

    def mean(begins: int, ends: int) -> float:
        return window.inside_s((one[begins], one[ends]) for one, _ in walks) / completed

    parts = [mean(number, number + 1) for number in range(5)]
    response_s = mean(0, 5)
    connect_s, accept_queue_s, in_worker_s, service_s, transfer_s = parts
    return Breakdown(
        response_s=response_s,
        connect_s=connect_s,
        accept_queue_s=accept_queue_s,
        in_worker_s=in_worker_s,
        service_s=service_s,
        transfer_s=transfer_s,
        unattributed_s=response_s - sum(parts),
        exact=True,
        sources=SOURCES,
    )
