"""ApacheBench: its command and its report.

Checked against ab 2.4.71 and its source. Its peculiarities:

- ab sends its **first request alone**; the others start when its headers arrive. All its figures
  include that request, which its records do not always identify, so it is not removed.
- Its report has whole milliseconds. The `-e` file has microseconds, but its row i is
  `stats[floor(0.5 + n*i/100)]`, which for n <= 50 reads past the end of the array from some row on:
  rows are order statistics of known rank, and those out of range are dropped (`_exact_totals`).
- If the server closes without a response, ab reports "Complete requests: n, Failed: 0" and exits
  with 0; likewise for truncated bodies and bytes that are not HTTP. Only a report without a single
  byte received is certainly a failure.
- After SIGINT, ab prints a complete report of part of the run and exits with 1. Only exit code 0 is
  accepted.
- `-r` (continue after a reset) is used only if the accept queue is shorter than the number of
  connections: the kernel then drops connections that the client considers open, and the first
  reset would end ab without a report. With -r, ab counts the reset request as complete (and as a
  Receive and an Exception), and includes its time in every distribution.

The Measurement:

- `requests`: ab's "Complete requests", with any status.
- `errors`: connect, read (ab's Receive), length, exception, write, non_2xx; other if ab's total
  exceeds its causes. ab counts *events*, and does not include non-2xx in its "Failed requests".
  `failed` is the sum of all events, counting a reset (one Receive and one Exception) once, but at
  most complete requests plus failed connections.
- `response`: from the start of connect() to the server's close, over all complete requests.
- `connect`, `connects_s`: from the start of connect() to the request's first write, in whole ms,
  without waiting for accept(). Unknown with -k: ab prints 0 for a reused connection.
- `first_byte`: ab's ctime + wait, that is, since the start of connect(), without the time to write
  the request; accurate to 1 ms, because it is the sum of two rounded values.
- `duration_s`, `rps`: ab's "Time taken" and "Requests per second", including the lone first
  request.
- `lone_s`: the response time of the first request, if the `-g` file identifies it.
- `ab`: the report as printed. ab counts 0 ms to connect for a reused connection.
"""

import math
import re
from itertools import pairwise
from typing import NamedTuple

from workerlab.errors import ParseError
from workerlab.finding import Finding
from workerlab.load.tool import WHOLE_NUMBER, Tool, table_rows, typed_headers
from workerlab.model.evidence import AbReport, AbTimes, Command, Measurement, Output, Summary
from workerlab.model.plan import Load
from workerlab.numbers.samples import summarise

ROWS_FILE, PERCENTILES_FILE = "gnuplot.tsv", "percentiles.csv"
MIN_ROUNDED_LONE_MS = 100  # rounding it to whole ms is an error of at most 0.5 %

ROWS_HEADER = "starttime\tseconds\tctime\tdtime\tttime\twait"
PERCENTILES_HEADER = "Percentage served,Time in ms"

_N = WHOLE_NUMBER
# By exit code or errno in ab's message, on Linux and on macOS. 70007 is APR_TIMEUP.
ABORT_REASONS = {
    **dict.fromkeys((104, 54), "the server reset a connection"),
    **dict.fromkeys((111, 61), "the server refused a connection"),
    **dict.fromkeys((70007, 119), "no connection made progress before the timeout"),
    24: "too many open files: raise `ulimit -n`",
    **dict.fromkeys((99, 49), "no free local port: too many connections in a short time"),
    22: "ab did not understand its arguments",
}

REPORT_COUNTS = ("Concurrency Level", "Total transferred", "HTML transferred")
TIME_ROWS = ("Connect", "Processing", "Waiting", "Total")  # of the table of connection times
# Rates in ab's report by label: (unit, units per second or per byte per second)
RATES = {
    "Time per request": ("[ms] (mean)", 1000),
    "Time per request, across": ("[ms] (mean, across all concurrent requests)", 1000),
    "Transfer rate": ("[Kbytes/sec] received", 1 / 1024),
}


