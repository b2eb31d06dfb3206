"""The breakdown where requests cannot be followed: each part from a source of its own, or missing.

    response      N/X: the response time law (Denning & Buzen 1978), without think time
    connect       the client's times to connect, over the whole load
    accept queue  the kernel's queue, sampled: mean length / X (Little 1961); where it overflowed,
                  with the connections that only the client believes to have
    in worker     accept timed in the workers; else, by Little's law, the accepted connections
                  that hold bytes nobody has read
    service       spans
    transfer      the client: last byte - first byte, over the whole load

N counts the connections that are stuck in a handshake. What they spend in repeated SYNs is in
`connect` as soon as they are through. Where the last packet was dropped the client is connected and
the server's kernel is not: such connections show as more ends established at the client than at the
server, and the exact breakdown has them in the accept queue as well.

Known to be off: bytes that a worker has read, of a request it has not begun, are in no queue
(in worker, with kept-alive connections); an app that sends while it still works is in service and
in transfer at once. Both show in `unattributed`, which is never spread over the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.analysis.facts import Facts
from harness.analysis.handshakes import half_open
from harness.analysis.samples import overflowed
from harness.analysis.window import Window
from harness.model import Breakdown, Finding

QUEUE_SAMPLES, CONNECTION_SAMPLES = 5, 3  # fewer say nothing of a mean

Part = tuple[float, Finding] | None  # seconds, and the source


def estimated(facts: Facts, window: Window) -> Breakdown:
    parts = {name: part for name, estimate in PARTS.items() if (part := estimate(facts, window))}
    response_s = facts.connections / window.rps
    known_s = {name: value for name, (value, _) in parts.items()}
    return Breakdown(
        response_s=response_s,
        connect_s=known_s.get("connect"),
        accept_queue_s=known_s.get("accept_queue"),
        in_worker_s=known_s.get("in_worker"),
        service_s=known_s.get("service"),
        transfer_s=known_s.get("transfer"),
        unattributed_s=response_s - sum(known_s.values()),
        sources={name: source for name, (_, source) in parts.items()},
    )


def _connect(facts: Facts, _window: Window) -> Part:
    """Per request: on a kept-alive connection only the first one connects."""
    times = facts.measurement.connects_s
    if not times:
        return None
    return sum(times) / max(len(times), facts.measurement.requests), Finding(
        "source.client_whole_load"
    )


def _accept_queue(facts: Facts, window: Window) -> Part:
    seen = facts.data.observations
    if "queue" in seen.missing:
        return None
    length = window.level([(one.at_ns, one.length) for one in seen.queue], QUEUE_SAMPLES)
    if length is None:
        return None
    half_open = _half_open(facts, window) if overflowed(seen) else 0.0
    source = "source.queue_and_half_open" if half_open else "source.queue"
    return (length + half_open) / window.rps, Finding(source)


def _half_open(facts: Facts, window: Window) -> float:
    """The mean number of connections established at the client and not at the server."""
    seen = facts.data.observations
    if "connections" in seen.missing:
        return 0.0
    more = [(one.at_ns, half_open(one)) for one in seen.connections]
    return window.level(more, CONNECTION_SAMPLES) or 0.0


def _in_worker(facts: Facts, window: Window) -> Part:
    return _accepted(facts, window) or _unread(facts, window)


def _accepted(facts: Facts, window: Window) -> Part:
    """From accept to the app, where each connection carried one request (sync keeps none, whatever
    the load asks)."""
    accepts, requests = facts.accepts
    if requests < len(facts.spans) or (facts.cell.keepalive and accepts < requests):
        return None
    known = window if facts.data.counted else _until_the_last_begun(facts, window)
    if known is None:
        return None
    waited_s = known.inside_s((span.accept_ns or 0, span.start_ns) for span in facts.spans)
    return waited_s / known.completed, Finding("source.accept")


def _until_the_last_begun(facts: Facts, window: Window) -> Window | None:
    """The part of the window before the accept of each worker's last begun request. A tool that
    runs for a time leaves requests that were accepted and never begun: of their waiting nothing
    is known, but what was accepted earlier has been begun."""
    last: dict[int, int] = {}
    for span in facts.spans:
        last[span.pid] = max(last.get(span.pid, 0), span.accept_ns or 0)
    closes_ns = min(window.closes_ns, *last.values())
    return replace(window, closes_ns=closes_ns) if closes_ns > window.opens_ns else None


def _unread(facts: Facts, window: Window) -> Part:
    seen = facts.data.observations
    if "connections" in seen.missing:
        return None
    unread = window.level([(one.at_ns, one.unread) for one in seen.connections], CONNECTION_SAMPLES)
    if unread is None:
        return None
    return unread / window.rps, Finding("source.unread")


def _service(facts: Facts, window: Window) -> Part:
    """A request that never ended held its slot to the window's end."""
    closes = window.closes_ns
    served_s = window.inside_s((span.start_ns, span.end_ns or closes) for span in facts.spans)
    return served_s / window.completed, Finding("source.spans")


def _transfer(facts: Facts, _window: Window) -> Part:
    """Not of kept-alive connections: some of ab's requests on them end only when the server closes
    the connection (first byte after 0.3 s, end after 2.0 s), which is no part of a transfer. Not
    where ab's means hold requests that were never accepted, which end without a first byte."""
    measured = facts.measurement
    first_s, last_s = measured.first_byte.mean, measured.response.mean
    if facts.cell.keepalive or measured.requests != facts.outcome.answered:
        return None
    if first_s is None or last_s is None or not measured.exact_mean:
        return None
    return max(0.0, last_s - first_s), Finding("source.client_bytes")


PARTS: dict[str, Callable[[Facts, Window], Part]] = {
    "connect": _connect,
    "accept_queue": _accept_queue,
    "in_worker": _in_worker,
    "service": _service,
    "transfer": _transfer,
}
