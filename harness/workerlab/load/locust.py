"""Locust with either of its clients: `locust` uses HttpUser, `locust-fast` uses FastHttpUser.

Checked against Locust 2.47. It is run as `python -m locust` with the lab's own locustfile
(generators/locustfile.py): every user sends one request after another, or, with a rate, the next
request that is due, and each process reports its results. The lab itself never imports Locust,
because that patches the standard library.

Multiple processes (`load.processes`) communicate on loopback. With load hosts (`load.hosts`),
this machine is the master, and each host runs `worker_command`, which fetches the locustfile from
here: hosts need only Locust, and start a new worker for each trial.

The Measurement:

- `requests`: complete responses with any status; `errors`: failures by cause.
- `response`: of complete responses, as timed by Locust (from before connect to the whole body);
  percentiles from a histogram, at most 0.4 % off.
- `duration_s`: from the first request to the end of the last one, the longest of all processes;
  the clocks of different hosts are never compared.
- With a rate: `response` counts from a request's due time; `lag`: how late it was sent; `unsent`:
  due but never sent; `origin_ns`: the start of the schedule, if one machine sends the load.
- `achieved_concurrency`: mean number of requests in flight (Little's law), including failures.
"""

import json
import math
import re
import shlex
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from workerlab.errors import ParseError
from workerlab.load.generators.format import WRONG_RESPONSE_CAUSES, RouteTotals
from workerlab.load.programs import Digest, as_notes, convert, rate_notes
from workerlab.load.tool import (
    MIX_FILE,
    Count,
    Tool,
    mix_file,
    percentiles_of,
    route_results,
    summary_of,
)
from workerlab.model.evidence import Command, Measurement, Output
from workerlab.model.plan import Load
from workerlab.numbers.histogram import Histogram

LOCUSTFILE = str(Path(__file__).parent / "generators" / "locustfile.py")
RESULT_FILE = "locust.json"
RESULT_FORMAT = 1
# Prints what `locust --version` prints: importing locust would take as long as a short load
PRINT_VERSION = """\
import platform
from importlib.metadata import version
from importlib.util import find_spec
place = find_spec("locust").submodule_search_locations[0]
print(f"locust {version('locust')} from {place} (Python {platform.python_version()})")
"""
PORT = 5557  # of the master, for workers on other hosts; Locust's default
JOIN_S = 120  # time for workers to connect
GRACE_SHARE = 0.8  # of the time from the end of the load to the deadline
FORWARDED_FIELDS = (
    *("method", "headers", "body_file", "keepalive", "expect_status", "same_body"),
    *("duration_s", "ramp_s", "rate_rps", "arrivals", "schedule"),
)


@dataclass(frozen=True)
class Locust(Tool):
    NAME: str
    USER: str  # the class in the locustfile
    FLOOR_RPS: float = 0.0
    NEEDS = ("locust",)
    VERSION_ARGV = (sys.executable, "-I", "-c", PRINT_VERSION)
    COUNTED = False
    TIMED = PROCESSES = RAMPS = DISTRIBUTES = OPEN_MODEL = MIX = True
    REPEATS_HEADERS = False
    CLIENTS = "users"
    START_S = 2.3
    OUTPUT_FILES = (RESULT_FILE,)

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """All users start at once, or over the ramp; the locustfile ends the run, not
        --run-time."""
        spawn_rate = load.concurrency / load.ramp_s if load.ramp_s else load.concurrency
        argv = [sys.executable, "-I", "-m", "locust", "--locustfile", LOCUSTFILE]
        argv += ["--headless", "--only-summary", "--exit-code-on-error", "0"]
        argv += ["--users", str(load.concurrency), "--spawn-rate", f"{spawn_rate:g}"]
        argv += ["--stop-timeout", str(math.ceil(_grace_s(load)))]
        request = {name: getattr(load, name) for name in FORWARDED_FIELDS} | {
            "user": self.USER,
            "urls": [url, *load.urls],
            "together": not load.hosts,
            "grace_s": _grace_s(load),
            "timeout_s": load.deadline_s,
            "result": f"{workdir}/{RESULT_FILE}",
            "mix": f"{workdir}/{MIX_FILE}" if load.mix else None,
            "shares": _processes(load),
        }
        argv += ["--workerlab", json.dumps(request)]
        if load.hosts:
            argv += ["--master", "--master-bind-port", str(PORT)]
            argv += ["--expect-workers", str(_processes(load))]
            argv += ["--expect-workers-max-wait", str(JOIN_S)]
        elif load.processes > 1:
            port = str(20_000 + zlib.crc32(workdir.encode()) % 10_000)  # below the ephemeral ports
            argv += ["--processes", str(load.processes), "--master-bind-host", "127.0.0.1"]
            argv += ["--master-bind-port", port, "--master-port", port]
        return Command(argv=(*argv, self.USER), files=mix_file(load))

    def parse(self, output: Output) -> Measurement:
        """Raises ParseError if the result is missing, incomplete or inconsistent, or if hosts did
        not connect."""
        if reason := missing_hosts_reason(output.stderr):
            raise ParseError(reason)
        self.check_exit_code(output)
        return _measurement(self.NAME, _read_result(self, output.files.get(RESULT_FILE, "")))


