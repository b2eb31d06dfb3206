"""What became of the requests, by the client: answered, answered wrongly, never answered.

Causes in ANSWERED say that an answer came and was not the wanted one; every other cause (timeout,
reset, refused, connect, ...) means that no answer came, and nobody knows whether the request
reached the app.

Unless the kernel dropped handshakes: then what no worker saw was never accepted, and that is its
cause. ab calls a connection that ends without a byte complete, so its answers that are more than
the spans are such; a tool that names its requests tells which.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from workerlab.model import Measurement, Span

UNEXPECTED = "unexpected_2xx"
ANSWERED = frozenset({"non_2xx", "status", "length", "body", "wrong_status", UNEXPECTED})
NEVER_ACCEPTED = "never_accepted"


class Outcome(Struct, frozen=True):
    """Requests counted by the client. `failed` and `errors` are what the report shows."""

    answered: int
    wrong: int
    unanswered: int
    failed: int
    errors: Mapping[str, int]

    @property
    def never_accepted(self) -> int:
        return self.errors.get(NEVER_ACCEPTED, 0)

    @property
    def success(self) -> float:
        """The fraction of answers that were the expected ones; 0 where there was no answer."""
        return (self.answered - self.wrong) / self.answered if self.answered else 0.0


def outcome(measurement: Measurement, expect_status: int, good: range | None = None) -> Outcome:
    """Read a tool's counts in the light of the status the app is expected to answer. `good`:
    statuses that the tool counts as good whatever it is asked for (ab: 2xx; wrk: below 400); None:
    it was told what to expect. Such a tool calls an expected 404 a failure and does not complain of
    an unexpected 200: where the expected status is none of `good`, what it calls wrong is right."""
    errors = {cause: count for cause, count in measurement.errors.items() if count}
    failed = measurement.failed
    if good is not None and expect_status not in good:
        expected = min(errors.pop("non_2xx", 0), measurement.requests)
        failed = max(0, failed - expected) + measurement.requests - expected
        if measurement.requests > expected:
            errors[UNEXPECTED] = measurement.requests - expected
    wrong = sum(count for cause, count in errors.items() if cause in ANSWERED)
    unanswered = sum(errors.values()) - wrong
    return Outcome(
        measurement.requests, min(wrong, measurement.requests), unanswered, failed, errors
    )


def excused(found: Outcome, measurement: Measurement, spans: Collection[Span]) -> Outcome:
    """The same outcome where the kernel is known to have dropped handshakes: what no worker saw
    is neither an answer nor a contradiction, and is counted once."""
    if measurement.timings:
        return _by_name(found, measurement, {span.request_id for span in spans})
    unseen = max(0, found.answered - len(spans))
    if not unseen:
        return found
    # A reset that ab goes on after is a Receive, an Exception and a complete request in one.
    known = min(unseen, found.errors.get("read", 0))
    twice = min(known, found.errors.get("exception", 0))
    # Answers of the server itself, which killed a worker that waited for a request
    by_server = min(unseen - known, found.errors.get("non_2xx", 0))
    never = unseen - by_server
    errors = Counter(found.errors) - Counter(read=known, exception=twice)
    if never:
        errors[NEVER_ACCEPTED] = never
    wrong = max(0, found.wrong - by_server)
    return replace(
        found,
        answered=found.answered - unseen,
        wrong=wrong,
        unanswered=sum(errors.values()) - wrong,
        failed=found.failed + never - known,
        errors=dict(errors),
    )


def _by_name(found: Outcome, measurement: Measurement, seen: Collection[str | None]) -> Outcome:
    """Failed requests whose name no worker has seen; they are counted as failed already."""
    unseen = Counter(
        timing.cause
        for timing in measurement.timings
        if timing.cause is not None and timing.end_s is None
        if timing.request_id is not None and timing.request_id not in seen
    )
    if not unseen:
        return found
    left = dict(Counter(found.errors) - unseen)
    return replace(found, errors=left | {NEVER_ACCEPTED: unseen.total()})
