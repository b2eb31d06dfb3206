"""wrk: its command and its report.

Checked against wrk 4.1.0 and its source. wrk prints figures for humans (three digits, varying
units), so a small Lua script prints a line of exact ones at the end. The text must agree with
it, within its rounding. The script defines neither `request` nor `response`: wrk would call both
for each request, which costs CPU that the load needs.

Without keep-alive, each request has a new connection (`Connection: close`), as with ab: wrk
reconnects when the server has closed the old one. Without that header it keeps its connections.

The Measurement:

- `requests`: responses that wrk read to the end, with any status; not those in flight at the end
  of the run, which the server is still processing.
- `errors`: connect, read, write, timeout, and non_2xx, which for wrk means a status of 400 and
  above. A response later than --timeout is a timeout *and* a request. wrk does not retry a failed
  connection, so it then keeps fewer connections busy than requested.
- `failed`: their sum, but at most requests plus broken connections.
- `response`: wrk "corrects" its latencies with synthetic samples, so they cannot be compared with
  another tool's (`exact_mean` is False). They do not include late responses.
- `connect`, `first_byte`, `lone_s`: not available.
"""

import math
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from workerlab import codec
from workerlab.errors import ParseError
from workerlab.finding import Finding
from workerlab.load.tool import Count, Tool, only_match, sent_headers
from workerlab.model.evidence import Command, Measurement, Output, Summary
from workerlab.model.plan import Load
from workerlab.numbers.units import scan_bytes, scan_count, scan_duration

SCRIPT = "report.lua"
MARKER = "workerlab-wrk "
MAX_CONNECTIONS_PER_THREAD = 64  # one thread drives these without being the bottleneck

# Relative error of wrk's text, which has two decimals of a figure that is at least 0.85 of its unit
ROUNDING_ERROR = 0.01

DONE_FUNCTION = r"""
local function number(value)
  if value ~= value or value == math.huge or value == -math.huge then return "null" end
  return string.format("%.3f", value)
end

function done(summary, latency, requests)
  local e = summary.errors
  local fields = {
    {"duration_us", summary.duration}, {"requests", summary.requests}, {"bytes", summary.bytes},
    {"connect", e.connect}, {"read", e.read}, {"write", e.write},
    {"status", e.status}, {"timeout", e.timeout},
    {"min_us", latency.min}, {"max_us", latency.max},
    {"mean_us", latency.mean}, {"stdev_us", latency.stdev},
    {"p50_us", latency:percentile(50)}, {"p90_us", latency:percentile(90)},
    {"p95_us", latency:percentile(95)}, {"p99_us", latency:percentile(99)},
  }
  for i, field in ipairs(fields) do
    fields[i] = string.format('"%s": %s', field[1], number(field[2]))
  end
  io.write(MARKER, '{"asked_s": ', ASKED_S, ', ', table.concat(fields, ", "), '}\n')
end
"""


def threads_for(concurrency: int) -> int:
    """The number of threads. wrk gives each floor(c / t) connections, so t must divide c."""
    return 2 if concurrency > MAX_CONNECTIONS_PER_THREAD and concurrency % 2 == 0 else 1


def _run_s(load: Load) -> int:
    return max(1, math.ceil(load.duration_s))


def _script(load: Load) -> str:
    headers = {} if load.keepalive else {"Connection": "close"}
    # wrk looks for "Host" in this spelling before it adds its own
    headers |= dict(sent_headers(load, "Host"))
    lines = [f"local MARKER, ASKED_S = {_lua(MARKER)}, {_run_s(load)}"]
    lines.append(f"wrk.method = {_lua(load.method)}")
    lines += [f"wrk.headers[{_lua(name)}] = {_lua(value)}" for name, value in headers.items()]
    if load.body_file is not None:
        lines.append(f'local body = assert(io.open({_lua(load.body_file)}, "rb"))')
        lines += ['wrk.body = body:read("*a")', "body:close()"]
    return "\n".join(lines) + "\n" + DONE_FUNCTION


