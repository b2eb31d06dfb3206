"""Failures are not work: what failed and why, and what is known of the successes alone.

Shedding is a refusal under load: 503 or 429, of a server that answers lone requests (or there would
be no cell). Where the load tool does not tell the status, wrong answers count as shed where as many
requests were in the app for less than half as long as the shortest lone one; else they are failures
of another kind. Spans have no status: only a tool that names its requests tells which of them are
successes.
"""

from collections import Counter
from collections.abc import Sequence

from workerlab.analysis.facts import Facts, once
from workerlab.analysis.samples import NS, durations_s
from workerlab.analysis.slots import overhead_s
from workerlab.finding import Finding
from workerlab.model import Span, Summary
from workerlab.numbers.samples import summarise

REFUSED = frozenset({429, 503})
MOSTLY = 0.99  # of the answers are successes: a few others change no mean
QUICK = 0.5  # of the shortest lone request's time in the app
ALIKE = 0.8  # of the wrong answers: so many of them must be
SEPARATES = "fast"  # a load tool that times each request


@once
def success_response(facts: Facts) -> Summary:
    """Response times of successes, seconds. All unknown where the load tool mixes them with those
    of failures."""
    if timings := facts.measurement.timings:
        ends_s = (timing.end_s for timing in timings if timing.cause is None)
        return Summary(*summarise(end_s for end_s in ends_s if end_s is not None))
    return Summary() if _mixed(facts) else facts.measurement.response


def _mixed(facts: Facts) -> bool:
    """Whether the tool's response times hold others than those of successes."""
    return facts.outcome.wrong > 0 or facts.measurement.requests != facts.outcome.answered


class FailuresInTimes(Finding):
    """no response times: {tool} mixes those of successes with those of
    {requests:# failed request}; --tool {other} times each request"""

    tool: str
    requests: int
    other: str


def mixed_notes(facts: Facts) -> tuple[Finding, ...]:
    if facts.measurement.timings or not _mixed(facts):
        return ()
    failed = facts.outcome.wrong + abs(facts.measurement.requests - facts.outcome.answered)
    return (FailuresInTimes(facts.tool, requests=failed, other=SEPARATES),)


@once
def success_spans(facts: Facts) -> Sequence[Span] | None:
    """Those of successes, by start; None where nobody knows which they are."""
    if not facts.outcome.failed:
        return facts.finished
    timings = facts.measurement.timings
    good = {timing.request_id for timing in timings if timing.cause is None} - {None}
    if not good or any(span.request_id is None for span in facts.finished):
        return None
    return tuple(span for span in facts.finished if span.request_id in good)


@once
def success_service(facts: Facts) -> Summary:
    """Times in the app of successes, seconds. All unknown where more than a few others are among
    them and nobody knows which."""
    spans = success_spans(facts)
    if spans is None and facts.outcome.success >= MOSTLY:
        spans = facts.finished
    return Summary(*summarise(durations_s(spans or ())))


# --- what failed --------------------------------------------------------------------------------


def shed(facts: Facts) -> int:
    """Requests that were refused."""
    return refused(facts).total() or _quickly_wrong(facts)


def shed_share(facts: Facts) -> float:
    """Of the requests, those that were refused; 0 to 1."""
    return min(1.0, shed(facts) / ended(facts))


def failed_share(facts: Facts) -> float:
    return min(1.0, facts.outcome.failed / ended(facts))


def ended(facts: Facts) -> int:
    """Requests whose outcome the client knows; at least 1."""
    return max(1, facts.outcome.answered + facts.outcome.unanswered)


def wrong_statuses(facts: Facts) -> Counter[int]:
    """Answers that were no success, by their status."""
    timings = facts.measurement.timings
    return Counter(
        timing.status for timing in timings if timing.cause is not None and timing.status
    )


@once
def refused(facts: Facts) -> Counter[str]:
    """Refusals by status, where that is known."""
    counts = wrong_statuses(facts)
    return Counter({str(status): counts[status] for status in sorted(REFUSED) if counts[status]})


def _quickly_wrong(facts: Facts) -> int:
    """Wrong answers without a status that took hardly any time in the app; 0 where they did."""
    wrong = facts.outcome.wrong
    if facts.measurement.timings or not wrong or not facts.record.lone_s:
        return 0
    alone_ns = (min(facts.record.lone_s) - overhead_s(facts)) * NS
    quick = sum((span.end_ns or 0) - span.start_ns < QUICK * alone_ns for span in facts.finished)
    return wrong if ALIKE * wrong <= quick <= wrong / ALIKE else 0