def worker_command(load: Load, master_host: str) -> tuple[str, ...]:
    """The command that a host runs to be a worker for one trial."""
    argv = ["locust", "--worker", "--locustfile", "-"]
    argv += ["--master-host", master_host, "--master-port", str(PORT)]
    argv += ["--exit-code-on-error", "0"]
    return (*argv, *(["--processes", str(load.processes)] if load.processes > 1 else []))


def host_command(worker: Sequence[str]) -> str:
    """A line for a host's shell that runs `worker` in a loop until Ctrl-C.

    Locust leaves the locustfile it received in the temporary directory, so it gets a separate one.
    It runs in the background: a signal that arrives just as a shell starts a foreground program may
    not reach the program, and the shell would handle it only after the program ends. For the same
    reason Locust is killed if it does not end.
    """
    end = r"exec 2>/dev/null; kill \$!; sleep 1; kill -9 \$!; exit"
    return (
        "sh -c 'TMPDIR=$(mktemp -d); export TMPDIR;"
        f' trap "rm -rf $TMPDIR" EXIT; trap "{end}" HUP INT TERM;'
        f" while {shlex.join(worker)} & wait $!; do sleep 1 & wait $!; done'"
    )


def missing_hosts_reason(stderr: str) -> str | None:
    """Why the master stopped waiting for its workers; None if all of them connected."""
    if "Gave up waiting for workers to connect" not in stderr:
        return None
    counts = re.findall(r"Waiting for workers to be ready, (\d+ of \d+) connected", stderr)
    connected = f"only {counts[-1]}" if counts else "not all"
    return (
        f"{connected} workers connected within {JOIN_S} s: run the command on each load host, and"
        f" check that it can reach port {PORT} of this machine"
    )


def _processes(load: Load) -> int:
    return max(1, len(load.hosts)) * load.processes


def _grace_s(load: Load) -> float:
    """Seconds for Locust to end before the harness kills it, which would lose its results."""
    end_s = load.duration_s + (JOIN_S if load.hosts else 0.0)
    return max(1.0, GRACE_SHARE * (load.deadline_s - end_s))


class ProcessPart(Struct, frozen=True):
    """The results of a process (`generators/locustfile.py`). Raises ValueError if inconsistent."""

    sent: Count
    complete: Count
    errors: dict[str, Count]
    first_ns: Count | None
    last_ns: Count | None
    in_flight_ns: Count
    cpu_ns: Count
    note: str
    response: Histogram
    body_sha256: Digest | None = None  # of the first body
    routes: dict[str, RouteTotals] = {}  # of a mix, by label
    unsent: Count = 0  # due but never sent
    lag: Histogram = field(default_factory=Histogram)  # from the due time to sending
    socket_ns: dict[Literal["connect", "send", "receive"], Count] = {}  # of all requests together
    received_bytes: Count | None = None  # heads and bodies
    answers_ns: tuple[tuple[Count, Count], ...] = ()

    def __post_init__(self) -> None:
        if self.complete != self.response.count or self.complete > self.sent:
            raise ValueError("responses and response times disagree")
        if sum(self.errors.values()) > self.sent or self.seconds < 0:
            raise ValueError("more failures than requests")

    @property
    def successes(self) -> int:
        """Responses with an expected status and a body equal to the first one of the process."""
        return self.complete - sum(self.errors.get(cause, 0) for cause in WRONG_RESPONSE_CAUSES)

    @property
    def seconds(self) -> float:
        """From the first request to the end of the last one."""
        if self.first_ns is None or self.last_ns is None:
            return 0.0
        return (self.last_ns - self.first_ns) / 1e9


