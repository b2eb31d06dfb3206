"""How much longer than in the app a request holds its slot: the gap between the end of a span and
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
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from statistics import median

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS
from workerlab.model import Span

ENOUGH = 8  # gaps, for their median
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
    return median(gaps_ns) / NS if len(gaps_ns) >= ENOUGH else None


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
