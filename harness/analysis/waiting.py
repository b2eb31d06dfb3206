"""Waiting: the part of the response time in which no slot served the request. W = R - S.

The mean is exact from two means over the same requests: the client's responses and the workers'
spans, the lone first one in both. It is not given where some requests are in one and not in the
other. A tool whose mean contains synthetic samples (wrk) has no mean to subtract from; there the
response time law (Denning & Buzen 1978), R = N/X in a closed loop without think time, takes its
place.

Percentiles need each request's own span. Spans bear no request id and the tool's clock has an
unknown offset, so which span belongs to which timing is not forced: ends that are close together
swap. But where services hardly differ it does not matter. With d the largest |S - mean S|, every
R - mean S is within d of its true W, and so is every percentile of them. They are given where
every request is timed and d is at most 5 % of the mean response; otherwise None.
"""

from __future__ import annotations

from harness.analysis.facts import Facts
from harness.analysis.spans import durations_s
from harness.model import Summary
from harness.numbers.quantiles import summarise
from harness.numbers.words import plural, seconds

RESOLUTION_S = 0.001  # ab's whole milliseconds, rounded
EVEN = 0.05  # how far a service may be from the mean, as a fraction of the mean response


def waiting(facts: Facts) -> tuple[Summary, tuple[str, ...]]:
    """Seconds a request waited, and notes on what is missing from the answer and why."""
    response_s, how = _mean_response(facts)
    served = facts.service.mean
    if response_s is None or served is None:
        return Summary(), (how,) if how else ()
    mean = response_s - served
    if mean < -RESOLUTION_S:
        note = (
            f"no waiting time: the mean response of {seconds(response_s)} is shorter than"
            f" the mean service of {seconds(served)}"
        )
        return Summary(), (note,)
    notes = (how,) if how else ()
    each = _each(facts, served, response_s)
    if each is None:
        return Summary(mean=max(0.0, mean)), notes
    return summarise(each), notes


def _mean_response(facts: Facts) -> tuple[float | None, str]:
    """The mean response in seconds, and a note where it is missing or not the tool's own."""
    said = facts.said
    if not said.exact_mean:
        if facts.steady.rps:
            return facts.concurrency / facts.steady.rps, (
                f"waiting follows from Little's law: {facts.tool} gives no exact mean response"
            )
        return None, ""
    if (never := facts.said.requests - facts.outcome.answered) > 0:
        return None, (
            f"no waiting time: {facts.tool}'s response times hold {plural(never, 'request')} that"
            " never reached a worker"
        )
    if facts.evidence.counted and len(facts.finished) != facts.outcome.answered:
        return None, "no waiting time: some requests reached a worker and were never answered"
    return said.response.mean, ""


def _each(facts: Facts, served: float, response_s: float) -> list[float] | None:
    """Every request's waiting in seconds, or None where spans and timings cannot be paired."""
    timings = [timing for timing in facts.said.timings if timing.end_s is not None]
    services = durations_s(facts.finished)
    if not timings or len(timings) != facts.outcome.answered:
        return None
    if max(abs(service - served) for service in services) > EVEN * response_s:
        return None
    return [max(0.0, (timing.end_s or 0.0) - served) for timing in timings]
