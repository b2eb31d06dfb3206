"""The lab's own generators as load tools: a program and a document each, in `generators/`.

What the Measurement holds: `response` and `first_byte` of complete answers, whatever their status;
`connect` of every connection that came up; percentiles from histograms, at most 0.4 % beside the
exact ones; `rps` successes over `duration_s`, which runs from the first start to the last end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from workerlab import codec
from workerlab.finding import Finding, Note
from workerlab.load.generators.document import FORMAT
from workerlab.load.routes import (
    FILE,
    NS,
    Account,
    Count,
    mix_file,
    percentiles_of,
    results,
    summary_of,
)
from workerlab.load.tool import Tool
from workerlab.model import (
    Command,
    Load,
    Measurement,
    Output,
    ParseError,
    UsageError,
)
from workerlab.numbers.histogram import Histogram

T = TypeVar("T")
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]  # SHA-256

EVERY_CORE = 1024  # more than any machine has
GENERATORS = str(Path(__file__).parent / "generators")
LATE_NS = 10e6  # later than that is no rounding of a timer
DEADLINE_SHARE = 0.95  # the generator ends by itself before the harness gives up on it
FOLLOWED = 50_000  # arrivals of an open cell: a row for each costs little


def followed(load: Load) -> bool:
    """Whether a row per request is worth what it costs: where they are counted, few, or come up
    over a ramp, so that their response times over time are what is looked for; and of a mix, or
    nobody knows which route a worker's span was of."""
    if load.summed:
        return False
    if load.rate_rps:
        return load.rate_rps * load.duration_s <= FOLLOWED
    return not load.timed or load.ramp_s > 0 or bool(load.mix)


@dataclass(frozen=True)
class Program(Tool):
    """A generator of the lab as a Tool. `PROCESS_PER`: what it starts one for, unasked."""

    NAME: str
    NEEDS: tuple[str, ...] = ()
    PROCESSES: bool = False
    PROCESS_PER: Literal["", "connection", "core"] = ""
    VERSION_ARGV = (sys.executable, "--version")
    TIMED = RAMPS = True

    def cores_used(self, concurrency: int, processes: int) -> int:
        """Each process computes on one core at a time, as Python does."""
        if self.PROCESS_PER == "connection":
            return concurrency
        return EVERY_CORE if self.PROCESS_PER == "core" and processes == 1 else processes

    def check(self, load: Load) -> None:
        if load.concurrency < 1 or load.requests < 1:
            raise UsageError(f"{self.NAME} needs at least one connection and one request.")
        if load.processes > load.concurrency:
            raise UsageError(f"{self.NAME} cannot share {load.concurrency} connections among"
                             f" {load.processes} processes.")  # fmt: skip

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """-I -S where it needs no packages: half the start-up time."""
        words = [sys.executable, *(["-I"] if self.NEEDS else ["-I", "-S"]), GENERATORS, self.NAME]
        words += [word for one in (url, *load.urls) for word in ("--url", one)]
        words += ["--concurrency", str(load.concurrency)]
        if load.timed or load.rate_rps:
            words += ["--duration", f"{load.duration_s:.12g}"]
        else:
            words += ["--requests", str(load.requests)]
        words += ["--deadline", f"{load.deadline_s * DEADLINE_SHARE:.3f}"]
        options = {
            "processes": load.processes if load.processes > 1 else None,
            "rate": load.rate_rps,
            "arrivals": load.arrivals if load.rate_rps else None,
            "seed": load.schedule if load.rate_rps or load.mix else None,
            "mix": f"{workdir}/{FILE}" if load.mix else None,
            "ramp": f"{load.ramp_s:g}" if load.ramp_s else None,
            "linger": f"{load.linger_s:g}" if load.linger_s else None,
            "source": ",".join(load.sources),
            "ports": "{}-{}".format(*load.ports) if load.ports else None,
            "method": load.method if load.method != "GET" else None,
            "body-file": load.body_file,
            "expect-status": load.expect_status if load.expect_status != 200 else None,
        }
        words += [f"--{name}={value}" for name, value in options.items() if value]
        words += ["--keepalive"] * load.keepalive + ["--same-body"] * load.same_body
        words += ["--together"] * (load.together and self.LONE_FIRST)
        words += [f"--header={name}: {value}" for name, value in load.headers]
        if self.NAMES_REQUESTS and followed(load):
            words += ["--rows", f"{workdir}/{self.OUTPUT_FILES[0]}"]
        return Command(argv=tuple(words), files=mix_file(load))

    def parse(self, output: Output) -> Measurement:
        return measurement(self.document_of(output))

    def document_of(self, output: Output) -> Document:
        """ParseError unless the generator ended well and printed a whole document."""
        self.ended_well(output)
        name, line = self.NAME, output.stdout.strip()
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            raise ParseError(f"{name} did not print its document", line) from None
        if not isinstance(said, dict) or said.get("generator") != name:
            raise ParseError(f"not a document of {name}", line)
        if said.get("format") != FORMAT:
            raise ParseError(
                f"a document of another version of {name}, not of format {FORMAT}", line
            )
        try:
            found = converted(said, Document)
        except ValueError as error:
            raise ParseError(f"the document of {name} is incomplete ({error})", line) from None
        _agree(name, found, line)
        return found


