"""Failed requests, whether refused under load or failed otherwise; response and service times of
successes alone.

Shedding is a refusal under load: a 503 or 429 from a server that answers lone requests (otherwise
there would be no cell). If the load tool does not report the status, wrong responses count as shed
if about as many requests spent less than half as long in the app as the shortest lone one; else
they are failures of another kind. Spans have no status: the successful ones are known only if the
load tool sends request ids.

Failures are reported in addition, before most diagnoses if they are at least 5 % of the requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from workerlab.analysis.diagnosis.base import Diagnosis
from workerlab.analysis.facts import ANSWERED, NEVER_ACCEPTED, Facts, once
from workerlab.analysis.handshakes import handshakes
from workerlab.analysis.samples import NS, durations_s
from workerlab.analysis.slots import overhead_s
from workerlab.finding import Finding, Findings
from workerlab.model.evidence import Summary
from workerlab.model.result import Result
from workerlab.numbers.samples import summarise

REFUSING_STATUSES = frozenset({429, 503})
MOSTLY_SUCCESSES = 0.99  # of the responses; at or above it, failures hardly change a mean
QUICK_SHARE = 0.5  # of the shortest lone request's time in the app
MIN_COUNT_RATIO = 0.8  # smaller / larger of two counts: quick requests and wrong responses
TIMING_TOOL = "fast"  # times each request
MANY_FAILED_SHARE = 0.05  # of the requests; at or above it, failures rank before most diagnoses


def success_times_s(facts: Facts) -> list[float]:
    """The response time of each success that the client timed."""
    return [
        timing.end_s
        for timing in facts.measurement.timings
        if timing.cause is None and timing.end_s is not None
    ]


@once
def success_response(facts: Facts) -> Summary:
    """Response times of successes in seconds; unknown if the load tool mixes them with those of
    failures."""
    if facts.measurement.timings:
        return Summary(*summarise(success_times_s(facts)))
    return Summary() if _failures_in_times(facts) else facts.measurement.response


def _failures_in_times(facts: Facts) -> int:
    """The number of failed requests in the tool's response times."""
    return facts.outcome.wrong + abs(facts.measurement.requests - facts.outcome.answered)


class FailuresInTimes(Finding):
    """no response times: {tool} mixes those of successes with those of
    {requests:# failed request}; --tool {other} times each request"""

    tool: str
    requests: int
    other: str


def mixed_notes(facts: Facts) -> Findings:
    failed = _failures_in_times(facts)
    if facts.measurement.timings or not failed:
        return ()
    return (FailuresInTimes(facts.tool, requests=failed, other=TIMING_TOOL),)


@once
def success_service(facts: Facts) -> Summary:
    """Times of successes in the app, in seconds; unknown if the spans do not show which requests
    succeeded, and more than a few failed."""
    spans = facts.success_spans
    if spans is None and facts.outcome.success_share >= MOSTLY_SUCCESSES:
        spans = facts.finished
    return Summary(*summarise(durations_s(spans or ())))


# --- what failed --------------------------------------------------------------------------------


def shed_count(facts: Facts) -> int:
    """The number of refused requests: by status or, if that is unknown, all wrong responses if they
    spent hardly any time in the app."""
    wrong, lone_s = facts.outcome.wrong, facts.record.lone_s
    if facts.measurement.timings or not wrong or not lone_s:
        return refusals_by_status(facts).total()
    max_ns = QUICK_SHARE * (min(lone_s) - overhead_s(facts)) * NS
    quick = sum((span.end_ns or 0) - span.start_ns < max_ns for span in facts.finished)
    return wrong if MIN_COUNT_RATIO * wrong <= quick <= wrong / MIN_COUNT_RATIO else 0


def shed_share(facts: Facts) -> float:
    """The share of requests that were refused, 0 to 1."""
    return min(1.0, shed_count(facts) / requests_ended(facts))


