"""Waiting: the part of the response time in which no slot served the request. W = R - S.

The mean is exact from two means over the same requests: the client's responses and the workers'
spans, the lone first one in both; of successes alone, as far as it is known which these are. It is
not given where some requests are in one and not in the other. A tool whose mean contains synthetic
samples (wrk) has no mean to subtract from; there the response time law (Denning & Buzen 1978),
R = N/X in a closed loop without think time, takes its place.

Percentiles need each request's own span. Not all spans carry a request id, and the tool's clock has
an unknown offset, so which span belongs to which timing is not forced: ends that are close together
swap. But where services hardly differ it does not matter. With d the largest |S - mean S|, every
R - mean S is within d of its true W, and so is every percentile of them. They are given where
every request is timed and d is at most 5 % of the mean response; otherwise None.
"""

from workerlab.analysis.facts import Facts
from workerlab.analysis.failures import success_response, success_service, success_spans
from workerlab.analysis.samples import durations_s
from workerlab.finding import Finding, Note
from workerlab.model import Summary
from workerlab.numbers.quantiles import summarise

RESOLUTION_S = 0.001  # ab's whole milliseconds, rounded
EVEN = 0.05  # how far a service may be from the mean, as a fraction of the mean response

UNANSWERED = "no waiting time: some requests reached a worker and were never answered"


class WaitingByLittle(Finding):
    """waiting follows from Little's law: {tool} gives no exact mean response"""

    tool: str


class WaitingNegative(Finding):
    """no waiting time: the mean response of {response_s:duration} is shorter than the mean service
    of {service_s:duration}"""

    response_s: float
    service_s: float


class TimesOfNeverAccepted(Finding):
    """no waiting time: {tool}'s response times hold {requests:# request} that never reached a
    worker"""

    tool: str
    requests: int


def waiting(facts: Facts) -> tuple[Summary, tuple[Finding, ...]]:
    """Seconds a request waited, and notes on what is missing from the answer and why."""
    response_s, notes = _mean_response(facts)
    service_s, spans = success_service(facts).mean, success_spans(facts)
    if response_s is None or service_s is None:
        return Summary(), notes
    mean_s = response_s - service_s
    if mean_s < -RESOLUTION_S:
        return Summary(), (WaitingNegative(response_s, service_s),)
    good = [one.end_s for one in facts.measurement.timings if one.cause is None]
    ends_s = [end_s for end_s in good if end_s is not None]
    furthest_s = max((abs(one - service_s) for one in durations_s(spans or ())), default=0.0)
    successes = facts.outcome.answered - facts.outcome.wrong
    if not ends_s or len(ends_s) != successes or furthest_s > EVEN * response_s:
        return Summary(mean=max(0.0, mean_s)), notes
    return Summary(*summarise(max(0.0, end_s - service_s) for end_s in ends_s)), notes


def _mean_response(facts: Facts) -> tuple[float | None, tuple[Finding, ...]]:
    """The mean response in seconds, and a note where it is missing or not the tool's own."""
    measured = facts.measurement
    if not measured.exact_mean:
        if not facts.rps:
            return None, ()
        return facts.connections / facts.rps, (WaitingByLittle(facts.tool),)
    if (never := measured.requests - facts.outcome.answered) > 0:
        return None, (TimesOfNeverAccepted(facts.tool, never),)
    if facts.data.counted and len(facts.finished) != facts.outcome.answered:
        return None, (Note(UNANSWERED),)
    return success_response(facts).mean, ()
