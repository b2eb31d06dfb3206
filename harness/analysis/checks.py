"""Where two sources speak of the same thing, they must agree, or the cell is not believed.

Each witness takes the facts of one trial and returns a sentence with both numbers, or None.

Little's law (Little 1961) in the form of operational analysis (Denning & Buzen 1978): in a time T
the response times add up to the integral of the requests in flight. No more than N are, so their
sum is at most N*T. A closed loop keeps N in flight but while the lone first request (r1) is alone
and while it drains, which lasts no longer than the longest response Rmax: the sum is at least
r1 + N*(T - r1 - Rmax). Less means that the tool did not keep its connections busy. It is asked
only of tools whose mean is one of real requests and only where every request was answered; the
lower side only of tools that count, since one that runs for a time leaves its slowest unanswered.

Not asked: steady throughput * mean response <= N. These two are not about the same requests (the
slow ones of an uneven server end after the steady part), and honest servers exceed it by 10 %.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.analysis.facts import Facts
from harness.analysis.spans import NS
from harness.numbers.words import number, plural, seconds

RELATIVE = 0.05
CLOCK_S = 0.05  # start and end of tool and worker are not the same instants
ROUNDING_S = 0.0005  # ab prints its mean in whole milliseconds
OVER = 1.02
BUSY = 0.90


def map_full(facts: Facts) -> str | None:
    """The probe had no room left, so requests are missing from the spans."""
    full = facts.evidence.spans.full
    if not full:
        return None
    pids = ", ".join(map(str, full))
    return f"more requests than the span maps hold (worker {pids}): run fewer rounds, or shorter"


def success(facts: Facts) -> str | None:
    """Nothing can be said of an app that never gave the expected answer."""
    result = facts.outcome
    if result.answered > result.wrong:
        return None
    causes = ", ".join(f"{cause}: {count}" for cause, count in sorted(result.errors.items()))
    tail = f" ({causes})" if causes else ""
    if result.answered == 0:
        return f"no request was answered{tail}"
    return (
        f"none of the {plural(result.answered, 'answer')} was the expected"
        f" {facts.evidence.expect_status}{tail}"
    )


def counts(facts: Facts) -> str | None:
    """The workers must have seen every request the client got an answer to, and no other.

    A request without an answer may or may not have reached the app, unless it was never
    accepted. A tool that runs for a time leaves up to one request per connection unanswered when
    it stops.
    """
    seen, answered = len(facts.spans), facts.outcome.answered
    spare = facts.outcome.unanswered - facts.outcome.never_accepted
    spare += 0 if facts.evidence.counted else facts.concurrency
    if 0 <= seen - answered <= spare:
        return None
    reached = "never reached the app" if seen < answered else "are unknown to the client"
    return (
        f"{facts.tool} counted {plural(answered, 'answer')}, the workers"
        f" {plural(seen, 'request')}: {abs(seen - answered)} {reached}"
    )


def rates(facts: Facts) -> str | None:
    """The tool's own requests/s must follow from the spans.

    Some tools count answers (ab), others successes (python); either may be what it means.
    """
    wrong, tool_rps = facts.outcome.wrong, facts.said.rps
    if tool_rps is None or not facts.finished:
        return None
    check = _counted_rate if facts.evidence.counted else _timed_rate
    answered = facts.said.requests  # by the tool: what was never accepted is in its rate
    found = [check(facts, tool_rps, n) for n in (answered, answered - wrong)]
    return found[0] if all(found) else None


def _counted_rate(facts: Facts, tool_rps: float, counted: int) -> str | None:
    """From a tool's rate of `counted` requests follows how long it took them to be served."""
    last_ns = max(span.end_ns or 0 for span in facts.finished)
    spans_s = (last_ns - facts.spans[0].start_ns) / NS
    tool_s = counted / tool_rps if tool_rps > 0 else float("inf")
    slack_s = RELATIVE * spans_s + CLOCK_S
    # What is never answered takes the client's time, not the workers'.
    longer_is_fine = facts.outcome.unanswered > 0
    if tool_s >= spans_s - slack_s and (longer_is_fine or tool_s <= spans_s + slack_s):
        return None
    in_all = f" ({seconds(tool_s)} in all)" if tool_rps > 0 else ""
    return (
        f"{facts.tool} says {number(tool_rps)} requests/s{in_all},"
        f" the workers needed {seconds(spans_s)} for the same requests"
    )


