"""The lab's own generators as load tools: a program and a document each, in `generators/`.

They differ in what they can do and what they need, not in how they are asked or what they say; so
one class is all of them, and `harness/load/__init__.py` lists its instances.

What the Measurement holds: `response` and `first_byte` of complete answers, whatever their status;
`connect` of every connection that came up; percentiles from histograms, at most 0.4 % beside the
exact ones; `rps` successes over `duration_s`, which runs from the first start to the last end.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.model import Command, Load, Measurement, Output, ParseError, Summary, UsageError
from harness.numbers.histogram import Histogram

EVERY_CORE = 1024  # more than any machine has
GENERATORS = str(Path(__file__).parent / "generators")
FORMAT = 3
SHA256 = re.compile("[0-9a-f]{64}")
NS = 1e9
LATE_NS = 10e6  # later than that is no rounding of a timer
COUNTS = (
    *("sent", "unsent", "complete", "failed", "connections", "reconnects", "body_bytes"),
    *("origin_ns", "duration_ns", "cpu_ns", "in_flight_ns"),
)

# The generator ends by itself before the harness gives up on it: what it saw is worth more than
# the knowledge that it was killed.
DEADLINE_SHARE = 0.95


FOLLOWED = 50_000  # arrivals of an open cell: a row for each costs little


def followed(load: Load) -> bool:
    """Whether a row per request is worth what it costs: where they are counted, few, or come up
    over a ramp, so that their response times over time are what is looked for."""
    if load.summed:
        return False
    if load.rate_rps:
        return load.rate_rps * load.duration_s <= FOLLOWED
    return not load.timed or load.ramp_s > 0


@dataclass(frozen=True)
class Program:
    """A generator of the lab as a Tool. `ISOLATED`: it needs nothing but the standard library."""

    NAME: str
    NEEDS: tuple[str, ...] = ()
    ISOLATED: bool = False
    LONE_FIRST: bool = False
    NAMES_REQUESTS: bool = False
    OPEN_MODEL: bool = False
    PROCESSES: bool = False
    RAMPS: bool = False
    OUTPUT_FILES: tuple[str, ...] = ()
    PROGRAM: str | None = None
    COUNTED: bool = True
    TIMED: bool = True
    DISTRIBUTES: bool = False
    NO_KEEPALIVE: Mapping[str, str] = field(default_factory=dict)
    PROCESS_PER: Literal["", "connection", "core"] = ""  # what it starts one for, unasked

    @property
    def VERSION_ARGV(self) -> tuple[str, ...]:
        return (sys.executable, "--version")

    @property
    def INSTALL_HINT(self) -> str:
        if not self.NEEDS:
            return "It comes with the lab: there is nothing to install."
        return f"It needs {' and '.join(self.NEEDS)}: pip install 'workerlab[generators]'."

    def cores_used(self, concurrency: int, processes: int) -> int:
        """Each process computes on one core at a time, as Python does."""
        if self.PROCESS_PER == "connection":
            return concurrency
        return EVERY_CORE if self.PROCESS_PER == "core" and processes == 1 else processes

    def check(self, load: Load) -> None:
        """UsageError, in one sentence, for a load it cannot produce."""
        if load.concurrency < 1 or load.requests < 1:
            raise UsageError(f"{self.NAME} needs at least one connection and one request.")
        if load.processes > load.concurrency:
            raise UsageError(f"{self.NAME} cannot share {load.concurrency} connections among"
                             f" {load.processes} processes.")  # fmt: skip

    def command(self, load: Load, url: str, workdir: str) -> Command:
        """-I -S where it needs no packages: half the start-up time."""
        words = [sys.executable, *(["-I", "-S"] if self.ISOLATED else ["-I"]), GENERATORS]
        words += [self.NAME, *self._words(load, url)]
        if self.NAMES_REQUESTS and followed(load):
            words += ["--rows", f"{workdir}/{self.OUTPUT_FILES[0]}"]
        return Command(argv=tuple(words))

    def _words(self, load: Load, url: str) -> list[str]:
        words = [word for one in (url, *load.urls) for word in ("--url", one)]
        words += ["--concurrency", str(load.concurrency)]
        if load.timed or load.rate_rps:
            words += ["--duration", f"{load.duration_s:g}"]
        else:
            words += ["--requests", str(load.requests)]
        words += ["--deadline", f"{load.deadline_s * DEADLINE_SHARE:.3f}"]
        if load.processes > 1:
            words += ["--processes", str(load.processes)]
        if load.keepalive:
            words.append("--keepalive")
        if load.rate_rps:
            words += ["--rate", f"{load.rate_rps!r}"]
        if load.ramp_s:
            words += ["--ramp", f"{load.ramp_s:g}"]
        if load.sources:
            words += ["--source", ",".join(load.sources)]
        if load.ports is not None:
            words += ["--ports", f"{load.ports[0]}-{load.ports[1]}"]
        if load.same_body:
            words.append("--same-body")
        return [*words, *_request_words(load)]

    def parse(self, output: Output) -> Measurement:
        """ParseError where the document is missing, cut short, or disagrees with itself."""
        return measurement(document_of(self.NAME, output))


def _request_words(load: Load) -> list[str]:
    words = ["--method", load.method] if load.method != "GET" else []
    words += [f"--header={name}: {value}" for name, value in load.headers]
    if load.body_file is not None:
        words.append(f"--body-file={load.body_file}")
    if load.expect_status != 200:
        words += ["--expect-status", str(load.expect_status)]
    return words


@dataclass(frozen=True)
class Document:
    """What a generator printed, checked."""

    name: str
    asked: Mapping[str, Any]
    counts: Mapping[str, int]
    errors: Mapping[str, int]
    histograms: Mapping[str, Histogram]
    deadline_struck: bool
    lone_ns: int | None
    notes: tuple[str, ...]
    body_sha256: str | None = None


def document_of(name: str, output: Output) -> Document:
    """ParseError unless the generator `name` ended well and printed a whole document."""
    if output.exit_code != 0:
        last = output.stderr.strip().rpartition("\n")[2]
        raise ParseError(f"{name} ended with exit code {output.exit_code}", last)
    line = output.stdout.strip()
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise ParseError(f"{name} did not print its document", line) from None
    if not isinstance(said, dict) or said.get("generator") != name:
        raise ParseError(f"not a document of {name}", line)
    if said.get("format") != FORMAT:
        raise ParseError(f"a document of another version of {name}, not of format {FORMAT}", line)
    try:
        found = _document(name, said)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ParseError(f"the document of {name} is incomplete ({error})", line) from None
    _agree(found, line)
    return found


def _document(name: str, said: Mapping[str, Any]) -> Document:
    which = ("response", "connect", "first_byte", "lag")
    struck, lone, asked = said["deadline_struck"], said["lone_ns"], said["asked"]
    if not isinstance(asked, dict) or not {"requests", "duration_s", "rate_rps"} <= asked.keys():
        raise ValueError("asked")
    if not isinstance(struck, bool) or not isinstance(said["notes"], list):
        raise ValueError("deadline_struck or notes")
    return Document(
        name=name,
        asked=asked,
        counts={count: _count(said[count], count) for count in COUNTS},
        errors={cause: _count(n, cause) for cause, n in said["errors"].items()},
        histograms={one: Histogram.from_json(said[one]) for one in which},
        deadline_struck=struck,
        lone_ns=None if lone is None else _count(lone, "lone_ns"),
        notes=tuple(str(note) for note in said["notes"]),
        body_sha256=sha256_of(said),
    )


def sha256_of(said: Mapping[str, Any]) -> str | None:
    """Of the body that all answers had; ValueError for what is none. None: nobody says it."""
    value = said.get("body_sha256")
    if value is not None and not (isinstance(value, str) and SHA256.fullmatch(value)):
        raise ValueError("body_sha256")
    return value


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(name)
    return value


def _agree(said: Document, line: str) -> None:
    """ParseError unless the document agrees with itself."""
    counts, planned = said.counts, said.asked.get("requests")
    pairs = [
        ("failed", counts["failed"], sum(said.errors.values())),
        ("complete", counts["complete"], said.histograms["response"].count),
    ]
    if planned is not None:
        pairs.append(("requests", planned, counts["sent"] + counts["unsent"]))
    for what, one, other in pairs:
        if one != other:
            raise ParseError(f"{said.name} disagrees with itself on {what}: {one}, {other}", line)
    if not counts["sent"]:
        raise ParseError(f"{said.name} sent nothing", line)
    if counts["complete"] > counts["sent"] or counts["failed"] > counts["sent"]:
        raise ParseError(f"{said.name} counts more answers than requests", line)


def summary_of(histogram: Histogram) -> Summary:
    """Of nanoseconds, in seconds."""

    def at(share: float) -> float | None:
        value = histogram.quantile(share)
        return None if value is None else value / NS

    mean, most = histogram.mean, histogram.most
    return Summary(
        mean=None if mean is None else mean / NS,
        p50=at(0.50),
        p95=at(0.95),
        p99=at(0.99),
        max=None if most is None else most / NS,
    )


def measurement(said: Document) -> Measurement:
    """What a document means."""
    counts, asked_rps = said.counts, said.asked.get("rate_rps")
    duration_s = counts["duration_ns"] / NS
    of = said.histograms
    return Measurement(
        requests=counts["complete"],
        failed=counts["failed"],
        errors=said.errors,
        duration_s=duration_s,
        rps=(counts["sent"] - counts["failed"]) / duration_s if duration_s else None,
        response=summary_of(of["response"]),
        connect=summary_of(of["connect"]),
        first_byte=summary_of(of["first_byte"]),
        lone_s=None if said.lone_ns is None else said.lone_ns / NS,
        origin_ns=counts["origin_ns"],
        achieved_concurrency=counts["in_flight_ns"] / NS / duration_s if duration_s else None,
        connections=counts["connections"],
        asked_rps=asked_rps,
        sent=counts["sent"],
        unsent=counts["unsent"],
        lag=summary_of(of["lag"]),
        cpu_s=counts["cpu_ns"] / NS,
        body_sha256=said.body_sha256,
        notes=(*_remarks(said), *said.notes),
    )


def _remarks(said: Document) -> list[str]:
    counts, asked_rps, found = said.counts, said.asked.get("rate_rps"), []
    if counts["reconnects"]:
        found.append(
            f"{counts['reconnects']} kept connections were closed by the server as a request"
            " was sent on them: those requests were sent again on new ones"
        )
    if said.deadline_struck:
        found.append(f"stopped at its deadline: {counts['unsent']} requests were never sent")
    elif counts["unsent"] and asked_rps:
        due = counts["sent"] + counts["unsent"]
        found.append(
            f"{counts['unsent']} of {due} requests that were due at {asked_rps:g} a second were"
            " never sent"
        )
    late_ns = said.histograms["lag"].quantile(0.5)
    if not counts["unsent"] and late_ns is not None and late_ns > LATE_NS:
        found.append(
            f"half of the requests were sent more than {late_ns / 1e6:.0f} ms after they were due:"
            " either all connections waited for answers, or the generator could not keep up"
        )
    return found
