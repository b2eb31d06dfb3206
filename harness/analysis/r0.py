"""R0, the response time of a lone request, and the bound that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from harness.analysis.evidence import TrialData
from harness.analysis.facts import Facts
from harness.numbers.words import seconds


def lone_s(trials: Iterable[TrialData]) -> float | None:
    """R0: the median response of lone requests over all trials of one server, in seconds.

    The readiness requests and, where the tool tells it, its own lone first one. A lone request
    holds a slot for as long as the server really does, longer than the app runs.
    """
    values: list[float] = []
    for trial in trials:
        if trial.record is None or trial.record.fault is not None:
            continue
        values.extend(trial.record.lone_s)
        if trial.measurement is not None and trial.measurement.lone_s is not None:
            values.append(trial.measurement.lone_s)
    values = [value for value in values if value > 0]
    return median(values) if values else None


def at_most(valid: Iterable[Facts]) -> float | None:
    """The longest R0 that the load allows, in seconds: X <= min(N, C)/R0, so R0 <= min(N, C)/X."""
    limits = [
        parallel(facts.concurrency, facts.evidence.slots_configured) / facts.steady.rps
        for facts in valid
        if facts.steady.rps
    ]
    return min(limits, default=None)


def slower_alone(lone: float, proven: float) -> str:
    return (
        f"lone requests took {seconds(lone)}, slower than under load, where no request holds a slot"
        f" for more than {seconds(proven)} on average: bound and knee are reckoned from the latter"
    )


def parallel(concurrency: int, slots: int | None) -> int:
    """Requests that can be served at once: min(N, slots)."""
    return concurrency if slots is None else min(concurrency, slots)