def _timed_rate(facts: Facts, tool_rps: float, counted: int) -> str | None:
    """What the workers completed in the tool's time, of which it counts the share `counted`.

    One batch of answers more or less at the edges (N) is no contradiction.
    """
    until_ns = facts.spans[0].start_ns + facts.said.duration_s * NS
    completed = sum(1 for span in facts.finished if (span.end_ns or 0) <= until_ns)
    share = counted / facts.outcome.answered if facts.outcome.answered else 1.0
    expected = tool_rps * facts.said.duration_s
    if abs(completed * share - expected) <= max(RELATIVE * completed, facts.concurrency):
        return None
    return (
        f"{facts.tool} says {number(tool_rps)} requests/s, the workers completed"
        f" {completed} requests in its {seconds(facts.said.duration_s)}"
    )


def late(facts: Facts) -> str | None:
    """Where latencies are synthetic (wrk), responses after the tool's timeout are left out of
    them, although they are counted: what the distribution says is then too good."""
    count = facts.outcome.errors.get("timeout", 0)
    if facts.said.exact_mean or not count:
        return None
    left_out = f"{plural(count, 'response')} came after {facts.tool}'s timeout"
    return f"{left_out}, and its response times leave them out: use fewer connections"


def little(facts: Facts) -> str | None:
    """Little's law, from both sides. At a rate there is none to ask: those that are due and find
    no free connection are timed as well, and those that are free may stay so."""
    said, n = facts.said, facts.concurrency
    if facts.evidence.trial.cell.rate is not None:
        return None
    mean, total_s = said.response.mean, said.duration_s
    if mean is None or not said.exact_mean or total_s <= 0 or facts.outcome.unanswered:
        return None
    answers = facts.outcome.answered
    least, most = (mean - ROUNDING_S) * answers, (mean + ROUNDING_S) * answers
    if least > OVER * n * total_s:
        return (
            f"{facts.tool} says {seconds(mean)} per response, which would keep"
            f" {number(mean * answers / total_s)} requests in flight on"
            f" {plural(n, 'connection')}: impossible"
        )
    alone = (said.lone_s or 0.0) if facts.evidence.lone_first else 0.0
    longest = said.response.max
    if longest is None or not facts.evidence.counted:
        return None
    floor = alone + n * (total_s - alone - longest - CLOCK_S)
    if most >= BUSY * floor:
        return None
    return (
        f"{facts.tool} did not keep {plural(n, 'connection')} busy: its responses add up to"
        f" {number(mean * answers / total_s)} requests in flight"
    )


def body(facts: Facts) -> str | None:
    """Where the only right answer is known, every answer must be that one. Not asked of tools that
    do not compare what they get."""
    expected, found = facts.evidence.body_sha256, facts.said.body_sha256
    if expected is None:
        return None
    if others := facts.outcome.errors.get("body", 0):
        answers = plural(facts.outcome.answered, "answer")
        return f"the page was not always the one that is stored: {others} of {answers} differed"
    if found in (None, expected):
        return None
    return (
        f"the page was not the one that is stored: its SHA-256 begins with {found[:8]},"
        f" not with {expected[:8]}"
    )


WITNESSES: tuple[Callable[[Facts], str | None], ...] = (
    map_full,
    success,
    counts,
    body,
    rates,
    late,
    little,
)


def contradictions(facts: Facts) -> list[str]:
    """Every sentence that speaks against the trial; empty for one that can be believed."""
    found = [why for witness in WITNESSES if (why := witness(facts)) is not None]
    if facts.steady.rps is None and not found:
        found.append(facts.steady.reason)
    return found
