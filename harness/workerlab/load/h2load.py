"""h2load of nghttp2, over HTTP/1.1: its command, its report and its log of requests.

Checked against h2load 1.52.0 and its source. Its peculiarities:

- It divides the requests among its connections in advance: if the server serves some connections
  faster, as gthread does with kept-alive ones, these finish early and the others continue alone.
- A connection that breaks is not opened again, and the rest of its share is never sent. h2load
  counts all of these as "errored" when it sends a number of requests, but not at all with
  --duration: then it reports 0 failures for 4 connections that all broke. So the lab always gives
  it a number of requests.
- It decides from the response alone whether a connection is kept. If the request has "Connection:
  close" but the response does not (asgi of Gunicorn 25.3), it sends its next request on a
  connection that the server closes and that then counts as broken. Its output does not distinguish
  this from a server that breaks requests, so a load without keep-alive is invalid if any broke.
- It never regards a response to HEAD, which has no body, as complete, nor one that ends with the
  connection.
- The log has each response with its status. The table has no percentiles, its "time for connect"
  covers only the last connection of each client, its "time to 1st byte" only the first response,
  and the traffic omits data that arrived together with the end of a connection: the lab does not
  use these.

The Measurement:

- `requests`: responses that it read to the end, with any status.
- `errors`: non_2xx; timeout, for a connection without any data for the time of -N; broken, for
  other requests sent without a response. `unsent`: the rest of these connections' shares.
- `response`, `responses_s`: from the log, in microseconds; without the time to connect.
- `duration_s`: "finished in", from before the first connection to the end of the last one.
- `connect`, `first_byte`, `lone_s`: not available.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from workerlab.errors import ParseError, UsageError
from workerlab.finding import Finding
from workerlab.load.tool import (
    DEADLINE_SHARE,
    WHOLE_NUMBER,
    Tool,
    only_match,
    sent_headers,
    table_rows,
)
from workerlab.model.evidence import Command, Measurement, Output, Summary
from workerlab.model.plan import Load
from workerlab.numbers.samples import summarise
from workerlab.numbers.units import scan_duration

LOG_FILE, KEPT_LOG_FILE = "requests.log", "kept.log"  # without and with keep-alive
UNANNOUNCED_CLOSE = (
    "without keep-alive, h2load does not distinguish a server that closes connections without"
    " announcing it, as asgi does, from one that breaks requests: use --keepalive on or another"
    " tool"
)
MAX_SAMPLED = 1_000_000  # requests; with more, the table of times covers only a sample

_N = WHOLE_NUMBER
REQUEST_FIELDS = ("total", "started", "done", "succeeded", "failed", "errored", "timeout")
LINES = {
    "finished": r"finished in (\d+(?:\.\d\d)?)(us|ms|s), (\d{1,12}\.\d\d) req/s, \S+B/s",
    "requests": "requests: " + ", ".join(f"{_N} {name}" for name in REQUEST_FIELDS),
    "statuses": f"status codes: {_N} 2xx, {_N} 3xx, {_N} 4xx, {_N} 5xx",
    "times": r"(?:time for )?request *: +(\S+) +(\S+) .*",  # minimum and maximum come first
}


class H2load(Tool):
    NAME = PROGRAM = "h2load"
    VERSION_ARGV = ("h2load", "--version")
    SUCCESS_STATUSES = range(200, 300)
    FLOOR_RPS, REQUEST_CPU_S = 2000.0, 0.0002
    NEEDS_REQUEST_EACH = True
    OUTPUT_FILES = (LOG_FILE, KEPT_LOG_FILE)
    CAVEAT = (
        "h2load divides its requests among its connections in advance, so connections that finish"
        " early are idle at the end."
    )
    INSTALL_HINT = (
        "h2load is packaged as nghttp2-client (Debian, Ubuntu: apt-get install nghttp2-client;"
        " macOS: brew install nghttp2)."
    )

    def check(self, load: Load) -> None:
        super().check(load)
        if load.method == "HEAD":
            raise UsageError("h2load waits for a body after HEAD; use another tool.")

    def command(self, load: Load, url: str, workdir: str) -> Command:
        argv = ["h2load", "--h1", "-t", "1", "-c", str(load.concurrency), "-n", str(load.requests)]
        argv += ["-N", f"{max(1, int(load.deadline_s * DEADLINE_SHARE))}s"]
        log_file = KEPT_LOG_FILE if load.keepalive else LOG_FILE
        argv += ["--log-file", f"{workdir}/{log_file}"]
        argv += [] if load.body_file is None else ["-d", load.body_file]
        headers = [(":method", load.method)]
        headers += [] if load.keepalive else [("connection", "close")]
        # Only a pseudo-header replaces the default Host header
        headers += sent_headers(load, ":authority")
        argv += [argument for name, value in headers for argument in ("-H", f"{name}: {value}")]
        return Command(argv=(*argv, url))

    def parse(self, output: Output) -> Measurement:
        """Raises ParseError unless the output is the complete report of a complete run."""
        self.check_exit_code(output)
        report = _Report(output.stdout)
        if not report.done:
            raise ParseError("h2load received no complete response", report.line("requests"))
        kept_log = output.files.get(KEPT_LOG_FILE)
        rows = _read_log(output.files.get(LOG_FILE) if kept_log is None else kept_log)
        report.check_rows(rows)
        duration_s, rps = report.rate()
        lost = report.started - report.done
        if lost > report.timeout and kept_log is None:
            raise ParseError(UNANNOUNCED_CLOSE, report.line("requests"))
        non_2xx = sum(not 200 <= row.status < 300 for row in rows)
        causes = {"non_2xx": non_2xx, "timeout": report.timeout, "broken": lost - report.timeout}
        responses_s = tuple(row.response_us / 1e6 for row in rows)
        unsent = report.total - report.started
        return Measurement(
            requests=report.done,
            failed=non_2xx + lost,
            errors={cause: count for cause, count in causes.items() if count},
            duration_s=duration_s,
            rps=rps,
            response=Summary(*summarise(responses_s)),
            responses_s=responses_s,
            sent=report.started,
            unsent=unsent,
            notes=(NotReopened(unsent),) if unsent else (),
        )


H2LOAD = H2load()


class NotReopened(Finding):
    """{unsent:# request} {unsent:was/were} never sent: h2load does not reopen connections that
    break"""

    unsent: int


class _Row(NamedTuple):
    """A line of the log: a complete response. Its start, in wall-clock time, is not used."""

    status: int
    response_us: int


class _Report:
    """h2load's text. Raises ParseError if a line is missing or not unique, or counts disagree."""

    def __init__(self, text: str) -> None:
        self._matches = {
            name: only_match(text, form, tool="h2load") for name, form in LINES.items()
        }
        counts = [int(count) for count in self._matches["requests"].groups()]
        self.total, self.started, self.done, self._succeeded, *rest = counts
        self._failed, self._errored, self.timeout = rest
        unsuccessful = self.done - self._succeeded  # complete responses
        sums = (
            (self.total, self.done + self._errored),
            (self._failed, self._errored + unsuccessful),
        )
        in_order = self.done <= self.started <= self.total
        if any(a != b for a, b in sums) or not in_order or self.timeout > self.started - self.done:
            raise ParseError("h2load's counts of requests do not add up", self.line("requests"))

    def line(self, name: str) -> str:
        return self._matches[name][0]

    def rate(self) -> tuple[float, float]:
        """(seconds, responses per second). Both are printed with two decimals, so the larger figure
        is the more precise one."""
        figure, unit, rps_text = self._matches["finished"].groups()
        seconds, rps = scan_duration(figure + unit), float(rps_text)
        rounding_s = scan_duration(f"0.006{unit}") if unit != "us" else 1e-6
        low, high = (self.done / (rps + error) for error in (0.006, -0.006))
        if rps <= 0.006 or not low - rounding_s <= seconds <= high + rounding_s:
            raise ParseError(
                "h2load's rate does not match its requests and time", self.line("finished")
            )
        if rps > float(figure):
            seconds = self.done / rps
        return seconds, self.done / seconds

    def check_rows(self, rows: Sequence[_Row]) -> None:
        """Raises ParseError unless log and text agree. The text also counts a response whose body
        broke."""
        by_class = Counter(row.status // 100 for row in rows)
        printed_counts = [int(count) for count in self._matches["statuses"].groups()]
        excess_counts = [count - by_class[first] for first, count in enumerate(printed_counts, 2)]
        succeeded = by_class[2] + by_class[3]
        lost_requests = self.started - self.done
        if (len(rows), succeeded) != (self.done, self._succeeded):
            raise ParseError(f"{LOG_FILE} has {len(rows)} responses", self.line("requests"))
        if min(excess_counts) < 0 or sum(excess_counts) > lost_requests:
            raise ParseError(f"{LOG_FILE} and the text disagree on statuses", self.line("statuses"))
        times_us = [row.response_us for row in rows]
        extremes = zip(self._matches["times"].groups(), (min(times_us), max(times_us)), strict=True)
        for text, logged_us in extremes if self.done <= MAX_SAMPLED else ():
            try:
                printed_s = scan_duration(text)
            except ValueError as error:
                raise ParseError(str(error), self.line("times")) from None
            if abs(printed_s - logged_us / 1e6) > 0.006 * printed_s + 1.1e-6:
                raise ParseError(f"{LOG_FILE} and the table disagree", self.line("times"))


def _read_log(text: str | None) -> list[_Row]:
    """The complete responses, in order of completion."""
    row = rf"\d{{1,19}}\t([1-5]\d\d)\t{_N}"
    matches = table_rows(text, row, tool="h2load", name=LOG_FILE)
    return [_Row(status=int(match[1]), response_us=int(match[2])) for match in matches]
