"""Locust, with either of its clients: `locust` is its HttpUser, `locust-fast` its FastHttpUser.

Checked against Locust 2.47. It is run as `python -m locust` with the lab's own locustfile
(harness/load/generators/locustfile.py), where every user sends one request after the other, and
which writes what each process has seen. Importing Locust patches the standard library: nobody does.

In several processes (`load.processes`), they talk on loopback. From several hosts (`load.hosts`),
this machine is the master, and each of them runs `worker_command`, which fetches the locustfile
from here: they need nothing but Locust, and begin anew for each trial.

What the Measurement holds:

- `requests`: complete answers, whatever their status; `errors` says why others are no success.
- `response`: as Locust timed them (before it connects until it has the body), complete answers;
  percentiles from a histogram, at most 0.4 % beside the exact ones.
- `duration_s`: from the first request to the end of the last one, in the process where that took
  longest; the clocks of different hosts are never compared.
- `achieved_concurrency`: mean number of requests under way (Little's law), failures included.
- `connect`, `first_byte`, `connections`: Locust does not say.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.load.programs import sha256_of, summary_of
from harness.model import Command, Load, Measurement, Output, ParseError, UsageError
from harness.numbers.histogram import Histogram

LOCUSTFILE = str(Path(__file__).parent / "generators" / "locustfile.py")
RESULT = "locust.json"
FORMAT = 1
PORT = 5557  # where workers on other hosts find their master: Locust's own
JOIN_S = 120  # until they must have come
GRACE_SHARE = 0.8  # of the time until the deadline, for what is under way at the end
WRONG = ("non_2xx", "status", "body")  # what may be wrong with a complete answer
COUNTS = ("sent", "complete", "body_bytes", "in_flight_ns", "cpu_ns")


@dataclass(frozen=True)
class Locust:
    """Locust with one of its clients, as a Tool. `USER`: the class in the locustfile."""

    NAME: str
    USER: str
    NEEDS: tuple[str, ...] = ("locust",)
    PROGRAM: str | None = None
    VERSION_ARGV: tuple[str, ...] = (sys.executable, "-I", "-m", "locust", "--version")
    COUNTED: bool = False
    TIMED: bool = True
    LONE_FIRST: bool = False
    NAMES_REQUESTS: bool = False
    OPEN_MODEL: bool = False
    PROCESSES: bool = True
    RAMPS: bool = True
    DISTRIBUTES: bool = True
    NO_KEEPALIVE: Mapping[str, str] = field(default_factory=dict)
    OUTPUT_FILES: tuple[str, ...] = (RESULT,)
    INSTALL_HINT: str = "It is a Python package: pip install 'workerlab[locust]'."

    def cores_used(self, concurrency: int, processes: int) -> int:
        return processes

    def check(self, load: Load) -> None:
        """UsageError, in one sentence, for a load it cannot produce."""
        if load.concurrency < 1:
            raise UsageError(f"{self.NAME} needs at least one user.")
        if load.rate_rps is not None:
            raise UsageError(f"{self.NAME} cannot send at a rate; use fast.")
        if load.sources:
            raise UsageError(f"{self.NAME} cannot choose the address it sends from; use fast.")
        if _processes(load) > load.concurrency:
            raise UsageError(f"{self.NAME} cannot share {load.concurrency} users among"
                             f" {_processes(load)} processes.")  # fmt: skip
        names = [name.lower() for name, _ in load.headers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"{self.NAME} cannot send the header {twice[0]} twice; use fast.")

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """All users at once, or over the ramp; the locustfile ends the run, not --run-time."""
        spawned = load.concurrency / load.ramp_s if load.ramp_s else load.concurrency
        words = [sys.executable, "-I", "-m", "locust", "--locustfile", LOCUSTFILE]
        words += ["--headless", "--only-summary", "--exit-code-on-error", "0"]
        words += ["--users", str(load.concurrency), "--spawn-rate", f"{spawned:g}"]
        words += ["--stop-timeout", str(math.ceil(_grace_s(load)))]
        words += ["--workerlab", json.dumps(self._asked(load, url, workdir))]
        if load.hosts:
            words += ["--master", "--master-bind-port", str(PORT)]
            words += ["--expect-workers", str(_processes(load))]
            words += ["--expect-workers-max-wait", str(JOIN_S)]
        elif load.processes > 1:
            words += ["--processes", str(load.processes)]
            words += ["--master-bind-host", "127.0.0.1"]
            words += ["--master-bind-port", str(_port(workdir)), "--master-port"]
            words += [str(_port(workdir))]
        return Command(argv=(*words, self.USER))

    def _asked(self, load: Load, url: str, workdir: str) -> dict[str, object]:
        return {
            "user": self.USER,
            "urls": [url, *load.urls],
            "method": load.method,
            "headers": load.headers,
            "body_file": load.body_file,
            "keepalive": load.keepalive,
            "expect_status": load.expect_status,
            "same_body": load.same_body,
            "duration_s": load.duration_s,
            "ramp_s": load.ramp_s,
            "grace_s": _grace_s(load),
            "timeout_s": load.deadline_s,
            "result": f"{workdir}/{RESULT}",
        }

    def parse(self, output: Output) -> Measurement:
        """ParseError where the result is missing, cut short, disagrees with itself or lacks a
        process, and where hosts did not come."""
        if missing := missing_hosts(output.stderr):
            raise ParseError(missing)
        if output.exit_code != 0:
            last = output.stderr.strip().rpartition("\n")[2]
            raise ParseError(f"{self.NAME} ended with exit code {output.exit_code}", last)
        return _measurement(self.NAME, _parts(self, output.files.get(RESULT, "")))


def worker_command(load: Load, master_host: str, port: int = PORT) -> tuple[str, ...]:
    """What a host runs to be a worker, once: for the next trial it is run again."""
    words = ["locust", "--worker", "--locustfile", "-"]
    words += ["--master-host", master_host, "--master-port", str(port)]
    words += ["--exit-code-on-error", "0"]
    if load.processes > 1:
        words += ["--processes", str(load.processes)]
    return tuple(words)


def host_command(worker: Sequence[str]) -> str:
    """One line for a host's shell that is `worker` again and again, until Ctrl-C.

    Locust leaves the locustfile it was sent in the directory for temporary files, which therefore
    is one of its own. The shell waits for Locust in the background: a signal that comes just as a
    shell starts a program in the foreground may be lost on that program, and the shell would heed
    it only after the program's end. For the same reason Locust is killed where it does not end.
    """
    end = r"exec 2>/dev/null; kill \$!; sleep 1; kill -9 \$!; exit"
    return (
        "sh -c 'TMPDIR=$(mktemp -d); export TMPDIR;"
        f' trap "rm -rf $TMPDIR" EXIT; trap "{end}" HUP INT TERM;'
        f" while {shlex.join(worker)} & wait $!; do sleep 1 & wait $!; done'"
    )


def missing_hosts(stderr: str) -> str | None:
    """Why a master gave up that waited for its workers; None if it did not."""
    if "Gave up waiting for workers to connect" not in stderr:
        return None
    counts = re.findall(r"Waiting for workers to be ready, (\d+) of (\d+) connected", stderr)
    came = f"only {counts[-1][0]} of {counts[-1][1]}" if counts else "not all"
    return (
        f"{came} workers came within {JOIN_S} s: run the command on each load host, and see"
        f" that it reaches port {PORT} of this machine"
    )


def _processes(load: Load) -> int:
    return max(1, len(load.hosts)) * load.processes


def _grace_s(load: Load) -> float:
    """The tool ends before the harness gives up on it: what it saw is worth more than that."""
    beside_s = JOIN_S if load.hosts else 0.0
    return max(1.0, GRACE_SHARE * (load.deadline_s - load.duration_s - beside_s))


def _port(workdir: str) -> int:
    """A port below those that the kernel gives away, another one for each trial."""
    return 20_000 + zlib.crc32(workdir.encode()) % 10_000


@dataclass(frozen=True)
class _Part:
    """What a process has seen. `seconds`: from its first request to the end of its last one."""

    counts: Mapping[str, int]
    errors: Mapping[str, int]
    response: Histogram
    first_ns: int | None
    last_ns: int | None
    note: str
    body_sha256: str | None = None  # of the first body

    @property
    def right(self) -> int:
        """Answers that were what was asked for, their bodies like the first one."""
        return self.counts["complete"] - sum(self.errors.get(cause, 0) for cause in WRONG)

    @property
    def seconds(self) -> float:
        if self.first_ns is None or self.last_ns is None:
            return 0.0
        return (self.last_ns - self.first_ns) / 1e9


@dataclass(frozen=True)
class _Parts:
    parts: tuple[_Part, ...]
    cpu_ns: int  # of the process that wrote the result
    master: bool  # which is none of the parts


def _parts(tool: Locust, text: str) -> _Parts:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise ParseError(f"{tool.NAME} left no whole {RESULT}", text) from None
    try:
        if (said["tool"], said["format"], said["user"]) != ("locust", FORMAT, tool.USER):
            raise ParseError(f"not a result of {tool.NAME}, format {FORMAT}", text)
        found = tuple(_part(part) for part in said["parts"].values())
        whole, expected = said["whole"], _count(said["expected"])
        cpu_ns, master = _count(said["cpu_ns"]), "local" not in said["parts"]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ParseError(f"the result of {tool.NAME} is incomplete ({error!r})", text) from None
    if whole is not True:
        raise ParseError(f"{tool.NAME} was interrupted: its result covers a part of the run")
    if len(found) != expected:
        lost = expected - len(found)
        raise ParseError(f"{lost} of {expected} processes of {tool.NAME} were lost under the load")
    return _Parts(found, cpu_ns, master)


def _part(said: Mapping[str, Any]) -> _Part:
    first, last = said["first_ns"], said["last_ns"]
    part = _Part(
        counts={name: _count(said[name]) for name in COUNTS},
        errors={str(cause): _count(n) for cause, n in said["errors"].items()},
        response=Histogram.from_json(said["response"]),
        first_ns=None if first is None else _count(first),
        last_ns=None if last is None else _count(last),
        note=str(said["note"]),
        body_sha256=sha256_of(said),
    )
    counts = part.counts
    if counts["complete"] != part.response.count or counts["complete"] > counts["sent"]:
        raise ValueError("answers and response times disagree")
    if sum(part.errors.values()) > counts["sent"] or part.seconds < 0:
        raise ValueError("more failures than requests")
    return part


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a count")
    return value


def _measurement(name: str, said: _Parts) -> Measurement:
    total: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    response = Histogram()
    for part in said.parts:
        total.update(part.counts)
        errors.update(part.errors)
        response.add(part.response)
    bodies = list(dict.fromkeys(p.body_sha256 for p in said.parts if p.body_sha256 is not None))
    # Each process compares with its own first body: those that began with another all differ
    if other := sum(p.right for p in said.parts if p.body_sha256 in bodies[1:]):
        errors["body"] += other
    duration_s = max((part.seconds for part in said.parts), default=0.0)
    if not total["sent"] or not duration_s:
        raise ParseError(f"{name} sent nothing")
    failed = errors.total()
    firsts = [part.first_ns for part in said.parts if part.first_ns is not None]
    cpu_ns = total["cpu_ns"] + (said.cpu_ns if said.master else 0)
    return Measurement(
        requests=total["complete"],
        failed=failed,
        errors=dict(sorted(errors.items())),
        duration_s=duration_s,
        rps=(total["sent"] - failed) / duration_s,
        response=summary_of(response),
        origin_ns=min(firsts) if not said.master else None,
        achieved_concurrency=total["in_flight_ns"] / 1e9 / duration_s,
        sent=total["sent"],
        cpu_s=cpu_ns / 1e9,
        body_sha256=bodies[0] if bodies and not errors["body"] else None,
        notes=tuple(dict.fromkeys(part.note for part in said.parts if part.note)),
    )


HTTP = Locust("locust", "Http")
FAST = Locust("locust-fast", "Fast")