class Asked(msgspec.Struct, frozen=True):
    requests: int | None
    duration_s: float | None
    rate_rps: float | None
    rows: bool = False
    arrivals: str = "even"
    seed: int = 0


class Document(msgspec.Struct, frozen=True):
    """What a generator printed, see `generators/document.py`."""

    asked: Asked
    sent: Count
    unsent: Count
    complete: Count
    failed: Count
    errors: dict[str, Count]
    connections: Count
    reconnects: Count
    body_bytes: Count
    origin_ns: Count
    duration_ns: Count
    cpu_ns: Count
    in_flight_ns: Count
    deadline_struck: bool
    response: Histogram
    connect: Histogram
    first_byte: Histogram
    lag: Histogram
    lone_ns: Count | None
    notes: list[str]
    body_sha256: Digest | None = None  # of the body that all answers had
    routes: dict[str, Account] = {}  # of a mix, by label


def converted(said: object, kind: type[T]) -> T:
    """What a generator said, checked. Raises ValueError."""
    return codec.convert(said, kind, lambda _, value: Histogram.from_json(value))


def _agree(name: str, said: Document, line: str) -> None:
    """ParseError unless the document agrees with itself."""
    pairs = [
        ("failed", said.failed, sum(said.errors.values())),
        ("complete", said.complete, said.response.count),
    ]
    if said.asked.requests is not None:
        pairs.append(("requests", said.asked.requests, said.sent + said.unsent))
    if routes := said.routes.values():
        pairs += [
            ("requests by route", said.sent, sum(one.sent for one in routes)),
            ("answers by route", said.complete, sum(one.complete for one in routes)),
            ("failures by route", said.failed, sum(sum(one.errors.values()) for one in routes)),
        ]
    for what, one, other in pairs:
        if one != other:
            raise ParseError(f"{name} disagrees with itself on {what}: {one}, {other}", line)
    if said.asked.rate_rps and not said.sent + said.unsent:
        due = f"in {said.asked.duration_s:g} s at {said.asked.rate_rps:g} requests/s"
        raise ParseError(f"no request was due {due}: make the load longer")
    if not said.sent:
        raise ParseError(f"{name} sent nothing", line)
    if max(said.complete, said.failed) > said.sent:
        raise ParseError(f"{name} counts more answers than requests", line)


def measurement(said: Document) -> Measurement:
    duration_s = said.duration_ns / NS
    return Measurement(
        requests=said.complete,
        failed=said.failed,
        errors=said.errors,
        duration_s=duration_s,
        rps=(said.sent - said.failed) / duration_s if duration_s else None,
        response=summary_of(said.response),
        percentiles_s=percentiles_of(said.response),
        connect=summary_of(said.connect),
        first_byte=summary_of(said.first_byte),
        lone_s=None if said.lone_ns is None else said.lone_ns / NS,
        origin_ns=said.origin_ns,
        achieved_concurrency=said.in_flight_ns / NS / duration_s if duration_s else None,
        connections=said.connections,
        asked_rps=said.asked.rate_rps,
        sent=said.sent,
        unsent=said.unsent,
        lag=summary_of(said.lag),
        cpu_s=said.cpu_ns / NS,
        body_sha256=said.body_sha256,
        routes=results([said.routes]),
        notes=tuple(_notes(said)),
    )


def recorded(texts: Iterable[str]) -> tuple[Finding, ...]:
    """What a program told in its own words, each once."""
    return tuple(map(Note, dict.fromkeys(texts)))


class RequestsSentAgain(Finding):
    """{requests:# kept connection} {requests:was/were} closed by the server as a request was sent
    on {requests:it/them}; {requests:it was/they were} sent again on {requests:a new one/new ones}
    """

    requests: int


class StoppedAtDeadline(Finding):
    """stopped at its deadline: {unsent:# request} {unsent:was/were} never sent"""

    unsent: int | None


class RequestsNeverSent(Finding):
    """{unsent:count} of {due:# request} due at {rate_rps:number} a second {unsent:was/were} never
    sent"""

    unsent: int
    due: int
    rate_rps: float


class RequestsSentLate(Finding):
    """half of the requests were sent more than {lag_s:milliseconds} after they were due; either all
    connections waited for answers, or the generator could not keep up"""

    lag_s: float


def _notes(said: Document) -> Iterator[Finding]:
    if said.reconnects:
        yield RequestsSentAgain(said.reconnects)
    if said.deadline_struck:
        yield StoppedAtDeadline(said.unsent)
    elif said.asked.rate_rps:
        yield from rate_notes(said.sent, said.unsent, said.asked.rate_rps, said.lag)
    yield from recorded(said.notes)


def rate_notes(sent: int, unsent: int, rate_rps: float, lag: Histogram) -> Iterator[Finding]:
    """What was not sent at a rate, or late."""
    late_ns = lag.quantile(0.5)
    if unsent:
        yield RequestsNeverSent(unsent, due=sent + unsent, rate_rps=rate_rps)
    elif late_ns is not None and late_ns > LATE_NS:
        yield RequestsSentLate(late_ns / NS)
