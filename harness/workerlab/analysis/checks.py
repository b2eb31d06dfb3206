"""Checks whether two sources contradict each other: then the cell is invalid.

Each check takes the facts of one trial and returns the contradiction, with both numbers, or None.
To add a check, write its Finding and function here, and list the function in CHECKS.

`littles_law` checks Little's law (Little 1961) in operational form (Denning & Buzen 1978): over a
time T the response times add up to the integral of the requests in flight. At most N are in flight,
so that sum is at most N*T. A closed loop keeps N in flight except during the lone first request
(r1) and while it drains, which takes no longer than the longest response Rmax; so the sum is at
least r1 + N*(T - r1 - Rmax). If it is less, the tool did not keep its connections busy. The check
needs a mean of real requests, and a response to every request. The lower limit applies only to
loads of a fixed number of requests, because a load of fixed duration leaves its slowest requests
unanswered. It does not apply if the kernel dropped handshakes: a client that retries is busy, but
no response contains that time.

A tool or a worker that waits for a core is late at both ends of the load, so `rates` adds to its
tolerance the time that the tool and, on average, one worker waited. `littles_law` adds the tool's
wait, during which a connection sends no further request although it has its response. Both add the
time in which the machine was paused (`stall`): at either end, only one source may contain it.

A tool that sends at a rate waits for all its responses, so its own requests/s cover a longer time
than the cell's throughput and cannot check it: in an overload they follow from the number of
requests alone. At a rate, its responses in the steady part are counted instead.

Not checked: steady throughput * mean response <= N. The two cover different requests (the slow ones
of an uneven server end after the steady part), and correct servers exceed N by 10 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from workerlab.analysis import stall
from workerlab.analysis.facts import Facts
from workerlab.analysis.samples import NS, Window, waited_for_core_s
from workerlab.finding import Finding

RELATIVE_TOLERANCE = 0.05  # of durations and counts
CLOCK_TOLERANCE_S = 0.05  # tool and worker do not start and end at the same instants
ROUNDING_S = 0.0005  # ab prints its mean in whole milliseconds
MAX_IN_FLIGHT_RATIO = 1.02  # times the connections
MIN_BUSY_SHARE = 0.90  # of the lower limit in `littles_law`


class SpanMapsFull(Finding):
    """more requests than the span maps hold (worker {pids:, }): use fewer rounds or a shorter
    load"""

    pids: tuple[int, ...]


def map_full(facts: Facts) -> SpanMapsFull | None:
    """A finding if the probe's maps were full, so requests are missing from the spans."""
    full = facts.data.spans.full
    return SpanMapsFull(full) if full else None


class NothingAnswered(Finding):
    """no request was answered[[ ({causes:counts})]]"""

    causes: Mapping[str, int]


class NoSuccess(Finding):
    """none of the {answered:# response} had the expected status {expected}[[ ({causes:counts})]]"""

    answered: int
    expected: int
    causes: Mapping[str, int]


def success(facts: Facts) -> NothingAnswered | NoSuccess | None:
    """A finding if no request succeeded: then nothing can be concluded about the app."""
    outcome = facts.outcome
    if outcome.answered > outcome.wrong:
        return None
    causes = dict(sorted(outcome.errors.items()))
    if outcome.answered == 0:
        return NothingAnswered(causes)
    return NoSuccess(outcome.answered, facts.data.expect_status, causes)


class CountsDiffer(Finding):
    """{tool} counted {answered:# response}, but the workers {seen:# request}: {differ}
    {unmatched}"""

    tool: str
    answered: int
    seen: int
    differ: int
    unmatched: Literal["never reached the app", "unknown to the client"]


def counts(facts: Facts) -> CountsDiffer | None:
    """A finding if an answered request has no span, or too many spans have no answered request. An
    unanswered request may have a span unless it was never accepted. A tool that runs for a fixed
    time leaves up to one request per connection unanswered when it stops."""
    spans, answered = len(facts.spans), facts.outcome.answered
    max_unanswered_spans = facts.outcome.unanswered - facts.outcome.never_accepted
    max_unanswered_spans += 0 if facts.data.fixed_count else facts.connections
    if 0 <= spans - answered <= max_unanswered_spans:
        return None
    return CountsDiffer(
        tool=facts.tool,
        answered=answered,
        seen=spans,
        differ=abs(spans - answered),
        unmatched="never reached the app" if spans < answered else "unknown to the client",
    )


