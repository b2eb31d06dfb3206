"""Where a response time goes: followed request by request where possible, else estimated."""

from __future__ import annotations

from harness.analysis.breakdown_estimated import estimated_split
from harness.analysis.breakdown_exact import exact_split
from harness.analysis.facts import Facts
from harness.analysis.window import window
from harness.model import Breakdown


def split(facts: Facts) -> tuple[Breakdown, tuple[str, ...]]:
    """Means over the steady window, and notes on what they leave out."""
    steady = window(facts.steady)
    if steady is None:
        return Breakdown(), ()
    return exact_split(facts, steady) or (estimated_split(facts, steady), ())