class LocustResult(Struct, frozen=True):
    """The document that the locustfile writes."""

    tool: str
    format: int
    user: str
    whole: bool
    expected: Count
    cpu_ns: Count  # of the process that wrote the result
    parts: dict[str, ProcessPart]
    rate_rps: float | None = None  # open model: requested arrivals per second


def _read_result(tool: Locust, text: str) -> LocustResult:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ParseError(f"{tool.NAME} wrote no complete {RESULT_FILE}", text) from None
    try:
        result = convert(document, LocustResult)
    except ValueError as error:
        raise ParseError(f"the result of {tool.NAME} is incomplete ({error})", text) from None
    if (result.tool, result.format, result.user) != ("locust", RESULT_FORMAT, tool.USER):
        raise ParseError(f"not a result of {tool.NAME}, format {RESULT_FORMAT}", text)
    if not result.whole:
        raise ParseError(f"{tool.NAME} was interrupted: its result covers only part of the run")
    if lost_count := result.expected - len(result.parts):
        processes = f"{lost_count} of {result.expected} processes of {tool.NAME}"
        raise ParseError(f"{processes} were lost during the load")
    return result


def _errors(parts: Collection[ProcessPart], bodies: Sequence[str]) -> Counter[str]:
    """Errors by cause. A process whose first body differs adds all its successes as "body"."""
    errors = Counter[str]()
    for part in parts:
        errors.update(part.errors)
    if mismatches := sum(part.successes for part in parts if part.body_sha256 in bodies[1:]):
        errors["body"] += mismatches
    return errors


def _socket_fields(parts: Collection[ProcessPart], sent: int) -> dict[str, Any]:
    """The fields of a Measurement about sockets."""
    received = [part.received_bytes for part in parts if part.received_bytes is not None]
    totals_ns = Counter[str]()
    for part in parts:
        totals_ns.update(part.socket_ns)
    calls_s = {name: totals_ns[name] / 1e9 / sent for name in sorted(totals_ns)}
    return {"received_bytes": sum(received) if received else None, "calls_s": calls_s}


def _merge(histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram()
    for histogram in histograms:
        total.add(histogram)
    return total


def _measurement(name: str, result: LocustResult) -> Measurement:
    parts = result.parts.values()
    response = _merge(part.response for part in parts)
    lag = _merge(part.lag for part in parts)
    bodies = list(dict.fromkeys(part.body_sha256 for part in parts if part.body_sha256 is not None))
    errors = _errors(parts, bodies)
    sent, unsent = sum(part.sent for part in parts), sum(part.unsent for part in parts)
    rate_rps = result.rate_rps
    if rate_rps and not sent + unsent:
        raise ParseError(f"no request was due at {rate_rps:g} requests/s: make the load longer")
    duration_s = max((part.seconds for part in parts), default=0.0)
    if not sent or not duration_s:
        raise ParseError(f"{name} sent nothing")
    lag_notes = rate_notes(sent=sent, unsent=unsent, rate_rps=rate_rps, lag=lag) if rate_rps else ()
    is_local = "local" in result.parts  # otherwise the master wrote it, which has no part
    starts_ns = [part.first_ns for part in parts if part.first_ns is not None]
    return Measurement(
        requests=sum(part.complete for part in parts),
        failed=errors.total(),
        errors=dict(sorted(errors.items())),
        duration_s=duration_s,
        rps=(sent - errors.total()) / duration_s,
        response=summary_of(response),
        percentiles_s=percentiles_of(response),
        origin_ns=min(starts_ns) if is_local or (rate_rps and len(set(starts_ns)) == 1) else None,
        achieved_concurrency=sum(part.in_flight_ns for part in parts) / 1e9 / duration_s,
        asked_rps=rate_rps,
        sent=sent,
        unsent=unsent if rate_rps else None,
        lag=summary_of(lag),
        cpu_s=(sum(part.cpu_ns for part in parts) + (0 if is_local else result.cpu_ns)) / 1e9,
        body_sha256=bodies[0] if bodies and not errors["body"] else None,
        routes=route_results(part.routes for part in parts),
        answers_ns=tuple(response for part in parts for response in part.answers_ns),
        **_socket_fields(parts, sent),
        notes=(*lag_notes, *as_notes(part.note for part in parts if part.note)),
    )


HTTP = Locust("locust", USER="Http", FLOOR_RPS=100.0)
FAST = Locust("locust-fast", USER="Fast", FLOOR_RPS=300.0)
