"""Where a response time goes: followed request by request where possible, else estimated."""

from __future__ import annotations

from harness.analysis.breakdown_estimated import estimated
from harness.analysis.breakdown_exact import exact
from harness.analysis.facts import Facts, once
from harness.model import Breakdown, Finding


@once
def breakdown(facts: Facts) -> tuple[Breakdown, tuple[Finding, ...]]:
    """Means over the steady window, and notes on what they leave out."""
    if facts.window is None:
        return Breakdown(), ()
    return exact(facts, facts.window) or (estimated(facts, facts.window), ())


@once
def in_server(facts: Facts) -> float | None:
    """Mean number of requests in the accept queue, in the workers and in the app (Little 1961).
    None where one of these was not seen."""
    found, _ = breakdown(facts)
    known = (found.accept_queue_s, found.in_worker_s, found.service_s)
    spent_s = [part for part in known if part is not None]
    return sum(spent_s) * facts.rps if len(spent_s) == len(known) else None
