"""Workers that serve many requests at once by an event loop, until something blocks it."""

from __future__ import annotations

from collections import defaultdict

from harness.analysis.facts import Facts
from harness.analysis.spans import most_open
from harness.analysis.window import window
from harness.model import Span


def one_at_a_time(facts: Facts) -> float | None:
    """Where no worker ever had two requests in the app although its loop could: the part of the
    steady window that the busiest one spent in the app, 0 to 1. None where some worker had two.

    The busiest, because chance may deal the connections to a part of the workers. An app that
    answers at once is one at a time as well; it leaves the loop free for the rest of the time.
    """
    server, steady = facts.evidence.trial.cell.server, window(facts.steady)
    # More open at once than there are workers: two in one of them, without looking.
    if steady is None or facts.open_at_once > server.workers:
        return None
    worker_class = facts.evidence.worker_class
    if not worker_class.loop or worker_class.slots_per_worker(server) == 1:
        return None
    by_worker: dict[int, list[Span]] = defaultdict(list)
    for span in facts.spans:
        by_worker[span.pid].append(span)
    if any(most_open(spans) > 1 for spans in by_worker.values()):
        return None
    closes = steady.closes_ns
    busy_s = (
        sum(steady.inside_s(span.start_ns, span.end_ns or closes) for span in spans)
        for spans in by_worker.values()
    )
    return max(busy_s, default=0.0) / steady.inside_s(steady.opens_ns, closes)