class Ab(Tool):
    NAME = PROGRAM = "ab"
    VERSION_ARGV = ("ab", "-V")
    MAX_CONNECTIONS = 20_000  # compiled into ab
    FLOOR_RPS, REQUEST_CPU_S = 2000.0, 0.0002
    SENDS_FIRST_ALONE = NEEDS_REQUEST_EACH = HTTP_1_0 = True
    SUCCESS_STATUSES = range(200, 300)
    OUTPUT_FILES = (ROWS_FILE, PERCENTILES_FILE)
    INSTALL_HINT = (
        "ApacheBench comes with the package apache2-utils (Debian, Ubuntu: apt-get install "
        "apache2-utils) and with macOS."
    )

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """`-l`: bodies may differ in length; `-q`: no progress. `-s` is the cell's deadline, not a
        timeout per request: ab gives up only if no connection has an event for that long."""
        argv = ["ab", "-l", "-q", "-n", str(load.requests), "-c", str(load.concurrency)]
        argv += ["-s", str(max(1, math.ceil(load.deadline_s)))]
        argv += ["-k"] * load.keepalive + ["-r"] * load.drops
        argv += ["-g", f"{workdir}/{ROWS_FILE}", "-e", f"{workdir}/{PERCENTILES_FILE}"]
        headers = typed_headers(load)
        if load.body_file is not None:
            content_types = [value for name, value in headers if name.lower() == "content-type"]
            headers = [(name, value) for name, value in headers if name.lower() != "content-type"]
            argv += ["-u" if load.method == "PUT" else "-p", load.body_file]
            argv += ["-T", content_types[-1]]
            if load.method not in ("POST", "PUT"):
                argv += ["-m", load.method]  # after -p, as the last option sets the method
        elif load.method == "HEAD":
            argv.append("-i")
        elif load.method != "GET":
            argv += ["-m", load.method]
        argv += [argument for name, value in headers for argument in ("-H", f"{name}: {value}")]
        return Command(argv=(*argv, url))

    def parse(self, output: Output) -> Measurement:
        """Raises ParseError unless the output is the complete report of a complete run."""
        if output.exit_code != 0:
            raise _abort_error(output)
        report = _Report(output.stdout)
        requests, errors = report.count("Complete requests"), report.errors()
        if requests == 0 or report.count("Total transferred") == 0:
            raise ParseError("the server sent no data", report.line("Total transferred"))
        duration_s, rps = report.rate(requests)
        rows = _read_rows(output.files.get(ROWS_FILE), requests)
        percentiles_us = _read_percentiles(output.files.get(PERCENTILES_FILE))
        totals = _exact_totals([row.total_ms for row in rows], percentiles_us)
        report.check_totals(totals)
        resets = min(errors.get("read", 0), errors.get("exception", 0))  # counted as both
        reused_connections = report.count("Keep-Alive requests", optional=True)
        connects_ms = [] if reused_connections else [row.connect_ms for row in rows]
        failed = min(sum(errors.values()) - resets, requests + errors.get("connect", 0))
        return Measurement(
            requests=requests,
            failed=failed,
            errors=errors,
            duration_s=duration_s,
            rps=rps,
            response=_summary_of(totals),
            connect=_summary_of(connects_ms),
            first_byte=_summary_of([row.connect_ms + row.wait_ms for row in rows]),
            lone_s=None if failed else _lone_s(rows, totals),
            responses_s=tuple(ms / 1000 for ms in totals),
            connects_s=tuple(ms / 1000 for ms in connects_ms),
            received_bytes=report.count("Total transferred"),
            notes=_notes(rows),
            ab=report.figures(requests, duration_s),
        )


AB = Ab()


def _abort_error(output: Output) -> ParseError:
    """The error for an exit code other than 0. ab prints "func: message (errno)" to stderr."""
    code = output.exit_code
    for line in output.stderr.splitlines():
        if match := re.fullmatch(rf"[\w():]+: .* \({_N}\)", line.strip()):
            why = ABORT_REASONS.get(int(match[1]), "a network error")
            return ParseError(f"ab gave up: {why}", line)
    if code is None:
        return ParseError("ab did not exit")
    lines = output.stderr.strip().splitlines() or [""]
    last = lines[0 if code == 22 else -1]  # a usage error begins with its reason
    if code < 0:
        return ParseError(f"ab was killed by signal {-code}", last)
    if "Complete requests:" in output.stdout:
        return ParseError("ab was interrupted: its report covers only part of the run", last)
    return ParseError(f"ab gave up: {ABORT_REASONS.get(code, f'exit code {code}')}", last)


class _Row(NamedTuple):
    """A line of the -g file: whole milliseconds, and the second in which the request started."""

    started_s: int
    connect_ms: int
    total_ms: int
    wait_ms: int