class RateUnlikeWorkers(Finding):
    """{tool} reports {rps:number} requests/s[[ ({tool_s:duration} in total)]], but the workers took
    {workers_s:duration} for the same requests"""

    tool: str
    rps: float
    tool_s: float | None
    workers_s: float


class TimedRateUnlikeWorkers(Finding):
    """{tool} reports {rps:number} requests/s, but the workers completed {completed} requests in its
    {duration_s:duration}"""

    tool: str
    rps: float
    completed: int
    duration_s: float


class SteadyAnswersUnlikeWorkers(Finding):
    """{tool} got {answers:# response} in the steady {length_s:duration}, but the workers completed
    {completed} requests"""

    tool: str
    answers: int
    length_s: float
    completed: int


def rates(facts: Facts) -> Finding | None:
    """A finding if the tool's own requests/s do not follow from the spans. Some tools count
    responses (ab), others successes (fast); it is enough if one of the two agrees."""
    tool_rps = facts.measurement.rps
    if tool_rps is None or not facts.finished:
        return None
    if facts.open_model and facts.measurement.timings and facts.measurement.origin_ns is not None:
        return _steady_rate(facts)
    check = _counted_rate if facts.data.fixed_count else _timed_rate
    answered = facts.measurement.requests  # by the tool: its rate includes those never accepted
    contradiction = check(facts, tool_rps, answered)
    if contradiction is None or check(facts, tool_rps, answered - facts.outcome.wrong) is None:
        return None
    return contradiction


def _max_delay_s(facts: Facts) -> float:
    """The maximum delay of the load tool relative to the workers."""
    return waited_for_core_s(facts.observations, "tool") + sum(stall.pause_lengths_s(facts))


def _counted_rate(facts: Facts, tool_rps: float, responses: int) -> RateUnlikeWorkers | None:
    """Compares the time that the tool's rate implies for `responses` with that of the spans."""
    last_ns = max(span.end_ns or 0 for span in facts.finished)
    spans_s = (last_ns - facts.spans[0].start_ns) / NS
    tool_s = responses / tool_rps if tool_rps > 0 else float("inf")
    delay_s = _max_delay_s(facts) + waited_for_core_s(facts.observations, "server") / facts.workers
    slack_s = RELATIVE_TOLERANCE * spans_s + CLOCK_TOLERANCE_S + delay_s
    # Unanswered requests take the client's time, not the workers'.
    may_be_longer = facts.outcome.unanswered > 0
    if tool_s >= spans_s - slack_s and (may_be_longer or tool_s <= spans_s + slack_s):
        return None
    return RateUnlikeWorkers(
        tool=facts.tool,
        rps=tool_rps,
        tool_s=tool_s if tool_rps > 0 else None,
        workers_s=spans_s,
    )


def _timed_rate(facts: Facts, tool_rps: float, responses: int) -> TimedRateUnlikeWorkers | None:
    """Compares the tool's rate, which counts `responses`, with the requests that the workers
    completed in the tool's time. Up to N responses at the edges may differ."""
    duration_s = facts.measurement.duration_s
    until_ns = facts.spans[0].start_ns + duration_s * NS
    completed = sum(1 for span in facts.finished if (span.end_ns or 0) <= until_ns)
    share = responses / facts.outcome.answered if facts.outcome.answered else 1.0
    expected = tool_rps * duration_s
    if abs(completed * share - expected) <= max(RELATIVE_TOLERANCE * completed, facts.connections):
        return None
    return TimedRateUnlikeWorkers(
        tool=facts.tool, rps=tool_rps, completed=completed, duration_s=duration_s
    )


