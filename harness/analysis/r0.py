"""R0, the response time of a lone request, and the bound that follows from it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from harness.analysis.facts import Facts, TrialData
from harness.model import Finding, Server

CONTRADICTED = 1.05  # how much longer than the load proves a lone response may seem


def lone_responses(trials: Iterable[TrialData]) -> Mapping[Server, float | None]:
    """R0 of each server: the median response of lone requests over all its trials, in seconds.

    Those of the warm-up and, where the tool tells it, its own lone first one. A lone request
    holds a slot for as long as the server really does, longer than the app runs.
    """
    values: dict[Server, list[float]] = defaultdict(list)
    for trial in trials:
        found = values[trial.cell.server]
        if trial.record is not None and trial.record.fault is None:
            own = trial.measurement.lone_s if trial.measurement else None
            found += [one for one in (*trial.record.lone_s, own or 0.0) if one > 0]
    return {server: median(found) if found else None for server, found in values.items()}


def under_load(
    lone_s: float | None, closed: Iterable[Facts]
) -> tuple[float | None, tuple[Finding, ...]]:
    """R0 in the light of the valid trials of a closed loop, and what there is to note of it.

    X <= min(N, C)/R0, so R0 <= min(N, C)/X: lone requests that took longer were slow for a reason
    of their own.
    """
    most_s = min((facts.parallel / facts.rps for facts in closed), default=None)
    if lone_s is None or most_s is None or lone_s <= CONTRADICTED * most_s:
        return lone_s, ()
    return most_s, (Finding("note.slower_alone", {"lone_s": lone_s, "most_s": most_s}),)
