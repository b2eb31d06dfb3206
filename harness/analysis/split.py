"""Where a response time goes: followed request by request where possible, else estimated."""

from __future__ import annotations

from harness.analysis.facts import Facts
from harness.analysis.split_estimated import estimated_split
from harness.analysis.split_exact import exact_split
from harness.analysis.window import window
from harness.model import Split


def split(facts: Facts) -> tuple[Split, tuple[str, ...]]:
    """Means over the steady window, and notes on what they leave out."""
    steady = window(facts.steady)
    if steady is None:
        return Split(), ()
    return exact_split(facts, steady) or (estimated_split(facts, steady), ())
