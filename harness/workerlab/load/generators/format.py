"""The JSON document that every generator prints.

    {"generator": NAME, "format": 3,
     "asked": {"concurrency", "processes", "requests", "duration_s", "rate_rps", "arrivals",
               "seed", "keepalive", "rows"},
     "sent", "unsent", "complete", "failed", "errors": {cause: n}, "connections", "reconnects",
     "body_sha256", "origin_ns", "duration_ns", "cpu_ns", "in_flight_ns", "deadline_struck",
     "response", "connect", "first_byte", "lag": histograms of nanoseconds, "lone_ns", "notes"}

and for a mix also "routes": {label: {"sent", "complete", "errors", "statuses": {status: n}, "body",
"response"}}: `statuses` counts unexpected answers, `body` is the beginning of the first of them,
`response` covers successes.

`complete`: answers read to the end, whatever their status; `failed`: unsuccessful requests, by
cause in `errors`. `unsent`: planned, or due by the rate, but never sent.
`duration_ns`: from the first start to the end of the last request, or the deadline. `in_flight_ns`:
the total time in flight; in_flight_ns / duration_ns is the achieved concurrency.
`response` and `first_byte` cover complete answers and count from the request's start (with a rate:
from its due time, which is `lag` before it was sent); `connect` covers established connections.
`lone_ns`: the response time of the first request, if it was sent alone and succeeded.
`body_sha256`: of the first body, with --same-body and if all are equal; others fail with "body".
"""

import errno

FORMAT = 3
WRONG_ANSWER_CAUSES = ("non_2xx", "status", "body")  # causes for which a complete answer fails
# Columns of the rows file, one row per request. start: since the origin; other times: since start,
# empty if not reached; status: of a complete response; id: the request's number; reused: NEW, KEPT
# (connect is then 0) or RESENT; route: index in the mix.
COLUMNS = "start_ns,connect_ns,first_byte_ns,end_ns,status,cause,id,reused"
MIX_COLUMNS = f"{COLUMNS},route"
NEW, KEPT, RESENT = 0, 1, 2  # RESENT: on a new connection, after a kept one was closed
CAUSE_BY_ERRNO = {
    errno.ECONNREFUSED: "refused",
    **dict.fromkeys((errno.ECONNRESET, errno.EPIPE), "reset"),
    errno.ETIMEDOUT: "connect_timeout",
    **dict.fromkeys((errno.EADDRNOTAVAIL, errno.EADDRINUSE), "no_address"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "no_files"),
}


def cause_of_errno(number: int | None) -> str:
    """The cause of failure for a failed system call."""
    return CAUSE_BY_ERRNO.get(number or 0, "connect")
