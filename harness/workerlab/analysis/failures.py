"""Failed requests and their causes, and the response and service times of successes alone.

Shedding is a refusal under load: a 503 or 429 from a server that answers lone requests (otherwise
there would be no cell). If the load tool does not report the status, wrong answers count as shed if
about as many requests were in the app for less than half as long as the shortest lone one; else
they are failures of another kind. Spans have no status: which of them are successes is known only
if the load tool sends request ids.
"""

from collections import Counter
from collections.abc import Sequence

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, durations_s
from workerlab.analysis.slots import overhead_s
from workerlab.finding import Finding
from workerlab.model import Span, Summary
from workerlab.numbers.samples import summarise

REFUSING_STATUSES = frozenset({429, 503})
MOSTLY_SUCCESSES = 0.99  # share: with more, failures hardly change a mean
QUICK_SHARE = 0.5  # of the shortest lone request's time in the app
MIN_COUNT_RATIO = 0.8  # ratio of quick requests to wrong answers, either way, at least
SEPARATING_TOOL = "fast"  # it times each request


@once
def success_response(facts: Facts) -> Summary:
    """Response times of successes, seconds; unknown if the load tool mixes them with those of
    failures."""
    if timings := facts.measurement.timings:
        ends_s = (timing.end_s for timing in timings if timing.cause is None)
        return Summary(*summarise(end_s for end_s in ends_s if end_s is not None))
    return Summary() if _failures_in_times(facts) else facts.measurement.response


def _failures_in_times(facts: Facts) -> int:
    """How many failed requests the tool's response times include."""
    return facts.outcome.wrong + abs(facts.measurement.requests - facts.outcome.answered)


class FailuresInTimes(Finding):
    """no response times: {tool} mixes those of successes with those of
    {requests:# failed request}; --tool {other} times each request"""

    tool: str
    requests: int
    other: str


def mixed_notes(facts: Facts) -> tuple[Finding, ...]:
    failed = _failures_in_times(facts)
    if facts.measurement.timings or not failed:
        return ()
    return (FailuresInTimes(facts.tool, requests=failed, other=SEPARATING_TOOL),)


@once
def success_spans(facts: Facts) -> Sequence[Span] | None:
    """The spans of successes, by start; None if it is unknown which they are."""
    if not facts.outcome.failed:
        return facts.finished
    timings = facts.measurement.timings
    successes = {timing.request_id for timing in timings if timing.cause is None} - {None}
    if not successes or any(span.request_id is None for span in facts.finished):
        return None
    return tuple(span for span in facts.finished if span.request_id in successes)


@once
def success_service(facts: Facts) -> Summary:
    """Times in the app of successes, seconds; unknown if it is not known which they are, and there
    are more than a few failures."""
    spans = success_spans(facts)
    if spans is None and facts.outcome.success_share >= MOSTLY_SUCCESSES:
        spans = facts.finished
    return Summary(*summarise(durations_s(spans or ())))


# --- what failed --------------------------------------------------------------------------------


def shed_count(facts: Facts) -> int:
    """The number of refused requests."""
    return refusals_by_status(facts).total() or _quickly_wrong(facts)


def shed_share(facts: Facts) -> float:
    """The share of requests that were refused, 0 to 1."""
    return min(1.0, shed_count(facts) / requests_ended(facts))


def failed_share(facts: Facts) -> float:
    return min(1.0, facts.outcome.failed / requests_ended(facts))


def requests_ended(facts: Facts) -> int:
    """The number of requests whose outcome the client knows, at least 1."""
    return max(1, facts.outcome.answered + facts.outcome.unanswered)


def wrong_statuses(facts: Facts) -> Counter[int]:
    """Answers that were not successes, by status."""
    timings = facts.measurement.timings
    return Counter(
        timing.status for timing in timings if timing.cause is not None and timing.status
    )


@once
def refusals_by_status(facts: Facts) -> Counter[str]:
    """Refusals by status, where it is known."""
    counts = wrong_statuses(facts)
    return Counter(
        {str(status): counts[status] for status in sorted(REFUSING_STATUSES) if counts[status]}
    )


def _quickly_wrong(facts: Facts) -> int:
    """The number of wrong answers without a status if they hardly spent time in the app; else 0."""
    wrong = facts.outcome.wrong
    if facts.measurement.timings or not wrong or not facts.record.lone_s:
        return 0
    alone_ns = (min(facts.record.lone_s) - overhead_s(facts)) * NS
    quick = sum(
        (span.end_ns or 0) - span.start_ns < QUICK_SHARE * alone_ns for span in facts.finished
    )
    return wrong if MIN_COUNT_RATIO * wrong <= quick <= wrong / MIN_COUNT_RATIO else 0