def _steady_rate(facts: Facts) -> SteadyAnswersUnlikeWorkers | None:
    """At a rate, compares the cell's throughput with the responses that the client received in the
    same time. A request served at either end, or never answered, may count in only one of the two.
    Waiting for a core is not added to the tolerance because it is the same at both ends: with
    workers that waited for 6 of 10 s, the two differ by 0.3 %."""
    if (steady := facts.window) is None:
        return None
    ends_ns = (end_ns for _, _, end_ns in facts.timed_requests() if end_ns is not None)
    responses = sum(steady.opens_ns < end_ns <= steady.closes_ns for end_ns in ends_ns)
    edges_s = CLOCK_TOLERANCE_S + (facts.tail_ns or 0) / NS
    slack = (
        max(RELATIVE_TOLERANCE * steady.completed, 1.0)
        + steady.rps * edges_s
        + facts.outcome.unanswered
    )
    if abs(steady.completed - responses) <= slack:
        return None
    return SteadyAnswersUnlikeWorkers(
        tool=facts.tool,
        answers=responses,
        length_s=steady.length_s,
        completed=round(steady.completed),
    )


class ResponsesLeftOut(Finding):
    """{responses:# response} came after {tool}'s timeout, and its response times exclude them: use
    fewer connections"""

    responses: int
    tool: str


def late_responses(facts: Facts) -> ResponsesLeftOut | None:
    """A finding if synthetic latencies (wrk) exclude responses after the tool's timeout, which the
    tool counts: the distribution then looks better than it is."""
    count = facts.outcome.errors.get("timeout", 0)
    if facts.measurement.exact_mean or not count:
        return None
    return ResponsesLeftOut(count, facts.tool)


class TooManyInFlight(Finding):
    """{tool} reports {mean_s:duration} per response, which implies {in_flight:number} requests in
    flight on {connections:# connection}: impossible"""

    tool: str
    connections: int
    in_flight: float
    mean_s: float


class ConnectionsIdle(Finding):
    """{tool} did not keep {connections:# connection} busy: its responses add up to
    {in_flight:number} requests in flight"""

    tool: str
    connections: int
    in_flight: float


def littles_law(facts: Facts) -> TooManyInFlight | ConnectionsIdle | None:
    """A finding if a limit by Little's law is exceeded. Neither limit applies at a rate: requests
    that are due while no connection is free are timed as well, and connections may stay idle."""
    measurement, n = facts.measurement, facts.connections
    mean_s, total_s = measurement.response.mean, measurement.duration_s
    if mean_s is None or not measurement.exact_mean or total_s <= 0:
        return None
    if facts.open_model or facts.outcome.unanswered:
        return None
    responses = facts.outcome.answered
    in_flight = mean_s * responses / total_s
    if (mean_s - ROUNDING_S) * responses > MAX_IN_FLIGHT_RATIO * n * total_s:
        return TooManyInFlight(tool=facts.tool, connections=n, in_flight=in_flight, mean_s=mean_s)
    alone_s = (measurement.lone_s or 0.0) if facts.data.lone_first else 0.0
    longest_s = measurement.response.max
    if longest_s is None or not facts.data.fixed_count or facts.overflowed:
        return None
    delay_s = CLOCK_TOLERANCE_S + _max_delay_s(facts)
    floor_s = alone_s + n * (total_s - alone_s - longest_s - delay_s)
    if (mean_s + ROUNDING_S) * responses >= MIN_BUSY_SHARE * floor_s:
        return None
    return ConnectionsIdle(tool=facts.tool, connections=n, in_flight=in_flight)


class BodyMismatch(Finding, kw_only=True):
    """response body mismatch: [[{differ} of {answered:# response} differed from the stored page]]
    [[its SHA-256 begins with {sha256}, that of the stored page with {expected}]]"""

    differ: int | None = None
    answered: int | None = None
    sha256: str | None = None
    expected: str | None = None


def body(facts: Facts) -> BodyMismatch | None:
    """A finding if the only correct body is known and a response had another one. Not checked for
    tools that do not compare bodies."""
    expected, actual = facts.data.body_sha256, facts.measurement.body_sha256
    if expected is None:
        return None
    if differ := facts.outcome.errors.get("body", 0):
        return BodyMismatch(differ=differ, answered=facts.outcome.answered)
    if actual in (None, expected):
        return None
    return BodyMismatch(sha256=actual[:8], expected=expected[:8])


CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    map_full,
    success,
    counts,
    body,
    rates,
    late_responses,
    littles_law,
)


def contradictions(facts: Facts) -> list[Finding]:
    """The contradictions in a trial, or why it has no steady part; empty if it is valid."""
    reasons = [reason for check in CHECKS if (reason := check(facts)) is not None]
    if not reasons and not isinstance(facts.steady, Window):
        reasons.append(facts.steady)
    return reasons
