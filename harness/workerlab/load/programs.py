"""The lab's own generators as load tools: programs in `generators/` that print a document each.

The Measurement: `response` and `first_byte` of complete responses with any status; `connect` of
every established connection; percentiles from histograms, at most 0.4 % off; `rps`: successes
divided by `duration_s`, from the start of the first request to the end of the last.
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
from workerlab.errors import ParseError, UsageError
from workerlab.finding import Finding, Note
from workerlab.load.generators.format import FORMAT, SHA256, GeneratorDocument
from workerlab.load.tool import (
    DEADLINE_SHARE,
    MIX_FILE,
    NS,
    Tool,
    mix_file,
    percentiles_of,
    route_results,
    summary_of,
)
from workerlab.model.evidence import Command, Measurement, Output
from workerlab.model.plan import Load
from workerlab.numbers.histogram import Histogram

T = TypeVar("T")
Digest = Annotated[str, msgspec.Meta(pattern=f"^{SHA256}$")]

ALL_CORES = 1024  # more cores than any machine has
GENERATORS = str(Path(__file__).parent / "generators")
LATE_LAG_NS = 10e6  # more than the delay of a timer
MAX_ROW_ARRIVALS = 50_000  # of an open load with rows, which are cheap up to this number


def writes_rows(load: Load) -> bool:
    """Whether to write a row per request: if the number of requests is set or small, for a ramp (to
    show response times over time), and for a mix (to match workers' spans with routes)."""
    if load.summed:
        return False
    if load.rate_rps:
        return load.rate_rps * load.duration_s <= MAX_ROW_ARRIVALS
    return not load.timed or load.ramp_s > 0 or bool(load.mix)


@dataclass(frozen=True)
class Program(Tool):
    """A generator of the lab as a Tool. `PROCESS_PER`: what has its own process by default."""

    NAME: str
    NEEDS: tuple[str, ...] = ()
    PROCESSES: bool = False
    PROCESS_PER: Literal["", "connection", "core"] = ""
    FLOOR_RPS: float = 0.0
    MAX_CEILING_CONNECTIONS: int | None = None
    VERSION_ARGV = (sys.executable, "--version")
    TIMED = RAMPS = CHOOSES_SOURCE = IS_EXAMPLE = True

    def cores_used(self, concurrency: int, processes: int) -> int:
        """One core per process, because of the GIL."""
        if self.PROCESS_PER == "connection":
            return concurrency
        return ALL_CORES if self.PROCESS_PER == "core" and processes == 1 else processes

    def compared_processes(self, cores: int) -> tuple[int, ...]:
        return (max(2, cores),) if self.PROCESS_PER == "core" else (1,)

    def check(self, load: Load) -> None:
        super().check(load)
        if load.requests < 1:
            raise UsageError(f"{self.NAME} needs at least one request.")

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """Uses -S if the generator needs no packages, which halves its start-up time."""
        argv = [sys.executable, *(["-I"] if self.NEEDS else ["-I", "-S"]), GENERATORS, self.NAME]
        argv += [word for target in (url, *load.urls) for word in ("--url", target)]
        argv += ["--concurrency", str(load.concurrency)]
        if load.timed or load.rate_rps:
            argv += ["--duration", f"{load.duration_s:.12g}"]
        else:
            argv += ["--requests", str(load.requests)]
        argv += ["--deadline", f"{load.deadline_s * DEADLINE_SHARE:.3f}"]
        options = {
            "processes": load.processes if load.processes > 1 else None,
            "rate": load.rate_rps,
            "arrivals": load.arrivals if load.rate_rps else None,
            "seed": load.schedule if load.rate_rps or load.mix else None,
            "mix": f"{workdir}/{MIX_FILE}" if load.mix else None,
            "ramp": f"{load.ramp_s:g}" if load.ramp_s else None,
            "linger": f"{load.linger_s:g}" if load.linger_s else None,
            "source": ",".join(load.sources),
            "ports": "{}-{}".format(*load.ports) if load.ports else None,
            "method": load.method if load.method != "GET" else None,
            "body-file": load.body_file,
            "expect-status": load.expect_status if load.expect_status != 200 else None,
        }
        argv += [f"--{name}={value}" for name, value in options.items() if value]
        argv += ["--keepalive"] * load.keepalive + ["--same-body"] * load.same_body
        argv += ["--together"] * (load.together and self.SENDS_FIRST_ALONE)
        argv += [f"--header={name}: {value}" for name, value in load.headers]
        if self.NUMBERS_REQUESTS and writes_rows(load):
            argv += ["--rows", f"{workdir}/{self.OUTPUT_FILES[0]}"]
        return Command(argv=tuple(argv), files=mix_file(load))

    def parse(self, output: Output) -> Measurement:
        return measurement_of(self.document_of(output))

    def document_of(self, output: Output) -> GeneratorDocument:
        """Raises ParseError unless the generator exited with 0 and printed a complete document."""
        self.check_exit_code(output)
        name, line = self.NAME, output.stdout.strip()
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise ParseError(f"{name} did not print its document", line) from None
        if not isinstance(fields, dict) or fields.get("generator") != name:
            raise ParseError(f"not a document of {name}", line)
        if fields.get("format") != FORMAT:
            raise ParseError(
                f"a document from another version of {name}, not of format {FORMAT}", line
            )
        if "asked" in fields:  # in runs of earlier versions
            fields["load"] = fields.pop("asked")
        try:
            document = convert(fields, GeneratorDocument)
        except ValueError as error:
            raise ParseError(f"the document of {name} is incomplete ({error})", line) from None
        _check_consistency(name, document, line)
        return document


def convert(fields: object, kind: type[T]) -> T:
    """The output of a generator as a struct of this kind. Raises ValueError if it does not fit."""
    return codec.convert(fields, kind, lambda _, value: Histogram.from_json(value))


def _check_consistency(name: str, document: GeneratorDocument, line: str) -> None:
    """Raises ParseError unless the document is consistent."""
    load, sent = document.load, document.sent
    complete, failed = document.complete, document.failed
    pairs = [
        ("failed", failed, sum(document.errors.values())),
        ("complete", complete, document.response.count),
    ]
    if load.requests is not None:
        pairs.append(("requests", load.requests, sent + document.unsent))
    if routes := document.routes.values():
        errors = sum(sum(route.errors.values()) for route in routes)
        pairs += [
            ("requests by route", sent, sum(route.sent for route in routes)),
            ("responses by route", complete, sum(route.complete for route in routes)),
            ("failures by route", failed, errors),
        ]
    for figure, count, total in pairs:
        if count != total:
            raise ParseError(f"{name}'s counts of {figure} disagree: {count}, {total}", line)
    if load.rate_rps and not sent + document.unsent:
        due = f"in {load.duration_s:g} s at {load.rate_rps:g} requests/s"
        raise ParseError(f"no request was due {due}: make the load longer")
    if not sent:
        raise ParseError(f"{name} sent nothing", line)
    if max(complete, failed) > sent:
        raise ParseError(f"{name} counts more responses or failures than requests", line)


def measurement_of(document: GeneratorDocument) -> Measurement:
    """The measurement of a consistent document."""
    duration_s = document.duration_ns / NS
    return Measurement(
        requests=document.complete,
        failed=document.failed,
        errors=document.errors,
        duration_s=duration_s,
        rps=(document.sent - document.failed) / duration_s if duration_s else None,
        response=summary_of(document.response),
        percentiles_s=percentiles_of(document.response),
        connect=summary_of(document.connect),
        first_byte=summary_of(document.first_byte),
        lone_s=None if document.lone_ns is None else document.lone_ns / NS,
        origin_ns=document.origin_ns,
        achieved_concurrency=document.in_flight_ns / NS / duration_s if duration_s else None,
        connections=document.connections,
        asked_rps=document.load.rate_rps,
        sent=document.sent,
        unsent=document.unsent,
        lag=summary_of(document.lag),
        cpu_s=document.cpu_ns / NS,
        body_sha256=document.body_sha256,
        routes=route_results([document.routes]),
        notes=tuple(_notes(document)),
    )


def as_notes(texts: Iterable[str]) -> tuple[Finding, ...]:
    """The notes that programs printed, without duplicates."""
    return tuple(map(Note, dict.fromkeys(texts)))


class RequestsSentAgain(Finding):
    """the server closed {requests:# kept-alive connection} as a request was sent on
    {requests:it/each}; {requests:that request was/those requests were} resent on
    {requests:a new connection/new connections}"""

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
    connections waited for responses, or the generator could not keep up"""

    lag_s: float


def _notes(document: GeneratorDocument) -> Iterator[Finding]:
    if document.reconnects:
        yield RequestsSentAgain(document.reconnects)
    if document.deadline_struck:
        yield StoppedAtDeadline(document.unsent)
    elif document.load.rate_rps:
        yield from rate_notes(
            sent=document.sent,
            unsent=document.unsent,
            rate_rps=document.load.rate_rps,
            lag=document.lag,
        )
    yield from as_notes(document.notes)


def rate_notes(*, sent: int, unsent: int, rate_rps: float, lag: Histogram) -> Iterator[Finding]:
    """Notes on requests of an open load that were sent late or never."""
    median_lag_ns = lag.quantile(0.5)
    if unsent:
        yield RequestsNeverSent(unsent, due=sent + unsent, rate_rps=rate_rps)
    elif median_lag_ns is not None and median_lag_ns > LATE_LAG_NS:
        yield RequestsSentLate(median_lag_ns / NS)
