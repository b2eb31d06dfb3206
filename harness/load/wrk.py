"""wrk: its command and what its report means.

Checked against wrk 4.1.0 and its source. wrk prints figures for humans (three digits, changing
units), so a small Lua script adds one line of exact ones when the run is over; the text must
agree with it, within its own rounding. The script defines neither `request` nor `response`: both
would be called for each request, and cost the CPU that the load needs.

A new connection per request (`Connection: close`), so that it asks of the server what ab asks.
wrk then reconnects when the server has closed. Without that header it keeps its connections.

What the Measurement holds:

- `requests`: responses wrk read to the end, whatever their status. Requests under way when the
  time is over are not counted, though the server still works on them.
- `errors`: connect, read, write, timeout, and non_2xx, which for wrk means a status of 400 and
  above. A response later than --timeout is a timeout *and* a request. A connection that could not
  be made is not tried again: after a connect error fewer connections than asked for are busy.
- `failed`: the sum of all these, but never more than requests plus connections broken.
- `response`: wrk "corrects" its latencies with synthetic samples, so these are wrk's word, not to
  be compared with another tool's (`exact_mean` is False). Late responses are not among them.
- `connect`, `first_byte`, `lone_s`: wrk does not say.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from harness.load.tool import Tool, given_twice
from harness.model import Command, Load, Measurement, Output, ParseError, Summary, UsageError
from harness.numbers.units import scan_bytes, scan_count, scan_duration

SCRIPT = "report.lua"
MARKER = "workerlab-wrk "
ONE_THREAD_UP_TO = 64  # connections one thread drives without being the bottleneck itself

# What wrk's text rounds to: two decimals of a figure that is at least 0.85 of its unit.
ROUNDING = 0.01

DONE = r"""
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


def threads(concurrency: int) -> int:
    """wrk gives each thread floor(c / t) connections, so t must divide c."""
    return 2 if concurrency > ONE_THREAD_UP_TO and concurrency % 2 == 0 else 1


def _asked_s(load: Load) -> int:
    return max(1, math.ceil(load.duration_s))


def _script(load: Load) -> str:
    headers = {} if load.keepalive else {"Connection": "close"}
    if load.body_file is not None and not any(n.lower() == "content-type" for n, _ in load.headers):
        headers["Content-Type"] = "application/octet-stream"
    # wrk looks for "Host" in this spelling before it adds its own.
    given = {"Host" if name.lower() == "host" else name: value for name, value in load.headers}
    headers |= {name: value for name, value in given.items() if name.lower() != "connection"}
    lines = [f"local MARKER, ASKED_S = {_lua(MARKER)}, {_asked_s(load)}"]
    lines.append(f"wrk.method = {_lua(load.method)}")
    lines += [f"wrk.headers[{_lua(name)}] = {_lua(value)}" for name, value in headers.items()]
    if load.body_file is not None:
        lines.append(f'local body = assert(io.open({_lua(load.body_file)}, "rb"))')
        lines += ['wrk.body = body:read("*a")', "body:close()"]
    return "\n".join(lines) + "\n" + DONE


def _lua(text: str) -> str:
    """A Lua string literal; every byte that is not plain is escaped by number."""
    plain = re.compile(rb"[A-Za-z0-9 _./:;,=?&+*()\[\]{}<>@!#$%^|~`'-]")
    pieces = (bytes([byte]) for byte in text.encode("utf-8", "surrogateescape"))
    body = "".join(p.decode() if plain.fullmatch(p) else f"\\{p[0]:03d}" for p in pieces)
    return f'"{body}"'


@dataclass(frozen=True)
class _Exact:
    """The script's line. Microseconds as wrk gives them; None where wrk had no sample."""

    line: str
    fields: dict[str, float | None]

    def count(self, name: str) -> int:
        """A whole number. ParseError where it is none."""
        value = self.fields.get(name)
        if value is None or value < 0 or not value.is_integer():
            raise ParseError(f"{name} is not a count", self.line)
        return int(value)

    def seconds(self, name: str) -> float | None:
        """A duration in seconds."""
        value = self.fields.get(name)
        return None if value is None else value / 1e6


class Wrk(Tool):
    NAME = PROGRAM = "wrk"
    VERSION_ARGV = ("wrk", "-v")
    COUNTED = False
    TIMED = True
    INSTALL_HINT = (
        "wrk is packaged as wrk (Debian, Ubuntu: apt-get install wrk; macOS: brew install wrk)."
    )

    def cores_used(self, concurrency: int, processes: int) -> int:
        return threads(concurrency)

    def check(self, load: Load) -> None:
        """wrk's table has one header of each name."""
        if load.concurrency < 1:
            raise UsageError("wrk needs at least one connection.")
        if twice := given_twice(load):
            raise UsageError(f"wrk cannot send the header {twice} twice; use another tool.")

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """Whole seconds, rounded up: wrk knows no others."""
        argv = ["wrk", "-t", str(threads(load.concurrency)), "-c", str(load.concurrency)]
        argv += ["-d", f"{_asked_s(load)}s", "--timeout", f"{max(1, math.ceil(load.deadline_s))}s"]
        argv += ["-s", f"{workdir}/{SCRIPT}", url]
        return Command(argv=tuple(argv), files={SCRIPT: _script(load)})

    def parse(self, output: Output) -> Measurement:
        """ParseError for a run that was cut short or answered nothing, and for text that is not
        whole or disagrees with the script's line."""
        if output.exit_code != 0:
            text = output.stderr.strip() or output.stdout.strip()
            raise ParseError(f"wrk gave up with exit code {output.exit_code}", text.split("\n")[0])
        exact = _read_marker(output.stdout, output.stderr)
        requests, duration_s = exact.count("requests"), exact.count("duration_us") / 1e6
        if duration_s <= 0 or duration_s < 0.99 * exact.count("asked_s"):
            raise ParseError("wrk was interrupted: its report covers a part of the run", exact.line)
        if requests == 0:
            raise ParseError("wrk read not one complete response", exact.line)
        _agree(output.stdout, exact)
        causes = {"non_2xx": exact.count("status")}
        causes |= {name: exact.count(name) for name in ("connect", "read", "write", "timeout")}
        broken = causes["connect"] + causes["read"] + causes["write"]
        return Measurement(
            requests=requests,
            failed=min(sum(causes.values()), requests + broken),
            errors={cause: count for cause, count in causes.items() if count},
            duration_s=duration_s,
            rps=requests / duration_s,
            response=_response(exact),
            exact_mean=False,
            notes=_notes(causes),
        )


