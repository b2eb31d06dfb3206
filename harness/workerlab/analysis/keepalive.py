"""Kept-alive connections stay with the worker that accepted them, so how they are dealt bounds the
throughput: worker i serves at most min(connections, slots of one worker) at once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from workerlab.analysis.batches import precision
from workerlab.analysis.facts import Facts, once
from workerlab.analysis.window import Window
from workerlab.model import ConnectionSample

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