class _Report:
    """ab's text: "Label:   value" lines, and the table of connection times."""

    def __init__(self, text: str) -> None:
        self._values: dict[str, list[str]] = {}
        for line in text.splitlines():
            label, colon, value = line.partition(":")
            if colon:
                if "across all" in value:  # otherwise the label would occur twice
                    label += ", across"
                self._values.setdefault(label.strip(), []).append(value.strip())

    def line(self, label: str) -> str:
        """The line with this label. Raises ParseError if it is missing or not unique."""
        lines = [f"{label}: {value}" for value in self._values.get(label, [])]
        if len(lines) != 1:
            raise ParseError(f'ab\'s report has {len(lines)} "{label}" lines, not one', *lines[:1])
        return lines[0]

    def _match(self, label: str, pattern: str) -> re.Match[str]:
        line = self.line(label)
        match = re.fullmatch(pattern, line[len(label) + 2 :], re.ASCII)
        if match is None:
            raise ParseError("ab's report has a line in an unknown format", line)
        return match

    def count(self, label: str, *, optional: bool = False) -> int:
        """A whole number, which "bytes" may follow. `optional`: 0 if it is missing."""
        if optional and label not in self._values:
            return 0
        return int(self._match(label, rf"{_N}(?: bytes)?")[1])

    def errors(self) -> dict[str, int]:
        """Events by cause, without zero counts."""
        events: dict[str, int] = {}
        if failed := self.count("Failed requests"):
            pattern = rf"{_N}, (?:Receive: {_N}, )?Length: {_N}, Exceptions: {_N}\)"
            counts = (int(count or 0) for count in self._match("(Connect", pattern).groups())
            events = dict(zip(("connect", "read", "length", "exception"), counts, strict=True))
            events["other"] = failed - sum(events.values())
            if events["other"] < 0:
                raise ParseError("ab reports more causes than failures", self.line("(Connect"))
        events["write"] = self.count("Write errors", optional=True)
        events["non_2xx"] = self.count("Non-2xx responses", optional=True)
        return {cause: count for cause, count in events.items() if count}

    def rate(self, requests: int) -> tuple[float, float | None]:
        """(seconds, requests per second); the rate is None if ab measured no time."""
        seconds = float(self._match("Time taken for tests", r"(\d{1,9}\.\d{3}) seconds")[1])
        label = "Requests per second"
        if seconds == 0 and label not in self._values:
            return seconds, None
        rps = float(self._match(label, r"(\d{1,12}\.\d\d) \[#/sec\] \(mean\)")[1])
        low = requests / (seconds + 0.0005) - 0.006
        high = requests / (seconds - 0.0005) + 0.006 if seconds > 0.0005 else math.inf
        if not low <= rps <= high:
            raise ParseError("ab's rate does not match its requests and time", self.line(label))
        return seconds, rps

    def figures(self, requests: int, duration_s: float) -> AbReport:
        """The report as printed. ab prints no rates for a run that took no time."""
        has_rates = duration_s > 0 or "Transfer rate" in self._values
        mean_s, across_s, rate = (self._rate(label) if has_rates else None for label in RATES)
        concurrency, total, html = (self.count(label) for label in REPORT_COUNTS)
        times = {name.lower(): self.times(name) for name in TIME_ROWS}
        return AbReport(
            concurrency=concurrency,
            requests=requests,
            time_taken_s=duration_s,
            time_per_request_s=mean_s,
            time_per_request_across_s=across_s,
            transfer_rate_bytes_per_s=rate,
            total_transferred_bytes=total,
            html_transferred_bytes=html,
            times=times,
        )

    def _rate(self, label: str) -> float:
        unit, units = RATES[label]
        match = self._match(label, rf"(\d{{1,12}}\.\d{{2,3}}) {re.escape(unit)}")
        return round(float(match[1]) / units, 6)

    def times(self, label: str) -> AbTimes:
        """A row of the table of connection times, which lacks sd and median with ab's -S."""
        match = self._match(label, rf"{_N}\s+{_N}(?:\s+(\d{{1,15}}\.\d)\s+{_N})?\s+{_N}")
        least, mean, sd, median, most = (
            None if ms is None else float(ms) / 1000 for ms in match.groups()
        )
        return AbTimes(min=least, mean=mean, sd=sd, median=median, max=most)

    def check_totals(self, totals: list[float]) -> None:
        """Raises ParseError unless the last line of the table agrees with the files: minimum and
        maximum to the millisecond, the mean within the rounding of both."""
        line, row = self.line("Total"), self.times("Total")
        least, mean, most = (
            round(1000 * (value_s or 0.0)) for value_s in (row.min, row.mean, row.max)
        )
        mean_gap_ms = abs(mean - math.fsum(totals) / len(totals))
        if (least, most) != (_round_ms(totals[0]), _round_ms(totals[-1])) or mean_gap_ms > 1.01:
            raise ParseError("ab's table of connection times and its files disagree", line)