def failed_share(facts: Facts) -> float:
    return min(1.0, facts.outcome.failed / requests_ended(facts))


def requests_ended(facts: Facts) -> int:
    """The number of requests with a known outcome, at least 1."""
    return max(1, facts.outcome.answered + facts.outcome.unanswered)


def wrong_statuses(facts: Facts) -> Counter[int]:
    """Responses that were not successes, by status."""
    timings = facts.measurement.timings
    return Counter(
        timing.status for timing in timings if timing.cause is not None and timing.status
    )


@once
def refusals_by_status(facts: Facts) -> Counter[str]:
    """Refusals by status; only those with a known status."""
    counts = wrong_statuses(facts)
    return Counter(
        {str(status): counts[status] for status in sorted(REFUSING_STATUSES) if counts[status]}
    )


# --- as diagnoses ---------------------------------------------------------------------------------


class Failures(Diagnosis):
    """Requests that fail."""

    rank, advice = 110, ()
    at_rate = True

    requests: int
    share: float  # of all requests


class Shedding(Failures):
    """{share:percent} of the requests were refused[[ (status {statuses:list})]]
    [[ (non-2xx responses after less than half of a lone request's time in the app; {tool} does not
    report their status)]], and {successes_rps:number} requests/s succeeded"""

    below_slots = "the server refuses further requests"

    statuses: tuple[str, ...]
    tool: str | None  # None: it reports statuses
    successes_rps: float

    @classmethod
    def diagnose(cls, facts: Facts, cell: Result, *_: object) -> Shedding | None:
        if not (count := shed_count(facts)):
            return None
        statuses = tuple(refusals_by_status(facts))
        return cls(
            requests=count,
            share=shed_share(facts),
            statuses=statuses,
            tool=None if statuses else facts.tool,
            successes_rps=cell.throughput_rps,
        )


class Failing(Failures):
    """{requests:# request} failed, {share:percent} of all ({causes:counts})
    [[, with status {statuses:list}]]"""

    rank = 120
    below_slots = "failed requests are not counted"

    causes: Mapping[str, int]
    statuses: tuple[str, ...]

    @classmethod
    def diagnose(cls, facts: Facts, *_: object) -> Failing | None:
        """Excludes refusals, and failures that a full accept queue explains."""
        causes = Counter(facts.outcome.errors)
        if handshakes(facts).dropped:
            del causes[NEVER_ACCEPTED]
            causes["non_2xx"] -= _killed_worker_errors(facts, causes["non_2xx"])
        if not (causes := causes - _refusals_by_cause(facts, causes)):
            return None
        return cls(
            requests=causes.total(),
            share=min(1.0, causes.total() / requests_ended(facts)),
            causes=dict(sorted(causes.items())),
            statuses=tuple(map(str, sorted(wrong_statuses(facts).keys() - REFUSING_STATUSES))),
        )


def _refusals_by_cause(facts: Facts, causes: Counter[str]) -> Counter[str]:
    """The refused requests by cause; if the load tool reports no status, wrong responses of any of
    the `causes`."""
    if timings := facts.measurement.timings:
        refused = (timing for timing in timings if timing.status in REFUSING_STATUSES)
        return Counter(timing.cause for timing in refused if timing.cause is not None)
    remaining, refusals = shed_count(facts), Counter[str]()
    for cause in sorted(ANSWERED):  # the order of a set differs from process to process
        refusals[cause] = min(remaining, causes[cause])
        remaining -= refusals[cause]
    return refusals


def _killed_worker_errors(facts: Facts, non_2xx: int) -> int:
    """The number of error responses that the server itself sent when it killed a worker that waited
    for a request; 0 unless many requests never reached the app and the tool (ab) does not report
    which response belongs to which request."""
    measurement = facts.measurement
    never_in_app = 0 if measurement.timings else measurement.requests - len(facts.spans)
    return non_2xx if non_2xx <= 2 * never_in_app else 0