def _lua(text: str) -> str:
    """A Lua string literal. Bytes that are not printable ASCII are escaped by number."""
    codes = text.encode("utf-8", "surrogateescape")
    characters = (
        chr(code) if 32 <= code < 127 and code not in b'"\\' else f"\\{code:03d}" for code in codes
    )
    return f'"{"".join(characters)}"'


Figure = Annotated[float, msgspec.Meta(gt=-1e21, lt=1e21)]


class _ExactFigures(msgspec.Struct, frozen=True):
    """The figures in the script's line, in microseconds as in wrk; None if wrk had no sample."""

    asked_s: Count
    duration_us: Count
    requests: Count
    bytes: Count
    connect: Count
    read: Count
    write: Count
    status: Count
    timeout: Count
    max_us: Figure | None
    mean_us: Figure | None
    p50_us: Figure | None
    p95_us: Figure | None
    p99_us: Figure | None
    p90_us: Figure | None = None

    @property
    def socket_errors(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("connect", "read", "write", "timeout")}

    @property
    def response(self) -> Summary:
        """Empty if wrk had no sample and printed zeros. The maximum is max_us, because
        percentile(100) is always 0."""
        if not self.max_us:
            return Summary()
        return Summary(
            mean=_seconds(self.mean_us),
            p50=_seconds(self.p50_us),
            p90=_seconds(self.p90_us),
            p95=_seconds(self.p95_us),
            p99=_seconds(self.p99_us),
            max=_seconds(self.max_us),
        )


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / 1e6


class Wrk(Tool):
    NAME = PROGRAM = "wrk"
    VERSION_ARGV = ("wrk", "-v")
    COUNTED = False
    TIMED = True
    SUCCESS_STATUSES = range(100, 400)
    REPEATS_HEADERS = False  # its table of headers has one value per name
    FLOOR_RPS, REQUEST_CPU_S = 5000.0, 0.0002
    CAVEAT = (
        "wrk corrects its response times with synthetic samples, and uses two threads above"
        f" {MAX_CONNECTIONS_PER_THREAD} connections."
    )
    INSTALL_HINT = (
        "wrk is packaged as wrk (Debian, Ubuntu: apt-get install wrk; macOS: brew install wrk)."
    )

    def cores_used(self, concurrency: int, processes: int) -> int:
        return threads_for(concurrency)

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """Rounds times up to whole seconds: wrk accepts no fractions."""
        argv = ["wrk", "-t", str(threads_for(load.concurrency)), "-c", str(load.concurrency)]
        argv += ["-d", f"{_run_s(load)}s", "--timeout", f"{max(1, math.ceil(load.deadline_s))}s"]
        argv += ["-s", f"{workdir}/{SCRIPT}", url]
        return Command(argv=tuple(argv), files={SCRIPT: _script(load)})

    def parse(self, output: Output) -> Measurement:
        """Raises ParseError for a run that was cut short or got no response, and for text that is
        incomplete or disagrees with the script's line."""
        if output.exit_code != 0:
            text = output.stderr.strip() or output.stdout.strip()
            raise ParseError(f"wrk gave up with exit code {output.exit_code}", text.split("\n")[0])
        exact, line = _read_marker(output.stdout, output.stderr)
        requests, duration_s = exact.requests, exact.duration_us / 1e6
        if duration_s <= 0 or duration_s < 0.99 * exact.asked_s:
            raise ParseError("wrk was interrupted: its report covers only part of the run", line)
        if requests == 0:
            raise ParseError("wrk received no complete response", line)
        _check_agreement(output.stdout, exact)
        causes = {"non_2xx": exact.status, **exact.socket_errors}
        broken_connections = exact.connect + exact.read + exact.write
        return Measurement(
            requests=requests,
            failed=min(sum(causes.values()), requests + broken_connections),
            errors={cause: count for cause, count in causes.items() if count},
            duration_s=duration_s,
            rps=requests / duration_s,
            response=exact.response,
            exact_mean=False,
            received_bytes=exact.bytes,
            notes=tuple(_notes(exact)),
        )


