"""oha, 1.9 or newer: its command, and the JSON document that it prints.

Checked against oha 1.16.0 and its source. Its peculiarities:

- By default it uses a thread per core; the lab gives it one thread, so its CPU usage is compared
  with one core.
- With `-z` alone it aborts the requests in flight at the end; with `-w` it waits for their
  responses, so each request has an outcome.
- After SIGINT it prints a complete document of the part that ran, and exits with 0. The document
  does not contain the planned length of the load, so the lab writes that to a file and compares.
- It counts failures in its requests per second, but not in its response times.
- By default it accepts compressed bodies, which the other tools do not, and gives up on a handshake
  after 5 s, although a full accept queue can delay one for longer.
- Its "first byte" is that of the body, not of the head, and only of responses with a body.

The Measurement:

- `requests`: responses that it read to the end, with any status.
- `errors`: non_2xx; otherwise by the error that oha prints: the errno of a failed system call,
  timeout, broken, closed, truncated, protocol, or other.
- `response`: of complete responses, from before connect() to the whole body; if a kept-alive
  connection turned out to be closed, from the next attempt. Percentiles are the values at rank
  p * n, not interpolated.
- `connect`: of the new connections of complete responses, mean and maximum.
- `duration_s`: how long it ran; `rps`: responses per second of that time.
- `first_byte`, `lone_s`, `received_bytes`: not available.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from workerlab import codec
from workerlab.errors import ParseError
from workerlab.load.generators.format import cause_of_errno
from workerlab.load.tool import DEADLINE_SHARE, Count, Tool, sent_headers
from workerlab.model.evidence import Command, Measurement, Output, Summary
from workerlab.model.plan import Load

PLANNED_FILE = "planned.json"
PERCENTS = (10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
CAUSES = {  # by the beginning of the error that oha prints
    "timeout": "timeout",
    "connection error": "broken",
    "connection closed": "closed",
    "error reading a body": "truncated",
    "invalid HTTP": "protocol",
}

Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


class _PlannedLength(msgspec.Struct, frozen=True):
    """The length of the load: a number of requests, or seconds."""

    requests: Count | None
    duration_s: Seconds | None


class _Times(msgspec.Struct, frozen=True):
    average: Seconds | None
    slowest: Seconds | None


class _Summary(_Times, frozen=True, rename="camel"):
    """The part of the document about all requests. Times are of complete responses."""

    total: Seconds
    requests_per_sec: Seconds


class _Details(msgspec.Struct, frozen=True):
    connect: _Times = msgspec.field(name="DNSDialup")


class _Document(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of oha's document that are used."""

    summary: _Summary
    details: _Details
    latency_percentiles: dict[str, Seconds | None]
    status_code_distribution: dict[Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]{2}$")], Count]
    error_distribution: dict[str, Count]

    @property
    def responses(self) -> int:
        return sum(self.status_code_distribution.values())

    @property
    def requests(self) -> int:
        return self.responses + sum(self.error_distribution.values())

    def response_s(self, percent: float) -> float | None:
        return self.latency_percentiles.get(f"p{percent:g}")

    def errors(self) -> dict[str, int]:
        """The failures by cause."""
        by_cause: dict[str, int] = {}
        for text, count in self.error_distribution.items():
            cause = _cause_of(text)
            by_cause[cause] = by_cause.get(cause, 0) + count
        by_status = self.status_code_distribution.items()
        by_cause["non_2xx"] = sum(n for status, n in by_status if not status.startswith("2"))
        return {cause: count for cause, count in sorted(by_cause.items()) if count}

    def contradictions(self, planned: _PlannedLength) -> Iterator[str]:
        summary, times = self.summary, [self.response_s(percent) for percent in PERCENTS]
        expected_requests = summary.requests_per_sec * summary.total
        if abs(expected_requests - self.requests) > 0.5:
            yield "its rate does not match its requests and time"
        if planned.requests not in (None, self.requests):
            yield f"its report covers {self.requests} of {planned.requests} requests"
        if planned.duration_s is not None and summary.total < 0.99 * planned.duration_s:
            yield f"its report covers {summary.total:g} of {planned.duration_s:g} seconds"
        response_times = [summary.average, summary.slowest, *times]
        if None in response_times:
            yield "response times are missing"
        elif [*times, summary.slowest] != sorted([*times, summary.slowest]):  # type: ignore[type-var]
            yield "its percentiles are out of order"


def _cause_of(text: str) -> str:
    if match := re.search(r"\(os error (\d{1,5})\)$", text):
        return cause_of_errno(int(match[1]))
    causes = (cause for beginning, cause in CAUSES.items() if text.startswith(beginning))
    return next(causes, "other")


class Oha(Tool):
    NAME = PROGRAM = "oha"
    VERSION_ARGV = ("oha", "--version")
    TIMED = NEEDS_REQUEST_EACH = True
    SUCCESS_STATUSES = range(200, 300)
    REPEATS_HEADERS = False
    FLOOR_RPS, REQUEST_CPU_S = 2000.0, 0.0002
    OUTPUT_FILES = (PLANNED_FILE,)
    INSTALL_HINT = "Install it with: cargo install oha (macOS: brew install oha)."

    def command(self, load: Load, url: str, workdir: str) -> Command:
        limit = f"{max(1, int(load.deadline_s * DEADLINE_SHARE))}s"
        length = ["-w", "-z", f"{math.ceil(1000 * load.duration_s)}ms"] if load.timed else []
        argv = ["oha", "--no-tui", "--output-format", "json", "--worker-threads", "1"]
        argv += ["-c", str(load.concurrency), *(length or ["-n", str(load.requests)])]
        argv += ["-t", limit, "--connect-timeout", limit]
        argv += ["--disable-compression", "-r", "0"]
        argv += [] if load.keepalive else ["--disable-keepalive"]
        argv += ["-m", load.method]
        argv += [] if load.body_file is None else ["-D", load.body_file]
        for name, value in sent_headers(load, "Host"):
            argv += ["-H", f"{name}: {value}"]
        planned = {
            "requests": None if load.timed else load.requests,
            "duration_s": load.duration_s if load.timed else None,
        }
        return Command(argv=(*argv, url), files={PLANNED_FILE: json.dumps(planned)})

    def parse(self, output: Output) -> Measurement:
        """Raises ParseError unless the output is the complete document of a complete load."""
        self.check_exit_code(output)
        try:
            planned = codec.decode(output.files.get(PLANNED_FILE, ""), _PlannedLength)
            document = codec.decode(output.stdout, _Document)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"oha printed no valid document ({error})", output.stdout) from None
        responses, summary = document.responses, document.summary
        if not responses:
            raise ParseError("oha received no complete response", str(document.error_distribution))
        for contradiction in document.contradictions(planned):
            raise ParseError(f"oha's output is inconsistent: {contradiction}")
        errors, connect = document.errors(), document.details.connect
        percents = [percent for percent in PERCENTS if responses * (100 - percent) >= 100]
        return Measurement(
            requests=responses,
            failed=sum(errors.values()),
            errors=errors,
            duration_s=summary.total,
            rps=responses / summary.total,
            response=Summary(
                mean=summary.average,
                p50=document.response_s(50.0),
                p90=document.response_s(90.0),
                p95=document.response_s(95.0),
                p99=document.response_s(99.0),
                max=summary.slowest,
            ),
            percentiles_s={p: s for p in percents if (s := document.response_s(p)) is not None},
            connect=Summary(mean=connect.average, max=connect.slowest),
            sent=document.requests,
        )


OHA = Oha()
