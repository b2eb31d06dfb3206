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
from workerlab.analysis.handshakes import handshakes
from workerlab.analysis.occupancy import overhead_s
from workerlab.analysis.outcomes import ANSWERED, NEVER_ACCEPTED
from workerlab.analysis.samples import NS, durations_s
from workerlab.model import CellResult, Finding, Span, Summary
from workerlab.numbers.quantiles import summarise

REFUSED = frozenset({429, 503})
MOSTLY = 0.99  # of the answers are successes: a few others change no mean
QUICK = 0.5  # of the shortest lone request's time in the app
MOST = 0.8  # of the wrong answers: so many of them must be alike
SEPARATES = "fast"  # a load tool that times each request


@once
def success_response(facts: Facts) -> Summary:
    """Response times of successes, seconds. All unknown where the load tool mixes them with those
    of failures."""
    if timings := facts.measurement.timings:
        ends_s = (one.end_s for one in timings if one.cause is None)
        return Summary(*summarise(end_s for end_s in ends_s if end_s is not None))
    return Summary() if _mixed(facts) else facts.measurement.response


def _mixed(facts: Facts) -> bool:
    """Whether the tool's response times hold others than those of successes."""
    return facts.outcome.wrong > 0 or facts.measurement.requests != facts.outcome.answered


def mixed_notes(facts: Facts) -> tuple[Finding, ...]:
    if facts.measurement.timings or not _mixed(facts):
        return ()
    failed = facts.outcome.wrong + abs(facts.measurement.requests - facts.outcome.answered)
    values = {"tool": facts.tool, "requests": failed, "other": SEPARATES}
    return (Finding("note.failures_in_times", values),)


@once
def success_spans(facts: Facts) -> Sequence[Span] | None:
    """Those of successes, by start; None where nobody knows which they are."""
    if not facts.outcome.failed:
        return facts.finished
    timings = facts.measurement.timings
    good = {one.request_id for one in timings if one.cause is None and one.request_id is not None}
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


def shedding(facts: Facts, cell: CellResult) -> Finding | None:
    """Requests that were refused, by status where that is known."""
    if not (count := _shed(facts)):
        return None
    statuses = _refused(facts)
    return Finding(
        "diagnosis.shedding",
        {
            "requests": count,
            "share": shed_share(facts),
            "statuses": tuple(statuses) or None,
            "tool": None if statuses else facts.tool,
            "successes_rps": cell.throughput_rps,
            "advice": (),
        },
    )


def failing(facts: Facts, _cell: CellResult) -> Finding | None:
    """What failed otherwise, but for what a full accept queue tells."""
    causes = Counter(facts.outcome.errors)
    if handshakes(facts).dropped:
        del causes[NEVER_ACCEPTED]
        causes["non_2xx"] -= _by_server(facts, causes["non_2xx"])
    shed = _shed(facts)
    for cause in ANSWERED:
        taken = min(shed, causes[cause])
        causes[cause] -= taken
        shed -= taken
    if not (left := dict(sorted((+causes).items()))):
        return None
    statuses = tuple(str(one) for one in sorted(wrong_statuses(facts)) if one not in REFUSED)
    return Finding(
        "diagnosis.failing",
        {
            "requests": sum(left.values()),
            "share": min(1.0, sum(left.values()) / _asked(facts)),
            "causes": left,
            "statuses": statuses or None,
            "advice": (),
        },
    )


def _by_server(facts: Facts, wrong: int) -> int:
    """Wrong answers of the server itself, whose worker waited in vain for a request: where some
    requests were never seen by the app, and the tool (ab) does not tell which answer was whose."""
    unseen = 0 if facts.measurement.timings else facts.measurement.requests - len(facts.spans)
    return wrong if wrong <= 2 * unseen else 0


def _shed(facts: Facts) -> int:
    return _refused(facts).total() or _quickly_wrong(facts)


def shed_share(facts: Facts) -> float:
    """Of the requests, those that were refused; 0 to 1."""
    return min(1.0, _shed(facts) / _asked(facts))


def failed_share(facts: Facts) -> float:
    return min(1.0, facts.outcome.failed / _asked(facts))


def _asked(facts: Facts) -> int:
    """Requests of which the client knows what became."""
    return max(1, facts.outcome.answered + facts.outcome.unanswered)


def wrong_statuses(facts: Facts) -> Counter[int]:
    """Answers that were no success, by their status."""
    timings = facts.measurement.timings
    return Counter(one.status for one in timings if one.cause is not None and one.status)


@once
def _refused(facts: Facts) -> Counter[str]:
    found = wrong_statuses(facts)
    return Counter({str(one): found[one] for one in sorted(REFUSED) if found[one]})


def _quickly_wrong(facts: Facts) -> int:
    """Wrong answers without a status that took hardly any time in the app; 0 where they did."""
    wrong = facts.outcome.wrong
    if facts.measurement.timings or not wrong or not facts.record.lone_s:
        return 0
    alone_ns = (min(facts.record.lone_s) - overhead_s(facts)) * NS
    quick = sum((span.end_ns or 0) - span.start_ns < QUICK * alone_ns for span in facts.finished)
    return wrong if MOST * wrong <= quick <= wrong / MOST else 0