def _round_ms(ms: float) -> int:
    """Round as ab does: (microseconds + 500) / 1000."""
    return (round(ms * 1000) + 500) // 1000


def _read_rows(text: str | None, requests: int) -> list[_Row]:
    """The -g file: a row per complete request, ordered by total time."""
    rows = []
    row = rf"[^\t]+\t{_N}\t{_N}\t{_N}\t{_N}\t{_N}"
    for match in table_rows(text, row, tool="ab", name=ROWS_FILE, header=ROWS_HEADER):
        started_s, connect, processing, total, wait = map(int, match.groups())
        if abs(connect + processing - total) > 1:
            raise ParseError(f"{ROWS_FILE} has a row whose times do not add up", match[0])
        rows.append(_Row(started_s=started_s, connect_ms=connect, total_ms=total, wait_ms=wait))
    if len(rows) != requests:
        raise ParseError(f"{ROWS_FILE} has {len(rows)} rows for {requests} complete requests")
    if any(a.total_ms > b.total_ms for a, b in pairwise(rows)):
        raise ParseError(f"{ROWS_FILE} is not sorted by total time")
    return rows


def _read_percentiles(text: str | None) -> list[int]:
    """The -e file: microseconds at 0, 1, ... 100 percent, including those out of range."""
    row = r"(\d+),(-?\d{1,20})\.(\d{3})"
    name, header = PERCENTILES_FILE, PERCENTILES_HEADER
    rows = list(table_rows(text, row, tool="ab", name=name, header=header))
    if [int(match[1]) for match in rows] != list(range(101)):
        raise ParseError(f"{name} has {len(rows)} rows, not one for each percent from 0 to 100")
    return [int(match[2] + match[3]) for match in rows]


def _exact_totals(rounded_ms: list[int], percentiles_us: list[int]) -> list[float]:
    """Total times in ms, ascending: exact if the -e file has that rank (always up to 100 requests),
    else interpolated between the two exact neighbours, within the rounding of the -g file.

    Row i of the -e file has rank floor(0.5 + n*i/100), the last one n - 1; ab.c, output_results.
    """
    n, exact_us = len(rounded_ms), dict[int, int]()
    for percent, us in enumerate(percentiles_us):
        rank = n - 1 if percent == 100 else int(0.5 + n * percent / 100.0)
        if rank >= n:
            continue
        if (us + 500) // 1000 != rounded_ms[rank] or exact_us.setdefault(rank, us) != us:
            row = f"{percent},{us / 1000:.3f} and {rounded_ms[rank]}"
            raise ParseError(f"{PERCENTILES_FILE} and {ROWS_FILE} disagree", row)
    totals_ms = [float(ms) for ms in rounded_ms]
    for low, high in pairwise(sorted(exact_us)):
        for rank in range(low + 1, high):
            share = (rank - low) / (high - low)
            estimate = (exact_us[low] + share * (exact_us[high] - exact_us[low])) / 1000
            totals_ms[rank] = min(max(estimate, rounded_ms[rank] - 0.5), rounded_ms[rank] + 0.499)
    for rank, us in exact_us.items():
        totals_ms[rank] = us / 1000
    return totals_ms


def _summary_of(ms: list[float] | list[int]) -> Summary:
    return Summary(*summarise(value / 1000 for value in ms))


def _lone_s(rows: list[_Row], totals: list[float]) -> float | None:
    """The response time of the first request, if no other started in the same second: start times
    are whole seconds. Times rounded to milliseconds must be at least MIN_ROUNDED_LONE_MS."""
    first = min(row.started_s for row in rows)
    rank, *other_ranks = (rank for rank, row in enumerate(rows) if row.started_s == first)
    is_too_coarse = len(rows) > 100 and totals[rank] < MIN_ROUNDED_LONE_MS
    return None if other_ranks or is_too_coarse else totals[rank] / 1000


class FirstByteAfterEnd(Finding):
    """for {requests:# request}, ab recorded the first byte after the end of the response"""

    requests: int


def _notes(rows: list[_Row]) -> tuple[Finding, ...]:
    """Notes on implausible rows; the other figures remain reliable."""
    early_responses = sum(row.wait_ms > row.total_ms for row in rows)
    return (FirstByteAfterEnd(early_responses),) if early_responses else ()