WRK = Wrk()


class ConnectionsLost(Finding):
    """wrk could not open {connections:# connection} and ran without {connections:it/them}"""

    connections: int


class ResponsesAfterTimeout(Finding):
    """{responses:# response} arrived after wrk's timeout and {responses:is/are} missing from its
    latencies"""

    responses: int


def _notes(exact: _ExactFigures) -> Iterator[Finding]:
    if exact.connect:
        yield ConnectionsLost(exact.connect)
    if exact.timeout:
        yield ResponsesAfterTimeout(exact.timeout)


def _read_marker(stdout: str, stderr: str) -> tuple[_ExactFigures, str]:
    """(figures, text) of the script's line, which must be unique and last. If the script fails, wrk
    reports that on stderr and continues without it."""
    *_, last_line = ["", *stdout.splitlines()]
    if not last_line.startswith(MARKER) or stdout.count(MARKER) != 1 or not stdout.endswith("\n"):
        why = "wrk's report is incomplete: its last line is not the script's"
        raise ParseError(why, stderr.strip().partition("\n")[0] or last_line)
    try:  # not strict, because Lua prints whole numbers with decimals
        return codec.decode(last_line.removeprefix(MARKER), _ExactFigures, strict=False), last_line
    except (ValueError, RecursionError) as error:
        raise ParseError(f"the script's line cannot be read ({error})", last_line) from None


def _check_agreement(stdout: str, exact: _ExactFigures) -> None:
    """Raises ParseError unless wrk's own text is complete and agrees, within its rounding."""
    seconds, figure, any_figure = exact.duration_us / 1e6, r" +(\S+)", (str, None)
    _check_line(
        stdout,
        r" *(\d+) requests in (\S+), (\S+) read",
        (int, exact.requests),
        (scan_duration, seconds),
        (scan_bytes, exact.bytes),
    )
    _check_line(stdout, r"Requests/sec: +(\d+\.\d\d)", (float, exact.requests / seconds))
    _check_line(stdout, r"Transfer/sec: +(\S+)", (scan_bytes, exact.bytes / seconds))
    if any(exact.socket_errors.values()):  # wrk prints the line only then
        pattern = " +Socket errors: " + ", ".join(rf"{name} (\d+)" for name in exact.socket_errors)
        _check_line(stdout, pattern, *((int, count) for count in exact.socket_errors.values()))
    if exact.status:
        _check_line(stdout, r" +Non-2xx or 3xx responses: (\d+)", (int, exact.status))
    mean, most = (
        (scan_duration, (us or 0.0) / 1e6) if exact.max_us else any_figure
        for us in (exact.mean_us, exact.max_us)
    )
    _check_line(stdout, rf" +Latency{figure * 3} +(\S+)%", mean, any_figure, most, any_figure)
    rate = (lambda text: 0.0 if text in ("nan", "-nan") else scan_count(text), None)
    _check_line(stdout, rf" +Req/Sec{figure * 3} +(\S+)%", rate, rate, rate, any_figure)


def _check_line(
    stdout: str, pattern: str, *expected: tuple[Callable[[str], float | str], float | None]
) -> None:
    """Raises ParseError unless the only line of this form has these figures: whole numbers exactly,
    others within wrk's rounding. With None, any figure that can be scanned is accepted."""
    match = only_match(stdout, pattern, tool="wrk")
    for text, (scan, exact) in zip(match.groups(), expected, strict=True):
        try:
            figure = scan(text)
        except ValueError as error:
            raise ParseError(str(error), match[0]) from None
        if exact is None or isinstance(figure, str):
            continue
        tolerance = 0 if scan is int else ROUNDING_ERROR * max(1e-6, abs(exact)) + 0.005
        if abs(figure - exact) > tolerance:
            why = f"wrk's text and its exact figures disagree ({exact:g})"
            raise ParseError(why, match[0])
