"""The outcome of a load: its requests as the client counts them.

To the client, a request is answered, answered wrongly, or never answered. A cause in ANSWERED means
that an answer came and was not the expected one. Any other cause (timeout, reset, refused, connect,
...) means that no answer came, and it is unknown whether the request reached the app.

The exception is dropped handshakes: if the kernel dropped some, a request without a span was never
accepted, and that becomes its cause. ab counts a connection that ends without a byte as complete,
so its answers in excess of the spans were never accepted. With a tool that sends request ids, it is
known which requests these are.
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

    answered: int  # with any status
    wrong: int  # of these
    unanswered: int
    failed: int
    errors: Mapping[str, int]

    @property
    def never_accepted(self) -> int:
        return self.errors.get(NEVER_ACCEPTED, 0)

    @property
    def success_share(self) -> float:
        """The fraction of answers that were the expected ones; 0 if there was no answer."""
        return (self.answered - self.wrong) / self.answered if self.answered else 0.0


def outcome(
    measurement: Measurement, expect_status: int, good_statuses: range | None = None
) -> Outcome:
    """A tool's counts, corrected for the expected status. `good_statuses`: always good for the tool
    (ab: 2xx; wrk: below 400); None: it knows the expected one. Such a tool counts an expected 404
    as a failure and does not report an unexpected 200: if the expected status is not among them,
    the answers it counts as wrong are the right ones."""
    errors = {cause: count for cause, count in measurement.errors.items() if count}
    failed = measurement.failed
    if good_statuses is not None and expect_status not in good_statuses:
        expected = min(errors.pop("non_2xx", 0), measurement.requests)
        failed = max(0, failed - expected) + measurement.requests - expected
        if measurement.requests > expected:
            errors[UNEXPECTED] = measurement.requests - expected
    wrong = sum(count for cause, count in errors.items() if cause in ANSWERED)
    unanswered = sum(errors.values()) - wrong
    return Outcome(
        measurement.requests, min(wrong, measurement.requests), unanswered, failed, errors
    )


def outcome_with_drops(
    client_outcome: Outcome, measurement: Measurement, spans: Collection[Span]
) -> Outcome:
    """The outcome if the kernel is known to have dropped handshakes: a request without a span is
    neither an answer nor a contradiction, and is counted once."""
    if measurement.timings:
        return _by_request_id(client_outcome, measurement, spans)
    unseen = max(0, client_outcome.answered - len(spans))
    if not unseen:
        return client_outcome
    # ab counts a reset after which it continues three times: Receive, Exception, complete request
    errors = Counter(client_outcome.errors)
    read_errors = min(unseen, errors["read"])
    exceptions = min(read_errors, errors["exception"])
    # Sent by the server itself when it killed a worker that was waiting for a request
    by_server = min(unseen - read_errors, errors["non_2xx"])
    never_accepted = unseen - by_server
    errors -= Counter(read=read_errors, exception=exceptions)
    errors += Counter({NEVER_ACCEPTED: never_accepted})
    wrong = max(0, client_outcome.wrong - by_server)
    return replace(
        client_outcome,
        answered=client_outcome.answered - unseen,
        wrong=wrong,
        unanswered=errors.total() - wrong,
        failed=client_outcome.failed + never_accepted - read_errors,
        errors=dict(errors),
    )


def _by_request_id(
    client_outcome: Outcome, measurement: Measurement, spans: Collection[Span]
) -> Outcome:
    """Failed requests whose id is in no span become NEVER_ACCEPTED; `failed` includes them."""
    span_ids = {span.request_id for span in spans}
    unseen = Counter(
        timing.cause
        for timing in measurement.timings
        if timing.cause is not None and timing.end_s is None
        if timing.request_id is not None and timing.request_id not in span_ids
    )
    if not unseen:
        return client_outcome
    others = dict(Counter(client_outcome.errors) - unseen)
    return replace(client_outcome, errors=others | {NEVER_ACCEPTED: unseen.total()})
