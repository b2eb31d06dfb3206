"""The output of every generator: a `GeneratorDocument`, as one line of JSON. Generators write these
types and `workerlab.load` reads them. Standard library only: `fast` runs without any packages.

Fields with a default were added later: documents in saved runs may lack them.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field

from workerlab.numbers.histogram import Histogram

FORMAT = 3
WRONG_RESPONSE_CAUSES = ("non_2xx", "status", "body")  # why a complete response is a failure
MAX_COUNT = 2**63 - 1
SHA256 = "[0-9a-f]{64}"
# Columns of the rows file, one row per request. start: since the origin; other times: since start,
# empty if not reached; status: of a complete response; id: the request's number; reused: NEW, KEPT
# (connect is then 0) or RESENT; route: index in the mix.
COLUMNS = "start_ns,connect_ns,first_byte_ns,end_ns,status,cause,id,reused"
MIX_COLUMNS = f"{COLUMNS},route"
NEW, KEPT, RESENT = 0, 1, 2  # RESENT: on a new connection, after the old one was closed
CAUSE_BY_ERRNO = {
    errno.ECONNREFUSED: "refused",
    **dict.fromkeys((errno.ECONNRESET, errno.EPIPE), "reset"),
    errno.ETIMEDOUT: "connect_timeout",
    **dict.fromkeys((errno.EADDRNOTAVAIL, errno.EADDRINUSE), "no_address"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "no_files"),
}


# Without comparison and repr, which nothing needs: they take a third of a class's import time
@dataclass(frozen=True, eq=False, repr=False)
class RequestedLoad:
    """The requested load, as the generator parsed it (`options.LoadOptions`)."""

    concurrency: int
    processes: int
    requests: int | None
    duration_s: float | None
    rate_rps: float | None
    keepalive: bool
    arrivals: str = "even"
    seed: int = 0
    rows: bool = False  # whether there is a file with a row per request


@dataclass(frozen=True, eq=False, repr=False)
class RouteTotals:
    """The results of a route of a mix. Raises ValueError if they are inconsistent."""

    sent: int
    complete: int
    errors: dict[str, int]  # by cause
    statuses: dict[str, int]  # of unexpected responses
    body: str  # the beginning of the first of these responses
    response: Histogram  # of successes, in nanoseconds

    def __post_init__(self) -> None:
        _check_counts(self)
        if max(self.complete, sum(self.errors.values())) > self.sent:
            raise ValueError("a route has more responses or errors than requests")
        if self.response.count > self.complete:
            raise ValueError("a route has more successes than responses")


@dataclass(frozen=True, eq=False, repr=False)
class GeneratorDocument:
    """The counts and times of a generator, from all its processes. Histograms are in nanoseconds:
    `response` and `first_byte` of complete responses, from the request's start (with a rate: from
    its due time); `connect` of established connections. Raises ValueError for impossible values."""

    generator: str
    format: int
    load: RequestedLoad
    sent: int
    complete: int  # responses read to the end, with any status
    connections: int
    reconnects: int
    in_flight_ns: int  # of all requests; divided by duration_ns, the achieved concurrency
    unsent: int  # planned, or due at the rate, but never sent
    failed: int  # unsuccessful requests
    errors: dict[str, int]  # by cause
    origin_ns: int
    duration_ns: int  # from the first start to the end of the last request, or the deadline
    cpu_ns: int
    deadline_struck: bool
    response: Histogram
    connect: Histogram
    first_byte: Histogram
    lag: Histogram  # with a rate: from a request's due time until it was sent
    lone_ns: int | None  # response time of the first request, if it was sent alone and succeeded
    notes: list[str]
    body_sha256: str | None = None  # of the first body, with --same-body and if all are equal
    routes: dict[str, RouteTotals] = field(default_factory=dict)  # of a mix, by label

    def __post_init__(self) -> None:
        _check_counts(self)
        if self.body_sha256 is not None and not re.fullmatch(SHA256, self.body_sha256):
            raise ValueError("body_sha256 is not a SHA-256")


def _check_counts(results: RouteTotals | GeneratorDocument) -> None:
    """Raises ValueError for a negative number, or one of more than 63 bits."""
    for name, value in vars(results).items():
        for count in value.values() if isinstance(value, dict) else (value,):
            if isinstance(count, int) and not 0 <= count <= MAX_COUNT:
                raise ValueError(f"{name} is not a count: {count}")


def cause_of_errno(number: int | None) -> str:
    """The cause of failure for a failed system call."""
    return CAUSE_BY_ERRNO.get(number or 0, "connect")
