"""What became of the requests, by the client: answered, answered wrongly, never answered.

Causes in ANSWERED say that an answer came and was not the wanted one; every other cause (timeout,
reset, refused, connect, ...) means that no answer came, and nobody knows whether the request
reached the app.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.model import Measurement

ANSWERED = frozenset({"non_2xx", "status", "length", "body", "wrong_status"})
UNEXPECTED = "unexpected_2xx"


@dataclass(frozen=True)
class Outcome:
    """Requests counted by the client. `failed` and `errors` are what the report shows."""

    answered: int
    wrong: int
    unanswered: int
    failed: int
    errors: Mapping[str, int]

    @property
    def success(self) -> float:
        """The fraction of answers that were the expected ones; 0 where there was no answer."""
        return (self.answered - self.wrong) / self.answered if self.answered else 0.0


def outcome(said: Measurement, expect_status: int) -> Outcome:
    """Read a tool's counts in the light of the status the app is expected to answer.

    A tool that only tells 2xx from the rest (ab) calls an expected 302 a failure and does not
    complain of an unexpected 200: where the expected status is outside 200-299 and the tool did
    not judge each request by itself, its non-2xx answers are the good ones.
    """
    errors = {cause: count for cause, count in said.errors.items() if count}
    failed = said.failed
    if not said.timings and not 200 <= expect_status < 300:
        good = min(errors.pop("non_2xx", 0), said.requests)
        failed = max(0, failed - good) + said.requests - good
        if said.requests > good:
            errors[UNEXPECTED] = said.requests - good
    wrong = sum(count for cause, count in errors.items() if cause in ANSWERED | {UNEXPECTED})
    unanswered = sum(errors.values()) - wrong
    return Outcome(said.requests, min(wrong, said.requests), unanswered, failed, errors)