WRK = Wrk()


def _notes(causes: dict[str, int]) -> tuple[str, ...]:
    notes = []
    if causes["connect"]:
        notes.append(
            f"wrk lost {causes['connect']} of its connections when connecting, for the whole run"
        )
    if causes["timeout"]:
        notes.append(
            f"{causes['timeout']} responses came after wrk's timeout and are not in its latencies"
        )
    return tuple(notes)


def _response(exact: _Exact) -> Summary:
    """Unknown without a sample: wrk then prints zeros. percentile(100) is always 0, so the max."""
    if not exact.fields.get("max_us"):
        return Summary()
    mean, p50, p95, p99, most = (
        exact.seconds(name) for name in ("mean_us", "p50_us", "p95_us", "p99_us", "max_us")
    )
    return Summary(mean, p50, p95, p99, most)


def _read_marker(stdout: str, stderr: str) -> _Exact:
    """The script's line, which stands once and last. Where the script fails, wrk says so on
    stderr and goes on without it."""
    *_, last = ["", *stdout.splitlines()]
    if not last.startswith(MARKER) or stdout.count(MARKER) != 1 or not stdout.endswith("\n"):
        why = "wrk's report is not whole: its last line is not the script's"
        raise ParseError(why, stderr.strip().partition("\n")[0] or last)
    try:
        fields = json.loads(last.removeprefix(MARKER))
    except (ValueError, RecursionError):
        raise ParseError("the script's line cannot be read", last) from None
    if not isinstance(fields, dict):
        raise ParseError("the script's line is not an object", last)
    numbers: dict[str, float | None] = {}
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise ParseError(f"{name} is not a number", last)
        if value is not None and not abs(value) < 1e21:  # NaN and the infinities included
            raise ParseError(f"{name} is out of range", last)
        numbers[name] = None if value is None else float(value)
    return _Exact(last, numbers)


def _agree(stdout: str, exact: _Exact) -> None:
    """ParseError unless wrk's own text is whole and says the same, within its rounding."""
    seconds = exact.count("duration_us") / 1e6
    found = _one(r" *(\d+) requests in (\S+), (\S+) read", stdout)
    _same(found[0], float(found[1]), exact.count("requests"), slack=0)
    _same(found[0], _scan(scan_duration, found[2], found[0]), seconds)
    _same(found[0], _scan(scan_bytes, found[3], found[0]), exact.count("bytes"))
    found = _one(r"Requests/sec: +(\d+\.\d\d)", stdout)
    _same(found[0], float(found[1]), exact.count("requests") / seconds)
    found = _one(r"Transfer/sec: +(\S+)", stdout)
    _same(found[0], _scan(scan_bytes, found[1], found[0]), exact.count("bytes") / seconds)
    _agree_on_errors(stdout, exact)
    figure = r" +(\S+)"
    found = _one(rf" +Latency{figure * 3} +(\S+)%", stdout)
    if exact.fields.get("max_us"):
        for text, name in ((found[1], "mean_us"), (found[3], "max_us")):
            _same(found[0], _scan(scan_duration, text, found[0]), exact.seconds(name) or 0.0)
    found = _one(rf" +Req/Sec{figure * 3} +(\S+)%", stdout)
    for text in found[1:4]:
        if text not in ("nan", "-nan"):
            _scan(scan_count, text, found[0])


def _agree_on_errors(stdout: str, exact: _Exact) -> None:
    """Both lines of errors are there only when there are some."""
    names = ("connect", "read", "write", "timeout")
    if any(exact.count(name) for name in names):
        found = _one(r" +Socket errors: " + ", ".join(rf"{name} (\d+)" for name in names), stdout)
        for text, name in zip(found[1:], names, strict=True):
            _same(found[0], float(text), exact.count(name), slack=0)
    if exact.count("status"):
        found = _one(r" +Non-2xx or 3xx responses: (\d+)", stdout)
        _same(found[0], float(found[1]), exact.count("status"), slack=0)


def _one(pattern: str, text: str) -> list[str]:
    """The one line of this form, then its groups."""
    found = [m for line in text.splitlines() if (m := re.fullmatch(pattern, line, re.ASCII))]
    if len(found) != 1:
        raise ParseError(f"wrk's report has {len(found)} lines of the form {pattern.strip()!r}")
    return [found[0][0], *found[0].groups()]


def _scan(scan: Callable[[str], float], text: str, line: str) -> float:
    try:
        return scan(text)
    except ValueError as error:
        raise ParseError(str(error), line) from None


def _same(line: str, said: float, exact: float, slack: float = ROUNDING) -> None:
    if abs(said - exact) > slack * max(1e-6, abs(exact)) + (slack and 0.005):
        raise ParseError(f"wrk's text and its exact figures disagree ({exact:g})", line)
